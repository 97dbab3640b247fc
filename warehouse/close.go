package warehouse

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"gpuledger/billing/period"
	"gpuledger/policy"
)

// CloseOptions say who closes a month, and by what it is measured.
type CloseOptions struct {
	Period period.Month
	Gates  policy.Gates
	By     string
	Second string // who agreed; needed to force
	Reason string
	Force  bool // close although gates fail
	Now    time.Time
}

// ErrGates reports that a month may not be closed.
var ErrGates = errors.New("the month may not be closed")

// ErrClosed reports that a month is closed, or that it is not.
var ErrClosed = errors.New("the month's state does not allow it")

// ClosePeriod closes a month with its current run, and returns what it was measured by. From
// then on the database refuses to change the month's allocations and its run. Its error
// wraps ErrGates where a gate fails and the closing is not forced.
func (db *DB) ClosePeriod(ctx context.Context, o CloseOptions) ([]Gate, error) {
	var state, run string
	err := db.pool.QueryRow(ctx, "SELECT state, coalesce(run_id, '') FROM gpuledger.period WHERE period = $1", o.Period.Start()).Scan(&state, &run)
	switch {
	case errors.Is(err, pgx.ErrNoRows) || err == nil && run == "":
		return nil, fmt.Errorf("%w: %s has no run; run: gpuledger allocate --period %s", ErrClosed, o.Period, o.Period)
	case err != nil:
		return nil, err
	case state == "closed":
		return nil, fmt.Errorf("%w: %s is closed already, with run %s", ErrClosed, o.Period, run)
	}
	gates, err := db.Gates(ctx, o.Period, o.Gates, o.Now)
	if err != nil {
		return nil, err
	}
	failed := 0
	for _, g := range gates {
		if g.Failed {
			failed++
		}
	}
	if failed > 0 && !o.Force {
		return gates, fmt.Errorf("%w: %d gates of %s fail; mend what is behind them, or --force with a reason and a second name", ErrGates, failed, o.Period)
	}
	text, err := json.Marshal(gates)
	if err != nil {
		return gates, err
	}
	return gates, pgx.BeginTxFunc(ctx, db.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		facts, err := factsHash(ctx, tx, o.Period, run)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "SELECT gpuledger.close_period($1, $2, $3, $4, $5, $6, $7, $8)", o.Period.Start(), run, facts, string(text), failed > 0, o.By, o.Second, o.Reason)
		return stateError(err)
	})
}

// ReopenPeriod opens a closed month again. The run that was closed stays, and so does the record
// of its closing.
func (db *DB) ReopenPeriod(ctx context.Context, m period.Month, by, second, reason string) error {
	_, err := db.pool.Exec(ctx, "SELECT gpuledger.reopen_period($1, $2, $3, $4)", m.Start(), by, second, reason)
	return stateError(err)
}

// stateError tells a refusal of the database from other errors.
func stateError(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && (pg.Code == "55000" || pg.Code == "23001") { // not in prerequisite state, restrict violation
		return fmt.Errorf("%w: %s", ErrClosed, pg.Message)
	}
	return err
}

