package main

import (
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"gpuledger/gpu"
)

// The configuration for kube-state-metrics makes the metric that is read.
func TestResourceClaimMetric(t *testing.T) {
	var doc struct {
		Kind string
		Spec struct {
			Resources []struct {
				MetricNamePrefix string              `json:"metricNamePrefix"`
				LabelsFromPath   map[string][]string `json:"labelsFromPath"`
				Metrics          []struct {
					Name string
					Each struct {
						Gauge struct {
							Path           []string
							LabelsFromPath map[string][]string `json:"labelsFromPath"`
							ValueFrom      []string            `json:"valueFrom"`
						}
					}
				}
			}
		}
	}
	if err := yaml.Unmarshal([]byte(deployFile(t, "deploy/kube-state-metrics/resourceclaims.yaml")), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Kind != "CustomResourceStateMetrics" || len(doc.Spec.Resources) != 1 || len(doc.Spec.Resources[0].Metrics) != 1 {
		t.Fatalf("%+v", doc)
	}
	r := doc.Spec.Resources[0]
	m := r.Metrics[0]
	if got := r.MetricNamePrefix + "_" + m.Name; got != gpu.ClaimCapacityMetric || !slices.Contains(gpu.InventoryMetrics, got) {
		t.Errorf("metric %q", got)
	}
	for _, label := range []string{"namespace", "name", "pool", "device"} {
		if r.LabelsFromPath[label] == nil && m.Each.Gauge.LabelsFromPath[label] == nil {
			t.Errorf("no label %q", label)
		}
	}
	if got := strings.Join(m.Each.Gauge.ValueFrom, "."); got != "consumedCapacity.memory" {
		t.Errorf("value from %s", got)
	}
}
