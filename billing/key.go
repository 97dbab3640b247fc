package billing

import (
	"gpuledger/billing/money"
)

// Key returns the line's identity by content: the SHA-256 over all of its fields
// in the order below, each preceded by its length, times in microseconds since
// 1970, amounts as their shortest decimal text, an absent amount apart from 0,
// tags in ascending order of name. File and Row are left out, and Line holds no
// provider's line id: both change between deliveries of the same content. Two
// lines of one delivery may be equal; the caller numbers them.
//
// The order and the leading version are part of stored data: a new field goes to
// the end with a new version.
func (l *Line) Key() [32]byte {
	c := newCanon("gpuledger line 1")
	c.text(l.Provider)
	c.number(l.BillingPeriod.Start().UnixMicro())
	c.number(l.ChargePeriod.Start.UnixMicro())
	c.number(l.ChargePeriod.End.UnixMicro())
	for _, s := range []string{
		string(l.Class), string(l.Component), l.ChargeCategory, l.ChargeClass, l.ChargeType, l.Description,
		l.PayerAccount, l.UsageAccount, l.InvoiceID, l.InvoiceDetail, l.InvoiceIssuer,
		l.ResourceID, l.InstanceID, l.InstanceType, l.InstanceFamily, l.Region, l.AvailabilityZone,
		l.Service, l.SKU, l.UsageType, l.Operation, l.Commitment, l.Reservation,
		l.Currency, l.PricingCurrency, l.ConsumedUnit, l.PricingUnit,
	} {
		c.text(s)
	}
	c.text(l.Costs.Billed.String())
	c.text(l.Costs.Effective.String())
	for _, a := range []money.NullAmount{
		l.Costs.List, l.Costs.Contracted, l.ExchangeRate,
		l.ConsumedQuantity, l.PricingQuantity, l.ListUnitPrice, l.ContractedUnitPrice,
	} {
		c.amount(a)
	}
	c.number(int64(len(l.Tags)))
	for _, k := range sortedNames(l.Tags) {
		c.text(k)
		c.text(l.Tags[k])
	}
	if l.PerInstance != 0 {
		c.number(l.PerInstance)
	}
	return c.sum()
}

func (c *canon) amount(a money.NullAmount) {
	if !a.Valid {
		c.text("")
		return
	}
	c.text(a.Amount.String())
}
