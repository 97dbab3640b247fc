-- Who pays what, by day, team, namespace, AI model, GPU model and category.
CREATE OR REPLACE VIEW finance.chargeback_day AS
SELECT
    w.period,
    w.charge_day,
    w.currency,
    o.team,
    o.cost_center,
    w.namespace,
    o.attributes ->> 'ai_model' AS ai_model,
    nullif(m.name, '') AS gpu_model,
    w.category,
    sum(w.billed_cost) AS billed_cost,
    sum(w.effective_cost) AS effective_cost,
    sum(w.list_cost) AS list_cost,
    sum(w.gpu_hours) AS gpu_hours,
    round(sum(w.used_byte_seconds) / 3865470566400.0, 12) AS used_gib_hours,
    round(sum(w.held_byte_seconds) / 3865470566400.0, 12) AS held_gib_hours,
    w.period AS posting_period,
    w.charge_class
FROM gpuledger.period p
JOIN gpuledger.run_unit ru ON ru.run_id = p.run_id
JOIN gpuledger.workload_day w ON w.unit_id = ru.unit_id AND w.period = p.period
LEFT JOIN gpuledger.owner o ON o.id = w.owner_id
LEFT JOIN gpuledger.gpu_model m ON m.id = w.model_id
GROUP BY w.period, w.charge_day, w.currency, o.team, o.cost_center, w.namespace, o.attributes ->> 'ai_model', m.name, w.category, w.charge_class
UNION ALL
SELECT
    b.charge_period,
    a.charge_day,
    a.currency,
    o.team,
    o.cost_center,
    pod.namespace,
    o.attributes ->> 'ai_model',
    nullif(m.name, ''),
    a.category,
    sum(a.billed_cost),
    sum(a.effective_cost),
    sum(a.list_cost),
    sum(a.gpu_hours),
    round(sum(a.used_byte_seconds) / 3865470566400.0, 12),
    round(sum(a.held_byte_seconds) / 3865470566400.0, 12),
    b.posting_period,
    'Correction'
FROM gpuledger.adjustment a
JOIN gpuledger.adjustment_batch b ON b.id = a.batch_id
JOIN gpuledger.period p ON p.period = b.charge_period AND p.run_id = b.closed_run_id
LEFT JOIN gpuledger.owner o ON o.id = a.owner_id
LEFT JOIN gpuledger.gpu_model m ON m.id = a.model_id
LEFT JOIN gpuledger.pod pod ON pod.id = a.target_id
WHERE a.posted
GROUP BY b.charge_period, b.posting_period, a.charge_day, a.currency, o.team, o.cost_center, pod.namespace, o.attributes ->> 'ai_model', m.name, a.category;
