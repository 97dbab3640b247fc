-- Who pays what, by month, team, namespace, AI model, GPU model and category.
CREATE OR REPLACE VIEW finance.chargeback_month AS
SELECT
    w.period,
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
GROUP BY w.period, w.currency, o.team, o.cost_center, w.namespace, o.attributes ->> 'ai_model', m.name, w.category, w.charge_class;
