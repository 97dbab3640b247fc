package main

import (
	"encoding/csv"
	"strconv"
	"strings"
	"testing"

	"gpuledger/internal/promtest"
)

// The bench runs to its end by either driver, on a small fleet: each stage decodes the
// same series, and the fold comes to the node-hours of the fleet (or the stage fails).
func TestBenchSamples(t *testing.T) {
	t.Setenv("GPULEDGER_PROMETHEUS", promtest.Binary(t))
	for _, driver := range []string{"remote_read", "query"} {
		cmd := program(t, "", "bench", "samples", "-q", "-o", "csv", "--nodes", "2", "--gpus", "2", "--pods", "2", "--interval", "5m", "--rounds", "1", "--driver", driver)
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s", driver, err, errs.String())
		}
		rows, err := csv.NewReader(strings.NewReader(string(out))).ReadAll()
		if err != nil || len(rows) != 3 {
			t.Fatalf("%s: %v\n%s", driver, err, out)
		}
		for i, stage := range []string{"decode and throw away", "read, fold"} {
			// Of 20 series of devices and 56 of the inventory, 25.5 hours at least.
			samples, err := strconv.Atoi(rows[i+1][1])
			if err != nil || rows[i+1][0] != stage || samples < 20*25*12+56*25*6 {
				t.Errorf("%s: %v", driver, rows[i+1])
			}
		}
		if rows[1][2] != rows[2][2] {
			t.Errorf("%s: the stages decode different series: %v", driver, rows)
		}
	}
	if code, _, errs := cli(t, "", "bench", "samples", "--interval", "7m"); code != exitUsage || !strings.Contains(errs, "--interval") {
		t.Errorf("exit %d: %s", code, errs)
	}
	if code, _, errs := cli(t, "", "bench"); code != exitUsage || !strings.Contains(errs, "samples") {
		t.Errorf("exit %d: %s", code, errs)
	}
}
