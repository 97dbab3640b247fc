package gpu

import (
	"fmt"
	"testing"
	"time"
)

// benchFleet is an hour and its neighbourhood of so many nodes of eight GPUs, four pods
// on each, every 30 s: of each device its used and free memory and its utilisation,
// of each pod its used memory. A twentieth of the samples says something new.
func benchFleet(nodes int, hour time.Time) (inventory, devices []Series, samples int) {
	from := hour.Add(-Neighbourhood)
	run := func(step time.Duration, value func(i int) float64) []Sample {
		n := int((time.Hour + 2*Neighbourhood) / step)
		out := make([]Sample, n)
		for i := range out {
			out[i] = Sample{from.Add(time.Duration(i)*step + 7*time.Second).UnixMilli(), value(i)}
		}
		return out
	}
	constant := func(v float64) func(int) float64 { return func(int) float64 { return v } }
	for n := range nodes {
		node := fmt.Sprintf("node-%04d", n)
		kube := func(metric string, v float64, labels map[string]string) {
			labels["node"] = node
			inventory = append(inventory, Series{Metric: metric, Labels: labels, Samples: run(time.Minute, constant(v))})
		}
		kube("kube_node_info", 1, map[string]string{"provider_id": fmt.Sprintf("aws:///us-east-1a/i-%04d", n)})
		kube("kube_node_labels", 1, map[string]string{"label_nvidia_com_gpu_count": "8", "label_nvidia_com_gpu_replicas": "4", "label_nvidia_com_gpu_sharing_strategy": "time-slicing"})
		for g := range 8 {
			uuid := fmt.Sprintf("GPU-%04d-%d", n, g)
			dcgm := func(metric string, value func(int) float64, more ...string) {
				l := map[string]string{"UUID": uuid, "Hostname": node, "gpu": fmt.Sprint(g), "modelName": "NVIDIA H100 80GB HBM3", "device": fmt.Sprintf("nvidia%d", g), "instance": node + ":9400", "job": "dcgm-exporter"}
				for i := 0; i < len(more); i += 2 {
					l[more[i]] = more[i+1]
				}
				devices = append(devices, Series{Metric: metric, Labels: l, Samples: run(30*time.Second, value)})
			}
			used := func(i int) float64 { return float64(40000 + i/20*100) }
			dcgm("DCGM_FI_DEV_FB_USED", used)
			dcgm("DCGM_FI_DEV_FB_FREE", func(i int) float64 { return 81079 - used(i) })
			dcgm("DCGM_FI_DEV_GPU_UTIL", func(i int) float64 { return float64(i % 100) })
			for p := range 4 {
				name, uid := fmt.Sprintf("pod-%04d-%d-%d", n, g, p), fmt.Sprintf("uid-%04d-%d-%d", n, g, p)
				dcgm("DCGM_FI_DEV_FB_USED", func(i int) float64 { return float64(10000 + i/20*25) }, "pod", name, "namespace", "team", "container", "main", "pod_uid", uid, "vgpu", fmt.Sprint(p))
				kube("kube_pod_info", 1, map[string]string{"uid": uid, "namespace": "team", "pod": name})
				kube("kube_pod_container_resource_requests", 1, map[string]string{"uid": uid, "namespace": "team", "pod": name, "container": "main", "resource": "nvidia_com_gpu"})
			}
		}
	}
	for _, s := range devices {
		samples += len(s.Samples)
	}
	for i := range devices {
		devices[i].Prepare()
	}
	for i := range inventory {
		inventory[i].Prepare()
	}
	return inventory, devices, samples
}

// BenchmarkFold folds an hour of 8 nodes: what a sample costs once it is read.
func BenchmarkFold(b *testing.B) {
	hour := time.Date(2026, 10, 5, 12, 0, 0, 0, time.UTC)
	inventory, devices, samples := benchFleet(8, hour)
	b.ReportAllocs()
	for b.Loop() {
		got := FoldHour(append([]Series(nil), inventory...), append([]Series(nil), devices...), hour, Settings{})
		if len(got.Nodes) != 8 || len(got.Nodes[0].Devices) != 8 || len(got.Nodes[0].Devices[0].Partitions[0].Rows) < 4 {
			b.Fatal("not the fleet")
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(samples), "ns/sample")
}
