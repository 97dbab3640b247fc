package main

import (
	"fmt"
	"maps"
	"time"

	"gpuledger/gpu"
)

// benchFleet is the fleet of gpuledger bench: nodes of time-sliced GPUs with a
// per-process exporter and kube-state-metrics. Each GPU shows its used and free memory
// and its utilisation, each pod on it its used memory.
type benchFleet struct {
	nodes, gpus, pods int // nodes, GPUs a node, pods a GPU
	every             time.Duration
	inventoryEvery    time.Duration
}

// benchEpoch is when the fleet begins.
var benchEpoch = time.Date(2026, 10, 5, 0, 0, 0, 0, time.UTC)

// deviceSamples counts what the devices show in a span.
func (f benchFleet) deviceSamples(span time.Duration) int64 {
	return int64(f.nodes*f.gpus*(3+f.pods)) * int64(span/f.every)
}

// hour returns one node's series in one hour.
func (f benchFleet) hour(node int, hour time.Time) []gpu.Series {
	name := fmt.Sprintf("gpu-node-%04d", node)
	w := benchWriter{hour: hour, node: name, every: f.every, inventoryEvery: f.inventoryEvery}
	w.kube("kube_node_info", 1, "provider_id", fmt.Sprintf("aws:///us-east-1a/i-%08x", node))
	w.kube("kube_node_labels", 1, "label_node_kubernetes_io_instance_type", "p5.48xlarge", "label_nvidia_com_gpu_count", fmt.Sprint(f.gpus),
		"label_nvidia_com_gpu_replicas", fmt.Sprint(f.pods), "label_nvidia_com_gpu_sharing_strategy", "time-slicing", "label_karpenter_sh_nodepool", "inference")
	w.kube("kube_node_status_capacity", float64(f.gpus*f.pods), "resource", "nvidia_com_gpu", "unit", "integer")
	w.kube("kube_node_status_condition", 1, "condition", "Ready", "status", "true")
	for g := range f.gpus {
		dev := func(metric string, value func(seed, i int) float64, seed int, more ...string) {
			w.device(metric, g, func(i int) float64 { return value(seed, i) }, more...)
		}
		seed := node*f.gpus + g
		dev("DCGM_FI_DEV_FB_USED", func(s, i int) float64 {
			sum := 0.0
			for p := range f.pods {
				sum += podMiB(s*f.pods+p, i)
			}
			return sum + 340
		}, seed)
		dev("DCGM_FI_DEV_FB_FREE", func(s, i int) float64 {
			sum := 0.0
			for p := range f.pods {
				sum += podMiB(s*f.pods+p, i)
			}
			return 81080 - sum - 340
		}, seed)
		dev("DCGM_FI_DEV_GPU_UTIL", func(s, i int) float64 { return float64(mix(s, i/2) % 101) }, seed)
		for p := range f.pods {
			pod, uid := fmt.Sprintf("server-%d-%d-%d", node, g, p), fmt.Sprintf("%08x-0000-4000-8000-%012x", node, g*100+p)
			dev("DCGM_FI_DEV_FB_USED", podMiB, seed*f.pods+p, "namespace", "team-"+fmt.Sprint(p), "pod", pod, "container", "server", "pod_uid", uid, "vgpu", fmt.Sprint(p))
			who := []string{"namespace", "team-" + fmt.Sprint(p), "pod", pod, "uid", uid}
			kube := func(metric string, value float64, more ...string) { w.kube(metric, value, append(more, who...)...) }
			kube("kube_pod_info", 1, "host_ip", "10.0.0.1", "created_by_kind", "ReplicaSet", "created_by_name", "server-5d8f7c")
			kube("kube_pod_owner", 1, "owner_kind", "ReplicaSet", "owner_name", "server-5d8f7c", "owner_is_controller", "true")
			kube("kube_pod_labels", 1, "label_app", "server", "label_model", "llama")
			kube("kube_pod_status_phase", 1, "phase", "Running")
			kube("kube_pod_start_time", float64(benchEpoch.Unix()-86_400))
			kube("kube_pod_container_resource_requests", 1, "container", "server", "resource", "nvidia_com_gpu", "unit", "integer")
		}
	}
	return w.out
}

// podMiB is a pod's memory, which changes at about one sample of twenty.
func podMiB(seed, i int) float64 {
	step := i
	for mix(seed, step)%20 != 0 && step > i-60 {
		step--
	}
	return float64(4000 + mix(seed, step+1)%12_000)
}

// mix makes a number of two, the same ones always.
func mix(a, b int) int {
	x := uint64(a)*0x9e3779b97f4a7c15 + uint64(b)*0xbf58476d1ce4e5b9
	x ^= x >> 29
	x *= 0x94d049bb133111eb
	return int(x >> 33)
}

type benchWriter struct {
	hour                  time.Time
	node                  string
	every, inventoryEvery time.Duration
	out                   []gpu.Series
}

func (w *benchWriter) device(metric string, g int, value func(int) float64, more ...string) {
	l := labelsOf(more)
	maps.Copy(l, map[string]string{
		"gpu": fmt.Sprint(g), "UUID": fmt.Sprintf("GPU-%s-%02d", w.node, g), "pci_bus_id": fmt.Sprintf("00000000:%02X:00.0", g), "device": fmt.Sprintf("nvidia%d", g),
		"modelName": "NVIDIA H100 80GB HBM3", "Hostname": w.node, "DCGM_FI_DRIVER_VERSION": "550.54.15", "job": "dcgm-exporter", "instance": w.node + ":9400",
	})
	w.add(metric, l, w.every, value)
}

func (w *benchWriter) kube(metric string, value float64, more ...string) {
	l := labelsOf(more)
	maps.Copy(l, map[string]string{"node": w.node, "job": "kube-state-metrics", "instance": "10.0.0.9:8080"})
	if _, ofPod := l["uid"]; ofPod && metric != gpu.PodMetric && metric != gpu.RequestMetric {
		delete(l, "node")
	}
	w.add(metric, l, w.inventoryEvery, func(int) float64 { return value })
}

func labelsOf(kv []string) map[string]string {
	l := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		l[kv[i]] = kv[i+1]
	}
	return l
}

func (w *benchWriter) add(metric string, l map[string]string, every time.Duration, value func(int) float64) {
	n := int(time.Hour / every)
	first := int(w.hour.Sub(benchEpoch) / every)
	s := gpu.Series{Metric: metric, Labels: l, Samples: make([]gpu.Sample, n)}
	for i := range s.Samples {
		s.Samples[i] = gpu.Sample{UnixMilli: w.hour.Add(time.Duration(i)*every + 3*time.Second).UnixMilli(), Value: value(first + i)}
	}
	w.out = append(w.out, s)
}
