package warehouse

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"gpuledger/allocate"
	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/billing/period"
	"gpuledger/policy"
)

// AdjustOptions say what is posted where. The policy's adjustment part is used; the split is
// that of the policy the month was closed with, unless NewPolicy asks for the one given.
type AdjustOptions struct {
	AllocateOptions              // of the closed month
	Post            period.Month // the open month that gets it; zero: the first after Period that is not closed
	Second          string       // who agreed, may be empty
	Reason          string
	NewPolicy       bool
}

// AdjustResult says what was posted.
type AdjustResult struct {
	RunID   string // the recomputation, "" where nothing changed
	Post    period.Month
	Posted  int // entries
	Carried int // entries below the materiality
	Totals  []AdjustTotal
}

// AdjustTotal is the sum of what was posted in a currency.
type AdjustTotal struct {
	Currency                string
	Billed, Effective, List string
}

// adjusting is one month's adjustment under way.
type adjusting struct {
	o                     AdjustOptions
	started               time.Time
	style, materiality    string
	closedRun, shownRun   string
	deliveries, shownBill []deliveryRef
	units                 []unitRef
	entries               []entry
}

// Adjust recomputes a closed month from its inputs as they are now, and posts what each
// target would be charged more or less, less what was posted before, in an open month. The
// closed month stays as it is. Nothing is written where nothing changed. Its error wraps
// ErrClosed where a month is in the wrong state, ErrInputsMoved where an input moved.
func (db *DB) Adjust(ctx context.Context, o AdjustOptions) (res AdjustResult, err error) {
	j := &adjusting{o: o, started: time.Now()}
	if j.o.Warn == nil {
		j.o.Warn = func(string, ...any) {}
	}
	j.style, j.materiality = o.Policy.Adjustment.Style, o.Policy.Adjustment.Materiality
	materiality, err := money.Parse(j.materiality)
	if err != nil {
		return res, err
	}
	dryRun := o.DryRun
	j.o.DryRun = true // of the allocation: what it computes is compared, not kept
	sums := &targetSums{by: map[targetKey]*figures{}}
	a := &allocation{db: db, dims: newLedgerDims()}
	a.collect = func(ctx context.Context, day time.Time, rows []row) error {
		dims, err := a.dims.resolve(ctx, db, rows)
		if err != nil {
			return err
		}
		return sums.addRows(day, rows, dims)
	}
	err = pgx.BeginTxFunc(ctx, db.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		if err := mayIdle(ctx, tx); err != nil {
			return err
		}
		if err := j.months(ctx, tx); err != nil {
			return err
		}
		a.o = j.o.AllocateOptions
		if a.nodes, err = loadNodes(ctx, tx); err != nil {
			return err
		}
		var snapshot string
		if err = tx.QueryRow(ctx, "SELECT pg_export_snapshot()").Scan(&snapshot); err != nil {
			return err
		}
		if j.units, err = a.days(ctx, snapshot); err != nil {
			return err
		}
		return sums.addStored(ctx, tx, j.o.Period, j.closedRun, j.units)
	})
	if err != nil {
		return res, err
	}
	a.warn()
	if len(j.deliveries) == 0 {
		return res, fmt.Errorf("%w: no bill of %s is in the warehouse", billing.ErrIncomplete, o.Period)
	}
	j.entries = sums.entries(j.style, materiality)
	res = j.result()
	if dryRun {
		return res, nil
	}
	err = pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error { return j.post(ctx, tx, &res) })
	return res, err
}

