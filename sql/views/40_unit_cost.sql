-- What an hour of a GPU costs: of all hours paid for, of those a pod held, and a
-- GiB-hour of memory in use.
CREATE OR REPLACE VIEW finance.unit_cost AS
SELECT
    w.period,
    w.currency,
    cn.name AS cluster,
    nullif(w.node_pool, '') AS node_pool,
    m.name AS gpu_model,
    sum(w.effective_cost) AS effective_cost,
    sum(w.gpu_hours) AS gpu_hours,
    sum(w.effective_cost) / nullif(sum(w.gpu_hours), 0) AS cost_per_gpu_hour,
    sum(w.effective_cost) / nullif(sum(w.gpu_hours) FILTER (WHERE w.category = 'pod'), 0) AS cost_per_allocated_gpu_hour,
    sum(w.effective_cost) / nullif(sum(w.used_byte_seconds) / 3865470566400.0, 0) AS cost_per_used_gib_hour
FROM gpuledger.period p
JOIN gpuledger.run_unit ru ON ru.run_id = p.run_id
JOIN gpuledger.workload_day w ON w.unit_id = ru.unit_id AND w.period = p.period
LEFT JOIN gpuledger.gpu_model m ON m.id = w.model_id
LEFT JOIN gpuledger.cluster_name cn ON cn.cluster_id = w.cluster_id AND cn.valid @> (w.charge_day::timestamp AT TIME ZONE 'UTC')
WHERE w.gpu_hours <> 0
GROUP BY w.period, w.currency, cn.name, w.node_pool, m.name;
