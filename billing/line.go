// Package billing says what one bill line is, whoever sent it. The vocabulary is
// FOCUS (https://focus.finops.org); a provider's own words are translated in
// billing/aws, billing/focus and their siblings.
package billing

import (
	"time"

	"gpuledger/billing/money"
	"gpuledger/billing/period"
)

// Class says what a line is for, which decides who can pay it. Only NodeUsage is
// split by pods.
type Class string

// The classes. Apart from NodeUsage each is also the remainder category that the
// line's cost goes to when the line is in scope.
const (
	NodeUsage        Class = "node_usage"        // an instance's own hours
	CommitmentUnused Class = "commitment_unused" // the unused part of a reservation or savings plan
	CapacityUnused   Class = "capacity_unused"   // reserved capacity that no instance used
	Discount         Class = "discount"          // EDP, private rates, bundled discounts
	Credit           Class = "credit"
	Refund           Class = "refund"
	Tax              Class = "tax"
	Fee              Class = "fee" // purchases and upfront fees; covered ones have effective cost 0
	Other            Class = "other"
)

// Component says which part of a node a line prices. Providers that bill the
// node as one line use Node.
type Component string

// The components of a node's price.
const (
	Node   Component = "node"
	GPU    Component = "gpu"
	CPU    Component = "cpu"
	Memory Component = "memory"
)

// Costs are the four FOCUS cost metrics of a line, in the line's currency.
// Billed is what the invoice says; Effective is amortised; List and Contracted
// are absent where the provider does not state them.
type Costs struct {
	Billed     money.Amount
	Effective  money.Amount
	List       money.NullAmount
	Contracted money.NullAmount
}

// Line is one line of a bill.
type Line struct {
	Provider      string // AWS, Google Cloud, Microsoft, … as FOCUS ServiceProviderName
	BillingPeriod period.Month
	ChargePeriod  period.Span // UTC, end exclusive
	Class         Class
	Component     Component

	ChargeCategory string // FOCUS: Usage, Purchase, Tax, Credit, Adjustment
	ChargeClass    string // "" or Correction
	ChargeType     string // the provider's own word: SavingsPlanCoveredUsage, …
	Description    string

	PayerAccount  string // FOCUS BillingAccountId
	UsageAccount  string // FOCUS SubAccountId
	InvoiceID     string // "" while the invoice is provisional
	InvoiceDetail string
	InvoiceIssuer string

	ResourceID       string // as delivered: i-0abc, an ARN, an Azure resource path
	InstanceID       string // the last segment that names the machine, "" where there is none
	InstanceType     string // p5.48xlarge; "" where the line does not say
	InstanceFamily   string // p5, where a line names a family and no type (an EC2 Instance Savings Plan)
	Region           string
	AvailabilityZone string

	Service     string // FOCUS ServiceName, or the provider's product code
	SKU         string
	UsageType   string
	Operation   string
	Commitment  string // CommitmentDiscountId: reservation or savings plan
	Reservation string // CapacityReservationId
	// Tags are read-only: lines with equal tags share one map. They are not part
	// of what keep sees unless it calls LoadTags, which is set only while keep
	// looks at the line, and does nothing the second time.
	Tags     map[string]string
	LoadTags func()

	Costs            Costs
	Currency         string // ISO 4217
	PricingCurrency  string
	ExchangeRate     money.NullAmount // the provider's own rate, pricing to billing currency
	ConsumedQuantity money.NullAmount
	ConsumedUnit     string
	PricingQuantity  money.NullAmount
	PricingUnit      string
	// PerInstance is how many units of the quantities an instance uses in an hour, where
	// Component is not Node: 12 of a line that counts the cores of a machine with 12. 0: the
	// quantities tell no instance's time.
	PerInstance         int64
	ListUnitPrice       money.NullAmount
	ContractedUnitPrice money.NullAmount

	// ByBase marks a line of Bases.Lines: it is the part of others that stay out of scope.
	ByBase bool

	// Count is how many rows of the bill the line adds up, where the source can; 0 is one.
	// Such a line is for the control totals alone and never kept. It is not part of the
	// line's identity.
	Count int64

	File string // where the line stood, for error messages; not part of its identity
	Row  int64  // 1 is the first data row
}

// InstanceHours returns the instance time a NodeUsage line bills, in hours, and false
// where neither quantity is a time, or one of a part of the machine that does not say how
// many of it there are. Seconds and minutes become hours of twelve decimals. A correction that
// takes usage back has a negative one; a negative quantity that costs something is none.
func (l *Line) InstanceHours() (money.Amount, bool) {
	if l.Component != Node && l.Component != "" && l.PerInstance <= 0 {
		return money.Amount{}, false
	}
	for _, q := range []struct {
		quantity money.NullAmount
		unit     string
	}{{l.ConsumedQuantity, l.ConsumedUnit}, {l.PricingQuantity, l.PricingUnit}} {
		if perHour, ok := unitsPerHour(q.unit); ok && q.quantity.Valid && (q.quantity.Amount.Sign() >= 0 || l.Costs.Billed.Sign() <= 0 && l.Costs.Effective.Sign() <= 0) {
			return inHours(q.quantity.Amount, perHour*max(1, l.PerInstance)), true
		}
	}
	return money.Amount{}, false
}

// BilledMicros returns InstanceHours in whole microseconds: 0.296111 h is
// 1,065,999,600 µs.
func (l *Line) BilledMicros() (int64, bool) {
	hours, ok := l.InstanceHours()
	return hoursToMicros(hours), ok
}

// Delivery is one complete set of lines of one billing period, as a manifest
// names it (never a listing). A delivery supersedes the one before it as a whole.
type Delivery struct {
	Format        string // "AWS CUR 2.0", "FOCUS 1.0"
	BillingPeriod period.Month
	ID            string // the provider's execution or assembly id, "" where it has none
	Manifest      string // key of the manifest, "" where there is none
	Files         []File
	Columns       []string  // as the manifest or the first header lists them
	Submitted     time.Time // zero where unknown
	// Token changes whenever the content may have changed: a SHA-256 over the
	// manifest and every file's path, size and entity tag.
	Token [32]byte
	// Notes say in a sentence each what this delivery cannot tell, such as a
	// missing list-cost column.
	Notes []string
}

// File is one data file of a delivery.
type File struct {
	Key  string
	Size int64
	ETag string
}
