package main

import (
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"gpuledger/internal/pgtest"
)

// ready runs a scenario's October with an owner for everything.
func ready(t *testing.T, scenario string) (dsn, config string) {
	t.Helper()
	work := layOut(t, filepath.Join("../../testdata/scenarios", scenario))
	config = filepath.Join(work, "gpuledger.yaml")
	write(t, filepath.Join(work, "own.yaml"), "rules: [{match: {namespace: \"*\"}, team: ml}]\n")
	write(t, config, readFile(t, config)+"owners: own.yaml\n")
	dsn = pgtest.New(t, migrate)
	mustCLI(t, dsn, "ingest", "samples", "--config", config, "--period", "2026-10", "-q")
	mustCLI(t, dsn, "ingest", "bills", "--config", config, "-q")
	mustCLI(t, dsn, "allocate", "--config", config, "--period", "2026-10", "-q")
	return dsn, config
}

// as is the database seen as a role.
func as(t *testing.T, dsn, role string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("options", strings.TrimSpace(q.Get("options")+" -c role="+role))
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20")
	return u.String()
}

// sql runs a statement and returns its error's text.
func sql(t *testing.T, dsn, statement string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.Exec(t.Context(), statement); err != nil {
		return err.Error()
	}
	return ""
}

// What was closed can't be changed: by a run, by any of the roles, through the parent or
// the partition; and who is let past the guard is found.
func TestClosedMonth(t *testing.T) {
	dsn, config := ready(t, "three-pods-not-300-percent")
	closing := []string{"close", "--config", config, "--period", "2026-10", "--by", "A. Controller"}
	mustCLI(t, dsn, closing...)
	before := one(t, dsn, everyCharge)

	if code, _, errs := cli(t, dsn, "allocate", "--config", config, "--period", "2026-10"); code != exitFailed || !strings.Contains(errs, "2026-10 is closed; gpuledger adjust --period 2026-10 posts what has changed") {
		t.Errorf("allocate: exit %d: %s", code, errs)
	}
	if code, _, errs := cli(t, dsn, closing...); code != exitFailed || !strings.Contains(errs, "closed already, with run 2026-10.1") {
		t.Errorf("closed twice: exit %d: %s", code, errs)
	}
	for _, table := range []string{"allocation", "allocation_202610"} {
		for _, statement := range []string{
			"UPDATE gpuledger." + table + " SET ratio = 0", "DELETE FROM gpuledger." + table, "TRUNCATE gpuledger." + table,
			"INSERT INTO gpuledger." + table + " SELECT * FROM gpuledger." + table + " LIMIT 1",
		} {
			for _, role := range []string{"", "gpuledger_writer", "gpuledger_closer", "gpuledger_reader"} {
				at := dsn
				if role != "" {
					at = as(t, dsn, role)
				}
				if got := sql(t, at, statement); !strings.Contains(got, "2026-10 is closed") && !strings.Contains(got, "permission denied") {
					t.Errorf("%s as %q: %q", statement, role, got)
				}
			}
		}
	}
	for _, statement := range []string{
		"UPDATE gpuledger.period SET run_id = NULL", "DELETE FROM gpuledger.period", "UPDATE gpuledger.run SET rows = 0", "DELETE FROM gpuledger.run_unit", "TRUNCATE gpuledger.run_delivery",
		"UPDATE gpuledger.audit_log SET actor = 'x'", "DELETE FROM gpuledger.period_event", "UPDATE gpuledger.document SET kind = 'x'",
	} {
		if got := sql(t, dsn, statement); !strings.Contains(got, "is refused") {
			t.Errorf("%s: %q", statement, got)
		}
	}
	if after := one(t, dsn, everyCharge); after != before {
		t.Error("a refused statement changed something")
	}
	mustCLI(t, dsn, "reconcile", "--config", config, "--period", "2026-10")
	// A cost that a superuser changes at both ends ties out, and is found by the hash.
	for _, tamper := range []string{"ALTER TABLE gpuledger.allocation_202610 DISABLE TRIGGER closed_row", "UPDATE gpuledger.allocation SET used_byte_seconds = used_byte_seconds + 1 WHERE category = 'pod'", "ALTER TABLE gpuledger.allocation_202610 ENABLE TRIGGER closed_row"} {
		if got := sql(t, dsn, tamper); got != "" {
			t.Fatal(got)
		}
	}
	if code, _, errs := cli(t, dsn, "reconcile", "--config", config, "--period", "2026-10"); code != exitFailed || !strings.Contains(errs, "the facts of 2026-10 are not those that were closed on") {
		t.Errorf("tampered: exit %d: %s", code, errs)
	}
	if got := sql(t, dsn, "ALTER TABLE gpuledger.allocation_202610 DISABLE TRIGGER closed_row"); got != "" {
		t.Fatal(got)
	}
	if _, _, errs := cli(t, dsn, "reconcile", "--config", config, "--period", "2026-10"); !strings.Contains(errs, "the guard of 2026-10 was taken off or switched off") {
		t.Error(errs)
	}
}

