package warehouse

import (
	"context"
	"time"

	"gpuledger/billing/period"
	"gpuledger/chargeback"
)

// Deliveries lists deliveries of bills with their totals, the newest of each source and
// billing period first; all shows those that were superseded too.
func (db *DB) Deliveries(ctx context.Context, m period.Month, all bool) (*chargeback.Table, error) {
	return db.Query(ctx, `
SELECT source, to_char(billing_period, 'YYYY-MM') AS billing_period, format, status, lines, in_scope_lines, currency, billed_cost, effective_cost, list_cost, lines_without_list,
	to_char(submitted_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') AS submitted, to_char(loaded_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') AS loaded,
	(SELECT encode(content_sha256, 'hex') FROM gpuledger.bill_delivery d WHERE d.id = bill_delivery_id) AS content_sha256, notes
FROM finance.bill_delivery
WHERE ($1::date IS NULL OR billing_period = $1) AND ($2 OR status = 'current')
ORDER BY source, finance.bill_delivery.billing_period, bill_delivery_id DESC, currency`, monthOrNil(m), all)
}

func monthOrNil(m period.Month) *time.Time {
	if m.IsZero() {
		return nil
	}
	t := m.Start()
	return &t
}

// currentLines are the lines in scope of the current deliveries.
const currentLines = `gpuledger.bill_line l JOIN gpuledger.bill_resource r ON r.id = l.bill_resource_id JOIN gpuledger.source s ON s.id = l.source_id`

// NodeLines lists the lines that bill a node, by its name or its machine's, within a span.
func (db *DB) NodeLines(ctx context.Context, node string, span period.Span) (*chargeback.Table, error) {
	return db.Query(ctx, `
SELECT l.id AS bill_line_id, s.name AS source, to_char(l.billing_period, 'YYYY-MM') AS billing_period, r.instance_id, r.instance_type, l.class, l.charge_type,
	to_char(l.charge_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') AS charge_start, to_char(l.charge_end AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') AS charge_end,
	l.currency, l.billed_cost, l.effective_cost, l.list_cost, l.instance_hours, l.commitment, l.description
FROM `+currentLines+`
WHERE l.last_delivery IS NULL AND l.charge_start < $3 AND (l.charge_end > $2 OR l.charge_start = l.charge_end AND l.charge_start >= $2)
	AND lower(r.instance_id) IN (SELECT lower($1) UNION SELECT lower(`+machineOf+`) FROM gpuledger.node n JOIN gpuledger.cluster c ON c.id = n.cluster_id WHERE n.name = $1)
ORDER BY l.charge_start, l.charge_end, s.name, l.id`, node, span.Start, span.End)
}

// Unmatched lists what of a month does not come together: machines that are billed and no
// cluster shows, and nodes that clusters show and nothing bills, each with the likely
// reason.
func (db *DB) Unmatched(ctx context.Context, m period.Month) (*chargeback.Table, error) {
	return db.Query(ctx, `
WITH billed AS (
	SELECT s.name AS source, r.instance_id, min(r.resource_id) AS resource_id, min(r.instance_type) AS instance_type, l.currency, count(*) AS lines, min(l.charge_start) AS first, max(l.charge_end) AS last,
		sum(l.effective_cost) AS effective_cost
	FROM `+currentLines+`
	WHERE l.last_delivery IS NULL AND l.charge_month = $1::date AND l.class = 'node_usage'
	GROUP BY s.name, r.instance_id, l.currency, CASE WHEN r.instance_id = '' THEN r.resource_id END
), seen AS (
	SELECT n.id, n.name, n.instance_id, `+machineOf+` AS machine, min(h.hour) AS first, max(h.hour) + interval '1 hour' AS last, sum(h.ready_us) / 3600000000.0 AS hours
	FROM gpuledger.node n JOIN gpuledger.cluster c ON c.id = n.cluster_id JOIN gpuledger.node_hour h ON h.node_id = n.id AND h.superseded_by IS NULL AND h.hour >= $1 AND h.hour < $2
	GROUP BY n.id, n.name, n.instance_id, c.key
)
SELECT what, name, instance_type, to_char(first AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') AS first, to_char(last AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI') AS last,
	lines, currency, effective_cost, node_hours, reason
FROM (
	SELECT 'billed, not seen' AS what, coalesce(nullif(b.instance_id, ''), b.resource_id) AS name, b.instance_type, b.first, b.last, b.lines, b.currency, b.effective_cost, NULL::numeric AS node_hours,
		CASE WHEN b.instance_id = '' THEN 'the line names no machine'
			WHEN EXISTS (SELECT FROM gpuledger.node n WHERE lower(n.instance_id) = lower(b.instance_id)) THEN 'the machine was seen in other months only: are the hours of this one loaded?'
			WHEN EXISTS (SELECT FROM gpuledger.node n WHERE lower(n.name) = lower(b.instance_id) AND n.instance_id = '') THEN 'a node of that name has no provider id: scrape kube_node_info'
			WHEN NOT EXISTS (SELECT FROM seen) THEN 'no telemetry of the month is loaded'
			ELSE 'no cluster shows it: a machine outside of Kubernetes, or a cluster that is not configured' END AS reason
	FROM billed b WHERE NOT EXISTS (SELECT FROM seen n WHERE lower(n.machine) = lower(b.instance_id))
	UNION ALL
	SELECT 'billed at nothing', f.machine, f.instance_type, f.first, f.last, NULL, NULL, 0, round(f.hours, 3),
		'the time is billed, at no cost and not at no price: a commitment or a capacity block whose fee is in another account, source or month?'
	FROM (`+freeMachines+`) f
	UNION ALL
	SELECT 'seen, not billed', n.name, (SELECT t.instance_type FROM gpuledger.node_state t WHERE t.node_id = n.id ORDER BY upper(t.valid) DESC LIMIT 1), n.first, n.last, NULL, NULL, NULL, round(n.hours, 3),
		CASE WHEN n.instance_id = '' THEN 'the node has no provider id: scrape kube_node_info, or price it by a rate card'
			WHEN EXISTS (SELECT FROM `+currentLines+` WHERE l.last_delivery IS NULL AND l.charge_month = $1::date AND lower(r.instance_id) = lower(n.machine)) THEN 'its lines are no hours of a machine'
			WHEN NOT EXISTS (SELECT FROM gpuledger.bill_delivery d WHERE d.superseded_by IS NULL AND d.billing_period = $1::date) THEN 'no bill of the month is loaded'
			ELSE 'no line names its machine: another account or provider, or the delivery does not reach so far' END
	FROM seen n WHERE NOT EXISTS (SELECT FROM billed b WHERE lower(b.instance_id) = lower(n.machine))
) x ORDER BY what, effective_cost DESC NULLS LAST, name`, m.Start(), m.Next().Start())
}
