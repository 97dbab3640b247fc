-- How the month's cost is known: by rung of the ladder, from bytes measured for a
-- process down to the remainder that no pod holds.
CREATE OR REPLACE VIEW finance.coverage AS
WITH rungs AS (
    SELECT a.period, a.currency, m.method, sum(l.effective_cost * m.ratio) * 0.000000000001 AS effective_cost
    FROM gpuledger.period p
    JOIN gpuledger.run_unit ru ON ru.run_id = p.run_id
    JOIN gpuledger.allocation a ON a.unit_id = ru.unit_id AND a.period = p.period
    JOIN gpuledger.bill_line l ON l.id = a.line_id AND l.charge_month = a.period
    CROSS JOIN LATERAL unnest(a.method_ratio) WITH ORDINALITY AS m (ratio, method)
    WHERE m.ratio > 0
    GROUP BY a.period, a.currency, m.method
)
SELECT
    period,
    currency,
    (ARRAY['process_uid', 'process_name', 'limit', 'sole_holder', 'replica_request', 'even', 'none'])[method] AS method,
    effective_cost,
    round(effective_cost / nullif(sum(effective_cost) OVER (PARTITION BY period, currency), 0), 6) AS share
FROM rungs;