// factsHash identifies all that a run says of a month: every fact with its line's costs
// and its owner, by unit, in the order of their ids. It is SHA-256 over the SHA-256 of each,
// and over that and the adjustments posted in the month, if there are any.
func factsHash(ctx context.Context, tx pgx.Tx, m period.Month, run string) ([]byte, error) {
	var sum []byte
	err := tx.QueryRow(ctx, `SELECT sha256(coalesce(string_agg(sha, ''::bytea ORDER BY unit_id), ''::bytea)) FROM (
		SELECT a.unit_id, sha256(convert_to(string_agg(concat_ws('|', a.allocation_id, l.key, l.ordinal, a.component, a.target_kind, pod.uid, a.category, coalesce(a.moved_by, '-'), o.key, a.model_id, a.mode,
				a.currency, a.ratio, a.gpu_ratio, a.device_hours, a.used_byte_seconds, a.held_byte_seconds, a.measured_us, a.gap_us, a.method, array_to_string(a.method_ratio, ','),
				extract(epoch FROM l.charge_start), extract(epoch FROM l.charge_end), trim_scale(l.billed_cost), trim_scale(l.effective_cost), coalesce(trim_scale(l.list_cost)::text, '-'), coalesce(trim_scale(l.contracted_cost)::text, '-'),
				l.charge_class), E'\n' ORDER BY a.allocation_id, l.key, l.ordinal), 'UTF8')) AS sha
		FROM gpuledger.run_unit ru JOIN gpuledger.allocation a ON a.unit_id = ru.unit_id AND a.period = $1
		JOIN gpuledger.bill_line l ON l.id = a.line_id AND l.charge_month = a.period
		JOIN gpuledger.owner o ON o.id = a.owner_id LEFT JOIN gpuledger.pod pod ON pod.id = a.target_id
		WHERE ru.run_id = $2 GROUP BY a.unit_id) u`, m.Start(), run).Scan(&sum)
	if err != nil {
		return nil, err
	}
	var posted []byte
	err = tx.QueryRow(ctx, `SELECT sha256(convert_to(string_agg(concat_ws('|', b.charge_period, b.closed_run_id, b.run_id, a.posted, a.entry, a.charge_day, a.currency, a.source_id, a.payer, a.account, a.provider, a.billing_period, a.category, coalesce(a.moved_by, '-'),
			coalesce(a.target_id, 0), o.key, a.model_id, a.mode, coalesce(a.node_id, 0), coalesce(a.node_pool, '-'), trim_scale(a.billed_cost), trim_scale(a.effective_cost), trim_scale(a.list_cost), trim_scale(a.contracted_cost), trim_scale(a.gpu_hours), trim_scale(a.used_byte_seconds), trim_scale(a.held_byte_seconds))
			COLLATE "C", E'\n' ORDER BY b.id, a.entry, a.charge_day, a.currency, a.source_id, a.payer, a.account, a.provider, a.billing_period, a.category, a.moved_by, a.target_id, a.owner_id, a.model_id, a.mode, a.node_id, a.node_pool), 'UTF8'))
		FROM gpuledger.adjustment a JOIN gpuledger.adjustment_batch b ON b.id = a.batch_id JOIN gpuledger.owner o ON o.id = a.owner_id WHERE b.posting_period = $1`, m.Start()).Scan(&posted)
	if err != nil || posted == nil {
		return sum, err
	}
	both := sha256.Sum256(append(sum, posted...))
	return both[:], nil
}

// tampered says what of a closed month is no longer what was closed.
func (db *DB) tampered(ctx context.Context, m period.Month) ([]string, error) {
	var out []string
	err := pgx.BeginTxFunc(ctx, db.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		var state, run, closedRun string
		var facts []byte
		var at time.Time
		err := tx.QueryRow(ctx, `SELECT p.state, coalesce(p.run_id, ''), e.run_id, e.facts_sha256, e.at FROM gpuledger.period p
			JOIN LATERAL (SELECT * FROM gpuledger.period_event e WHERE e.period = p.period AND e.action = 'closed' ORDER BY e.id DESC LIMIT 1) e ON true
			WHERE p.period = $1`, m.Start()).Scan(&state, &run, &closedRun, &facts, &at)
		if errors.Is(err, pgx.ErrNoRows) || err == nil && state != "closed" {
			return nil
		}
		if err != nil {
			return err
		}
		if run != closedRun {
			out = append(out, fmt.Sprintf("%s was closed with run %s and shows run %s", m, closedRun, run))
		}
		now, err := factsHash(ctx, tx, m, closedRun)
		if err != nil {
			return err
		}
		if string(now) != string(facts) {
			out = append(out, fmt.Sprintf("the facts of %s are not those that were closed on %s: SHA-256 %x then, %x now", m, at.UTC().Format("2006-01-02 15:04"), facts, now))
		}
		var guards int
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM pg_trigger WHERE tgrelid = to_regclass('gpuledger.allocation_' || to_char($1::date, 'YYYYMM')) AND tgname IN ('closed_row', 'closed_truncate') AND tgenabled = 'O'`, m.Start()).Scan(&guards); err != nil {
			return err
		}
		if guards != 2 {
			out = append(out, fmt.Sprintf("the guard of %s was taken off or switched off", m))
		}
		return nil
	})
	return out, err
}
