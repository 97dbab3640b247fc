package aws

import (
	"fmt"
	"slices"
	"strings"

	"gpuledger/billing/table"
)

// The columns of COST_AND_USAGE_REPORT that the decoder reads. Their order is
// the index a cell is addressed by.
const (
	colLineType = iota
	colStart
	colEnd
	colUnblended
	colCurrency
	colNetUnblended
	colOnDemandCost
	colOnDemandRate
	colPricingCurrency
	colPricingUnit
	colResource
	colProduct
	colUsageType
	colOperation
	colUsageAmount
	colDescription
	colPayer
	colAccount
	colZone
	colRegion
	colInvoice
	colIssuer
	colInstanceType
	colFamily
	colSKU
	colProductMap
	colResourceTags
	colTags
	colRIARN
	colRIEffective
	colRINetEffective
	colRIUnusedUpfront
	colRIUnusedRecurring
	colRINetUnusedUpfront
	colRINetUnusedRecurring
	colSPARN
	colSPEffective
	colSPNetEffective
	colSPTotal
	colSPUsed
	colSPFamily
	colCapacityARN
	numCols
)

// AWS spells ARN columns "_a_r_n"; two more spellings are seen in deliveries
// that passed through other tools.
var columns = [numCols]string{
	colLineType: "line_item_line_item_type", colStart: "line_item_usage_start_date", colEnd: "line_item_usage_end_date",
	colUnblended: "line_item_unblended_cost", colCurrency: "line_item_currency_code",
	colNetUnblended: "line_item_net_unblended_cost", colOnDemandCost: "pricing_public_on_demand_cost",
	colOnDemandRate: "pricing_public_on_demand_rate", colPricingCurrency: "pricing_currency", colPricingUnit: "pricing_unit",
	colResource: "line_item_resource_id", colProduct: "line_item_product_code", colUsageType: "line_item_usage_type",
	colOperation: "line_item_operation", colUsageAmount: "line_item_usage_amount", colDescription: "line_item_line_item_description",
	colPayer: "bill_payer_account_id", colAccount: "line_item_usage_account_id", colZone: "line_item_availability_zone",
	colRegion: "product_region_code", colInvoice: "bill_invoice_id", colIssuer: "bill_invoicing_entity",
	colInstanceType: "product_instance_type", colFamily: "product_product_family", colSKU: "product_sku",
	colProductMap: "product", colResourceTags: "resource_tags", colTags: "tags",
	colRIARN: "reservation_reservation_a_r_n", colRIEffective: "reservation_effective_cost", colRINetEffective: "reservation_net_effective_cost",
	colRIUnusedUpfront:      "reservation_unused_amortized_upfront_fee_for_billing_period",
	colRIUnusedRecurring:    "reservation_unused_recurring_fee",
	colRINetUnusedUpfront:   "reservation_net_unused_amortized_upfront_fee_for_billing_period",
	colRINetUnusedRecurring: "reservation_net_unused_recurring_fee",
	colSPARN:                "savings_plan_savings_plan_a_r_n", colSPEffective: "savings_plan_savings_plan_effective_cost",
	colSPNetEffective: "savings_plan_net_savings_plan_effective_cost",
	colSPTotal:        "savings_plan_total_commitment_to_date", colSPUsed: "savings_plan_used_commitment",
	colSPFamily: "savings_plan_instance_type_family", colCapacityARN: "capacity_reservation_capacity_reservation_arn",
}

// required are the columns without which no figure would be right.
var required = []int{colLineType, colStart, colEnd, colUnblended, colCurrency}

// degraded says what is lost with each optional column.
var degraded = []struct {
	col  int
	lost string
}{
	{colOnDemandCost, "list cost unavailable"},
	{colResource, "no line can be matched to a node"},
	{colUsageType, "instance hours are told from the operation alone"},
	{colOperation, "split cost allocation rows cannot be told apart"},
	{colUsageAmount, "billed hours unavailable"},
	{colPricingUnit, "billed hours unavailable"},
	{colPayer, "payer account unavailable"},
	{colAccount, "usage account unavailable"},
	{colProduct, "service unavailable"},
	{colResourceTags, "tags unavailable"},
}

// missing checks a file's columns: an error names all required ones that are
// absent, the notes what cannot be told.
func missing(has func(col int) bool) (notes []string, err error) {
	var absent []string
	for _, c := range required {
		if !has(c) {
			absent = append(absent, columns[c])
		}
	}
	if len(absent) > 0 {
		return nil, fmt.Errorf("column %s is not in the export, and no cost is right without it; add it to the export's query", strings.Join(absent, ", "))
	}
	for _, d := range degraded {
		if !has(d.col) {
			notes = append(notes, fmt.Sprintf("%s: %s is not in the export", d.lost, columns[d.col]))
		}
	}
	return notes, nil
}

// hasIn is the has function of a list of column names. A legacy report has a column for
// each tag.
func hasIn(names []string) func(int) bool {
	return func(col int) bool {
		return slices.ContainsFunc(names, func(n string) bool {
			return n == columns[col] || col == colResourceTags && strings.HasPrefix(n, columns[col]+"_")
		})
	}
}

// basis is the choice between gross and net columns, one for a whole delivery:
// where discounts are columns (net), their separate lines carry nothing, and the
// other way round, so that a mixture would count them twice or not at all.
type basis struct{ net bool }

func chooseBasis(has func(int) bool) (basis, string) {
	if !has(colNetUnblended) {
		return basis{}, "costs are on the unblended basis: discounts, if any, are lines of their own"
	}
	for _, pair := range [][2]int{{colRIEffective, colRINetEffective}, {colSPEffective, colSPNetEffective}} {
		if has(pair[0]) && !has(pair[1]) {
			return basis{}, fmt.Sprintf("costs are on the unblended basis: %s is in the export but %s is not, so discounts given as columns are not applied; add it to the export's query",
				columns[colNetUnblended], columns[pair[1]])
		}
	}
	return basis{net: true}, "costs are on the net basis: discounts are applied in the line_item_net and *_net_effective columns"
}

// pick returns the net column where the basis is net and the file has it.
func (b basis) pick(has func(int) bool, gross, net int) int {
	if b.net && has(net) {
		return net
	}
	return gross
}

func options() table.Options {
	return table.Options{Columns: columns[:], Rename: legacyName, Prefixed: map[int]string{colResourceTags: columns[colResourceTags] + "_"}}
}
