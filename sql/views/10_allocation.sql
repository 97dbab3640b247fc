-- Every charge of every month's current run: who was given which part of which
-- bill line, why, and how well it is known; then what was posted of closed months, by the
-- day of the charge: those rows have no line, ratio, method or allocation_id.
CREATE OR REPLACE VIEW finance.allocation AS
SELECT
    a.period,
    l.charge_start,
    l.charge_end,
    a.currency,
    a.category,
    a.moved_by,
    o.team,
    o.cost_center,
    o.attributes ->> 'ai_model' AS ai_model,
    pod.namespace,
    pod.workload_kind,
    pod.workload_name,
    pod.name AS pod_name,
    pod.uid AS pod_uid,
    cn.name AS cluster,
    n.name AS node,
    nullif(a.node_pool, '') AS node_pool,
    nullif(coalesce(nullif(r.instance_type, ''), (SELECT s.instance_type FROM gpuledger.node_state s
        WHERE s.node_id = n.id AND s.instance_type <> '' ORDER BY lower(s.valid) > l.charge_start, abs(extract(epoch FROM lower(s.valid) - l.charge_start)) LIMIT 1), n.instance_type), '') AS instance_type,
    nullif(m.name, '') AS gpu_model,
    nullif(a.mode, '') AS sharing_mode,
    r.provider,
    r.account,
    nullif(r.region, '') AS region,
    a.component,
    a.ratio * 0.000000000001 AS ratio,
    l.billed_cost * a.ratio * 0.000000000001 AS billed_cost,
    l.effective_cost * a.ratio * 0.000000000001 AS effective_cost,
    l.list_cost * a.ratio * 0.000000000001 AS list_cost,
    l.contracted_cost * a.ratio * 0.000000000001 AS contracted_cost,
    a.device_hours * a.gpu_ratio * 0.000000000001 AS gpu_hours,
    round(a.used_byte_seconds / 3865470566400.0, 12) AS used_gib_hours,
    round(a.held_byte_seconds / 3865470566400.0, 12) AS held_gib_hours,
    (ARRAY['process_uid', 'process_name', 'limit', 'sole_holder', 'replica_request', 'even', 'none'])[a.method] AS method,
    CASE WHEN a.measured_us + a.gap_us > 0 THEN round(a.measured_us::numeric / (a.measured_us + a.gap_us), 6) END AS coverage,
    a.line_id AS bill_line_id,
    p.run_id,
    a.allocation_id,
    a.period AS posting_period,
    nullif(l.charge_class, '') AS charge_class,
    o.attributes AS dimensions
FROM gpuledger.period p
JOIN gpuledger.run_unit ru ON ru.run_id = p.run_id
JOIN gpuledger.allocation a ON a.unit_id = ru.unit_id AND a.period = p.period
JOIN gpuledger.bill_line l ON l.id = a.line_id AND l.charge_month = a.period
JOIN gpuledger.bill_resource r ON r.id = l.bill_resource_id
LEFT JOIN gpuledger.owner o ON o.id = a.owner_id
LEFT JOIN gpuledger.gpu_model m ON m.id = a.model_id
LEFT JOIN gpuledger.node n ON n.id = a.node_id
LEFT JOIN gpuledger.cluster_name cn ON cn.cluster_id = n.cluster_id AND cn.valid @> l.charge_start
LEFT JOIN gpuledger.pod pod ON pod.id = a.target_id
UNION ALL
SELECT
    b.charge_period,
    a.charge_day::timestamp AT TIME ZONE 'UTC',
    (a.charge_day + 1)::timestamp AT TIME ZONE 'UTC',
    a.currency,
    a.category,
    a.moved_by,
    o.team,
    o.cost_center,
    o.attributes ->> 'ai_model',
    pod.namespace,
    pod.workload_kind,
    pod.workload_name,
    pod.name,
    pod.uid,
    cn.name,
    n.name,
    nullif(a.node_pool, ''),
    nullif(n.instance_type, ''),
    nullif(m.name, ''),
    nullif(a.mode, ''),
    a.provider,
    a.account,
    NULL,
    NULL,
    NULL,
    a.billed_cost,
    a.effective_cost,
    a.list_cost,
    a.contracted_cost,
    a.gpu_hours,
    round(a.used_byte_seconds / 3865470566400.0, 12),
    round(a.held_byte_seconds / 3865470566400.0, 12),
    NULL,
    NULL,
    NULL,
    b.run_id,
    NULL,
    b.posting_period,
    'Correction',
    o.attributes
FROM gpuledger.adjustment a
JOIN gpuledger.adjustment_batch b ON b.id = a.batch_id
JOIN gpuledger.period p ON p.period = b.charge_period AND p.run_id = b.closed_run_id
LEFT JOIN gpuledger.owner o ON o.id = a.owner_id
LEFT JOIN gpuledger.gpu_model m ON m.id = a.model_id
LEFT JOIN gpuledger.node n ON n.id = a.node_id
LEFT JOIN gpuledger.cluster_name cn ON cn.cluster_id = n.cluster_id AND cn.valid @> a.charge_day::timestamp AT TIME ZONE 'UTC'
LEFT JOIN gpuledger.pod pod ON pod.id = a.target_id
WHERE a.posted;
