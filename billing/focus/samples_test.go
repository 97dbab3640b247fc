package focus

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"gpuledger/billing"
	"gpuledger/billing/billingtest"
	"gpuledger/billing/money"
	"gpuledger/objstore"
)

func open(t testing.TB, location string, opt Options) *Reader {
	t.Helper()
	store, err := objstore.Open(context.Background(), location)
	if err != nil {
		t.Fatal(err)
	}
	return New(store, "test", opt)
}

func readFile(t testing.TB, location string) ([]billing.Delivery, []billing.Line) {
	t.Helper()
	r := open(t, location, Options{Currency: "USD"})
	ds := billingtest.Deliveries(t, r)
	var lines []billing.Line
	for _, d := range ds {
		lines = append(lines, billingtest.ReadAll(t, r, d)...)
	}
	return ds, lines
}

func sum(lines []billing.Line, of func(*billing.Line) money.Amount) money.Amount {
	var s money.Amount
	for i := range lines {
		s = s.Add(of(&lines[i]))
	}
	return s
}

func billed(l *billing.Line) money.Amount    { return l.Costs.Billed }
func effective(l *billing.Line) money.Amount { return l.Costs.Effective }

func TestOfficialSample(t *testing.T) {
	p := billingtest.Shared(t, "samples/billing/focus/focus-1.0-sample-1000.csv", "the official FOCUS 1.0 sample")
	ds, lines := readFile(t, p)
	if len(ds) != 2 || ds[0].Format != "FOCUS 1.0" || ds[0].BillingPeriod.String() != "2024-09" || ds[1].BillingPeriod.String() != "2024-10" {
		t.Errorf("deliveries %+v", ds)
	}
	if len(lines) != 1000 {
		t.Errorf("%d lines, want 1000", len(lines))
	}
	var gpus []billing.Line
	for _, l := range billingtest.Class(lines, billing.NodeUsage) {
		if strings.HasPrefix(l.InstanceType, "g5.") || strings.HasPrefix(l.InstanceType, "g3.") {
			gpus = append(gpus, l)
		}
	}
	if len(gpus) != 10 {
		t.Errorf("%d GPU instance hours, want 10", len(gpus))
	}
	if got := sum(gpus, billed); got != money.MustParse("12.126483324") {
		t.Errorf("billed %s, want 12.126483324", got)
	}
	var micros int64
	for _, l := range gpus {
		m, ok := l.BilledMicros()
		if !ok {
			t.Errorf("row %d has no billed time", l.Row)
		}
		micros += m
		if len(l.Tags) == 0 || l.UsageAccount == "" || l.Region != "us-east-1" {
			t.Errorf("row %d: tags, account or region missing: %+v", l.Row, l)
		}
	}
	if want := int64(6*3600e6 + (296111+683889+303056+686667)*3600); micros != want {
		t.Errorf("billed %d µs, want %d", micros, want)
	}
}

// The worked examples of the specification: a plan of 1 per hour, used whole,
// not at all, by three quarters, and exceeded.
func TestCommitmentScenarios(t *testing.T) {
	for n, want := range map[string][3]string{
		"1": {"1", "0", "0"}, "2": {"0", "1", "0"}, "3": {"0.75", "0.25", "0"}, "4": {"1.5", "0", "0.5"},
	} {
		p := billingtest.Shared(t, "samples/billing/focus/focus_spec_1.2/commitment_discount_scenarios/commitment_discount_usage_scenario_"+n+".csv", "the specification's commitment scenarios")
		_, lines := readFile(t, p)
		node, unused := billingtest.Class(lines, billing.NodeUsage), billingtest.Class(lines, billing.CommitmentUnused)
		got := [3]string{sum(node, effective).String(), sum(unused, effective).String(), sum(node, billed).String()}
		if got != want || len(node)+len(unused) != len(lines) {
			t.Errorf("scenario %s: node effective, unused, node billed %v, want %v", n, got, want)
		}
	}
	p := billingtest.Shared(t, "samples/billing/focus/focus_spec_1.2/commitment_discount_scenarios/commitment_discount_purchase_scenario_1.csv", "the specification's purchases")
	_, lines := readFile(t, p)
	if len(lines) != 1 || lines[0].Class != billing.Fee || effective(&lines[0]).Sign() != 0 || billed(&lines[0]) != money.FromInt(8760) {
		t.Errorf("purchase %+v", lines)
	}
}

// A correction bills June for May: after original and correction, ledger and
// delta give the same costs by resource, and both months are kept.
func TestCorrectionExamples(t *testing.T) {
	dir := "samples/billing/focus/focus_spec_1.4_corrections/scenario_1_"
	for _, style := range []string{"ledger", "delta"} {
		var lines []billing.Line
		for _, f := range []string{"original", style} {
			_, more := readFile(t, billingtest.Shared(t, dir+f+".csv", "the specification's correction examples"))
			lines = append(lines, more...)
		}
		byResource := map[string]money.Amount{}
		var june money.Amount
		for _, l := range lines {
			byResource[l.ResourceID] = byResource[l.ResourceID].Add(l.Costs.Effective)
			if l.ChargePeriod.Start.Format("2006-01-02T15") != "2025-05-01T00" {
				t.Errorf("%s: charge period %s", style, l.ChargePeriod)
			}
			if l.BillingPeriod.String() == "2025-06" {
				june = june.Add(l.Costs.Effective)
				if l.ChargeClass != "Correction" {
					t.Errorf("%s: charge class %q", style, l.ChargeClass)
				}
			}
			if l.Class != billing.NodeUsage {
				t.Errorf("%s row %d: class %s", style, l.Row, l.Class)
			}
		}
		if byResource["R-111"] != money.FromInt(1200) || byResource["R-222"] != money.FromInt(300) || june.Sign() != 0 {
			t.Errorf("%s: %v, June %s", style, byResource, june)
		}
	}
}

// defects of published files: these two end a charge period at hour 30.
var defects = map[string]string{
	"commitment_discount_purchase_scenario_2.csv": "ChargePeriodEnd",
	"commitment_discount_purchase_scenario_3.csv": "ChargePeriodEnd",
}

// Every published file reads, or is refused with a reason.
func TestAllSamples(t *testing.T) {
	root := billingtest.Shared(t, "samples/billing/focus", "all published FOCUS files")
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !(strings.HasSuffix(p, ".csv") || strings.HasSuffix(p, ".gz") || strings.HasSuffix(p, ".parquet")) {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		t.Run(filepath.ToSlash(rel), func(t *testing.T) {
			r := open(t, p, Options{Currency: "USD"})
			ds, err := r.Deliveries(context.Background())
			if err != nil {
				t.Log("refused:", err)
				if !strings.Contains(err.Error(), filepath.Base(p)) {
					t.Errorf("the error does not name the file")
				}
				return
			}
			n := 0
			for _, d := range ds {
				lines, err := billingtest.Read(r, d)
				var rowErr *billing.RowError
				if errors.As(err, &rowErr) && defects[filepath.Base(p)] == rowErr.Column {
					t.Log("refused:", err)
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				n += len(lines)
				for _, l := range lines {
					if l.Provider == "" && len(d.Notes) == 0 {
						t.Errorf("row %d has no provider", l.Row)
					}
				}
				t.Log(d.Format, d.BillingPeriod, len(lines), "lines", d.Notes, r.ReadNotes(d))
			}
			if n == 0 {
				t.Error("no lines")
			}
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
