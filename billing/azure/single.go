package azure

import (
	"context"
	"fmt"
	"io"
	"path"
	"regexp"
	"strings"

	"gpuledger/billing"
	"gpuledger/billing/period"
	"gpuledger/billing/table"
	"gpuledger/objstore"
)

// single looks through data files that no manifest names. Each is a run of its own, of
// the month so far, so that the newest of a month counts, but for parts of one run.
func (r *Reader) single(ctx context.Context, objects []objstore.Object) ([]*run, error) {
	var runs []*run
	parts := map[string]*run{}
	for _, o := range objects {
		if !table.IsData(o.Key) {
			continue
		}
		one, err := r.look(ctx, o)
		if err != nil {
			return nil, err
		}
		if one == nil {
			continue // a header alone
		}
		if partName.MatchString(path.Base(o.Key)) {
			where := path.Dir(o.Key) + " " + one.month.String()
			if whole := parts[where]; whole != nil {
				if err := whole.addPart(one); err != nil {
					return nil, err
				}
				continue
			}
			parts[where] = one
		}
		runs = append(runs, one)
	}
	return runs, nil
}

// partName is a file that is one of several parts of a run.
var partName = regexp.MustCompile(`^part_\d+_\d+\.`)

func (whole *run) addPart(part *run) error {
	switch {
	case part.kind == both:
	case whole.kind == both:
		whole.kind = part.kind
	case whole.kind != part.kind:
		return fmt.Errorf("%s: the parts of one run look like an %s and an %s export: %s", path.Dir(part.key), whole.kind, part.kind, part.key)
	}
	whole.files = append(whole.files, part.files...)
	for key, f := range part.about {
		whole.about[key] = f
	}
	whole.become(whole.kind)
	return nil
}

// look reads a file's month, and tells from its rows whether it is an actual or an
// amortized export: what a commitment leaves unused is only in the latter, its purchase
// only in the former.
func (r *Reader) look(ctx context.Context, o objstore.Object) (*run, error) {
	opt := options()
	opt.Active = []int{colDate, colPeriodStart, colChargeType, colPricingModel, colCost, colCurrency}
	rows, err := table.Open(ctx, r.store, billing.File{Key: o.Key, Size: o.Size, ETag: o.ETag}, opt)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	dec := r.decoder(billing.Delivery{})
	if err := dec.start(rows, o.Key, both); err != nil {
		return nil, err
	}
	one := &run{key: o.Key, export: exportOf(o.Key), kind: both, submitted: o.Modified, id: path.Base(o.Key), header: rows.Header(), files: []billing.File{{Key: o.Key, Size: o.Size, ETag: o.ETag}}}
	seen := map[kind]string{}
	for {
		err := rows.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if rows.Row()%4096 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		month, err := dec.month()
		if err != nil {
			return nil, err
		}
		if !one.month.IsZero() && month != one.month {
			return nil, fmt.Errorf("%s: row %d is of %s and others of %s: export months one by one", o.Key, rows.Row(), month, one.month)
		}
		one.month = month
		k, sure := dec.shows()
		if k != both && sure && seen[k] == "" {
			seen[k] = fmt.Sprintf("row %d", rows.Row())
		}
		if k != both && (sure || len(seen) == 0) {
			one.kind = k
		}
	}
	if len(seen) == 2 {
		return nil, fmt.Errorf("%s: %s is of an actual export and %s of an amortized one: export them apart", o.Key, seen[actual], seen[amortized])
	}
	if one.month.IsZero() {
		return nil, nil
	}
	if one.kind == both { // nothing in it tells; its name may
		switch name := strings.ToLower(o.Key); {
		case strings.Contains(name, "amortized"), strings.Contains(name, "amortised"):
			one.kind = amortized
		case strings.Contains(name, "actual"):
			one.kind = actual
		}
	}
	one.about = map[string]file{o.Key: {one.kind, -1}}
	return one, nil
}

// exportOf names the export of a file, whose name ends in that of its run.
func exportOf(key string) string {
	name := path.Base(key)
	if i := strings.LastIndexByte(name, '_'); i > 0 && runName.MatchString(name[i+1:]) {
		return name[:i]
	}
	return path.Dir(key)
}

var runName = regexp.MustCompile(`^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.`)

// month is the month of the current row: that of its billing period, else of its day.
func (d *decoder) month() (period.Month, error) {
	if text := d.rows.Text(colPeriodStart); text != "" {
		t, err := parseDay(text)
		if err != nil {
			return period.Month{}, d.rows.Error(colPeriodStart, err)
		}
		return period.MonthOf(t), nil
	}
	t, err := d.day()
	return period.MonthOf(t), err
}

// shows is the kind of export that the current row is of, and whether it can be of no
// other: usage that a commitment covers may cost nothing in either. both: it says nothing.
func (d *decoder) shows() (k kind, sure bool) {
	model := strings.ToLower(strings.ReplaceAll(d.rows.Text(colPricingModel), " ", ""))
	covered := model == "reservation" || model == "savingsplan"
	switch t := d.rows.Text(colChargeType); {
	case t == "UnusedReservation" || t == "UnusedSavingsPlan":
		return amortized, true
	case covered && t == "Purchase":
		return actual, true
	case covered && t == "Usage":
		if cost, err := d.rows.Amount(colCost); err == nil && cost.Valid && cost.Amount.Sign() != 0 {
			return amortized, true
		}
		return actual, false
	}
	return both, false
}
