package main

import (
	"math/big"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"gpuledger/billing/period"
	"gpuledger/internal/fleet"
	"gpuledger/internal/pgtest"
	"gpuledger/warehouse"
)

// Every kind of charge is explained with the ratio that is stored: pods, moved and
// kept remainders, lines on no node; under the default, a policy that moves
// and two that divide the line.
func TestExplainEveryCharge(t *testing.T) {
	m, err := period.ParseMonth("2026-10")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	w, err := fleet.New(fleet.Spec{Month: m, Nodes: 4, PodsPerNode: 3, Interval: 5 * time.Minute, Days: 1, Seed: 3}).Write(dir)
	if err != nil {
		t.Fatal(err)
	}
	dsn := pgtest.New(t, migrate)
	mustCLI(t, dsn, "run", "--config", w.Config, "--period", "2026-10")
	moving := filepath.Join(dir, "moving.yaml")
	write(t, moving, "basis: request\nidle: {default: proportional, slot_held: even}\nunattributed: {mode: spread}\n")
	scad, ratio := filepath.Join(dir, "scad.yaml"), filepath.Join(dir, "ratio.yaml")
	write(t, scad, "component_split: scad\n")
	write(t, ratio, "component_split: ratio\nidle: {default: even}\n")
	for _, policy := range []string{filepath.Join(dir, "policy.yaml"), moving, scad, ratio} {
		mustCLI(t, dsn, "allocate", "--config", w.Config, "--period", "2026-10", "--policy", policy)
		db, err := warehouse.Open(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(db.Close)
		// A sample of each kind: many rows of a kind are alike.
		ids := strings.Split(one(t, dsn, `SELECT id FROM (SELECT allocation_id::text AS id, row_number() OVER (PARTITION BY component, category, coalesce(moved_by, ''), sharing_mode, method ORDER BY allocation_id) AS n
			FROM finance.allocation) x WHERE n <= 6 ORDER BY 1`), "\n")
		if len(ids) < 20 {
			t.Fatalf("%d charges", len(ids))
		}
		for _, id := range ids {
			e, err := db.Explain(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if e.Recomputed && int64(e.Share.Ratio) != e.StoredRatio {
				t.Errorf("%s: recomputed %s, stored %d", id, e.Share.Ratio, e.StoredRatio)
			}
		}
		out := mustCLI(t, dsn, "explain", "--allocation", ids[0])
		for _, s := range []string{"1. Bill line", "Paid by"} {
			if !strings.Contains(out, s) {
				t.Errorf("%q is not in\n%s", s, out)
			}
		}
	}
	if code, _, errs := cli(t, dsn, "explain", "--allocation", "0f3c"); code != 64 || !strings.Contains(errs, "allocation_id") {
		t.Errorf("a broken id: exit %d, %s", code, errs)
	}
}

// A file that grows: the hour that was read before its last samples came is read
// again, and what was unknown is known.
func TestPartlySeenHourIsReadAgain(t *testing.T) {
	dsn, dir := pgtest.New(t, migrate), layOut(t, "../../testdata/scenarios/held-and-idle")
	config, metrics := filepath.Join(dir, "gpuledger.yaml"), filepath.Join(dir, "metrics.om")
	whole := readFile(t, metrics)
	cut := float64(time.Date(2026, 10, 5, 10, 20, 0, 0, time.UTC).Unix())
	var early []string
	for _, line := range strings.Split(strings.TrimRight(whole, "\n"), "\n") {
		f := strings.Fields(line)
		if strings.HasPrefix(line, "#") {
			early = append(early, line)
		} else if at, err := strconv.ParseFloat(f[len(f)-1], 64); err == nil && at < cut {
			early = append(early, line)
		}
	}
	write(t, metrics, strings.Join(early, "\n")+"\n")
	_, _, errs := cli(t, dsn, "run", "--config", config)
	if !strings.Contains(errs, "part of the hour") {
		t.Errorf("no word of the part: %s", errs)
	}
	if got := one(t, dsn, "SELECT count(*) FROM finance.allocation WHERE category = 'no_telemetry' AND effective_cost > 2"); got != "1" {
		t.Errorf("unknown time: %s", one(t, dsn, "SELECT category, effective_cost FROM finance.allocation"))
	}
	write(t, metrics, whole)
	mustCLI(t, dsn, "run", "--config", config)
	if got := one(t, dsn, "SELECT category, pod_name, trim_scale(effective_cost) FROM finance.allocation"); got != "pod|a|4" {
		t.Errorf("after the rest came: %s", got)
	}
	before := one(t, dsn, "SELECT (SELECT count(*) FROM gpuledger.run), (SELECT count(*) FROM gpuledger.node_hour), (SELECT count(*) FROM gpuledger.sample_load)")
	mustCLI(t, dsn, "run", "--config", config)
	if after := one(t, dsn, "SELECT (SELECT count(*) FROM gpuledger.run), (SELECT count(*) FROM gpuledger.node_hour), (SELECT count(*) FROM gpuledger.sample_load)"); after != before {
		t.Errorf("a rerun wrote: %s, before %s", after, before)
	}
}

// A mistyped subcommand fails: cron must not believe it was done.
func TestMistypedSubcommand(t *testing.T) {
	for _, args := range [][]string{{"ingest", "bill"}, {"ingest"}, {"migrate"}, {"db", "frob"}} {
		if code, _, errs := cli(t, "", args...); code != 64 || !strings.Contains(errs, args[0]) {
			t.Errorf("%v: exit %d, %s", args, code, errs)
		}
	}
}

// A month above the policy's limits is said to be; it is published all the same.
func TestGatesWarn(t *testing.T) {
	dsn, dir := pgtest.New(t, migrate), layOut(t, "../../testdata/scenarios/copies-are-one-figure")
	_, _, errs := cli(t, dsn, "run", "--config", filepath.Join(dir, "gpuledger.yaml"))
	for _, s := range []string{"estimated: 3.60 USD (90.00 %), and 10% is allowed: ml/a by replica_request 1.20", "unowned: 3.60 USD (90.00 %), and 0% is allowed: ml 3.60"} {
		if !strings.Contains(errs, s) {
			t.Errorf("%q is not in %s", s, errs)
		}
	}
}

// A line that ends within an hour is split by the whole hour's use, and said with its cost.
func TestWindowWithinAnHourIsSaid(t *testing.T) {
	dsn, dir := pgtest.New(t, migrate), layOut(t, "../../testdata/scenarios/held-and-idle")
	bill := filepath.Join(dir, "bill.csv")
	lines := readFile(t, bill)
	if !strings.Contains(lines, "2026-10-05T11:00:00Z") {
		t.Fatal("the scenario has no line that ends at 11:00")
	}
	write(t, bill, strings.ReplaceAll(lines, "2026-10-05T11:00:00Z", "2026-10-05T10:20:00Z"))
	_, _, errs := cli(t, dsn, "run", "--config", filepath.Join(dir, "gpuledger.yaml"))
	if !strings.Contains(errs, "begins or ends within an hour") || !strings.Contains(errs, "1 lines or windows, 4 USD, the first on node n1") {
		t.Error(errs)
	}
}

// A night in which the samples cannot be read publishes nothing: what was not read is
// not "no telemetry".
func TestUnreadSamplesPublishNothing(t *testing.T) {
	dsn, dir := pgtest.New(t, migrate), layOut(t, "../../testdata/scenarios/held-and-idle")
	config := filepath.Join(dir, "gpuledger.yaml")
	write(t, config, "clusters: [{name: prod, metrics: {type: openmetrics, path: ./metrics.om}}]\nbills: [{name: bill, type: focus, location: ./bill.csv}]\n")
	whole := readFile(t, filepath.Join(dir, "metrics.om"))
	write(t, filepath.Join(dir, "metrics.om"), whole[:len(whole)/2])
	if code, _, errs := cli(t, dsn, "run", "--config", config); code != 1 || !strings.Contains(errs, "metrics.om") {
		t.Errorf("exit %d: %s", code, errs)
	}
	if got := one(t, dsn, "SELECT count(*) FROM gpuledger.run"); got != "0" {
		t.Errorf("%s runs", got)
	}
	write(t, config, "# nothing\n")
	if code, _, errs := cli(t, dsn, "run", "--config", config); code != 64 || !strings.Contains(errs, "neither clusters nor bills") {
		t.Errorf("empty configuration: exit %d: %s", code, errs)
	}
}

// What comes out of a month does not depend on how many of its days are computed at
// once, nor on what of it was in the warehouse before.
func TestWorkersMakeNoDifference(t *testing.T) {
	m, err := period.ParseMonth("2026-10")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	w, err := fleet.New(fleet.Spec{Month: m, Nodes: 3, PodsPerNode: 3, Interval: 10 * time.Minute, Days: 4, Seed: 5}).Write(dir)
	if err != nil {
		t.Fatal(err)
	}
	moving := filepath.Join(dir, "moving.yaml")
	write(t, moving, "component_split: ratio\nidle: {default: {policy: proportional, scope: cluster}, unallocated: {policy: last_tenant, lookback: 3h}}\n")
	var first string
	for _, workers := range []string{"1", "4"} {
		dsn := pgtest.New(t, migrate)
		mustCLI(t, dsn, "ingest", "samples", "--config", w.Config, "--period", "2026-10", "-q")
		mustCLI(t, dsn, "ingest", "bills", "--config", w.Config, "-q")
		if workers == "4" {
			mustCLI(t, dsn, "allocate", "--config", w.Config, "--period", "2026-10", "--workers", "2")
		}
		mustCLI(t, dsn, "allocate", "--config", w.Config, "--period", "2026-10", "--policy", moving, "--workers", workers)
		got := one(t, dsn, "SELECT encode(output_sha256, 'hex') FROM gpuledger.run ORDER BY seq DESC LIMIT 1") + "\n" +
			one(t, dsn, `SELECT string_agg(allocation_id || ' ' || ratio || ' ' || gpu_ratio, ',' ORDER BY allocation_id) FROM gpuledger.allocation a
				JOIN gpuledger.run_unit u ON u.unit_id = a.unit_id AND u.run_id = (SELECT run_id FROM gpuledger.period)`)
		if first == "" {
			first = got
		} else if got != first {
			t.Errorf("4 workers differ from 1")
		}
	}
	if len(first) < 10_000 {
		t.Errorf("only %d bytes to compare", len(first))
	}
}

// A failure while new owners are written loses nothing: what was rolled back is not
// remembered, and the rerun shows every cent in the finance views.
func TestFailedOwnersAreWrittenAgain(t *testing.T) {
	m, err := period.ParseMonth("2026-10")
	if err != nil {
		t.Fatal(err)
	}
	w, err := fleet.New(fleet.Spec{Month: m, Nodes: 3, PodsPerNode: 3, Interval: 10 * time.Minute, Days: 4, Seed: 9}).Write(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dsn := pgtest.New(t, migrate)
	mustCLI(t, dsn, "ingest", "samples", "--config", w.Config, "--period", "2026-10", "-q")
	mustCLI(t, dsn, "ingest", "bills", "--config", w.Config, "-q")
	execSQL(t, dsn, `CREATE SEQUENCE public.tries;
		CREATE FUNCTION public.fail_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF nextval('public.tries') = 2 THEN RAISE 'no'; END IF; RETURN NEW; END $$;
		CREATE TRIGGER fail_once BEFORE INSERT ON gpuledger.owner FOR EACH ROW EXECUTE FUNCTION public.fail_once()`)
	if code, _, errs := cli(t, dsn, "allocate", "--config", w.Config, "--period", "2026-10", "--workers", "4"); code != 1 {
		t.Fatalf("exit %d: %s", code, errs)
	}
	mustCLI(t, dsn, "allocate", "--config", w.Config, "--period", "2026-10", "--workers", "4")
	mustCLI(t, dsn, "reconcile", "--period", "2026-10")
	if n := one(t, dsn, "SELECT count(*) FROM gpuledger.allocation a LEFT JOIN gpuledger.owner o ON o.id = a.owner_id WHERE o.id IS NULL"); n != "0" {
		t.Errorf("%s facts of an owner that is not stored", n)
	}
	if got, want := one(t, dsn, "SELECT sum(effective_cost) FROM finance.allocation"), one(t, dsn, "SELECT sum(in_scope_effective) FROM finance.reconciliation"); !sameNumber(t, got, want) {
		t.Errorf("finance shows %s of %s", got, want)
	}
}

// The schema taken back and forth makes hours anew that it had to forget things of.
func TestHoursAreReadAgainAfterMigratingDownAndUp(t *testing.T) {
	dsn, dir := pgtest.New(t, migrate), layOut(t, "../../testdata/scenarios/last-tenant")
	config := filepath.Join(dir, "gpuledger.yaml")
	mustCLI(t, dsn, "ingest", "samples", "--config", config, "--period", "2026-10", "-q")
	mustCLI(t, dsn, "ingest", "bills", "--config", config, "-q")
	for undone := ""; !strings.Contains(undone, "00003"); { // to before the times within an hour
		_, out, errs := cli(t, dsn, "migrate", "down")
		if undone = out + errs; strings.Contains(undone, "00001") {
			t.Fatal(undone)
		}
	}
	mustCLI(t, dsn, "migrate", "up")
	policy := filepath.Join(dir, "policy-hour.yaml")
	code, _, errs := cli(t, dsn, "allocate", "--config", config, "--period", "2026-10", "--policy", policy)
	if code != 0 || !strings.Contains(errs, "read them again with: gpuledger ingest samples --period 2026-10") {
		t.Errorf("exit %d: %s", code, errs)
	}
	mustCLI(t, dsn, "ingest", "samples", "--config", config, "--period", "2026-10", "-q")
	mustCLI(t, dsn, "allocate", "--config", config, "--period", "2026-10", "--policy", policy)
	compare(t, dsn, "../../testdata/scenarios/last-tenant/want-hour.csv", "2026-10")
}

// execSQL runs SQL that is no query.
func execSQL(t *testing.T, dsn, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
}

func sameNumber(t *testing.T, a, b string) bool {
	t.Helper()
	x, ok1 := new(big.Rat).SetString(a)
	y, ok2 := new(big.Rat).SetString(b)
	return ok1 && ok2 && x.Cmp(y) == 0
}
