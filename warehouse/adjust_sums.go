package warehouse

import (
	"context"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"gpuledger/billing/money"
	"gpuledger/billing/period"
)

// targetKey is who is charged for what: the grain of adjustments.
type targetKey struct {
	day                  string // YYYY-MM-DD
	currency             string
	sourceID             int32
	payer, billingPeriod string
	account, provider    string
	category, movedBy    string
	target               int64 // a pod's id, 0 for none
	owner, model         int32
	mode                 string
	node                 int32 // 0 for none
	pool                 string
}

// figures are what a target was charged and would be: costs, GPU-hours and byte-seconds.
type figures struct{ old, new [7]*big.Rat }

func newFigures() *figures {
	f := &figures{}
	for i := range f.old {
		f.old[i], f.new[i] = new(big.Rat), new(big.Rat)
	}
	return f
}

// targetSums adds up, from several days at once, what differs.
type targetSums struct {
	mu sync.Mutex
	by map[targetKey]*figures
}

func (s *targetSums) at(k targetKey) *figures {
	f := s.by[k]
	if f == nil {
		f = newFigures()
		s.by[k] = f
	}
	return f
}

var unit12 = new(big.Int).Exp(big.NewInt(10), big.NewInt(money.RatioScale), nil)

// addRows adds what was computed now.
func (s *targetSums) addRows(day time.Time, rows []row, dims []dimIDs) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range rows {
		r := &rows[i]
		k := targetKey{
			day: day.Format(time.DateOnly), currency: r.line.currency, sourceID: r.line.sourceID, payer: r.line.payer, billingPeriod: r.line.billingPeriod.Format(time.DateOnly),
			account: r.line.account, provider: r.line.provider,
			category: r.share.Category, movedBy: r.share.MovedBy, owner: dims[i].owner, model: dims[i].model, mode: string(r.share.Mode), pool: r.share.Pool,
		}
		if r.share.PodUID != "" {
			k.target = r.pod.id
		}
		if r.node != nil {
			k.node = r.node.id
		}
		f := s.at(k)
		ratio := new(big.Rat).SetFrac(big.NewInt(int64(r.share.Ratio)), unit12)
		for c, text := range []string{r.line.billed, r.line.effective, r.line.list, r.line.contracted} {
			if err := addProduct(f.new[c], text, ratio); err != nil {
				return err
			}
		}
		if err := addProduct(f.new[4], r.deviceHours, new(big.Rat).SetFrac(big.NewInt(int64(r.share.GPURatio)), unit12)); err != nil {
			return err
		}
		f.new[5].Add(f.new[5], new(big.Rat).SetInt64(r.used))
		f.new[6].Add(f.new[6], new(big.Rat).SetInt64(r.held))
	}
	return nil
}

func addProduct(sum *big.Rat, text string, by *big.Rat) error {
	if text == "" {
		return nil
	}
	x, ok := new(big.Rat).SetString(text)
	if !ok {
		return fmt.Errorf("%q is no number", text)
	}
	sum.Add(sum, x.Mul(x, by))
	return nil
}

// addStored adds what is stored: the facts of the closed run's units and of those that are
// the same now, but for the units that are in both; and what was posted before.
func (s *targetSums) addStored(ctx context.Context, tx pgx.Tx, m period.Month, closedRun string, units []unitRef) error {
	rows, err := tx.Query(ctx, "SELECT unit_id FROM gpuledger.run_unit WHERE run_id = $1", closedRun)
	if err != nil {
		return err
	}
	closed, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return err
	}
	was, is := map[int64]bool{}, map[int64]bool{}
	for _, id := range closed {
		was[id] = true
	}
	var come, gone []int64
	for _, u := range units {
		if u.id != 0 {
			is[u.id] = true
			if !was[u.id] {
				come = append(come, u.id)
			}
		}
	}
	for _, id := range closed {
		if !is[id] {
			gone = append(gone, id)
		}
	}
	const grain = `SELECT to_char(a.charge_day, 'YYYY-MM-DD'), a.currency, l.source_id, r.payer, to_char(l.billing_period, 'YYYY-MM-DD'), r.account, r.provider, a.category, coalesce(a.moved_by, ''), coalesce(a.target_id, 0), a.owner_id, a.model_id, a.mode, coalesce(a.node_id, 0), coalesce(a.node_pool, ''),
			(sum(l.billed_cost * a.ratio) * 0.000000000001)::text, (sum(l.effective_cost * a.ratio) * 0.000000000001)::text, (coalesce(sum(l.list_cost * a.ratio), 0) * 0.000000000001)::text, (coalesce(sum(l.contracted_cost * a.ratio), 0) * 0.000000000001)::text,
			(sum(a.device_hours * a.gpu_ratio) * 0.000000000001)::text, sum(a.used_byte_seconds)::text, sum(a.held_byte_seconds)::text
		FROM gpuledger.allocation a JOIN gpuledger.bill_line l ON l.id = a.line_id AND l.charge_month = a.period JOIN gpuledger.bill_resource r ON r.id = l.bill_resource_id
		WHERE a.period = $1 AND a.unit_id = ANY ($2) GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15`
	const before = `SELECT to_char(a.charge_day, 'YYYY-MM-DD'), a.currency, a.source_id, a.payer, to_char(a.billing_period, 'YYYY-MM-DD'), a.account, a.provider, a.category, coalesce(a.moved_by, ''), coalesce(a.target_id, 0), a.owner_id, a.model_id, a.mode, coalesce(a.node_id, 0), coalesce(a.node_pool, ''),
			sum(a.billed_cost)::text, sum(a.effective_cost)::text, sum(a.list_cost)::text, sum(a.contracted_cost)::text, sum(a.gpu_hours)::text, sum(a.used_byte_seconds)::text, sum(a.held_byte_seconds)::text
		FROM gpuledger.adjustment a JOIN gpuledger.adjustment_batch b ON b.id = a.batch_id
		WHERE b.charge_period = $1 AND b.closed_run_id = $2 AND a.posted GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15`
	for _, q := range []struct {
		sql string
		arg any
		now bool
	}{{grain, come, true}, {grain, gone, false}, {before, closedRun, false}} {
		rows, err := tx.Query(ctx, q.sql, m.Start(), q.arg)
		if err != nil {
			return err
		}
		if err := s.addQuery(rows, q.now); err != nil {
			return err
		}
	}
	return nil
}

