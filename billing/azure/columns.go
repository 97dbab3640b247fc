package azure

import (
	"strings"

	"gpuledger/billing/table"
)

// The columns of a Cost Management export that the decoder reads, by one name for the
// spellings of enterprise agreements, customer agreements and pay-as-you-go.
const (
	colDate = iota
	colPeriodStart
	colChargeType
	colPricingModel
	colCost
	colCurrency
	colQuantity
	colUnit
	colEffectivePrice
	colUnitPrice
	colPayGPrice
	colPayGCost
	colPricingCurrency
	colExchangeRate
	colAccount
	colSubscription
	colResource
	colLocation
	colZone
	colCategory
	colSubCategory
	colMeter
	colMeterID
	colProduct
	colService
	colReservation
	colBenefit
	colInvoice
	colInfo
	colTags
	numCols
)

var columns = [numCols]string{
	colDate: "Date", colPeriodStart: "BillingPeriodStartDate", colChargeType: "ChargeType", colPricingModel: "PricingModel",
	colCost: "Cost", colCurrency: "BillingCurrency", colQuantity: "Quantity", colUnit: "UnitOfMeasure", colEffectivePrice: "EffectivePrice",
	colUnitPrice: "UnitPrice", colPayGPrice: "PayGPrice", colPayGCost: "PaygCostInBillingCurrency", colPricingCurrency: "PricingCurrency",
	colExchangeRate: "ExchangeRatePricingToBilling", colAccount: "BillingAccountId", colSubscription: "SubscriptionId", colResource: "ResourceId",
	colLocation: "ResourceLocation", colZone: "AvailabilityZone", colCategory: "MeterCategory", colSubCategory: "MeterSubCategory",
	colMeter: "MeterName", colMeterID: "MeterId", colProduct: "ProductName", colService: "ConsumedService", colReservation: "ReservationId",
	colBenefit: "BenefitId", colInvoice: "InvoiceId", colInfo: "AdditionalInfo", colTags: "Tags",
}

// spellings are other names of the columns, in lower case (reference/billing-formats.md
// §1.5).
var spellings = func() map[string]string {
	out := map[string]string{
		"usagedatetime": "Date", "usagedate": "Date", "costinbillingcurrency": "Cost", "pretaxcost": "Cost", "billingcurrencycode": "BillingCurrency", "currency": "BillingCurrency",
		"usagequantity": "Quantity", "consumedquantity": "Quantity", "resourcerate": "EffectivePrice", "subscriptionguid": "SubscriptionId", "instanceid": "ResourceId",
		"product": "ProductName", "pricingcurrencycode": "PricingCurrency", "enrollmentnumber": "BillingAccountId", "invoiceid": "InvoiceId", "invoiceno": "InvoiceId",
	}
	for _, c := range columns {
		out[strings.ToLower(c)] = c
	}
	return out
}()

// canonical brings a name of a header to that of columns: cases differ, and a translated
// name has Azure's own behind it: Ressourcengruppe (ResourceGroup).
func canonical(name string) string {
	if open := strings.LastIndexByte(name, '('); open > 0 && strings.HasSuffix(name, ")") {
		name = name[open+1 : len(name)-1]
	}
	key := strings.ToLower(strings.ReplaceAll(strings.TrimSpace(name), " ", ""))
	if c, ok := spellings[key]; ok {
		return c
	}
	return name
}

// required are the columns without which no figure would be right.
var required = []int{colDate, colCost}

// degraded says what is lost with each optional column.
var degraded = []struct {
	col  int
	lost string
}{
	{colResource, "no line can be matched to a node"},
	{colInfo, "machines of scale sets cannot be told apart"},
	{colChargeType, "every line counts as usage"},
	{colPricingModel, "what a reservation or savings plan covers cannot be told"},
	{colQuantity, "billed hours unavailable"},
	{colUnit, "billed hours unavailable"},
	{colTags, "tags unavailable"},
	{colSubscription, "subscription unavailable"},
}

func options() table.Options { return table.Options{Columns: columns[:], Rename: canonical} }
