package main

import (
	"path/filepath"
	"strings"
	"testing"

	"gpuledger/gpu"
)

// A table of models beside the configuration is every cluster's, and enters what hours are
// told by: another table is a reason to read them again.
func TestModelsOfConfig(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "gpuledger.yaml")
	const clusters = "clusters:\n- {name: a, metrics: {type: openmetrics, path: a.om}}\n- {name: b, metrics: {type: openmetrics, path: b.om}}\n"
	read := func(models string) (*Config, error) {
		write(t, filepath.Join(dir, "models.tsv"), models)
		return parseConfig(file, []byte("models: models.tsv\n"+clusters))
	}
	cfg, err := read("# name\ttotal_mib\tcompute_slices\tmemory_slices\tbandwidth_gb_s\nNVIDIA Z900 96GB\t98304\t7\t8\t5000\n")
	if err != nil {
		t.Fatal(err)
	}
	want := gpu.Model{Name: "Z900-96GB", TotalBytes: 96 << 30, ComputeSlices: 7, MemorySlices: 8, BandwidthBytesPerSecond: 5_000_000_000_000}
	for _, cl := range cfg.Clusters {
		if m := cl.settings().Models; len(m) != 1 || m[0] != want {
			t.Errorf("%s: %+v", cl.Name, m)
		}
	}
	other := cfg.Clusters[0]
	other.models = nil
	if settingsHash(other) == settingsHash(cfg.Clusters[0]) {
		t.Error("hours read with and without the table have one settings hash")
	}
	for models, want := range map[string]string{
		"Z900\t98304\t7\t8\n":                  "models.tsv: line 1 has 4 fields, not 5",
		"# c\nZ900\tbig\t7\t8\t5\n":            `models.tsv: line 2: model Z900: total "big" is not a number of MiB`,
		"Z900\t98304\t6\t8\t5000\n":            "6 compute and 8 memory slices",
		"Z900\t1\t0\t0\t1\nz900\t1\t0\t0\t1\n": "is there twice",
	} {
		if _, err := read(models); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", models, err, want)
		}
	}
	if _, err := parseConfig(file, []byte("models: none.tsv\n"+clusters)); err == nil || !strings.Contains(err.Error(), "none.tsv") {
		t.Errorf("a missing file: %v", err)
	}
}
