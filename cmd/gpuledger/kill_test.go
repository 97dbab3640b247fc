package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpuledger/billing/period"
	"gpuledger/internal/fleet"
	"gpuledger/internal/pgtest"
)

// asProgram makes the test binary be the program: a child that can be killed.
const asProgram = "GPULEDGER_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(pgtest.Main(m))
}

// program starts the program in a process of its own.
func program(t *testing.T, dsn string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1", "DATABASE_URL="+dsn)
	return cmd
}

// everyCharge lists the ledger by meaning: no database id, no time of writing.
const everyCharge = `SELECT charge_start, charge_end, currency, category, moved_by, team, cost_center, ai_model, namespace, workload_name, pod_uid, cluster, node, node_pool, instance_type, gpu_model,
	sharing_mode, account, ratio, trim_scale(billed_cost), trim_scale(effective_cost), trim_scale(gpu_hours), used_gib_hours, method, coverage, allocation_id
	FROM finance.allocation ORDER BY allocation_id`

// Killed with SIGKILL at any point, a rerun ends with what an undisturbed run has.
func TestKillAndRerun(t *testing.T) {
	m, err := period.ParseMonth("2026-10")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := fleet.New(fleet.Spec{Month: m, Nodes: 2, PodsPerNode: 3, Interval: 10 * time.Minute, Seed: 7}).Write(dir); err != nil {
		t.Fatal(err)
	}
	args := []string{"run", "--config", filepath.Join(dir, "gpuledger.yaml"), "--period", "2026-10", "-q"}

	undisturbed := pgtest.New(t, migrate)
	started := time.Now()
	if out, err := program(t, undisturbed, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	took := time.Since(started)
	want := one(t, undisturbed, everyCharge)
	if strings.Count(want, "\n") < 1000 {
		t.Fatalf("only %d charges", strings.Count(want, "\n"))
	}

	dsn := pgtest.New(t, migrate)
	killed := 0
	for i := 1; i <= 8; i++ { // each starts from what the one before left
		cmd := program(t, dsn, args...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(took*time.Duration(i)/9, func() { _ = cmd.Process.Kill() })
		if err := cmd.Wait(); err != nil {
			killed++
		}
		timer.Stop()
		if wrong := one(t, dsn, "SELECT count(*) FROM finance.reconciliation WHERE difference_effective <> 0 AND period IN (SELECT period FROM gpuledger.period WHERE run_id IS NOT NULL)"); wrong != "0" {
			t.Fatalf("kill %d left a run that does not tie out", i)
		}
	}
	if killed == 0 {
		t.Error("nothing was killed")
	}
	if out, err := program(t, dsn, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := one(t, dsn, everyCharge); got != want {
		t.Errorf("after %d kills the ledger differs", killed)
	}
	if runs := one(t, dsn, "SELECT count(*) FROM gpuledger.run"); runs != "1" {
		t.Errorf("%s runs, want 1", runs)
	}
	// Three jobs at once on an empty warehouse: one does it, and no half of it is
	// published meanwhile.
	empty := pgtest.New(t, migrate)
	var jobs []*exec.Cmd
	for range 3 {
		jobs = append(jobs, program(t, empty, args...))
	}
	for _, j := range jobs {
		if err := j.Start(); err != nil {
			t.Fatal(err)
		}
	}
	for _, j := range jobs {
		if err := j.Wait(); err != nil {
			t.Error(err)
		}
	}
	if got := one(t, empty, everyCharge); got != want {
		t.Error("three jobs on an empty warehouse made another ledger")
	}
	if runs := one(t, empty, "SELECT count(*) FROM gpuledger.run"); runs != "1" {
		t.Errorf("three jobs published %s runs", runs)
	}
	// Two jobs at once: nothing is done twice, and it ties out.
	a, b := program(t, dsn, args...), program(t, dsn, args...)
	for _, c := range []*exec.Cmd{a, b} {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range []*exec.Cmd{a, b} {
		if err := c.Wait(); err != nil {
			t.Errorf("job %d: %v", i, err)
		}
	}
	if got := one(t, dsn, everyCharge); got != want {
		t.Error("two jobs at once changed the ledger")
	}
}

// The exit codes and messages for input that is missing or broken; nothing of it is
// half-loaded.
func TestBadInput(t *testing.T) {
	good := func(t *testing.T) string { return layOut(t, "../../testdata/scenarios/commitments") }
	cur := func(dir string) string { return filepath.Join(dir, "bill/cur/data/BILLING_PERIOD=2026-10") }
	for _, c := range []struct {
		name string
		prep func(t *testing.T, dir string)
		args []string
		code int
		says []string
	}{
		{"missing manifest", func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "bill/cur/metadata")) }, nil, 3, []string{"anifest"}},
		{"absent file", func(t *testing.T, dir string) { remove(t, filepath.Join(cur(dir), "cur-00002.csv.gz")) }, nil, 3, []string{"cur-00002.csv.gz"}},
		{"truncated gz", func(t *testing.T, dir string) { truncate(t, filepath.Join(cur(dir), "cur-00001.csv.gz")) }, nil, 3, []string{"cur-00001.csv.gz"}},
		{"empty folder", func(t *testing.T, dir string) {
			remove(t, filepath.Join(dir, "bill"))
			mkdir(t, filepath.Join(dir, "bill"))
		}, nil, 3, []string{"bill"}},
		{"unknown key", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "gpuledger.yaml"), "clusters: []\nbils: []\n")
		}, nil, 64, []string{"gpuledger.yaml", "line 2", `"bils"`}},
		{"unset variable", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "gpuledger.yaml"), "bills: [{name: a, type: aws, location: \"${NOT_SET_ANYWHERE}\"}]\n")
		}, nil, 64, []string{"NOT_SET_ANYWHERE"}},
		{"no configuration", func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "gpuledger.yaml")) }, nil, 64, []string{"gpuledger init"}},
		{"another month", func(*testing.T, string) {}, []string{"--period", "2026-09"}, 3, []string{"2026-09"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dsn, dir := pgtest.New(t, migrate), good(t)
			c.prep(t, dir)
			code, _, errs := cli(t, dsn, append([]string{"ingest", "bills", "--config", filepath.Join(dir, "gpuledger.yaml")}, c.args...)...)
			if code != c.code {
				t.Errorf("exit %d, want %d\n%s", code, c.code, errs)
			}
			for _, s := range c.says {
				if !strings.Contains(errs, s) {
					t.Errorf("%q is not in %s", s, errs)
				}
			}
			if got := one(t, dsn, "SELECT (SELECT count(*) FROM gpuledger.bill_line) + (SELECT count(*) FROM gpuledger.bill_delivery) + (SELECT count(*) FROM gpuledger.bill_control)"); got != "0" {
				t.Errorf("%s rows were loaded", got)
			}
		})
	}
}

