-- Every run ever published, and which of them each month shows.
CREATE OR REPLACE VIEW finance.run AS
SELECT
    r.id AS run_id,
    r.period,
    r.seq,
    CASE WHEN p.run_id = r.id THEN 'current' ELSE 'superseded' END AS status,
    p.state AS period_state,
    r.units,
    r.new_units,
    r.rows,
    r.method_version,
    r.code_version,
    encode(r.policy_sha256, 'hex') AS policy_sha256,
    encode(r.owners_sha256, 'hex') AS owners_sha256,
    encode(r.input_sha256, 'hex') AS input_sha256,
    encode(r.output_sha256, 'hex') AS output_sha256,
    r.created_by,
    r.started_at,
    r.published_at
FROM gpuledger.run r
JOIN gpuledger.period p ON p.period = r.period;
