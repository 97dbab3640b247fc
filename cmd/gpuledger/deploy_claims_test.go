package main

import (
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"gpuledger/gpu"
)

// The configuration for kube-state-metrics makes the metrics that are read.
func TestResourceClaimMetrics(t *testing.T) {
	type each struct {
		Path           []string            `json:"path"`
		LabelsFromPath map[string][]string `json:"labelsFromPath"`
		ValueFrom      []string            `json:"valueFrom"`
	}
	var doc struct {
		Kind string
		Spec struct {
			Resources []struct {
				MetricNamePrefix string              `json:"metricNamePrefix"`
				LabelsFromPath   map[string][]string `json:"labelsFromPath"`
				Metrics          []struct {
					Name string
					Each struct {
						Type        string
						Gauge, Info each
					}
				}
			}
		}
	}
	if err := yaml.Unmarshal([]byte(deployFile(t, "deploy/kube-state-metrics/resourceclaims.yaml")), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Kind != "CustomResourceStateMetrics" || len(doc.Spec.Resources) != 1 {
		t.Fatalf("%+v", doc)
	}
	r := doc.Spec.Resources[0]
	made := map[string]bool{}
	for _, m := range r.Metrics {
		e := m.Each.Info
		if m.Each.Type == "Gauge" {
			e = m.Each.Gauge
		}
		made[r.MetricNamePrefix+"_"+m.Name] = true
		for _, label := range []string{"namespace", "name", "driver", "pool", "device"} {
			if r.LabelsFromPath[label] == nil && e.LabelsFromPath[label] == nil {
				t.Errorf("%s: no label %q", m.Name, label)
			}
		}
		if got := strings.Join(e.ValueFrom, "."); m.Each.Type == "Gauge" && got != "consumedCapacity.memory" {
			t.Errorf("value from %s", got)
		}
	}
	for _, want := range []string{gpu.ClaimDeviceMetric, gpu.ClaimCapacityMetric} {
		if !made[want] || !slices.Contains(gpu.InventoryMetrics, want) {
			t.Errorf("%s is not made and read", want)
		}
	}
}
