-- What do GPU, CPU and memory cost each team this month, idle parts apart?
SELECT currency, coalesce(team, '(no owner)') AS team, component, category, round(sum(effective_cost), 2) AS effective_cost, round(sum(gpu_hours), 1) AS gpu_hours
FROM finance.allocation
WHERE posting_period = (SELECT max(period) FROM finance.allocation)
GROUP BY currency, team, component, category
ORDER BY currency, sum(effective_cost) DESC;
