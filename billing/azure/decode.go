package azure

import (
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"sort"
	"strings"
	"time"

	"gpuledger/billing"
	"gpuledger/billing/azurevm"
	"gpuledger/billing/money"
	"gpuledger/billing/period"
	"gpuledger/billing/table"
)

// kind is what an export's costs are.
type kind int

const (
	actual    kind = iota + 1 // as invoiced: purchases of commitments, and usage they cover at 0
	amortized                 // purchases spread over the usage they cover
	both                      // a month without commitments is the same in either
)

func (k kind) String() string { return [...]string{"", "actual", "amortized", "actual"}[k] }

// decoder turns rows of one delivery into lines.
type decoder struct {
	delivery billing.Delivery
	single   kind // the delivery has this one kind of export; 0: an actual and an amortized one
	currency string

	rows *table.Reader
	file string
	kind kind

	out     billing.Line
	tagErr  error
	loaded  bool
	unknown map[string]int64
	dates   map[string]time.Time
}

func (d *decoder) start(rows *table.Reader, file string, k kind) error {
	d.rows, d.file, d.kind = rows, file, k
	_, err := d.missing(rows.Has)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// missing checks a file's columns.
func (d *decoder) missing(has func(int) bool) (notes []string, err error) {
	var absent []string
	for _, c := range required {
		if !has(c) {
			absent = append(absent, columns[c])
		}
	}
	if !has(colCurrency) && d.currency == "" {
		absent = append(absent, columns[colCurrency]+" (or currency: in the source's configuration)")
	}
	if len(absent) > 0 {
		return nil, fmt.Errorf("column %s is in none of its spellings in the header; is it a Cost Management export of usage and charges?", strings.Join(absent, ", "))
	}
	for _, o := range degraded {
		if !has(o.col) {
			notes = append(notes, fmt.Sprintf("%s: %s is not in the export", o.lost, columns[o.col]))
		}
	}
	if !has(colPayGPrice) && !has(colPayGCost) && !has(colUnitPrice) {
		notes = append(notes, "list cost unavailable: the export has no PayGPrice, PaygCostInBillingCurrency or UnitPrice")
	}
	return notes, nil
}

// line decodes the current row; nil for a row that the other export of the month counts.
func (d *decoder) line() (*billing.Line, error) {
	r := d.rows
	l := &d.out
	*l = billing.Line{
		Provider: "Microsoft", BillingPeriod: d.delivery.BillingPeriod, Component: billing.Node,
		ChargeType: orText(r.Keep(colChargeType), "Usage"), Description: orText(r.Keep(colProduct), r.Keep(colMeter)),
		PayerAccount: r.Keep(colAccount), UsageAccount: r.Keep(colSubscription), InvoiceID: r.Keep(colInvoice), InvoiceIssuer: "Microsoft",
		ResourceID: r.Keep(colResource), Region: r.Keep(colLocation), AvailabilityZone: r.Keep(colZone),
		Service: r.Keep(colCategory), SKU: r.Keep(colMeterID), UsageType: r.Keep(colMeter), Operation: r.Keep(colService),
		Commitment: orText(r.Keep(colBenefit), r.Keep(colReservation)),
		Currency:   orText(r.Keep(colCurrency), d.currency), PricingCurrency: r.Keep(colPricingCurrency),
		File: d.file, Row: r.Row(),
	}
	if !iso4217.MatchString(l.Currency) {
		return nil, r.Error(colCurrency, fmt.Errorf("%q is not a currency code of ISO 4217, such as USD", l.Currency))
	}
	day, err := d.day()
	if err != nil {
		return nil, err
	}
	if m := d.delivery.BillingPeriod; !day.Before(m.Next().Start()) {
		return nil, r.Error(colDate, fmt.Errorf("the day is after the billing period %s", m))
	}
	l.ChargePeriod = period.Span{Start: day, End: day.AddDate(0, 0, 1)}
	if err := d.numbers(l); err != nil {
		return nil, err
	}
	cost, err := r.Must(colCost)
	if err != nil {
		return nil, err
	}
	if err := d.identify(l); err != nil {
		return nil, err
	}
	if !d.classify(l, cost) {
		return nil, nil
	}
	d.tagErr, d.loaded = nil, false
	l.LoadTags = d.loadTags
	return l, nil
}

var iso4217 = regexp.MustCompile(`^[A-Z]{3}$`)

func orText(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// day reads the day of usage, which is one of UTC, in each of the three forms of the
// exports. Months come first where slashes stand.
func (d *decoder) day() (time.Time, error) {
	text := d.rows.Text(colDate)
	if t, ok := d.dates[text]; ok {
		return t, nil
	}
	t, err := parseDay(text)
	if err != nil {
		return t, d.rows.Error(colDate, err)
	}
	d.dates[strings.Clone(text)] = t
	return t, nil
}

func parseDay(text string) (time.Time, error) {
	for _, layout := range []string{"2006-01-02", "1/2/2006", "2006-01-02T15:04:05Z", "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04Z"} {
		if t, err := time.Parse(layout, text); err == nil {
			if y := t.Year(); y < 2000 || y > 2200 {
				return time.Time{}, fmt.Errorf("date %q is not of this century", text)
			}
			return t.UTC().Truncate(24 * time.Hour), nil
		}
	}
	if text == "" {
		return time.Time{}, errors.New("no value where a date is required")
	}
	return time.Time{}, fmt.Errorf("%q is not a date like 2026-10-05 or 10/05/2026", text)
}

// numbers reads quantities and prices. A quantity is in units already, whatever block
// the unit of measure names ("10 Hours"): an hour of a machine is 1.
func (d *decoder) numbers(l *billing.Line) (err error) {
	r := d.rows
	if l.ConsumedQuantity, err = r.Amount(colQuantity); err != nil {
		return err
	}
	l.ConsumedUnit = r.Keep(colUnit)
	if hoursUnit.MatchString(l.ConsumedUnit) {
		l.ConsumedUnit = "Hours"
	}
	l.PricingQuantity, l.PricingUnit = l.ConsumedQuantity, l.ConsumedUnit
	if !l.ConsumedQuantity.Valid {
		l.ConsumedUnit, l.PricingUnit = "", ""
	}
	if l.ExchangeRate, err = r.Amount(colExchangeRate); err != nil {
		return err
	}
	return d.list(l)
}

var hoursUnit = regexp.MustCompile(`(?i)^\d+ hours?$`)

// list works out the list cost: the pay-as-you-go cost where the export has it, else the
// pay-as-you-go price, else the unit price, times the quantity. A 0 of the first two
// stands where there is none, as on what a reservation covers.
func (d *decoder) list(l *billing.Line) error {
	r := d.rows
	for _, col := range []int{colPayGCost, colPayGPrice, colUnitPrice} {
		v, err := r.Amount(col)
		if err != nil {
			return err
		}
		if !v.Valid || v.Amount.Sign() == 0 {
			continue
		}
		if col == colPayGCost {
			l.Costs.List = v
			return nil
		}
		if !l.ConsumedQuantity.Valid || r.Has(colPayGCost) { // prices may be in another currency then
			continue
		}
		product, err := times(v.Amount, l.ConsumedQuantity.Amount)
		if err != nil {
			return r.Error(col, err)
		}
		l.ListUnitPrice, l.Costs.List = v, money.Some(product)
		return nil
	}
	return nil
}

// times multiplies exactly; more than 24 decimals are refused.
func times(a, b money.Amount) (money.Amount, error) {
	one := new(big.Int).Exp(big.NewInt(10), big.NewInt(money.Scale), nil)
	n, rest := new(big.Int).QuoRem(new(big.Int).Mul(a.Big(), b.Big()), one, new(big.Int))
	if rest.Sign() != 0 {
		return money.Amount{}, fmt.Errorf("%s × %s has more than %d decimals", a, b, money.Scale)
	}
	return money.FromBig(n)
}

// identify finds the machine and its size. The resource of a scale set's line is the
// set; the machine stands in AdditionalInfo.
func (d *decoder) identify(l *billing.Line) error {
	info, err := d.object(colInfo)
	if err != nil {
		return err
	}
	l.InstanceType = azurevm.Size(info["ServiceType"])
	l.InstanceID = azurevm.InstanceID(l.ResourceID, orText(info["VMName"], info["VmName"]))
	l.Reservation = info["VMCapacityReservationId"]
	if l.Reservation == "" && strings.Contains(strings.ToLower(l.ResourceID), "/capacityreservationgroups/") {
		l.Reservation = l.ResourceID
	}
	if l.Commitment == "" {
		l.Commitment = info["ReservationId"]
	}
	return nil
}

// object reads names and values as JSON, with or without the braces around them.
func (d *decoder) object(col int) (map[string]string, error) {
	text := strings.TrimSpace(d.rows.Text(col))
	if text == "" {
		return nil, nil
	}
	if text[0] != '{' {
		text = "{" + text + "}"
	}
	m, err := table.ParseObject(text)
	if err != nil {
		return nil, d.rows.Error(col, err)
	}
	return m, nil
}

func (d *decoder) loadTags() {
	if !d.loaded {
		d.loaded = true
		d.out.Tags, d.tagErr = d.object(colTags)
	}
}

// notes says what the rows taught, in a stable order.
func (d *decoder) notes() []string {
	var out []string
	for t, n := range d.unknown {
		out = append(out, fmt.Sprintf("%d lines of unknown charge type %s: classed as other", n, t))
	}
	sort.Strings(out)
	return out
}
