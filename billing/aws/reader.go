// Package aws reads AWS Data Exports of COST_AND_USAGE_REPORT (CUR 2.0), and legacy Cost
// and Usage Reports, by their
// manifests, from S3 or from a copy of the bucket in a folder.
//
// Costs by line type follow the amortisation of the Cloud Intelligence
// Dashboards: what a Savings Plan or a reservation covers costs its effective
// cost, its negations and fees cost nothing, and what it leaves unused is a
// category of its own.
package aws

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"gpuledger/billing"
	"gpuledger/billing/layout"
	"gpuledger/billing/table"
	"gpuledger/objstore"
)

// Reader reads one export, or fails if its location holds several.
type Reader struct {
	store objstore.Store
	name  string

	mu    sync.Mutex
	notes map[[32]byte][]string
}

var _ interface {
	billing.Reader
	billing.ReadNoter
} = (*Reader)(nil)

// New returns the reader of the bill source with the given name. The store's
// location is the export's folder, the one that holds data/ and metadata/, or a
// prefix above it.
func New(store objstore.Store, name string) *Reader {
	return &Reader{store: store, name: name, notes: map[[32]byte][]string{}}
}

// Deliveries returns the newest delivery of each month, as its manifest names it.
// Where some months are whole and others are not, it returns the whole ones
// together with the error about the others.
func (r *Reader) Deliveries(ctx context.Context) ([]billing.Delivery, error) {
	all, err := layout.AWS(ctx, r.store)
	if err != nil {
		return nil, r.wrap(err)
	}
	var out []billing.Delivery
	var errs []error
	seen := map[string]string{}
	for _, one := range all {
		if layout.IsFOCUS(one) {
			continue // another table under the same prefix
		}
		if other, ok := seen[one.Month.String()]; ok {
			return nil, r.wrap(fmt.Errorf("%s: two exports hold %s (%s and %s); point the location at one of them, or the month counts twice",
				r.store.Location(), one.Month, other, one.Manifest))
		}
		seen[one.Month.String()] = one.Manifest
		d := billing.Delivery{Format: "AWS CUR 2.0", BillingPeriod: one.Month, ID: one.ID, Manifest: one.Manifest, Files: one.Files, Submitted: one.Submitted, Token: layout.Token([][]byte{one.Raw}, one.Files)}
		if one.Kind == layout.AWSLegacy {
			d.Format = "AWS CUR"
		}
		for _, c := range one.Columns {
			d.Columns = append(d.Columns, legacyName(c))
		}
		err := one.Err
		if err == nil && len(d.Columns) > 0 {
			err = r.describe(&d)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, d)
	}
	if len(seen) == 0 {
		return nil, r.wrap(fmt.Errorf("%s: the exports there are FOCUS exports, not CUR 2.0; read them as type focus", r.store.Location()))
	}
	return out, r.wrap(errors.Join(errs...))
}

// describe adds what the manifest's list of columns already tells.
func (r *Reader) describe(d *billing.Delivery) error {
	has := hasIn(d.Columns)
	notes, err := missing(has)
	if err != nil {
		return fmt.Errorf("%s: %w", d.Manifest, err)
	}
	_, note := chooseBasis(has)
	d.Notes = append(append(d.Notes, note, "contracted cost unavailable: CUR 2.0 does not state it"), notes...)
	return nil
}

func (r *Reader) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("bills %s: %w", r.name, err)
}

// Read implements billing.Reader. Rows of split cost allocation are not lines of
// the bill and are never passed on; ReadNotes says how many there were.
func (r *Reader) Read(ctx context.Context, d billing.Delivery, keep func(*billing.Line) bool, fn func(*billing.Line, bool) error) error {
	dec := newDecoder(d)
	for _, f := range d.Files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.readFile(ctx, f, dec, keep, fn); err != nil {
			return r.wrap(err)
		}
	}
	if err := dec.blocks.Pass(keep, fn); err != nil {
		return r.wrap(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes[d.Token] = dec.notes()
	return nil
}

func (r *Reader) readFile(ctx context.Context, f billing.File, dec *decoder, keep func(*billing.Line) bool, fn func(*billing.Line, bool) error) error {
	rows, err := table.Open(ctx, r.store, f, options())
	if err != nil {
		return err
	}
	defer rows.Close()
	if err := dec.start(rows, f.Key); err != nil {
		return err
	}
	return rows.Each(ctx, -1, dec.line, func() error { return dec.tagErr }, keep, fn)
}

// ReadNotes implements billing.ReadNoter.
func (r *Reader) ReadNotes(d billing.Delivery) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.notes[d.Token]
}
