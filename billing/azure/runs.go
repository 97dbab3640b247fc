package azure

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"time"

	"gpuledger/billing"
	"gpuledger/billing/layout"
	"gpuledger/billing/period"
)

// run is one run of an export with the files it has.
type run struct {
	key       string // of its manifest, or of its one file
	export    string
	kind      kind
	month     period.Month
	submitted time.Time
	id        string
	raw       []byte
	files     []billing.File
	about     map[string]file
	header    []string
}

// Deliveries returns the newest run of each month and kind of export, an actual and an
// amortized one together. Where some months are whole and others are not, it returns the
// whole ones together with the error about the others.
func (r *Reader) Deliveries(ctx context.Context) ([]billing.Delivery, error) {
	all, err := layout.Azure(ctx, r.store)
	if err != nil {
		return nil, r.wrap(err)
	}
	var runs []*run
	var errs []error
	focus := 0
	for _, one := range all {
		switch {
		case one.Kind == layout.AzureFOCUS:
			focus++
		case one.Err != nil:
			errs = append(errs, one.Err)
		default:
			runs = append(runs, ofManifest(one))
		}
	}
	if len(all) == 0 {
		objects, err := r.store.List(ctx, "")
		if err != nil {
			return nil, r.wrap(err)
		}
		if runs, err = r.single(ctx, objects); err != nil {
			return nil, r.wrap(err)
		}
	}
	if len(runs) == 0 && len(errs) == 0 {
		if focus > 0 {
			return nil, r.wrap(fmt.Errorf("%s: the exports there are FOCUS exports; read them as type focus", r.store.Location()))
		}
		return nil, r.wrap(fmt.Errorf("%s: %w: no manifest.json and no .csv, .csv.gz or .parquet file there", r.store.Location(), billing.ErrIncomplete))
	}
	out, err := r.deliveries(runs)
	return out, r.wrap(errors.Join(append(errs, err)...))
}

// ofManifest is a run that a manifest names.
func ofManifest(l layout.Run) *run {
	one := &run{key: l.Manifest, export: l.Export, kind: actual, month: l.Month, submitted: l.Submitted, id: l.ID, raw: l.Raw, files: l.Files, about: map[string]file{}}
	if l.Kind == layout.AzureAmortized {
		one.kind = amortized
	}
	for _, f := range l.Files {
		rows, counted := l.Rows[f.Key]
		if !counted {
			rows = -1
		}
		one.about[f.Key] = file{one.kind, rows}
	}
	return one
}

// deliveries takes the newest run of each month and kind.
func (r *Reader) deliveries(runs []*run) (out []billing.Delivery, err error) {
	type slot struct {
		month period.Month
		kind  kind
	}
	newest := map[slot]*run{}
	for _, one := range runs {
		s := slot{one.month, one.kind}
		have := newest[s]
		if have != nil && have.export != one.export {
			return nil, fmt.Errorf("%s: two exports hold %s (%s and %s); point the location at one of them, or the month counts twice", r.store.Location(), one.month, have.key, one.key)
		}
		if have == nil || one.submitted.After(have.submitted) || one.submitted.Equal(have.submitted) && one.key > have.key {
			newest[s] = one
		}
	}
	// A month's inconclusive run is what the other is not.
	for s, one := range newest {
		if s.kind != both {
			continue
		}
		for of, is := range map[kind]kind{actual: amortized, amortized: actual} {
			if newest[slot{s.month, of}] != nil {
				one.become(is)
				newest[slot{s.month, is}] = one
				delete(newest, s)
			}
		}
	}
	files := map[string]file{}
	months := map[period.Month]*billing.Delivery{}
	raw := map[period.Month][][]byte{}
	kinds := map[period.Month]map[kind]bool{}
	for _, k := range []kind{amortized, actual, both} {
		for s, one := range newest {
			if s.kind != k {
				continue
			}
			d := months[s.month]
			if d == nil {
				d = &billing.Delivery{Format: "Azure " + k.String(), BillingPeriod: s.month, Manifest: one.key, ID: one.id, Columns: one.header}
				months[s.month], kinds[s.month] = d, map[kind]bool{}
			} else {
				d.Format, d.ID = "Azure actual and amortized", d.ID+" "+one.id
			}
			kinds[s.month][k] = true
			d.Files = append(d.Files, one.files...)
			if one.submitted.After(d.Submitted) {
				d.Submitted = one.submitted
			}
			raw[s.month] = append(raw[s.month], one.raw)
			for key, f := range one.about {
				files[key] = f
			}
		}
	}
	for m, d := range months {
		d.Notes = notesOf(kinds[m])
		d.Token = layout.Token(raw[m], d.Files)
		out = append(out, *d)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].BillingPeriod.Start().Before(out[j].BillingPeriod.Start()) })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files = files
	return out, nil
}

// become settles what the run's files are.
func (one *run) become(k kind) {
	one.kind = k
	for key, f := range one.about {
		one.about[key] = file{k, f.rows}
	}
}

func notesOf(have map[kind]bool) []string {
	notes := []string{"contracted cost unavailable: the export does not state it"}
	switch {
	case have[actual] && have[amortized], have[both]:
	case have[actual]:
		notes = append(notes, "effective cost is the billed cost: there is no amortized export, so what a reservation or savings plan covers costs nothing; add one")
	default:
		notes = append(notes, "billed cost lacks the purchases of reservations and savings plans: there is no actual export; add one")
	}
	return notes
}
