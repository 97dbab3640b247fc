package main

import (
	"path/filepath"
	"strings"
	"testing"

	"gpuledger/internal/pgtest"
)

// What is wrong with the telemetry is said when it is loaded, once, with the nodes; a
// load of sound telemetry says nothing of the kind.
func TestLoadSaysWhatIsWrong(t *testing.T) {
	for story, want := range map[string]string{
		"copies-are-one-figure":          "the device's figure is copied to each pod",
		"peer-visible-devices-neighbour": "pods use GPUs that they did not request",
		"three-pods-not-300-percent":     "",
		"exclusive-eight-gpus":           "",
		"start-and-stop":                 "",
		"time-slicing-bases":             "",
		"arbitrary-label":                "",
	} {
		work := layOut(t, filepath.Join("..", "..", "testdata", "scenarios", story))
		code, _, errs := cli(t, pgtest.New(t, migrate), "ingest", "samples", "--config", filepath.Join(work, "gpuledger.yaml"), "--period", "2026-10")
		var warned []string
		for line := range strings.Lines(errs) {
			if strings.Contains(line, "level=WARN") && strings.Contains(line, "node_hours=") {
				warned = append(warned, line)
			}
		}
		switch {
		case code != 0:
			t.Errorf("%s: exit %d: %s", story, code, errs)
		case want == "" && len(warned) > 0:
			t.Errorf("%s: %s", story, warned)
		case want != "" && (len(warned) != 1 || !strings.Contains(warned[0], want) || !strings.Contains(warned[0], "nodes=n")):
			t.Errorf("%s: %s\n%s", story, warned, errs)
		}
	}
}
