package warehouse

import (
	"context"

	"gpuledger/chargeback"
)

// Status returns one row a month and currency: state, run, money and freshness.
func (db *DB) Status(ctx context.Context) (*chargeback.Table, error) {
	return db.Query(ctx, `
WITH months AS (
	SELECT DISTINCT c.charge_month AS period, c.currency FROM gpuledger.bill_delivery d JOIN gpuledger.bill_control c ON c.delivery_id = d.id WHERE d.superseded_by IS NULL AND c.in_scope
	UNION SELECT DISTINCT date_trunc('month', hour AT TIME ZONE 'UTC')::date, NULL FROM gpuledger.cluster_hour h
		WHERE NOT EXISTS (SELECT FROM gpuledger.bill_control c WHERE c.charge_month = date_trunc('month', h.hour AT TIME ZONE 'UTC')::date AND c.in_scope)
	UNION SELECT b.posting_period, a.currency FROM gpuledger.adjustment a JOIN gpuledger.adjustment_batch b ON b.id = a.batch_id WHERE a.posted
), money AS (
	SELECT period, currency, sum(effective_cost) AS cost, sum(effective_cost) FILTER (WHERE category <> 'pod') AS remainder,
		sum(effective_cost) FILTER (WHERE category = 'no_telemetry') AS dark, sum(effective_cost) FILTER (WHERE category = 'pod' AND team IS NULL) AS unowned
	FROM finance.chargeback_month WHERE posting_period = period GROUP BY period, currency
), posted AS (
	SELECT b.posting_period AS period, a.currency, sum(a.effective_cost) AS cost FROM gpuledger.adjustment a JOIN gpuledger.adjustment_batch b ON b.id = a.batch_id
	JOIN gpuledger.period p ON p.period = b.charge_period AND p.run_id = b.closed_run_id WHERE a.posted GROUP BY 1, 2
), estimated AS (
	SELECT period, currency, sum(effective_cost) AS cost FROM finance.coverage WHERE method IN ('replica_request', 'even') GROUP BY period, currency
)
SELECT to_char(m.period, 'YYYY-MM') AS period, coalesce(p.state, 'open') AS state, coalesce(p.run_id, '-') AS run, m.currency,
	round(y.cost, 2) AS effective_cost, round(y.remainder, 2) AS remainder, round(e.cost, 2) AS estimated, round(y.dark, 2) AS no_telemetry, round(y.unowned, 2) AS unowned,
	(SELECT to_char(max(h.hour + h.covered_us * interval '1 microsecond') FILTER (WHERE h.covered_us > 0), 'YYYY-MM-DD HH24:MI') FROM gpuledger.cluster_hour h WHERE h.superseded_by IS NULL AND h.hour >= m.period AND h.hour < m.period + interval '1 month') AS samples_until,
	(SELECT count(DISTINCT h.hour) FROM gpuledger.cluster_hour h WHERE h.superseded_by IS NULL AND h.covered_us > 0 AND h.hour >= m.period AND h.hour < m.period + interval '1 month') AS hours_covered,
	(SELECT to_char(max(d.loaded_at), 'YYYY-MM-DD HH24:MI') FROM gpuledger.bill_delivery d JOIN gpuledger.bill_control c ON c.delivery_id = d.id
		WHERE d.superseded_by IS NULL AND c.charge_month = m.period) AS bill_loaded,
	round(a.cost, 2) AS adjustments
FROM months m
LEFT JOIN gpuledger.period p ON p.period = m.period
LEFT JOIN money y ON y.period = m.period AND y.currency = m.currency
LEFT JOIN estimated e ON e.period = m.period AND e.currency = m.currency
LEFT JOIN posted a ON a.period = m.period AND a.currency = m.currency
ORDER BY m.period, m.currency`)
}
