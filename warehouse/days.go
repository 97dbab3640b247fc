package warehouse

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"gpuledger/allocate"
	"gpuledger/policy"
)

// mostWorkers bounds the days under way at once: each has a day of 64 nodes in memory.
const mostWorkers = 8

// workers is how many days are computed at once: each needs a connection to read with
// and one to write with, beside those of the job.
func (a *allocation) workers() int {
	n := a.o.Workers
	if n <= 0 {
		n = min(runtime.GOMAXPROCS(0), mostWorkers)
	}
	return max(1, min(n, (int(a.db.pool.Config().MaxConns)-jobConns)/2))
}

// jobConns are the connections of the job itself: its lock, its snapshot and new owners.
const jobConns = 3

// days walks the month day by day, so that memory does not grow with it, several days
// at once. Each reads the exported snapshot, and what comes out does not depend on how
// many there are: the units are in the order of the days, and so is the error.
func (a *allocation) days(ctx context.Context, snapshot string) ([]unitRef, error) {
	span := a.o.Period.Span()
	of := int(span.Duration() / (24 * time.Hour))
	units, errs := make([][]unitRef, of), make([]error, of)
	var g errgroup.Group
	g.SetLimit(a.workers())
	var failed atomic.Bool
	var saying sync.Mutex
	for i := range of {
		g.Go(func() error {
			day := span.Start.AddDate(0, 0, i)
			if failed.Load() {
				return nil // a day before it has an error to tell
			}
			if a.o.Progress != nil {
				saying.Lock()
				a.o.Progress(day, of)
				saying.Unlock()
			}
			errs[i] = pgx.BeginTxFunc(ctx, a.db.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
				// A snapshot's name is hexadecimal digits and dashes.
				if _, err := tx.Exec(ctx, "SET TRANSACTION SNAPSHOT '"+snapshot+"'"); err != nil {
					return err
				}
				err := mayIdle(ctx, tx)
				if err == nil {
					units[i], err = a.oneDay(ctx, tx, day)
				}
				return err
			})
			if errs[i] != nil {
				failed.Store(true)
			}
			return nil
		})
	}
	_ = g.Wait() // each day keeps its own error
	var out []unitRef
	for i := range of {
		if errs[i] != nil {
			return nil, errs[i]
		}
		out = append(out, units[i]...)
	}
	return out, nil
}

func (a *allocation) oneDay(ctx context.Context, tx pgx.Tx, day time.Time) ([]unitRef, error) {
	lines, err := loadLines(ctx, tx, a.o.Period, day, a.byBase())
	if err != nil || len(lines) == 0 {
		return nil, err
	}
	a.lines.Add(int64(len(lines)))
	d, err := a.newDay(ctx, tx, day, lines)
	if err != nil {
		return nil, err
	}
	var out []unitRef
	for _, u := range d.units {
		ref, err := a.unit(ctx, tx, d, u)
		if err != nil {
			return nil, err
		}
		out = append(out, ref)
	}
	return out, nil
}

// byBase reports whether the policy brings account-wide lines in by their base.
func (a *allocation) byBase() bool { return a.o.Policy.CreditsSpread == policy.ByBase }

func (a *allocation) splitter() *allocate.Splitter {
	return allocate.NewSplitter(&a.o.Policy, &a.o.Owners)
}
