package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/csv"
	"flag"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/ingest/openmetrics"
	"gpuledger/internal/golden"
	"gpuledger/internal/pgtest"
	"gpuledger/warehouse"
)

var update = flag.Bool("update", false, "rewrite the want files of the scenarios; a person reads the diff")

func migrate(ctx context.Context, dsn string) error {
	db, err := warehouse.Open(ctx, dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.Migrate(ctx)
	return err
}

// cli runs a command line against a database and returns its exit code and output.
func cli(t *testing.T, dsn string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	t.Setenv("DATABASE_URL", dsn)
	var out, errs bytes.Buffer
	code = run(t.Context(), args, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

func mustCLI(t *testing.T, dsn string, args ...string) string {
	t.Helper()
	code, out, errs := cli(t, dsn, args...)
	if code != 0 {
		t.Fatalf("gpuledger %s: exit %d\n%s%s", strings.Join(args, " "), code, out, errs)
	}
	return out
}

// Each folder of testdata/scenarios is one story: a bill, telemetry, a configuration
// and what must come out, computed by hand. want.csv goes with policy.yaml,
// want-X.csv with policy-X.yaml.
func TestScenarios(t *testing.T) {
	dirs, err := filepath.Glob("../../testdata/scenarios/*")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, dir := range dirs {
		if filepath.Base(dir) == "README.md" {
			continue
		}
		t.Run(filepath.Base(dir), func(t *testing.T) { scenario(t, dir) })
	}
}

func scenario(t *testing.T, dir string) {
	dsn := pgtest.New(t, migrate)
	work := layOut(t, dir)
	config := filepath.Join(work, "gpuledger.yaml")
	month := strings.TrimSpace(readFile(t, filepath.Join(work, "period")))
	mustCLI(t, dsn, "ingest", "samples", "--config", config, "--period", month, "-q")
	mustCLI(t, dsn, "ingest", "bills", "--config", config, "-q")
	wants, err := filepath.Glob(filepath.Join(dir, "want*.csv"))
	if err != nil || len(wants) == 0 {
		t.Fatalf("%s has no want.csv", dir)
	}
	for _, want := range wants {
		variant := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(want), "want"), ".csv")
		t.Run("policy"+variant, func(t *testing.T) {
			args := []string{"allocate", "--config", config, "--period", month, "-q"}
			if p := filepath.Join(work, "policy"+variant+".yaml"); exists(p) {
				args = append(args, "--policy", p)
			}
			mustCLI(t, dsn, args...)
			compare(t, dsn, want, month)
			explainAll(t, dsn, month)
			mustCLI(t, dsn, "reconcile", "--period", month)
		})
	}
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// layOut copies a scenario to a folder of its own, with metrics.txt written as an
// OpenMetrics file, bill files that a manifest names gzipped, and a configuration
// where the scenario has none of its own.
func layOut(t *testing.T, dir string) string {
	t.Helper()
	work := t.TempDir()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		to := filepath.Join(work, rel)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if strings.Contains(rel, "BILLING_PERIOD=") && strings.HasSuffix(rel, ".csv") {
			var gz bytes.Buffer
			w := gzip.NewWriter(&gz)
			if _, err := w.Write(b); err != nil {
				return err
			}
			if err := w.Close(); err != nil {
				return err
			}
			to, b = to+".gz", gz.Bytes()
		}
		return os.WriteFile(to, b, 0o644)
	})
	if err != nil {
		t.Fatal(err)
	}
	series, err := golden.ParseMetrics(strings.NewReader(readFile(t, filepath.Join(work, "metrics.txt"))))
	if err != nil {
		t.Fatalf("metrics.txt: %v", err)
	}
	var om bytes.Buffer
	if err := openmetrics.Write(&om, series); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(work, "metrics.om"), om.String())
	if !exists(filepath.Join(work, "gpuledger.yaml")) {
		bill := "{name: bill, type: focus, location: ./bill.csv}"
		if exists(filepath.Join(work, "bill.ndjson")) {
			bill = "{name: bill, type: gcp, location: ./bill.ndjson}"
		}
		if exists(filepath.Join(work, "bill")) {
			bill = "{name: bill, type: aws, location: ./bill}"
		}
		text := fmt.Sprintf("clusters: [{name: test, metrics: {type: openmetrics, path: ./metrics.om}}]\nbills: [%s]\n", bill)
		for _, doc := range []string{"policy", "owners"} {
			if exists(filepath.Join(work, doc+".yaml")) {
				text += doc + ": " + doc + ".yaml\n"
			}
		}
		write(t, filepath.Join(work, "gpuledger.yaml"), text)
	}
	return work
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// mostExplained bounds what is explained of a scenario: a day of hours says the same
// again and again.
const mostExplained = 24