// months reads the state of both months and what the closed one was computed by.
func (j *adjusting) months(ctx context.Context, tx pgx.Tx) error {
	var state string
	err := tx.QueryRow(ctx, "SELECT p.state, coalesce(p.run_id, ''), coalesce(s.run_id, '') FROM gpuledger.period p LEFT JOIN finance.current_run s USING (period) WHERE p.period = $1", j.o.Period.Start()).Scan(&state, &j.closedRun, &j.shownRun)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && state != "closed" {
		return fmt.Errorf("%w: %s is not closed; gpuledger allocate --period %s takes what has changed", ErrClosed, j.o.Period, j.o.Period)
	}
	if err != nil {
		return err
	}
	if j.o.Post.IsZero() {
		var first time.Time
		if err := tx.QueryRow(ctx, `SELECT m::date FROM generate_series($1::date + interval '1 month', $1::date + interval '50 years', interval '1 month') m
			WHERE NOT EXISTS (SELECT FROM gpuledger.period p WHERE p.period = m::date AND p.state = 'closed') ORDER BY 1 LIMIT 1`, j.o.Period.Start()).Scan(&first); err != nil {
			return err
		}
		j.o.Post = period.MonthOf(first)
	}
	if !j.o.Post.Start().After(j.o.Period.Start()) {
		return fmt.Errorf("%w: %s is not after %s: what changes in a closed month is posted in a later one", ErrClosed, j.o.Post, j.o.Period)
	}
	if !j.o.NewPolicy {
		var body string
		if err := tx.QueryRow(ctx, "SELECT d.body FROM gpuledger.run r JOIN gpuledger.document d ON d.sha256 = r.policy_sha256 WHERE r.id = $1", j.closedRun).Scan(&body); err != nil {
			return err
		}
		if j.o.Policy, err = policy.FromCanonical([]byte(body)); err != nil {
			return fmt.Errorf("the policy of run %s: %w", j.closedRun, err)
		}
	}
	if j.deliveries, err = currentDeliveries(ctx, tx, j.o.Period); err != nil {
		return err
	}
	rows, err := tx.Query(ctx, "SELECT d.id FROM gpuledger.run_delivery rd JOIN gpuledger.bill_delivery d ON d.id = rd.delivery_id WHERE rd.run_id = $1", j.shownRun)
	if err != nil {
		return err
	}
	j.shownBill, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (d deliveryRef, err error) {
		err = r.Scan(&d.id)
		return d, err
	})
	return err
}

// result counts and adds up the entries.
func (j *adjusting) result() AdjustResult {
	res := AdjustResult{Post: j.o.Post}
	sums := map[string]*[3]*big.Rat{}
	for _, e := range j.entries {
		if !e.posted {
			res.Carried++
			continue
		}
		res.Posted++
		s := sums[e.key.currency]
		if s == nil {
			s = &[3]*big.Rat{new(big.Rat), new(big.Rat), new(big.Rat)}
			sums[e.key.currency] = s
		}
		for i := range s {
			s[i].Add(s[i], e.figures[i])
		}
	}
	for _, c := range slices.Sorted(maps.Keys(sums)) {
		s := sums[c]
		res.Totals = append(res.Totals, AdjustTotal{c, decimal(s[0]), decimal(s[1]), decimal(s[2])})
	}
	return res
}

// post writes a batch, after checking again that both months are as they were, and unless
// there is nothing to say: nothing to post, and the bill and the facts are those that the
// month is held against already.
func (j *adjusting) post(ctx context.Context, tx pgx.Tx, res *AdjustResult) error {
	if _, err := tx.Exec(ctx, "INSERT INTO gpuledger.period (period) VALUES ($1) ON CONFLICT DO NOTHING", j.o.Post.Start()); err != nil {
		return err
	}
	var state, own, shown, posting string
	if err := tx.QueryRow(ctx, "SELECT p.state, s.own_run_id, s.run_id FROM gpuledger.period p JOIN finance.current_run s USING (period) WHERE p.period = $1", j.o.Period.Start()).Scan(&state, &own, &shown); err != nil {
		return err
	}
	if err := tx.QueryRow(ctx, "SELECT state FROM gpuledger.period WHERE period = $1 FOR SHARE", j.o.Post.Start()).Scan(&posting); err != nil {
		return err
	}
	now, err := currentDeliveries(ctx, tx, j.o.Period)
	switch {
	case err != nil:
		return err
	case posting == "closed":
		return fmt.Errorf("%w: %s is closed too; --post-in a month that is open", ErrClosed, j.o.Post)
	case state != "closed" || own != j.closedRun || shown != j.shownRun || !sameDeliveries(now, j.deliveries):
		return ErrInputsMoved
	}
	input, output := runHashes(j.deliveries, j.units)
	if res.Posted == 0 && len(j.shownBill) == len(j.deliveries) && !slices.ContainsFunc(j.deliveries, func(d deliveryRef) bool {
		return !slices.ContainsFunc(j.shownBill, func(s deliveryRef) bool { return s.id == d.id })
	}) {
		var was []byte
		if err := tx.QueryRow(ctx, "SELECT output_sha256 FROM gpuledger.run WHERE id = $1", j.shownRun).Scan(&was); err != nil {
			return err
		}
		if string(was) == string(output[:]) {
			res.Carried = 0
			return nil
		}
	}
	return j.insert(ctx, tx, input, output, res)
}

