package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"gpuledger/internal/pgtest"
)

// The inventory of a scenario in which a MIG card is cut anew: each geometry at its time.
func TestInventoryCommand(t *testing.T) {
	dsn, dir := pgtest.New(t, migrate), layOut(t, "../../testdata/scenarios/mig-mixed")
	config := filepath.Join(dir, "gpuledger.yaml")
	if code, _, errs := cli(t, dsn, "inventory", "--config", config); code != 3 || !strings.Contains(errs, "nothing is known of any cluster yet") {
		t.Errorf("empty: exit %d, %s", code, errs)
	}
	mustCLI(t, dsn, "ingest", "samples", "--config", config, "--period", "2026-10")
	read := func(args ...string) []map[string]any {
		t.Helper()
		var rows []map[string]any
		if err := json.Unmarshal([]byte(mustCLI(t, dsn, append([]string{"inventory", "--config", config, "--output", "json"}, args...)...)), &rows); err != nil {
			t.Fatal(err)
		}
		return rows
	}
	rows := read("--at", "2026-10-05T10:40:00Z")
	profiles := map[string]bool{}
	for _, r := range rows {
		if p, ok := r["profile"].(string); ok {
			profiles[p] = true
			if r["sharing_mode"] != "mig" || r["gpu_instance"] == nil || r["gpu_model"] == "" || r["provider_id"] == "" || r["device"] == "" {
				t.Errorf("%v", r)
			}
		}
	}
	for _, p := range []string{"3g.20gb", "2g.10gb", "1g.5gb"} {
		if !profiles[p] {
			t.Errorf("%s is not in %v", p, rows)
		}
	}
	if newest := read(); len(newest) != len(rows) {
		t.Errorf("newest hour: %v", newest)
	}
	pods := read("--pods", "--at", "2026-10-05T10:10:00Z", "--cluster", rows[0]["cluster"].(string))
	if len(pods) == 0 || pods[0]["uid"] == "" || pods[0]["node"] == "" || pods[0]["seen_from"] == nil {
		t.Errorf("pods: %v", pods)
	}
	for _, p := range pods {
		if _, object := p["labels"].(map[string]any); !object {
			t.Errorf("labels of %v are not an object", p)
		}
	}
	if code, _, errs := cli(t, dsn, "ingest", "samples", "--config", config, "--from", "2020-01-01", "--to", "2020-01-02"); code != 0 || !strings.Contains(errs, "no source has anything of the span") {
		t.Errorf("a span without samples: exit %d, %s", code, errs)
	}
	if code, _, errs := cli(t, dsn, "inventory", "--config", config, "--at", "2020-01-01"); code != 3 || !strings.Contains(errs, "at 2020-01-01T00:00:00Z") {
		t.Errorf("before all: exit %d, %s", code, errs)
	}
	if code, _, errs := cli(t, dsn, "inventory", "--config", config, "--cluster", "elsewhere"); code != 3 || !strings.Contains(errs, "elsewhere") {
		t.Errorf("another cluster: exit %d, %s", code, errs)
	}
}
