// Package focus reads FOCUS datasets of any provider, versions 1.0 to 1.4: CSV,
// gzipped CSV or Parquet in a folder, below a prefix, or a single file, by the manifests
// of AWS and Azure where they have written it.
package focus

import (
	"context"
	"fmt"
	"path"
	"strings"
	"sync"

	"gpuledger/billing"
	"gpuledger/billing/layout"
	"gpuledger/billing/period"
	"gpuledger/billing/table"
	"gpuledger/objstore"
)

// Options say how files that depart from the specification are read.
type Options struct {
	// Nulls are the texts that mean "no value" beside the empty cell; nil is
	// DefaultNulls.
	Nulls []string
	// Currency is used for files that have no BillingCurrency column; empty
	// refuses them.
	Currency string
}

// DefaultNulls are the null texts seen in published FOCUS files.
var DefaultNulls = []string{"NULL", "null", "(null)"}

// Reader reads all files at a location as one bill source.
type Reader struct {
	store objstore.Store
	name  string
	opt   Options

	months table.Months // of files without a manifest

	mu    sync.Mutex
	rows  map[string]int64 // of a file by its key, where a manifest counts them
	notes map[[32]byte][]string
}

var _ interface {
	billing.Reader
	billing.ReadNoter
} = (*Reader)(nil)

// New returns the reader of the bill source with the given name.
func New(store objstore.Store, name string, opt Options) *Reader {
	if opt.Nulls == nil {
		opt.Nulls = DefaultNulls
	}
	r := &Reader{store: store, name: name, opt: opt, rows: map[string]int64{}, notes: map[[32]byte][]string{}}
	r.months = table.Months{
		Options: table.Options{Columns: columns[:], Nulls: opt.Nulls, Active: []int{colBillingStart}},
		Check:   func(has func(int) bool) error { _, err := r.missing(has); return err },
		Month: func(rows *table.Reader) (period.Month, error) {
			t, err := rows.Time(colBillingStart)
			return period.MonthOf(t), err
		},
	}
	return r
}

func (r *Reader) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("bills %s: %w", r.name, err)
}

// Deliveries are what the manifests of an export name, where there are any (AWS Data
// Exports, Azure Cost Management). Else it groups the files by BillingPeriodStart: all
// files at the location are the delivery, each is looked through once for the months it
// holds (and once again only when it changed), and a file of several months is part of
// each.
func (r *Reader) Deliveries(ctx context.Context) ([]billing.Delivery, error) {
	objects, err := r.store.List(ctx, "")
	if err != nil {
		return nil, r.wrap(err)
	}
	var files []objstore.Object
	for _, o := range objects {
		if base := strings.ToLower(path.Base(o.Key)); strings.HasSuffix(base, "manifest.json") {
			out, err := r.byManifest(ctx, objects)
			return out, r.wrap(err)
		}
		if table.IsData(o.Key) || isRows(o.Key) {
			files = append(files, o)
		}
	}
	if len(files) == 0 {
		return nil, r.wrap(fmt.Errorf("%s: %w: no .csv, .csv.gz, .parquet or .ndjson file there", r.store.Location(), billing.ErrIncomplete))
	}
	out, err := r.months.Deliveries(ctx, r.store, files)
	if err != nil {
		return nil, r.wrap(err)
	}
	for i := range out {
		d := &out[i]
		d.Format, d.Token = Version(d.Columns), layout.Token(nil, d.Files)
		if d.Notes, err = r.missing(hasIn(d.Columns)); err != nil {
			return nil, r.wrap(fmt.Errorf("%s: %w", d.Files[0].Key, err))
		}
	}
	return out, nil
}

// isRows reports whether a file is of JSON rows. Others of JSON say something about an
// export, and are not part of it.
func isRows(key string) bool {
	k := strings.TrimSuffix(strings.ToLower(key), ".gz")
	return table.IsJSON(key) && !strings.HasSuffix(k, ".json")
}

// Read implements billing.Reader.
func (r *Reader) Read(ctx context.Context, d billing.Delivery, keep func(*billing.Line) bool, fn func(*billing.Line, bool) error) error {
	dec := &decoder{reader: r, delivery: d, headNotes: map[string]bool{}, unknown: map[string]int64{}}
	for _, f := range d.Files {
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

// ReadRows decodes rows that come from elsewhere than files, by the same rules. The notes
// say what they could not tell.
func ReadRows(ctx context.Context, d billing.Delivery, rows *table.Reader, key string, opt Options, keep func(*billing.Line) bool, fn func(*billing.Line, bool) error) (notes []string, err error) {
	dec := &decoder{reader: &Reader{opt: opt}, delivery: d, headNotes: map[string]bool{}, unknown: map[string]int64{}}
	if err := dec.start(rows, key); err != nil {
		return nil, err
	}
	if err := rows.Each(ctx, -1, dec.line, func() error { return dec.tagErr }, keep, fn); err != nil {
		return nil, err
	}
	if err := dec.blocks.Pass(keep, fn); err != nil {
		return nil, err
	}
	return dec.notes(), nil
}

func (r *Reader) readFile(ctx context.Context, f billing.File, dec *decoder, keep func(*billing.Line) bool, fn func(*billing.Line, bool) error) error {
	rows, err := table.Open(ctx, r.store, f, table.Options{Columns: columns[:], Nulls: r.opt.Nulls})
	if err != nil {
		return err
	}
	defer rows.Close()
	if err := dec.start(rows, f.Key); err != nil {
		return err
	}
	r.mu.Lock()
	count, counted := r.rows[f.Key]
	r.mu.Unlock()
	if !counted {
		count = -1
	}
	return rows.Each(ctx, count, dec.line, func() error { return dec.tagErr }, keep, fn)
}

// ReadNotes implements billing.ReadNoter.
func (r *Reader) ReadNotes(d billing.Delivery) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.notes[d.Token]
}

func hasIn(names []string) func(int) bool {
	set := make(map[string]bool, len(names))
	for _, n := range names {
		set[n] = true
	}
	return func(col int) bool { return set[columns[col]] }
}
