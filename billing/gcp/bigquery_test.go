package gcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpuledger/billing"
	"gpuledger/billing/billingtest"
	"gpuledger/billing/money"
	"gpuledger/billing/period"
	"gpuledger/internal/bqtest"
)

// schema is that of the detailed usage cost export.
func schema(t testing.TB) []bqtest.Field {
	t.Helper()
	text, err := os.ReadFile(billingtest.Shared(t, "samples/billing/gcp/gcp_billing_export_resource_v1.schema.json", "the export in BigQuery"))
	if err != nil {
		t.Fatal(err)
	}
	var out []bqtest.Field
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func connect(t testing.TB, s *bqtest.Server, opt Options) *Reader {
	t.Helper()
	if opt.Table == "" {
		opt.Table = s.Name()
	}
	opt.Endpoint = s.URL
	r, err := BigQuery(t.Context(), "gcp", opt)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// month is a bill of machines, a commitment, other services, tax and rounding.
func month() []bqtest.Row {
	other := func(changes map[string]any) bqtest.Row {
		r := usage(map[string]any{"service.id": "24E6-581D-38E5", "service.description": "BigQuery", "sku.description": "Analysis", "resource": nil, "system_labels": []any{}, "labels": []any{}})
		for k, v := range changes {
			r[k] = v
		}
		return r
	}
	return []bqtest.Row{
		usage(nil),
		usage(map[string]any{"sku.description": "Nvidia Tesla A100 GPU running in Americas", "cost": json.Number("2.933908"), "usage.amount_in_pricing_units": json.Number("1.0"), "usage.amount": json.Number("3600.0"), "price.list_price": "2.933908", "project.labels": []any{map[string]any{"key": "env", "value": "prod"}}}),
		commitment("Commitment v1: A2 Cpu in Americas for 1 Year", "0.6", "24"),
		covered("A2 Instance Core running in Americas", "0.4", "12", resourceDiscount, "-0.4"),
		other(map[string]any{"cost": json.Number("0.1")}),
		other(map[string]any{"cost": json.Number("0.3")}),
		other(map[string]any{"cost": json.Number("0.2"), "cost_at_list": nil, "credits": credit("PROMOTION", "-0.05")}),
		other(map[string]any{"cost": json.Number("0.7"), "cost_at_list": json.Number("0.7"), "usage_start_time": "2026-09-30 23:00:00 UTC", "usage_end_time": "2026-10-01 00:00:00 UTC"}),
		other(map[string]any{"cost": json.Number("1.5"), "cost_type": "tax", "service": map[string]any{"id": "TAX", "description": "Invoice"}}),
		other(map[string]any{"cost": json.Number("-3"), "cost_type": "adjustment", "adjustment_info": map[string]any{"type": "GENERAL_ADJUSTMENT"}}),
		other(map[string]any{"cost": json.Number("1"), "cost_type": "adjustment", "adjustment_info": map[string]any{"type": "GENERAL_ADJUSTMENT"}}),
		other(map[string]any{"cost": json.Number("0.01"), "cost_type": "rounding_error"}),
	}
}

func controls(t testing.TB, r *Reader, d billing.Delivery) ([]billing.Control, []billing.Line) {
	t.Helper()
	var c billing.Controls
	var kept []billing.Line
	err := r.Read(t.Context(), d, func(l *billing.Line) bool { return l.Service == "Compute Engine" }, func(l *billing.Line, keep bool) error {
		if keep {
			kept = append(kept, *l)
		}
		return c.Add(l, keep)
	})
	if err != nil {
		t.Fatal(err)
	}
	return c.Rows(), kept
}

// The table and a file of the same rows are the same lines and the same control totals,
// although BigQuery adds up what is of other services.
func TestTableIsTheFile(t *testing.T) {
	s := bqtest.New(t, schema(t), month())
	table := connect(t, s, Options{})
	fromTable := billingtest.Deliveries(t, table)
	file := open(t, write(t, t.TempDir(), ndjson(t, month()...)))
	fromFile := billingtest.Deliveries(t, file)
	if len(fromTable) != 1 || len(fromFile) != 1 || fromTable[0].BillingPeriod.String() != "2026-10" || fromTable[0].Submitted.Format(time.RFC3339) != "2026-10-06T02:11:12Z" {
		t.Fatalf("%+v, %+v", fromTable, fromFile)
	}
	a, keptA := controls(t, table, fromTable[0])
	b, keptB := controls(t, file, fromFile[0])
	if diff := cmp.Diff(a, b, cmp.Comparer(func(x, y billing.Control) bool { return x == y })); diff != "" {
		t.Error(diff)
	}
	if diff := billingtest.Diff(keptA, keptB); diff != "" || len(keptA) != 4 {
		t.Errorf("%d lines kept: %s", len(keptA), diff)
	}
	var all money.Amount
	var n int64
	for _, c := range a {
		all, n = all.Add(c.Billed), n+c.Lines
	}
	// 1 + 2.933908 + 0.6 + 0 + 0.1 + 0.3 + 0.15 + 0.7 + 1.5 − 3 + 1 + 0.01
	if all != money.MustParse("5.293908") || n != 12 {
		t.Errorf("%d rows of %s", n, all)
	}
	var asked []string
	for _, q := range s.Queries {
		asked = append(asked, q[:strings.IndexByte(q, '\n')])
		if !strings.Contains(q, "_PARTITIONTIME >= @since") && !strings.Contains(q, ">= @first") {
			t.Errorf("not bounded by partition: %s", q)
		}
	}
	if want := []string{"-- gpuledger: days", "-- gpuledger: rows", "-- gpuledger: sums"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q: rows are read once and gone through twice", asked, want)
	}
}

// All services one by one, where the scope needs them.
func TestEveryService(t *testing.T) {
	s := bqtest.New(t, schema(t), month())
	r := connect(t, s, Options{Services: []string{"*"}})
	if lines := billingtest.ReadAll(t, r, billingtest.Deliveries(t, r)[0]); len(lines) != 12 || slices.ContainsFunc(s.Queries, func(q string) bool { return strings.HasPrefix(q, "-- gpuledger: sums") }) {
		t.Errorf("%d lines by %q", len(lines), s.Queries)
	}
}

// The token of a month changes with its rows and with nothing else; months without new
// rows are not looked at.
func TestChangeToken(t *testing.T) {
	september := usage(map[string]any{"invoice.month": "202609", "usage_start_time": "2026-09-05 13:00:00 UTC", "usage_end_time": "2026-09-05 14:00:00 UTC", "export_time": "2026-09-06 00:00:00 UTC"})
	s := bqtest.New(t, schema(t), append(month(), september))
	first := billingtest.Deliveries(t, connect(t, s, Options{}))
	again := billingtest.Deliveries(t, connect(t, s, Options{}))
	if len(first) != 2 || first[0].Token != again[0].Token || first[1].Token != again[1].Token {
		t.Fatal("the same rows have another token")
	}
	since := Options{Since: time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)}
	if ds := billingtest.Deliveries(t, connect(t, s, since)); len(ds) != 1 || ds[0].BillingPeriod.String() != "2026-10" || ds[0].Token != first[1].Token {
		t.Errorf("changed since October: %v", ds)
	}
	late := usage(map[string]any{"invoice.month": "202609", "usage_start_time": "2026-09-05 13:00:00 UTC", "usage_end_time": "2026-09-05 14:00:00 UTC", "export_time": "2026-10-20 00:00:00 UTC", "cost": json.Number("-0.5")})
	s.Change(func() { s.Rows = append(s.Rows, late) })
	ds := billingtest.Deliveries(t, connect(t, s, since))
	if len(ds) != 2 || ds[0].BillingPeriod.String() != "2026-09" || ds[0].Token == first[0].Token || ds[1].Token != first[1].Token {
		t.Errorf("a correction of September: %v", ds)
	}
	if ds := billingtest.Deliveries(t, connect(t, s, Options{From: period.MonthOf(since.Since)})); len(ds) != 1 || ds[0].BillingPeriod.String() != "2026-10" {
		t.Errorf("from October on: %v", ds)
	}
}

// A row that comes between the look and the reading is found: nothing is loaded.
func TestTableChangesMeanwhile(t *testing.T) {
	s := bqtest.New(t, schema(t), month())
	r := connect(t, s, Options{})
	d := billingtest.Deliveries(t, r)[0]
	s.Change(func() { s.Rows = append(s.Rows, usage(nil)) })
	if _, err := billingtest.Read(r, d); !errors.Is(err, billing.ErrIncomplete) || !strings.Contains(err.Error(), "2026-10 had 12 rows and then 13") {
		t.Error(err)
	}
}

// Each fault of the service is one error that says what to do.
func TestServiceFaults(t *testing.T) {
	always := func(status int, reason, message string) func(*http.Request) (int, string, string) {
		return func(*http.Request) (int, string, string) { return status, reason, message }
	}
	for name, c := range map[string]struct {
		change     func(*bqtest.Server)
		says       string
		incomplete bool
	}{
		"no permission":  {func(s *bqtest.Server) { s.Fault = always(403, "accessDenied", "Access Denied") }, "needs BigQuery Data Viewer on the dataset and BigQuery Job User on project bills-prod", false},
		"no such table":  {func(s *bqtest.Server) { s.Table = "other" }, "check the name of the table", false},
		"token expired":  {func(s *bqtest.Server) { s.Fault = always(401, "authError", "Invalid Credentials") }, "make new ones", false},
		"too many bytes": {func(s *bqtest.Server) { s.Scanned = 2 << 40 }, "would read 2199023255552 bytes and max_bytes allows 1099511627776", false},
		"standard export": {func(s *bqtest.Server) {
			s.Schema = slices.DeleteFunc(s.Schema, func(f bqtest.Field) bool { return f.Name == "resource" })
		}, "this is the standard usage cost export", false},
		"another table": {func(s *bqtest.Server) { s.Schema = []bqtest.Field{{Name: "a", Type: "STRING"}} }, "column cost, currency, invoice.month", false},
		"wrong region": {func(s *bqtest.Server) {
			s.Fault = func(r *http.Request) (int, string, string) {
				if r.Method == http.MethodPost {
					return 404, "notFound", "Not found: Dataset bills-prod:billing was not found in location US"
				}
				return 0, "", ""
			}
		}, "its dataset is where the query runs", false},
	} {
		s := bqtest.New(t, schema(t), month())
		name0 := s.Name()
		c.change(s)
		r := connect(t, s, Options{Table: name0})
		_, err := r.Deliveries(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), name0) || errors.Is(err, billing.ErrIncomplete) != c.incomplete {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A service that is away for a moment is asked again; one whose answer breaks off within a
// page leaves an error.
func TestServiceIsAwayForAMoment(t *testing.T) {
	s := bqtest.New(t, schema(t), month())
	fails := 1
	s.Fault = func(r *http.Request) (int, string, string) {
		if strings.Contains(r.URL.Path, "/queries/") && fails > 0 {
			fails--
			return 503, "backendError", "try again"
		}
		return 0, "", ""
	}
	r := connect(t, s, Options{})
	if lines := billingtest.ReadAll(t, r, billingtest.Deliveries(t, r)[0]); len(lines) != 11 || fails != 0 {
		t.Errorf("%d lines, %d faults left", len(lines), fails)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := connect(t, s, Options{}).Deliveries(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// Tables that are not partitioned by when rows were exported are read whole, and it says so;
// the estimate of each query is logged.
func TestPartitions(t *testing.T) {
	for partition, says := range map[string]string{"": "", "none": "is not partitioned by time", "usage_start_time": "is partitioned by usage_start_time", "export_time": ""} {
		s := bqtest.New(t, schema(t), month())
		s.Partition = partition
		var log bytes.Buffer
		r := connect(t, s, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
		d := billingtest.Deliveries(t, r)[0]
		if notes := strings.Join(d.Notes, "\n"); says == "" && notes != "" || !strings.Contains(notes, says) {
			t.Errorf("partition %q: notes %q", partition, notes)
		}
		if lines := billingtest.ReadAll(t, r, d); len(lines) != 11 {
			t.Errorf("partition %q: %d lines", partition, len(lines))
		}
		if !strings.Contains(log.String(), "asks=rows reads_bytes=1048576") {
			t.Errorf("logged %s", log.String())
		}
	}
}

// Google's FOCUS export, by the rows that Costroid published for it: totals, labels as
// tags, a restated month, a row that is refused.
func TestFOCUSTable(t *testing.T) {
	fixture := billingtest.Shared(t, "samples/billing/focus/costroid/gcp-focus-bq/fixture", "Google's FOCUS export")
	fields, rows := published(t, fixture+"/2026-05.json", fixture+"/2026-06.json")
	s := bqtest.New(t, fields, rows)
	s.Partition = "none"
	r := connect(t, s, Options{})
	ds := billingtest.Deliveries(t, r)
	if len(ds) != 2 || !strings.HasPrefix(ds[0].Format, "FOCUS") {
		t.Fatalf("%+v", ds)
	}
	for i, want := range []string{"3.123456789012345678", "15"} {
		lines := billingtest.ReadAll(t, r, ds[i])
		if got := sum(lines, billed).String(); got != want {
			t.Errorf("%s: %s, want %s", ds[i].BillingPeriod, got, want)
		}
		if i == 1 && (len(lines) != 3 || lines[0].Tags["env"] != "prod" || lines[1].Tags != nil || lines[2].Tags["team"] != "finance") {
			t.Errorf("%+v", lines)
		}
	}
	s.Change(func() { s.Rows[len(s.Rows)-1]["BilledCost"] = nil })
	r = connect(t, s, Options{})
	if _, err := billingtest.Read(r, billingtest.Deliveries(t, r)[1]); err == nil || !strings.Contains(err.Error(), "row 3, column BilledCost") {
		t.Error(err)
	}
}

// published reads BigQuery's own form of rows.
func published(t testing.TB, files ...string) (fields []bqtest.Field, rows []bqtest.Row) {
	t.Helper()
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		text, err := io.ReadAll(f)
		if err != nil {
			t.Fatal(err)
		}
		var in struct {
			Schema struct{ Fields []bqtest.Field }
			Rows   []struct{ F []struct{ V any } }
		}
		if err := json.Unmarshal(text, &in); err != nil {
			t.Fatal(err)
		}
		fields = in.Schema.Fields
		for _, r := range in.Rows {
			row := bqtest.Row{}
			for i, c := range r.F {
				row[fields[i].Name] = plain(fields[i], c.V)
			}
			rows = append(rows, row)
		}
	}
	return fields, rows
}

// plain turns {"v": {"f": …}} into objects, and microseconds into times.
func plain(f bqtest.Field, v any) any {
	switch x := v.(type) {
	case []any:
		out := []any{}
		for _, e := range x {
			out = append(out, plain(bqtest.Field{Type: f.Type, Fields: f.Fields}, e.(map[string]any)["v"]))
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for i, c := range x["f"].([]any) {
			out[f.Fields[i].Name] = plain(f.Fields[i], c.(map[string]any)["v"])
		}
		return out
	case string:
		if f.Type == "TIMESTAMP" {
			n, err := json.Number(x).Int64()
			if err != nil {
				return x
			}
			return time.UnixMicro(n).UTC().Format(time.RFC3339Nano)
		}
	}
	return v
}
