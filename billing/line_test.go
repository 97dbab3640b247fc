package billing

import (
	"testing"

	"gpuledger/billing/money"
)

// A correction takes machine time back; a quantity below zero beside a cost is no time.
func TestInstanceHours(t *testing.T) {
	amount := func(s string) money.Amount {
		a, err := money.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	for _, c := range []struct {
		quantity, unit, cost, want string
		ok                         bool
	}{
		{"1", "Hours", "4", "1", true},
		{"1800", "Seconds", "4", "0.5", true},
		{"-200", "Hours", "-300", "-200", true},
		{"-200", "Hours", "0", "-200", true},
		{"-200", "Hours", "300", "0", false},
		{"7", "GB", "4", "0", false},
	} {
		l := Line{Component: Node, ConsumedQuantity: money.NullAmount{Amount: amount(c.quantity), Valid: true}, ConsumedUnit: c.unit}
		l.Costs.Billed, l.Costs.Effective = amount(c.cost), amount(c.cost)
		got, ok := l.InstanceHours()
		if got != amount(c.want) || ok != c.ok {
			t.Errorf("%s %s at %s: %s, %v; want %s, %v", c.quantity, c.unit, c.cost, got, ok, c.want, c.ok)
		}
	}
}
