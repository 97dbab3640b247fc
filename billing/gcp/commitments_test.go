package gcp

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/internal/bqtest"
)

func commitment(sku, cost, amount string) bqtest.Row {
	return usage(map[string]any{
		"sku.description": sku, "cost": json.Number(cost), "resource": nil, "system_labels": nil, "usage_start_time": "2026-10-05 07:00:00 UTC", "usage_end_time": "2026-10-06 07:00:00 UTC",
		"usage.amount_in_pricing_units": json.Number(amount), "usage.amount": nil, "subscription.instance_id": "sub-1",
	})
}

func covered(sku, cost, amount, kind, credited string) bqtest.Row {
	return usage(map[string]any{
		"sku.description": sku, "cost": json.Number(cost), "usage.amount_in_pricing_units": json.Number(amount), "usage.amount": nil, "credits": credit(kind, credited),
	})
}

// classes adds up billed and effective cost by class.
func classes(lines []billing.Line) map[billing.Class][2]string {
	sums := map[billing.Class][2]money.Amount{}
	for _, l := range lines {
		s := sums[l.Class]
		sums[l.Class] = [2]money.Amount{s[0].Add(l.Costs.Billed), s[1].Add(l.Costs.Effective)}
	}
	out := map[billing.Class][2]string{}
	for c, s := range sums {
		out[c] = [2]string{s[0].String(), s[1].String()}
	}
	return out
}

// Amortised cost moves what a day's commitment cost to the usage that its credits cover,
// by hand:
//   - resource-based, 24 core-hours committed for 0.60, 12 of them used (0.40 of on-demand
//     cost, credited whole): 0.30 goes to the machine, 0.30 is unused;
//   - spend-based, the old kind: 6 for credits of 10, of which the machine has 4, and cost
//     5 before: 5 − 4 + 4 × 6/10 = 3.40; the other service's line has 6 × 6/10 = 3.60;
//   - spend-based, the new kind: usage has its discounted price, the fee of 3 is given back
//     but for 0.75 that nobody used.
func TestCommitments(t *testing.T) {
	for name, c := range map[string]struct {
		rows []bqtest.Row
		want map[billing.Class][2]string
	}{
		"resource, half used": {
			[]bqtest.Row{
				commitment("Commitment v1: A2 Cpu in Americas for 1 Year", "0.6", "24"),
				covered("A2 Instance Core running in Americas", "0.4", "12", resourceDiscount, "-0.4"),
			},
			map[billing.Class][2]string{billing.NodeUsage: {"0", "0.3"}, billing.CommitmentUnused: {"0.6", "0.3"}},
		},
		"resource, used whole by two": {
			[]bqtest.Row{
				covered("Nvidia L4 GPU running in Belgium", "0.6", "16", resourceDiscount, "-0.6"),
				covered("Nvidia L4 GPU running in Belgium", "0.3", "8", resourceDiscount, "-0.3"),
				commitment("Commitment v1: Nvidia L4 GPU in Belgium for 3 Years", "0.7", "24"),
			},
			// 0.7 × 2/3 and 0.7 / 3, cut at 24 decimals; the last digit stays with the commitment
			map[billing.Class][2]string{billing.NodeUsage: {"0", "0.699999999999999999999999"}, billing.CommitmentUnused: {"0.7", "0.000000000000000000000001"}},
		},
		"resource of another kind": {
			[]bqtest.Row{
				commitment("Commitment v1: A2 Ram in Americas for 1 Year", "0.6", "24"),
				covered("A2 Instance Core running in Americas", "0.4", "12", resourceDiscount, "-0.4"),
			},
			map[billing.Class][2]string{billing.NodeUsage: {"0", "0"}, billing.CommitmentUnused: {"0.6", "0.6"}},
		},
		"spend, the old kind": {
			[]bqtest.Row{
				commitment("Commitment - dollar based v1: GCE for 1 year", "6", "6"),
				covered("A2 Instance Core running in Americas", "5", "12", spendDiscount, "-4"),
				usage(map[string]any{"service.id": "CCD8-9BF1-090E", "service.description": "Kubernetes Engine", "sku.description": "Autopilot", "cost": json.Number("6"), "credits": credit(spendDiscount, "-6"), "resource": nil}),
			},
			map[billing.Class][2]string{billing.NodeUsage: {"1", "3.4"}, billing.Other: {"0", "3.6"}, billing.Fee: {"6", "0"}},
		},
		"spend, the new kind": {
			[]bqtest.Row{
				usage(map[string]any{"sku.description": "Commitment - dollar based v1: Compute Flexible CUD for 1 year", "cost": json.Number("3"), "credits": credit(feeOffset, "-2.25"), "resource": nil}),
				usage(map[string]any{"cost": json.Number("2.25")}),
			},
			map[billing.Class][2]string{billing.NodeUsage: {"2.25", "2.25"}, billing.CommitmentUnused: {"0.75", "0.75"}},
		},
		"a commitment of another day": {
			[]bqtest.Row{
				func() bqtest.Row {
					r := commitment("Commitment v1: A2 Cpu in Americas for 1 Year", "0.6", "24")
					r["usage_start_time"] = "2026-10-04 07:00:00 UTC"
					return r
				}(),
				covered("A2 Instance Core running in Americas", "0.4", "12", resourceDiscount, "-0.4"),
			},
			map[billing.Class][2]string{billing.NodeUsage: {"0", "0"}, billing.CommitmentUnused: {"0.6", "0.6"}},
		},
		"other credits": {
			[]bqtest.Row{covered("A2 Instance Core running in Americas", "5", "12", "SUSTAINED_USAGE_DISCOUNT", "-1.5")},
			map[billing.Class][2]string{billing.NodeUsage: {"3.5", "3.5"}},
		},
	} {
		lines := of(t, c.rows...)
		if got := classes(lines); !maps.Equal(got, c.want) {
			t.Errorf("%s: billed and effective %v, want %v", name, got, c.want)
		}
		if b, e := sum(lines, billed), sum(lines, effective); b != e {
			t.Errorf("%s: billed %s in all, effective %s", name, b, e)
		}
	}
}

