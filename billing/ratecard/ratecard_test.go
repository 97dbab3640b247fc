package ratecard

import (
	"context"
	"strings"
	"testing"
	"time"

	"gpuledger/billing"
	"gpuledger/billing/billingtest"
	"gpuledger/billing/period"
)

type fixed []NodeHour

func (f fixed) Months(context.Context) (out []period.Month, err error) {
	for _, h := range f {
		if m := period.MonthOf(h.Hour); len(out) == 0 || out[len(out)-1] != m {
			out = append(out, m)
		}
	}
	return out, nil
}

func (f fixed) NodeHours(_ context.Context, m period.Month) (out []NodeHour, err error) {
	for _, h := range f {
		if period.MonthOf(h.Hour) == m {
			out = append(out, h)
		}
	}
	return out, nil
}

func at(text string) time.Time {
	t, err := time.Parse("2006-01-02T15", text)
	if err != nil {
		panic(err)
	}
	return t
}

func hour(node, when string, micros int64) NodeHour {
	return NodeHour{Cluster: "lab", Node: node, InstanceID: "lab/" + node, InstanceType: "dgx-h100", Pool: "train", Labels: map[string]string{"example_com_rack": "r7"}, GPUs: 8, Model: "H100-80GB-HBM3", Hour: at(when), ReadyMicros: micros}
}

const whole = 3_600_000_000

// The first rate that matches prices the time a node was ready: by the node or by its
// GPUs, from an hour on and before another.
func TestRates(t *testing.T) {
	card := Card{Currency: "EUR", Rates: []Rate{
		{Match: Match{Node: "old-*"}, Effective: "1", To: "2026-10-06"},
		{Match: Match{GPUModel: "NVIDIA H100 80GB HBM3", Cluster: "lab"}, Per: "gpu", Effective: "2.10", List: "3", From: "2026-10-05T12:00Z"[:16]},
		{Match: Match{Labels: map[string]string{"example.com/rack": "r*"}}, Effective: "24.000001"},
		{Match: Match{InstanceType: "dgx-*", NodePool: "other"}, Effective: "99"},
	}}
	nodes := fixed{
		hour("n1", "2026-10-05T11", whole), // before the second rate: by its label
		hour("n1", "2026-10-05T12", whole/3),
		hour("old-1", "2026-10-05T23", whole),
		hour("old-1", "2026-10-06T00", whole),
		hour("n1", "2026-10-06T01", 0),                                            // never ready
		{Cluster: "x", Node: "n9", Hour: at("2026-10-06T01"), ReadyMicros: whole}, // matches nothing
		hour("n1", "2026-11-01T00", whole),
	}
	r, err := New("onprem", "rates.yaml", card, nodes)
	if err != nil {
		t.Fatal(err)
	}
	ds := billingtest.Deliveries(t, r)
	if len(ds) != 2 || ds[0].BillingPeriod.String() != "2026-10" || ds[0].Token == ds[1].Token || !strings.Contains(strings.Join(ds[0].Notes, "; "), "1 of 6 node-hours match no rate") || !strings.Contains(ds[0].Notes[0], "estimated") {
		t.Fatalf("%+v", ds)
	}
	var got []string
	for _, l := range billingtest.ReadAll(t, r, ds[0]) {
		hours, _ := l.InstanceHours()
		list := "-"
		if l.Costs.List.Valid {
			list = l.Costs.List.Amount.String()
		}
		got = append(got, strings.Join([]string{l.InstanceID, l.ChargePeriod.Start.Format("02T15"), hours.String(), l.Costs.Billed.String(), l.Costs.Effective.String(), list, l.Currency, string(l.Class), l.ChargeType}, " "))
	}
	want := []string{
		"lab/n1 05T11 1 24.000001 24.000001 - EUR node_usage Estimated",
		// A third of an hour of twelve decimals × 8 GPUs × 2.10, and × 3.
		"lab/n1 05T12 0.333333333333 5.5999999999944 5.5999999999944 7.999999999992 EUR node_usage Estimated",
		"lab/old-1 05T23 1 1 1 - EUR node_usage Estimated",
		"lab/old-1 06T00 1 16.8 16.8 24 EUR node_usage Estimated",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// What is known of a node changes the delivery.
	nodes[0].ReadyMicros--
	if again := billingtest.Deliveries(t, r); again[0].Token == ds[0].Token || again[1].Token != ds[1].Token {
		t.Error("the tokens do not follow the node-hours")
	}
}

func TestBadCards(t *testing.T) {
	rate := func(change func(*Rate)) Card {
		r := Rate{Effective: "1"}
		change(&r)
		return Card{Currency: "USD", Rates: []Rate{r}}
	}
	for want, c := range map[string]Card{
		`currency: "dollar"`:        {Currency: "dollar", Rates: []Rate{{Effective: "1"}}},
		"rates: there is none":      {Currency: "USD"},
		`per: "card"`:               rate(func(r *Rate) { r.Per = "card" }),
		"effective: no price":       rate(func(r *Rate) { r.Effective = "" }),
		"entry 1: effective: -1 is": rate(func(r *Rate) { r.Effective = "-1" }),
		"more than 12 decimals":     rate(func(r *Rate) { r.Effective = "0.1234567890123" }),
		"list: ":                    rate(func(r *Rate) { r.List = "x" }),
		`from: "soon"`:              rate(func(r *Rate) { r.From = "soon" }),
		"is not a whole hour":       rate(func(r *Rate) { r.To = "2026-10-05T10:30" }),
		"is not before":             rate(func(r *Rate) { r.From, r.To = "2026-10-05", "2026-10-05" }),
		`match: "[" is no pattern`:  rate(func(r *Rate) { r.Match.Node = "[" }),
	} {
		if _, err := New("x", "rates.yaml", c, fixed{}); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "rates.yaml") {
			t.Errorf("%s: %v", want, err)
		}
	}
}

var _ billing.Reader = (*Reader)(nil)
