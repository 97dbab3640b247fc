package warehouse

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"gpuledger/allocate"
	"gpuledger/billing"
	"gpuledger/policy"
)

// Explanation is one charge with everything it was computed from, and the same
// charge computed again.
type Explanation struct {
	AllocationID string
	RunID        string
	Line         ExplainedLine
	Node         allocate.Node
	NodeName     string
	Window       allocate.Window
	Policy       policy.Policy
	StoredRatio  int64
	Component    string            // node, or the part of the node's price the charge is of
	Share        allocate.Share    // recomputed from the pinned inputs
	Parts        *allocate.Vectors // how the line is divided; nil where it is not
	Moves        []allocate.Move   // what of it a policy moved as a part of the line
	Terms        []allocate.Contribution
	All          []allocate.Contribution // every term of the window
	Pod          string                  // namespace/name, "" for a remainder
	Category     string
	Owner        policy.Owner // as stored
	Recomputed   bool         // false for a line that is not split
}

// ExplainedLine is the bill line behind a charge.
type ExplainedLine struct {
	ID                         int64
	Source, InstanceID         string
	InstanceType, Class, Type  string
	Start, End                 time.Time
	Billed, Effective, List    string
	Currency, Hours, Invoice   string
	Description, BillingPeriod string
}

// FindCharges returns the ids of the charges of a pod at an instant, in the current
// run of the month.
func (db *DB) FindCharges(ctx context.Context, namespace, name string, at time.Time) ([]string, error) {
	rows, err := db.pool.Query(ctx, `SELECT allocation_id::text FROM finance.allocation
		WHERE namespace = $1 AND pod_name = $2 AND charge_start <= $3 AND charge_end > $3 AND period = date_trunc('month', $3 AT TIME ZONE 'UTC')::date AND allocation_id IS NOT NULL
		ORDER BY category <> 'pod', charge_start, allocation_id`, namespace, name, at)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// Explain recomputes one charge of a current run from the inputs its unit pinned.
func (db *DB) Explain(ctx context.Context, allocationID string) (*Explanation, error) {
	var out *Explanation
	err := pgx.BeginTxFunc(ctx, db.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		e := &explaining{tx: tx, out: &Explanation{AllocationID: allocationID}}
		out = e.out
		return e.explain(ctx)
	})
	return out, err
}

type explaining struct {
	tx  pgx.Tx
	out *Explanation

	method string // that the unit was computed by
	unitID int64
	lineID int64
	period time.Time
	nodeID *int32
}

func (e *explaining) explain(ctx context.Context) error {
	var policyBody, ownersBody, class string
	err := e.tx.QueryRow(ctx, `SELECT a.unit_id, a.line_id, a.period, a.node_id, a.ratio, p.run_id, u.method_version, pd.body, od.body, l.class, coalesce(pod.namespace || '/' || pod.name, ''), a.category, coalesce(o.team, ''), coalesce(o.cost_center, '')
		FROM gpuledger.period p
		JOIN gpuledger.run r ON r.id = p.run_id
		JOIN gpuledger.run_unit ru ON ru.run_id = p.run_id
		JOIN gpuledger.unit u ON u.id = ru.unit_id
		JOIN gpuledger.allocation a ON a.unit_id = ru.unit_id AND a.period = p.period
		JOIN gpuledger.bill_line l ON l.id = a.line_id AND l.charge_month = a.period
		JOIN gpuledger.document pd ON pd.sha256 = r.policy_sha256
		JOIN gpuledger.document od ON od.sha256 = r.owners_sha256
		JOIN gpuledger.owner o ON o.id = a.owner_id
		LEFT JOIN gpuledger.pod pod ON pod.id = a.target_id
		WHERE a.allocation_id = $1`, e.out.AllocationID).Scan(&e.unitID, &e.lineID, &e.period, &e.nodeID, &e.out.StoredRatio, &e.out.RunID, &e.method, &policyBody, &ownersBody, &class, &e.out.Pod,
		&e.out.Category, &e.out.Owner.Team, &e.out.Owner.CostCenter)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("no charge %s in the current run of any month; list them with: SELECT allocation_id FROM finance.allocation", e.out.AllocationID)
	}
	if err != nil {
		return err
	}
	if e.out.Policy, err = policy.FromCanonical([]byte(policyBody)); err != nil {
		return err
	}
	owners, err := policy.OwnersFromCanonical([]byte(ownersBody))
	if err != nil {
		return err
	}
	if err := e.line(ctx); err != nil {
		return err
	}
	if e.nodeID == nil || class != "node_usage" {
		return nil
	}
	return e.recompute(ctx, owners)
}

