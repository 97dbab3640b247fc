package focus

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"

	"gpuledger/billing"
	"gpuledger/billing/layout"
	"gpuledger/billing/period"
	"gpuledger/billing/table"
	"gpuledger/objstore"
)

// byManifest returns the newest refresh of each month of an export that has manifests
// (AWS Data Exports, Azure Cost Management): old refreshes lie beside the new.
func (r *Reader) byManifest(ctx context.Context, objects []objstore.Object) ([]billing.Delivery, error) {
	runs, err := r.runs(ctx, objects)
	if err != nil {
		return nil, err
	}
	newest := map[period.Month]layout.Run{}
	others := 0
	for _, one := range runs {
		if one.Err == nil && len(one.Columns) == 0 && len(one.Files) > 0 { // the manifest does not list them
			one.Columns, one.Err = r.header(ctx, one.Files[0])
		}
		if one.Err == nil && !layout.IsFOCUS(one) {
			others++
			continue
		}
		have, ok := newest[one.Month]
		if ok && have.Export != one.Export {
			return nil, fmt.Errorf("%s: two exports hold %s (%s and %s); point the location at one of them, or the month counts twice", r.store.Location(), one.Month, have.Manifest, one.Manifest)
		}
		if !ok || one.Submitted.After(have.Submitted) {
			newest[one.Month] = one
		}
	}
	if len(newest) == 0 && others > 0 {
		return nil, fmt.Errorf("%s: the exports there are no FOCUS exports; read them as type aws or azure", r.store.Location())
	}
	var out []billing.Delivery
	var errs []error
	for _, one := range newest {
		d, err := r.ofManifest(ctx, one)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, d)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].BillingPeriod.Start().Before(out[j].BillingPeriod.Start()) })
	return out, errors.Join(errs...)
}

func (r *Reader) runs(ctx context.Context, objects []objstore.Object) ([]layout.Run, error) {
	for _, o := range objects {
		if strings.HasSuffix(o.Key, "-Manifest.json") {
			return layout.AWS(ctx, r.store)
		}
	}
	return layout.Azure(ctx, r.store)
}

func (r *Reader) ofManifest(ctx context.Context, one layout.Run) (billing.Delivery, error) {
	d := billing.Delivery{BillingPeriod: one.Month, ID: one.ID, Manifest: one.Manifest, Files: one.Files, Submitted: one.Submitted, Columns: one.Columns}
	if one.Err != nil {
		return d, one.Err
	}
	d.Token = layout.Token([][]byte{one.Raw}, one.Files)
	d.Format = Version(d.Columns)
	var err error
	if d.Notes, err = r.missing(hasIn(d.Columns)); err != nil {
		return d, fmt.Errorf("%s: %w", one.Manifest, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, n := range one.Rows {
		r.rows[key] = n
	}
	return d, nil
}

func (r *Reader) header(ctx context.Context, f billing.File) ([]string, error) {
	rows, err := table.Open(ctx, r.store, f, table.Options{Columns: columns[:], Active: []int{}})
	if err != nil {
		return nil, err
	}
	return rows.Header(), rows.Close()
}
