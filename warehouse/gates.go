package warehouse

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"gpuledger/billing/period"
	"gpuledger/policy"
)

// Gate is one thing that may stand against closing a month, in one currency where it is
// about money.
type Gate struct {
	Name   string   `json:"gate"`
	Figure string   `json:"figure"` // what there is of it
	Limit  string   `json:"limit"`  // what the policy allows
	Failed bool     `json:"failed"`
	Rows   []string `json:"rows,omitempty"` // the largest of what is behind the figure
}

// String says what is above its limit.
func (g Gate) String() string {
	out := fmt.Sprintf("%s: %s, and %s is allowed", g.Name, g.Figure, g.Limit)
	if len(g.Rows) > 0 {
		out += ": " + strings.Join(g.Rows, "; ")
	}
	return out
}

// share is a gate that is a part of the month's effective cost: the cost of it by
// currency, and what it is made of.
type share struct {
	name, limit string
	cost        string // (currency, cost) of month $1
	rows        string // (currency, text, cost)
}

// shares are the gates that compare a part of the month's cost with a limit.
func shares(g policy.Gates) []share {
	return []share{
		{
			"no_telemetry", g.MaxNoTelemetry,
			"SELECT currency, sum(effective_cost) FROM finance.chargeback_month WHERE period = $1 AND posting_period = $1 AND category = 'no_telemetry' GROUP BY 1",
			"SELECT currency, coalesce(node, instance_type, 'no node') AS what, effective_cost AS cost FROM finance.allocation WHERE period = $1 AND posting_period = $1 AND category = 'no_telemetry'",
		},
		{
			"estimated", g.MaxEstimated,
			"SELECT currency, sum(effective_cost) FROM finance.coverage WHERE period = $1 AND method IN ('replica_request', 'even') GROUP BY 1",
			"SELECT currency, coalesce(namespace || '/' || coalesce(workload_name, pod_name), category) || ' by ' || method AS what, effective_cost AS cost FROM finance.allocation WHERE period = $1 AND posting_period = $1 AND method IN ('replica_request', 'even')",
		},
		{
			"unowned", g.MaxUnowned,
			"SELECT currency, sum(effective_cost) FROM finance.chargeback_month WHERE period = $1 AND posting_period = $1 AND team IS NULL GROUP BY 1",
			"SELECT currency, coalesce(namespace, category) AS what, effective_cost AS cost FROM finance.allocation WHERE period = $1 AND posting_period = $1 AND team IS NULL",
		},
		{
			"unmatched", g.Unmatched(),
			`SELECT a.currency, sum(l.effective_cost * a.ratio) * 0.000000000001 FROM ` + runFacts + ` WHERE p.period = $1 AND l.class = 'node_usage' AND a.node_id IS NULL GROUP BY 1`,
			`SELECT a.currency, coalesce(nullif(r.instance_id, ''), r.resource_id) AS what, l.effective_cost * a.ratio * 0.000000000001 AS cost FROM ` + runFacts + ` WHERE p.period = $1 AND l.class = 'node_usage' AND a.node_id IS NULL`,
		},
		{
			"provisional_invoices", g.Provisional(),
			`SELECT a.currency, sum(l.effective_cost * a.ratio) * 0.000000000001 FROM ` + runFacts + ` WHERE p.period = $1 AND l.invoice_id = '' AND ` + statesInvoices + ` GROUP BY 1`,
			`SELECT a.currency, s.name || ' ' || r.account AS what, l.effective_cost * a.ratio * 0.000000000001 AS cost FROM ` + runFacts + ` WHERE p.period = $1 AND l.invoice_id = '' AND ` + statesInvoices,
		},
	}
}

// runFacts are the facts of the months' current runs, with their lines.
const runFacts = `gpuledger.period p JOIN gpuledger.run_unit ru ON ru.run_id = p.run_id
	JOIN gpuledger.allocation a ON a.unit_id = ru.unit_id AND a.period = p.period
	JOIN gpuledger.bill_line l ON l.id = a.line_id AND l.charge_month = a.period
	JOIN gpuledger.bill_resource r ON r.id = l.bill_resource_id JOIN gpuledger.source s ON s.id = l.source_id`

// statesInvoices holds of lines whose source fills in the invoice once it is final. Cards
// of rates and exports that never name one can't be waited for.
const statesInvoices = `(s.kind = 'aws' OR EXISTS (SELECT FROM gpuledger.bill_line o WHERE o.source_id = l.source_id AND o.invoice_id <> ''))`

