package gcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"gpuledger/billing"
	"gpuledger/billing/gce"
	"gpuledger/billing/money"
	"gpuledger/billing/period"
	"gpuledger/billing/table"
)

// decoder turns the rows of one invoice month into lines.
type decoder struct {
	month period.Month
	rows  *table.Reader
	file  string
	out   billing.Line
	paid  creditSums
	added bool // the rows are sums of others
	pools *pools

	tagErr  error
	loaded  bool
	unknown map[string]int64
}

func newDecoder(m period.Month) *decoder {
	return &decoder{month: m, pools: newPools(), unknown: map[string]int64{}}
}

func (d *decoder) start(rows *table.Reader, file string) { d.rows, d.file = rows, file }

// creditSums are a row's credits by type, as their names are in the export.
type creditSums map[string]money.Amount

func (c creditSums) total() (sum money.Amount) {
	for _, a := range c {
		sum = sum.Add(a)
	}
	return sum
}

// The types of credits that commitments give. Source: "Structure of Detailed data export"
// of Google's documentation, credits.type.
const (
	resourceDiscount = "COMMITTED_USAGE_DISCOUNT"
	spendDiscount    = "COMMITTED_USAGE_DISCOUNT_DOLLAR_BASE"
	feeOffset        = "FEE_UTILIZATION_OFFSET"
)

// row reads what both passes need: false for a row of another month.
func (d *decoder) row() (ok bool, err error) {
	m, err := d.invoiceMonth()
	if err != nil || m != d.month {
		return false, err
	}
	r := d.rows
	l := &d.out
	*l = billing.Line{
		Provider: "Google Cloud", BillingPeriod: m, Component: billing.Node, File: d.file, Row: r.Row(),
		Description: r.Keep(colSKU), SKU: r.Keep(colSKUID), ChargeType: r.Keep(colCostType), Region: r.Keep(colRegion),
		PayerAccount: r.Keep(colAccount), UsageAccount: r.Keep(colProject), Service: r.Keep(colService),
		Currency: r.Keep(colCurrency), AvailabilityZone: r.Keep(colZone), Commitment: r.Keep(colSubscription),
	}
	if l.ChargePeriod.Start, err = r.Time(colStart); err != nil {
		return false, err
	}
	if d.paid, err = d.credits(); err != nil {
		return false, err
	}
	cost, err := d.float(colCost)
	if err != nil {
		return false, err
	}
	if !cost.Valid {
		return false, r.Error(colCost, errors.New("no value where a number is required"))
	}
	l.Costs.Billed = cost.Amount.Add(d.paid.total())
	l.Costs.Effective = l.Costs.Billed
	return true, d.quantities()
}

var yearMonth = regexp.MustCompile(`^[0-9]{6}$`)

// invoiceMonth reads 202610. It is a month of Pacific time, and need not be that of usage.
func (d *decoder) invoiceMonth() (period.Month, error) {
	text := d.rows.Text(colMonth)
	if !yearMonth.MatchString(text) {
		return period.Month{}, d.rows.Error(colMonth, fmt.Errorf("%q is not a month such as 202610", text))
	}
	m, err := period.ParseMonth(text[:4] + "-" + text[4:])
	if err != nil {
		return m, d.rows.Error(colMonth, err)
	}
	return m, nil
}

// credits adds a row's credits up by type. They are found by the names of their fields:
// their order differs between copies of the export.
func (d *decoder) credits() (creditSums, error) {
	if sum := d.rows.Text(colCreditSum); d.added {
		a, err := floatAmount(sum)
		if err != nil {
			return nil, d.rows.Error(colCreditSum, err)
		}
		return creditSums{"": a.Amount}, nil
	}
	text := d.rows.Text(colCredits)
	if text == "" || text == "[]" {
		return nil, nil
	}
	var list []struct {
		Type   string          `json:"type"`
		Name   string          `json:"name"`
		Amount json.RawMessage `json:"amount"`
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, d.rows.Error(colCredits, fmt.Errorf("not an array of credits: %w", err))
	}
	out := creditSums{}
	for _, c := range list {
		a, err := floatAmount(strings.Trim(string(c.Amount), `"`))
		if err == nil && !a.Valid {
			err = errors.New("a credit without an amount")
		}
		if err != nil {
			return nil, d.rows.Error(colCredits, err)
		}
		out[c.Type] = out[c.Type].Add(a.Amount)
	}
	return out, nil
}

// float reads a cell that is a double in BigQuery.
func (d *decoder) float(col int) (money.NullAmount, error) {
	a, err := floatAmount(d.rows.Text(col))
	if err != nil {
		return a, d.rows.Error(col, err)
	}
	return a, nil
}

// floatAmount reads the text of a double. Decimals beyond the 24th, which only a double of
// 17 digits below 1e-7 has, are rounded: the double itself is no closer to what was meant.
func floatAmount(text string) (money.NullAmount, error) {
	if text == "" || text == "null" {
		return money.NullAmount{}, nil
	}
	a, err := money.Parse(text)
	if errors.Is(err, money.ErrPrecision) {
		f, ferr := strconv.ParseFloat(text, 64)
		if ferr != nil {
			return money.NullAmount{}, err
		}
		a, err = money.Parse(strconv.FormatFloat(f, 'f', money.Scale, 64))
	}
	if err != nil {
		return money.NullAmount{}, err
	}
	return money.Some(a), nil
}