// explainAll recomputes the charges of a month, each kind of them, and compares them
// with what is stored.
func explainAll(t *testing.T, dsn, month string) {
	t.Helper()
	db, err := warehouse.Open(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	got, err := db.Query(t.Context(), `SELECT DISTINCT ON (node, category, moved_by, component, sharing_mode, pod_name, gpu_model) allocation_id::text FROM finance.allocation
		WHERE period = $1::text::date ORDER BY node, category, moved_by, component, sharing_mode, pod_name, gpu_model, charge_start LIMIT $2`, month+"-01", mostExplained)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range got.Rows {
		e, err := db.Explain(t.Context(), r[0].Text)
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		printExplanation(&text, e)
		switch {
		case e.Recomputed && int64(e.Share.Ratio) != e.StoredRatio:
			t.Errorf("recomputed otherwise:\n%s", &text)
		case e.Recomputed && e.Share.Ratio > 0 && !strings.Contains(text.String(), "3. "):
			t.Errorf("no arithmetic:\n%s", &text)
		}
		if off := unexplained(e); off.Cmp(big.NewRat(2, 1_000_000_000)) > 0 {
			t.Errorf("the terms give another ratio, by %s:\n%s", off.FloatString(12), &text)
		}
		if testing.Verbose() {
			t.Log(text.String())
		}
	}
}

// unexplained is how far the ratio of a charge is from what its terms say, which are in
// whole microseconds. A remainder that was moved as a part of a line has no terms.
func unexplained(e *warehouse.Explanation) *big.Rat {
	if !e.Recomputed || len(e.Terms) == 0 {
		return new(big.Rat)
	}
	mine, all := new(big.Rat), new(big.Rat)
	for _, t := range e.Terms {
		mine.Add(mine, term(t))
	}
	for _, t := range e.All {
		all.Add(all, term(t))
	}
	of := money.One
	if e.Parts != nil && e.Parts.Undivided == "" {
		of = map[billing.Component]money.Ratio{billing.CPU: e.Parts.Parts.CPU, billing.GPU: e.Parts.Parts.GPU, billing.Memory: e.Parts.Parts.Memory}[e.Share.Component]
	}
	mine.Quo(mine, all).Mul(mine, new(big.Rat).SetFrac64(int64(of), int64(money.One)))
	if len(e.Moves) > 0 && e.Share.MovedBy == "" {
		mine = new(big.Rat) // what a headroom left
	}
	for _, m := range e.Moves {
		part, ok := new(big.Rat).SetString(m.Of)
		if !ok || m.All.IsZero() {
			continue
		}
		mine.Add(mine, part.Mul(part, new(big.Rat).SetFrac(m.Mine.Big(), m.All.Big())))
	}
	mine.Sub(mine, new(big.Rat).SetFrac64(int64(e.Share.Ratio), int64(money.One)))
	return mine.Abs(mine)
}

// compare sums finance.allocation by the want file's text columns and compares
// every digit of its numbers.
func compare(t *testing.T, dsn, want, month string) {
	t.Helper()
	records, err := csv.NewReader(strings.NewReader(readFile(t, want))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	header := records[0]
	var selects, groups []string
	for _, c := range header {
		switch {
		case strings.HasSuffix(c, "_cost"), c == "ratio", c == "gpu_hours":
			selects = append(selects, fmt.Sprintf("coalesce(trim_scale(sum(%s))::text, '') AS %s", c, c))
		case strings.HasSuffix(c, "_gib_hours"):
			selects = append(selects, fmt.Sprintf("trim_scale(round(sum(%s), 6)) AS %s", c, c))
		default:
			selects = append(selects, fmt.Sprintf("coalesce(%s::text, '') AS %s", c, c))
			groups = append(groups, c)
		}
	}
	ctx := t.Context()
	db, err := warehouse.Open(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	got, err := db.Query(ctx, fmt.Sprintf("SELECT %s FROM finance.allocation WHERE period = $1::text::date GROUP BY %s", strings.Join(selects, ", "), strings.Join(groups, ", ")), month+"-01")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, r := range got.Rows {
		var cells []string
		for _, c := range r {
			cells = append(cells, c.Text)
		}
		rows = append(rows, strings.Join(cells, ","))
	}
	sort.Strings(rows)
	if *update {
		write(t, want, strings.Join(header, ",")+"\n"+strings.Join(rows, "\n")+"\n")
		return
	}
	var wanted []string
	for _, r := range records[1:] {
		wanted = append(wanted, strings.Join(r, ","))
	}
	sort.Strings(wanted)
	if g, w := strings.Join(rows, "\n"), strings.Join(wanted, "\n"); g != w {
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
}
