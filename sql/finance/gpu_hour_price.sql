-- What does an hour of each GPU model really cost, paid for and held?
SELECT gpu_model, node_pool, currency, round(gpu_hours, 1) AS gpu_hours, round(cost_per_gpu_hour, 4) AS cost_per_gpu_hour,
    round(cost_per_allocated_gpu_hour, 4) AS cost_per_allocated_gpu_hour, round(cost_per_used_gib_hour, 4) AS cost_per_used_gib_hour
FROM finance.unit_cost
WHERE period = (SELECT max(period) FROM finance.unit_cost)
ORDER BY effective_cost DESC;
