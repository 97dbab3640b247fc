package prometheus_test

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/ingest"
	"gpuledger/ingest/prometheus"
	"gpuledger/internal/promtest"
)

// shared is a node of two time-sliced GPUs with samples exactly on the boundaries of
// the hour, and a millisecond beside them.
func shared() []gpu.Series {
	var all []gpu.Series
	inventory := func(metric string, value float64, labels map[string]string) {
		s := gpu.Series{Metric: metric, Labels: labels}
		for t := hour.Start.Add(-30 * time.Minute); t.Before(hour.End.Add(30 * time.Minute)); t = t.Add(30 * time.Second) {
			s.Samples = append(s.Samples, gpu.Sample{UnixMilli: t.UnixMilli(), Value: value})
		}
		all = append(all, s)
	}
	inventory("kube_node_info", 1, map[string]string{"node": "n1", "provider_id": "aws:///eu-central-1a/i-0a"})
	inventory("kube_node_status_capacity", 2, map[string]string{"node": "n1", "resource": "nvidia_com_gpu", "unit": "integer"})
	for g := range 2 {
		for p := range 2 {
			pod := fmt.Sprintf("p%d%d", g, p)
			inventory("kube_pod_info", 1, map[string]string{"namespace": "ml", "pod": pod, "uid": "uid-" + pod, "node": "n1"})
			inventory("kube_pod_container_resource_requests", 1, map[string]string{"namespace": "ml", "pod": pod, "uid": "uid-" + pod, "node": "n1", "container": "c", "resource": "nvidia_com_gpu", "unit": "integer"})
			for _, m := range []string{"DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"} {
				s := gpu.Series{Metric: m, Labels: map[string]string{
					"UUID": fmt.Sprintf("GPU-%d", g), "gpu": fmt.Sprint(g), "Hostname": "n1", "modelName": "NVIDIA A10G",
					"namespace": "ml", "pod": pod, "container": "c", "pod_uid": "uid-" + pod, "vgpu": fmt.Sprint(p),
				}}
				step := time.Duration(15+g*p) * time.Second
				for t := hour.Start.Add(-20 * time.Minute); t.Before(hour.End.Add(20 * time.Minute)); t = t.Add(step) {
					s.Samples = append(s.Samples, gpu.Sample{UnixMilli: t.UnixMilli(), Value: float64(1000 + 1000*p + len(s.Samples)%97)})
				}
				if p == 1 {
					for _, at := range []time.Time{hour.Start, hour.End} {
						s.Samples = append(s.Samples, gpu.Sample{UnixMilli: at.UnixMilli() - 1, Value: 5000}, gpu.Sample{UnixMilli: at.UnixMilli() + 1, Value: 7000})
					}
					s.Samples = inOrder(s.Samples)
				}
				all = append(all, s)
			}
		}
	}
	return all
}

// TestSameOccupancy folds an hour from each server by each driver. Prometheus 2 has
// ranges closed on both ends and 3 left-open ones; the bytes held must not differ.
func TestSameOccupancy(t *testing.T) {
	all := shared()
	read := period.Span{Start: hour.Start.Add(-gpu.Neighbourhood), End: hour.End.Add(gpu.Neighbourhood)}
	fold := func(inventory, devices []gpu.Series) gpu.ClusterHour {
		for _, list := range [][]gpu.Series{inventory, devices} {
			for i := range list {
				list[i].Prepare()
			}
		}
		return gpu.FoldHour(inventory, devices, hour.Start, gpu.Settings{})
	}
	inventorySel, devicesSel := ingest.Selector{Metrics: gpu.InventoryMetrics}, ingest.Selector{Metrics: gpu.DeviceMetrics}
	expect := fold(want(all, inventorySel, read), want(all, devicesSel, read))
	rows := 0
	for _, n := range expect.Nodes {
		for _, d := range n.Devices {
			for _, p := range d.Partitions {
				rows += len(p.Rows)
			}
		}
	}
	if rows < 4 {
		t.Fatalf("the hour has %d rows: it shows nothing", rows)
	}
	promtest.Each(t, func(t *testing.T, server promtest.Server) {
		url := server.Start(t, all)
		for _, driver := range []string{prometheus.RemoteRead, prometheus.Query} {
			s := newSource(t, prometheus.Config{URL: url, Driver: driver})
			// Each hour asked for by itself, as the boundaries lie there.
			got := fold(selectAll(t, s, inventorySel, read), selectAll(t, s, devicesSel, read))
			if !reflect.DeepEqual(got, expect) {
				t.Errorf("%s: another occupancy:\n%+v\nwant\n%+v", driver, got, expect)
			}
			alone := selectAll(t, s, devicesSel, hour)
			if w := want(all, devicesSel, hour); !reflect.DeepEqual(alone, w) {
				t.Errorf("%s: other samples within the hour alone", driver)
			}
		}
	})
}

// TestExternalLabels: remote read adds the server's external labels and takes them
// for matching; listing says the same, though the series API knows nothing of them.
func TestExternalLabels(t *testing.T) {
	series := []gpu.Series{
		{Metric: "m", Labels: map[string]string{"a": "1"}, Samples: []gpu.Sample{{UnixMilli: hour.Start.UnixMilli(), Value: 1}}},
		{Metric: "m", Labels: map[string]string{"a": "2", "cluster": "own"}, Samples: []gpu.Sample{{UnixMilli: hour.Start.UnixMilli(), Value: 1}}},
	}
	promtest.Each(t, func(t *testing.T, server promtest.Server) {
		url := server.StartWith(t, "global: {external_labels: {cluster: prod, region: eu}}\n", series)
		whole := newSource(t, prometheus.Config{URL: url})
		for name, s := range map[string]*prometheus.Source{
			"series API": whole,
			"samples":    newSource(t, prometheus.Config{URL: without(t, url, 404, "/api/v1/series")}),
			"no config":  newSource(t, prometheus.Config{URL: without(t, url, 403, "/api/v1/status/config")}),
		} {
			for _, sel := range []ingest.Selector{
				{Metrics: []string{"m"}},
				{Metrics: []string{"m"}, Equal: map[string]string{"cluster": "prod"}},
				{Metrics: []string{"m"}, Equal: map[string]string{"cluster": "own"}},
				{Metrics: []string{"m"}, OneOf: map[string][]string{"cluster": {"prod"}}},
				{Metrics: []string{"m"}, OneOf: map[string][]string{"cluster": {"prod", "own"}}},
			} {
				wanted := selectAll(t, whole, sel, hour)
				var got []gpu.Series
				if err := s.List(t.Context(), sel, hour, func(x gpu.Series) error { got = append(got, x); return nil }); err != nil {
					t.Fatal(name, err)
				}
				for i := range wanted {
					wanted[i].Samples = nil
				}
				if got := sorted(got); !reflect.DeepEqual(got, wanted) {
					t.Errorf("%s, %+v: %v, want %v", name, sel, got, wanted)
				}
			}
		}
	})
}

func inOrder(all []gpu.Sample) []gpu.Sample {
	slices.SortStableFunc(all, func(a, b gpu.Sample) int { return cmp.Compare(a.UnixMilli, b.UnixMilli) })
	return all
}
