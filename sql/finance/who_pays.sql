-- Who pays what this month, and how much of it is idle?
SELECT currency, coalesce(team, '(no owner)') AS team, category, round(sum(effective_cost), 2) AS effective_cost, round(sum(gpu_hours), 1) AS gpu_hours
FROM finance.chargeback_month
WHERE posting_period = (SELECT max(period) FROM finance.chargeback_month)
GROUP BY currency, team, category
ORDER BY currency, sum(effective_cost) DESC;
