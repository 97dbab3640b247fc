package aws

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpuledger/billing"
	"gpuledger/billing/billingtest"
	"gpuledger/objstore"
)

func costs(lines []billing.Line) []string {
	var out []string
	for _, l := range lines {
		out = append(out, l.Costs.Billed.String())
	}
	return out
}

func cost(c string) row { return row{"line_item_unblended_cost": c} }

// Files that an overwrite left behind are never read: only the manifest counts,
// and all of its files together are the month.
func TestOverwriteLeavesStaleFiles(t *testing.T) {
	e := newExport(t)
	a := e.data("gpu-00001.csv.gz", gz(csvOf(e.columns, cost("1"), cost("2"))))
	b := e.data("gpu-00002.csv", csvOf(e.columns, cost("3")))
	e.data("gpu-00003.csv.gz", gz(csvOf(e.columns, cost("99"))))
	e.manifest(a, b)
	lines, _, d := e.read()
	if got := costs(lines); !slices.Equal(got, []string{"1", "2", "3"}) {
		t.Errorf("costs %v", got)
	}
	if d.Format != "AWS CUR 2.0" || d.ID != "exec-1" || d.BillingPeriod.String() != "2026-10" || len(d.Files) != 2 || d.Submitted.IsZero() {
		t.Errorf("delivery %+v", d)
	}
}

func TestCreateNewReadsTheLatest(t *testing.T) {
	e := newExport(t)
	e.execID = "20261002T000000Z-aaaa"
	e.manifest(e.data("gpu-00001.csv.gz", gz(csvOf(e.columns, cost("1")))))
	e.execID = "20261003T000000Z-bbbb"
	e.manifest(e.data("gpu-00001.csv.gz", gz(csvOf(e.columns, cost("1"), cost("2")))))
	if lines, _, d := e.read(); !slices.Equal(costs(lines), []string{"1", "2"}) || len(d.Files) != 1 {
		t.Errorf("costs %v", costs(lines))
	}
}

// The location is the export's folder or any prefix above it; months come in
// order.
func TestLocationAndOrder(t *testing.T) {
	e := newExport(t)
	for _, m := range []string{"2026-11", "2026-09", "2026-10"} {
		e.month = m
		e.manifest(e.data("gpu-00001.csv.gz", gz(csvOf(e.columns, cost("1")))))
	}
	for _, at := range []string{"", "cur", "cur/gpu"} {
		store, err := objstore.Open(context.Background(), filepath.Join(e.dir, at))
		if err != nil {
			t.Fatal(err)
		}
		var months []string
		for _, d := range billingtest.Deliveries(t, New(store, "aws")) {
			months = append(months, d.BillingPeriod.String())
		}
		if !slices.Equal(months, []string{"2026-09", "2026-10", "2026-11"}) {
			t.Errorf("at %q: months %v", at, months)
		}
	}
}

func TestTokenFollowsContent(t *testing.T) {
	e := newExport(t)
	e.manifest(e.data("gpu-00001.csv.gz", gz(csvOf(e.columns, cost("1")))))
	token := func() [32]byte { return billingtest.Deliveries(t, e.reader())[0].Token }
	first := token()
	if token() != first {
		t.Error("the token changed by itself")
	}
	e.data("gpu-00001.csv.gz", gz(csvOf(e.columns, cost("1"), cost("2"))))
	if token() == first {
		t.Error("the token did not change with a file")
	}
}