// The order of rows changes no line.
func TestCommitmentsInAnyOrder(t *testing.T) {
	rows := []bqtest.Row{
		commitment("Commitment v1: A2 Cpu in Americas for 1 Year", "0.7", "24"),
		commitment("Commitment v1: A2 Cpu in Americas for 3 Years", "0.2", "9"),
		commitment("Commitment v1: A2 Cpu in Americas for 3 Years", "0.1", "3"),
		covered("A2 Instance Core running in Americas", "0.4", "12", resourceDiscount, "-0.4"),
		covered("A2 Instance Core running in Americas", "0.3", "10", resourceDiscount, "-0.1"),
	}
	keys := func(rows []bqtest.Row) (out []string) {
		for _, l := range of(t, rows...) {
			k := l.Key()
			out = append(out, string(k[:]))
		}
		slices.Sort(out)
		return out
	}
	want := keys(rows)
	slices.Reverse(rows)
	if !slices.Equal(keys(rows), want) {
		t.Error("the same rows in another order are other lines")
	}
}

// A credit whose commitment another billing account pays is said to be.
func TestCommitmentElsewhere(t *testing.T) {
	dir := t.TempDir()
	r := open(t, write(t, dir, ndjson(t, covered("A2 Instance Core running in Americas", "0.4", "12", resourceDiscount, "-0.4"))))
	ds, err := r.Deliveries(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Read(t.Context(), ds[0], func(*billing.Line) bool { return true }, func(*billing.Line, bool) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if notes := r.ReadNotes(ds[0]); len(notes) != 1 || !strings.Contains(notes[0], "1 lines are covered by commitments that are not in this billing account") {
		t.Errorf("%q", notes)
	}
}
