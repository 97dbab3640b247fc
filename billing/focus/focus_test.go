package focus

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpuledger/billing"
	"gpuledger/billing/billingtest"
	"gpuledger/billing/money"
	"gpuledger/internal/parquetio"
)

type row map[string]string

// full adds what every row has.
func full(r row) row {
	out := row{
		"BilledCost": "1", "EffectiveCost": "1", "BillingCurrency": "USD", "BillingPeriodStart": "2026-10-01T00:00:00Z", "ChargeCategory": "Usage",
		"ChargePeriodStart": "2026-10-01T00:00:00Z", "ChargePeriodEnd": "2026-10-01T01:00:00Z", "ServiceProviderName": "AWS", "ServiceName": "Amazon Elastic Compute Cloud",
		"ConsumedQuantity": "1", "ConsumedUnit": "Hours",
	}
	for k, v := range r {
		out[k] = v
	}
	return out
}

func csvOf(names []string, rows ...row) []byte {
	records := [][]string{names}
	for _, r := range rows {
		r = full(r)
		var rec []string
		for _, n := range names {
			rec = append(rec, r[n])
		}
		records = append(records, rec)
	}
	var b bytes.Buffer
	if err := csv.NewWriter(&b).WriteAll(records); err != nil {
		panic(err) // a buffer takes everything
	}
	return b.Bytes()
}

func put(t testing.TB, dir, name string, b []byte) string {
	t.Helper()
	p := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

func one(t testing.TB, r row) billing.Line {
	t.Helper()
	_, lines := readFile(t, put(t, t.TempDir(), "a.csv", csvOf(columns[:], r)))
	if len(lines) != 1 {
		t.Fatalf("%d lines", len(lines))
	}
	return lines[0]
}

func TestClasses(t *testing.T) {
	gce := "//compute.googleapis.com/projects/p/zones/us-central1-a/instances/gpu-1"
	azure := "/subscriptions/s/resourceGroups/r/providers/Microsoft.Compute/virtualMachineScaleSets/aks-gpu-1-vmss"
	for name, tc := range map[string]struct {
		row            row
		class          billing.Class
		instance, typ  string
		family, region string
	}{
		"instance by id":              {row{"ResourceId": "i-0a", "ChargeDescription": "$1.624 per On Demand Linux g5.4xlarge Instance Hour"}, billing.NodeUsage, "i-0a", "g5.4xlarge", "", ""},
		"instance by ARN":             {row{"ResourceId": "arn:aws:ec2:eu-west-1:1:instance/i-0a", "x_UsageType": "EU-BoxUsage:p5.48xlarge", "RegionId": "eu-west-1"}, billing.NodeUsage, "i-0a", "p5.48xlarge", "", "eu-west-1"},
		"a covered hour":              {row{"ResourceId": "i-0a", "CommitmentDiscountStatus": "Used", "x_InstanceType": "p4d.24xlarge"}, billing.NodeUsage, "i-0a", "p4d.24xlarge", "", ""},
		"type in the price's details": {row{"ResourceId": "i-0a", "SkuPriceDetails": `{"InstanceType":"g6.xlarge","CoreCount":4}`}, billing.NodeUsage, "i-0a", "g6.xlarge", "", ""},
		"traffic of an instance":      {row{"ResourceId": "i-0a", "ConsumedUnit": "GB"}, billing.Other, "i-0a", "", "", ""},
		"optimisation, by the hour":   {row{"ResourceId": "i-0a", "x_UsageType": "EBSOptimized:p3.2xlarge"}, billing.Other, "i-0a", "p3.2xlarge", "", ""},
		"cluster fee, by the hour":    {row{"ResourceId": "arn:aws:eks:us-east-1:1:cluster/c", "ServiceCategory": "Compute"}, billing.Other, "", "", "", ""},
		"volume":                      {row{"ResourceId": "vol-1", "ResourceType": "Volume"}, billing.Other, "", "", "", ""},
		"unused commitment":           {row{"ResourceId": "arn:plan", "CommitmentDiscountStatus": "Unused", "x_UsageType": "EC2SP:p5.1yrNoUpfront", "ConsumedQuantity": "", "ConsumedUnit": ""}, billing.CommitmentUnused, "", "", "p5", ""},
		"unused capacity":             {row{"CapacityReservationStatus": "Unused", "CommitmentDiscountStatus": "Used"}, billing.CapacityUnused, "", "", "", ""},
		"unused capacity by type":     {row{"x_UsageType": "UnusedBox:p5.48xlarge"}, billing.CapacityUnused, "", "p5.48xlarge", "", ""},
		"GPU of a GCE instance":       {row{"ServiceProviderName": "Google Cloud", "ResourceId": gce, "ChargeDescription": "Nvidia Tesla A100 GPU running in Americas"}, billing.NodeUsage, "p/us-central1-a/gpu-1", "", "", ""},
		"RAM of a GCE instance":       {row{"ServiceProviderName": "Google Cloud", "ResourceId": gce, "ChargeDescription": "A2 Instance Ram running in Americas", "ConsumedUnit": "gibibyte hour"}, billing.NodeUsage, "p/us-central1-a/gpu-1", "", "", ""},
		"scale set":                   {row{"ServiceProviderName": "Microsoft", "ResourceId": azure, "x_SkuDetails": `{"VMName":"aks-gpu-1-vmss_3","ServiceType":"Standard_NC24ads_A100_v4","VCPUs":24}`, "ConsumedUnit": "1 Hour"}, billing.NodeUsage, "aks-gpu-1-vmss/3", "Standard_NC24ads_A100_v4", "", ""},
		"disk":                        {row{"ServiceProviderName": "Microsoft", "ResourceId": "/subscriptions/s/resourceGroups/r/providers/Microsoft.Compute/disks/d", "ServiceCategory": "Compute"}, billing.Other, "", "", "", ""},
		"machine of another provider": {row{"ServiceProviderName": "Oracle", "ResourceType": "instance", "ResourceId": "ocid1.instance.x"}, billing.NodeUsage, "ocid1.instance.x", "", "", ""},
		"hours taken back":            {row{"ResourceId": "i-0a", "ConsumedQuantity": "-1", "BilledCost": "-1", "ChargeClass": "Correction"}, billing.NodeUsage, "i-0a", "", "", ""},
		"purchase":                    {row{"ChargeCategory": "Purchase", "EffectiveCost": "0"}, billing.Fee, "", "", "", ""},
		"tax":                         {row{"ChargeCategory": "Tax"}, billing.Tax, "", "", "", ""},
		"credit":                      {row{"ChargeCategory": "Credit", "BilledCost": "-1"}, billing.Credit, "", "", "", ""},
		"refund":                      {row{"ChargeCategory": "Adjustment", "BilledCost": "-1"}, billing.Refund, "", "", "", ""},
		"discount":                    {row{"ChargeCategory": "Adjustment", "BilledCost": "-1", "ChargeDescription": "Enterprise Discount"}, billing.Discount, "", "", "", ""},
		"adjustment":                  {row{"ChargeCategory": "Adjustment"}, billing.Other, "", "", "", ""},
		"category of the future":      {row{"ChargeCategory": "Barter"}, billing.Other, "", "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			l := one(t, tc.row)
			got := []string{string(l.Class), l.InstanceID, l.InstanceType, l.InstanceFamily, l.Region}
			if want := []string{string(tc.class), tc.instance, tc.typ, tc.family, tc.region}; !slices.Equal(got, want) {
				t.Errorf("class, instance, type, family, region\n got %q\nwant %q", got, want)
			}
		})
	}
}

