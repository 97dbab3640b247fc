-- Does the month tie out? For each source, account, billing period and currency:
-- the bill is what is in scope and what is not; what is in scope went to pods and
-- to remainder categories; the difference is 0. A month without a run shows the
-- whole of what is in scope as its difference. Under credits_spread: by_base the part
-- of account-wide lines that the run brought in counts as in scope. A closed month whose
-- bill changed is held against the new bill: what was closed and what was posted since
-- (or is carried forward) add up to it.
CREATE OR REPLACE VIEW finance.reconciliation AS
WITH deliveries AS (
    SELECT p.period, rd.delivery_id
    FROM finance.current_run p
    JOIN gpuledger.run_delivery rd ON rd.run_id = p.run_id
    UNION
    SELECT DISTINCT c.charge_month, d.id
    FROM gpuledger.bill_delivery d
    JOIN gpuledger.bill_control c ON c.delivery_id = d.id
    LEFT JOIN gpuledger.period p ON p.period = c.charge_month
    WHERE d.superseded_by IS NULL AND p.run_id IS NULL
), bill AS (
    SELECT x.period, d.source_id, c.payer, d.billing_period, c.currency,
        sum(c.lines) AS lines,
        sum(c.billed_cost) AS bill_billed,
        coalesce(sum(c.billed_cost) FILTER (WHERE c.in_scope), 0) AS in_scope_billed,
        coalesce(sum(c.billed_cost) FILTER (WHERE NOT c.in_scope), 0) AS out_of_scope_billed,
        sum(c.effective_cost) AS bill_effective,
        coalesce(sum(c.effective_cost) FILTER (WHERE c.in_scope), 0) AS in_scope_effective,
        coalesce(sum(c.effective_cost) FILTER (WHERE NOT c.in_scope), 0) AS out_of_scope_effective,
        sum(c.lines_without_list) AS lines_without_list,
        sum(c.list_cost) AS bill_list,
        coalesce(sum(c.list_cost) FILTER (WHERE c.in_scope), 0) AS in_scope_list,
        coalesce(sum(c.list_cost) FILTER (WHERE NOT c.in_scope), 0) AS out_of_scope_list
    FROM deliveries x
    JOIN gpuledger.bill_delivery d ON d.id = x.delivery_id
    JOIN gpuledger.bill_control c ON c.delivery_id = d.id AND c.charge_month = x.period
    GROUP BY x.period, d.source_id, c.payer, d.billing_period, c.currency
), split AS (
    SELECT p.period, l.source_id, r.payer, l.billing_period, l.currency,
        coalesce(sum(l.billed_cost * a.ratio) FILTER (WHERE a.category = 'pod'), 0) * 0.000000000001 AS allocated_billed,
        coalesce(sum(l.billed_cost * a.ratio) FILTER (WHERE a.category <> 'pod'), 0) * 0.000000000001 AS remainder_billed,
        coalesce(sum(l.effective_cost * a.ratio) FILTER (WHERE a.category = 'pod'), 0) * 0.000000000001 AS allocated_effective,
        coalesce(sum(l.effective_cost * a.ratio) FILTER (WHERE a.category <> 'pod'), 0) * 0.000000000001 AS remainder_effective,
        coalesce(sum(l.list_cost * a.ratio) FILTER (WHERE a.category = 'pod'), 0) * 0.000000000001 AS allocated_list,
        coalesce(sum(l.list_cost * a.ratio) FILTER (WHERE a.category <> 'pod'), 0) * 0.000000000001 AS remainder_list
    FROM gpuledger.period p
    JOIN gpuledger.run_unit ru ON ru.run_id = p.run_id
    JOIN gpuledger.allocation a ON a.unit_id = ru.unit_id AND a.period = p.period
    JOIN gpuledger.bill_line l ON l.id = a.line_id AND l.charge_month = a.period
    JOIN gpuledger.bill_resource r ON r.id = l.bill_resource_id
    GROUP BY p.period, l.source_id, r.payer, l.billing_period, l.currency
), adjusted AS ( -- what was posted of the month's charges, and what is carried forward of the last batch
    SELECT b.charge_period AS period, a.source_id, a.payer, a.billing_period, a.currency,
        sum(a.billed_cost) AS billed, sum(a.effective_cost) AS effective, sum(a.list_cost) AS list
    FROM gpuledger.adjustment a
    JOIN gpuledger.adjustment_batch b ON b.id = a.batch_id
    JOIN gpuledger.period p ON p.period = b.charge_period AND p.run_id = b.closed_run_id
    WHERE a.posted OR b.id = (SELECT max(x.id) FROM gpuledger.adjustment_batch x WHERE x.charge_period = b.charge_period AND x.closed_run_id = b.closed_run_id)
    GROUP BY b.charge_period, a.source_id, a.payer, a.billing_period, a.currency
), brought AS ( -- lines that the policy of the shown run brings in by their base
    SELECT p.period, l.source_id, r.payer, l.billing_period, l.currency,
        sum(l.billed_cost) AS brought_billed, sum(l.effective_cost) AS brought_effective, coalesce(sum(l.list_cost), 0) AS brought_list
    FROM finance.current_run p
    JOIN gpuledger.run u ON u.id = p.run_id
    JOIN gpuledger.document d ON d.sha256 = u.policy_sha256 AND d.body::jsonb ->> 'credits_spread' = 'by_base'
    JOIN gpuledger.run_delivery rd ON rd.run_id = p.run_id
    JOIN gpuledger.bill_delivery bd ON bd.id = rd.delivery_id
    JOIN gpuledger.bill_line l ON l.source_id = bd.source_id AND l.billing_period = bd.billing_period AND l.charge_month = p.period AND l.by_base
        AND l.first_delivery <= bd.id AND (l.last_delivery IS NULL OR l.last_delivery > bd.id)
    JOIN gpuledger.bill_resource r ON r.id = l.bill_resource_id
    GROUP BY p.period, l.source_id, r.payer, l.billing_period, l.currency
)
SELECT
    coalesce(b.period, s.period, j.period) AS period,
    coalesce(b.currency, s.currency, j.currency) AS currency,
    src.name AS source,
    coalesce(b.payer, s.payer, j.payer) AS account,
    coalesce(b.billing_period, s.billing_period, j.billing_period) AS billing_period,
    coalesce(b.lines, 0) AS lines,
    coalesce(b.bill_billed, 0) AS bill_billed,
    trim_scale(coalesce(b.in_scope_billed, 0) + coalesce(g.brought_billed, 0)) AS in_scope_billed,
    trim_scale(coalesce(b.out_of_scope_billed, 0) - coalesce(g.brought_billed, 0)) AS out_of_scope_billed,
    coalesce(s.allocated_billed, 0) AS allocated_billed,
    coalesce(s.remainder_billed, 0) AS remainder_billed,
    coalesce(j.billed, 0) AS adjustments_billed,
    trim_scale(coalesce(b.bill_billed, 0) - (coalesce(b.out_of_scope_billed, 0) - coalesce(g.brought_billed, 0)) - coalesce(s.allocated_billed, 0) - coalesce(s.remainder_billed, 0) - coalesce(j.billed, 0)) AS difference_billed,
    coalesce(b.bill_effective, 0) AS bill_effective,
    trim_scale(coalesce(b.in_scope_effective, 0) + coalesce(g.brought_effective, 0)) AS in_scope_effective,
    trim_scale(coalesce(b.out_of_scope_effective, 0) - coalesce(g.brought_effective, 0)) AS out_of_scope_effective,
    coalesce(s.allocated_effective, 0) AS allocated_effective,
    coalesce(s.remainder_effective, 0) AS remainder_effective,
    coalesce(j.effective, 0) AS adjustments_effective,
    trim_scale(coalesce(b.bill_effective, 0) - (coalesce(b.out_of_scope_effective, 0) - coalesce(g.brought_effective, 0)) - coalesce(s.allocated_effective, 0) - coalesce(s.remainder_effective, 0) - coalesce(j.effective, 0)) AS difference_effective,
    coalesce(b.bill_list, 0) AS bill_list,
    trim_scale(coalesce(b.in_scope_list, 0) + coalesce(g.brought_list, 0)) AS in_scope_list,
    trim_scale(coalesce(b.out_of_scope_list, 0) - coalesce(g.brought_list, 0)) AS out_of_scope_list,
    coalesce(s.allocated_list, 0) AS allocated_list,
    coalesce(s.remainder_list, 0) AS remainder_list,
    coalesce(j.list, 0) AS adjustments_list,
    trim_scale(coalesce(b.bill_list, 0) - (coalesce(b.out_of_scope_list, 0) - coalesce(g.brought_list, 0)) - coalesce(s.allocated_list, 0) - coalesce(s.remainder_list, 0) - coalesce(j.list, 0)) AS difference_list,
    coalesce(b.lines_without_list, 0) AS lines_without_list
FROM bill b
FULL JOIN split s ON s.period = b.period AND s.source_id = b.source_id AND s.payer = b.payer
    AND s.billing_period = b.billing_period AND s.currency = b.currency
FULL JOIN adjusted j ON j.period = coalesce(b.period, s.period) AND j.source_id = coalesce(b.source_id, s.source_id) AND j.payer = coalesce(b.payer, s.payer)
    AND j.billing_period = coalesce(b.billing_period, s.billing_period) AND j.currency = coalesce(b.currency, s.currency)
LEFT JOIN brought g ON g.period = b.period AND g.source_id = b.source_id AND g.payer = b.payer
    AND g.billing_period = b.billing_period AND g.currency = b.currency
JOIN gpuledger.source src ON src.id = coalesce(b.source_id, s.source_id, j.source_id);
