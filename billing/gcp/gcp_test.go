package gcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpuledger/billing"
	"gpuledger/billing/billingtest"
	"gpuledger/billing/money"
	"gpuledger/internal/bqtest"
	"gpuledger/objstore"
)

// usage is one row of the export; changes name columns, those of a record with a point.
func usage(changes map[string]any) bqtest.Row {
	r := bqtest.Row{
		"billing_account_id": "010101-F0FFF0-61C528",
		"service":            map[string]any{"id": computeEngine, "description": "Compute Engine"},
		"sku":                map[string]any{"id": "SKU", "description": "A2 Instance Core running in Americas"},
		"usage_start_time":   "2026-10-05 13:00:00 UTC", "usage_end_time": "2026-10-05 14:00:00 UTC",
		"project":       map[string]any{"id": "ml-prod", "number": "123456789012"},
		"labels":        []any{map[string]any{"key": "goog-gke-node", "value": ""}},
		"system_labels": []any{map[string]any{"key": "compute.googleapis.com/machine_spec", "value": "a2-highgpu-1g"}, map[string]any{"key": "compute.googleapis.com/cores", "value": "12"}},
		"location":      map[string]any{"region": "us-central1", "zone": "us-central1-a"},
		"export_time":   "2026-10-06 02:11:12.5 UTC", "currency": "USD", "currency_conversion_rate": json.Number("1.0"),
		"invoice": map[string]any{"month": "202610"}, "cost_type": "regular", "credits": []any{},
		"resource": map[string]any{"name": "projects/123456789012/instances/gke-a-1", "global_name": "//compute.googleapis.com/projects/123456789012/zones/us-central1-a/instances/5551234567890123456"},
		"cost":     json.Number("1"), "cost_at_list": json.Number("1"),
		"usage": map[string]any{"amount": json.Number("43200.0"), "unit": "seconds", "amount_in_pricing_units": json.Number("12.0"), "pricing_unit": "hour"},
	}
	for name, v := range changes {
		group, field, nested := strings.Cut(name, ".")
		if !nested {
			r[name] = v
			continue
		}
		inner := map[string]any{}
		if was, ok := r[group].(map[string]any); ok {
			inner = maps.Clone(was)
		}
		inner[field] = v
		r[group] = inner
	}
	return r
}

func credit(kind, amount string) []any {
	return []any{map[string]any{"name": kind, "amount": json.Number(amount), "full_name": "", "id": "", "type": kind}}
}

func ndjson(t testing.TB, rows ...bqtest.Row) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, r := range rows {
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(text, '\n'))
	}
	return b.Bytes()
}

func open(t testing.TB, location string) *Reader {
	t.Helper()
	store, err := objstore.Open(context.Background(), location)
	if err != nil {
		t.Fatal(err)
	}
	return Files(store, "gcp")
}

