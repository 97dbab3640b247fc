package aws

import (
	"context"
	"errors"
	"testing"

	"gpuledger/billing"
	"gpuledger/billing/billingtest"
)

// FuzzCSV: any bytes are lines, or an error with a place; never a panic, never a
// line without class, currency or span.
func FuzzCSV(f *testing.F) {
	f.Add(csvOf(allColumns, row{"line_item_resource_id": "i-0", "line_item_usage_type": p5, "resource_tags": `{"a":"b"}`}, cost("1.81E-8")))
	f.Add(csvOf(gross(), row{"line_item_line_item_type": "RIFee", "reservation_unused_recurring_fee": "1"}, row{"line_item_line_item_type": "SavingsPlanNegation"}))
	f.Add(gz(csvOf(required5(), cost("-1"))))
	f.Add([]byte("\ufeffline_item_line_item_type,line_item_usage_start_date,line_item_usage_end_date,line_item_unblended_cost,line_item_currency_code,\r\nTax,2026-10-01,2026-10-02,1,USD,\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		e := newExport(t)
		e.columns = nil // the manifest does not say
		e.manifest(e.data("gpu-1.csv", b))
		r := e.reader()
		ds, err := r.Deliveries(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		lines, err := billingtest.Read(r, ds[0])
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

func required5() []string {
	var out []string
	for _, c := range required {
		out = append(out, columns[c])
	}
	return out
}