// A row with a broken cost: the error names file, row and column, and nothing of the
// delivery is loaded; the month before stays.
func TestBrokenCost(t *testing.T) {
	dsn, dir := pgtest.New(t, migrate), layOut(t, "../../testdata/scenarios/start-and-stop")
	config := filepath.Join(dir, "gpuledger.yaml")
	mustCLI(t, dsn, "ingest", "bills", "--config", config)
	before := one(t, dsn, "SELECT count(*), sum(billed_cost) FROM gpuledger.bill_line")
	bill := filepath.Join(dir, "bill.csv")
	text := readFile(t, bill)
	write(t, bill, text+strings.Replace(strings.Split(text, "\n")[1], "4.00,4.00,4.00,4.00", "4.00,four,4.00,4.00", 1)+"\n")
	code, _, errs := cli(t, dsn, "ingest", "bills", "--config", config)
	for _, s := range []string{"bill.csv", "row 2", "EffectiveCost", "four", "nothing of this delivery was loaded"} {
		if code != 1 || !strings.Contains(errs, s) {
			t.Errorf("exit %d, %q not in %s", code, s, errs)
		}
	}
	if after := one(t, dsn, "SELECT count(*), sum(billed_cost) FROM gpuledger.bill_line"); after != before {
		t.Errorf("%s, before %s", after, before)
	}
}

func TestServersDown(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "gpuledger.yaml")
	write(t, config, "clusters: [{name: prod, metrics: {type: prometheus, url: \"http://127.0.0.1:1\"}}]\nbills: []\n")
	dsn := pgtest.New(t, migrate)
	if code, _, errs := cli(t, dsn, "ingest", "samples", "--config", config, "--period", "2026-10"); code != 1 || !strings.Contains(errs, "127.0.0.1:1") || !strings.Contains(errs, "prod") {
		t.Errorf("Prometheus down: exit %d\n%s", code, errs)
	}
	if got := one(t, dsn, "SELECT count(*) FROM gpuledger.sample_load"); got != "0" {
		t.Errorf("%s loads", got)
	}
	if code, _, errs := cli(t, "postgres://x:secret@127.0.0.1:1/x", "status", "--config", config); code != 1 || strings.Contains(errs, "secret") || !strings.Contains(errs, "DATABASE_URL") {
		t.Errorf("database down: exit %d\n%s", code, errs)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

func truncate(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()*2/3); err != nil {
		t.Fatal(err)
	}
}

// Usage errors exit with 64, and every command has a help text with an example.
func TestUsageAndHelp(t *testing.T) {
	for _, args := range [][]string{{"nonsense"}, {"allocate"}, {"allocate", "--period", "October"}, {"export", "--period", "2026-10", "--by", "colour"}, {"ingest", "samples"}, {"explain"}, {"status", "--output", "xml"}, {"ingest", "samples", "--from", "2026-10-02", "--to", "2026-10-01"}} {
		if code, _, errs := cli(t, "", args...); code != 64 {
			t.Errorf("%v: exit %d\n%s", args, code, errs)
		}
	}
	a := &app{stdout: os.Stdout, stderr: os.Stderr, now: time.Now}
	root := a.root()
	for _, c := range root.Commands() {
		subs := c.Commands()
		if c.Short == "" || c.Example == "" && len(subs) == 0 {
			t.Errorf("%s: no help or example", c.CommandPath())
		}
		for _, s := range subs {
			if s.Short == "" || s.Example == "" {
				t.Errorf("%s: no help or example", s.CommandPath())
			}
		}
	}
	if code, out, _ := cli(t, "", "completion", "bash"); code != 0 || !strings.Contains(out, "gpuledger") {
		t.Errorf("completion: exit %d", code)
	}
	if code, out, _ := cli(t, "", "version"); code != 0 || !strings.Contains(out, "gpu-memory-weighted-v3") {
		t.Errorf("version: %d %s", code, fmt.Sprint(out))
	}
}

// init writes files that the program itself accepts, and leaves existing ones alone.
func TestInit(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "gpuledger.yaml")
	mustCLI(t, "", "init", "--config", config)
	cfg, err := parseConfig(config, []byte(readFile(t, config)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cfg.policy(""); err != nil {
		t.Error(err)
	}
	if _, err := cfg.owners(); err != nil {
		t.Error(err)
	}
	write(t, config, "# mine\n")
	mustCLI(t, "", "init", "--config", config)
	if readFile(t, config) != "# mine\n" {
		t.Error("init replaced an existing file")
	}
}
