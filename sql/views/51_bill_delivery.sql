-- What each source delivered, with its totals, and what a newer delivery replaced.
CREATE OR REPLACE VIEW finance.bill_delivery AS
SELECT
    s.name AS source,
    s.kind,
    d.billing_period,
    d.format,
    d.delivery_id,
    CASE WHEN d.superseded_by IS NULL THEN 'current' ELSE 'superseded' END AS status,
    d.lines,
    d.kept_lines AS in_scope_lines,
    t.currency,
    t.billed_cost,
    t.effective_cost,
    t.list_cost,
    t.lines_without_list,
    array_to_string(d.notes, '; ') AS notes,
    d.submitted_at,
    d.loaded_at,
    d.id AS bill_delivery_id,
    encode(d.content_sha256, 'hex') AS content_sha256,
    (SELECT max(o.id) FROM gpuledger.bill_delivery o WHERE o.superseded_by = d.id) AS replaced_delivery_id,
    nullif(d.superseded_by, 0) AS replaced_by_delivery_id
FROM gpuledger.bill_delivery d
JOIN gpuledger.source s ON s.id = d.source_id
LEFT JOIN LATERAL (
    SELECT c.currency, sum(c.billed_cost) AS billed_cost, sum(c.effective_cost) AS effective_cost,
        sum(c.list_cost) AS list_cost, sum(c.lines_without_list) AS lines_without_list
    FROM gpuledger.bill_control c WHERE c.delivery_id = d.id GROUP BY c.currency
) t ON true;