// quantities reads usage in both of its units. Byte-seconds are beyond what an Amount
// holds; their gibibyte hours are not.
func (d *decoder) quantities() (err error) {
	l, r := &d.out, d.rows
	if l.PricingQuantity, err = d.float(colPricingAmount); err != nil {
		return err
	}
	l.PricingUnit, l.ConsumedUnit = r.Keep(colPricingUnit), r.Keep(colUnit)
	l.ConsumedQuantity, err = floatAmount(r.Text(colAmount))
	if errors.Is(err, money.ErrRange) && l.PricingQuantity.Valid {
		l.ConsumedQuantity, l.ConsumedUnit = money.NullAmount{}, ""
		return nil
	}
	if err != nil {
		return r.Error(colAmount, err)
	}
	return nil
}

// line decodes the current row; nil for one of another invoice month, and for one of a
// commitment, which comes when all is read: what of it was used is known only then.
func (d *decoder) line() (*billing.Line, error) {
	ok, err := d.row()
	if err != nil || !ok {
		return nil, err
	}
	l, r := &d.out, d.rows
	if l.Currency == "" {
		return nil, r.Error(colCurrency, errors.New("no currency"))
	}
	if l.ChargePeriod.End, err = r.Time(colEnd); err != nil {
		return nil, err
	}
	if l.ChargePeriod.End.Before(l.ChargePeriod.Start) {
		return nil, r.Error(colEnd, errors.New("the usage ends before it starts"))
	}
	for _, n := range []struct {
		col int
		to  *money.NullAmount
	}{
		{colListCost, &l.Costs.List},
		{colContractCost, &l.Costs.Contracted},
		{colRate, &l.ExchangeRate},
		{colListPrice, &l.ListUnitPrice},
		{colEffectivePrice, &l.ContractedUnitPrice},
	} {
		if *n.to, err = d.float(n.col); err != nil {
			return nil, err
		}
	}
	l.InvoiceIssuer, l.PricingCurrency = r.Keep(colSeller), "USD"
	if d.added {
		return l, d.sums()
	}
	labels, err := r.Map(colSystemLabels)
	if err != nil {
		return nil, err
	}
	d.identify(l, labels)
	d.classify(l, labels)
	d.tagErr, d.loaded = nil, false
	l.LoadTags = d.loadTags
	if key, ok := poolOfCommitment(l); ok && d.paid[feeOffset].Sign() == 0 && l.Class == billing.Fee {
		l.LoadTags()
		l.LoadTags = nil
		d.pools.hold(key, *l)
		return nil, d.tagErr
	}
	d.pools.amortise(l, d.paid)
	return l, nil
}

// sums finishes a line that adds rows up.
func (d *decoder) sums() error {
	n, err := strconv.ParseInt(d.rows.Text(colCount), 10, 64)
	if err != nil || n < 1 {
		return d.rows.Error(colCount, fmt.Errorf("%q is no number of rows", d.rows.Text(colCount)))
	}
	l := &d.out
	l.Count = n
	d.tagErr = nil
	d.classify(l, nil)
	return nil
}

// identify finds the machine, as project/zone/name, and its type.
func (d *decoder) identify(l *billing.Line, labels map[string]string) {
	r := d.rows
	name, global := r.Keep(colResource), r.Keep(colGlobalName)
	l.ResourceID = name
	if name == "" {
		l.ResourceID = global
	}
	l.InstanceType = labels[gce.MachineType]
	l.Reservation = labels[gce.ReservationName]
	if l.Service != "" && r.Has(colServiceID) && r.Text(colServiceID) != computeEngine {
		return
	}
	switch {
	case gce.IsMachine(name):
		l.InstanceID = gce.InstanceID(name, l.UsageAccount, l.AvailabilityZone)
	case name != "" && !strings.Contains(name, "/") && (gce.IsMachine(global) || global == "" && l.InstanceType != ""):
		l.InstanceID = gce.InstanceID("projects/0/instances/"+name, l.UsageAccount, l.AvailabilityZone)
	case name == "" && gce.IsMachine(global): // its number, which no node goes by
		l.InstanceID = gce.InstanceID(global, l.UsageAccount, l.AvailabilityZone)
	}
	if l.InstanceID != "" {
		part := gce.PartOf(l.Description)
		l.Component, l.PerInstance = billing.Component(part.Component()), part.PerInstance(l.InstanceType, labels[gce.MachineCores])
	}
}

// loadTags gathers the labels under their own names, those of the project below project/,
// tags below tag/ and credits by type below credit/.
func (d *decoder) loadTags() {
	if d.loaded {
		return
	}
	d.loaded = true
	labels, err := d.rows.Map(colLabels)
	if err != nil {
		d.tagErr = err
		return
	}
	project, err := d.rows.Map(colProjectLabels)
	if err != nil {
		d.tagErr = err
		return
	}
	tags, err := d.rows.Map(colTags)
	if err != nil {
		d.tagErr = err
		return
	}
	if len(project)+len(tags)+len(d.paid) == 0 {
		d.out.Tags = labels // shared with other rows
		return
	}
	all := make(map[string]string, len(labels)+len(project)+len(tags)+len(d.paid))
	for k, v := range labels {
		all[k] = v
	}
	for k, v := range project {
		all["project/"+k] = v
	}
	for k, v := range tags {
		all["tag/"+k] = v
	}
	for k, v := range d.paid {
		all["credit/"+k] = v.String()
	}
	d.out.Tags = all
}

// notes says what the rows taught, in a stable order.
func (d *decoder) notes() []string {
	var names []string
	for n := range d.unknown {
		names = append(names, n)
	}
	sort.Strings(names)
	var out []string
	for _, n := range names {
		out = append(out, fmt.Sprintf("%d lines of unknown cost_type %s: classed as other", d.unknown[n], n))
	}
	return append(out, d.pools.notes()...)
}
