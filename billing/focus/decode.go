package focus

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sort"

	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/billing/period"
	"gpuledger/billing/table"
)

// iso4217 is the form of a currency code. Other spellings would become currencies of
// their own beside it.
var iso4217 = regexp.MustCompile(`^[A-Z]{3}$`)

// decoder turns rows of one delivery into lines.
type decoder struct {
	reader   *Reader
	delivery billing.Delivery
	rows     *table.Reader
	file     string
	out      billing.Line
	tagErr   error
	loaded   bool

	anyResource bool // the file does not say what its resources are
	headNotes   map[string]bool
	unknown     map[string]int64
	blocks      billing.Blocks
}

func (d *decoder) start(rows *table.Reader, file string) error {
	d.rows, d.file = rows, file
	notes, err := d.reader.missing(rows.Has)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, n := range notes {
		if !slices.Contains(d.delivery.Notes, n) {
			d.headNotes[n] = true
		}
	}
	d.anyResource = !saysWhatResourcesAre(rows.Has)
	return nil
}

// line decodes the current row; nil for a row of another billing period.
func (d *decoder) line() (*billing.Line, error) {
	r := d.rows
	start, err := r.Time(colBillingStart)
	if err != nil {
		return nil, err
	}
	if period.MonthOf(start) != d.delivery.BillingPeriod {
		return nil, nil
	}
	l := &d.out
	*l = billing.Line{
		Provider: r.Keep(colServiceProvider), BillingPeriod: d.delivery.BillingPeriod, Component: billing.Node,
		ChargeCategory: r.Keep(colCategory), ChargeClass: r.Keep(colClass), ChargeType: r.Keep(colCategory),
		Description: r.Keep(colDescription), PayerAccount: r.Keep(colBillingAccount), UsageAccount: r.Keep(colSubAccount),
		InvoiceID: r.Keep(colInvoice), InvoiceDetail: r.Keep(colInvoiceDetail), InvoiceIssuer: r.Keep(colIssuer),
		ResourceID: r.Keep(colResource), Region: r.Keep(colRegion), AvailabilityZone: r.Keep(colZone),
		Service: r.Keep(colService), SKU: r.Keep(colSKU), UsageType: r.Keep(colXUsageType), Operation: r.Keep(colXOperation),
		Commitment: r.Keep(colCommitment), Reservation: r.Keep(colCapacity),
		Currency: r.Keep(colCurrency), PricingCurrency: r.Keep(colPricingCurrency),
		ConsumedUnit: r.Keep(colConsumedUnit), PricingUnit: r.Keep(colPricingUnit),
		File: d.file, Row: r.Row(),
	}
	if l.Provider == "" {
		l.Provider = r.Keep(colProvider)
	}
	if l.ChargeCategory == "" {
		return nil, r.Error(colCategory, errors.New("no value, and the line cannot be classed without it"))
	}
	if l.Currency == "" && !r.Has(colCurrency) {
		l.Currency = d.reader.opt.Currency
	}
	if l.Currency == "" {
		return nil, r.Error(colCurrency, errors.New("no currency"))
	}
	if !iso4217.MatchString(l.Currency) {
		return nil, r.Error(colCurrency, fmt.Errorf("%q is not a currency code of ISO 4217, such as USD", l.Currency))
	}
	if err := d.numbers(l); err != nil {
		return nil, err
	}
	if l.ChargePeriod.Start, err = r.Time(colStart); err != nil {
		return nil, err
	}
	if l.ChargePeriod.End, err = r.Time(colEnd); err != nil {
		return nil, err
	}
	if l.ChargePeriod.End.Before(l.ChargePeriod.Start) {
		return nil, r.Error(colEnd, errors.New("the charge period ends before it starts"))
	}
	if err := d.identify(l); err != nil {
		return nil, err
	}
	d.classify(l)
	d.tagErr, d.loaded = nil, false
	l.LoadTags = d.loadTags
	if d.blocks.Hold(l) {
		return nil, d.tagErr
	}
	return l, nil
}

// numbers reads costs as delivered: a provider's own rounding is inherited, not
// repaired. List and contracted cost are mandatory in the specification, yet
// null in published files, and no bill depends on them.
func (d *decoder) numbers(l *billing.Line) (err error) {
	r := d.rows
	if l.Costs.Billed, err = r.Must(colBilled); err != nil {
		return err
	}
	if l.Costs.Effective, err = r.Must(colEffective); err != nil {
		return err
	}
	for _, n := range []struct {
		col int
		to  *money.NullAmount
	}{
		{colList, &l.Costs.List},
		{colContracted, &l.Costs.Contracted},
		{colConsumed, &l.ConsumedQuantity},
		{colPricing, &l.PricingQuantity},
		{colListPrice, &l.ListUnitPrice},
		{colContractedPrice, &l.ContractedUnitPrice},
		{colXExchangeRate, &l.ExchangeRate},
	} {
		if *n.to, err = r.Amount(n.col); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) loadTags() {
	if d.loaded {
		return
	}
	d.loaded = true
	d.out.Tags, d.tagErr = d.rows.Map(colTags)
	if d.out.Tags == nil && d.tagErr == nil && d.rows.Has(colXLabels) { // Google's export has them there
		d.out.Tags, d.tagErr = d.rows.Map(colXLabels)
	}
}

// notes says what the rows taught, in a stable order.
func (d *decoder) notes() []string {
	out := make([]string, 0, len(d.headNotes))
	for n := range d.headNotes {
		out = append(out, n)
	}
	sort.Strings(out)
	var names []string
	for n := range d.unknown {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		out = append(out, fmt.Sprintf("%d lines of unknown ChargeCategory %s: classed as other", d.unknown[n], n))
	}
	return append(out, d.blocks.Notes()...)
}

func abs(a money.Amount) money.Amount {
	if a.Sign() < 0 {
		return a.Neg()
	}
	return a
}