// What cannot be a delivery, and what the error must say.
func TestIncompleteDeliveries(t *testing.T) {
	good := func(e *export) []byte { return gz(csvOf(e.columns, cost("1"))) }
	for name, tc := range map[string]struct {
		make func(e *export)
		says []string
		// incomplete: a later try may succeed by itself
		incomplete bool
	}{
		"no manifest": {func(e *export) { e.data("gpu-00001.csv.gz", good(e)) }, []string{"Manifest.json", "after all data files"}, true},
		"only manifests of single refreshes": {func(e *export) {
			e.write("cur/gpu/metadata/BILLING_PERIOD=2026-10/20261002T000000Z-aaaa/gpu-Manifest.json", []byte("{}"))
		}, []string{"single refreshes"}, true},
		"absent file": {func(e *export) { e.manifest("s3://b/data/BILLING_PERIOD=2026-10/gpu-00007.csv.gz") }, []string{"gpu-00007.csv.gz", "is not there"}, true},
		"manifest cut short": {func(e *export) {
			e.write("metadata/BILLING_PERIOD=2026-10/gpu-Manifest.json", []byte(`{"dataFiles":["s3`))
		}, []string{"not a readable manifest"}, true},
		"manifest of no file":   {func(e *export) { e.manifest() }, []string{"names no data file"}, true},
		"file of another month": {func(e *export) { e.manifest("s3://b/cur/gpu/data/BILLING_PERIOD=2026-09/gpu-00001.csv.gz") }, []string{"BILLING_PERIOD=2026-10"}, false},
		"file outside":          {func(e *export) { e.manifest("s3://b/data/BILLING_PERIOD=2026-10/../../../etc/passwd.csv") }, []string{"not the layout"}, false},
		"a file twice": {func(e *export) {
			u := e.data("gpu-00001.csv.gz", good(e))
			e.manifest(u, u)
		}, []string{"named twice"}, false},
		"wrong size": {func(e *export) {
			u := e.data("gpu-00001.csv.gz", good(e))
			e.write("cur/gpu/metadata/BILLING_PERIOD=2026-10/gpu-Manifest.json", []byte(`{"dataFiles":[{"s3Uri":"`+u+`","size":7}]}`))
		}, []string{"gpu-00001.csv.gz", "bytes and the manifest says 7"}, true},
		"two exports": {func(e *export) {
			e.manifest(e.data("gpu-00001.csv.gz", good(e)))
			e.prefix = "cur/other"
			e.manifest(e.data("gpu-00001.csv.gz", good(e)))
		}, []string{"two exports hold 2026-10", "cur/other"}, false},
		"a column no cost is right without": {func(e *export) {
			e.columns = slices.DeleteFunc(slices.Clone(allColumns), func(c string) bool { return c == "line_item_unblended_cost" })
			e.manifest(e.data("gpu-00001.csv.gz", good(e)))
		}, []string{"line_item_unblended_cost", "add it to the export's query"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := newExport(t)
			tc.make(e)
			_, err := e.reader().Deliveries(context.Background())
			check(t, err, tc.says, tc.incomplete)
		})
	}
}

func check(t *testing.T, err error, says []string, incomplete bool) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q does not say %q", err, s)
		}
	}
	if errors.Is(err, billing.ErrIncomplete) != incomplete {
		t.Errorf("%q: incomplete is %v, want %v", err, !incomplete, incomplete)
	}
}

// One broken month does not hide the others.
func TestOneBrokenMonth(t *testing.T) {
	e := newExport(t)
	e.manifest(e.data("gpu-00001.csv.gz", gz(csvOf(e.columns, cost("1")))))
	e.month = "2026-09"
	e.manifest("s3://b/data/BILLING_PERIOD=2026-09/gpu-00001.csv.gz")
	ds, err := e.reader().Deliveries(context.Background())
	if len(ds) != 1 || ds[0].BillingPeriod.String() != "2026-10" {
		t.Errorf("deliveries %+v", ds)
	}
	check(t, err, []string{"2026-09"}, true)
}

