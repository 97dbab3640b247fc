package warehouse

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/jackc/pgx/v5"

	"gpuledger/allocate"
	"gpuledger/billing/money"
	"gpuledger/billing/period"
)

// aroundKey is what windows have in common that share remainders between nodes.
type aroundKey struct {
	cluster    int32
	start, end int64
	currency   string
}

func keyAround(n *node, span period.Span, currency string) aroundKey {
	return aroundKey{n.clusterID, span.Start.UnixMicro(), span.End.UnixMicro(), currency}
}

// windowsOf returns a cluster's windows whatever their units: the bucket a node is in
// is an accident of its id.
func (d *dayWork) windowsOf(cluster int32) []*windowWork {
	var out []*windowWork
	for _, u := range d.units {
		for _, w := range u.windows {
			if w.node.clusterID == cluster {
				out = append(out, w)
			}
		}
	}
	sortWindows(out)
	return out
}

// aroundHash identifies the inputs of all of a cluster's windows, once for all units.
func (a *allocation) aroundHash(d *dayWork, cluster int32) [32]byte {
	if sum, ok := d.inputs[cluster]; ok {
		return sum
	}
	h := sha256.New()
	a.putWindows(func(format string, args ...any) { _, _ = fmt.Fprintf(h, format+"\n", args...) }, d, d.windowsOf(cluster))
	if d.inputs == nil {
		d.inputs = map[int32][32]byte{}
	}
	d.inputs[cluster] = [32]byte(h.Sum(nil))
	return d.inputs[cluster]
}

// survey works out what every pod is charged by itself, once a day and only where a
// rule looks beyond the node. It keeps the charges and not the telemetry.
func (a *allocation) survey(ctx context.Context, tx pgx.Tx, d *dayWork) error {
	if d.around != nil || !a.o.Policy.Idle.Wide() {
		return nil
	}
	around, receivers := map[aroundKey]*allocate.Around{}, map[string]storedPod{}
	for _, u := range d.units {
		occ, err := a.occupancyOf(ctx, tx, d, u.windows)
		if err != nil {
			return err
		}
		for _, w := range u.windows {
			if err := a.surveyWindow(around, receivers, d, w, occ); err != nil {
				return fmt.Errorf("node %s, %s: %w", w.node.name, w.span, err)
			}
		}
	}
	d.around, d.receivers = around, receivers
	return nil
}

func (a *allocation) surveyWindow(around map[aroundKey]*allocate.Around, receivers map[string]storedPod, d *dayWork, w *windowWork, occ *occupancies) error {
	for _, currency := range currencies(w.lines) {
		v, err := d.split.Compute(a.window(d, w, occ, currency), nil)
		if err != nil {
			return err
		}
		if err := a.surveyLines(around, receivers, v, w, occ, currency); err != nil {
			return err
		}
	}
	return nil
}

func (a *allocation) surveyLines(around map[aroundKey]*allocate.Around, receivers map[string]storedPod, v *allocate.Vectors, w *windowWork, occ *occupancies, currency string) error {
	for _, l := range w.lines {
		if l.currency != currency {
			continue
		}
		shares, err := a.sharesOf(v, l)
		if err != nil {
			return err
		}
		cost, err := money.Parse(l.effective)
		if err != nil {
			return err
		}
		k := keyAround(w.node, w.span, l.currency)
		if around[k] == nil {
			around[k] = &allocate.Around{}
		}
		around[k].Add(shares, cost)
		for _, s := range shares {
			if s.Category == allocate.PodCategory {
				receivers[s.PodUID] = occ.pods[s.PodUID]
			}
		}
	}
	return nil
}

// pod returns what is stored of a share's pod, which a rule may have found elsewhere.
func (d *dayWork) pod(occ *occupancies, name string) storedPod {
	if p, ok := occ.pods[name]; ok {
		return p
	}
	return d.receivers[name]
}

// unitsAround returns the windows of the run that a charge's cluster has in the span of
// its line: those that the rule found the receivers in.
func (e *explaining) unitsAround(ctx context.Context, nodes *nodeIndex, n *node) ([]*unitWork, error) {
	nodeOf := map[int64]int32{}
	var ids []int64
	rows, err := e.tx.Query(ctx, `SELECT DISTINCT a.line_id, a.node_id
		FROM gpuledger.run_unit ru JOIN gpuledger.allocation a ON a.unit_id = ru.unit_id AND a.period = $2
		JOIN gpuledger.node n ON n.id = a.node_id AND n.cluster_id = $3
		JOIN gpuledger.bill_line l ON l.id = a.line_id AND l.charge_month = a.period AND l.class = 'node_usage'
		WHERE ru.run_id = $1 AND (l.charge_start, l.charge_end) = (SELECT charge_start, charge_end FROM gpuledger.bill_line WHERE id = $4 AND charge_month = $2)`,
		e.out.RunID, e.period, n.clusterID, e.lineID)
	if err != nil {
		return nil, err
	}
	var line int64
	var at int32
	if _, err := pgx.ForEachRow(rows, []any{&line, &at}, func() error {
		nodeOf[line] = at
		ids = append(ids, line)
		return nil
	}); err != nil {
		return nil, err
	}
	rows, err = e.tx.Query(ctx, selectLines+"WHERE l.charge_month = $1 AND l.id = ANY ($2) ORDER BY s.name, l.charge_start, l.key, l.ordinal", e.period, ids)
	if err != nil {
		return nil, err
	}
	lines, err := pgx.CollectRows(rows, scanLine)
	u, windows := &unitWork{}, map[int32]*windowWork{}
	for _, l := range lines {
		id := nodeOf[l.id]
		if n, err := nodes.match(l); err == nil && n != nil {
			id = n.id // a machine that had two names within the line
		}
		if windows[id] == nil {
			windows[id] = &windowWork{node: nodes.byID[id], span: l.span}
			u.windows = append(u.windows, windows[id])
		}
		windows[id].lines = append(windows[id].lines, l)
	}
	return []*unitWork{u}, err
}
