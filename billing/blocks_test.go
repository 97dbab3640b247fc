package billing_test

import (
	"strings"
	"testing"

	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/billing/period"
)

const aBlock = "arn:aws:ec2:us-east-1:1:capacity-reservation/cr-1"

func blockFee(cost, quantity, unit string, days int) billing.Line {
	l := exampleLine()
	l.Class, l.ChargeType, l.ResourceID, l.InstanceID, l.Reservation = billing.Fee, "Fee", aBlock, "", aBlock
	l.ChargePeriod = period.Span{Start: october.AddDate(0, 0, 4), End: october.AddDate(0, 0, 4+days)}
	l.Costs = billing.Costs{Billed: money.MustParse(cost), Effective: money.MustParse(cost)}
	l.ConsumedQuantity, l.ConsumedUnit = money.Some(money.MustParse(quantity)), unit
	return l
}

func blockUse(instance, hours string) billing.Line {
	l := exampleLine()
	l.ResourceID, l.InstanceID, l.Reservation = instance, instance, aBlock
	l.ChargePeriod = period.Hour(october.AddDate(0, 0, 4))
	l.Costs = billing.Costs{}
	l.ConsumedQuantity, l.ConsumedUnit = money.Some(money.MustParse(hours)), "Hrs"
	return l
}

func settle(t *testing.T, lines ...billing.Line) (classes map[billing.Class][2]string, b *billing.Blocks) {
	t.Helper()
	b = &billing.Blocks{}
	sums := map[billing.Class][2]money.Amount{}
	add := func(l billing.Line) {
		s := sums[l.Class]
		sums[l.Class] = [2]money.Amount{s[0].Add(l.Costs.Billed), s[1].Add(l.Costs.Effective)}
	}
	for i := range lines {
		if !b.Hold(&lines[i]) {
			add(lines[i])
		}
	}
	for _, l := range b.Settle() {
		add(l)
	}
	classes = map[billing.Class][2]string{}
	for c, s := range sums {
		classes[c] = [2]string{s[0].String(), s[1].String()}
	}
	return classes, b
}

// A Capacity Block of 10,080.00 for 2 × 24 h, used for 36 instance-hours: 7,560.00 on the
// nodes, 2,520.00 unused.
func TestCapacityBlock(t *testing.T) {
	unused := blockUse("", "12")
	unused.Class, unused.UsageType = billing.CapacityUnused, "UnusedBox:p5.48xlarge"
	for name, c := range map[string]struct {
		lines          []billing.Line
		nodes, nothing string
	}{
		"two instances for a day": {[]billing.Line{blockUse("i-1", "24"), blockFee("10080.00", "2", "Quantity", 1), blockUse("i-2", "12")}, "7560", "2520"},
		"48 hours":                {[]billing.Line{blockFee("10080.00", "48", "Hrs", 1), blockUse("i-1", "24"), blockUse("i-2", "12")}, "7560", "2520"},
		"what is unused is said":  {[]billing.Line{blockFee("10080.00", "2", "Quantity", 0), blockUse("i-1", "24"), blockUse("i-2", "12"), unused}, "7560", "2520"},
		"two payments":            {[]billing.Line{blockFee("10000.00", "1", "Quantity", 1), blockFee("80", "1", "Quantity", 1), blockUse("i-1", "36")}, "7560", "2520"},
		"used whole":              {[]billing.Line{blockFee("10080.00", "2", "Quantity", 1), blockUse("i-1", "24"), blockUse("i-2", "24")}, "10080", ""},
		"nobody came":             {[]billing.Line{blockFee("10080.00", "2", "Quantity", 1)}, "", "10080"},
		"not divisible":           {[]billing.Line{blockFee("1", "3", "Hrs", 1), blockUse("i-1", "1")}, "0.333333333333333333333333", "0.666666666666666666666667"},
	} {
		got, b := settle(t, c.lines...)
		if n := got[billing.NodeUsage]; c.nodes != "" && (n[1] != c.nodes || n[0] != "0") {
			t.Errorf("%s: nodes billed and effective %v, want 0 and %s", name, n, c.nodes)
		}
		if u := got[billing.CapacityUnused][1]; c.nothing != "" && u != c.nothing {
			t.Errorf("%s: unused %s, want %s", name, u, c.nothing)
		}
		if len(b.Notes()) > 0 {
			t.Errorf("%s: %q", name, b.Notes())
		}
	}
}

// A block that its lines do not explain stays as it was delivered, and a note says so.
func TestCapacityBlockUnknown(t *testing.T) {
	late := blockFee("100", "2", "Quantity", 1)
	late.ChargePeriod = period.Span{Start: october.AddDate(0, 0, 30), End: october.AddDate(0, 0, 33)}
	for says, lines := range map[string][]billing.Line{
		"goes on in the month after 2026-10": {late, blockUse("i-1", "1")},
		"how many instance-hours":            {blockFee("100", "2", "Quantity", 0)},
		"was used for 30 instance-hours and": {blockFee("100", "1", "Quantity", 1), blockUse("i-1", "30")},
	} {
		got, b := settle(t, lines...)
		if notes := strings.Join(b.Notes(), "; "); !strings.Contains(notes, says) {
			t.Errorf("%q, want %q", notes, says)
		}
		var all money.Amount
		for _, s := range got {
			all = all.Add(money.MustParse(s[1]))
		}
		if all != money.FromInt(100) {
			t.Errorf("%s: effective %s in all, of 100", says, all)
		}
	}
	// Usage at no price of a reservation without a fee, and what is paid for, are left alone.
	paid := blockUse("i-1", "1")
	paid.Costs.Effective = money.FromInt(3)
	if got, _ := settle(t, blockUse("i-1", "1"), paid); got[billing.NodeUsage][1] != "3" {
		t.Errorf("%v", got)
	}
}
