package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// What exporters prints is what a configuration takes: each preset pasted into a cluster
// is valid, but for AMD's, whose labels only the preset has.
func TestExportersAreConfiguration(t *testing.T) {
	for _, preset := range []string{"dcgm", "dcgm-per-process", "hami", "hami-legacy", "runai", "nvidia-smi", "amd", "gke", "aws-container-insights", "k8s-gpu-exporter", "my-gpu-exporter"} {
		out := mustCLI(t, "", "exporters", preset)
		if !strings.Contains(out, "exporters:\n  - {name: ") {
			t.Errorf("%s: %s", preset, out)
		}
		var lines []string
		for line := range strings.Lines(out) {
			lines = append(lines, "    "+line)
		}
		name := filepath.Join(t.TempDir(), "gpuledger.yaml")
		text := fmt.Sprintf("clusters:\n  - name: x\n    metrics: {type: openmetrics, path: x.om}\n%s", strings.Join(lines, ""))
		if _, err := parseConfig(name, []byte(text)); err != nil {
			t.Errorf("%s: %v\n%s", preset, err, text)
		}
	}
	if out := mustCLI(t, "", "exporters", "hami", "-o", "csv"); !strings.HasPrefix(out, "preset,name,is,unit,of,labels\n") || !strings.Contains(out, "hami,hami_vgpu_memory_used_bytes,used,bytes,pod,") {
		t.Error(out)
	}
	if code, _, errs := cli(t, "", "exporters", "nvml"); code != exitUsage || !strings.Contains(errs, "my-gpu-exporter") {
		t.Errorf("exit %d: %s", code, errs)
	}
}
