package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"gpuledger/internal/pgtest"
)

// With node ids on both sides of a bucket's limit the nodes are in two units, each with
// half of the receivers in the other: the result is that of one unit.
func TestRemaindersCrossUnits(t *testing.T) {
	dsn := pgtest.New(t, migrate)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.Exec(t.Context(), "ALTER TABLE gpuledger.node ALTER COLUMN id RESTART WITH 63"); err != nil {
		t.Fatal(err)
	}
	dir := "../../testdata/scenarios/idle-two-nodes"
	work := layOut(t, dir)
	config := filepath.Join(work, "gpuledger.yaml")
	mustCLI(t, dsn, "ingest", "samples", "--config", config, "--period", "2026-10", "-q")
	mustCLI(t, dsn, "ingest", "bills", "--config", config, "-q")
	for _, name := range []string{"cluster", "node", "even"} {
		mustCLI(t, dsn, "allocate", "--config", config, "--period", "2026-10", "-q", "--policy", filepath.Join(work, "policy-"+name+".yaml"))
		compare(t, dsn, filepath.Join(dir, "want-"+name+".csv"), "2026-10")
		mustCLI(t, dsn, "reconcile", "--period", "2026-10")
	}
	if n := one(t, dsn, "SELECT count(DISTINCT scope) FROM gpuledger.unit WHERE scope LIKE 'cluster/%'"); n != "2" {
		t.Errorf("the nodes are in %s units", n)
	}
}

// Every charge of a run whose remainders went beyond their node or to teams can be
// recomputed, and a rerun finds every unit.
func TestMovedRemaindersAreExplained(t *testing.T) {
	dsn := pgtest.New(t, migrate)
	work := layOut(t, "../../testdata/scenarios/idle-two-nodes")
	config := filepath.Join(work, "gpuledger.yaml")
	mustCLI(t, dsn, "ingest", "samples", "--config", config, "--period", "2026-10", "-q")
	mustCLI(t, dsn, "ingest", "bills", "--config", config, "-q")
	for _, c := range []struct{ policy, says string }{
		{"idle: {default: {policy: proportional, scope: cluster}}", "charged for nodes of its cluster in the same time"},
		{"idle: {default: {policy: even, scope: pool}}", "charged for nodes of its pool in the same time, or where nobody is, of its cluster, shares"},
		{"idle: {default: {policy: even, climb: true}}", "charged for the node, or where nobody is,"},
		{"{component_split: ratio, idle: {default: {policy: proportional, scope: cluster}}}", "divided by component_split ratio"},
		{"idle: {default: platform}", `moved to team platform by the policy "platform"`},
		{"idle: {default: {fixed: {sales: 45, qa: 55}}}", "its table gives team sales a share"},
	} {
		path := filepath.Join(work, "policy.yaml")
		write(t, path, c.policy+"\n")
		args := []string{"allocate", "--config", config, "--period", "2026-10", "--policy", path}
		mustCLI(t, dsn, args...)
		units := one(t, dsn, "SELECT count(*) FROM gpuledger.unit")
		mustCLI(t, dsn, args...)
		if again := one(t, dsn, "SELECT count(*) FROM gpuledger.unit"); again != units {
			t.Errorf("%s: the same again makes %s units of %s", c.policy, again, units)
		}
		mustCLI(t, dsn, "reconcile", "--period", "2026-10")
		var all strings.Builder
		for _, id := range strings.Split(one(t, dsn, "SELECT allocation_id::text FROM finance.allocation WHERE period = '2026-10-01'"), "\n") {
			out := mustCLI(t, dsn, "explain", "--allocation", id)
			if !strings.Contains(out, "the same as stored") {
				t.Errorf("%s:\n%s", c.policy, out)
			}
			all.WriteString(out)
		}
		if !strings.Contains(all.String(), c.says) {
			t.Errorf("%s: no charge says %q:\n%s", c.policy, c.says, all.String())
		}
	}
}
