package aws

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"gpuledger/billing"
	"gpuledger/billing/ec2"
	"gpuledger/billing/money"
	"gpuledger/billing/period"
	"gpuledger/billing/table"
)

// decoder turns rows of one delivery into lines.
type decoder struct {
	delivery billing.Delivery
	rows     *table.Reader
	file     string
	out      billing.Line
	tagErr   error

	basis       basis
	basisKnown  bool
	unblended   int  // the column of billed cost on the basis
	needProduct bool // the product map stands in for absent columns

	types      map[string]string
	splitRows  int64
	unknown    map[string]int64
	noNet      int64
	headNotes  map[string]bool
	spResidual map[string]money.Amount // Σ covered + negation by currency: 0 on a sound bill
	blocks     billing.Blocks
}

func newDecoder(d billing.Delivery) *decoder {
	dec := &decoder{
		delivery: d, unknown: map[string]int64{}, types: map[string]string{},
		headNotes: map[string]bool{}, spResidual: map[string]money.Amount{},
	}
	if len(d.Columns) > 0 {
		dec.basis, _ = chooseBasis(hasIn(d.Columns))
		dec.basisKnown = true
	}
	return dec
}

// start checks a file's header against what the delivery is read as.
func (d *decoder) start(rows *table.Reader, file string) error {
	d.rows, d.file = rows, file
	notes, err := missing(rows.Has)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	basis, note := chooseBasis(rows.Has)
	if d.basisKnown && basis != d.basis {
		return fmt.Errorf("%s: the file's net columns differ from the delivery's other files or its manifest; costs would be on two bases; ask for a new delivery", file)
	}
	d.basis, d.basisKnown = basis, true
	for _, n := range append(notes, note) {
		if !slices.Contains(d.delivery.Notes, n) {
			d.headNotes[n] = true
		}
	}
	d.unblended = basis.pick(rows.Has, colUnblended, colNetUnblended)
	d.needProduct = rows.Has(colProductMap) && !(rows.Has(colInstanceType) && rows.Has(colRegion) && rows.Has(colSKU))
	return nil
}

// line decodes the current row; nil for a row that is no line of the bill.
func (d *decoder) line() (*billing.Line, error) {
	r := d.rows
	if op := r.Text(colOperation); op == "EKSPod-EC2" || op == "ECSTask-EC2" {
		// Split cost allocation repeats an instance's cost by pod.
		d.splitRows++
		return nil, nil
	}
	l := &d.out
	*l = billing.Line{
		Provider: "AWS", BillingPeriod: d.delivery.BillingPeriod, Component: billing.Node,
		ChargeType: r.Keep(colLineType), Description: r.Keep(colDescription),
		PayerAccount: r.Keep(colPayer), UsageAccount: r.Keep(colAccount),
		InvoiceID: r.Keep(colInvoice), InvoiceIssuer: r.Keep(colIssuer),
		ResourceID: r.Keep(colResource), AvailabilityZone: r.Keep(colZone),
		Service: r.Keep(colProduct), UsageType: r.Keep(colUsageType), Operation: r.Keep(colOperation),
		Currency: r.Keep(colCurrency), PricingCurrency: r.Keep(colPricingCurrency),
		ConsumedUnit: r.Keep(colPricingUnit), PricingUnit: r.Keep(colPricingUnit),
		File: d.file, Row: r.Row(),
	}
	if l.Currency == "" {
		return nil, r.Error(colCurrency, errors.New("no currency"))
	}
	if l.ChargeType == "" {
		return nil, r.Error(colLineType, errors.New("no line type"))
	}
	var err error
	if l.ChargePeriod, err = d.span(); err != nil {
		return nil, err
	}
	if err := d.numbers(l); err != nil {
		return nil, err
	}
	if err := d.identify(l); err != nil {
		return nil, err
	}
	if err := d.classify(l); err != nil {
		return nil, err
	}
	d.tagErr = nil
	l.LoadTags = d.loadTags
	if d.blocks.Hold(l) {
		return nil, d.tagErr
	}
	return l, nil
}

func (d *decoder) span() (period.Span, error) {
	start, err := d.rows.Time(colStart)
	if err != nil {
		return period.Span{}, err
	}
	end, err := d.rows.Time(colEnd)
	if err != nil {
		return period.Span{}, err
	}
	if end.Before(start) {
		return period.Span{}, d.rows.Error(colEnd, errors.New("the usage ends before it starts"))
	}
	return period.Span{Start: start, End: end}, nil
}

