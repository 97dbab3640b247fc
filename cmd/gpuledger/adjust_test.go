package main

import (
	"path/filepath"
	"strings"
	"testing"

	"gpuledger/billing/billingtest"
	"gpuledger/internal/pgtest"
)

// perTarget is what each target is charged for a month, of whatever posting.
const perTarget = `SELECT charge_start::date, currency, category, moved_by, team, cost_center, namespace, workload_name, pod_uid, node, gpu_model, account,
		trim_scale(sum(billed_cost)), trim_scale(sum(effective_cost)), trim_scale(sum(list_cost)), trim_scale(sum(gpu_hours)), sum(used_gib_hours), sum(held_gib_hours)
	FROM finance.allocation WHERE period = '2026-10-01' GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12
	HAVING sum(effective_cost) <> 0 OR sum(billed_cost) <> 0 OR sum(gpu_hours) <> 0 OR sum(used_gib_hours) <> 0 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12`

// perTeam is the same of the rollups.
const perTeam = `SELECT currency, category, team, namespace, gpu_model, trim_scale(sum(billed_cost)), trim_scale(sum(effective_cost)), trim_scale(sum(gpu_hours)) FROM finance.chargeback_month
	WHERE period = '2026-10-01' GROUP BY 1, 2, 3, 4, 5 HAVING sum(effective_cost) <> 0 OR sum(gpu_hours) <> 0 ORDER BY 1, 2, 3, 4, 5`

// fresh is what a month is by its inputs as they are, in a database of its own.
func fresh(t *testing.T, config, query string) string {
	t.Helper()
	dsn := pgtest.New(t, migrate)
	mustCLI(t, dsn, "ingest", "samples", "--config", config, "--period", "2026-10", "-q")
	mustCLI(t, dsn, "ingest", "bills", "--config", config, "-q")
	mustCLI(t, dsn, "allocate", "--config", config, "--period", "2026-10", "-q")
	return one(t, dsn, query)
}