// Gates returns everything that a month's current run is measured by before it may be
// closed, in a fixed order. A share that is 0 in every currency is one gate without
// currency.
func (db *DB) Gates(ctx context.Context, m period.Month, g policy.Gates, now time.Time) ([]Gate, error) {
	over := Gate{Name: "month_over", Figure: "over", Limit: "a month that is over"}
	if now.Before(m.Next().Start()) {
		over.Figure, over.Failed = "until "+m.Next().Start().Format(time.RFC3339), true
	}
	out := []Gate{over}
	_, problems, err := db.Reconcile(ctx, m)
	if err != nil {
		return nil, err
	}
	out = append(out, counted("difference", problems))
	moved, err := db.MovedInputs(ctx, m)
	if err != nil {
		return nil, err
	}
	out = append(out, counted("inputs_since_the_run", moved))
	for _, s := range shares(g) {
		gates, err := db.shareGates(ctx, m, s)
		if err != nil {
			return nil, fmt.Errorf("gate %s: %w", s.name, err)
		}
		out = append(out, gates...)
	}
	free, err := db.freeMachines(ctx, m)
	if err != nil {
		return nil, err
	}
	// A run without a weight that it needs is not made.
	return append(out, counted("machines_at_no_cost", free), Gate{Name: "missing_weight", Figure: "0", Limit: "0"}), nil
}

func counted(name string, rows []string) Gate {
	return Gate{Name: name, Figure: fmt.Sprint(len(rows)), Limit: "0", Failed: len(rows) > 0, Rows: rows[:min(len(rows), mostRows)]}
}

// mostRows is how many of the rows behind a figure are shown.
const mostRows = 5

func (db *DB) shareGates(ctx context.Context, m period.Month, s share) ([]Gate, error) {
	limit, err := policy.ParsePercent(s.limit)
	if err != nil {
		return nil, err
	}
	rows, err := db.pool.Query(ctx, `WITH part (currency, cost) AS (`+s.cost+`), whole AS (
			SELECT currency, sum(effective_cost) AS cost FROM finance.chargeback_month WHERE period = $1 AND posting_period = $1 GROUP BY 1
		) SELECT p.currency, round(p.cost, 2)::text, coalesce(round(100 * p.cost / nullif(w.cost, 0), 2)::text, '-'), p.cost > $2::text::numeric * w.cost
		FROM part p JOIN whole w USING (currency) WHERE p.cost <> 0 ORDER BY 1`, m.Start(), limit.String())
	if err != nil {
		return nil, err
	}
	var out []Gate
	var currency, cost, percent string
	var above bool
	if _, err := pgx.ForEachRow(rows, []any{&currency, &cost, &percent, &above}, func() error {
		out = append(out, Gate{Name: s.name, Figure: fmt.Sprintf("%s %s (%s %%)", cost, currency, percent), Limit: s.limit, Failed: above})
		return nil
	}); err != nil {
		return nil, err
	}
	for i := range out {
		if !out[i].Failed {
			continue
		}
		_, rest, _ := strings.Cut(out[i].Figure, " ")
		currency, _, _ := strings.Cut(rest, " ")
		rows, err := db.pool.Query(ctx, `SELECT what || ' ' || round(sum(cost), 2)::text FROM (`+s.rows+`) x WHERE currency = $2 GROUP BY what ORDER BY sum(cost) DESC, what LIMIT $3`, m.Start(), currency, mostRows)
		if err != nil {
			return nil, err
		}
		if out[i].Rows, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			return nil, err
		}
	}
	if len(out) == 0 {
		out = []Gate{{Name: s.name, Figure: "0", Limit: s.limit}}
	}
	return out, nil
}

// MovedInputs says which inputs of a month are no longer those of its run, or of the last
// that adjusted it.
func (db *DB) MovedInputs(ctx context.Context, m period.Month) ([]string, error) {
	rows, err := db.pool.Query(ctx, `
SELECT format('bill of %s, %s: loaded %s, after the run', s.name, to_char(d.billing_period, 'YYYY-MM'), to_char(d.loaded_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI'))
FROM gpuledger.bill_delivery d JOIN gpuledger.source s ON s.id = d.source_id
WHERE d.superseded_by IS NULL AND EXISTS (SELECT FROM gpuledger.bill_control c WHERE c.delivery_id = d.id AND c.charge_month = $1 AND c.in_scope)
	AND EXISTS (SELECT FROM finance.current_run s WHERE s.period = $1 AND NOT EXISTS (SELECT FROM gpuledger.run_delivery rd WHERE rd.run_id = s.run_id AND rd.delivery_id = d.id))
UNION ALL
SELECT format('%s node-hours were read again after the run', count(DISTINCT h.id))
FROM finance.current_run p JOIN gpuledger.run r ON r.id = p.run_id JOIN gpuledger.run_unit ru ON ru.run_id = p.own_run_id JOIN gpuledger.unit_node_hour u ON u.unit_id = ru.unit_id JOIN gpuledger.node_hour h ON h.id = u.node_hour_id
	JOIN gpuledger.sample_load l ON l.id = h.superseded_by
WHERE p.period = $1 AND (p.adjustment_id IS NULL OR l.finished_at > r.started_at) HAVING count(*) > 0
ORDER BY 1`, m.Start())
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// ExceededGates says in words what stands against closing a month, apart from its not
// being over.
func (db *DB) ExceededGates(ctx context.Context, m period.Month, g policy.Gates, now time.Time) ([]string, error) {
	gates, err := db.Gates(ctx, m, g, now)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, one := range gates {
		if one.Failed && one.Name != "month_over" {
			out = append(out, one.String())
		}
	}
	return out, nil
}
