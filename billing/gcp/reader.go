// Package gcp reads Google Cloud's detailed usage cost export, and its FOCUS export: from
// BigQuery, or from files of the same rows.
package gcp

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"gpuledger/billing"
	"gpuledger/billing/focus"
	"gpuledger/billing/period"
	"gpuledger/billing/table"
	"gpuledger/objstore"
)

// Options say what is read and how much it may cost.
type Options struct {
	// Table is project.dataset.table in BigQuery.
	Table string
	// Project runs the queries, and pays for them; empty: the table's own.
	Project string
	// Services are the service.id whose lines are read one by one; all others' are added up
	// by BigQuery for the control totals. Nil: Compute Engine. "*" is every service.
	Services []string
	// From is the first invoice month that is read; zero: the first there is.
	From period.Month
	// Since bounds which months are looked at: those with rows that were exported after it.
	// Zero: all.
	Since time.Time
	// MaxBytes is how much one query may read, in bytes; 0: 1 TiB.
	MaxBytes int64
	// Endpoint is another address of BigQuery's API. One of plain http is a stand-in and
	// gets no credentials: all could read them.
	Endpoint string
	// Log gets the estimate of each query.
	Log *slog.Logger
}

// origin is where rows come from.
type origin interface {
	deliveries(ctx context.Context) ([]billing.Delivery, error)
	// each opens the rows of a delivery, one table after the other. Summed rows add others
	// up; sums says whether those are wanted too.
	each(ctx context.Context, d billing.Delivery, sums bool, fn func(rows *table.Reader, name string, summed bool) error) error
}

// Reader is one bill source of Google Cloud.
type Reader struct {
	name string
	from origin

	mu    sync.Mutex
	notes map[[32]byte][]string
}

var _ interface {
	billing.Reader
	billing.ReadNoter
} = (*Reader)(nil)

func (r *Reader) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("bills %s: %w", r.name, err)
}

// Deliveries implements billing.Reader: one for each invoice month.
func (r *Reader) Deliveries(ctx context.Context) ([]billing.Delivery, error) {
	out, err := r.from.deliveries(ctx)
	return out, r.wrap(err)
}

// Read implements billing.Reader. It goes through the rows twice: what a day's commitments
// cost and what they covered is known after the first time.
func (r *Reader) Read(ctx context.Context, d billing.Delivery, keep func(*billing.Line) bool, fn func(*billing.Line, bool) error) error {
	if w, ok := r.from.(*bigQuery); ok && w.about != nil && w.about.focus {
		return r.wrap(r.readFOCUS(ctx, w, d, keep, fn))
	}
	dec := newDecoder(d.BillingPeriod)
	learn := func(rows *table.Reader, name string, _ bool) error {
		dec.start(rows, name)
		return rows.Each(ctx, -1, func() (*billing.Line, error) {
			ok, err := dec.row()
			if err == nil && ok {
				dec.pools.learn(&dec.out, dec.paid)
			}
			return nil, err
		}, func() error { return nil }, keep, fn)
	}
	if err := r.from.each(ctx, d, false, learn); err != nil {
		return r.wrap(err)
	}
	var read int64
	lines := func(rows *table.Reader, name string, summed bool) error {
		dec.start(rows, name)
		dec.added = summed
		return rows.Each(ctx, -1, dec.line, func() error { return dec.tagErr }, keep, func(l *billing.Line, kept bool) error {
			read += max(1, l.Count)
			return fn(l, kept && l.Count == 0)
		})
	}
	if err := r.from.each(ctx, d, true, lines); err != nil {
		return r.wrap(err)
	}
	for _, l := range dec.pools.rest() {
		read++
		if err := fn(&l, keep(&l)); err != nil {
			return r.wrap(err)
		}
	}
	return r.wrap(r.done(d, read, dec.notes()))
}

// done compares the number of rows with that when the delivery was listed.
func (r *Reader) done(d billing.Delivery, read int64, notes []string) error {
	if w, ok := r.from.(*bigQuery); ok {
		if want := w.counted(d); want != read {
			return fmt.Errorf("%w: %s had %d rows and then %d: it %w", billing.ErrIncomplete, d.BillingPeriod, want, read, objstore.ErrChanged)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes[d.Token] = notes
	return nil
}

// readFOCUS reads the FOCUS export: what it says is amortised already.
func (r *Reader) readFOCUS(ctx context.Context, w *bigQuery, d billing.Delivery, keep func(*billing.Line) bool, fn func(*billing.Line, bool) error) error {
	var read int64
	var notes []string
	err := w.each(ctx, d, true, func(rows *table.Reader, name string, _ bool) (err error) {
		notes, err = focus.ReadRows(ctx, d, rows, name, focus.Options{}, keep, func(l *billing.Line, kept bool) error {
			read++
			return fn(l, kept)
		})
		return err
	})
	if err != nil {
		return err
	}
	return r.done(d, read, notes)
}

// ReadNotes implements billing.ReadNoter.
func (r *Reader) ReadNotes(d billing.Delivery) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.notes[d.Token]
}