// What is restated of a closed month is posted in an open one, as new − old of each
// target: closed and posted are, to the last digit, what the month would be if it were
// allocated today; the closed statement stays as it was, byte for byte.
func TestAdjust(t *testing.T) {
	for _, style := range []string{"delta", "ledger"} {
		t.Run(style, func(t *testing.T) {
			dsn, config := ready(t, "three-pods-not-300-percent")
			dir := filepath.Dir(config)
			write(t, filepath.Join(dir, "policy.yaml"), "basis: used\nadjustment: {style: "+style+"}\n")
			adjust := []string{"adjust", "--config", config, "--period", "2026-10", "--by", "A. Controller", "--reason", "restated"}
			if code, _, errs := cli(t, dsn, adjust...); code != exitFailed || !strings.Contains(errs, "2026-10 is not closed") {
				t.Errorf("open: exit %d: %s", code, errs)
			}
			mustCLI(t, dsn, "close", "--config", config, "--period", "2026-10", "--by", "A. Controller")
			statement := mustCLI(t, dsn, "export", "--period", "2026-10", "--by", "team,namespace,pod,category")
			charges := one(t, dsn, everyCharge)
			if out := mustCLI(t, dsn, adjust...); strings.Contains(out, "USD") {
				t.Errorf("nothing changed: %s", out)
			}

			// Restated: a third more, in digits that do not end soon, and a line that was forgotten.
			bill := readFile(t, filepath.Join(dir, "bill.csv"))
			restated := strings.ReplaceAll(bill, "4.00,4.00,4.00,4.00", "5.3333333333,5.30000000007,7,5.3333333333")
			lines := strings.Split(strings.TrimSpace(restated), "\n")
			late := strings.NewReplacer("2026-10-05T10", "2026-10-05T11", "2026-10-05T11", "2026-10-05T12").Replace(lines[1])
			write(t, filepath.Join(dir, "bill.csv"), restated+late+"\n")
			_, _, errs := cli(t, dsn, "run", "--config", config)
			if !strings.Contains(errs, "a closed month has new input; gpuledger adjust posts what it changes") {
				t.Errorf("run: %s", errs)
			}
			if code, _, errs := cli(t, dsn, "adjust", "--config", config, "--period", "2026-10"); code != exitUsage || !strings.Contains(errs, "--reason") {
				t.Errorf("no reason: exit %d: %s", code, errs)
			}
			dry := mustCLI(t, dsn, "adjust", "--config", config, "--period", "2026-10", "--dry-run", "-o", "csv")
			if got := one(t, dsn, "SELECT count(*) FROM gpuledger.adjustment_batch"); got != "0" {
				t.Errorf("a dry run posted %s", got)
			}
			if posted := mustCLI(t, dsn, append(adjust, "-o", "csv")...); posted != dry || !strings.Contains(posted, "2026-11,USD,6.6666666666,6.60000000014,10") {
				t.Errorf("posted\n%s\ndry run\n%s", posted, dry)
			}
			check := func() {
				t.Helper()
				for _, q := range []string{perTarget, perTeam} {
					if got, want := one(t, dsn, q), fresh(t, config, q); got != want {
						t.Errorf("closed and posted:\n%s\nallocated today:\n%s", got, want)
					}
				}
				if got := mustCLI(t, dsn, "export", "--period", "2026-10", "--by", "team,namespace,pod,category"); got != statement {
					t.Errorf("the closed statement changed:\n%s\nwas\n%s", got, statement)
				}
				if got := one(t, dsn, strings.Replace(everyCharge, "ORDER BY", "WHERE posting_period = '2026-10-01' ORDER BY", 1)); got != charges {
					t.Error("closed charges changed")
				}
				out := mustCLI(t, dsn, "reconcile", "--config", config, "--period", "2026-10")
				if !strings.Contains(out, "adjustments") {
					t.Errorf("reconcile:\n%s", out)
				}
				if got := one(t, dsn, "SELECT sum(effective_cost) - (SELECT sum(effective_cost) FROM finance.adjustment WHERE status = 'posted') FROM finance.chargeback_day WHERE posting_period = '2026-11-01' AND charge_class = 'Correction' AND period = '2026-10-01'"); strings.Trim(got, "0.") != "" {
					t.Errorf("the day view differs by %s", got)
				}
			}
			check()
			before := one(t, dsn, "SELECT count(*) FROM gpuledger.run")
			if out := mustCLI(t, dsn, adjust...); strings.Contains(out, "USD") || one(t, dsn, "SELECT count(*) FROM gpuledger.run") != before {
				t.Errorf("again: %s", out)
			}
			want := map[string]string{"delta": "delta", "ledger": "new,reversal"}[style]
			if got := one(t, dsn, "SELECT string_agg(DISTINCT entry, ',' ORDER BY entry) FROM finance.adjustment WHERE charge_day = '2026-10-05' AND category = 'pod'"); got != want {
				t.Errorf("entries %s", got)
			}
			if got := one(t, dsn, "SELECT DISTINCT style, charge_class, charge_period, posting_period, closed_run_id, adjusting_run_id, reason, by_name FROM finance.adjustment"); got != style+"|Correction|2026-10-01|2026-11-01|2026-10.1|2026-10.2|restated|A. Controller" {
				t.Errorf("%s", got)
			}
			if got := mustCLI(t, dsn, "export", "--period", "2026-11", "--by", "category,pod"); !strings.Contains(got, "2026-10,USD,pod,a,") || strings.Contains(got, "2026-11,USD") {
				t.Errorf("the block in the open month:\n%s", got)
			}

			// Restated once more, the other way, and telemetry that came late as well: what was
			// posted counts as charged.
			write(t, filepath.Join(dir, "bill.csv"), strings.ReplaceAll(bill, "4.00,4.00,4.00,4.00", "3.99,3.99,3.99,3.99"))
			mustCLI(t, dsn, "ingest", "bills", "--config", config, "-q")
			metrics := readFile(t, filepath.Join(dir, "metrics.om"))
			write(t, filepath.Join(dir, "metrics.om"), strings.ReplaceAll(metrics, "} 20480 ", "} 10240 "))
			mustCLI(t, dsn, "ingest", "samples", "--config", config, "--period", "2026-10", "-q")
			mustCLI(t, dsn, adjust...)
			check()
			if _, _, errs := cli(t, dsn, "run", "--config", config); strings.Contains(errs, "new input") {
				t.Errorf("adjusted, and yet: %s", errs)
			}

			// Reopened, the month takes all of it itself, once.
			mustCLI(t, dsn, "reopen", "--config", config, "--period", "2026-10", "--by", "A. Controller", "--second", "B. Auditor", "--reason", "too much changed")
			mustCLI(t, dsn, "allocate", "--config", config, "--period", "2026-10", "-q")
			if got, want := one(t, dsn, perTarget), fresh(t, config, perTarget); got != want {
				t.Errorf("reopened:\n%s\nwant\n%s", got, want)
			}
			if got := one(t, dsn, "SELECT DISTINCT status FROM finance.adjustment"); got != "superseded" {
				t.Errorf("status %s", got)
			}
		})
	}
}