func (e *explaining) line(ctx context.Context) error {
	l := &e.out.Line
	return e.tx.QueryRow(ctx, `SELECT l.id, s.name, r.instance_id, r.instance_type, l.class, l.charge_type, l.charge_start, l.charge_end,
			trim_scale(l.billed_cost)::text, trim_scale(l.effective_cost)::text, coalesce(trim_scale(l.list_cost)::text, ''), l.currency,
			coalesce(trim_scale(l.instance_hours)::text, ''),
			l.invoice_id, l.description, to_char(l.billing_period, 'YYYY-MM')
		FROM gpuledger.bill_line l JOIN gpuledger.source s ON s.id = l.source_id JOIN gpuledger.bill_resource r ON r.id = l.bill_resource_id
		WHERE l.id = $1 AND l.charge_month = $2`, e.lineID, e.period).Scan(&l.ID, &l.Source, &l.InstanceID, &l.InstanceType, &l.Class, &l.Type, &l.Start, &l.End,
		&l.Billed, &l.Effective, &l.List, &l.Currency, &l.Hours, &l.Invoice, &l.Description, &l.BillingPeriod)
}

// recompute rebuilds the window from the pinned node-hours and splits it again.
func (e *explaining) recompute(ctx context.Context, owners policy.Owners) error {
	nodes, err := loadNodes(ctx, e.tx)
	if err != nil {
		return err
	}
	n := nodes.byID[*e.nodeID]
	e.out.NodeName = n.name
	rows, err := e.tx.Query(ctx, selectLines+`WHERE l.charge_month = $1 AND l.id IN (SELECT DISTINCT line_id FROM gpuledger.allocation WHERE unit_id = $2 AND period = $1 AND node_id = $3)
		AND l.class = 'node_usage' AND (l.charge_start, l.charge_end) = (SELECT charge_start, charge_end FROM gpuledger.bill_line WHERE id = $4 AND charge_month = $1)
		ORDER BY s.name, l.charge_start, l.key, l.ordinal`, e.period, e.unitID, *e.nodeID, e.lineID)
	if err != nil {
		return err
	}
	lines, err := pgx.CollectRows(rows, scanLine)
	if err != nil {
		return err
	}
	w := &windowWork{node: n, span: lines[0].span, lines: lines}
	if matched, err := nodes.match(lines[0]); err == nil && matched != nil {
		w.node = matched // a machine that had two names within the line
	}
	d := &dayWork{day: lines[0].span.Start}
	if d.hours, err = e.pinnedHours(ctx, nodes, n); err != nil {
		return err
	}
	a := &allocation{nodes: nodes, o: AllocateOptions{Policy: e.out.Policy, Owners: owners}}
	d.split = a.splitter()
	if e.out.Policy.Idle.Wide() {
		if d.units, err = e.unitsAround(ctx, nodes, n); err != nil {
			return err
		}
		if err := a.survey(ctx, e.tx, d); err != nil {
			return err
		}
	}
	occ, err := a.occupancyOf(ctx, e.tx, d, []*windowWork{w})
	if err != nil {
		return err
	}
	e.out.Window = a.window(d, w, occ, e.out.Line.Currency)
	e.out.Node = e.out.Window.Node
	var all []allocate.Contribution
	v, err := allocate.Compute(e.out.Window, &e.out.Policy, &owners, func(c allocate.Contribution) { all = append(all, c) })
	if err != nil {
		return err
	}
	for _, l := range lines {
		if l.id != e.lineID {
			continue
		}
		shares, err := a.sharesOf(v, l)
		if err != nil {
			return err
		}
		for _, s := range shares {
			r := row{line: l, component: component(l, s), node: n, share: s}
			if uuidText(r.id()) == e.out.AllocationID {
				e.out.Share, e.out.Component, e.out.Recomputed = s, r.component, true
			}
		}
	}
	if e.method != allocate.MethodVersion && (!e.out.Recomputed || int64(e.out.Share.Ratio) != e.out.StoredRatio) {
		return fmt.Errorf("charge %s was made by the method %s, and this program computes %s; make the month's charges again with: gpuledger allocate --period %s", e.out.AllocationID, e.method, allocate.MethodVersion, e.period.Format("2006-01"))
	}
	if (!e.out.Recomputed || int64(e.out.Share.Ratio) != e.out.StoredRatio) && slices.ContainsFunc(e.out.Window.Hours, func(h allocate.Hour) bool { return !h.Seen }) {
		return fmt.Errorf("charge %s was made when telemetry of its hours was missing that was read since; make the month's charges again with: gpuledger allocate --period %s", e.out.AllocationID, e.period.Format("2006-01"))
	}
	if !e.out.Recomputed {
		return fmt.Errorf("charge %s cannot be recomputed: its inputs give no such share; this is a bug, please report it", e.out.AllocationID)
	}
	e.out.Moves = v.Moves[e.out.Share.Key()]
	want := e.out.Share.Target
	if want.Component == "" {
		want.Component = billing.GPU // a line that is not divided goes by its GPUs
	} else {
		e.out.Parts = v
	}
	for _, c := range all {
		if c.Component != want.Component {
			continue
		}
		e.out.All = append(e.out.All, c)
		if c.Key() == want.Key() {
			e.out.Terms = append(e.out.Terms, c)
		}
	}
	return nil
}

