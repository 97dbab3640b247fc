-- Every run ever published, and which of them each month shows.
CREATE OR REPLACE VIEW finance.run AS
SELECT
    r.id AS run_id,
    r.period,
    r.seq,
    CASE WHEN r.kind = 'adjustment' THEN 'adjustment' WHEN p.run_id = r.id THEN 'current' ELSE 'superseded' END AS status,
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
    r.published_at,
    r.kind,
    extract(epoch FROM r.published_at - r.started_at) AS seconds,
    (SELECT count(*) FROM gpuledger.run_delivery rd WHERE rd.run_id = r.id) AS bill_deliveries,
    (SELECT jsonb_object_agg(t.currency, jsonb_build_object('lines', t.lines, 'billed_in', t.billed_in, 'billed_out', t.billed_out, 'effective_in', t.effective_in, 'effective_out', t.effective_out, 'list_in', t.list_in, 'list_out', t.list_out))
        FROM (SELECT x.currency, sum(x.lines) AS lines, sum(x.billed_in) AS billed_in, sum(x.billed_out) AS billed_out, sum(x.effective_in) AS effective_in, sum(x.effective_out) AS effective_out, sum(x.list_in) AS list_in, sum(x.list_out) AS list_out
            FROM gpuledger.run_unit ru JOIN gpuledger.unit_total x ON x.unit_id = ru.unit_id WHERE ru.run_id = r.id GROUP BY x.currency) t) AS money
FROM gpuledger.run r
JOIN gpuledger.period p ON p.period = r.period;