// Below the materiality nothing is posted, and nothing is dropped: it waits until what has
// gathered is enough.
func TestMateriality(t *testing.T) {
	dsn, config := ready(t, "three-pods-not-300-percent")
	dir := filepath.Dir(config)
	write(t, filepath.Join(dir, "policy.yaml"), "basis: used\nadjustment: {materiality: \"0.05\"}\n")
	mustCLI(t, dsn, "close", "--config", config, "--period", "2026-10", "--by", "A. Controller")
	bill := readFile(t, filepath.Join(dir, "bill.csv"))
	adjust := func(cost string) string {
		t.Helper()
		write(t, filepath.Join(dir, "bill.csv"), strings.ReplaceAll(bill, "4.00,4.00,4.00,4.00", strings.Repeat(cost+",", 3)+cost))
		mustCLI(t, dsn, "ingest", "bills", "--config", config, "-q")
		mustCLI(t, dsn, "adjust", "--config", config, "--period", "2026-10", "--by", "A. Controller", "--reason", "restated")
		mustCLI(t, dsn, "reconcile", "--config", config, "--period", "2026-10")
		return one(t, dsn, "SELECT pod_name, status, trim_scale(sum(effective_cost)) FROM finance.adjustment WHERE category = 'pod' AND status IN ('posted', 'carried forward') GROUP BY 1, 2 ORDER BY 1, 2")
	}
	// Of 0.08, pod a gets 0.04, b 0.02, c 0.012: nothing is enough.
	if got := adjust("4.08"); got != "a|carried forward|0.04\nb|carried forward|0.02\nc|carried forward|0.012" {
		t.Error(got)
	}
	if got := one(t, dsn, "SELECT count(*) FROM finance.chargeback_month WHERE posting_period <> period"); got != "0" {
		t.Errorf("%s rows of it are charged", got)
	}
	// Of 0.12, a gets 0.06.
	if got := adjust("4.12"); got != "a|posted|0.06\nb|carried forward|0.03\nc|carried forward|0.018" {
		t.Error(got)
	}
	// Of 0.2, a gets 0.1, of which 0.06 is posted: 0.04 waits; b gets 0.05.
	if got := adjust("4.2"); got != "a|carried forward|0.04\na|posted|0.06\nb|posted|0.05\nc|carried forward|0.03" {
		t.Error(got)
	}
	// As it was: what was posted is taken back.
	if got := adjust("4.00"); got != "a|posted|0\nb|posted|0" {
		t.Error(got)
	}
}

// A month that is closed gets no posting, one whose adjustments stand in a closed month is not
// opened, and what was posted can't be changed.
func TestPostingMonthIsClosed(t *testing.T) {
	dsn, config := ready(t, "three-pods-not-300-percent")
	dir := filepath.Dir(config)
	mustCLI(t, dsn, "close", "--config", config, "--period", "2026-10", "--by", "A. Controller")
	bill := readFile(t, filepath.Join(dir, "bill.csv"))
	write(t, filepath.Join(dir, "bill.csv"), strings.ReplaceAll(bill, "4.00,4.00,4.00,4.00", "5,5,5,5")+
		strings.NewReplacer("2026-11-01", "2026-12-01", "2026-10", "2026-11").Replace(strings.Split(bill, "\n")[1])+"\n")
	mustCLI(t, dsn, "ingest", "bills", "--config", config, "-q")
	adjust := []string{"adjust", "--config", config, "--period", "2026-10", "--by", "A. Controller", "--reason", "restated"}
	mustCLI(t, dsn, adjust...)
	mustCLI(t, dsn, "allocate", "--config", config, "--period", "2026-11", "-q")
	mustCLI(t, dsn, "close", "--config", config, "--period", "2026-11", "--by", "A. Controller", "--force", "--second", "B. Auditor", "--reason", "test")
	for _, c := range []struct{ statement, refusal string }{
		{"UPDATE gpuledger.adjustment SET effective_cost = 0", "is refused"},
		{"DELETE FROM gpuledger.adjustment_batch", "is refused"},
		{"INSERT INTO gpuledger.adjustment SELECT * FROM gpuledger.adjustment", "closed"},
	} {
		if got := sql(t, dsn, c.statement); !strings.Contains(got, c.refusal) {
			t.Errorf("%s: %q", c.statement, got)
		}
	}
	if code, _, errs := cli(t, dsn, "reopen", "--config", config, "--period", "2026-10", "--by", "A", "--second", "B", "--reason", "x"); code != exitFailed || !strings.Contains(errs, "2026-10 is adjusted in 2026-11, which is closed; reopen 2026-11 first") {
		t.Errorf("reopen: exit %d: %s", code, errs)
	}
	if code, _, errs := cli(t, dsn, append(adjust, "--post-in", "2026-11")...); code != exitFailed || !strings.Contains(errs, "2026-11 is closed too") {
		t.Errorf("posted in a closed month: exit %d: %s", code, errs)
	}
	if code, _, errs := cli(t, dsn, append(adjust, "--post-in", "2026-09")...); code != exitFailed || !strings.Contains(errs, "2026-09 is not after 2026-10") {
		t.Errorf("posted in an earlier month: exit %d: %s", code, errs)
	}
	mustCLI(t, dsn, "reconcile", "--config", config, "--period", "2026-11")
	// Tampered with behind the guard, it is found.
	for _, s := range []string{"ALTER TABLE gpuledger.adjustment DISABLE TRIGGER kept", "UPDATE gpuledger.adjustment SET owner_id = owner_id, held_byte_seconds = held_byte_seconds + 1", "ALTER TABLE gpuledger.adjustment ENABLE TRIGGER kept"} {
		if got := sql(t, dsn, s); got != "" {
			t.Fatal(got)
		}
	}
	if code, _, errs := cli(t, dsn, "reconcile", "--config", config, "--period", "2026-11"); code != exitFailed || !strings.Contains(errs, "the facts of 2026-11 are not those that were closed") {
		t.Errorf("tampered: exit %d: %s", code, errs)
	}
	write(t, filepath.Join(dir, "bill.csv"), bill)
	mustCLI(t, dsn, "ingest", "bills", "--config", config, "-q", "--allow-empty")
	if out := mustCLI(t, dsn, append(adjust, "-o", "csv")...); !strings.Contains(out, "2026-12,USD,-1,-1") {
		t.Errorf("the next open month:\n%s", out)
	}
}

