package warehouse

import (
	"errors"
	"strings"
	"testing"

	"gpuledger/billing"
)

// A delivery without a line does not wipe a good month, unless it is said to be right.
func TestEmptyDelivery(t *testing.T) {
	db := testDB(t)
	if _, err := load(t, db, 1, &memoryReader{lines: []billing.Line{gpuLine("i-1", 0, "1.5")}}); err != nil {
		t.Fatal(err)
	}
	_, err := load(t, db, 2, &memoryReader{})
	if !errors.Is(err, billing.ErrIncomplete) || !strings.Contains(err.Error(), "has no line and the stored one has 1") {
		t.Error(err)
	}
	current := func() (n int) {
		t.Helper()
		if err := db.pool.QueryRow(t.Context(), "SELECT lines FROM gpuledger.bill_delivery WHERE superseded_by IS NULL").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := current(); n != 1 {
		t.Errorf("%d lines", n)
	}
	d := billing.Delivery{Format: "test", BillingPeriod: month, Token: [32]byte{2}}
	if res, err := db.LoadDelivery(t.Context(), BillLoad{Source: "aws", Kind: "aws", Scope: &billing.Scope{}, AllowEmpty: true}, d, &memoryReader{}); err != nil || !res.Changed || res.Gone != 1 {
		t.Errorf("%+v %v", res, err)
	}
	if n := current(); n != 0 {
		t.Errorf("%d lines", n)
	}
}

// Two sources that deliver one payer's month would count it twice: a legacy report and a
// data export of it, for one.
func TestOnePayerTwice(t *testing.T) {
	db := testDB(t)
	lines := []billing.Line{gpuLine("i-1", 0, "1.5")}
	if _, err := load(t, db, 1, &memoryReader{lines: lines}); err != nil {
		t.Fatal(err)
	}
	other := func(source string, line billing.Line) error {
		d := billing.Delivery{Format: "test", BillingPeriod: month, Token: [32]byte{9}}
		_, err := db.LoadDelivery(t.Context(), BillLoad{Source: source, Kind: "focus", Scope: &billing.Scope{}}, d, &memoryReader{lines: []billing.Line{line}})
		return err
	}
	err := other("focus", lines[0])
	if err == nil || !strings.Contains(err.Error(), "2026-10 of payer 1 is delivered by the source aws already") {
		t.Error(err)
	}
	var n int
	if err := db.pool.QueryRow(t.Context(), "SELECT count(*) FROM gpuledger.bill_delivery").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d deliveries, %v", n, err)
	}
	someone := lines[0]
	someone.PayerAccount = "3"
	if err := other("focus", someone); err != nil {
		t.Error(err)
	}
	nobody := lines[0]
	nobody.PayerAccount = ""
	if err := other("third", nobody); err != nil {
		t.Error(err)
	}
}