func (s *targetSums) addQuery(rows pgx.Rows, now bool) error {
	var k targetKey
	var texts [7]string
	into := []any{&k.day, &k.currency, &k.sourceID, &k.payer, &k.billingPeriod, &k.account, &k.provider, &k.category, &k.movedBy, &k.target, &k.owner, &k.model, &k.mode, &k.node, &k.pool}
	for i := range texts {
		into = append(into, &texts[i])
	}
	one := big.NewRat(1, 1)
	_, err := pgx.ForEachRow(rows, into, func() error {
		f := s.at(k)
		side := &f.old
		if now {
			side = &f.new
		}
		for i, text := range texts {
			if err := addProduct(side[i], text, one); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// entry is one row of an adjustment.
type entry struct {
	key     targetKey
	kind    string
	figures [7]*big.Rat
	posted  bool
}

// entries are the differences, in the order of their keys: of the delta style one each, of
// the ledger style what is taken back and what is charged instead. Those of a target whose
// effective cost changes by less than the materiality are not posted yet.
func (s *targetSums) entries(style string, materiality money.Amount) []entry {
	type who struct {
		currency, category string
		target             int64
		owner              int32
	}
	change := map[who]*big.Rat{}
	var keys []targetKey
	for k, f := range s.by {
		same := true
		for i := range f.old {
			same = same && f.old[i].Cmp(f.new[i]) == 0
		}
		if same {
			continue
		}
		keys = append(keys, k)
		w := who{k.currency, k.category, k.target, k.owner}
		if change[w] == nil {
			change[w] = new(big.Rat)
		}
		change[w].Add(change[w], new(big.Rat).Sub(f.new[1], f.old[1]))
	}
	slices.SortFunc(keys, func(a, b targetKey) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	least := new(big.Rat).SetFrac(materiality.Big(), money.FromInt(1).Big())
	var out []entry
	for _, k := range keys {
		f := s.by[k]
		posted := new(big.Rat).Abs(change[who{k.currency, k.category, k.target, k.owner}]).Cmp(least) >= 0
		if style == "delta" {
			e := entry{key: k, kind: "delta", posted: posted}
			for i := range f.old {
				e.figures[i] = new(big.Rat).Sub(f.new[i], f.old[i])
			}
			out = append(out, e)
			continue
		}
		back := entry{key: k, kind: "reversal", posted: posted}
		for i := range f.old {
			back.figures[i] = new(big.Rat).Neg(f.old[i])
		}
		for _, e := range []entry{back, {key: k, kind: "new", figures: f.new, posted: posted}} {
			if slices.ContainsFunc(e.figures[:], func(x *big.Rat) bool { return x.Sign() != 0 }) {
				out = append(out, e)
			}
		}
	}
	return out
}

const adjustmentColumns = `batch_id, posted, entry, charge_day, currency, source_id, payer, billing_period, account, provider, category, moved_by, target_id, owner_id, model_id, mode, node_id, node_pool,
	billed_cost, effective_cost, list_cost, contracted_cost, gpu_hours, used_byte_seconds, held_byte_seconds`

func (e *entry) copy(c *copyRows, batch int64) {
	k := &e.key
	c.row(25)
	c.int8(batch)
	c.bool(e.posted)
	c.text(e.kind)
	c.date(dateOf(k.day))
	c.text(k.currency)
	c.int4(k.sourceID)
	c.text(k.payer)
	c.date(dateOf(k.billingPeriod))
	c.text(k.account)
	c.text(k.provider)
	c.text(k.category)
	c.optText(k.movedBy)
	c.optInt8(k.target)
	c.int4(k.owner)
	c.int4(k.model)
	c.text(k.mode)
	if k.node != 0 {
		c.int4(k.node)
	} else {
		c.null()
	}
	c.optText(k.pool)
	for _, f := range e.figures {
		c.numeric(decimal(f))
	}
}

// dateOf reads a date that was written by us.
func dateOf(text string) time.Time {
	t, _ := time.Parse(time.DateOnly, text)
	return t
}

// decimal writes a number of at most 48 decimals, all of which it has: costs have 36.
func decimal(r *big.Rat) string {
	s := r.FloatString(48)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}