func TestTimesAndNulls(t *testing.T) {
	want := time.Date(2026, 10, 1, 2, 0, 0, 0, time.UTC)
	for _, s := range []string{"2026-10-01T02:00:00Z", "2026-10-01 02:00:00", "2026-10-01T02:00:00", "2026-10-01T02:00Z", "2026-10-01 02:00", "2026-10-01T02:00:00.000Z", "2026-10-01T04:00:00+02:00", "2026-10-01 02:00:00 UTC", "2026-10-01 02:00:00+00:00"} {
		if l := one(t, row{"ChargePeriodStart": s, "ChargePeriodEnd": "2026-10-02"}); !l.ChargePeriod.Start.Equal(want) || l.ChargePeriod.Start.Location() != time.UTC {
			t.Errorf("%q is %s", s, l.ChargePeriod.Start)
		}
	}
	for _, null := range []string{"", "NULL", "null", "(null)"} {
		l := one(t, row{"ListCost": null, "Tags": null, "ResourceId": null, "ChargeClass": null})
		if l.Costs.List.Valid || l.Tags != nil || l.ResourceID != "" || l.ChargeClass != "" {
			t.Errorf("%q is not null: %+v", null, l)
		}
	}
	if l := one(t, row{"ListCost": "0"}); !l.Costs.List.Valid {
		t.Error("a list cost of 0 is taken for none")
	}
}

