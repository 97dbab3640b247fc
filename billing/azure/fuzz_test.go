package azure

import (
	"context"
	"errors"
	"testing"

	"gpuledger/billing"
	"gpuledger/billing/billingtest"
)

// FuzzCSV: any bytes are lines, or an error; never a panic, never a line without class,
// currency or span.
func FuzzCSV(f *testing.F) {
	f.Add([]byte(head + vm("09/05/2026", "Usage", "OnDemand", "1.81E-8", "1", "0", 2)))
	f.Add([]byte(head + vm("2026-09-05", "UnusedReservation", "Reservation", "-1", "24", "1", 0)))
	f.Add([]byte("\ufeffDatum (Date),Währung (BillingCurrency),Kosten (Cost),Tags\r\n9/5/2026,EUR,1.23e1,\"\"\"a\"\": \"\"b\"\"\"\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := newFolder(t)
		dir.put("export.csv", b)
		r := dir.reader(Options{Currency: "USD"})
		ds, err := r.Deliveries(context.Background())
		for _, d := range ds {
			lines, err := billingtest.Read(r, d)
			for i := range lines {
				l := &lines[i]
				if l.Class == "" || l.Currency == "" || l.ChargePeriod.End.Before(l.ChargePeriod.Start) || l.ChargeCategory == "" {
					t.Fatalf("line %+v", l)
				}
				l.Key()
				l.BilledMicros()
			}
			placed(t, err)
		}
		placed(t, err)
	})
}

// placed requires that an error about a row names its file.
func placed(t *testing.T, err error) {
	t.Helper()
	var at *billing.RowError
	if errors.As(err, &at) && (at.Row < 0 || at.File == "") {
		t.Fatalf("a row error without a place: %v", err)
	}
}
