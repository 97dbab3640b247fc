package warehouse

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrLocked reports that another job is at the same work. The caller says
// "skipped" and ends well: that job will do it.
var ErrLocked = errors.New("another gpuledger job is working on it")

// mayIdle lets a transaction wait for as long as its job takes, whatever the server's
// limit for idle ones: it holds a lock, a snapshot, or rows on their way.
func mayIdle(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "SET LOCAL idle_in_transaction_session_timeout = 0")
	return err
}

// Locked runs fn while holding the locks of the scopes, in sorted order. A lock is a
// row lock of an open transaction: it needs no session state and is free the
// moment its holder dies. wait: how long to wait for a taken lock; 0 gives
// ErrLocked at once.
func (db *DB) Locked(ctx context.Context, wait time.Duration, scopes []string, fn func() error) error {
	scopes = append([]string(nil), scopes...)
	sort.Strings(scopes)
	for _, s := range scopes {
		if _, err := db.pool.Exec(ctx, "INSERT INTO gpuledger.work_lock (scope) VALUES ($1) ON CONFLICT DO NOTHING", s); err != nil {
			return err
		}
	}
	tx, err := db.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // releases the locks; nothing was written
	if err := mayIdle(ctx, tx); err != nil {
		return err
	}
	deadline := time.Now().Add(wait)
	for _, s := range scopes {
		for {
			var got string
			err := tx.QueryRow(ctx, "SELECT scope FROM gpuledger.work_lock WHERE scope = $1 FOR UPDATE SKIP LOCKED", s).Scan(&got)
			if err == nil {
				break
			}
			if !errors.Is(err, pgx.ErrNoRows) {
				return err
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%s: %w", s, ErrLocked)
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(200 * time.Millisecond):
			}
		}
	}
	return fn()
}
