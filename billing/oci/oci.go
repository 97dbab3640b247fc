// Package oci reads Oracle Cloud's own cost reports. Its FOCUS reports are read by
// billing/focus.
package oci

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"gpuledger/billing"
	"gpuledger/billing/layout"
	"gpuledger/billing/money"
	"gpuledger/billing/period"
	"gpuledger/billing/table"
	"gpuledger/objstore"
)

// The columns of a cost report that are read. Their order is the index a cell is addressed
// by. Source: "Cost Reports Overview" of Oracle's documentation.
const (
	colTenant = iota
	colStart
	colEnd
	colService
	colCompartment
	colRegion
	colDomain
	colResource
	colQuantity
	colSubscription
	colSKU
	colDescription
	colUnitPrice
	colCost
	colCurrency
	colUnit
	colCorrection
	colTags
	numCols
)

var columns = [numCols]string{
	colTenant: "lineItem/tenantId", colStart: "lineItem/intervalUsageStart", colEnd: "lineItem/intervalUsageEnd",
	colService: "product/service", colCompartment: "product/compartmentId", colRegion: "product/region", colDomain: "product/availabilityDomain",
	colResource: "product/resourceId", colQuantity: "usage/billedQuantity", colSubscription: "cost/subscriptionId",
	colSKU: "cost/productSku", colDescription: "product/Description", colUnitPrice: "cost/unitPrice", colCost: "cost/myCost",
	colCurrency: "cost/currencyCode", colUnit: "cost/skuUnitDescription", colCorrection: "lineItem/isCorrection", colTags: "tags",
}

var required = []int{colStart, colEnd, colCost, colCurrency, colService}

func options() table.Options {
	return table.Options{Columns: columns[:], Prefixed: map[int]string{colTags: "tags/"}}
}

// Reader reads all reports at a location as one bill source: each report holds what came
// since the one before, so together they are the bill.
type Reader struct {
	store  objstore.Store
	name   string
	months table.Months
}

var _ billing.Reader = (*Reader)(nil)

// New returns the reader of the bill source with the given name.
func New(store objstore.Store, name string) *Reader {
	opt := options()
	opt.Active = []int{colStart}
	return &Reader{store: store, name: name, months: table.Months{
		Options: opt, Check: check,
		Month: func(rows *table.Reader) (period.Month, error) {
			t, err := rows.Time(colStart)
			return period.MonthOf(t), err
		},
	}}
}

func check(has func(int) bool) error {
	var absent []string
	for _, c := range required {
		if !has(c) {
			absent = append(absent, columns[c])
		}
	}
	if len(absent) > 0 {
		return fmt.Errorf("column %s is not in the file, and no cost is right without it: this is no cost report of Oracle Cloud (a FOCUS report is of type focus)", strings.Join(absent, ", "))
	}
	return nil
}

// Deliveries implements billing.Reader: one for each month of usage.
func (r *Reader) Deliveries(ctx context.Context) ([]billing.Delivery, error) {
	objects, err := r.store.List(ctx, "")
	if err != nil {
		return nil, r.wrap(err)
	}
	var files []objstore.Object
	for _, o := range objects {
		if table.IsData(o.Key) && !strings.Contains(o.Key, "usage-csv/") { // usage reports lie beside the cost reports
			files = append(files, o)
		}
	}
	if len(files) == 0 {
		return nil, r.wrap(fmt.Errorf("%s: %w: no .csv or .csv.gz file there", objstore.Public(r.store.Location()), billing.ErrIncomplete))
	}
	out, err := r.months.Deliveries(ctx, r.store, files)
	if err != nil {
		return nil, r.wrap(err)
	}
	for i := range out {
		d := &out[i]
		d.Format, d.Token = "OCI cost report", layout.Token(nil, d.Files)
		d.Notes = []string{"list cost unavailable: a cost report does not state it", "contracted cost unavailable: likewise"}
	}
	return out, nil
}

