package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpuledger/billing/period"
	"gpuledger/gpu"
)

// doctorNow is when the doctor looks; the fleet's last sample is 15 s before.
var doctorNow = time.Date(2026, 10, 5, 12, 40, 0, 0, time.UTC)

// ward is a fleet that a doctor has nothing to say against, and that a test can break.
type ward struct {
	series                   []gpu.Series
	config, owners, policies string
	now                      time.Time
}

// healthy has three nodes with a whole GPU each, one with four, and one whose GPU is
// shared by two pods, each with bytes of its own.
func healthy() *ward {
	w := &ward{
		now: doctorNow,
		config: `clusters: [{name: prod, metrics: {type: openmetrics, path: m.om}}]
bills: [{name: b, type: focus, location: bill.csv}]
policy: policy.yaml
owners: owners.yaml
`,
		owners: `rules:
- {match: {label: {app.kubernetes.io/part-of: "rank*"}}, team: ranking, cost_center: "1"}
- {match: {namespace: ml}, team: search, cost_center: "2"}
dimensions: {ai_model: [label:model, label:serving.kserve.io/inferenceservice]}
`,
		policies: "basis: max\n",
	}
	for _, n := range []string{"n1", "n2", "n3"} {
		w.node(n, "g6.xlarge", "NVIDIA-L4", 1, 1, "none")
		w.gpu(n, 0, "NVIDIA L4", "p-"+n, 6000)
		w.pod("p-"+n, n, 1)
	}
	w.node("n4", "g6.12xlarge", "NVIDIA-L4", 4, 1, "none")
	for i := range 4 {
		w.gpu("n4", i, "NVIDIA L4", "p-n4", 5000)
	}
	w.pod("p-n4", "n4", 4)
	w.node("n5", "g5.xlarge", "NVIDIA-A10G-SHARED", 1, 4, "time-slicing")
	w.gpu("n5", 0, "NVIDIA A10G", "", 9000)
	for i, p := range []string{"a", "b"} {
		w.pod(p, "n5", 1)
		w.add("DCGM_FI_DEV_FB_USED", 4500, append(device("n5", 0, "NVIDIA A10G"), "exported_namespace", "ml", "exported_pod", p, "exported_container", "c", "pod_uid", "uid-"+p, "vgpu", string(rune('0'+i)))...)
	}
	return w
}

func (w *ward) span() period.Span {
	return period.Span{Start: doctorNow.Add(-2 * time.Hour), End: doctorNow}
}

func (w *ward) add(metric string, v float64, kv ...string) {
	if strings.HasPrefix(metric, "kube_") {
		kv = append([]string{"job", "ksm", "instance", "10.0.0.9:8080"}, kv...)
	}
	w.series = append(w.series, series(metric, scrapes(w.span(), v), kv...))
}

func (w *ward) node(name, instanceType, product string, gpus, replicas int, strategy string) {
	w.add("kube_node_info", 1, "node", name, "provider_id", "aws:///us-east-1a/i-"+name)
	w.add("kube_node_status_condition", 1, "node", name, "condition", "Ready", "status", "true")
	w.add("kube_node_status_capacity", float64(gpus*replicas), "node", name, "resource", "nvidia_com_gpu", "unit", "integer")
	w.add("kube_node_labels", 1, "node", name, "label_node_kubernetes_io_instance_type", instanceType, "label_topology_kubernetes_io_region", "us-east-1",
		"label_eks_amazonaws_com_nodegroup", "gpu-"+strategy, "label_nvidia_com_gpu_count", string(rune('0'+gpus)), "label_nvidia_com_gpu_replicas", string(rune('0'+replicas)),
		"label_nvidia_com_gpu_product", product, "label_nvidia_com_gpu_sharing_strategy", strategy)
}

func (w *ward) pod(name, node string, gpus int) {
	of := []string{"namespace", "ml", "pod", name, "uid", "uid-" + name}
	w.add("kube_pod_info", 1, append([]string{"node", node}, of...)...)
	w.add("kube_pod_labels", 1, append([]string{"label_app_kubernetes_io_part_of", "ranking", "label_model", "llama"}, of...)...)
	w.add("kube_pod_owner", 1, append([]string{"owner_kind", "StatefulSet", "owner_name", "set-" + name, "owner_is_controller", "true"}, of...)...)
	w.add("kube_pod_start_time", float64(w.span().Start.Unix()), of...)
	w.add("kube_pod_status_phase", 1, append([]string{"phase", "Running"}, of...)...)
	w.add("kube_pod_container_resource_requests", float64(gpus), append([]string{"node", node, "container", "c", "resource", "nvidia_com_gpu", "unit", "integer"}, of...)...)
}

