package warehouse

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"gpuledger/billing/period"
	"gpuledger/policy"
)

// ExceededGates says in words which limits of the policy a month's current run is
// above, by currency.
func (db *DB) ExceededGates(ctx context.Context, m period.Month, g policy.Gates) ([]string, error) {
	var out []string
	for _, gate := range []struct{ limit, key, what, part string }{
		{g.MaxNoTelemetry, "max_no_telemetry", "has no telemetry", "SELECT currency, sum(effective_cost) FROM finance.chargeback_month WHERE period = $1 AND category = 'no_telemetry' GROUP BY 1"},
		{g.MaxEstimated, "max_estimated", "is estimated by replicas or evenly", "SELECT currency, sum(effective_cost) FROM finance.coverage WHERE period = $1 AND method IN ('replica_request', 'even') GROUP BY 1"},
		{g.MaxUnowned, "max_unowned", "has no owner", "SELECT currency, sum(effective_cost) FROM finance.chargeback_month WHERE period = $1 AND team IS NULL GROUP BY 1"},
	} {
		limit, err := policy.ParsePercent(gate.limit)
		if err != nil {
			return nil, err
		}
		rows, err := db.pool.Query(ctx, `WITH part (currency, cost) AS (`+gate.part+`), whole AS (
				SELECT currency, sum(effective_cost) AS cost FROM finance.chargeback_month WHERE period = $1 GROUP BY 1
			) SELECT p.currency, round(p.cost, 2)::text, round(100 * p.cost / nullif(w.cost, 0), 2)::text
			FROM part p JOIN whole w USING (currency) WHERE p.cost > $2::text::numeric * w.cost ORDER BY 1`, m.Start(), limit.String())
		if err != nil {
			return nil, err
		}
		var currency, cost, share string
		if _, err := pgx.ForEachRow(rows, []any{&currency, &cost, &share}, func() error {
			out = append(out, fmt.Sprintf("%s %s (%s %%) %s; the policy's %s is %s", cost, currency, share, gate.what, gate.key, gate.limit))
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return out, nil
}
