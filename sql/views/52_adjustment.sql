-- What was posted of closed months: who is charged more or less, of which day, in which
-- month it stands, and between which two runs.
CREATE OR REPLACE VIEW finance.adjustment AS
SELECT
    b.posting_period,
    b.charge_period,
    a.charge_day,
    CASE
        WHEN p.run_id IS DISTINCT FROM b.closed_run_id THEN 'superseded' -- the month was opened again
        WHEN a.posted THEN 'posted'
        WHEN b.id = s.adjustment_id THEN 'carried forward'
        ELSE 'posted later' -- or no longer so
    END AS status,
    b.style,
    a.entry,
    a.currency,
    src.name AS source,
    a.payer,
    a.account,
    a.provider,
    a.billing_period,
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
    n.name AS node,
    a.node_pool,
    nullif(m.name, '') AS gpu_model,
    a.billed_cost,
    a.effective_cost,
    a.list_cost,
    a.contracted_cost,
    a.gpu_hours,
    'Correction'::text AS charge_class,
    b.closed_run_id,
    b.run_id AS adjusting_run_id,
    b.reason,
    b.by_name,
    b.second_name,
    b.posted_at,
    b.id AS adjustment_id
FROM gpuledger.adjustment a
JOIN gpuledger.adjustment_batch b ON b.id = a.batch_id
JOIN gpuledger.period p ON p.period = b.charge_period
JOIN gpuledger.source src ON src.id = a.source_id
LEFT JOIN finance.current_run s ON s.period = b.charge_period
LEFT JOIN gpuledger.owner o ON o.id = a.owner_id
LEFT JOIN gpuledger.gpu_model m ON m.id = a.model_id
LEFT JOIN gpuledger.node n ON n.id = a.node_id
LEFT JOIN gpuledger.pod pod ON pod.id = a.target_id;