func device(node string, index int, model string) []string {
	i := string(rune('0' + index))
	return []string{
		"UUID", "GPU-" + node + "-" + i, "gpu", i, "device", "nvidia" + i, "modelName", model, "node", node, "hostname", node, "pci_bus_id", "0000" + i,
		"DCGM_FI_DRIVER_VERSION", "550.54.15", "job", "dcgm", "instance", node + ":9400",
	}
}

// gpu adds the series of one GPU, which a pod holds unless its name is "".
func (w *ward) gpu(node string, index int, model, pod string, used float64) {
	dev := device(node, index, model)
	if pod != "" {
		dev = append(dev, "exported_namespace", "ml", "exported_pod", pod, "exported_container", "c", "pod_uid", "uid-"+pod)
	}
	w.add("DCGM_FI_DEV_FB_USED", used, dev...)
	w.add("DCGM_FI_DEV_FB_FREE", 23000-used, dev...)
	w.add("DCGM_FI_DEV_GPU_UTIL", 50, dev...)
}

// edit changes series, and leaves out those for which it returns false.
func (w *ward) edit(fn func(s *gpu.Series) bool) {
	var out []gpu.Series
	for _, s := range w.series {
		if fn(&s) {
			out = append(out, s)
		}
	}
	w.series = out
}

// without leaves out series of a metric whose labels have these values.
func (w *ward) without(metric string, kv ...string) {
	w.edit(func(s *gpu.Series) bool {
		if !strings.HasPrefix(s.Metric, metric) {
			return true
		}
		for i := 0; i < len(kv); i += 2 {
			if s.Labels[kv[i]] != kv[i+1] {
				return true
			}
		}
		return false
	})
}

// unlabel drops labels of the series of a metric, on one node or on all.
func (w *ward) unlabel(metric, node string, labels ...string) {
	w.edit(func(s *gpu.Series) bool {
		if strings.HasPrefix(s.Metric, metric) && (node == "" || s.Labels["node"] == node) {
			for _, l := range labels {
				delete(s.Labels, l)
			}
		}
		return true
	})
}

func (w *ward) setValue(metric string, v float64, kv ...string) {
	w.without(metric, kv...)
	w.add(metric, v, kv...)
}

// rule adds a rule for owners, after the others.
func (w *ward) rule(text string) {
	w.owners = strings.Replace(w.owners, "dimensions:", "- "+text+"\ndimensions:", 1)
}

// admit lays the ward out and returns its configuration.
func (w *ward) admit(t *testing.T) (config string) {
	t.Helper()
	dir := t.TempDir()
	writeOpenMetrics(t, filepath.Join(dir, "m.om"), w.series)
	write(t, filepath.Join(dir, "policy.yaml"), w.policies)
	write(t, filepath.Join(dir, "owners.yaml"), w.owners)
	write(t, filepath.Join(dir, "bill.csv"), billHeader+"1,USD,2026-10-01T00:00:00Z,2026-11-01T00:00:00Z,2026-10-05T08:00:00Z,2026-10-05T09:00:00Z,Usage,a node,EC2,AWS,i-n1,1,1,Hours,2,2,2,2\n")
	config = filepath.Join(dir, "gpuledger.yaml")
	write(t, config, w.config)
	return config
}

// examine runs doctor and returns its exit code and findings; those of the bill and the
// database apart from those of telemetry.
func (w *ward) examine(t *testing.T, dsn string, args ...string) (code int, found []finding, text string) {
	t.Helper()
	config := w.admit(t)
	code, out, errs := cliAt(t, dsn, w.now, append([]string{"doctor", "--config", config, "--output", "json"}, args...)...)
	var rows []struct{ Check, Subject, Result, What, Fix string }
	if err := json.NewDecoder(bytes.NewReader([]byte(out))).Decode(&rows); err != nil {
		t.Fatalf("%v: %s%s", err, out, errs)
	}
	for _, r := range rows {
		found = append(found, finding{r.Check, r.Subject, r.Result, r.What, r.Fix})
		text += r.Result + " " + r.Check + " " + r.Subject + ": " + r.What + "\n   fix: " + r.Fix + "\n"
	}
	return code, found, text
}
