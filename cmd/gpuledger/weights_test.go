package main

import (
	"path/filepath"
	"strings"
	"testing"

	"gpuledger/internal/pgtest"
)

// A node of two models needs a weight for both, on every day that is charged. A missing
// one is never taken to be 1: nothing is published, and what was published stays.
func TestMissingWeight(t *testing.T) {
	dsn, work := pgtest.New(t, migrate), layOut(t, "../../testdata/scenarios/weights-change-at-midnight")
	config, bad := filepath.Join(work, "gpuledger.yaml"), filepath.Join(work, "bad.yaml")
	mustCLI(t, dsn, "ingest", "samples", "--config", config, "--period", "2026-10", "-q")
	mustCLI(t, dsn, "ingest", "bills", "--config", config, "-q")
	refused := func(policy, message string) {
		t.Helper()
		write(t, bad, policy)
		code, out, errs := cli(t, dsn, "allocate", "--config", config, "--period", "2026-10", "--policy", bad)
		if code != 1 || out != "" || !strings.Contains(errs, message) {
			t.Errorf("exit %d, %q is not in %s%s", code, message, out, errs)
		}
	}
	const published = "SELECT (SELECT count(*) FROM finance.run), (SELECT count(*) FROM finance.allocation), (SELECT trim_scale(sum(effective_cost)) FROM finance.allocation WHERE pod_name = 'a')"
	for _, c := range []struct{ policy, message string }{
		{
			`model_weights: [{model: "NVIDIA A100-SXM4-40GB", weight: "4"}]`,
			`has no weight for "L4" on 2026-10-15; add to model_weights: - {model: "L4", weight: "1.0", from: 2026-10-15}`,
		},
		{ // of the two days the second has both
			`model_weights: [{model: "A100-SXM4-40GB", weight: "4", from: 2026-10-16}, {model: "L4", weight: "1", from: 2026-01-01}]`,
			`has no weight for "A100-SXM4-40GB" on 2026-10-15; add to model_weights: - {model: "A100-SXM4-40GB", weight: "1.0", from: 2026-10-15}`,
		},
		{"", "add to model_weights: - {model: "},
	} {
		refused(c.policy, c.message)
		if got := one(t, dsn, published); got != "0|0|" {
			t.Errorf("%s: published %s", c.policy, got)
		}
	}

	mustCLI(t, dsn, "allocate", "--config", config, "--period", "2026-10", "-q")
	refused(`model_weights: [{model: L4, weight: "1"}]`, `has no weight for "A100-SXM4-40GB"`)
	if got := one(t, dsn, published); got != "1|6|186" {
		t.Errorf("after a refusal %s is published", got)
	}
}

// One model needs no weight, whatever the policy says of others.
func TestOneModelNeedsNoWeight(t *testing.T) {
	dsn, work := pgtest.New(t, migrate), layOut(t, "../../testdata/scenarios/held-and-idle")
	config, policy := filepath.Join(work, "gpuledger.yaml"), filepath.Join(work, "other.yaml")
	mustCLI(t, dsn, "ingest", "samples", "--config", config, "--period", "2026-10", "-q")
	mustCLI(t, dsn, "ingest", "bills", "--config", config, "-q")
	write(t, policy, `model_weights: [{model: L4, weight: "1"}]`)
	mustCLI(t, dsn, "allocate", "--config", config, "--period", "2026-10", "-q", "--policy", policy)
	if got := one(t, dsn, "SELECT pod_name, trim_scale(effective_cost) FROM finance.allocation"); got != "a|4" {
		t.Errorf("%s", got)
	}
}
