package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpuledger/billing/billingtest"
	"gpuledger/internal/bqtest"
	"gpuledger/internal/pgtest"
)

// exported is Google's table with the rows of a scenario's bill.
func exported(t *testing.T, bill string) *bqtest.Server {
	t.Helper()
	text, err := os.ReadFile(billingtest.Shared(t, "samples/billing/gcp/gcp_billing_export_resource_v1.schema.json", "a bill in BigQuery, end to end"))
	if err != nil {
		t.Fatal(err)
	}
	var schema []bqtest.Field
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	var rows []bqtest.Row
	dec := json.NewDecoder(strings.NewReader(readFile(t, bill)))
	dec.UseNumber()
	for dec.More() {
		var r bqtest.Row
		if err := dec.Decode(&r); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, r)
	}
	return bqtest.New(t, schema, rows)
}

const byCategory = `SELECT category, trim_scale(sum(billed_cost)), trim_scale(sum(effective_cost)) FROM finance.allocation GROUP BY 1 ORDER BY 1`

// A month from BigQuery is what it is from a file; the next night asks only for what is
// new; a correction that comes under the next invoice opens the month of its usage again.
func TestBigQueryNightByNight(t *testing.T) {
	work := layOut(t, "../../testdata/scenarios/gcp-labels-and-commitment")
	s := exported(t, filepath.Join(work, "bill.ndjson"))
	config := filepath.Join(work, "gpuledger.yaml")
	write(t, config, fmt.Sprintf("clusters: [{name: test, metrics: {type: openmetrics, path: ./metrics.om}}]\nbills: [{name: gcp, type: gcp, table: %s, endpoint: %q, max_bytes: 1GiB}]\n", s.Name(), s.URL))
	dsn := pgtest.New(t, migrate)
	mustCLI(t, dsn, "ingest", "samples", "--config", config, "--period", "2026-10")
	mustCLI(t, dsn, "ingest", "bills", "--config", config)
	mustCLI(t, dsn, "allocate", "--config", config, "--period", "2026-10")
	mustCLI(t, dsn, "reconcile", "--config", config, "--period", "2026-10")
	first := one(t, dsn, byCategory)
	for _, want := range []string{"commitment_unused", "2.4", "2.3", "0.38"} {
		if !strings.Contains(first, want) {
			t.Errorf("no %s in\n%s", want, first)
		}
	}
	// 0.66 of the machine, 0.004, 2.4, 5 and the tax of 0.3
	if bill := one(t, dsn, "SELECT lines || ' ' || trim_scale(billed_cost) FROM finance.bill_delivery"); strings.TrimSpace(bill) != "9 8.364" {
		t.Errorf("delivery %s", bill)
	}

	asked := len(s.Queries)
	mustCLI(t, dsn, "ingest", "bills", "--config", config)
	if again := s.Queries[asked:]; slices.ContainsFunc(again, func(q string) bool { return strings.HasPrefix(q, "-- gpuledger: rows") }) {
		t.Errorf("rows were read although nothing changed: %q", again)
	}

	correction := maps.Clone(s.Rows[0])
	correction["invoice"] = map[string]any{"month": "202611"}
	correction["cost"], correction["cost_at_list"] = json.Number("-0.1"), json.Number("-0.1")
	correction["export_time"] = "2026-12-01 02:00:00 UTC"
	s.Change(func() { s.Rows = append(s.Rows, correction) })
	asked = len(s.Queries)
	mustCLI(t, dsn, "ingest", "bills", "--config", config)
	if again := s.Queries[asked:]; !slices.ContainsFunc(again, func(q string) bool { return strings.HasPrefix(q, "-- gpuledger: rows") }) {
		t.Errorf("a correction was not read: %q", again)
	}
	mustCLI(t, dsn, "allocate", "--config", config, "--period", "2026-10")
	mustCLI(t, dsn, "reconcile", "--config", config, "--period", "2026-10")
	if got := one(t, dsn, "SELECT trim_scale(sum(effective_cost)) FROM finance.allocation WHERE category IN ('pod', 'unallocated')"); strings.TrimSpace(got) != "0.66" {
		t.Errorf("after the correction of −0.10 the machine costs %s, want 0.66", got)
	}
	if got := one(t, dsn, "SELECT count(*) || ' ' || count(DISTINCT billing_period) FROM finance.bill_delivery WHERE status = 'current'"); strings.TrimSpace(got) != "2 2" {
		t.Errorf("deliveries %s", got)
	}

	s.Change(func() { s.Scanned = 2 << 30 })
	code, _, stderr := cli(t, dsn, "ingest", "bills", "--config", config)
	if code != exitFailed || !strings.Contains(stderr, "would read 2147483648 bytes and max_bytes allows 1073741824") {
		t.Errorf("%d: %s", code, stderr)
	}
}

// A table that is written while it is read is read again, whole.
func TestBillChangesWhileItIsRead(t *testing.T) {
	defer func(was time.Duration) { raceWait = was }(raceWait)
	raceWait = time.Millisecond
	work := layOut(t, "../../testdata/scenarios/gcp-labels-and-commitment")
	s := exported(t, filepath.Join(work, "bill.ndjson"))
	config := filepath.Join(work, "gpuledger.yaml")
	write(t, config, fmt.Sprintf("bills: [{name: gcp, type: gcp, table: %s, endpoint: %q}]\n", s.Name(), s.URL))
	asked := 0
	s.Fault = func(r *http.Request) (int, string, string) {
		if r.Method == http.MethodPost {
			if asked++; asked == 4 { // two for the days, tried and run; the rows, tried, and now run
				s.Rows = append(s.Rows, s.Rows[0])
			}
		}
		return 0, "", ""
	}
	dsn := pgtest.New(t, migrate)
	_, _, log := cli(t, dsn, "ingest", "bills", "--config", config)
	if got := strings.TrimSpace(one(t, dsn, "SELECT sum(lines) FROM finance.bill_delivery")); got != "10" || !strings.Contains(log, "it is read again") {
		t.Errorf("%s lines: %s", got, log)
	}
}
