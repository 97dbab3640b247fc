package warehouse

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"gpuledger/allocate"
	"gpuledger/billing/period"
	"gpuledger/policy"
)

// ErrInputsMoved reports that an input changed between the snapshot and the
// publication; the caller may allocate again.
var ErrInputsMoved = errors.New("the bill or the current run changed while the month was allocated; run allocate again")

// publish makes a run of the units the month's current one, in one transaction:
// it compares the pointer and the deliveries with those it started from, verifies
// the sums in SQL and swaps the pointer. Equal inputs publish nothing.
func (db *DB) publish(ctx context.Context, o AllocateOptions, started time.Time, before string, deliveries []deliveryRef, units []unitRef, res RunResult) (RunResult, error) {
	input, output := runHashes(deliveries, units)
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO gpuledger.period (period) VALUES ($1) ON CONFLICT DO NOTHING", o.Period.Start()); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "SELECT FROM gpuledger.period WHERE period = $1 FOR UPDATE", o.Period.Start()); err != nil {
			return err
		}
		now, err := currentRun(ctx, tx, o.Period)
		if err != nil {
			return err
		}
		ds, err := currentDeliveries(ctx, tx, o.Period)
		if err != nil {
			return err
		}
		if now != before || !sameDeliveries(ds, deliveries) {
			return ErrInputsMoved
		}
		if now != "" {
			var was []byte
			if err := tx.QueryRow(ctx, "SELECT input_sha256 FROM gpuledger.run WHERE id = $1", now).Scan(&was); err != nil {
				return err
			}
			if string(was) == string(input[:]) {
				res.RunID, res.Unchanged = now, true
				return nil
			}
		}
		return insertRun(ctx, tx, o, started, deliveries, units, input, output, &res)
	})
	return res, err
}

func insertRun(ctx context.Context, tx pgx.Tx, o AllocateOptions, started time.Time, deliveries []deliveryRef, units []unitRef, input, output [32]byte, res *RunResult) error {
	policyHash, err := saveDocument(ctx, tx, "policy", o.Policy.Canonical())
	if err != nil {
		return err
	}
	ownersHash, err := saveDocument(ctx, tx, "owners", o.Owners.Canonical())
	if err != nil {
		return err
	}
	var seq int
	if err := tx.QueryRow(ctx, "SELECT coalesce(max(seq), 0) + 1 FROM gpuledger.run WHERE period = $1", o.Period.Start()).Scan(&seq); err != nil {
		return err
	}
	res.RunID = fmt.Sprintf("%s.%d", o.Period, seq)
	if _, err := tx.Exec(ctx, `INSERT INTO gpuledger.run (id, period, seq, input_sha256, output_sha256, policy_sha256, owners_sha256, method_version, code_version, units, new_units, rows, created_by, started_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)`, res.RunID, o.Period.Start(), seq, input[:], output[:], policyHash, ownersHash,
		allocate.MethodVersion, o.CodeVersion, res.Units, res.NewUnits, res.Rows, o.By, started); err != nil {
		return err
	}
	unitIDs, deliveryIDs := make([]int64, len(units)), make([]int64, len(deliveries))
	for i, u := range units {
		unitIDs[i] = u.id
	}
	for i, d := range deliveries {
		deliveryIDs[i] = d.id
	}
	if _, err := tx.Exec(ctx, "INSERT INTO gpuledger.run_unit (run_id, unit_id) SELECT $1, unnest($2::bigint[])", res.RunID, unitIDs); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "INSERT INTO gpuledger.run_delivery (run_id, delivery_id) SELECT $1, unnest($2::bigint[])", res.RunID, deliveryIDs); err != nil {
		return err
	}
	if err := verifyRun(ctx, tx, o.Period, res.RunID, o.Policy.CreditsSpread == policy.ByBase); err != nil {
		return err
	}
	if err := logRun(ctx, tx, o, res.RunID); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "UPDATE gpuledger.period SET run_id = $2, updated_at = now() WHERE period = $1", o.Period.Start(), res.RunID)
	return stateError(err)
}

// logRun enters a run into the audit log, and whether it is the first of a month with
// other rules.
func logRun(ctx context.Context, tx pgx.Tx, o AllocateOptions, run string) error {
	_, err := tx.Exec(ctx, `SELECT gpuledger.log($3, 'run published', r.period, r.id, jsonb_strip_nulls(jsonb_build_object(
			'policy_sha256', encode(r.policy_sha256, 'hex'), 'owners_sha256', encode(r.owners_sha256, 'hex'), 'input_sha256', encode(r.input_sha256, 'hex'), 'output_sha256', encode(r.output_sha256, 'hex'),
			'code_version', r.code_version, 'policy_changed', CASE WHEN b.policy_sha256 <> r.policy_sha256 THEN true END, 'owners_changed', CASE WHEN b.owners_sha256 <> r.owners_sha256 THEN true END)))
		FROM gpuledger.run r LEFT JOIN gpuledger.period p ON p.period = r.period LEFT JOIN gpuledger.run b ON b.id = p.run_id WHERE r.id = $1 AND r.period = $2`, run, o.Period.Start(), o.By)
	return err
}