// Case G17, which is the correction example of FOCUS 1.4: a machine was billed for what another
// did. Restated in place it gives the case's entries in either style; corrected by further
// lines of the next invoice, in whichever style of the provider, the same sums of each machine.
func TestAdjustG17(t *testing.T) {
	examples := "samples/billing/focus/focus_spec_1.4_corrections/scenario_1_"
	read := func(name string) string {
		return readFile(t, billingtest.Shared(t, examples+name+".csv", "the specification's correction examples"))
	}
	original := read("original")
	row := strings.SplitAfterN(original, "\n", 2)[1]
	first := strings.NewReplacer("1500,1500,1500,2000", "1200,1200,1200,1600", "1000,1000", "800,800").Replace(row)
	second := strings.NewReplacer("R-111", "R-222", "1500,1500,1500,2000", "300,300,300,400", "1000,1000", "200,200").Replace(row)
	const net = "n1|-300|-400|-200\nn2|300|400|200"
	for _, c := range []struct{ name, bill, style, entries string }{
		{"restated", strings.Replace(original, row, first+second, 1), "ledger", "n1|new|1200|1600|800\nn1|reversal|-1500|-2000|-1000\nn2|new|300|400|200"},
		{"restated", strings.Replace(original, row, first+second, 1), "delta", "n1|delta|-300|-400|-200\nn2|delta|300|400|200"},
		{"ledger", original + strings.SplitAfterN(read("ledger"), "\n", 2)[1], "ledger", "n1|new|-300|-400|-200\nn2|new|300|400|200"},
		{"delta", original + strings.SplitAfterN(read("delta"), "\n", 2)[1], "delta", "n1|delta|-300|-400|-200\nn2|delta|300|400|200"},
	} {
		t.Run(c.name+" into "+c.style, func(t *testing.T) {
			dir := layOut(t, "testdata/two-machines")
			config := filepath.Join(dir, "gpuledger.yaml")
			write(t, filepath.Join(dir, "policy.yaml"), "adjustment: {style: "+c.style+"}\n")
			write(t, filepath.Join(dir, "bill.csv"), original)
			dsn := pgtest.New(t, migrate)
			mustCLI(t, dsn, "ingest", "samples", "--config", config, "--period", "2025-05", "-q")
			mustCLI(t, dsn, "ingest", "bills", "--config", config, "-q")
			mustCLI(t, dsn, "allocate", "--config", config, "--period", "2025-05", "-q")
			mustCLI(t, dsn, "close", "--config", config, "--period", "2025-05", "--by", "A", "--force", "--second", "B", "--reason", "no owners")
			write(t, filepath.Join(dir, "bill.csv"), c.bill)
			mustCLI(t, dsn, "ingest", "bills", "--config", config, "-q")
			out := mustCLI(t, dsn, "adjust", "--config", config, "--period", "2025-05", "--by", "A", "--reason", "wrong machine", "-o", "csv")
			if !strings.Contains(out, "2025-06,USD,0,0,0") {
				t.Errorf("net:\n%s", out)
			}
			const sums = "trim_scale(sum(effective_cost)), trim_scale(sum(list_cost)), trim_scale(sum(gpu_hours)) FROM finance.adjustment"
			if got := one(t, dsn, "SELECT node, entry, "+sums+" GROUP BY 1, 2 ORDER BY 1, 2"); got != c.entries {
				t.Errorf("entries\n%s\nwant\n%s", got, c.entries)
			}
			if got := one(t, dsn, "SELECT node, "+sums+" GROUP BY 1 ORDER BY 1"); got != net {
				t.Errorf("by machine\n%s\nwant\n%s", got, net)
			}
			mustCLI(t, dsn, "reconcile", "--config", config, "--period", "2025-05")
		})
	}
}