func (j *adjusting) insert(ctx context.Context, tx pgx.Tx, input, output [32]byte, res *AdjustResult) error {
	o := &j.o
	policyHash, err := saveDocument(ctx, tx, "policy", o.Policy.Canonical())
	if err != nil {
		return err
	}
	ownersHash, err := saveDocument(ctx, tx, "owners", o.Owners.Canonical())
	if err != nil {
		return err
	}
	var seq int
	if err := tx.QueryRow(ctx, "SELECT coalesce(max(seq), 0) + 1 FROM gpuledger.run WHERE period = $1", o.Period.Start()).Scan(&seq); err != nil {
		return err
	}
	res.RunID = fmt.Sprintf("%s.%d", o.Period, seq)
	var rows int64
	for _, u := range j.units {
		rows += u.rows
	}
	if _, err := tx.Exec(ctx, `INSERT INTO gpuledger.run (id, period, seq, input_sha256, output_sha256, policy_sha256, owners_sha256, method_version, code_version, units, new_units, rows, created_by, started_at, kind)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 0, $11, $12, $13, 'adjustment')`, res.RunID, o.Period.Start(), seq, input[:], output[:], policyHash, ownersHash,
		allocate.MethodVersion, o.CodeVersion, len(j.units), rows, o.By, j.started); err != nil {
		return err
	}
	ids := make([]int64, len(j.deliveries))
	for i, d := range j.deliveries {
		ids[i] = d.id
	}
	if _, err := tx.Exec(ctx, "INSERT INTO gpuledger.run_delivery (run_id, delivery_id) SELECT $1, unnest($2::bigint[])", res.RunID, ids); err != nil {
		return err
	}
	var batch int64
	if err := tx.QueryRow(ctx, `INSERT INTO gpuledger.adjustment_batch (charge_period, posting_period, closed_run_id, run_id, style, materiality, by_name, second_name, reason)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) RETURNING id`, o.Period.Start(), o.Post.Start(), j.closedRun, res.RunID, j.style, j.materiality, o.By, o.Second, o.Reason).Scan(&batch); err != nil {
		return err
	}
	c := newCopyRows()
	for i := range j.entries {
		j.entries[i].copy(c, batch)
	}
	if err := c.copyTo(ctx, tx, "gpuledger.adjustment", adjustmentColumns); err != nil {
		return stateError(err)
	}
	if err := adjustmentsBalance(ctx, tx, o.Period); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `SELECT gpuledger.log($1, 'adjustment posted', $2, $3, jsonb_build_object('posting_period', to_char($4::date, 'YYYY-MM'), 'closed_run', $5::text, 'style', $6::text, 'second', $7::text, 'reason', $8::text, 'posted', $9::int, 'carried', $10::int))`,
		o.By, o.Period.Start(), res.RunID, o.Post.Start(), j.closedRun, j.style, o.Second, o.Reason, res.Posted, res.Carried)
	return err
}

// adjustmentsBalance refuses a batch after which closed facts and adjustments are not the
// bill as it is now.
func adjustmentsBalance(ctx context.Context, tx pgx.Tx, m period.Month) error {
	rows, err := tx.Query(ctx, `SELECT format('source %s, account %s: %s billed, %s effective, %s list %s', source, account, difference_billed, difference_effective, difference_list, currency)
		FROM finance.reconciliation WHERE period = $1 AND (difference_billed, difference_effective, difference_list) IS DISTINCT FROM (0::numeric, 0::numeric, 0::numeric) ORDER BY 1`, m.Start())
	if err != nil {
		return err
	}
	wrong, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err == nil && len(wrong) > 0 {
		err = fmt.Errorf("the adjustment of %s does not balance and is not posted: %s", m, strings.Join(wrong, "; "))
	}
	return err
}
