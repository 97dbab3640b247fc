package focus

import (
	"fmt"
	"slices"
	"strings"
)

// The FOCUS columns, and the providers' own x_ columns, that the decoder reads.
// Their order is the index a cell is addressed by.
const (
	colBilled = iota
	colEffective
	colList
	colContracted
	colCurrency
	colBillingStart
	colStart
	colEnd
	colCategory
	colClass
	colDescription
	colBillingAccount
	colSubAccount
	colInvoice
	colInvoiceDetail
	colIssuer
	colServiceProvider
	colProvider
	colResource
	colResourceType
	colResourceName
	colRegion
	colZone
	colService
	colServiceCategory
	colServiceSubcategory
	colSKU
	colSKUMeter
	colSKUPriceDetails
	colCommitment
	colCommitmentStatus
	colCapacity
	colCapacityStatus
	colConsumed
	colConsumedUnit
	colPricing
	colPricingUnit
	colListPrice
	colContractedPrice
	colPricingCurrency
	colTags
	colXUsageType
	colXOperation
	colXServiceCode
	colXInstanceType
	colXSKUDetails
	colXExchangeRate
	colXSystemLabels
	colXLabels
	numCols
)

var columns = [numCols]string{
	colBilled: "BilledCost", colEffective: "EffectiveCost", colList: "ListCost", colContracted: "ContractedCost",
	colCurrency: "BillingCurrency", colBillingStart: "BillingPeriodStart", colStart: "ChargePeriodStart", colEnd: "ChargePeriodEnd",
	colCategory: "ChargeCategory", colClass: "ChargeClass", colDescription: "ChargeDescription",
	colBillingAccount: "BillingAccountId", colSubAccount: "SubAccountId",
	colInvoice: "InvoiceId", colInvoiceDetail: "InvoiceDetailId", colIssuer: "InvoiceIssuerName",
	colServiceProvider: "ServiceProviderName", colProvider: "ProviderName",
	colResource: "ResourceId", colResourceType: "ResourceType", colResourceName: "ResourceName",
	colRegion: "RegionId", colZone: "AvailabilityZone",
	colService: "ServiceName", colServiceCategory: "ServiceCategory", colServiceSubcategory: "ServiceSubcategory",
	colSKU: "SkuId", colSKUMeter: "SkuMeter", colSKUPriceDetails: "SkuPriceDetails",
	colCommitment: "CommitmentDiscountId", colCommitmentStatus: "CommitmentDiscountStatus",
	colCapacity: "CapacityReservationId", colCapacityStatus: "CapacityReservationStatus",
	colConsumed: "ConsumedQuantity", colConsumedUnit: "ConsumedUnit", colPricing: "PricingQuantity", colPricingUnit: "PricingUnit",
	colListPrice: "ListUnitPrice", colContractedPrice: "ContractedUnitPrice", colPricingCurrency: "PricingCurrency",
	colTags: "Tags", colXUsageType: "x_UsageType", colXOperation: "x_Operation", colXServiceCode: "x_ServiceCode",
	colXInstanceType: "x_InstanceType", colXSKUDetails: "x_SkuDetails", colXExchangeRate: "x_BillingExchangeRate",
	colXSystemLabels: "x_SystemLabels", colXLabels: "x_Labels",
}

var required = []int{colBilled, colEffective, colBillingStart, colStart, colEnd, colCategory}

var degraded = []struct {
	col  int
	lost string
}{
	{colList, "list cost unavailable"},
	{colContracted, "contracted cost unavailable"},
	{colResource, "no line can be matched to a node"},
	{colBillingAccount, "payer account unavailable"},
	{colSubAccount, "usage account unavailable"},
	{colService, "service unavailable"},
	{colTags, "tags unavailable"},
}

// missing checks a file's columns: an error names all required ones that are
// absent, the notes what cannot be told.
func (r *Reader) missing(has func(int) bool) (notes []string, err error) {
	var absent []string
	for _, c := range required {
		if !has(c) {
			absent = append(absent, columns[c])
		}
	}
	if !has(colCurrency) {
		if r.opt.Currency == "" {
			absent = append(absent, columns[colCurrency])
		} else {
			notes = append(notes, fmt.Sprintf("currency %s is taken from the configuration: BillingCurrency is not in the file", r.opt.Currency))
		}
	}
	if len(absent) > 0 {
		return nil, fmt.Errorf("column %s is not in the file, and no cost is right without it; names are those of the FOCUS specification, in its case", strings.Join(absent, ", "))
	}
	for _, d := range degraded {
		if d.col == colTags && has(colXLabels) {
			continue
		}
		if !has(d.col) {
			notes = append(notes, fmt.Sprintf("%s: %s is not in the file", d.lost, columns[d.col]))
		}
	}
	if !has(colServiceProvider) && !has(colProvider) {
		notes = append(notes, "provider unavailable: neither ServiceProviderName nor ProviderName is in the file")
	}
	if !saysWhatResourcesAre(has) {
		notes = append(notes, "machines cannot be told from other resources (no ResourceType, ServiceCategory or ServiceSubcategory): every resource used by the hour counts as one")
	}
	return notes, nil
}

func saysWhatResourcesAre(has func(int) bool) bool {
	return has(colResourceType) || has(colServiceCategory) || has(colServiceSubcategory)
}

// Columns are the names of the columns that are read.
func Columns() []string { return columns[:] }

// Version tells the FOCUS version from the columns that each one added.
func Version(header []string) string {
	has := func(names ...string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return slices.Contains(header, n) })
	}
	switch {
	case has("InvoiceDetailId", "CommitmentProgramEligibilityDetails"), has("ServiceProviderName") && !has("ProviderName"):
		return "FOCUS 1.4"
	case has("ServiceProviderName", "HostProviderName", "AllocatedMethodId", "ContractApplied"):
		return "FOCUS 1.3"
	case has("InvoiceId", "PricingCurrency", "BillingAccountType", "SubAccountType"):
		return "FOCUS 1.2"
	case has("CapacityReservationId", "CommitmentDiscountQuantity", "SkuMeter", "ServiceSubcategory"):
		return "FOCUS 1.1"
	}
	return "FOCUS 1.0"
}
