package azure

import (
	"strings"

	"gpuledger/billing"
	"gpuledger/billing/azurevm"
	"gpuledger/billing/money"
)

// classify sets class, category and costs, and reports whether the row is a line of the
// month. With both exports of a month, usage is the amortized one's, whose cost is the
// effective one; what a reservation or savings plan covers is billed by its purchase,
// which only the actual one has (Microsoft, FOCUS conversion: "Purchase" and "Refund" of
// commitments are the actual rows to add).
func (d *decoder) classify(l *billing.Line, cost money.Amount) bool {
	model := strings.ToLower(strings.ReplaceAll(d.rows.Text(colPricingModel), " ", ""))
	covered := model == "reservation" || model == "savingsplan"
	purchase := covered && (l.ChargeType == "Purchase" || l.ChargeType == "Refund")
	if d.single == 0 && (d.kind == actual) != purchase {
		return false
	}
	l.Costs.Billed, l.Costs.Effective = cost, cost
	switch l.ChargeType {
	case "Usage":
		l.ChargeCategory, l.Class = "Usage", d.usageClass(l)
		if covered && d.kind == amortized {
			l.Costs.Billed = money.Amount{} // its purchase is billed instead
		}
	case "UnusedReservation", "UnusedSavingsPlan":
		l.ChargeCategory, l.Class = "Usage", billing.CommitmentUnused
		if d.kind == amortized {
			l.Costs.Billed = money.Amount{}
		}
	case "Purchase":
		l.ChargeCategory, l.Class = "Purchase", billing.Fee
	case "Refund":
		l.ChargeCategory, l.Class = "Adjustment", billing.Refund
	case "Tax":
		l.ChargeCategory, l.Class = "Tax", billing.Tax
	case "RoundingAdjustment":
		l.ChargeCategory, l.Class = "Adjustment", billing.Other
	case "Credit":
		l.ChargeCategory, l.Class = "Credit", billing.Credit
	default:
		l.ChargeCategory, l.Class = "Adjustment", billing.Other
		d.unknown[l.ChargeType]++
	}
	if purchase && d.single == 0 {
		l.Costs.Effective = money.Amount{} // spread over what it covers
	}
	return true
}

// usageClass tells a machine's own hours from its disks, traffic and licences.
func (d *decoder) usageClass(l *billing.Line) billing.Class {
	compute := strings.EqualFold(l.Service, "Virtual Machines") || strings.EqualFold(l.Service, "Virtual Machines Licenses")
	switch {
	case !compute:
		return billing.Other
	case azurevm.IsMachine(l.ResourceID) && l.InstanceID != "":
		return billing.NodeUsage
	case strings.Contains(strings.ToLower(l.ResourceID), "/capacityreservationgroups/"):
		return billing.CapacityUnused // what a machine used of it is the machine's line
	}
	return billing.Other
}
