package gcp

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/parquet-go/parquet-go"

	"gpuledger/billing"
	"gpuledger/billing/billingtest"
)

// The export as BigQuery writes it to Parquet: records are groups, arrays lists of groups.
type (
	parquetRow struct {
		Account string    `parquet:"billing_account_id"`
		Service idText    `parquet:"service"`
		SKU     idText    `parquet:"sku"`
		Start   time.Time `parquet:"usage_start_time,timestamp(microsecond)"`
		End     time.Time `parquet:"usage_end_time,timestamp(microsecond)"`
		Project struct {
			ID     string     `parquet:"id"`
			Number string     `parquet:"number"`
			Labels []keyValue `parquet:"labels"`
		} `parquet:"project"`
		Labels   []keyValue `parquet:"labels"`
		System   []keyValue `parquet:"system_labels,list"`
		Location struct {
			Region string `parquet:"region"`
			Zone   string `parquet:"zone"`
		} `parquet:"location"`
		Cost     float64 `parquet:"cost"`
		Currency string  `parquet:"currency"`
		Rate     float64 `parquet:"currency_conversion_rate"`
		Usage    struct {
			Amount  float64 `parquet:"amount"`
			Unit    string  `parquet:"unit"`
			Pricing float64 `parquet:"amount_in_pricing_units"`
			InUnit  string  `parquet:"pricing_unit"`
		} `parquet:"usage"`
		Credits []creditRow `parquet:"credits"`
		Invoice struct {
			Month string `parquet:"month"`
		} `parquet:"invoice"`
		CostType string   `parquet:"cost_type"`
		List     *float64 `parquet:"cost_at_list,optional"`
		Resource struct {
			Name   string `parquet:"name"`
			Global string `parquet:"global_name"`
		} `parquet:"resource"`
	}
	idText struct {
		ID   string `parquet:"id"`
		Text string `parquet:"description"`
	}
	keyValue struct {
		Key   string  `parquet:"key"`
		Value *string `parquet:"value,optional"`
	}
	creditRow struct {
		Name   string  `parquet:"name"`
		Amount float64 `parquet:"amount"`
		Type   string  `parquet:"type"`
	}
)

func asParquet(credits ...creditRow) parquetRow {
	text := func(s string) *string { return &s }
	one := 1.0
	r := parquetRow{
		Account: "010101-F0FFF0-61C528", Service: idText{computeEngine, "Compute Engine"}, SKU: idText{"SKU", "A2 Instance Core running in Americas"},
		Start: time.Date(2026, 10, 5, 13, 0, 0, 0, time.UTC), End: time.Date(2026, 10, 5, 14, 0, 0, 0, time.UTC),
		Labels:   []keyValue{{"goog-gke-node", text("")}},
		System:   []keyValue{{"compute.googleapis.com/machine_spec", text("a2-highgpu-1g")}, {"compute.googleapis.com/cores", text("12")}},
		Cost:     1,
		Currency: "USD", Rate: 1, CostType: "regular", List: &one, Credits: credits,
	}
	r.Project.ID, r.Project.Number = "ml-prod", "123456789012"
	r.Location.Region, r.Location.Zone = "us-central1", "us-central1-a"
	r.Usage.Amount, r.Usage.Unit, r.Usage.Pricing, r.Usage.InUnit = 43200, "seconds", 12, "hour"
	r.Invoice.Month = "202610"
	r.Resource.Name = "projects/123456789012/instances/gke-a-1"
	r.Resource.Global = "//compute.googleapis.com/projects/123456789012/zones/us-central1-a/instances/5551234567890123456"
	return r
}

// The same rows as JSON, gzipped, in an array and as Parquet are the same lines.
func TestFormats(t *testing.T) {
	two := usage(nil)
	two["credits"] = append(credit("SUSTAINED_USAGE_DISCOUNT", "-0.3"), credit("PROMOTION", "-0.1")...)
	plain := ndjson(t, usage(nil), two)
	want, err := try(t, "a.ndjson", plain)
	if err != nil {
		t.Fatal(err)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	var columnar bytes.Buffer
	w := parquet.NewGenericWriter[parquetRow](&columnar)
	if _, err := w.Write([]parquetRow{asParquet(), asParquet(creditRow{"a", -0.3, "SUSTAINED_USAGE_DISCOUNT"}, creditRow{"b", -0.1, "PROMOTION"})}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	array := append([]byte(" ["), bytes.Replace(bytes.TrimSpace(plain), []byte("}\n{"), []byte("},\n{"), 1)...)
	for name, content := range map[string][]byte{"a.json.gz": zipped.Bytes(), "a.json": append(array, ']'), "a.jsonl": append([]byte("\ufeff"), plain...), "a.parquet": columnar.Bytes()} {
		got, err := try(t, name, content)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for i := range got { // Google's own lists name these two, the Parquet file here has neither
			got[i].ListUnitPrice, got[i].ContractedUnitPrice = want[i].ListUnitPrice, want[i].ContractedUnitPrice
		}
		if diff := billingtest.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if want[1].Costs.Billed.String() != "0.6" || want[1].Tags["credit/PROMOTION"] != "-0.1" {
		t.Errorf("%+v", want[1])
	}
}

// FuzzRows: any bytes are lines, or an error; never a panic, never a line without class,
// currency or span.
func FuzzRows(f *testing.F) {
	f.Add(ndjson(f, usage(nil), commitment("Commitment v1: A2 Cpu in Americas for 1 Year", "0.6", "24"), covered("A2 Instance Core running in Americas", "0.4", "12", resourceDiscount, "-0.4")))
	f.Add([]byte(`[{"invoice":{"month":"202610"},"cost":"1e-9","credits":null}]`))
	f.Add([]byte(`{"invoice":null,"cost":1}`))
	f.Add(ndjson(f, usage(map[string]any{"credits": "[]", "labels": "[{\"key\":\"a\"}]"})))
	f.Fuzz(func(t *testing.T, b []byte) {
		lines, err := try(t, "rows.ndjson", b)
		for i := range lines {
			l := &lines[i]
			if l.Class == "" || l.Currency == "" || l.ChargePeriod.End.Before(l.ChargePeriod.Start) || l.ChargeCategory == "" {
				t.Fatalf("line %+v", l)
			}
			l.Key()
			l.BilledMicros()
		}
		var at *billing.RowError
		if errors.As(err, &at) && (at.Row < 0 || at.File == "") {
			t.Fatalf("a row error without a place: %v", err)
		}
	})
}
