-- Held against used memory, and what the part held and not used cost.
CREATE OR REPLACE VIEW finance.efficiency AS
SELECT
    w.period,
    o.team,
    w.namespace,
    w.workload_name,
    sum(w.gpu_hours) AS gpu_hours,
    round(sum(w.held_byte_seconds) / 3865470566400.0, 12) AS held_gib_hours,
    round(sum(w.used_byte_seconds) / 3865470566400.0, 12) AS used_gib_hours,
    sum(w.held_unused_cost) AS held_unused_cost,
    round(sum(w.used_byte_seconds) / nullif(sum(w.held_byte_seconds), 0), 6) AS used_share,
    w.currency
FROM gpuledger.period p
JOIN gpuledger.run_unit ru ON ru.run_id = p.run_id
JOIN gpuledger.workload_day w ON w.unit_id = ru.unit_id AND w.period = p.period
LEFT JOIN gpuledger.owner o ON o.id = w.owner_id
WHERE w.category = 'pod'
GROUP BY w.period, w.currency, o.team, w.namespace, w.workload_name;
