package warehouse

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"gpuledger/billing/period"
	"gpuledger/chargeback"
)

// Query runs a statement that reads and returns its rows as text, every digit kept.
func (db *DB) Query(ctx context.Context, sql string, args ...any) (*chargeback.Table, error) {
	t := &chargeback.Table{}
	err := pgx.BeginTxFunc(ctx, db.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sql, append([]any{pgx.QueryExecModeDescribeExec, pgx.QueryResultFormats{pgx.TextFormatCode}}, args...)...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for _, f := range rows.FieldDescriptions() {
			t.Columns = append(t.Columns, chargeback.Column{Name: f.Name, Numeric: isNumber(f.DataTypeOID), JSON: f.DataTypeOID == pgtype.JSONBOID})
		}
		for rows.Next() {
			raw := rows.RawValues()
			row := make([]chargeback.Cell, len(raw))
			for i, v := range raw {
				if v != nil {
					row[i] = chargeback.Text(string(v))
				}
			}
			t.Rows = append(t.Rows, row)
		}
		return rows.Err()
	})
	return t, err
}

func isNumber(oid uint32) bool {
	switch oid {
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID, pgtype.NumericOID:
		return true
	}
	return false
}

// machineOf is node.machine in SQL.
const machineOf = "coalesce(nullif(n.instance_id, ''), c.key || '/' || n.name)"

// KnownInstances returns the provider's names of all machines that were seen to be a
// cluster's node before a time.
func (db *DB) KnownInstances(ctx context.Context, before time.Time) (map[string]bool, error) {
	rows, err := db.pool.Query(ctx, "SELECT DISTINCT "+machineOf+" FROM gpuledger.node n JOIN gpuledger.cluster c ON c.id = n.cluster_id WHERE n.first_hour < $1 AND EXISTS (SELECT FROM gpuledger.node_hour h WHERE h.node_id = n.id AND h.superseded_by IS NULL)", before)
	if err != nil {
		return nil, err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	out := map[string]bool{}
	for _, id := range ids {
		out[id] = true
	}
	return out, err
}

// wholeHourMicros is how much of an hour must have been seen for it to count as read:
// all but what a scrape interval of 30 s may leave at an edge.
const wholeHourMicros = 3_600_000_000 - 75_000_000

// CoveredHours returns the hours of a span that a cluster's samples were read for
// with its inventory seen all the time. An hour seen in part is read again while the
// source holds it, and for two days an hour whose devices were seen in part: it may
// have been read before its last samples arrived.
func (db *DB) CoveredHours(ctx context.Context, cluster string, span period.Span) (map[int64]bool, error) {
	rows, err := db.pool.Query(ctx, `SELECT h.hour FROM gpuledger.cluster_hour h JOIN gpuledger.cluster c ON c.id = h.cluster_id
		WHERE c.key = $1 AND h.superseded_by IS NULL AND h.hour >= $2 AND h.hour < $3 AND h.covered_us >= $4
		AND NOT EXISTS (SELECT FROM gpuledger.node_hour nh JOIN gpuledger.node n ON n.id = nh.node_id JOIN gpuledger.sample_load l ON l.id = nh.load_id
			WHERE n.cluster_id = h.cluster_id AND nh.hour = h.hour AND nh.superseded_by IS NULL AND nh.measured_us < nh.present_us AND l.finished_at > now() - interval '2 days')`,
		cluster, span.Start, span.End, int64(wholeHourMicros))
	if err != nil {
		return nil, err
	}
	hours, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
	out := map[int64]bool{}
	for _, h := range hours {
		out[h.Unix()] = true
	}
	return out, err
}

// BillMonths returns the months that current deliveries have lines in scope for,
// oldest first.
func (db *DB) BillMonths(ctx context.Context) ([]period.Month, error) {
	rows, err := db.pool.Query(ctx, `SELECT DISTINCT c.charge_month FROM gpuledger.bill_delivery d JOIN gpuledger.bill_control c ON c.delivery_id = d.id
		WHERE d.superseded_by IS NULL AND c.in_scope ORDER BY 1`)
	if err != nil {
		return nil, err
	}
	days, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
	out := make([]period.Month, len(days))
	for i, d := range days {
		out[i] = period.MonthOf(d)
	}
	return out, err
}

// LatestPeriod returns the newest month with a published run, or a zero Month.
func (db *DB) LatestPeriod(ctx context.Context) (period.Month, error) {
	var p *time.Time
	if err := db.pool.QueryRow(ctx, "SELECT max(period) FROM gpuledger.period WHERE run_id IS NOT NULL").Scan(&p); err != nil || p == nil {
		return period.Month{}, err
	}
	return period.MonthOf(*p), nil
}

// PeriodState returns "open", "closed" or "reopened"; a month never allocated is open.
func (db *DB) PeriodState(ctx context.Context, m period.Month) (string, error) {
	var s string
	err := db.pool.QueryRow(ctx, "SELECT state FROM gpuledger.period WHERE period = $1", m.Start()).Scan(&s)
	if errors.Is(err, pgx.ErrNoRows) {
		return "open", nil
	}
	return s, err
}

// Reconcile returns the month's reconciliation and, in words, everything that does
// not tie out: a difference, a line not given away exactly once, rollups that
// differ from their facts, a closed month that is no longer what was closed.
func (db *DB) Reconcile(ctx context.Context, m period.Month) (*chargeback.Table, []string, error) {
	t, err := db.Query(ctx, "SELECT * FROM finance.reconciliation WHERE period = $1 ORDER BY source, account, billing_period, currency", m.Start())
	if err != nil {
		return nil, nil, err
	}
	rows, err := db.pool.Query(ctx, reconcileProblems, m.Start())
	if err != nil {
		return nil, nil, err
	}
	problems, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, nil, fmt.Errorf("reconcile: %w", err)
	}
	changed, err := db.tampered(ctx, m)
	return t, append(problems, changed...), err
}

