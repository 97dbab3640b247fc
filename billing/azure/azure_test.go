package azure

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpuledger/billing"
	"gpuledger/billing/billingtest"
	"gpuledger/objstore"
)

type folder struct {
	t   testing.TB
	dir string
}

func newFolder(t testing.TB) folder { return folder{t, t.TempDir()} }

func (f folder) put(key string, b []byte) {
	f.t.Helper()
	p := filepath.Join(f.dir, filepath.FromSlash(key))
	if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, b, 0o644)); err != nil {
		f.t.Fatal(err)
	}
}

func (f folder) reader(opt Options) *Reader {
	f.t.Helper()
	store, err := objstore.Open(context.Background(), f.dir)
	if err != nil {
		f.t.Fatal(err)
	}
	return New(store, "azure", opt)
}

// export puts one run with its manifest below a container's path, parts and all.
func (f folder) export(name, kind, runID, submitted string, change func(map[string]any), parts ...[]byte) {
	f.t.Helper()
	at := "exports/" + name + "/20260901-20260930/" + runID + "/"
	var blobs []map[string]any
	rows := 0
	for i, p := range parts {
		base := fmt.Sprintf("part_%d_0001.csv", i)
		f.put(at+base, p)
		n := bytes.Count(p, []byte("\n")) - 1
		rows += n
		blobs = append(blobs, map[string]any{"blobName": "container/deep/" + at + base, "byteCount": len(p), "dataRowCount": n})
	}
	m := map[string]any{
		"manifestVersion": "2024-04-01", "blobCount": len(parts), "dataRowCount": rows, "blobs": blobs,
		"exportConfig": map[string]any{"exportName": name, "type": kind, "dataVersion": "2023-12-01"},
		"runInfo":      map[string]any{"runId": runID, "submittedTime": submitted, "startDate": "2026-09-01T00:00:00", "endDate": "2026-09-30T00:00:00"},
	}
	if change != nil {
		change(m)
	}
	b, err := json.Marshal(m)
	if err != nil {
		f.t.Fatal(err)
	}
	f.put(at+"manifest.json", b)
}

const head = "Date,BillingPeriodStartDate,ChargeType,PricingModel,Cost,BillingCurrency,Quantity,UnitOfMeasure,UnitPrice,PayGPrice,MeterCategory,ResourceId,AdditionalInfo,Tags,BenefitId\n"

const vmss = "/subscriptions/1/resourceGroups/MC_x/providers/Microsoft.Compute/virtualMachineScaleSets/aks-gpu-1-vmss"

// vm is a row of a machine of a scale set.
func vm(day, charge, model, cost, quantity, payg string, n int) string {
	return fmt.Sprintf("%s,09/01/2026,%s,%s,%s,USD,%s,1 Hour,3.673,%s,Virtual Machines,%s,%s,%s,\n", day, charge, model, cost, quantity, payg, vmss,
		quoted(fmt.Sprintf(`"ServiceType":"Standard_NC24ads_A100_v4","VMName":"aks-gpu-1-vmss_%d"`, n)), quoted(`"team": "search","a/b:c": 3`))
}

