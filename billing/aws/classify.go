package aws

import (
	"errors"
	"strings"

	"gpuledger/billing"
	"gpuledger/billing/ec2"
	"gpuledger/billing/money"
)

// classify sets class, category and costs by line type: the table of the Cloud
// Intelligence Dashboards' summary view, with what each commitment leaves unused
// as a class of its own.
func (d *decoder) classify(l *billing.Line) error {
	r := d.rows
	billed, err := d.billed(l)
	if err != nil {
		return err
	}
	l.Costs.Billed, l.Costs.Effective = billed, billed
	switch l.ChargeType {
	case "Usage":
		l.ChargeCategory, l.Class = "Usage", usageClass(l)
	case "DiscountedUsage":
		l.ChargeCategory, l.Class = "Usage", usageClass(l)
		return d.effective(l, colRIEffective, colRINetEffective)
	case "SavingsPlanCoveredUsage":
		l.ChargeCategory, l.Class = "Usage", usageClass(l)
		l.Costs.Billed = money.Amount{} // the plan's own fee is billed instead
		d.addResidual(l.Currency, billed)
		return d.effective(l, colSPEffective, colSPNetEffective)
	case "SavingsPlanNegation":
		// It takes back the on-demand price of covered usage, which counted 0.
		l.ChargeCategory, l.Class = "Adjustment", billing.Other
		d.addResidual(l.Currency, billed)
		zero := money.Some(money.Amount{})
		l.Costs = billing.Costs{List: zero}
		l.ConsumedQuantity, l.ConsumedUnit = money.NullAmount{}, ""
		l.PricingQuantity, l.PricingUnit = money.NullAmount{}, ""
	case "SavingsPlanRecurringFee":
		l.ChargeCategory, l.Class = "Purchase", billing.CommitmentUnused
		total, err := d.needed(l, colSPTotal, colSPTotal)
		if err != nil {
			return err
		}
		used, err := d.needed(l, colSPUsed, colSPUsed)
		if err != nil {
			return err
		}
		l.Costs.Effective = total.Sub(used)
	case "SavingsPlanUpfrontFee":
		l.ChargeCategory, l.Class = "Purchase", billing.Fee
		l.Costs.Effective = money.Amount{}
	case "RIFee":
		l.ChargeCategory, l.Class = "Purchase", billing.CommitmentUnused
		return d.unusedReservation(l)
	case "Fee":
		l.ChargeCategory, l.Class = "Purchase", billing.Fee
		if r.Text(colRIARN) != "" {
			l.Costs.Effective = money.Amount{} // amortised into the usage it covers
		}
	case "FlatRateSubscription":
		l.ChargeCategory, l.Class = "Purchase", billing.Fee
	case "Tax":
		l.ChargeCategory, l.Class = "Tax", billing.Tax
	case "Credit":
		l.ChargeCategory, l.Class = "Credit", billing.Credit
	case "Refund":
		l.ChargeCategory, l.Class = "Adjustment", billing.Refund
		if isPlanRefund(l) {
			l.Costs.Effective = money.Amount{} // the fee counted 0, so does its return
		}
	default:
		l.ChargeCategory, l.Class = "Adjustment", billing.Discount
		if !strings.HasSuffix(l.ChargeType, "Discount") {
			l.Class = billing.Other
			d.unknown[l.ChargeType]++
		}
	}
	return nil
}

// billed reads the line's cost on the delivery's basis.
func (d *decoder) billed(l *billing.Line) (money.Amount, error) {
	if d.unblended == colUnblended {
		return d.rows.Must(colUnblended)
	}
	net, err := d.rows.Amount(d.unblended)
	if err != nil || net.Valid {
		return net.Amount, err
	}
	d.noNet++
	if strings.HasSuffix(l.ChargeType, "Discount") {
		return money.Amount{}, nil // the lines it applies to are net of it already
	}
	return d.rows.Must(colUnblended)
}

// effective takes a covered line's cost from the commitment's own column.
func (d *decoder) effective(l *billing.Line, gross, net int) error {
	a, err := d.needed(l, gross, net)
	l.Costs.Effective = a
	return err
}

// unusedReservation adds the two parts of what a reservation left unused. One of
// them may have no value, since an upfront or a recurring part need not exist.
func (d *decoder) unusedReservation(l *billing.Line) error {
	upfront, err := d.onBasis(l, colRIUnusedUpfront, colRINetUnusedUpfront)
	if err != nil {
		return err
	}
	recurring, err := d.onBasis(l, colRIUnusedRecurring, colRINetUnusedRecurring)
	if err != nil {
		return err
	}
	if !upfront.Valid && !recurring.Valid {
		return d.rows.Error(colRIUnusedRecurring, errors.New("neither it nor the unused upfront fee has a value, and the reservation's unused cost is unknown"))
	}
	l.Costs.Effective = upfront.Amount.Add(recurring.Amount)
	return nil
}

// needed reads a column that only some line types need. Without a value in it, a
// line of that type has no right cost.
func (d *decoder) needed(l *billing.Line, gross, net int) (money.Amount, error) {
	a, err := d.onBasis(l, gross, net)
	if err == nil && !a.Valid {
		err = d.rows.Error(gross, errors.New("no value, and the effective cost of the line is unknown without it"))
	}
	return a.Amount, err
}

// onBasis reads the column of the delivery's basis: the net one, or the gross one
// where the line has no net value because nothing was discounted.
func (d *decoder) onBasis(l *billing.Line, gross, net int) (money.NullAmount, error) {
	col := d.basis.pick(d.rows.Has, gross, net)
	if !d.rows.Has(col) {
		return money.NullAmount{}, d.rows.Error(col, errors.New("the column is not in the export, and the effective cost of a "+l.ChargeType+" line is unknown without it; add it to the export's query"))
	}
	a, err := d.rows.Amount(col)
	if err == nil && !a.Valid && col != gross {
		return d.rows.Amount(gross)
	}
	return a, err
}

func (d *decoder) addResidual(currency string, a money.Amount) {
	d.spResidual[currency] = d.spResidual[currency].Add(a)
}

// usageClass tells an instance's own hours from all else that stands on it:
// volumes, traffic, optimisation fees and marketplace software carry the
// instance's id and RunInstances too, so the usage type decides.
func usageClass(l *billing.Line) billing.Class {
	if l.Service != "" && l.Service != "AmazonEC2" {
		return billing.Other
	}
	switch {
	case ec2.IsUnusedCapacity(l.UsageType):
		return billing.CapacityUnused
	case l.InstanceID == "":
		return billing.Other
	case ec2.IsInstanceHours(l.UsageType):
		return billing.NodeUsage
	case l.UsageType == "" && strings.HasPrefix(l.Operation, "RunInstances"):
		// No usage type in the export: an instance's hours, as far as is known.
		if _, hours := l.BilledMicros(); hours {
			return billing.NodeUsage
		}
	}
	return billing.Other
}

func isSpot(l *billing.Line) bool {
	return ec2.Kind(l.UsageType) == "SpotUsage" || strings.HasPrefix(l.Operation, "RunInstances:SV")
}

func isSavingsPlanFee(lineType string) bool {
	return lineType == "SavingsPlanRecurringFee" || lineType == "SavingsPlanUpfrontFee"
}

func isPlanRefund(l *billing.Line) bool {
	return l.Service == "ComputeSavingsPlans" && strings.HasPrefix(l.Description, "Refund for one-time fee for Savings Plan ID")
}

func firstWord(s string) string {
	word, _, _ := strings.Cut(strings.TrimSpace(s), " ")
	return word
}
