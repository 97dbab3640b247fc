package gpu

import (
	"fmt"
	"reflect"
	"testing"
	"time"
)

var hour0 = time.Date(2026, 10, 5, 10, 0, 0, 0, time.UTC)

// step is a stretch of seconds after hour0 with one value.
type step struct {
	from, to int
	value    float64
}

// sampled returns samples every 30 s, offset by 15 s, of a step function.
func sampled(steps ...step) []Sample {
	var out []Sample
	for _, s := range steps {
		for t := -885; t < 3600+900; t += 30 {
			if t >= s.from && t < s.to {
				out = append(out, Sample{hour0.Add(time.Duration(t) * time.Second).UnixMilli(), s.value})
			}
		}
	}
	return out
}

func always(v float64) []Sample { return sampled(step{-900, 4500, v}) }

// drawn are samples of a power about so many watts: it never stands still.
func drawn(w float64) []Sample {
	out := always(w)
	for i := range out {
		out[i].Value += float64(i%7) / 100
	}
	return out
}

const testUUID = "GPU-00000000-0000-0000-0000-000000000001"

func dcgm(metric string, samples []Sample, kv ...string) Series {
	l := map[string]string{"UUID": testUUID, "modelName": "NVIDIA A100-SXM4-40GB", "Hostname": "n1", "gpu": "0"}
	for i := 0; i < len(kv); i += 2 {
		l[kv[i]] = kv[i+1]
	}
	return Series{Metric: metric, Labels: l, Samples: samples}
}

func ksm(metric string, samples []Sample, kv ...string) Series {
	l := map[string]string{"job": "kube-state-metrics", "instance": "ksm:8080"}
	for i := 0; i < len(kv); i += 2 {
		l[kv[i]] = kv[i+1]
	}
	return Series{Metric: metric, Labels: l, Samples: samples}
}

// testNode is a node with one A100 and R time-slicing replicas (1: exclusive).
func testNode(replicas int) []Series {
	strategy := "none"
	if replicas > 1 {
		strategy = "time-slicing"
	}
	return []Series{
		ksm("kube_node_info", always(1), "node", "n1", "provider_id", "aws:///us-east-1a/i-1"),
		ksm("kube_node_labels", always(1), "node", "n1", "label_nvidia_com_gpu_count", "1",
			"label_nvidia_com_gpu_replicas", fmt.Sprint(replicas), "label_nvidia_com_gpu_sharing_strategy", strategy),
		ksm("kube_node_status_capacity", always(float64(replicas)), "node", "n1", "resource", "nvidia_com_gpu", "unit", "integer"),
	}
}

// testPod lives from..to seconds after hour0 and requests n of a resource.
func testPod(name string, from, to int, resource string, n int) []Series {
	at := func(s int) float64 { return float64(hour0.Unix() + int64(s)) }
	l := []string{"namespace", "ml", "pod", name, "uid", "uid-" + name}
	live := sampled(step{from, to, 1})
	out := []Series{
		ksm("kube_pod_info", live, append([]string{"node", "n1"}, l...)...),
		ksm("kube_pod_start_time", sampled(step{from, to, at(from)}), l...),
	}
	if to < 3600 {
		out = append(out, ksm("kube_pod_completion_time", sampled(step{to, to + 120, at(to)}), l...))
	}
	if n > 0 {
		out = append(out, ksm("kube_pod_container_resource_requests", sampled(step{from, to, float64(n)}), append([]string{"container", "c", "node", "n1", "resource", resource, "unit", "integer"}, l...)...))
	}
	return out
}

const gib = 1024.0 // MiB

// perProcess is a pod's own series beside the device's.
func perProcess(name string, samples []Sample, kv ...string) Series {
	return dcgm("DCGM_FI_DEV_FB_USED", samples, append([]string{"pod", name, "namespace", "ml", "container", "c", "pod_uid", "uid-" + name}, kv...)...)
}

type want struct {
	who    string // pod name or category
	method Method
	us     int64 // within ±2 µs
}

func check(t *testing.T, got ClusterHour, column func(Shares) int64, wants ...want) {
	t.Helper()
	if len(got.Nodes) != 1 {
		t.Fatalf("%d nodes", len(got.Nodes))
	}
	left := map[string]want{}
	for _, w := range wants {
		left[w.who+"/"+w.method.String()] = w
	}
	for _, d := range got.Nodes[0].Devices {
		for _, p := range d.Partitions {
			var sum int64
			for _, r := range p.Rows {
				who := string(r.Category)
				if r.PodUID != "" {
					who = r.PodUID[len("uid-"):]
				}
				v := column(r.Shares)
				sum += v
				w, ok := left[who+"/"+r.Method.String()]
				if !ok && v == 0 {
					continue
				}
				if diff := v - w.us; !ok || diff > 2 || diff < -2 {
					t.Errorf("%s by %v: %d µs, want %d", who, r.Method, v, w.us)
				}
				delete(left, who+"/"+r.Method.String())
			}
			if sum != p.PresentMicros {
				t.Errorf("column sums to %d µs of %d", sum, p.PresentMicros)
			}
		}
	}
	for k, w := range left {
		if w.us != 0 {
			t.Errorf("%s: missing, want %d µs", k, w.us)
		}
	}
}

func used(s Shares) int64 { return s.Used }

func requestReplica(s Shares) int64 { return s.RequestReplica }

func maxNone(s Shares) int64 { return s.MaxNone }

func maxReplica(s Shares) int64 { return s.MaxReplica }

const fullHour = int64(3_600_000_000)

func join(parts ...[]Series) []Series {
	var out []Series
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// sameNodes fails where two hours differ.
func sameNodes(t *testing.T, name string, a, b ClusterHour) {
	t.Helper()
	if !reflect.DeepEqual(a.Nodes, b.Nodes) {
		t.Errorf("%s makes a difference:\n%+v\n%+v", name, a.Nodes, b.Nodes)
	}
}

// sampledFor are samples of one value every 30 s over more than an hour.
func sampledFor(from, to int, v float64) []Sample {
	var out []Sample
	for t := from + 15; t < to; t += 30 {
		out = append(out, Sample{hour0.Add(time.Duration(t) * time.Second).UnixMilli(), v})
	}
	return out
}

func hours(n int) time.Duration { return time.Duration(n) * time.Hour }