// Data that breaks while it is read.
func TestBrokenData(t *testing.T) {
	three := []row{cost("1"), cost("2"), cost("3")}
	for name, tc := range map[string]struct {
		file       string
		make       func(e *export) []byte
		says       []string
		row        int64
		column     string
		incomplete bool
	}{
		"truncated gzip": {"gpu-1.csv.gz", func(e *export) []byte { b := gz(csvOf(e.columns, three...)); return b[:len(b)-20] }, []string{"gpu-1.csv.gz", "truncated"}, 0, "", true},
		"bad checksum": {"gpu-1.csv.gz", func(e *export) []byte {
			b := gz(csvOf(e.columns, three...))
			b[len(b)-6] ^= 1
			return b
		}, []string{"truncated or damaged"}, 0, "", true},
		"broken cost": {"gpu-1.csv", func(e *export) []byte { return csvOf(e.columns, cost("1"), cost("1,5")) }, []string{"gpu-1.csv", "1,5", "nothing of this delivery was loaded"}, 2, "line_item_unblended_cost", false},
		"no cost":     {"gpu-1.csv", func(e *export) []byte { return csvOf(e.columns, cost("1"), cost("")) }, []string{"no value"}, 2, "line_item_unblended_cost", false},
		"25 decimals": {"gpu-1.csv", func(e *export) []byte { return csvOf(e.columns, cost("0.0000000000000000000000001")) }, []string{"24 decimals"}, 1, "line_item_unblended_cost", false},
		"NaN":         {"gpu-1.csv", func(e *export) []byte { return csvOf(e.columns, cost("NaN")) }, []string{"not a decimal"}, 1, "line_item_unblended_cost", false},
		"no time":     {"gpu-1.csv", func(e *export) []byte { return csvOf(e.columns, row{"line_item_usage_start_date": "yesterday"}) }, []string{"yesterday"}, 1, "line_item_usage_start_date", false},
		"ends before start": {"gpu-1.csv", func(e *export) []byte {
			return csvOf(e.columns, row{"line_item_usage_end_date": "2026-09-30T23:00:00Z"})
		}, []string{"before it starts"}, 1, "line_item_usage_end_date", false},
		"a field too few": {"gpu-1.csv", func(e *export) []byte { return append(csvOf(e.columns, cost("1")), "a,b\n"...) }, []string{"2 fields"}, 2, "", false},
		"open quote":      {"gpu-1.csv", func(e *export) []byte { return append(csvOf(e.columns, cost("1")), "\"a\n"...) }, []string{"line 3"}, 2, "", false},
		"tags no JSON":    {"gpu-1.csv", func(e *export) []byte { return csvOf(e.columns, row{"resource_tags": "a=b"}) }, []string{"JSON"}, 1, "resource_tags", false},
		"column twice": {"gpu-1.csv", func(e *export) []byte {
			return csvOf(append(slices.Clone(e.columns), "line_item_unblended_cost"), three...)
		}, []string{"line_item_unblended_cost twice"}, 0, "", false},
		"empty file":        {"gpu-1.csv", func(*export) []byte { return nil }, []string{"empty"}, 0, "", true},
		"truncated parquet": {"gpu-1.parquet", func(e *export) []byte { b := parquetOf(e.t, e.columns, three...); return b[:len(b)-9] }, []string{"gpu-1.parquet", "not a whole Parquet file"}, 0, "", true},
		"column of covered usage missing": {"gpu-1.csv", func(e *export) []byte {
			e.columns = slices.DeleteFunc(gross(), func(c string) bool { return c == columns[colSPEffective] })
			return csvOf(e.columns, row{"line_item_line_item_type": "SavingsPlanCoveredUsage"})
		}, []string{"not in the export", "SavingsPlanCoveredUsage"}, 1, columns[colSPEffective], false},
	} {
		t.Run(name, func(t *testing.T) {
			e := newExport(t)
			b := tc.make(e)
			e.manifest(e.data(tc.file, b))
			r := e.reader()
			_, err := billingtest.Read(r, billingtest.Deliveries(t, r)[0])
			check(t, err, tc.says, tc.incomplete)
			var at *billing.RowError
			if errors.As(err, &at) && (at.Row != tc.row || at.Column != tc.column || !strings.HasSuffix(at.File, tc.file)) {
				t.Errorf("at %s row %d column %q, want row %d column %q", at.File, at.Row, at.Column, tc.row, tc.column)
			} else if at == nil && tc.row > 0 {
				t.Errorf("%v does not say the row", err)
			}
		})
	}
}

// A file rewritten between the look and the read is a race, not a mixture.
func TestRacingDelivery(t *testing.T) {
	e := newExport(t)
	uri := e.data("gpu-00001.csv", csvOf(e.columns, cost("1")))
	e.manifest(uri)
	r := e.reader()
	d := billingtest.Deliveries(t, r)[0]
	e.data("gpu-00001.csv", csvOf(e.columns, cost("1"), cost("2")))
	_, err := billingtest.Read(r, d)
	check(t, err, []string{"changed while"}, true)
	if err := os.Remove(filepath.Join(e.dir, d.Files[0].Key)); err != nil {
		t.Fatal(err)
	}
	_, err = billingtest.Read(r, d)
	check(t, err, []string{"not found"}, true)
}

