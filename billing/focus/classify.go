package focus

import (
	"strings"

	"gpuledger/billing"
	"gpuledger/billing/azurevm"
	"gpuledger/billing/ec2"
	"gpuledger/billing/gce"
)

// classify decides by ChargeCategory and the two statuses, as the specification
// means them; EffectiveCost is amortised already, so no cost is changed here.
func (d *decoder) classify(l *billing.Line) {
	text := strings.ToLower(l.Description)
	switch l.ChargeCategory {
	case "Usage":
		l.Class = d.usageClass(l)
	case "Purchase":
		l.Class = billing.Fee
	case "Tax":
		l.Class = billing.Tax
	case "Credit":
		l.Class = billing.Credit
	case "Adjustment":
		switch {
		case strings.Contains(text, "discount") && !strings.Contains(text, "refund"):
			l.Class = billing.Discount
		case l.Costs.Billed.Sign() < 0 || strings.Contains(text, "refund"):
			l.Class = billing.Refund
		default:
			l.Class = billing.Other
		}
	default:
		l.Class = billing.Other
		d.unknown[l.ChargeCategory]++
	}
}

func (d *decoder) usageClass(l *billing.Line) billing.Class {
	switch {
	case d.rows.Text(colCommitmentStatus) == "Unused":
		return billing.CommitmentUnused
	case d.rows.Text(colCapacityStatus) == "Unused", ec2.IsUnusedCapacity(l.UsageType):
		return billing.CapacityUnused
	case l.InstanceID == "":
		return billing.Other
	case ec2.InstanceID(l.ResourceID) != "" && l.UsageType != "" && !ec2.IsInstanceHours(l.UsageType):
		return billing.Other // traffic, optimisation: they carry the instance's id too
	case gce.IsMachine(l.ResourceID) && gce.PartOf(l.Description) == gce.Beside:
		return billing.Other
	case gce.IsMachine(l.ResourceID) && gce.PartOf(l.Description) == gce.Storage:
		return billing.NodeUsage
	}
	if _, ok := l.BilledMicros(); ok || l.Component != billing.Node {
		return billing.NodeUsage
	}
	// A correction takes hours back: its quantity is negative, its unit is not.
	if q := *l; q.ConsumedQuantity.Amount.Sign() < 0 || q.PricingQuantity.Amount.Sign() < 0 {
		q.ConsumedQuantity.Amount, q.PricingQuantity.Amount = abs(q.ConsumedQuantity.Amount), abs(q.PricingQuantity.Amount)
		if _, ok := q.BilledMicros(); ok {
			return billing.NodeUsage
		}
	}
	if l.InstanceType != "" && unitless(l.ConsumedUnit) && unitless(l.PricingUnit) {
		return billing.NodeUsage // a machine of a named type without a time: its window is the time
	}
	return billing.Other
}

// unitless reports whether a unit says nothing of what is counted: a machine may be
// billed by the piece, a volume or traffic on it never is.
func unitless(unit string) bool {
	switch strings.ToLower(unit) {
	case "", "unit", "units", "each", "count", "quantity", "instance", "instances":
		return true
	}
	return false
}

// machine returns the name of the instance that the line's resource is, "" where
// it is none: by what its provider's ids look like, and else by what the file
// says of it.
func (d *decoder) machine(l *billing.Line) string {
	id := l.ResourceID
	if i := ec2.InstanceID(id); i != "" {
		return i
	}
	switch {
	case id == "", strings.HasPrefix(id, "arn:"):
		return ""
	case gce.IsMachine(id), azurevm.IsMachine(id), d.anyResource:
		return lastSegment(id)
	case strings.HasPrefix(strings.ToLower(id), "/subscriptions/"):
		return ""
	}
	switch strings.ToLower(d.rows.Text(colResourceType)) {
	case "instance", "virtual machine", "virtualmachine", "vm", "compute instance", "baremetal", "bare metal":
		return lastSegment(id)
	}
	if d.rows.Text(colServiceSubcategory) == "Virtual Machines" ||
		!hyperscaler(l.Provider) && d.rows.Text(colServiceCategory) == "Compute" {
		return lastSegment(id)
	}
	return ""
}

// hyperscaler names the providers whose machines are told by their ids: what of
// theirs is Compute and billed by the hour may be a cluster or a workspace.
func hyperscaler(provider string) bool {
	switch provider {
	case "AWS", "Amazon Web Services", "Microsoft", "Microsoft Azure", "Azure", "Google", "Google Cloud", "GCP":
		return true
	}
	return false
}

// identify finds the machine's name and type.
func (d *decoder) identify(l *billing.Line) error {
	r := d.rows
	details, err := r.Map(colXSKUDetails)
	if err != nil {
		return err
	}
	prices, err := r.Map(colSKUPriceDetails)
	if err != nil {
		return err
	}
	l.InstanceID = d.machine(l)
	if id := gce.InstanceID(l.ResourceID, l.UsageAccount, l.AvailabilityZone); id != "" {
		l.InstanceID = id
	}
	if azurevm.IsMachine(l.ResourceID) { // a scale set's line names its machine in the details
		l.InstanceID = azurevm.InstanceID(l.ResourceID, details["VMName"])
	}
	for _, t := range []string{
		r.Keep(colXInstanceType), prices["InstanceType"], prices["x_InstanceType"], prices["MachineType"],
		details["InstanceType"], azurevm.Size(details["ServiceType"]),
		ec2.TypeOf(l.UsageType), ec2.TypeOf(r.Text(colSKUMeter)), ec2.TypeOf(ec2.TaxedUsage(l.Description)), ec2.TypeIn(l.Description),
	} {
		if t != "" {
			l.InstanceType = strings.Clone(t)
			break
		}
	}
	if l.InstanceType == "" {
		l.InstanceFamily = ec2.FamilyOf(l.UsageType)
	}
	if gce.IsMachine(l.ResourceID) {
		return d.partOfMachine(l)
	}
	return nil
}

// partOfMachine tells what of a machine of Google's a line prices, and by its labels how
// many of it the machine has.
func (d *decoder) partOfMachine(l *billing.Line) error {
	labels, err := d.rows.Map(colXSystemLabels)
	if err != nil {
		return err
	}
	if l.InstanceType == "" {
		l.InstanceType = labels[gce.MachineType]
	}
	part := gce.PartOf(l.Description)
	l.Component, l.PerInstance = billing.Component(part.Component()), part.PerInstance(l.InstanceType, labels[gce.MachineCores])
	return nil
}

func lastSegment(id string) string {
	return id[strings.LastIndexByte(id, '/')+1:]
}
