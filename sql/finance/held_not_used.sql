-- Which workloads hold GPU memory that they do not use, and what does that cost?
SELECT team, namespace, workload_name, round(held_gib_hours) AS held_gib_hours, round(used_gib_hours) AS used_gib_hours,
    used_share, round(held_unused_cost, 2) AS held_unused_cost, currency
FROM finance.efficiency
WHERE period = (SELECT max(period) FROM finance.efficiency)
ORDER BY held_unused_cost DESC
LIMIT 20;
