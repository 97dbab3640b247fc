-- Which run each month shows, and which one its bill is read by: the same, but for a
-- closed month that was adjusted, whose bill is that of the last adjustment.
CREATE OR REPLACE VIEW finance.current_run AS
SELECT p.period, p.state, p.run_id AS own_run_id, coalesce(b.run_id, p.run_id) AS run_id, b.id AS adjustment_id
FROM gpuledger.period p
LEFT JOIN LATERAL (
    SELECT x.id, x.run_id FROM gpuledger.adjustment_batch x
    WHERE x.charge_period = p.period AND x.closed_run_id = p.run_id ORDER BY x.id DESC LIMIT 1
) b ON true
WHERE p.run_id IS NOT NULL;
