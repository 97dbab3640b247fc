package fleet

import (
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"gpuledger/billing/period"
)

// The columns of the delivery, in the order of the export's query.
const (
	colBillType = iota
	colBillingEntity
	colPeriodEnd
	colPeriodStart
	colInvoiceID
	colInvoicingEntity
	colPayer
	colCapacityARN
	colCostCategory
	colLineItemID
	colTimeInterval
	colZone
	colCurrency
	colLegalEntity
	colDescription
	colLineType
	colOperation
	colProduct
	colResource
	colTaxType
	colUnblendedCost
	colUnblendedRate
	colAccount
	colUsageAmount
	colEnd
	colStart
	colUsageType
	colPricingCurrency
	colOnDemandCost
	colOnDemandRate
	colTerm
	colUnit
	colProductMap
	colFamily
	colInstanceType
	colProductFamily
	colRegion
	colServiceCode
	colSKU
	colRIEffective
	colRIARN
	colRIUnusedUpfront
	colRIUnusedRecurring
	colResourceTags
	colSPFamily
	colSPARN
	colSPEffective
	colSPRate
	colSPTotal
	colSPUsed
	numColumns
)

// columnNames are those of COST_AND_USAGE_REPORT with discounts as lines of their
// own (INCLUDE_MANUAL_DISCOUNT_COMPATIBILITY): it has no net columns.
var columnNames = [numColumns]string{
	"bill_bill_type", "bill_billing_entity", "bill_billing_period_end_date", "bill_billing_period_start_date", "bill_invoice_id",
	"bill_invoicing_entity", "bill_payer_account_id", "capacity_reservation_capacity_reservation_arn", "cost_category",
	"identity_line_item_id", "identity_time_interval", "line_item_availability_zone", "line_item_currency_code",
	"line_item_legal_entity", "line_item_line_item_description", "line_item_line_item_type", "line_item_operation",
	"line_item_product_code", "line_item_resource_id", "line_item_tax_type", "line_item_unblended_cost", "line_item_unblended_rate",
	"line_item_usage_account_id", "line_item_usage_amount", "line_item_usage_end_date", "line_item_usage_start_date",
	"line_item_usage_type", "pricing_currency", "pricing_public_on_demand_cost", "pricing_public_on_demand_rate", "pricing_term",
	"pricing_unit", "product", "product_instance_family", "product_instance_type", "product_product_family", "product_region_code",
	"product_servicecode", "product_sku", "reservation_effective_cost", "reservation_reservation_a_r_n",
	"reservation_unused_amortized_upfront_fee_for_billing_period", "reservation_unused_recurring_fee", "resource_tags",
	"savings_plan_instance_type_family", "savings_plan_savings_plan_a_r_n", "savings_plan_savings_plan_effective_cost",
	"savings_plan_savings_plan_rate", "savings_plan_total_commitment_to_date", "savings_plan_used_commitment",
}

// row is one line of the bill; "" is no value.
type row struct {
	start time.Time
	cells [numColumns]string
}

// bill returns the lines of the month in order of time.
func (f *Fleet) bill() []row {
	var out []row
	for i := range f.Nodes {
		n := &f.Nodes[i]
		for _, h := range n.Billed.Intersect(f.Month.Span()).Hours() {
			out = append(out, f.nodeHour(n, h)...)
		}
	}
	for i := range f.Charges {
		out = append(out, f.charge(&f.Charges[i]))
	}
	slices.SortStableFunc(out, func(a, b row) int { return a.start.Compare(b.start) })
	for i := range out {
		out[i].cells[colLineItemID] = suffix(fmt.Sprintf("%s/line/%d", f.Month, i), 40)
	}
	return out
}

// Hours are an instance's billed hours within a window, as AWS writes them: six
// decimals.
func Hours(window period.Span) string {
	return round(new(big.Rat).SetFrac64(int64(window.Duration()), int64(time.Hour)), 6)
}

// SpotRate is the price of a Spot node in an hour, in USD with six decimals.
func (n *Node) SpotRate(hour time.Time) string {
	micros := between(n.InstanceID+hour.UTC().Format(time.RFC3339), n.SpotMicros[0], n.SpotMicros[1])
	return round(big.NewRat(micros, 1_000_000), 6)
}

// Times multiplies two decimals, rounded half up to the ten decimals of AWS.
func Times(a, b string) string {
	return round(new(big.Rat).Mul(rat(a), rat(b)), 10)
}

func rat(s string) *big.Rat {
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		panic("fleet: " + s + " is not a decimal number") // a fleet is written by hand or by this package
	}
	return r
}