// A gate that fails keeps a month open, with the figure, the limit and what is behind it;
// forced, by two people, it stays on the record.
func TestGates(t *testing.T) {
	dsn, config := ready(t, "copies-are-one-figure")
	closing := []string{"close", "--config", config, "--period", "2026-10", "--by", "A. Controller"}
	code, out, errs := cli(t, dsn, closing...)
	if code != exitFailed || !strings.Contains(errs, "gates of 2026-10 fail") || !strings.Contains(out, "FAILS") {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	for _, bad := range [][]string{{"--force"}, {"--force", "--reason", "late"}, {"--force", "--reason", "late", "--second", "a. controller "}} {
		if code, _, errs := cli(t, dsn, append(closing, bad...)...); code != exitUsage {
			t.Errorf("%v: exit %d: %s", bad, code, errs)
		}
	}
	if code, _, errs := cli(t, dsn, append(closing, "--force", "--reason", "exporter was down", "--second", "B. Auditor")...); code != 0 {
		t.Fatalf("exit %d: %s", code, errs)
	}
	if got := one(t, dsn, "SELECT forced, second_name, reason, gates::text LIKE '%estimated%' FROM gpuledger.period_event"); got != "t|B. Auditor|exporter was down|t" {
		t.Errorf("%s", got)
	}
	// Reopened, by two, allocated again and closed again: each is on the record.
	reopening := []string{"reopen", "--config", config, "--period", "2026-10", "--by", "A. Controller", "--reason", "restated"}
	if code, _, errs := cli(t, dsn, reopening...); code != exitUsage {
		t.Errorf("alone: exit %d: %s", code, errs)
	}
	reopening = append(reopening, "--second", "B. Auditor")
	mustCLI(t, dsn, reopening...)
	if code, _, errs := cli(t, dsn, reopening...); code != exitFailed || !strings.Contains(errs, "2026-10 is not closed") {
		t.Errorf("twice: exit %d: %s", code, errs)
	}
	mustCLI(t, dsn, "allocate", "--config", config, "--period", "2026-10")
	mustCLI(t, dsn, append(closing, "--force", "--reason", "as before", "--second", "B. Auditor")...)
	if got := one(t, dsn, "SELECT string_agg(action, ', ' ORDER BY id) FROM gpuledger.audit_log"); got != "run published, forced closing, reopened, forced closing" {
		t.Errorf("log: %s", got)
	}
	out = mustCLI(t, dsn, "log", "verify", "--config", config, "-o", "csv")
	head := strings.Split(strings.Split(strings.TrimSpace(out), "\n")[1], ",")[1]
	mustCLI(t, dsn, "log", "verify", "--config", config, "--head", head)
	if code, _, errs := cli(t, dsn, "log", "verify", "--config", config, "--head", strings.Repeat("0", 64)); code != exitFailed || !strings.Contains(errs, "cut off") {
		t.Errorf("another head: exit %d: %s", code, errs)
	}
	for _, tamper := range []string{"ALTER TABLE gpuledger.audit_log DISABLE TRIGGER kept", "UPDATE gpuledger.audit_log SET actor = 'somebody' WHERE id = 2"} {
		if got := sql(t, dsn, tamper); got != "" {
			t.Fatal(got)
		}
	}
	if code, _, errs := cli(t, dsn, "log", "verify", "--config", config); code != exitFailed || !strings.Contains(errs, "entry 2") || !strings.Contains(errs, "was changed after it was written") {
		t.Errorf("tampered: exit %d: %s", code, errs)
	}
	if got := sql(t, dsn, "DELETE FROM gpuledger.audit_log WHERE id = 2"); got != "" {
		t.Fatal(got)
	}
	if code, _, errs := cli(t, dsn, "log", "verify", "--config", config); code != exitFailed || !strings.Contains(errs, "entry 3 does not follow the one before it") {
		t.Errorf("cut: exit %d: %s", code, errs)
	}
}

// The month that is not over stays open, and so does one whose input has changed since.
func TestCloseTooEarly(t *testing.T) {
	dsn, config := ready(t, "three-pods-not-300-percent")
	closing := []string{"close", "--config", config, "--period", "2026-10", "-o", "csv"}
	code, out, errs := cliAt(t, dsn, storyDay.AddDate(0, 0, 20), closing...)
	if code != exitFailed || !strings.Contains(out, "month_over,until 2026-11-01T00:00:00Z,a month that is over,FAILS") {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	bill := filepath.Join(filepath.Dir(config), "bill.csv")
	write(t, bill, readFile(t, bill)+"")
	text := readFile(t, bill)
	lines := strings.Split(strings.TrimSpace(text), "\n")
	write(t, bill, text+lines[len(lines)-1]+"\n")
	mustCLI(t, dsn, "ingest", "bills", "--config", config, "-q")
	code, out, _ = cli(t, dsn, closing...)
	if code != exitFailed || !strings.Contains(out, "inputs_since_the_run,1,0,FAILS,\"bill of bill, 2026-10: loaded") {
		t.Errorf("exit %d: %s", code, out)
	}
}

// Each role can do its work, and no more.
func TestRoles(t *testing.T) {
	work := layOut(t, "../../testdata/scenarios/three-pods-not-300-percent")
	config := filepath.Join(work, "gpuledger.yaml")
	write(t, filepath.Join(work, "own.yaml"), "rules: [{match: {namespace: \"*\"}, team: ml}]\n")
	write(t, config, readFile(t, config)+"owners: own.yaml\n")
	dsn := pgtest.New(t, migrate)
	writer, closer, reader := as(t, dsn, "gpuledger_writer"), as(t, dsn, "gpuledger_closer"), as(t, dsn, "gpuledger_reader")
	mustCLI(t, writer, "run", "--config", config, "--period", "2026-10")
	mustCLI(t, writer, "explain", "--config", config, "--allocation", one(t, dsn, "SELECT allocation_id FROM finance.allocation LIMIT 1"))
	if got := one(t, reader, "SELECT count(*) > 0 FROM finance.allocation"); got != "t" {
		t.Errorf("the reader sees %s", got)
	}
	for _, refused := range []struct{ as, statement string }{
		{reader, "SELECT * FROM gpuledger.bill_line"},
		{reader, "SELECT gpuledger.log('x', 'x', NULL, NULL, '{}')"},
		{reader, "DELETE FROM finance.allocation"},
		{writer, "UPDATE gpuledger.period SET state = 'closed'"},
		{writer, "SELECT gpuledger.close_period('2026-10-01', '2026-10.1', '', '[]', false, 'x', '', '')"},
		{writer, "SELECT gpuledger.reopen_period('2026-10-01', 'x', 'y', 'z')"},
		{writer, "UPDATE gpuledger.allocation SET ratio = 0"},
		{writer, "DELETE FROM gpuledger.run"},
		{writer, "INSERT INTO gpuledger.audit_log (at) VALUES (now())"},
		{writer, "ALTER TABLE gpuledger.allocation DISABLE TRIGGER ALL"},
		{writer, "DROP TABLE gpuledger.run"},
		{closer, "INSERT INTO gpuledger.allocation SELECT * FROM gpuledger.allocation"},
		{closer, "DELETE FROM gpuledger.bill_line"},
		{closer, "UPDATE gpuledger.period SET state = 'open'"},
	} {
		if got := sql(t, refused.as, refused.statement); !strings.Contains(got, "permission denied") && !strings.Contains(got, "must be owner") && !strings.Contains(got, "cannot delete from view") {
			t.Errorf("%s: %q", refused.statement, got)
		}
	}
	if code, _, errs := cli(t, writer, "close", "--config", config, "--period", "2026-10"); code != exitFailed || !strings.Contains(errs, "permission denied") {
		t.Errorf("the writer closes: exit %d: %s", code, errs)
	}
	mustCLI(t, closer, "close", "--config", config, "--period", "2026-10", "--by", "A. Controller")
	mustCLI(t, closer, "reconcile", "--config", config, "--period", "2026-10")
	mustCLI(t, closer, "log", "verify", "--config", config)
	mustCLI(t, closer, "reopen", "--config", config, "--period", "2026-10", "--by", "A", "--second", "B", "--reason", "r")
}
