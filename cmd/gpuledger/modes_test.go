package main

import (
	"path/filepath"
	"strings"
	"testing"

	"gpuledger/internal/pgtest"
)

// What a pod holds and does not use has a price of its own: all of a notebook's GPU, and
// of the other pods the part of their charge that their bytes do not fill.
func TestHeldAndNotUsed(t *testing.T) {
	dsn, work := pgtest.New(t, migrate), layOut(t, "../../testdata/scenarios/exclusive-eight-gpus")
	config := filepath.Join(work, "gpuledger.yaml")
	mustCLI(t, dsn, "ingest", "samples", "--config", config, "--period", "2026-10", "-q")
	mustCLI(t, dsn, "ingest", "bills", "--config", config, "-q")
	mustCLI(t, dsn, "allocate", "--config", config, "--period", "2026-10", "-q")
	got := one(t, dsn, `SELECT workload_name, trim_scale(gpu_hours), trim_scale(held_gib_hours), trim_scale(used_gib_hours), round(held_unused_cost, 6), used_share
		FROM finance.efficiency WHERE period = '2026-10-01' ORDER BY 1`)
	want := strings.Join([]string{
		"notebook-0|1|39.4375|0|3.000000|0.000000",
		"train-0|4|157.75|117.1875|3.085578|0.742868", // 12 × 10,384 ÷ 40,384
		"tune-0|1.5|59.15625|15|3.358954|0.253566",    // 4.5 × 30,144 ÷ 40,384
	}, "\n")
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