// of reads rows from a file: the lines of all invoice months, oldest first.
func of(t testing.TB, rows ...bqtest.Row) []billing.Line {
	t.Helper()
	lines, err := try(t, "rows.ndjson", ndjson(t, rows...))
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func try(t testing.TB, name string, content []byte) ([]billing.Line, error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
		t.Fatal(err)
	}
	r := open(t, dir)
	ds, err := r.Deliveries(context.Background())
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

func sum(lines []billing.Line, of func(*billing.Line) money.Amount) (total money.Amount) {
	for i := range lines {
		total = total.Add(of(&lines[i]))
	}
	return total
}

func billed(l *billing.Line) money.Amount    { return l.Costs.Billed }
func effective(l *billing.Line) money.Amount { return l.Costs.Effective }

// The hour of an a2-highgpu-1g: cores, memory and the GPU are three lines of one machine,
// whose time is the GPU's.
func TestPublishedHour(t *testing.T) {
	p := billingtest.Shared(t, "samples/billing/gcp/authored-a2-highgpu-1g-one-hour.ndjson", "the hour of an a2-highgpu-1g")
	r := open(t, p)
	lines := billingtest.ReadAll(t, r, billingtest.Deliveries(t, r)[0])
	if got := sum(lines, billed); len(lines) != 3 || got != money.MustParse("3.673385") {
		t.Fatalf("%d lines of %s", len(lines), got)
	}
	want := map[billing.Component]string{billing.CPU: "0.379332", billing.Memory: "0.360145", billing.GPU: "2.933908"}
	var micros int64
	for _, l := range lines {
		if l.Class != billing.NodeUsage || l.InstanceID != "ml-prod-123/us-central1-a/gke-gpu-cluster-a100-1a2b3c4d-x9yz" || l.InstanceType != "a2-highgpu-1g" ||
			l.UsageAccount != "ml-prod-123" || l.Costs.List.Amount.String() != want[l.Component] || l.Costs.Billed.String() != want[l.Component] || l.Tags["goog-k8s-node-pool-name"] != "a100" {
			t.Errorf("%+v", l)
		}
		if us, ok := l.BilledMicros(); ok {
			micros += us
		}
	}
	if micros != 3600e6 {
		t.Errorf("%d µs of the machine, want an hour", micros)
	}
}

// What a row is for, by its cost_type and SKU.
func TestClasses(t *testing.T) {
	for name, c := range map[string]struct {
		row       map[string]any
		class     billing.Class
		category  string
		component billing.Component
	}{
		"cores":                  {nil, billing.NodeUsage, "Usage", billing.CPU},
		"spot GPU":               {map[string]any{"sku.description": "Nvidia Tesla A100 GPU attached to Spot Preemptible VMs running in Americas"}, billing.NodeUsage, "Usage", billing.GPU},
		"memory":                 {map[string]any{"sku.description": "A2 Instance Ram running in Americas"}, billing.NodeUsage, "Usage", billing.Memory},
		"local SSD":              {map[string]any{"sku.description": "SSD backed Local Storage", "usage.pricing_unit": "gibibyte month", "usage.unit": "byte-seconds"}, billing.NodeUsage, "Usage", billing.Node},
		"license":                {map[string]any{"sku.description": "Licensing Fee for Ubuntu Pro (CPU cost)"}, billing.NodeUsage, "Usage", billing.CPU},
		"traffic of the machine": {map[string]any{"sku.description": "Network Inter Zone Data Transfer Out"}, billing.Other, "Usage", billing.Node},
		"its address":            {map[string]any{"sku.description": "External IP Charge on a Standard VM"}, billing.Other, "Usage", billing.Node},
		"a disk":                 {map[string]any{"sku.description": "Storage PD Capacity", "resource.name": "projects/1/zones/us-central1-a/disks/pvc-1", "resource.global_name": nil}, billing.Other, "Usage", billing.Node},
		"bare name":              {map[string]any{"resource.name": "gke-a-1"}, billing.NodeUsage, "Usage", billing.CPU},
		"another service":        {map[string]any{"service.id": "24E6-581D-38E5", "service.description": "BigQuery"}, billing.Other, "Usage", billing.Node},
		"reserved, unused":       {map[string]any{"system_labels": []any{map[string]any{"key": "compute.googleapis.com/is_unused_reservation", "value": "true"}}}, billing.CapacityUnused, "Usage", billing.CPU},
		"tax":                    {map[string]any{"cost_type": "tax", "sku.description": "Tax"}, billing.Tax, "Tax", billing.Node},
		"rounding":               {map[string]any{"cost_type": "rounding_error", "sku.description": "Rounding"}, billing.Other, "Adjustment", billing.Node},
		"goodwill":               {map[string]any{"cost_type": "adjustment", "adjustment_info.type": "GOODWILL", "cost": json.Number("-5")}, billing.Credit, "Credit", billing.CPU},
		"usage corrected":        {map[string]any{"cost_type": "adjustment", "adjustment_info.type": "USAGE_CORRECTION", "cost": json.Number("-5")}, billing.NodeUsage, "Usage", billing.CPU},
		"account closed":         {map[string]any{"cost_type": "adjustment", "adjustment_info.type": "ACCOUNT_CLOSURE", "cost": json.Number("-5")}, billing.Refund, "Adjustment", billing.CPU},
		"unknown cost_type":      {map[string]any{"cost_type": "surprise"}, billing.Other, "Usage", billing.CPU},
	} {
		l := of(t, usage(c.row))[0]
		if l.Class != c.class || l.ChargeCategory != c.category {
			t.Errorf("%s: %s, %s; want %s, %s", name, l.Class, l.ChargeCategory, c.class, c.category)
		}
		if c.class == billing.NodeUsage && l.Component != c.component {
			t.Errorf("%s: component %s, want %s", name, l.Component, c.component)
		}
		if l.ChargeClass != map[bool]string{true: "Correction"}[name == "usage corrected"] {
			t.Errorf("%s: charge class %q", name, l.ChargeClass)
		}
	}
}

// One machine of several rows: its time is counted by the GPUs it has, or its cores where
// its type names no GPUs, and once.
func TestMachineTime(t *testing.T) {
	core := func(spec, cores string, hours string) map[string]any {
		return map[string]any{
			"system_labels":                 []any{map[string]any{"key": "compute.googleapis.com/machine_spec", "value": spec}, map[string]any{"key": "compute.googleapis.com/cores", "value": cores}},
			"usage.amount_in_pricing_units": json.Number(hours), "usage.amount": nil,
		}
	}
	with := func(m map[string]any, name string, v any) map[string]any {
		m = maps.Clone(m)
		m[name] = v
		return m
	}
	for name, c := range map[string]struct {
		rows []map[string]any
		want int64
	}{
		"two variants of labels": {[]map[string]any{
			with(core("a2-highgpu-8g", "96", "32"), "sku.description", "A2 Instance Core running in Americas"),
			with(core("a2-highgpu-8g", "96", "2"), "sku.description", "Nvidia Tesla A100 GPU running in Americas"),
			with(core("a2-highgpu-8g", "96", "6"), "sku.description", "Nvidia Tesla A100 GPU running in Americas"),
		}, 3600e6},
		"a third of an hour, by cores": {[]map[string]any{
			with(core("n1-standard-8", "8", "2.666666666667"), "sku.description", "N1 Predefined Instance Core running in Americas"),
			with(core("n1-standard-8", "8", "0.333333333333"), "sku.description", "Nvidia Tesla T4 GPU running in Americas"),
			with(core("n1-standard-8", "8", "10"), "sku.description", "N1 Predefined Instance Ram running in Americas"),
			with(core("n1-standard-8", "8", "2.666666666667"), "sku.description", "Licensing Fee for Windows (CPU cost)"),
		}, 1200e6},
	} {
		var rows []bqtest.Row
		for _, m := range c.rows {
			rows = append(rows, usage(m))
		}
		var got int64
		for _, l := range of(t, rows...) {
			us, _ := l.BilledMicros()
			got += us
		}
		if got != c.want {
			t.Errorf("%s: %d µs, want %d", name, got, c.want)
		}
	}
}

// Usage of one day under several invoices: each invoice has its own, the day has both
// (reference §5, 13), corrections are rows like others (§4.2).
func TestInvoiceMonths(t *testing.T) {
	at := func(month, cost string) bqtest.Row {
		return usage(map[string]any{"invoice.month": month, "cost": json.Number(cost), "usage_start_time": "2026-08-01T00:00:00Z", "usage_end_time": "2026-08-01T01:00:00Z"})
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.json"), ndjson(t, at("202607", "1.00"), at("202608", "9.00"), at("202609", "-10"), at("202609", "5")), 0o600); err != nil {
		t.Fatal(err)
	}
	r := open(t, dir)
	ds := billingtest.Deliveries(t, r)
	got := map[string]string{}
	var day money.Amount
	for _, d := range ds {
		lines := billingtest.ReadAll(t, r, d)
		got[d.BillingPeriod.String()] = sum(lines, billed).String()
		for _, l := range lines {
			if l.ChargePeriod.Start.Format("2006-01-02") == "2026-08-01" {
				day = day.Add(l.Costs.Billed)
			}
		}
	}
	if want := map[string]string{"2026-07": "1", "2026-08": "9", "2026-09": "-5"}; !maps.Equal(got, want) || day != money.FromInt(5) {
		t.Errorf("invoices %v, the day %s; want %v and 5", got, day, want)
	}
}

// A list cost of 0 is one, an absent one is none (reference §5, 34); a name is matched
// whole (33); doubles are their shortest decimals, whose sum is exact (§4.4).
func TestExactRows(t *testing.T) {
	lines := of(t,
		usage(map[string]any{"cost_at_list": json.Number("0"), "cost": json.Number("0.1")}),
		usage(map[string]any{"cost_at_list": nil, "cost": json.Number("0.2"), "resource.name": "projects/123456789012/instances/gke-a-10"}),
		usage(map[string]any{"cost": json.Number("1.2345678901234567e-09")}))
	if l := lines[0].Costs.List; !l.Valid || l.Amount.Sign() != 0 {
		t.Errorf("a list cost of 0 is %v", l)
	}
	if lines[1].Costs.List.Valid {
		t.Error("an absent list cost is one")
	}
	if lines[0].InstanceID == lines[1].InstanceID || !strings.HasSuffix(lines[0].InstanceID, "/gke-a-1") {
		t.Errorf("%s and %s", lines[0].InstanceID, lines[1].InstanceID)
	}
	if got := sum(lines[:2], billed).String(); got != "0.3" {
		t.Errorf("0.1 + 0.2 = %s", got)
	}
	if got := lines[2].Costs.Billed.String(); got != "0.000000001234567890123457" {
		t.Errorf("17 digits below 1e-8: %s", got)
	}
}

// Each of these is one clear error, with the row.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		row  map[string]any
		says string
	}{
		"no invoice month": {map[string]any{"invoice.month": nil}, `row 1, column invoice.month: "" is not a month such as 202610`},
		"no cost":          {map[string]any{"cost": nil}, "row 1, column cost: no value"},
		"cost is text":     {map[string]any{"cost": "ten"}, "row 1, column cost"},
		"no currency":      {map[string]any{"currency": nil}, "row 1, column currency"},
		"no time":          {map[string]any{"usage_start_time": nil}, "row 1, column usage_start_time"},
		"ends early":       {map[string]any{"usage_end_time": "2026-10-05 12:00:00 UTC"}, "row 1, column usage_end_time: the usage ends before it starts"},
		"credits are text": {map[string]any{"credits": "none"}, "row 1, column credits"},
	} {
		if _, err := try(t, "rows.json", ndjson(t, usage(c.row))); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	whole := ndjson(t, usage(nil), usage(nil))
	for name, content := range map[string][]byte{"within a row": whole[:len(whole)-20], "an array": append([]byte("["), bytes.Replace(whole, []byte("}\n{"), []byte("},{"), 1)...)} {
		if _, err := try(t, "rows.json", content); !errors.Is(err, billing.ErrIncomplete) {
			t.Errorf("cut short %s: %v", name, err)
		}
	}
	if _, err := try(t, "rows.csv", []byte("billing_account_id,cost,currency\n1,2,USD\n")); err == nil || !strings.Contains(err.Error(), "the standard usage cost export") {
		t.Errorf("the standard export: %v", err)
	}
}

func write(t testing.TB, dir string, content []byte) string {
	t.Helper()
	p := filepath.Join(dir, "rows.ndjson")
	if err := os.WriteFile(p, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}
