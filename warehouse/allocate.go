package warehouse

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"gpuledger/allocate"
	"gpuledger/billing"
	"gpuledger/billing/period"
	"gpuledger/policy"
)

// AllocateOptions says how a month is allocated.
type AllocateOptions struct {
	Period      period.Month
	Policy      policy.Policy
	Owners      policy.Owners
	CodeVersion string
	By          string
	DryRun      bool                          // compute and check, publish nothing
	Workers     int                           // days under way at once; 0: one for each processor
	Progress    func(day time.Time, of int)   // called for each day, may be nil
	Warn        func(format string, a ...any) // findings about the input, may be nil
}

// RunResult is what allocating a month did.
type RunResult struct {
	RunID     string
	Unchanged bool // the current run has the same inputs
	Units     int64
	NewUnits  int64
	Rows      int64
	Lines     int64
}

// Allocate computes the month's units from one snapshot of the inputs, writes
// those that do not exist yet, and publishes a run that lists them: the pointer is
// swapped only after the sums are verified in SQL.
func (db *DB) Allocate(ctx context.Context, o AllocateOptions) (RunResult, error) {
	started := time.Now()
	if o.Warn == nil {
		o.Warn = func(string, ...any) {}
	}
	a := &allocation{db: db, o: o, dims: newLedgerDims()}
	if !o.DryRun {
		if _, err := db.pool.Exec(ctx, "SELECT gpuledger.ensure_month('allocation', $1::date)", o.Period.Start()); err != nil {
			return RunResult{}, err
		}
	}
	var units []unitRef
	var deliveries []deliveryRef
	var before string
	err := pgx.BeginTxFunc(ctx, db.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		var err error
		if err = mayIdle(ctx, tx); err != nil {
			return err
		}
		if before, err = currentRun(ctx, tx, o.Period); err != nil {
			return err
		}
		if deliveries, err = currentDeliveries(ctx, tx, o.Period); err != nil {
			return err
		}
		if a.nodes, err = loadNodes(ctx, tx); err != nil {
			return err
		}
		var snapshot string // every worker reads the same
		if err = tx.QueryRow(ctx, "SELECT pg_export_snapshot()").Scan(&snapshot); err != nil {
			return err
		}
		units, err = a.days(ctx, snapshot)
		return err
	})
	if err != nil {
		return RunResult{}, err
	}
	a.warn()
	if len(deliveries) == 0 {
		return RunResult{}, fmt.Errorf("%w: no bill line of %s is in the warehouse; run: gpuledger ingest bills --period %s", billing.ErrIncomplete, o.Period, o.Period)
	}
	res := RunResult{Units: int64(len(units)), NewUnits: a.written.Load(), Lines: a.lines.Load()}
	for _, u := range units {
		res.Rows += u.rows
	}
	if o.DryRun {
		res.RunID = "(dry run)"
		return res, nil
	}
	return db.publish(ctx, o, started, before, deliveries, units, res)
}

// unitRef is a unit that belongs to the run under way.
type unitRef struct {
	id     int64
	scope  string
	day    time.Time
	input  [32]byte
	output [32]byte
	rows   int64
}

type deliveryRef struct {
	id      int64
	content []byte
}

// allocation is one month's allocation under way.
type allocation struct {
	db      *DB
	o       AllocateOptions
	nodes   *nodeIndex
	dims    *ledgerDims
	collect func(ctx context.Context, day time.Time, rows []row) error // gets the rows of units that are not stored, on a dry run; may be nil
	written atomic.Int64
	lines   atomic.Int64

	noting   sync.Mutex
	findings map[string]*finding // by what they say
}

func currentRun(ctx context.Context, tx pgx.Tx, m period.Month) (string, error) {
	var id *string
	var state string
	err := tx.QueryRow(ctx, "SELECT run_id, state FROM gpuledger.period WHERE period = $1", m.Start()).Scan(&id, &state)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if state == "closed" {
		return "", fmt.Errorf("%w: %s is closed; gpuledger adjust --period %s posts what has changed, gpuledger reopen opens it", ErrClosed, m, m)
	}
	if id == nil {
		return "", nil
	}
	return *id, nil
}

// currentDeliveries are those with lines charged in the month, of whatever billing
// period: corrections come with a later one.
func currentDeliveries(ctx context.Context, tx pgx.Tx, m period.Month) ([]deliveryRef, error) {
	rows, err := tx.Query(ctx, `SELECT d.id, d.content_sha256 FROM gpuledger.bill_delivery d
		WHERE d.superseded_by IS NULL AND EXISTS (SELECT FROM gpuledger.bill_control c WHERE c.delivery_id = d.id AND c.charge_month = $1)
		ORDER BY d.id`, m.Start())
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (d deliveryRef, err error) {
		return d, r.Scan(&d.id, &d.content)
	})
}

// dayWork is one day's lines, grouped into windows and units.
type dayWork struct {
	day   time.Time
	split *allocate.Splitter
	hours *hourIndex
	units []*unitWork

	around    map[aroundKey]*allocate.Around // nil until surveyed
	receivers map[string]storedPod           // pods that it names
	inputs    map[int32][32]byte             // of all windows of a cluster
}

