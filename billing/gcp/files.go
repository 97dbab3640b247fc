package gcp

import (
	"context"
	"fmt"

	"gpuledger/billing"
	"gpuledger/billing/layout"
	"gpuledger/billing/period"
	"gpuledger/billing/table"
	"gpuledger/objstore"
)

// files are rows of the export that were written to files: by BigQuery's own export to
// Cloud Storage, or by bq query.
type files struct {
	store  objstore.Store
	months table.Months
}

// Files returns the reader of the bill source with the given name, from newline-delimited
// JSON (.json, .ndjson, .jsonl, gzipped or not), Parquet or CSV files of the rows of the
// detailed usage cost export. All files at the location are the whole of it.
func Files(store objstore.Store, name string) *Reader {
	return &Reader{name: name, notes: map[[32]byte][]string{}, from: &files{store: store, months: table.Months{
		Options: table.Options{Columns: columns[:], Active: []int{colMonth}},
		Check:   func(has func(int) bool) error { _, err := missing(has); return err },
		Month: func(rows *table.Reader) (period.Month, error) {
			return (&decoder{rows: rows}).invoiceMonth()
		},
	}}}
}

func (f *files) deliveries(ctx context.Context) ([]billing.Delivery, error) {
	objects, err := f.store.List(ctx, "")
	if err != nil {
		return nil, err
	}
	var data []objstore.Object
	for _, o := range objects {
		if table.IsData(o.Key) || table.IsJSON(o.Key) {
			data = append(data, o)
		}
	}
	if len(data) == 0 {
		return nil, fmt.Errorf("%s: %w: no .json, .ndjson, .parquet or .csv file there", f.store.Location(), billing.ErrIncomplete)
	}
	out, err := f.months.Deliveries(ctx, f.store, data)
	if err != nil {
		return nil, err
	}
	for i := range out {
		d := &out[i]
		d.Format, d.Token = "GCP detailed usage cost", layout.Token(nil, d.Files)
		if d.Notes, err = missing(hasIn(d.Columns)); err != nil {
			return nil, fmt.Errorf("%s: %w", d.Files[0].Key, err)
		}
	}
	return out, nil
}

func (f *files) each(ctx context.Context, d billing.Delivery, _ bool, fn func(*table.Reader, string, bool) error) error {
	for _, file := range d.Files {
		if err := f.one(ctx, file, fn); err != nil {
			return err
		}
	}
	return nil
}

func (f *files) one(ctx context.Context, file billing.File, fn func(*table.Reader, string, bool) error) error {
	rows, err := table.Open(ctx, f.store, file, table.Options{Columns: columns[:]})
	if err != nil {
		return err
	}
	defer rows.Close()
	if _, err := missing(rows.Has); err != nil {
		return fmt.Errorf("%s: %w", file.Key, err)
	}
	return fn(rows, file.Key, false)
}
