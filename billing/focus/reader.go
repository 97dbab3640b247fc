// Package focus reads FOCUS datasets of any provider, versions 1.0 to 1.4: CSV,
// gzipped CSV or Parquet in a folder, below a prefix, or a single file, by the manifests
// of AWS and Azure where they have written it.
package focus

import (
	"context"
	"fmt"
	"io"
	"path"
	"sort"
	"strings"
	"sync"
	"time"

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

	mu    sync.Mutex
	scans map[string]scan  // by key and entity tag
	rows  map[string]int64 // of a file by its key, where a manifest counts them
	notes map[[32]byte][]string
}

// scan is what one look through a file found.
type scan struct {
	header []string
	months []period.Month
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
	return &Reader{store: store, name: name, opt: opt, scans: map[string]scan{}, rows: map[string]int64{}, notes: map[[32]byte][]string{}}
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
	months := map[period.Month]*billing.Delivery{}
	files := 0
	for _, o := range objects {
		if base := strings.ToLower(path.Base(o.Key)); strings.HasSuffix(base, "manifest.json") {
			out, err := r.byManifest(ctx, objects)
			return out, r.wrap(err)
		}
		if !table.IsData(o.Key) {
			continue
		}
		files++
		s, err := r.scan(ctx, o)
		if err != nil {
			return nil, r.wrap(err)
		}
		for _, m := range s.months {
			d := months[m]
			if d == nil {
				d = &billing.Delivery{Format: version(s.header), BillingPeriod: m, Columns: s.header}
				months[m] = d
			}
			d.Files = append(d.Files, billing.File{Key: o.Key, Size: o.Size, ETag: o.ETag})
			if o.Modified.After(d.Submitted) {
				d.Submitted = o.Modified
			}
		}
	}
	if files == 0 {
		return nil, r.wrap(fmt.Errorf("%s: %w: no .csv, .csv.gz or .parquet file there", r.store.Location(), billing.ErrIncomplete))
	}
	out := make([]billing.Delivery, 0, len(months))
	for _, d := range months {
		d.Token = layout.Token(nil, d.Files)
		if d.Notes, err = r.missing(hasIn(d.Columns)); err != nil {
			return nil, r.wrap(fmt.Errorf("%s: %w", d.Files[0].Key, err))
		}
		out = append(out, *d)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].BillingPeriod.Start().Before(out[j].BillingPeriod.Start()) })
	return out, nil
}

// scan reads a file's header and the months of its rows.
func (r *Reader) scan(ctx context.Context, o objstore.Object) (scan, error) {
	id := o.Key + "\x00" + o.ETag
	r.mu.Lock()
	s, ok := r.scans[id]
	r.mu.Unlock()
	if ok {
		return s, nil
	}
	rows, err := table.Open(ctx, r.store, billing.File{Key: o.Key, Size: o.Size, ETag: o.ETag},
		table.Options{Columns: columns[:], Nulls: r.opt.Nulls, Active: []int{colBillingStart}})
	if err != nil {
		return scan{}, err
	}
	defer rows.Close()
	if _, err := r.missing(rows.Has); err != nil {
		return scan{}, fmt.Errorf("%s: %w", o.Key, err)
	}
	s.header = rows.Header()
	var last time.Time
	seen := map[period.Month]bool{}
	for {
		err := rows.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return scan{}, err
		}
		if rows.Row()%4096 == 0 && ctx.Err() != nil {
			return scan{}, ctx.Err()
		}
		t, err := rows.Time(colBillingStart)
		if err != nil {
			return scan{}, err
		}
		if t.Equal(last) {
			continue
		}
		last = t
		if m := period.MonthOf(t); !seen[m] {
			seen[m] = true
			s.months = append(s.months, m)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scans[id] = s
	return s, nil
}

// Read implements billing.Reader.
func (r *Reader) Read(ctx context.Context, d billing.Delivery, keep func(*billing.Line) bool, fn func(*billing.Line, bool) error) error {
	dec := &decoder{reader: r, delivery: d, headNotes: map[string]bool{}, unknown: map[string]int64{}}
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