// Read implements billing.Reader.
func (r *Reader) Read(ctx context.Context, d billing.Delivery, keep func(*billing.Line) bool, fn func(*billing.Line, bool) error) error {
	dec := &decoder{month: d.BillingPeriod}
	for _, f := range d.Files {
		if err := r.file(ctx, f, dec, keep, fn); err != nil {
			return r.wrap(err)
		}
	}
	return nil
}

func (r *Reader) file(ctx context.Context, f billing.File, dec *decoder, keep func(*billing.Line) bool, fn func(*billing.Line, bool) error) error {
	rows, err := table.Open(ctx, r.store, f, options())
	if err != nil {
		return err
	}
	defer rows.Close()
	if err := check(rows.Has); err != nil {
		return fmt.Errorf("%s: %w", f.Key, err)
	}
	dec.rows, dec.file = rows, f.Key
	return rows.Each(ctx, -1, dec.line, func() error { return dec.tagErr }, keep, fn)
}

func (r *Reader) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("bills %s: %w", r.name, err)
}

// decoder turns the rows of one month into lines.
type decoder struct {
	month  period.Month
	rows   *table.Reader
	file   string
	out    billing.Line
	tagErr error
}

// line decodes the current row; nil for one of another month.
func (d *decoder) line() (*billing.Line, error) {
	r := d.rows
	start, err := r.Time(colStart)
	if err != nil {
		return nil, err
	}
	if period.MonthOf(start) != d.month {
		return nil, nil
	}
	l := &d.out
	*l = billing.Line{
		Provider: "Oracle", BillingPeriod: d.month, Component: billing.Node, ChargeCategory: "Usage", ChargeType: "usage",
		PayerAccount: r.Keep(colTenant), UsageAccount: r.Keep(colCompartment), InvoiceIssuer: "Oracle", Commitment: r.Keep(colSubscription),
		Service: r.Keep(colService), Region: r.Keep(colRegion), AvailabilityZone: r.Keep(colDomain), ResourceID: r.Keep(colResource),
		SKU: r.Keep(colSKU), Description: r.Keep(colDescription), Currency: r.Keep(colCurrency),
		ConsumedUnit: r.Keep(colUnit), PricingUnit: r.Keep(colUnit), File: d.file, Row: r.Row(),
	}
	if l.Currency == "" {
		return nil, r.Error(colCurrency, errors.New("no currency"))
	}
	l.ChargePeriod.Start = start
	if l.ChargePeriod.End, err = r.Time(colEnd); err != nil {
		return nil, err
	}
	if l.ChargePeriod.End.Before(start) {
		return nil, r.Error(colEnd, errors.New("the usage ends before it starts"))
	}
	if l.Costs.Billed, err = r.Must(colCost); err != nil {
		return nil, err
	}
	l.Costs.Effective = l.Costs.Billed
	for _, n := range []struct {
		col int
		to  *money.NullAmount
	}{{colQuantity, &l.ConsumedQuantity}, {colUnitPrice, &l.ContractedUnitPrice}} {
		if *n.to, err = r.Amount(n.col); err != nil {
			return nil, err
		}
	}
	l.PricingQuantity = l.ConsumedQuantity
	if strings.EqualFold(r.Text(colCorrection), "true") {
		l.ChargeClass = "Correction"
	}
	classify(l)
	d.tagErr = nil
	l.LoadTags = func() { l.Tags, d.tagErr = r.Map(colTags) }
	return l, nil
}

// classify tells an instance's own lines. Its cores, memory and GPUs are priced apart, by
// the hour of each, so that none tells the machine's time.
func classify(l *billing.Line) {
	l.Class = billing.Other
	if l.Service != "COMPUTE" || !strings.HasPrefix(l.ResourceID, "ocid1.instance.") {
		return
	}
	l.InstanceID, l.Class = l.ResourceID, billing.NodeUsage
	text := strings.ToUpper(l.Description + " " + l.ConsumedUnit)
	switch {
	case strings.Contains(text, "GPU"):
		l.Component = billing.GPU
	case strings.Contains(text, "MEMORY"), strings.HasPrefix(strings.ToUpper(l.ConsumedUnit), "GB "):
		l.Component = billing.Memory
	case strings.Contains(text, "CPU"): // OCPU, ECPU
		l.Component = billing.CPU
	}
}
