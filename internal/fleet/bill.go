package fleet

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strconv"
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
type row struct{ cells [numColumns]string }

// biller makes the lines of a stretch of the month. It keeps what repeats: each
// node's cells and the products of a few prices and quantities.
type biller struct {
	f        *Fleet
	nodes    []row
	charges  map[int64][]*Charge // by the hour they start in
	products map[[2]string]string
}

func (f *Fleet) biller() *biller {
	b := &biller{f: f, charges: map[int64][]*Charge{}, products: map[[2]string]string{}}
	for i := range f.Nodes {
		b.nodes = append(b.nodes, f.nodeRow(&f.Nodes[i]))
	}
	for i := range f.Charges {
		c := &f.Charges[i]
		h := period.Hour(c.Start).Start.Unix()
		b.charges[h] = append(b.charges[h], c)
	}
	return b
}

// lines passes on the lines that start in the span, hour by hour: the nodes' in
// their order, then the charges'.
func (b *biller) lines(span period.Span, emit func(*row) error) error {
	for _, hour := range span.Hours() {
		var out []row
		for i := range b.f.Nodes {
			n := &b.f.Nodes[i]
			if part := period.Hour(hour).Intersect(n.Billed); !part.Empty() {
				out = append(out, b.nodeHour(n, b.nodes[i], part)...)
			}
		}
		for _, c := range b.charges[hour.Unix()] {
			out = append(out, b.f.charge(c))
		}
		for i := range out {
			out[i].cells[colLineItemID] = suffix("line/"+stamp(hour)+strconv.Itoa(i), 40)
			if err := emit(&out[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// times is Times, remembered.
func (b *biller) times(x, y string) string {
	k := [2]string{x, y}
	p, ok := b.products[k]
	if !ok {
		p = Times(x, y)
		if len(b.products) < 1<<12 {
			b.products[k] = p
		}
	}
	return p
}

// Hours are an instance's billed hours within a window, as AWS writes them: six
// decimals.
func Hours(window period.Span) string {
	if window.Duration() == time.Hour {
		return "1"
	}
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

// nodeRow is what all lines of an instance have.
func (f *Fleet) nodeRow(n *Node) row {
	family, _, _ := strings.Cut(n.Type, ".")
	r := f.row()
	r.set(colProduct, "AmazonEC2", colServiceCode, "AmazonEC2", colProductFamily, "Compute Instance",
		colResource, n.InstanceID, colZone, n.Zone, colOperation, "RunInstances", colUnit, "Hrs",
		colUsageType, "BoxUsage:"+n.Type, colInstanceType, n.Type, colFamily, family, colOnDemandRate, n.Price,
		colSKU, strings.ToUpper(suffix("sku/"+n.Type, 16)),
		colProductMap, object("instance_type", n.Type, "operating_system", "Linux", "tenancy", "Shared", "vcpu", strconv.FormatInt(n.CPUs, 10)),
		colResourceTags, object("aws_eks_cluster_name", f.Cluster, "user_node_pool", n.Pool))
	switch n.Purchase {
	case OnDemand:
		r.set(colLineType, "Usage", colTerm, "OnDemand", colUnblendedRate, n.Price,
			colDescription, "$"+n.Price+" per On Demand Linux "+n.Type+" Instance Hour")
	case Spot:
		r.set(colLineType, "Usage", colTerm, "Spot", colOperation, "RunInstances:SV001",
			colUsageType, "SpotUsage:"+n.Type, colInstanceType, "", colFamily, "", colProductMap, "",
			colDescription, n.Type+" Linux/UNIX Spot Instance-hour in US East (Virginia) in VPC Zone #7")
	case SavingsPlan:
		r.set(colLineType, "SavingsPlanCoveredUsage", colTerm, "OnDemand", colUnblendedRate, n.Price,
			colDescription, "$"+n.Price+" per On Demand Linux "+n.Type+" Instance Hour",
			colSPRate, n.Rate, colSPARN, n.Commitments[0].ARN, colSPFamily, family)
	case Reserved:
		r.set(colLineType, "DiscountedUsage", colTerm, "Reserved", colUnblendedRate, "0",
			colDescription, "Linux/UNIX (Amazon VPC), "+n.Type+" reserved instance applied")
	}
	return r
}

// nodeHour returns the lines of one instance for the billed part of an hour: one,
// or one for each reservation that covers some of it.
func (b *biller) nodeHour(n *Node, r row, part period.Span) []row {
	window := period.Hour(part.Start)
	r.window(window)
	hours := Hours(part)
	switch n.Purchase {
	case Spot:
		rate := n.SpotRate(window.Start)
		r.set(colUnblendedRate, rate)
		if window.Start.Hour()%3 == 0 {
			r.set(colUsageType, "SpotUsage") // the description alone names the type
		}
		return []row{b.priced(r, hours, rate, n.Price)}
	case SavingsPlan:
		r.set(colSPEffective, b.times(hours, n.Rate))
	case Reserved:
		var out []row
		for _, c := range n.Commitments {
			if covered := part.Intersect(c.Span); !covered.Empty() {
				hours := Hours(covered)
				r.set(colRIARN, c.ARN, colRIEffective, b.times(hours, n.Rate))
				out = append(out, b.priced(r, hours, "0", n.Price))
			}
		}
		return out
	}
	return []row{b.priced(r, hours, n.Price, n.Price)}
}

func (b *biller) priced(r row, hours, rate, onDemand string) row {
	r.set(colUsageAmount, hours, colUnblendedCost, b.times(hours, rate), colOnDemandCost, b.times(hours, onDemand))
	return r
}

func (f *Fleet) charge(c *Charge) row {
	r := f.row()
	r.window(c.Span)
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
func (f *Fleet) row() row {
	var r row
	month := f.Month.Span()
	r.set(colBillType, "Anniversary", colBillingEntity, "AWS", colPeriodStart, stamp(month.Start), colPeriodEnd, stamp(month.End),
		colInvoiceID, fmt.Sprint(between("invoice/"+f.Month.String(), 2_100_000_000, 2_900_000_000)),
		colInvoicingEntity, "Amazon Web Services, Inc.", colLegalEntity, "Amazon Web Services, Inc.",
		colPayer, f.Payer, colAccount, f.Account, colCurrency, "USD", colPricingCurrency, "USD", colRegion, f.Region, colCostCategory, "{}")
	return r
}

func (r *row) window(span period.Span) {
	r.set(colStart, stamp(span.Start), colEnd, stamp(span.End),
		colTimeInterval, span.Start.UTC().Format(time.RFC3339)+"/"+span.End.UTC().Format(time.RFC3339))
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func (r *row) set(kv ...any) {
	for i := 0; i+1 < len(kv); i += 2 {
		r.cells[kv[i].(int)] = kv[i+1].(string)
	}
}

// object renders a map column as CSV carries it: JSON, names in order.
func object(kv ...string) string {
	b, err := json.Marshal(pairs(kv...))
	if err != nil {
		panic(err) // a map of strings always marshals
	}
	return string(b)
}