// Harmless oddities of the header, and another order of columns in each file.
func TestTolerantHeaders(t *testing.T) {
	e := newExport(t)
	plain := csvOf(e.columns, cost("1"))
	back := slices.Clone(e.columns)
	slices.Reverse(back)
	var uris []string
	for i, b := range [][]byte{
		append([]byte("\ufeff"), plain...),
		[]byte(strings.ReplaceAll(string(plain), "\n", "\r\n")),
		csvOf(append([]string{"", "x_other", "x_other"}, back...), cost("1")),
		gz(csvOf(back, cost("1"))),
		parquetOf(t, back, cost("1")),
	} {
		ext := ".csv"
		if i == 4 {
			ext = ".parquet"
		}
		uris = append(uris, e.data("gpu-0000"+string(rune('1'+i))+ext, b))
	}
	e.manifest(uris...)
	lines, _, _ := e.read()
	if len(lines) != 5 {
		t.Fatalf("%d lines", len(lines))
	}
	for i := range lines {
		if diff := billingtest.Diff(lines[:1], lines[i:i+1]); diff != "" {
			t.Errorf("file %d: %s", i+1, diff)
		}
	}
}

// The same rows as CSV and as Parquet with doubles, timestamps and maps are the
// same lines.
func TestParquetEqualsCSV(t *testing.T) {
	rows := []row{
		{"line_item_resource_id": "i-a", "line_item_usage_type": p5, "line_item_usage_amount": "0.296111", "line_item_unblended_cost": "0.30000000000000004", "resource_tags": `{"user_team":"a","user_empty":""}`},
		{"line_item_unblended_cost": "1.81E-8", "pricing_public_on_demand_cost": "9.052E-7", "resource_tags": "{}", "product": `{"region_code":"us-east-1"}`},
		{"line_item_line_item_type": "RIFee", "reservation_unused_recurring_fee": "1.1", "reservation_unused_amortized_upfront_fee_for_billing_period": "0.0069444444", "line_item_unblended_cost": "-12345678.9"},
	}
	var got [2][]billing.Line
	for i, names := range []string{"gpu-1.csv.gz", "gpu-1.snappy.parquet"} {
		e := newExport(t)
		b := gz(csvOf(e.columns, rows...))
		if i == 1 {
			b = parquetOf(t, e.columns, rows...)
		}
		e.manifest(e.data(names, b))
		got[i], _, _ = e.read()
	}
	if diff := billingtest.Diff(got[0], got[1]); diff != "" {
		t.Error(diff)
	}
	if got[1][1].Costs.Billed.String() != "0.0000000181" || got[1][0].Costs.Billed.String() != "0.30000000000000004" {
		t.Errorf("costs %v", costs(got[1]))
	}
}

func TestMissingOptionalColumns(t *testing.T) {
	e := newExport(t)
	e.columns = []string{"line_item_line_item_type", "line_item_usage_start_date", "line_item_usage_end_date", "line_item_unblended_cost", "line_item_currency_code"}
	lines, _, d := e.lines(cost("1"))
	notes := strings.Join(d.Notes, "\n")
	for _, c := range []string{"pricing_public_on_demand_cost", "line_item_resource_id", "resource_tags"} {
		if !strings.Contains(notes, c) {
			t.Errorf("notes do not name %s: %s", c, notes)
		}
	}
	if len(lines) != 1 || lines[0].Costs.List.Valid {
		t.Errorf("lines %+v", lines)
	}
}

// Tags of lines that are not kept stay unread, broken or not.
func TestTagsOnlyWhereKept(t *testing.T) {
	e := newExport(t)
	e.manifest(e.data("gpu-1.csv", csvOf(e.columns, row{"resource_tags": "broken"})))
	r := e.reader()
	d := billingtest.Deliveries(t, r)[0]
	err := r.Read(context.Background(), d, func(*billing.Line) bool { return false }, func(l *billing.Line, kept bool) error {
		if kept || l.Tags != nil {
			t.Errorf("kept %v, tags %v", kept, l.Tags)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	scope := billing.Scope{Filters: []billing.Filter{{Tags: map[string][]string{"user_team": {"*"}}}}}
	err = r.Read(context.Background(), d, scope.Keep, func(*billing.Line, bool) error { return nil })
	check(t, err, []string{"resource_tags"}, false)
}
