package main

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"gpuledger/internal/pgtest"
)

const testPrices = "component_prices: {vcpu: \"0.0347\", gib: \"0.0039\"}\n"

// loaded lays the story of the pods without a GPU out, with a policy, and loads it.
func loaded(t *testing.T, policy string) (dsn, dir, config string) {
	t.Helper()
	dsn, dir = pgtest.New(t, migrate), layOut(t, "../../testdata/scenarios/cpu-only-pods")
	config = filepath.Join(dir, "gpuledger.yaml")
	write(t, filepath.Join(dir, "policy.yaml"), policy)
	write(t, filepath.Join(dir, "owners.yaml"), `rules: [{match: {namespace: ml}, team: research}, {match: {namespace: shop}, team: shop}]`)
	write(t, config, readFile(t, config)+"policy: policy.yaml\nowners: owners.yaml\n")
	mustCLI(t, dsn, "ingest", "samples", "--config", config, "--period", "2026-10", "-q")
	return dsn, dir, config
}

// Under gpu_all with prices at hand, run says what pods without a GPU would pay:
// 0.704 × 0.056684890656.
func TestFreeRidersWarn(t *testing.T) {
	dsn, dir, config := loaded(t, testPrices)
	_, _, errs := cli(t, dsn, "run", "--config", config)
	want := "pods without a GPU pay nothing under component_split gpu_all; price_difference would charge them 0.04 USD (5.7 % of the month); more for team shop 0.04, team platform 0.03; less for team research 0.07"
	if !strings.Contains(errs, want) {
		t.Errorf("%q is not in %s", want, errs)
	}
	for _, policy := range []string{"", testPrices + "component_split: price_difference\n"} {
		write(t, filepath.Join(dir, "policy.yaml"), policy)
		if _, _, errs := cli(t, dsn, "run", "--config", config); strings.Contains(errs, "without a GPU") {
			t.Errorf("%q: %s", policy, errs)
		}
	}
}

func TestExplainComponents(t *testing.T) {
	dsn, _, config := loaded(t, testPrices+"component_split: price_difference\n")
	mustCLI(t, dsn, "ingest", "bills", "--config", config, "-q")
	mustCLI(t, dsn, "allocate", "--config", config, "--period", "2026-10", "-q")
	out := mustCLI(t, dsn, "explain", "--pod", "shop/batch", "--at", "2026-10-05T10:40:00Z")
	for _, s := range []string{
		"3. Share of the node's cpu = requested or used, the larger, × time",
		"10h: 0.5 vCPU of 4 vCPU for 1800 s = 225.000000 s  (limit)",
		"10h: 3 GiB of 16 GiB for 1800 s = 337.500000 s  (limit)",
		"weight of this charge 225.000000 of 3600.000000 in all",
		"0.0347 × 4 vCPU and 0.0039 × 16 GiB of a list price of 1.006 USD an hour; the rest is the GPUs'",
		"gpu 0.8, cpu 0.137972166998, memory 0.062027833002; this is memory",
		"4. Ratio, of twelve decimals by largest remainder: 0.008623260437 (the same as stored)",
		"Paid by team shop",
	} {
		if !strings.Contains(out, s) {
			t.Errorf("%q is not in\n%s", s, out)
		}
	}
	out = mustCLI(t, dsn, "explain", "--pod", "ml/train", "--at", "2026-10-05T10:40:00Z")
	for _, s := range []string{"weight of this charge 3600.000000 of 3600.000000 in all", "this is gpu", "0.8 (the same as stored)"} {
		if !strings.Contains(out, s) {
			t.Errorf("%q is not in\n%s", s, out)
		}
	}
}

// A line that does not state its list cost is not divided, and that is said.
func TestPriceDifferenceWithoutListCost(t *testing.T) {
	dsn, dir, config := loaded(t, testPrices+"component_split: price_difference\n")
	bill := filepath.Join(dir, "bill.csv")
	write(t, bill, strings.Replace(readFile(t, bill), "0.704,0.704,1.006,0.704", "0.704,0.704,,0.704", 1))
	_, _, errs := cli(t, dsn, "run", "--config", config)
	if want := "source bill has lines without a list cost; component_split stays gpu_all for them (1 lines or windows, the first on node n1 at 2026-10-05T10:00:00Z)"; !strings.Contains(errs, want) {
		t.Errorf("%q is not in %s", want, errs)
	}
	if got := one(t, dsn, "SELECT component, pod_name, trim_scale(ratio), trim_scale(gpu_hours) FROM finance.allocation"); got != "node|train|1|1" {
		t.Errorf("%s", got)
	}
}

func TestPriceDifferenceFindings(t *testing.T) {
	dsn, dir, config := loaded(t, "component_split: price_difference\ncomponent_prices: {vcpu: \"0.2\", gib: \"0.01\"}\n")
	_, _, errs := cli(t, dsn, "run", "--config", config)
	if want := "component_prices leave 0.045725646123 of the list price of g5.xlarge to its GPUs, outside 0.3 to 0.98"; !strings.Contains(errs, want) {
		t.Errorf("%q is not in %s", want, errs)
	}
	write(t, filepath.Join(dir, "policy.yaml"), "component_split: price_difference\ncomponent_prices: [{vcpu: \"0.2\", gib: \"0.01\", from: 2026-11-01}]\n")
	code, _, errs := cli(t, dsn, "run", "--config", config)
	if want := `add to policy.yaml: component_prices: [{vcpu: "0.0347", gib: "0.0039", from: 2026-10-05}]`; code != 1 || !strings.Contains(errs, want) {
		t.Errorf("exit %d, %q is not in %s", code, want, errs)
	}
}

// Device time that a CPU row carries, or that a line lost, does not balance.
func TestReconcileChecksDeviceTime(t *testing.T) {
	dsn, _, config := loaded(t, "component_split: ratio\n")
	mustCLI(t, dsn, "run", "--config", config)
	mustCLI(t, dsn, "reconcile", "--period", "2026-10")
	for _, sql := range []string{
		"UPDATE gpuledger.allocation SET gpu_ratio = 1 WHERE component = 'cpu' AND category <> 'pod'",
		"UPDATE gpuledger.allocation SET gpu_ratio = 0 WHERE component = 'cpu'; UPDATE gpuledger.allocation SET gpu_ratio = 7 WHERE component = 'gpu'",
	} {
		conn, err := pgx.Connect(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		_, err = conn.Exec(t.Context(), sql)
		if err := errors.Join(err, conn.Close(t.Context())); err != nil {
			t.Fatal(err)
		}
		if code, _, errs := cli(t, dsn, "reconcile", "--period", "2026-10"); code != 1 || !strings.Contains(errs, "the device time of bill line") {
			t.Errorf("exit %d: %s", code, errs)
		}
	}
}