func TestTags(t *testing.T) {
	l := one(t, row{"Tags": "{\"a\":\"line one\\nline two\",\n \"k/x:y\": true, \"n\": 1.50, \"none\": null}"})
	want := map[string]string{"a": "line one\nline two", "k/x:y": "true", "n": "1.50", "none": ""}
	if len(l.Tags) != 4 {
		t.Errorf("tags %v", l.Tags)
	}
	for k, v := range want {
		if l.Tags[k] != v {
			t.Errorf("tag %s is %q, want %q", k, l.Tags[k], v)
		}
	}
}

func TestBrokenRows(t *testing.T) {
	for name, tc := range map[string]struct {
		row    row
		column string
	}{
		"billed cost null":    {row{"BilledCost": "NULL"}, "BilledCost"},
		"effective cost null": {row{"EffectiveCost": ""}, "EffectiveCost"},
		"thousands":           {row{"BilledCost": "1,000"}, "BilledCost"},
		"broken list cost":    {row{"ListCost": "n/a"}, "ListCost"},
		"no category":         {row{"ChargeCategory": "null"}, "ChargeCategory"},
		"no currency":         {row{"BillingCurrency": ""}, "BillingCurrency"},
		"tags no JSON":        {row{"Tags": "a:b"}, "Tags"},
		"bad time":            {row{"ChargePeriodEnd": "10/01/2026"}, "ChargePeriodEnd"},
		"unknown zone":        {row{"ChargePeriodEnd": "2026-10-01 02:00:00 PST"}, "ChargePeriodEnd"},
		"ends before start":   {row{"ChargePeriodEnd": "2026-09-01"}, "ChargePeriodEnd"},
	} {
		r := open(t, put(t, t.TempDir(), "a.csv", csvOf(columns[:], row{}, tc.row)), Options{})
		lines, err := billingtest.Read(r, billingtest.Deliveries(t, r)[0])
		var at *billing.RowError
		if !errors.As(err, &at) || at.Row != 2 || at.Column != tc.column || at.File != "a.csv" || len(lines) != 1 {
			t.Errorf("%s: %v after %d lines, want row 2 column %s", name, err, len(lines), tc.column)
		}
	}
}

// Months are told apart inside a file and joined across files.
func TestMonths(t *testing.T) {
	dir := t.TempDir()
	sept := row{"BillingPeriodStart": "2026-09-01T00:00:00Z"}
	put(t, dir, "b/2.csv", csvOf(columns[:], sept, row{"BilledCost": "2"}, sept))
	put(t, dir, "a/1.csv", csvOf(columns[:], row{"BilledCost": "3"}))
	put(t, dir, "README.txt", []byte("not data"))
	r := open(t, dir, Options{})
	ds := billingtest.Deliveries(t, r)
	if len(ds) != 2 || ds[0].BillingPeriod.String() != "2026-09" || len(ds[0].Files) != 1 || len(ds[1].Files) != 2 {
		t.Fatalf("deliveries %+v", ds)
	}
	if n := len(billingtest.ReadAll(t, r, ds[0])); n != 2 {
		t.Errorf("September has %d lines", n)
	}
	if s := sum(billingtest.ReadAll(t, r, ds[1]), billed); s != money.FromInt(5) {
		t.Errorf("October is %s", s)
	}
	put(t, dir, "b/2.csv", csvOf(columns[:], row{}))
	again := billingtest.Deliveries(t, r)
	if len(again) != 1 || again[0].Token == ds[1].Token {
		t.Errorf("after a change: %+v", again)
	}
}

