package aws

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"math/big"
	"os"
	"slices"
	"strings"
	"testing"

	"gpuledger/billing"
	"gpuledger/billing/billingtest"
)

// legacyHead are headers as the legacy report has them, of every name that differs.
var legacyHead = []string{
	"identity/LineItemId", "bill/PayerAccountId", "bill/InvoiceId", "lineItem/UsageAccountId", "lineItem/LineItemType", "lineItem/UsageStartDate", "lineItem/UsageEndDate",
	"lineItem/ProductCode", "lineItem/UsageType", "lineItem/Operation", "lineItem/ResourceId", "lineItem/UsageAmount", "lineItem/CurrencyCode",
	"lineItem/UnblendedCost", "lineItem/NetUnblendedCost", "lineItem/LineItemDescription", "product/instanceType", "product/regionCode", "product/sku",
	"pricing/publicOnDemandCost", "pricing/publicOnDemandRate", "pricing/unit", "reservation/ReservationARN", "reservation/EffectiveCost", "reservation/NetEffectiveCost",
	"savingsPlan/SavingsPlanARN", "savingsPlan/SavingsPlanEffectiveCost", "savingsPlan/NetSavingsPlanEffectiveCost", "resourceTags/user:team", "resourceTags/aws:eks:cluster-name",
}

// legacy is a legacy report in a folder, under a prefix that its manifests do not know.
type legacy struct{ *export }

func (l legacy) put(key string, b []byte) string {
	l.write("copy/of/"+key, b)
	return "reports/" + key // as the bucket had it
}