func quoted(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

const purchase = "09/01/2026,09/01/2026,Purchase,Reservation,1000,USD,1,1 Hour,1000,0,Virtual Machines,/providers/Microsoft.Capacity/reservationOrders/r,,,r\n"

// An actual and an amortized export are one bill: usage from the second, with what a
// reservation covers billed 0, the purchase from the first with effective cost 0.
func TestActualAndAmortized(t *testing.T) {
	f := newFolder(t)
	f.export("act", "ActualCost", "run-1", "2026-09-03T00:00:00Z", nil, []byte(head+vm("09/02/2026", "Usage", "Reservation", "0", "24", "0", 2)+vm("09/02/2026", "Usage", "OnDemand", "88.152", "24", "3.673", 3)+purchase))
	f.export("amo", "AmortizedCost", "run-2", "2026-09-03T00:00:00Z", nil, []byte(head+vm("09/02/2026", "Usage", "Reservation", "40.5", "24", "0", 2)),
		[]byte(head+vm("2026-09-02", "Usage", "OnDemand", "88.152", "24", "3.673", 3)+"9/2/2026,9/1/2026,UnusedReservation,Reservation,7.5,USD,4,1 Hour,0,0,Virtual Machines,,,,r\n"))
	r := f.reader(Options{})
	ds := billingtest.Deliveries(t, r)
	if len(ds) != 1 || ds[0].Format != "Azure actual and amortized" || ds[0].BillingPeriod.String() != "2026-09" || len(ds[0].Files) != 3 || len(ds[0].Notes) != 1 {
		t.Fatalf("%+v", ds)
	}
	lines := billingtest.ReadAll(t, r, ds[0])
	var got []string
	for _, l := range lines {
		hours, _ := l.InstanceHours()
		got = append(got, fmt.Sprintf("%s %s billed %s effective %s list %v %s h %s", l.Class, l.InstanceID, l.Costs.Billed, l.Costs.Effective, l.Costs.List.Amount, hours, l.ChargePeriod))
	}
	want := []string{
		// 24 × 3.673, for the pay-as-you-go price of what is reserved is no price.
		"node_usage aks-gpu-1-vmss/2 billed 0 effective 40.5 list 88.152 24 h 2026-09-02T00:00:00Z/2026-09-03T00:00:00Z",
		"node_usage aks-gpu-1-vmss/3 billed 88.152 effective 88.152 list 88.152 24 h 2026-09-02T00:00:00Z/2026-09-03T00:00:00Z",
		"commitment_unused  billed 0 effective 7.5 list 0 4 h 2026-09-02T00:00:00Z/2026-09-03T00:00:00Z",
		"fee  billed 1000 effective 0 list 1000 1 h 2026-09-01T00:00:00Z/2026-09-02T00:00:00Z",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if l := lines[0]; l.InstanceType != "Standard_NC24ads_A100_v4" || l.Tags["team"] != "search" || l.Tags["a/b:c"] != "3" {
		t.Errorf("%+v", l)
	}
}

// The newest submitted run of a month counts, whatever its folder is called and however
// many lie beside it; a half-written one is an error that keeps the others' months.
func TestRuns(t *testing.T) {
	day := func(cost string) []byte {
		return []byte(head + vm("09/02/2026", "Usage", "OnDemand", cost, "1", "1", 1))
	}
	f := newFolder(t)
	f.export("act", "ActualCost", "zzz", "2026-09-03T00:00:00Z", nil, day("1"))
	f.export("act", "ActualCost", "aaa", "2026-09-04T00:00:00.1234567Z", nil, day("2"))
	r := f.reader(Options{})
	ds := billingtest.Deliveries(t, r)
	if lines := billingtest.ReadAll(t, r, ds[0]); len(lines) != 1 || lines[0].Costs.Billed.String() != "2" {
		t.Errorf("%+v", lines)
	}
	if len(ds[0].Notes) != 2 || !strings.Contains(ds[0].Notes[1], "no amortized export") {
		t.Errorf("%v", ds[0].Notes)
	}
	for name, c := range map[string]struct {
		change     func(map[string]any)
		says       string
		incomplete bool
	}{
		"bytes":  {func(m map[string]any) { m["blobs"].([]map[string]any)[0]["byteCount"] = 7 }, "the manifest says 7", true},
		"blobs":  {func(m map[string]any) { m["blobCount"] = 2 }, "blobCount is 2", true},
		"absent": {func(m map[string]any) { m["blobs"].([]map[string]any)[0]["blobName"] = "x/part_9_0001.csv" }, "part_9_0001.csv is not there", true},
		"sum":    {func(m map[string]any) { m["dataRowCount"] = 5 }, "add up to 1", true},
		"kind":   {func(m map[string]any) { m["exportConfig"].(map[string]any)["type"] = "PriceSheet" }, "PriceSheet", false},
		"focus":  {func(m map[string]any) { m["exportConfig"].(map[string]any)["type"] = "FocusCost" }, "type focus", false},
		"start":  {func(m map[string]any) { m["runInfo"].(map[string]any)["startDate"] = "soon" }, "soon", false},
	} {
		f := newFolder(t)
		f.export("act", "ActualCost", "r", "2026-09-03T00:00:00Z", c.change, day("1"))
		_, err := f.reader(Options{}).Deliveries(context.Background())
		if err == nil || !strings.Contains(err.Error(), c.says) || errors.Is(err, billing.ErrIncomplete) != c.incomplete {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A manifest that lies about rows is found while reading.
	lying := newFolder(t)
	lying.export("act", "ActualCost", "r", "2026-09-03T00:00:00Z", func(m map[string]any) {
		m["dataRowCount"], m["blobs"].([]map[string]any)[0]["dataRowCount"] = 2, 2
	}, day("1"))
	r = lying.reader(Options{})
	if _, err := billingtest.Read(r, billingtest.Deliveries(t, r)[0]); !errors.Is(err, billing.ErrIncomplete) || !strings.Contains(err.Error(), "has 1 rows and the manifest says 2") {
		t.Error(err)
	}
	two := newFolder(t)
	two.export("act", "ActualCost", "r", "2026-09-03T00:00:00Z", nil, day("1"))
	two.export("other", "ActualCost", "r", "2026-09-03T00:00:00Z", nil, day("1"))
	if _, err := two.reader(Options{}).Deliveries(context.Background()); err == nil || !strings.Contains(err.Error(), "two exports hold 2026-09") {
		t.Error(err)
	}
}

// The same row of every header: spellings, cases, translations, a byte order mark.
func TestHeaders(t *testing.T) {
	info := quoted(`{"VMName":"aks-gpu-1-vmss_2","ServiceType":"Standard_NC24ads_A100_v4"}`)
	for name, text := range map[string]string{
		"enterprise":    "\ufeffDate,CostInBillingCurrency,BillingCurrencyCode,Quantity,UnitOfMeasure,MeterCategory,ResourceId,AdditionalInfo\r\n9/2/2026,3.673,USD,1,1 Hour,Virtual Machines," + vmss + "," + info + "\r\n",
		"customer":      "date,costInBillingCurrency,billingCurrency,quantity,unitOfMeasure,meterCategory,resourceId,additionalInfo\n09/02/2026,3.673,USD,1,1 Hour,Virtual Machines," + vmss + "," + info + "\n",
		"pay as you go": "UsageDateTime,PreTaxCost,Currency,UsageQuantity,UnitOfMeasure,MeterCategory,InstanceId,AdditionalInfo\n2026-09-02,3.673,USD,1,1 Hour,Virtual Machines," + vmss + "," + info + "\n",
		"translated":    "Datum (Date),Kosten (CostInBillingCurrency),Währung (BillingCurrency),Menge (Quantity),Einheit (UnitOfMeasure),Kategorie (MeterCategory),Ressource (ResourceId),Info (AdditionalInfo)\n2026-09-02,3.673,USD,1,10 Hours,Virtual Machines," + vmss + "," + info + "\n",
	} {
		f := newFolder(t)
		f.put("export_1a2b3c4d-5e6f-7089-9abc-def012345678.csv", []byte(text))
		r := f.reader(Options{})
		lines := billingtest.ReadAll(t, r, billingtest.Deliveries(t, r)[0])
		if len(lines) != 1 || lines[0].InstanceID != "aks-gpu-1-vmss/2" || lines[0].Costs.Billed.String() != "3.673" || lines[0].ConsumedUnit != "Hours" || lines[0].ChargePeriod.String() != "2026-09-02T00:00:00Z/2026-09-03T00:00:00Z" {
			t.Errorf("%s: %+v", name, lines)
		}
	}
	f := newFolder(t)
	f.put("x.csv", []byte("Datum,Kosten\n2026-09-02,1\n"))
	if _, err := f.reader(Options{}).Deliveries(context.Background()); err == nil || !strings.Contains(err.Error(), "column Date, Cost, BillingCurrency") {
		t.Error(err)
	}
}

func TestBadRows(t *testing.T) {
	row := func(day, cost, currency, info string) string {
		return fmt.Sprintf("%s,,Usage,OnDemand,%s,%s,1,1 Hour,1,1,Virtual Machines,%s,%s,,\n", day, cost, currency, vmss, quoted(info))
	}
	for name, c := range map[string]struct{ text, says string }{
		"date":     {row("31/12/2026", "1", "USD", ""), `"31/12/2026" is not a date`},
		"late":     {row("2026-10-01", "1", "USD", ""), "after the billing period 2026-09"},
		"cost":     {row("2026-09-02", "1,5.x", "USD", ""), "row 1"},
		"no cost":  {row("2026-09-02", "", "USD", ""), "column Cost"},
		"currency": {row("2026-09-02", "1", "Dollar", ""), "ISO 4217"},
		"info":     {row("2026-09-02", "1", "USD", `{"VMName":`), "column AdditionalInfo"},
	} {
		f := newFolder(t)
		f.export("act", "ActualCost", "r", "2026-09-03T00:00:00Z", nil, []byte(head+c.text))
		r := f.reader(Options{})
		lines, err := billingtest.Read(r, billingtest.Deliveries(t, r)[0])
		if err == nil || !strings.Contains(err.Error(), c.says) || len(lines) > 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Real enterprise exports (Microsoft, FinOps toolkit): the sums of their columns, worked
// out apart, and the published figures of an AKS node.
func TestSamples(t *testing.T) {
	sums := func(path string, of func(charge, model string) bool) *big.Rat {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		rows, err := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")))).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		at := func(name string) int { return slices.Index(rows[0], name) }
		sum := new(big.Rat)
		for _, row := range rows[1:] {
			x, ok := new(big.Rat).SetString(row[at("Cost")])
			if !ok {
				t.Fatalf("%q", row[at("Cost")])
			}
			if of(row[at("ChargeType")], row[at("PricingModel")]) {
				sum.Add(sum, x)
			}
		}
		return sum
	}
	actualPath := billingtest.Shared(t, "samples/billing/azure/ea-actual-small.csv", "published Azure exports")
	amortizedPath := billingtest.Shared(t, "samples/billing/azure/ea-amortized-small.csv", "published Azure exports")
	f := newFolder(t)
	for name, path := range map[string]string{"actual.csv": actualPath, "amortized.csv": amortizedPath} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f.put(name, text)
	}
	r := f.reader(Options{})
	ds := billingtest.Deliveries(t, r)
	if len(ds) != 1 || ds[0].BillingPeriod.String() != "2023-09" || ds[0].Format != "Azure actual and amortized" {
		t.Fatalf("%+v", ds)
	}
	lines := billingtest.ReadAll(t, r, ds[0])
	billed, effective := new(big.Rat), new(big.Rat)
	for _, l := range lines {
		b, ok1 := new(big.Rat).SetString(l.Costs.Billed.String())
		e, ok2 := new(big.Rat).SetString(l.Costs.Effective.String())
		if !ok1 || !ok2 {
			t.Fatal(l)
		}
		billed.Add(billed, b)
		effective.Add(effective, e)
	}
	covered := func(model string) bool { return model == "Reservation" || model == "SavingsPlan" }
	wantBilled := sums(actualPath, func(charge, model string) bool { return covered(model) && (charge == "Purchase" || charge == "Refund") })
	wantBilled.Add(wantBilled, sums(amortizedPath, func(_, model string) bool { return !covered(model) }))
	wantEffective := sums(amortizedPath, func(string, string) bool { return true })
	if billed.Cmp(wantBilled) != 0 || effective.Cmp(wantEffective) != 0 {
		t.Errorf("billed %s, want %s; effective %s, want %s", billed.FloatString(12), wantBilled.FloatString(12), effective.FloatString(12), wantEffective.FloatString(12))
	}
	found := false
	for _, l := range lines {
		if l.InstanceID == "aks-agentpool-42850074-vmss/1" && l.ChargePeriod.Start.Day() == 22 {
			found = true
			if l.Costs.Effective.String() != "0.493152" || l.Costs.Billed.Sign() != 0 || l.Costs.List.Amount.String() != "1.168" || l.InstanceType != "Standard_DS2_v2" {
				t.Errorf("%+v", l)
			}
		}
	}
	if !found {
		t.Error("the node of the worked example is not there")
	}
}

// Every variant of header that OpenCost tests, and an anonymous enterprise export, reads.
func TestOtherSamples(t *testing.T) {
	for name, want := range map[string]int{
		"ea-anonymous.csv": 27, "opencost-Enterprise.csv": 1, "opencost-PayAsYouGo.csv": 1, "opencost-Template.csv": -1 /* its rows lack a field */, "opencost-VirtualMachine.csv": 1,
	} {
		path := billingtest.Shared(t, "samples/billing/azure/"+name, "published Azure exports")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f := newFolder(t)
		f.put(name, text)
		r := f.reader(Options{Currency: "USD"})
		ds, err := r.Deliveries(context.Background())
		if want < 0 {
			var row *billing.RowError
			if !errors.As(err, &row) || row.Row != 1 {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if lines, err := billingtest.Read(r, ds[0]); err != nil || len(lines) != want {
			t.Errorf("%s: %d lines, %v", name, len(lines), err)
		}
	}
}
