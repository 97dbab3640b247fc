package oci

import (
	"encoding/csv"
	"errors"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpuledger/billing"
	"gpuledger/billing/billingtest"
	"gpuledger/objstore"
)

func open(t testing.TB, location string) *Reader {
	t.Helper()
	store, err := objstore.Open(t.Context(), location)
	if err != nil {
		t.Fatal(err)
	}
	return New(store, "oci")
}

// The published report, by an independent sum of its column of costs.
func TestPublishedReport(t *testing.T) {
	p := billingtest.Shared(t, "samples/billing/oci/oci-cost-report.csv", "Oracle's cost report")
	f, err := os.Open(p)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows := csv.NewReader(f)
	head, err := rows.Read()
	if err != nil {
		t.Fatal(err)
	}
	want, n := new(big.Rat), 0
	for {
		rec, err := rows.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		n++
		for i, name := range head {
			if name == "cost/myCost" {
				x, _ := new(big.Rat).SetString(rec[i])
				want.Add(want, x)
			}
		}
	}
	r := open(t, p)
	ds := billingtest.Deliveries(t, r)
	if len(ds) != 1 || ds[0].BillingPeriod.String() != "2023-11" || ds[0].Format != "OCI cost report" {
		t.Fatalf("%+v", ds)
	}
	lines := billingtest.ReadAll(t, r, ds[0])
	got := new(big.Rat)
	parts := map[billing.Component]int{}
	for _, l := range lines {
		x, _ := new(big.Rat).SetString(l.Costs.Billed.String())
		got.Add(got, x)
		if l.Class == billing.NodeUsage {
			parts[l.Component]++
			if _, ok := l.BilledMicros(); ok || !strings.HasPrefix(l.InstanceID, "ocid1.instance.oc1.us-") {
				t.Errorf("%+v", l)
			}
		}
	}
	if got.Cmp(want) != 0 || len(lines) != n || got.FloatString(18) != "2.523589325400648027" {
		t.Errorf("%d lines of %s, want %d of %s", len(lines), got.FloatString(18), n, want.FloatString(18))
	}
	if parts[billing.CPU] != 24 || parts[billing.Memory] != 24 || len(parts) != 2 {
		t.Errorf("lines of machines: %v", parts)
	}
	if tags := lines[0].Tags; tags["Oracle-Tags.CreatedBy"] != "default/phil.newman@oracle.com" || tags["OracleInternalReserved.CostCenter"] != "607825" {
		t.Errorf("tags %v", tags)
	}
}

const head = "lineItem/referenceNo,lineItem/tenantId,lineItem/intervalUsageStart,lineItem/intervalUsageEnd,product/service,product/compartmentId,product/resourceId,usage/billedQuantity,product/Description,cost/unitPrice,cost/myCost,cost/currencyCode,cost/skuUnitDescription,lineItem/isCorrection,tags/ml.team\n"

func read(t *testing.T, files map[string]string) ([]billing.Line, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := open(t, dir)
	ds, err := r.Deliveries(t.Context())
	if err != nil {
		return nil, err
	}
	var out []billing.Line
	for _, d := range ds {
		lines, err := billingtest.Read(r, d)
		if err != nil {
			return nil, err
		}
		out = append(out, lines...)
	}
	return out, nil
}

// A GPU machine, a correction, and reports that follow one another.
func TestReports(t *testing.T) {
	row := func(start, end, cost, correction string) string {
		return "r,t," + start + "," + end + ",COMPUTE,c,ocid1.instance.oc1.x,8,Compute - GPU - A100,2.5," + cost + ",USD,GPU Per Hour," + correction + ",search\n"
	}
	lines, err := read(t, map[string]string{
		"cost-csv/1.csv":  head + row("2026-10-05T10:00Z", "2026-10-05T11:00:00Z", "20", "false") + row("2026-09-30T23:00Z", "2026-10-01T00:00:00Z", "19", "false"),
		"cost-csv/2.csv":  head + row("2026-10-05T10:00Z", "2026-10-05T11:00:00Z", "-1.5E0", "true"),
		"usage-csv/1.csv": "something,else\n1,2\n",
	})
	if err != nil || len(lines) != 3 {
		t.Fatalf("%v %v", lines, err)
	}
	for i, want := range []string{"2026-09 19 ", "2026-10 20 ", "2026-10 -1.5 Correction"} {
		l := lines[i]
		if got := l.BillingPeriod.String() + " " + l.Costs.Effective.String() + " " + l.ChargeClass; got != want || l.Class != billing.NodeUsage || l.Component != billing.GPU || l.Tags["ml.team"] != "search" {
			t.Errorf("%q, want %q: %+v", got, want, l)
		}
	}
}

func TestRefused(t *testing.T) {
	for says, file := range map[string]string{
		"column cost/myCost, cost/currencyCode is not in the file":   "lineItem/intervalUsageStart,lineItem/intervalUsageEnd,product/service\n",
		"row 1, column cost/myCost":                                  head + "r,t,2026-10-05T10:00Z,2026-10-05T11:00Z,COMPUTE,c,x,1,d,1,ten,USD,Hours,false,\n",
		"row 1, column cost/currencyCode: no currency":               head + "r,t,2026-10-05T10:00Z,2026-10-05T11:00Z,COMPUTE,c,x,1,d,1,1,,Hours,false,\n",
		"row 1, column lineItem/intervalUsageEnd: the usage ends":    head + "r,t,2026-10-05T10:00Z,2026-10-05T09:00Z,COMPUTE,c,x,1,d,1,1,USD,Hours,false,\n",
		"row 1, column lineItem/intervalUsageStart: \"yesterday\" i": head + "r,t,yesterday,2026-10-05T09:00Z,COMPUTE,c,x,1,d,1,1,USD,Hours,false,\n",
	} {
		if _, err := read(t, map[string]string{"a.csv": file}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %s", err, says)
		}
	}
	if _, err := read(t, nil); !errors.Is(err, billing.ErrIncomplete) {
		t.Error(err)
	}
}

// FuzzReport: any bytes are lines, or an error.
func FuzzReport(f *testing.F) {
	f.Add([]byte(head + "r,t,2026-10-05T10:00Z,2026-10-05T11:00Z,COMPUTE,c,ocid1.instance.x,1,GPU,1,1.81E-8,USD,GPU Per Hour,true,x\n"))
	f.Add([]byte("\ufeff" + head + "\"r\n\",t,2026-10-05 10:00,2026-10-05,NETWORK,c,x,1,d,1,-1,EUR,,,\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		lines, err := read(t, map[string]string{"a.csv": string(b)})
		for i := range lines {
			l := &lines[i]
			if l.Class == "" || l.Currency == "" || l.ChargePeriod.End.Before(l.ChargePeriod.Start) {
				t.Fatalf("line %+v", l)
			}
			l.Key()
		}
		var at *billing.RowError
		if errors.As(err, &at) && (at.Row < 0 || at.File == "") {
			t.Fatalf("a row error without a place: %v", err)
		}
	})
}