func (d *decoder) numbers(l *billing.Line) (err error) {
	if l.ConsumedQuantity, err = d.rows.Amount(colUsageAmount); err != nil {
		return err
	}
	l.PricingQuantity = l.ConsumedQuantity
	if !l.ConsumedQuantity.Valid {
		l.ConsumedUnit, l.PricingUnit = "", ""
	}
	if l.ListUnitPrice, err = d.rows.Amount(colOnDemandRate); err != nil {
		return err
	}
	l.Costs.List, err = d.rows.Amount(colOnDemandCost)
	return err
}

// identify finds the machine, its type, and the commitment.
func (d *decoder) identify(l *billing.Line) error {
	r := d.rows
	l.Region, l.SKU, l.InstanceType = r.Keep(colRegion), r.Keep(colSKU), r.Keep(colInstanceType)
	if l.InstanceType == "" {
		l.InstanceType = d.typeOf(l.UsageType)
	}
	if d.needProduct {
		product, err := r.Map(colProductMap)
		if err != nil {
			return err
		}
		l.InstanceType = first(l.InstanceType, product["instance_type"])
		l.Region = first(l.Region, product["region_code"])
		l.SKU = first(l.SKU, product["sku"])
	}
	if l.InstanceType == "" && isSpot(l) {
		l.InstanceType = ec2.Type(firstWord(l.Description))
	}
	if l.InstanceType == "" && l.ChargeType == "Tax" {
		l.InstanceType = ec2.TypeOf(ec2.TaxedUsage(l.Description))
	}
	if l.InstanceType == "" {
		if l.InstanceFamily = ec2.FamilyOf(l.UsageType); l.InstanceFamily == "" && isSavingsPlanFee(l.ChargeType) {
			l.InstanceFamily = r.Keep(colSPFamily)
		}
	}
	l.InstanceID = ec2.InstanceID(l.ResourceID)
	l.Commitment = first(r.Keep(colSPARN), r.Keep(colRIARN))
	l.Reservation = r.Keep(colCapacityARN)
	if l.Reservation == "" && strings.Contains(l.ResourceID, ":capacity-reservation/") {
		l.Reservation = l.ResourceID
	}
	return nil
}

// typeOf remembers the type in each usage type: an export has few.
func (d *decoder) typeOf(usageType string) string {
	t, ok := d.types[usageType]
	if !ok {
		t = ec2.TypeOf(usageType)
		if len(d.types) < maxTypes {
			d.types[usageType] = t
		}
	}
	return t
}

const maxTypes = 1 << 14

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func (d *decoder) loadTags() {
	l := &d.out
	if l.Tags != nil || d.tagErr != nil {
		return
	}
	old, err := d.rows.Map(colResourceTags)
	if err == nil {
		l.Tags, err = d.rows.Map(colTags)
	}
	if err != nil {
		d.tagErr, l.Tags = err, nil
		return
	}
	switch {
	case len(l.Tags) == 0:
		l.Tags = old
	case len(old) > 0:
		both := make(map[string]string, len(old)+len(l.Tags))
		for _, m := range []map[string]string{l.Tags, old} {
			for k, v := range m {
				both[k] = v
			}
		}
		l.Tags = both
	}
}

// notes says what the rows taught, in a stable order.
func (d *decoder) notes() []string {
	out := make([]string, 0, len(d.headNotes))
	for n := range d.headNotes {
		out = append(out, n)
	}
	sort.Strings(out)
	if d.splitRows > 0 {
		out = append(out, fmt.Sprintf("%d rows of split cost allocation skipped: they repeat the cost of their instances", d.splitRows))
	}
	if d.noNet > 0 {
		out = append(out, fmt.Sprintf("%d lines have no net cost on a net bill: taken at their unblended cost, discount lines at 0", d.noNet))
	}
	for _, t := range sortedKeys(d.unknown) {
		out = append(out, fmt.Sprintf("%d lines of unknown type %s: classed as other at their unblended cost", d.unknown[t], t))
	}
	for _, currency := range sortedKeys(d.spResidual) {
		if a := d.spResidual[currency]; a.Sign() != 0 {
			out = append(out, fmt.Sprintf("savings plan negations miss what they offset by %s %s: billed cost differs from the sum of %s by it", a, currency, columns[d.unblended]))
		}
	}
	return append(out, d.blocks.Notes()...)
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}
