package main

import (
	"strings"
	"testing"
)

// What contradicts itself in a cluster's configuration is refused, and the message says
// which key it is.
func TestClusterConfigErrors(t *testing.T) {
	for line, want := range map[string]string{
		"modes: [{node_pool: p, mode: exclusive, replicas: 4}]":                                  "prod: modes: exclusive with 4 replicas: leave replicas out, or take time_slicing or mps",
		"modes: [{node_pool: p, mode: mps}]":                                                     "prod: modes: mps needs replicas of at least 2",
		"modes: [{node_pool: p, mode: shared}]":                                                  `prod: modes: "shared" is not exclusive, time_slicing or mps`,
		"presets: [dcmg]":                                                                        `prod: presets: "dcmg" is none of dcgm, `,
		"exporters: [{name: m, is: used, unit: percent, of: pod}]":                               `prod: exporters: m: unit: "percent" is no unit of used, which is in MiB or bytes`,
		"modes: [{node_pool: p, mode: exclusive}, {node_pool: q, mode: exclusive, replicas: 1}]": "",
	} {
		text := "clusters:\n  - name: prod\n    metrics: {type: openmetrics, path: m.om}\n    " + line + "\n"
		_, err := parseConfig("gpuledger.yaml", []byte(text))
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", line, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}