func TestRefusedDeliveries(t *testing.T) {
	without := slices.DeleteFunc(slices.Clone(columns[:]), func(c string) bool { return c == "BillingCurrency" || c == "EffectiveCost" })
	for name, tc := range map[string]struct {
		file       string
		content    []byte
		says       string
		incomplete bool
	}{
		"no data":          {"x.txt", nil, "no .csv, .csv.gz, .parquet or .ndjson file", true},
		"a manifest":       {"exp-Manifest.json", []byte("{}"), "only manifests of single refreshes", true},
		"no currency":      {"a.csv", csvOf(without, row{}), "EffectiveCost, BillingCurrency is not in the file", false},
		"another dataset":  {"a.csv", []byte("a,b\n1,2\n"), "BilledCost", false},
		"no billing month": {"a.csv", csvOf(columns[:], row{"BillingPeriodStart": "NULL"}), "column BillingPeriodStart", false},
		"empty file":       {"a.csv", nil, "a.csv", true},
		"no parquet":       {"a.parquet", []byte("PAR1"), "a.parquet", true},
	} {
		dir := t.TempDir()
		put(t, dir, tc.file, tc.content)
		_, err := open(t, dir, Options{}).Deliveries(context.Background())
		if err == nil || !strings.Contains(err.Error(), tc.says) || errors.Is(err, billing.ErrIncomplete) != tc.incomplete {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The same rows as CSV and as Parquet, doubles or decimals, are the same lines.
func TestParquetEqualsCSV(t *testing.T) {
	rows := []row{
		{"ResourceId": "i-0a", "x_UsageType": "BoxUsage:p5.48xlarge", "BilledCost": "98.32", "EffectiveCost": "55.04321", "ListCost": "98.32", "Tags": `{"a":"b"}`},
		{"ChargeCategory": "Tax", "BilledCost": "1.81E-8", "EffectiveCost": "0.0000000181", "ConsumedQuantity": "", "ConsumedUnit": ""},
	}
	_, want := readFile(t, put(t, t.TempDir(), "a.csv", csvOf(columns[:], rows...)))
	for _, costs := range []parquetio.Column{{Kind: parquetio.Double}, {Kind: parquetio.Decimal, Precision: 38, Scale: 18}} {
		var cols []parquetio.Column
		for _, n := range columns {
			c := parquetio.Column{Name: n, Kind: parquetio.String}
			switch {
			case strings.HasSuffix(n, "Cost"), strings.HasSuffix(n, "Quantity"):
				c.Kind, c.Precision, c.Scale = costs.Kind, costs.Precision, costs.Scale
			case n == "Tags":
				c.Kind = parquetio.StringMap
			case strings.Contains(n, "Period"):
				c.Kind = parquetio.TimestampMillis
			}
			cols = append(cols, c)
		}
		var b bytes.Buffer
		w, err := parquetio.NewWriter(&b, cols)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			if err := w.Write(cells(t, cols, full(r))); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		_, got := readFile(t, put(t, t.TempDir(), "a.parquet", b.Bytes()))
		if diff := billingtest.Diff(want, got); diff != "" {
			t.Errorf("kind %d: %s", costs.Kind, diff)
		}
	}
}

func cells(t *testing.T, cols []parquetio.Column, r row) []any {
	t.Helper()
	out := make([]any, len(cols))
	for i, c := range cols {
		s := r[c.Name]
		var err error
		switch {
		case s == "":
			continue
		case c.Kind == parquetio.Double:
			out[i], err = strconv.ParseFloat(s, 64)
		case c.Kind == parquetio.Decimal:
			out[i] = money.MustParse(s).String()
		case c.Kind == parquetio.TimestampMillis:
			out[i], err = time.Parse(time.RFC3339, s)
		case c.Kind == parquetio.StringMap:
			out[i] = map[string]string{"a": "b"}
		default:
			out[i] = s
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// FuzzCSV: any bytes are lines that add up, or an error; never a panic, never a
// line without class, currency or span.
func FuzzCSV(f *testing.F) {
	f.Add([]byte("BilledCost,EffectiveCost,BillingPeriodStart,ChargePeriodStart,ChargePeriodEnd,ChargeCategory,BillingCurrency,Tags\n1e-3,1,2026-10-01,2026-10-01,2026-10-02,Usage,USD,\"{\"\"a\"\":1}\"\n"))
	f.Add([]byte("\ufeffBilledCost,EffectiveCost,BillingPeriodStart,ChargePeriodStart,ChargePeriodEnd,ChargeCategory,BillingCurrency,\r\n1,(null),2026-10-01,2026-10-01,2026-10-02,Tax,USD,\r\n"))
	f.Add(csvOf([]string{"ChargeCategory", "BilledCost", "EffectiveCost", "BillingPeriodStart", "ChargePeriodStart", "ChargePeriodEnd", "BillingCurrency", "ResourceId", "x_SkuDetails", "ChargeDescription"},
		row{"ResourceId": "i-0", "x_SkuDetails": "{}", "ChargeDescription": "g5.xlarge"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := open(t, put(t, t.TempDir(), "a.csv", b), Options{})
		ds, err := r.Deliveries(context.Background())
		if err != nil {
			return
		}
		for _, d := range ds {
			lines, err := billingtest.Read(r, d)
			for i := range lines {
				l := &lines[i]
				if l.Class == "" || l.Currency == "" || l.ChargePeriod.End.Before(l.ChargePeriod.Start) || l.BillingPeriod != d.BillingPeriod {
					t.Fatalf("line %+v", l)
				}
				l.Key()
				l.BilledMicros()
			}
			var at *billing.RowError
			if err != nil && !errors.Is(err, billing.ErrIncomplete) && !errors.As(err, &at) {
				t.Fatalf("an error without a place: %v", err)
			}
		}
	})
}
