package gcp

import (
	"fmt"
	"slices"
	"strings"
)

// The columns of the detailed usage cost export that the decoder reads; those of a record
// follow its name and a point. Their order is the index a cell is addressed by.
const (
	colAccount = iota
	colServiceID
	colService
	colSKUID
	colSKU
	colStart
	colEnd
	colProject
	colProjectNumber
	colProjectLabels
	colLabels
	colSystemLabels
	colTags
	colRegion
	colZone
	colExportTime
	colCost
	colCurrency
	colRate
	colAmount
	colUnit
	colPricingAmount
	colPricingUnit
	colCredits
	colMonth
	colCostType
	colAdjustmentMode
	colAdjustmentType
	colAdjustmentText
	colListCost
	colContractCost
	colListPrice
	colEffectivePrice
	colResource
	colGlobalName
	colSubscription
	colSeller
	// What a query that adds rows up has beside them.
	colCount
	colCreditSum
	numCols
)

var columns = [numCols]string{
	colAccount: "billing_account_id", colServiceID: "service.id", colService: "service.description",
	colSKUID: "sku.id", colSKU: "sku.description", colStart: "usage_start_time", colEnd: "usage_end_time",
	colProject: "project.id", colProjectNumber: "project.number", colProjectLabels: "project.labels",
	colLabels: "labels", colSystemLabels: "system_labels", colTags: "tags",
	colRegion: "location.region", colZone: "location.zone", colExportTime: "export_time",
	colCost: "cost", colCurrency: "currency", colRate: "currency_conversion_rate",
	colAmount: "usage.amount", colUnit: "usage.unit", colPricingAmount: "usage.amount_in_pricing_units", colPricingUnit: "usage.pricing_unit",
	colCredits: "credits", colMonth: "invoice.month", colCostType: "cost_type",
	colAdjustmentMode: "adjustment_info.mode", colAdjustmentType: "adjustment_info.type", colAdjustmentText: "adjustment_info.description",
	colListCost: "cost_at_list", colContractCost: "cost_at_effective_price_default",
	colListPrice: "price.list_price", colEffectivePrice: "price.effective_price",
	colResource: "resource.name", colGlobalName: "resource.global_name", colSubscription: "subscription.instance_id", colSeller: "seller_name",
	colCount: "rows", colCreditSum: "credit_sum",
}

var required = []int{colCost, colCurrency, colMonth, colStart, colEnd, colCostType, colCredits, colSKU}

var degraded = []struct {
	col  int
	lost string
}{
	{colListCost, "list cost unavailable"},
	{colContractCost, "contracted cost unavailable"},
	{colSystemLabels, "machine types unavailable"},
	{colLabels, "labels unavailable"},
	{colAccount, "payer account unavailable"},
	{colProject, "usage account unavailable"},
	{colZone, "no line can be matched to a node, for names of machines repeat between zones"},
}

// missing checks a table's columns: an error names those without which no cost is right,
// the notes say what cannot be told.
func missing(has func(int) bool) (notes []string, err error) {
	if has(colCost) && !has(colResource) && !has(colGlobalName) {
		return nil, fmt.Errorf("no column resource.name: this is the standard usage cost export, which does not say which machine a line is for; switch on the detailed usage cost export and read its table gcp_billing_export_resource_v1_…")
	}
	var absent []string
	for _, c := range required {
		if !has(c) {
			absent = append(absent, columns[c])
		}
	}
	if len(absent) > 0 {
		return nil, fmt.Errorf("column %s is not there, and no cost is right without it: this is not a table of the detailed usage cost export (gcp_billing_export_resource_v1_…)", strings.Join(absent, ", "))
	}
	for _, d := range degraded {
		if !has(d.col) {
			notes = append(notes, fmt.Sprintf("%s: there is no column %s", d.lost, columns[d.col]))
		}
	}
	return notes, nil
}

func hasIn(names []string) func(int) bool {
	return func(col int) bool { return slices.Contains(names, columns[col]) }
}