func (l legacy) manifest(key string, columns []string, keys ...string) {
	l.t.Helper()
	type col struct {
		Category string `json:"category"`
		Name     string `json:"name"`
	}
	var cols []col
	for _, c := range columns {
		category, name, _ := strings.Cut(c, "/")
		cols = append(cols, col{category, name})
	}
	b, err := json.Marshal(map[string]any{
		"assemblyId": "asm-1", "account": "111111111111", "reportName": "gpu", "columns": cols, "reportKeys": keys, "compression": "GZIP", "bucket": "b",
		"billingPeriod": map[string]string{"start": "20260101T000000.000Z", "end": "20260201T000000.000Z"},
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.write("copy/of/"+key, b)
}

// legacyCSV writes rows, which have the names of CUR 2.0, under legacy headers.
func legacyCSV(head []string, rows ...row) []byte {
	out := [][]string{head}
	for _, r := range rows {
		r = full(r)
		var rec []string
		for _, h := range head {
			v := r[legacyName(h)]
			if tag, ok := strings.CutPrefix(h, "resourceTags/"); ok {
				v = r["tag "+tag]
			}
			rec = append(rec, v)
		}
		out = append(out, rec)
	}
	var b bytes.Buffer
	if err := csv.NewWriter(&b).WriteAll(out); err != nil {
		panic(err) // a buffer takes everything
	}
	return b.Bytes()
}

func january(cost string, more row) row {
	r := row{
		"line_item_unblended_cost": cost, "line_item_usage_start_date": "2026-01-05T00:00:00Z", "line_item_usage_end_date": "2026-01-05T01:00:00Z",
		"line_item_resource_id": "i-0abc", "line_item_usage_type": "BoxUsage:p4d.24xlarge", "line_item_operation": "RunInstances", "line_item_usage_amount": "1",
	}
	for k, v := range more {
		r[k] = v
	}
	return r
}

const january2026 = "gpu/20260101-20260201/"

// Every layout of the reference gives the same lines: the files of one assembly together
// are the month, what an earlier one left behind counts nothing.
func TestLegacyLayouts(t *testing.T) {
	one := january("21.957642", row{"product_instance_type": "p4d.24xlarge", "tag user:team": "search", "tag aws:eks:cluster-name": "prod"})
	two := january("0", row{
		"line_item_line_item_type": "SavingsPlanCoveredUsage", "line_item_unblended_cost": "21.957642", "savings_plan_savings_plan_a_r_n": "arn:aws:savingsplans::1:savingsplan/x",
		"savings_plan_savings_plan_effective_cost": "1.81E-8",
	})
	head := slices.DeleteFunc(slices.Clone(legacyHead), func(h string) bool { return strings.Contains(h, "/Net") })
	for name, make := range map[string]func(l legacy){
		"overwrite, csv.gz": func(l legacy) {
			l.put(january2026+"gpu-3.csv.gz", gz(legacyCSV(head, january("99", nil)))) // of an earlier, larger one
			l.manifest(january2026+"gpu-Manifest.json", head, l.put(january2026+"gpu-1.csv.gz", gz(legacyCSV(head, one))), l.put(january2026+"gpu-2.csv.gz", gz(legacyCSV(head, two))))
		},
		"create new, zip": func(l legacy) {
			old := january2026 + "20260102T000000Z/"
			l.manifest(old+"gpu-Manifest.json", head, l.put(old+"gpu-1.csv.zip", zipped(t, legacyCSV(head, january("99", nil)))))
			now := january2026 + "20260103T000000Z/"
			file := l.put(now+"gpu-1.csv.zip", zipped(t, legacyCSV(head, one, two)))
			l.manifest(now+"gpu-Manifest.json", head, file)
			l.manifest(january2026+"gpu-Manifest.json", head, file)
		},
		"Athena": func(l legacy) {
			var names []string
			for _, h := range head {
				if !strings.HasPrefix(h, "resourceTags/") {
					names = append(names, legacyName(h))
				}
			}
			names = append(names, "resource_tags_user_team", "resource_tags_aws_eks_cluster_name")
			athena := func(r row) row {
				out := row{"resource_tags_user_team": r["tag user:team"], "resource_tags_aws_eks_cluster_name": r["tag aws:eks:cluster-name"]}
				for k, v := range r {
					out[k] = v
				}
				return out
			}
			l.put("gpu/gpu/year=2026/month=10/gpu-00001.snappy.parquet", parquetOf(t, names, athena(one)))
			l.manifest(january2026+"gpu-Manifest.json", head, l.put("gpu/gpu/year=2026/month=1/gpu-00001.snappy.parquet", parquetOf(t, names, athena(one), athena(two))))
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := legacy{newExport(t)}
			make(l)
			lines, _, d := l.read()
			if d.Format != "AWS CUR" || d.ID != "asm-1" || d.BillingPeriod.String() != "2026-01" || len(lines) != 2 {
				t.Fatalf("%d lines of %+v", len(lines), d)
			}
			a, b := lines[0], lines[1]
			if a.InstanceID != "i-0abc" || a.InstanceType != "p4d.24xlarge" || a.Costs.Billed.String() != "21.957642" || a.Class != billing.NodeUsage {
				t.Errorf("%+v", a)
			}
			if len(a.Tags) != 2 || a.Tags["user:team"]+a.Tags["user_team"] != "search" {
				t.Errorf("tags %v", a.Tags)
			}
			if b.Costs.Billed.String() != "0" || b.Costs.Effective.String() != "0.0000000181" || b.Commitment == "" {
				t.Errorf("%+v", b)
			}
		})
	}
}

func zipped(t *testing.T, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	w, err := z.Create("gpu-1.csv")
	if err == nil {
		_, err = w.Write(b)
	}
	if err = errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// A real legacy report (1,281 rows, E-notation) adds up to the sum of its column.
func TestLegacySample(t *testing.T) {
	path := billingtest.Shared(t, "samples/billing/aws/cur-legacy-anonymous.csv", "a published legacy report")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	at := slices.Index(rows[0], "lineItem/UnblendedCost")
	want := new(big.Rat)
	for _, r := range rows[1:] {
		x, ok := new(big.Rat).SetString(r[at])
		if !ok {
			t.Fatalf("%q", r[at])
		}
		want.Add(want, x)
	}
	l := legacy{newExport(t)}
	l.manifest("gpu/20231101-20231201/gpu-Manifest.json", rows[0], l.put("gpu/20231101-20231201/gpu-1.csv.gz", gz(text)))
	lines, _, _ := l.read()
	got := new(big.Rat)
	for _, x := range lines {
		n, ok := new(big.Rat).SetString(x.Costs.Billed.String())
		if !ok {
			t.Fatal(x.Costs.Billed)
		}
		got.Add(got, n)
	}
	if len(lines) != len(rows)-1 || got.Cmp(want) != 0 {
		t.Errorf("%d lines of %s, want %d of %s", len(lines), got.FloatString(20), len(rows)-1, want.FloatString(20))
	}
}

func TestLegacyFaults(t *testing.T) {
	head := legacyHead
	good := legacyCSV(head, january("1", nil))
	for name, tc := range map[string]struct {
		make       func(l legacy)
		says       []string
		incomplete bool
	}{
		"a folder of no month": {func(l legacy) { l.manifest("gpu/20260101-20260131/gpu-Manifest.json", head) }, []string{"20260101-20260131", "not one of a month"}, false},
		"only an assembly's manifest": {func(l legacy) {
			l.manifest(january2026+"asm/gpu-Manifest.json", head, l.put(january2026+"asm/gpu-1.csv.gz", gz(good)))
		}, []string{"single refreshes"}, true},
		"a file elsewhere": {func(l legacy) {
			l.manifest(january2026+"gpu-Manifest.json", head, "reports/gpu/20251201-20260101/gpu-1.csv.gz")
		}, []string{"20251201-20260101", "not the layout"}, false},
		"a file outside": {func(l legacy) {
			l.manifest(january2026+"gpu-Manifest.json", head, "reports/gpu/20260101-20260201/../../../x.csv")
		}, []string{"not the layout"}, false},
		"an absent file": {func(l legacy) {
			l.manifest(january2026+"gpu-Manifest.json", head, "reports/"+january2026+"gpu-1.csv.gz")
		}, []string{"gpu-1.csv.gz", "is not there"}, true},
		"two reports": {func(l legacy) {
			l.manifest(january2026+"gpu-Manifest.json", head, l.put(january2026+"gpu-1.csv.gz", gz(good)))
			l.manifest("other/20260101-20260201/gpu-Manifest.json", head, l.put("other/20260101-20260201/gpu-1.csv.gz", gz(good)))
		}, []string{"two exports hold 2026-01"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := legacy{newExport(t)}
			tc.make(l)
			_, err := l.reader().Deliveries(context.Background())
			check(t, err, tc.says, tc.incomplete)
		})
	}
	for name, b := range map[string][]byte{"cut": zipped(t, good)[:40], "not zip": good, "damaged": flipped(zipped(t, good))} {
		l := legacy{newExport(t)}
		l.manifest(january2026+"gpu-Manifest.json", head, l.put(january2026+"gpu-1.csv.zip", b))
		r := l.reader()
		ds, err := r.Deliveries(context.Background())
		if err != nil {
			t.Fatal(name, err)
		}
		err = r.Read(context.Background(), ds[0], func(*billing.Line) bool { return true }, func(*billing.Line, bool) error { return nil })
		if !errors.Is(err, billing.ErrIncomplete) || !strings.Contains(err.Error(), "gpu-1.csv.zip") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// flipped damages the data of a zip file's first member.
func flipped(b []byte) []byte {
	b = bytes.Clone(b)
	for i := 60; i < 70; i++ {
		b[i] ^= 0xff
	}
	return b
}

// A gzip file that is damaged inside is not loaded either, and named.
func TestDamagedGzip(t *testing.T) {
	e := newExport(t)
	var many []row
	for range 200 {
		many = append(many, cost("1"))
	}
	b := gz(csvOf(e.columns, many...))
	for i := len(b) / 2; i < len(b)/2+8; i++ {
		b[i] ^= 0xff
	}
	e.manifest(e.data("gpu-00001.csv.gz", b))
	r := e.reader()
	err := r.Read(context.Background(), billingtest.Deliveries(t, r)[0], func(*billing.Line) bool { return true }, func(*billing.Line, bool) error { return nil })
	var rowErr *billing.RowError
	if err == nil || !errors.Is(err, billing.ErrIncomplete) && !errors.As(err, &rowErr) || !strings.Contains(err.Error(), "gpu-00001.csv.gz") {
		t.Error(err)
	}
}
