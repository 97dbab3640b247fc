// Package azure reads exports of Azure Cost Management: actual and amortized cost, of
// enterprise agreements, customer agreements and pay-as-you-go, by their manifests, or as
// single files of exports that have none. FOCUS exports of Azure are billing/focus'.
//
// An actual export is the invoice; an amortized one spreads what reservations and savings
// plans cost over the usage they cover. Together they give both costs of a month; with
// one alone, a note says what is missing.
package azure

import (
	"context"
	"fmt"
	"sync"
	"time"

	"gpuledger/billing"
	"gpuledger/billing/table"
	"gpuledger/objstore"
)

// Options say what an export does not.
type Options struct {
	// Currency is used for files that have no column for it; empty refuses them.
	Currency string
}

// Reader reads the exports below one location as one bill source.
type Reader struct {
	store objstore.Store
	name  string
	opt   Options

	mu    sync.Mutex
	files map[string]file // by key, of the deliveries found last
	notes map[[32]byte][]string
}

// file is what a manifest, or a look through it, says of a data file.
type file struct {
	kind kind
	rows int64 // as its manifest counts them; below 0: it does not
}

var _ interface {
	billing.Reader
	billing.ReadNoter
} = (*Reader)(nil)

// New returns the reader of the bill source with the given name.
func New(store objstore.Store, name string, opt Options) *Reader {
	return &Reader{store: store, name: name, opt: opt, files: map[string]file{}, notes: map[[32]byte][]string{}}
}

func (r *Reader) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("bills %s: %w", r.name, err)
}

// Read implements billing.Reader.
func (r *Reader) Read(ctx context.Context, d billing.Delivery, keep func(*billing.Line) bool, fn func(*billing.Line, bool) error) error {
	dec := r.decoder(d)
	for _, f := range d.Files {
		if err := r.readFile(ctx, f, dec, keep, fn); err != nil {
			return r.wrap(err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes[d.Token] = dec.notes()
	return nil
}

func (r *Reader) decoder(d billing.Delivery) *decoder {
	dec := &decoder{delivery: d, currency: r.opt.Currency, unknown: map[string]int64{}, dates: map[string]time.Time{}}
	r.mu.Lock()
	defer r.mu.Unlock()
	kinds := map[kind]bool{}
	for _, f := range d.Files {
		kinds[r.files[f.Key].kind] = true
	}
	if len(kinds) == 1 {
		for k := range kinds {
			dec.single = k
		}
	}
	return dec
}

func (r *Reader) readFile(ctx context.Context, f billing.File, dec *decoder, keep func(*billing.Line) bool, fn func(*billing.Line, bool) error) error {
	r.mu.Lock()
	known, ok := r.files[f.Key]
	r.mu.Unlock()
	if !ok {
		return fmt.Errorf("%s: %w: the exports have changed since they were listed", f.Key, billing.ErrIncomplete)
	}
	rows, err := table.Open(ctx, r.store, f, options())
	if err != nil {
		return err
	}
	defer rows.Close()
	if err := dec.start(rows, f.Key, known.kind); err != nil {
		return err
	}
	return rows.Each(ctx, known.rows, dec.line, func() error { return dec.tagErr }, keep, fn)
}

// ReadNotes implements billing.ReadNoter.
func (r *Reader) ReadNotes(d billing.Delivery) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.notes[d.Token]
}
