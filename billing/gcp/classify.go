package gcp

import (
	"strings"

	"gpuledger/billing"
	"gpuledger/billing/gce"
)

// computeEngine is service.id of Compute Engine.
const computeEngine = "6F81-5844-456A"

// classify decides by cost_type, as "Structure of Detailed data export" has it, and by
// what the SKU prices.
func (d *decoder) classify(l *billing.Line, labels map[string]string) {
	l.ChargeCategory = "Usage"
	switch l.ChargeType {
	case "regular":
		l.Class = d.usageClass(l, labels)
		if l.Class == billing.Fee || l.Class == billing.CommitmentUnused {
			l.ChargeCategory = "Purchase"
		}
	case "tax":
		l.Class, l.ChargeCategory = billing.Tax, "Tax"
	case "rounding_error":
		l.Class, l.ChargeCategory = billing.Other, "Adjustment"
	case "adjustment":
		d.adjustment(l, labels)
	default:
		l.Class = billing.Other
		d.unknown[l.ChargeType]++
	}
}

// adjustment classes what mends an earlier charge like that charge, and the rest by what
// it gives. Source: adjustment_info.type.
func (d *decoder) adjustment(l *billing.Line, labels map[string]string) {
	l.ChargeCategory = "Adjustment"
	kind := d.rows.Keep(colAdjustmentType)
	if kind != "" {
		l.Operation = kind
	}
	if text := d.rows.Keep(colAdjustmentText); text != "" {
		l.Description = strings.TrimPrefix(l.Description+": "+text, ": ")
	}
	switch kind {
	case "USAGE_CORRECTION", "PRICE_CORRECTION", "METADATA_CORRECTION":
		l.ChargeCategory, l.ChargeClass = "Usage", "Correction"
		l.Class = d.usageClass(l, labels)
	case "GOODWILL", "SALES_BASED_GOODWILL", "SLA_VIOLATION":
		l.Class, l.ChargeCategory = billing.Credit, "Credit"
	default:
		l.Class = billing.Other
		if l.Costs.Billed.Sign() < 0 {
			l.Class = billing.Refund
		}
	}
}

func (d *decoder) usageClass(l *billing.Line, labels map[string]string) billing.Class {
	if _, ok := poolOfCommitment(l); ok {
		if l.InstanceFamily = familyOf(l.Description); d.paid[feeOffset].Sign() != 0 {
			return billing.CommitmentUnused // the fee less what was used of it
		}
		return billing.Fee
	}
	if d.paid[feeOffset].Sign() != 0 {
		return billing.CommitmentUnused
	}
	if strings.EqualFold(labels[gce.UnusedCapacity], "true") {
		return billing.CapacityUnused
	}
	if l.InstanceID == "" {
		return billing.Other
	}
	switch gce.PartOf(l.Description) {
	case gce.Unknown, gce.Beside:
		return billing.Other
	}
	return billing.NodeUsage
}