// reconcileProblems re-adds the facts; nothing it reads was computed from a sum.
const reconcileProblems = `
WITH units AS (
	SELECT p.run_id, ru.unit_id FROM gpuledger.period p JOIN gpuledger.run_unit ru ON ru.run_id = p.run_id WHERE p.period = $1
), facts AS (
	SELECT a.*, l.effective_cost, l.billed_cost, l.source_id
	FROM units u JOIN gpuledger.allocation a ON a.unit_id = u.unit_id AND a.period = $1
	JOIN gpuledger.bill_line l ON l.id = a.line_id AND l.charge_month = a.period
), split AS (
	SELECT d.body::jsonb ->> 'component_split' <> 'gpu_all' AS divides
	FROM gpuledger.period p JOIN gpuledger.run r ON r.id = p.run_id JOIN gpuledger.document d ON d.sha256 = r.policy_sha256 WHERE p.period = $1
)
SELECT format('source %s, account %s, billing period %s: difference of %s billed, %s effective, %s list %s',
		source, account, to_char(billing_period, 'YYYY-MM'), trim_scale(difference_billed), trim_scale(difference_effective), trim_scale(difference_list), currency)
FROM finance.reconciliation WHERE period = $1 AND (difference_billed, difference_effective, difference_list) IS DISTINCT FROM (0::numeric, 0::numeric, 0::numeric)
UNION ALL
SELECT format('bill line %s is given away %s times', line_id, trim_scale(sum(ratio) * 0.000000000001)) FROM facts GROUP BY line_id HAVING sum(ratio) <> 1000000000000
UNION ALL
SELECT format('the device time of bill line %s is given away %s times', line_id, trim_scale(gpu_ratio * 0.000000000001))
FROM (SELECT f.line_id, sum(f.gpu_ratio) AS gpu_ratio, bool_or(NOT (s.divides AND f.component IN ('cpu', 'memory'))) AS has_devices,
		bool_or(s.divides AND f.component IN ('cpu', 'memory') AND f.gpu_ratio <> 0) AS stray
	FROM facts f, split s GROUP BY f.line_id) t
WHERE stray OR gpu_ratio <> CASE WHEN has_devices THEN 1000000000000 ELSE 0 END
UNION ALL
SELECT format('unit %s (%s, %s): rollup by workload differs from its facts', u.id, u.scope, u.charge_day)
FROM gpuledger.unit u
JOIN (SELECT unit_id, sum(effective_cost * ratio) * 0.000000000001 AS effective, sum(billed_cost * ratio) * 0.000000000001 AS billed FROM facts GROUP BY unit_id) f ON f.unit_id = u.id
LEFT JOIN (SELECT w.unit_id, sum(w.effective_cost) AS effective, sum(w.billed_cost) AS billed FROM units x JOIN gpuledger.workload_day w ON w.unit_id = x.unit_id GROUP BY w.unit_id) w ON w.unit_id = u.id
WHERE (f.effective, f.billed) IS DISTINCT FROM (w.effective, w.billed)
UNION ALL
SELECT format('unit %s (%s, %s): rows are missing or were added', u.id, u.scope, u.charge_day)
FROM units x JOIN gpuledger.unit u ON u.id = x.unit_id
LEFT JOIN (SELECT unit_id, count(*) AS n FROM facts GROUP BY unit_id) f ON f.unit_id = u.id
WHERE u.rows <> coalesce(f.n, 0)
ORDER BY 1`
