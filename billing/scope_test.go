package billing_test

import (
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/billing/period"
)

func gpuScope() *billing.Scope {
	return &billing.Scope{
		Instances: map[string]bool{"i-0GPU": true, "i-off": false},
		GPUType:   func(t string) bool { return strings.HasPrefix(t, "p5.") },
		GPUFamily: func(f string) bool { return f == "p5" },
		Catalogue: "1",
		Filters:   []billing.Filter{{Accounts: []string{"42"}, Tags: map[string][]string{"team": {"ml", "ai"}}}, {Accounts: []string{"77"}}, {}},
	}
}

func TestScope(t *testing.T) {
	s := gpuScope()
	for name, tc := range map[string]struct {
		line billing.Line
		want bool
	}{
		"known node":                      {billing.Line{InstanceID: "i-0gpu"}, true},
		"traffic of a known node":         {billing.Line{InstanceID: "i-0gpu", Class: billing.Other}, true},
		"another node":                    {billing.Line{InstanceID: "i-1", InstanceType: "m5.large"}, false},
		"a node that was switched off":    {billing.Line{InstanceID: "i-off"}, false},
		"GPU type of an unknown node":     {billing.Line{InstanceID: "i-1", InstanceType: "p5.48xlarge"}, true},
		"tax by type":                     {billing.Line{Class: billing.Tax, InstanceType: "p5.48xlarge"}, true},
		"tax of the account":              {billing.Line{Class: billing.Tax}, false},
		"plan of a family":                {billing.Line{Class: billing.CommitmentUnused, InstanceFamily: "p5"}, true},
		"plan of another family":          {billing.Line{Class: billing.CommitmentUnused, InstanceFamily: "m5"}, false},
		"compute plan":                    {billing.Line{Class: billing.CommitmentUnused}, false},
		"account and tag":                 {billing.Line{UsageAccount: "42", Tags: map[string]string{"team": "ai"}}, true},
		"account without tag":             {billing.Line{UsageAccount: "42"}, false},
		"account with another tag":        {billing.Line{UsageAccount: "42", Tags: map[string]string{"team": "web"}}, false},
		"all of an account, by payer":     {billing.Line{PayerAccount: "77", Class: billing.Tax}, true},
		"nothing, for the empty filter":   {billing.Line{}, false},
		"tag of an account not asked for": {billing.Line{UsageAccount: "1", Tags: map[string]string{"team": "ai"}}, false},
	} {
		if got := s.Keep(&tc.line); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// Tags are asked for only where a filter needs them.
func TestScopeLoadsTagsOnDemand(t *testing.T) {
	s := gpuScope()
	loads := 0
	l := billing.Line{UsageAccount: "42"}
	l.LoadTags = func() { loads++; l.Tags = map[string]string{"team": "ml"} }
	if !s.Keep(&l) || loads != 1 {
		t.Errorf("kept with %d loads", loads)
	}
	l.UsageAccount = "1"
	if s.Keep(&l) || loads != 1 {
		t.Errorf("%d loads for an account that no filter names", loads)
	}
}

func TestScopeHash(t *testing.T) {
	a, b := gpuScope(), gpuScope()
	b.Instances = map[string]bool{"I-0gpu": true}
	b.Filters[0].Tags = map[string][]string{"team": {"ai", "ml", "ml"}}
	b.Filters[0], b.Filters[1] = b.Filters[1], b.Filters[0]
	if a.Hash() != b.Hash() {
		t.Error("order, case or repetition changed the hash")
	}
	for name, change := range map[string]func(*billing.Scope){
		"a node":        func(s *billing.Scope) { s.Instances["i-2"] = true },
		"catalogue":     func(s *billing.Scope) { s.Catalogue = "2" },
		"an account":    func(s *billing.Scope) { s.Filters[1].Accounts = []string{"78"} },
		"a tag's value": func(s *billing.Scope) { s.Filters[0].Tags["team"] = []string{"*"} },
		"a filter":      func(s *billing.Scope) { s.Filters = s.Filters[:1] },
	} {
		c := gpuScope()
		change(c)
		if c.Hash() == a.Hash() {
			t.Errorf("%s did not change the hash", name)
		}
	}
}

var october = time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)

func exampleLine() billing.Line {
	return billing.Line{
		Provider: "AWS", BillingPeriod: period.MonthOf(october), ChargePeriod: period.Hour(october), Class: billing.NodeUsage, Component: billing.Node,
		ChargeCategory: "Usage", ChargeType: "Usage", PayerAccount: "1", UsageAccount: "2", ResourceID: "i-0gpu", InstanceID: "i-0gpu", InstanceType: "p5.48xlarge",
		Service: "AmazonEC2", Costs: billing.Costs{Billed: money.MustParse("98.32"), Effective: money.MustParse("98.32"), List: money.Some(money.FromInt(0))},
		Currency: "USD", Tags: map[string]string{"a": "1", "b": "2"}, File: "x.csv", Row: 7,
	}
}

// The key is part of stored data: this one may never change.
func TestKeyIsStable(t *testing.T) {
	l := exampleLine()
	if got := hex(l.Key()); got != stableKey {
		t.Errorf("key %s, want %s", got, stableKey)
	}
}

func hex(k [32]byte) string { return new(big.Int).SetBytes(append([]byte{1}, k[:]...)).Text(16)[1:] }

func TestKey(t *testing.T) {
	l := exampleLine()
	key := l.Key()
	m := l
	m.File, m.Row, m.LoadTags = "y.parquet", 1, func() {}
	m.Tags = map[string]string{"b": "2", "a": "1"}
	m.ChargePeriod.Start = m.ChargePeriod.Start.In(time.FixedZone("x", 3600))
	m.Costs.Billed = money.MustParse("9832e-2")
	if m.Key() != key {
		t.Error("place, zone or spelling changed the key")
	}
	for name, change := range map[string]func(*billing.Line){
		"cost":                func(l *billing.Line) { l.Costs.Effective = money.MustParse("98.320000000000000000000001") },
		"list absent, not 0":  func(l *billing.Line) { l.Costs.List = money.NullAmount{} },
		"list is contracted":  func(l *billing.Line) { l.Costs.List, l.Costs.Contracted = l.Costs.Contracted, l.Costs.List },
		"tag":                 func(l *billing.Line) { l.Tags = map[string]string{"a": "1", "b": "3"} },
		"fields run together": func(l *billing.Line) { l.PayerAccount, l.UsageAccount = "12", "" },
		"type to family":      func(l *billing.Line) { l.InstanceType, l.InstanceFamily = "", l.InstanceType },
		"class":               func(l *billing.Line) { l.Class = billing.Other },
		"month":               func(l *billing.Line) { l.BillingPeriod = l.BillingPeriod.Next() },
		"end":                 func(l *billing.Line) { l.ChargePeriod.End = l.ChargePeriod.End.Add(time.Microsecond) },
	} {
		c := exampleLine()
		change(&c)
		if c.Key() == key {
			t.Errorf("%s did not change the key", name)
		}
	}
}

func TestControls(t *testing.T) {
	var c billing.Controls
	a, b := exampleLine(), exampleLine()
	b.Costs = billing.Costs{Billed: money.FromInt(-5), Contracted: money.Some(money.FromInt(3))}
	eur := exampleLine()
	eur.Currency = "EUR"
	late := exampleLine()
	late.ChargePeriod = period.Hour(october.Add(-time.Hour))
	for _, add := range []struct {
		l  billing.Line
		in bool
	}{{a, true}, {b, true}, {eur, true}, {a, false}, {late, false}} {
		if err := c.Add(&add.l, add.in); err != nil {
			t.Fatal(err)
		}
	}
	rows := c.Rows()
	if len(rows) != 4 {
		t.Fatalf("%d rows: %+v", len(rows), rows)
	}
	if rows[0].ChargeMonth.String() != "2026-09" || rows[1].Currency != "EUR" || rows[2].InScope || !rows[3].InScope {
		t.Errorf("order %+v", rows)
	}
	r := rows[3]
	if r.Lines != 2 || r.Billed != money.MustParse("93.32") || r.Effective != money.MustParse("98.32") || r.List.Sign() != 0 || r.NoList != 1 || r.Contracted != money.FromInt(3) || r.NoContracted != 1 {
		t.Errorf("sums %+v", r)
	}
}

func TestControlsRefuseOverflow(t *testing.T) {
	var c billing.Controls
	l := exampleLine()
	l.Costs.Billed = money.FromInt(170_000_000_000_000)
	if err := c.Add(&l, true); err != nil {
		t.Fatal(err)
	}
	var at *billing.RowError
	if err := c.Add(&l, true); !errors.As(err, &at) || at.Row != 7 {
		t.Errorf("%v, want an error at row 7", err)
	}
}

// In scope and out of it, all lines and all money are counted, in any order.
func TestControlsTieOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lines := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) billing.Line {
			l := exampleLine()
			l.Costs.Billed = money.FromInt(rapid.Int64Range(-1000, 1000).Draw(t, "billed"))
			l.Class = rapid.SampledFrom([]billing.Class{billing.NodeUsage, billing.Tax}).Draw(t, "class")
			l.Currency = rapid.SampledFrom([]string{"USD", "EUR"}).Draw(t, "currency")
			l.UsageAccount = rapid.SampledFrom([]string{"1", "2"}).Draw(t, "account")
			return l
		}), 1, 30).Draw(t, "lines")
		keep := func(l *billing.Line) bool { return l.UsageAccount == "1" }
		var a, b billing.Controls
		total := map[string]money.Amount{}
		for i := range lines {
			l, m := lines[i], lines[len(lines)-1-i]
			if err := errors.Join(a.Add(&l, keep(&l)), b.Add(&m, keep(&m))); err != nil {
				t.Fatal(err)
			}
			total[l.Currency] = total[l.Currency].Add(l.Costs.Billed)
		}
		var n int64
		for i, r := range a.Rows() {
			if r != b.Rows()[i] {
				t.Fatalf("order of lines changed %+v", r)
			}
			n += r.Lines
			total[r.Currency] = total[r.Currency].Sub(r.Billed)
		}
		if n != int64(len(lines)) || total["USD"].Sign() != 0 || total["EUR"].Sign() != 0 {
			t.Fatalf("%d of %d lines, left over %v", n, len(lines), total)
		}
	})
}

const stableKey = "cef8911b82fb02ed18a14cf7a9e36b3efa4f6871172f30660fbd52eee66434db"