func uuidText(id [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

func (e *explaining) pinnedHours(ctx context.Context, nodes *nodeIndex, n *node) (*hourIndex, error) {
	ix := &hourIndex{index: nodes, nodes: map[int32]map[int64]*storedHour{n.id: {}}, covered: map[int32]map[int64]int64{n.clusterID: {}}}
	rows, err := e.tx.Query(ctx, `SELECT h.id, h.node_id, h.hour, h.sha256, h.ready_us, h.uncovered_us, h.pool, h.cpu_milli, h.memory_bytes, coalesce(h.ready_start_us, 0), coalesce(h.ready_end_us, 0)
		FROM gpuledger.unit_node_hour u JOIN gpuledger.node_hour h ON h.id = u.node_hour_id
		WHERE u.unit_id = $1`, e.unitID)
	if err != nil {
		return nil, err
	}
	var h storedHour
	var hour time.Time
	var nodeID int32
	if _, err := pgx.ForEachRow(rows, []any{&h.id, &nodeID, &hour, &h.sha, &h.readyMicros, &h.unknownMicros, &h.pool, &h.cpuMilli, &h.memoryBytes, &h.readyStart, &h.readyEnd}, func() error {
		x := h
		x.node = nodes.byID[nodeID]
		if ix.nodes[nodeID] == nil {
			ix.nodes[nodeID] = map[int64]*storedHour{}
		}
		ix.nodes[nodeID][hour.Unix()] = &x
		return nil
	}); err != nil {
		return nil, err
	}
	rows, err = e.tx.Query(ctx, `SELECT hour, covered_us FROM gpuledger.cluster_hour c WHERE cluster_id = $1 AND superseded_by IS NULL AND hour >= $2 AND hour < $3`,
		n.clusterID, e.out.Line.Start.Truncate(time.Hour), e.out.Line.End)
	if err != nil {
		return nil, err
	}
	var covered int64
	_, err = pgx.ForEachRow(rows, []any{&hour, &covered}, func() error {
		ix.covered[n.clusterID][hour.Unix()] = covered
		return nil
	})
	return ix, err
}
