package billing_test

import (
	"slices"
	"testing"
	"time"

	"gpuledger/billing"
	"gpuledger/billing/money"
)

func wideLine(class billing.Class, account, service, cost string) billing.Line {
	l := exampleLine()
	l.Class, l.UsageAccount, l.Service, l.Commitment = class, account, service, ""
	l.Costs = billing.Costs{Billed: money.MustParse(cost), Effective: money.MustParse(cost)}
	return l
}

func basesOf(t *testing.T, lines []billing.Line, inScope func(*billing.Line) bool) []billing.Line {
	t.Helper()
	var b billing.Bases
	for i := range lines {
		if err := b.Add(&lines[i], inScope(&lines[i])); err != nil {
			t.Fatal(err)
		}
	}
	return b.Lines()
}

func gpuOnly(l *billing.Line) bool { return l.Class == billing.NodeUsage }

// 2.0 M in the account, 300 k of it GPUs, −180 k of discount: −27,000.00 (DESIGN §6).
func TestDiscountByBase(t *testing.T) {
	got := basesOf(t, []billing.Line{
		wideLine(billing.NodeUsage, "1", "AmazonEC2", "300000"),
		wideLine(billing.Other, "1", "AmazonEC2", "1700000"),
		wideLine(billing.Discount, "1", "AmazonEC2", "-100000"),
		wideLine(billing.Discount, "1", "AmazonEC2", "-80000"),
	}, gpuOnly)
	if len(got) != 1 || got[0].Costs.Effective != money.MustParse("-27000.00") || got[0].Class != billing.Discount || !got[0].ByBase {
		t.Errorf("%+v", got)
	}
}

// An account-wide line is of the nearest usage there is.
func TestNearestBase(t *testing.T) {
	usage := []billing.Line{
		wideLine(billing.NodeUsage, "1", "AmazonEC2", "100"), wideLine(billing.Other, "1", "AmazonEC2", "100"),
		wideLine(billing.Other, "2", "AmazonEC2", "200"), wideLine(billing.Other, "1", "AmazonS3", "600"),
	}
	for name, c := range map[string]struct{ account, service, want string }{
		"account and service":    {"1", "AmazonEC2", "50"},
		"service":                {"3", "AmazonEC2", "25"},
		"account":                {"1", "Tax", "12.5"},
		"payer":                  {"3", "Tax", "10"},
		"service without scope":  {"1", "AmazonS3", ""},
		"account without scope":  {"2", "Tax", ""},
		"account 2, its service": {"2", "AmazonEC2", ""},
	} {
		got := ""
		for _, l := range basesOf(t, append(slices.Clone(usage), wideLine(billing.Tax, c.account, c.service, "100")), gpuOnly) {
			got += l.Costs.Billed.String()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// What a plan left unused goes by what the rest of it covered; of one that covered nothing
// no part is known. Currencies and months stay apart, and the order changes nothing.
func TestCommitmentByBase(t *testing.T) {
	covered := func(class billing.Class, plan, cost string) billing.Line {
		l := wideLine(class, "1", "AmazonEC2", cost)
		l.Commitment = plan
		return l
	}
	euro, september := wideLine(billing.Tax, "1", "AmazonEC2", "10"), wideLine(billing.Tax, "1", "AmazonEC2", "10")
	euro.Currency = "EUR"
	september.ChargePeriod.Start = time.Date(2026, 9, 30, 0, 0, 0, 0, time.UTC)
	lines := []billing.Line{
		covered(billing.NodeUsage, "sp-1", "40"), covered(billing.Other, "sp-1", "60"), covered(billing.CommitmentUnused, "sp-1", "100"),
		covered(billing.Other, "sp-2", "60"), covered(billing.CommitmentUnused, "sp-2", "100"), covered(billing.CommitmentUnused, "sp-3", "100"), euro, september,
	}
	got := basesOf(t, lines, gpuOnly)
	if len(got) != 1 || got[0].Commitment != "sp-1" || got[0].Costs.Effective != money.MustParse("40") {
		t.Errorf("%+v", got)
	}
	key := got[0].Key()
	slices.Reverse(lines)
	if again := basesOf(t, lines, gpuOnly); len(again) != 1 || again[0].Key() != key {
		t.Errorf("in another order %+v", again)
	}
}