// unitWork is the lines of one unit: windows of nodes, and lines on no node.
type unitWork struct {
	scope   string
	windows []*windowWork
	loose   []*line
}

// windowWork is the lines of one node that charge the same stretch of time.
type windowWork struct {
	node  *node
	span  period.Span
	lines []*line
}

// nodesPerBucket is how many nodes share a unit.
const nodesPerBucket = 64

func (a *allocation) newDay(ctx context.Context, tx pgx.Tx, day time.Time, lines []*line) (*dayWork, error) {
	d := &dayWork{day: day, split: a.splitter()}
	units := map[string]*unitWork{}
	unit := func(scope string) *unitWork {
		u := units[scope]
		if u == nil {
			u = &unitWork{scope: scope}
			units[scope] = u
			d.units = append(d.units, u)
		}
		return u
	}
	type windowKey struct {
		node       int32
		start, end int64
	}
	windows := map[windowKey]*windowWork{}
	for _, l := range lines { // in a fixed order, by their keys
		n, err := a.nodes.match(l)
		if err != nil {
			return nil, err
		}
		if n == nil || l.class != "node_usage" {
			u := unit("source/" + l.source)
			u.loose = append(u.loose, l)
			continue
		}
		k := windowKey{n.id, l.span.Start.UnixMicro(), l.span.End.UnixMicro()}
		w := windows[k]
		if w == nil {
			w = &windowWork{node: n, span: l.span}
			windows[k] = w
			u := unit(fmt.Sprintf("cluster/%s/%d", n.clusterKey, n.id/nodesPerBucket))
			u.windows = append(u.windows, w)
		}
		w.lines = append(w.lines, l)
	}
	sort.Slice(d.units, func(i, j int) bool { return d.units[i].scope < d.units[j].scope })
	for _, u := range d.units {
		sortWindows(u.windows)
	}
	var err error
	d.hours, err = loadHours(ctx, tx, a.nodes, d, a.o.Policy.Idle.Lookback())
	return d, err
}

func sortWindows(windows []*windowWork) {
	sort.Slice(windows, func(i, j int) bool {
		x, y := windows[i], windows[j]
		if x.node.name != y.node.name {
			return x.node.name < y.node.name
		}
		if x.node.instanceID != y.node.instanceID {
			return x.node.instanceID < y.node.instanceID
		}
		if !x.span.Start.Equal(y.span.Start) {
			return x.span.Start.Before(y.span.Start)
		}
		return x.span.End.Before(y.span.End)
	})
}

// inputHash identifies everything a unit is computed from, by meaning: no file text,
// database id, time or code version is in it.
func (a *allocation) inputHash(d *dayWork, u *unitWork) [32]byte {
	h := sha256.New()
	policyHash, ownersHash := a.o.Policy.Hash(), a.o.Owners.Hash()
	put := func(format string, args ...any) { _, _ = fmt.Fprintf(h, format+"\n", args...) }
	put("%s %x %x %x", allocate.MethodVersion, catalogHash, policyHash, ownersHash)
	a.putWindows(put, d, u.windows)
	if len(u.windows) > 0 && a.o.Policy.Idle.Wide() {
		put("around %x", a.aroundHash(d, u.windows[0].node.clusterID))
	}
	for _, l := range u.loose {
		put("loose %q %x %d", l.source, l.key, l.ordinal)
	}
	return [32]byte(h.Sum(nil))
}

// putWindows writes down what windows are computed from.
func (a *allocation) putWindows(put func(string, ...any), d *dayWork, windows []*windowWork) {
	for _, w := range windows {
		put("node %q %q %q %q %q %q", w.node.clusterKey, w.node.clusterName(w.span.Start), w.node.name, w.node.instanceID, w.node.poolAt(w.span.Start), w.node.typeAt(w.span.Start))
		for _, l := range w.lines {
			put("line %q %x %d", l.source, l.key, l.ordinal)
		}
		for _, hour := range a.inputHours(w) {
			nh, covered := d.hours.at(w.node, hour)
			if nh == nil {
				put("hour %d unseen %d", hour.Unix(), covered)
				continue
			}
			put("hour %d %x", hour.Unix(), nh.sha)
		}
	}
}

// unit finds the unit of these inputs, or computes and writes it.
func (a *allocation) unit(ctx context.Context, tx pgx.Tx, d *dayWork, u *unitWork) (unitRef, error) {
	ref := unitRef{scope: u.scope, day: d.day, input: a.inputHash(d, u)}
	found, err := a.db.findUnit(ctx, &ref)
	if err != nil || found {
		return ref, err
	}
	if err := a.survey(ctx, tx, d); err != nil {
		return ref, err
	}
	a.written.Add(1)
	if a.o.DryRun {
		out := newOutput(nil)
		if a.collect != nil {
			out.write = func(ctx context.Context, rows []row, _ [][16]byte) error { return a.collect(ctx, d.day, rows) }
		}
		err = a.compute(ctx, tx, d, u, out.add)
		ref.rows, ref.output = out.rows, out.sum()
		return ref, err
	}
	return ref, a.db.writeUnit(ctx, tx, a, d, u, &ref)
}