func saveDocument(ctx context.Context, tx pgx.Tx, kind string, body []byte) ([]byte, error) {
	h := sha256.Sum256(body)
	_, err := tx.Exec(ctx, "INSERT INTO gpuledger.document (sha256, kind, body) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", h[:], kind, string(body))
	return h[:], err
}

func sameDeliveries(a, b []deliveryRef) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].id != b[i].id {
			return false
		}
	}
	return true
}

// runHashes identify a run's inputs and outputs. The deliveries enter by content:
// their control totals are part of what the run shows.
func runHashes(deliveries []deliveryRef, units []unitRef) (input, output [32]byte) {
	in := make([]string, 0, len(units)+len(deliveries))
	out := make([]string, 0, len(units))
	for _, d := range deliveries {
		in = append(in, fmt.Sprintf("delivery %x", d.content))
	}
	for _, u := range units {
		in = append(in, fmt.Sprintf("unit %s %s %x", u.scope, u.day.Format("2006-01-02"), u.input))
		out = append(out, fmt.Sprintf("%s %s %x", u.scope, u.day.Format("2006-01-02"), u.output))
	}
	sort.Strings(in)
	sort.Strings(out)
	return sha256.Sum256([]byte(strings.Join(in, "\n"))), sha256.Sum256([]byte(strings.Join(out, "\n")))
}

// verifyRun checks that the run's units account for every in-scope line of its
// deliveries: the same lines and the same three sums, by source, payer, billing
// period and currency. It sums control totals, thousands of rows, not the facts.
func verifyRun(ctx context.Context, tx pgx.Tx, m period.Month, run string, byBase bool) error {
	rows, err := tx.Query(ctx, `WITH whole AS (
			SELECT d.source_id, c.payer, d.billing_period, c.currency, sum(c.lines) AS lines, sum(c.billed_cost) AS billed, sum(c.effective_cost) AS effective, sum(c.list_cost) AS list
			FROM gpuledger.run_delivery rd JOIN gpuledger.bill_delivery d ON d.id = rd.delivery_id JOIN gpuledger.bill_control c ON c.delivery_id = d.id
			WHERE rd.run_id = $1 AND c.charge_month = $2 AND c.in_scope GROUP BY 1, 2, 3, 4
		), brought AS ( -- what the policy brings in of lines that are not
			SELECT l.source_id, r.payer, l.billing_period, l.currency, count(*) AS lines, sum(l.billed_cost) AS billed, sum(l.effective_cost) AS effective, coalesce(sum(l.list_cost), 0) AS list
			FROM gpuledger.run_delivery rd JOIN gpuledger.bill_delivery d ON d.id = rd.delivery_id
			JOIN gpuledger.bill_line l ON l.source_id = d.source_id AND l.billing_period = d.billing_period AND l.charge_month = $2 AND l.last_delivery IS NULL AND l.by_base
			JOIN gpuledger.bill_resource r ON r.id = l.bill_resource_id
			WHERE rd.run_id = $1 AND $3 GROUP BY 1, 2, 3, 4
		), bill AS (
			SELECT source_id, payer, billing_period, currency, sum(lines) AS lines, sum(billed) AS billed, sum(effective) AS effective, sum(list) AS list
			FROM (SELECT * FROM whole UNION ALL SELECT * FROM brought) b GROUP BY 1, 2, 3, 4
		), ledger AS (
			SELECT t.source_id, t.payer, t.billing_period, t.currency, sum(t.lines) AS lines, sum(t.billed_out) AS billed, sum(t.effective_out) AS effective, sum(t.list_out) AS list
			FROM gpuledger.run_unit ru JOIN gpuledger.unit_total t ON t.unit_id = ru.unit_id
			WHERE ru.run_id = $1 GROUP BY 1, 2, 3, 4
		)
		SELECT s.name, coalesce(b.payer, l.payer), coalesce(b.currency, l.currency), coalesce(b.lines, 0)::bigint, coalesce(l.lines, 0)::bigint, coalesce(b.billed, 0)::text, coalesce(l.billed, 0)::text
		FROM bill b FULL JOIN ledger l USING (source_id, payer, billing_period, currency)
		JOIN gpuledger.source s ON s.id = source_id
		WHERE (b.lines, b.billed, b.effective, b.list) IS DISTINCT FROM (l.lines, l.billed, l.effective, l.list)
		ORDER BY 1, 2, 3`, run, m.Start(), byBase)
	if err != nil {
		return err
	}
	var source, payer, currency, billed, allocated string
	var in, out int64
	var problems []string
	_, err = pgx.ForEachRow(rows, []any{&source, &payer, &currency, &in, &out, &billed, &allocated}, func() error {
		problems = append(problems, fmt.Sprintf("source %s, account %s: bill %d lines %s %s, ledger %d lines %s", source, payer, in, billed, currency, out, allocated))
		return nil
	})
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		return fmt.Errorf("the run does not balance and is not published: %s", strings.Join(problems, "; "))
	}
	return nil
}