// round renders a number without trailing zeros.
func round(r *big.Rat, decimals int) string {
	s := r.FloatString(decimals)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

// nodeHour returns the lines of one instance and hour: one, or one for each
// commitment that covers a part of it.
func (f *Fleet) nodeHour(n *Node, hour time.Time) []row {
	window := period.Hour(hour)
	part := window.Intersect(n.Billed)
	r := f.row(window)
	r.set(colProduct, "AmazonEC2", colServiceCode, "AmazonEC2", colProductFamily, "Compute Instance",
		colResource, n.InstanceID, colZone, n.Zone, colOperation, "RunInstances", colUnit, "Hrs",
		colUsageType, "BoxUsage:"+n.Type, colInstanceType, n.Type, colFamily, f.instanceFamily(n), colOnDemandRate, n.Price,
		colSKU, strings.ToUpper(suffix("sku/"+n.Type, 16)),
		colProductMap, object("instance_type", n.Type, "operating_system", "Linux", "tenancy", "Shared", "vcpu", fmt.Sprint(n.CPUs)),
		colResourceTags, object("aws_eks_cluster_name", f.Cluster, "user_node_pool", n.Pool))
	hours := Hours(part)
	switch n.Purchase {
	case OnDemand:
		r.set(colLineType, "Usage", colTerm, "OnDemand", colUnblendedRate, n.Price,
			colDescription, "$"+n.Price+" per On Demand Linux "+n.Type+" Instance Hour")
		return []row{r.priced(hours, n.Price, n.Price)}
	case Spot:
		rate := n.SpotRate(hour)
		r.set(colLineType, "Usage", colTerm, "Spot", colUnblendedRate, rate, colOperation, "RunInstances:SV001",
			colUsageType, "SpotUsage:"+n.Type, colInstanceType, "", colFamily, "", colProductMap, "",
			colDescription, n.Type+" Linux/UNIX Spot Instance-hour in US East (Virginia) in VPC Zone #7")
		if hour.Hour()%3 == 0 {
			r.set(colUsageType, "SpotUsage") // the description alone names the type
		}
		return []row{r.priced(hours, rate, n.Price)}
	case SavingsPlan:
		r.set(colLineType, "SavingsPlanCoveredUsage", colTerm, "OnDemand", colUnblendedRate, n.Price,
			colDescription, "$"+n.Price+" per On Demand Linux "+n.Type+" Instance Hour", colSPRate, n.Rate,
			colSPEffective, Times(hours, n.Rate), colSPARN, n.Commitments[0].ARN, colSPFamily, f.instanceFamily(n))
		return []row{r.priced(hours, n.Price, n.Price)}
	}
	var out []row
	for _, c := range n.Commitments {
		covered := part.Intersect(c.Span)
		if covered.Empty() {
			continue
		}
		hours := Hours(covered)
		one := r
		one.set(colLineType, "DiscountedUsage", colTerm, "Reserved", colUnblendedRate, "0", colRIARN, c.ARN,
			colDescription, "Linux/UNIX (Amazon VPC), "+n.Type+" reserved instance applied",
			colRIEffective, Times(hours, n.Rate))
		out = append(out, one.priced(hours, "0", n.Price))
	}
	return out
}

func (f *Fleet) instanceFamily(n *Node) string {
	family, _, _ := strings.Cut(n.Type, ".")
	return family
}

func (f *Fleet) charge(c *Charge) row {
	r := f.row(c.Span)
	r.set(colLineType, c.Type, colProduct, c.Product, colServiceCode, c.Product, colUsageType, c.UsageType, colOperation, c.Operation,
		colResource, c.Resource, colDescription, c.Description, colUsageAmount, c.Quantity, colUnit, c.Unit,
		colUnblendedCost, c.Cost, colOnDemandCost, c.List, colInstanceType, c.InstanceType, colRIARN, c.ReservationARN,
		colRIUnusedRecurring, c.UnusedRecurring, colSPARN, c.PlanARN, colSPFamily, c.PlanFamily, colSPTotal, c.PlanTotal,
		colSPUsed, c.PlanUsed, colCapacityARN, c.CapacityReservation, colTaxType, c.TaxClass)
	if c.LegalEntity != "" {
		r.set(colLegalEntity, c.LegalEntity)
	}
	return r
}

// row starts a line with what every line has.
func (f *Fleet) row(span period.Span) row {
	r := row{start: span.Start}
	month := f.Month.Span()
	r.set(colBillType, "Anniversary", colBillingEntity, "AWS", colPeriodStart, stamp(month.Start), colPeriodEnd, stamp(month.End),
		colInvoiceID, fmt.Sprint(between("invoice/"+f.Month.String(), 2_100_000_000, 2_900_000_000)),
		colInvoicingEntity, "Amazon Web Services, Inc.", colLegalEntity, "Amazon Web Services, Inc.",
		colPayer, f.Payer, colAccount, f.Account, colCurrency, "USD", colPricingCurrency, "USD", colRegion, f.Region,
		colStart, stamp(span.Start), colEnd, stamp(span.End),
		colTimeInterval, span.Start.UTC().Format(time.RFC3339)+"/"+span.End.UTC().Format(time.RFC3339), colCostCategory, "{}")
	return r
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func (r *row) set(kv ...any) {
	for i := 0; i+1 < len(kv); i += 2 {
		r.cells[kv[i].(int)] = kv[i+1].(string)
	}
}

func (r row) priced(hours, rate, onDemand string) row {
	r.set(colUsageAmount, hours, colUnblendedCost, Times(hours, rate), colOnDemandCost, Times(hours, onDemand))
	return r
}

// object renders a map column as CSV carries it: JSON, names in order.
func object(kv ...string) string {
	b, err := json.Marshal(pairs(kv...))
	if err != nil {
		panic(err) // a map of strings always marshals
	}
	return string(b)
}
