package gpu

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// docModes are the columns of the table of docs/telemetry.md, each as a node whose one GPU
// two pods share, or one pod has.
var docModes = []struct {
	name string
	node []Series
	pods []string
}{
	{"exclusive", labelsOf(1, "nvidia.com/gpu.count", "1", "nvidia.com/gpu.replicas", "1"), []string{"a"}},
	{"time-slicing", labelsOf(4, "nvidia.com/gpu.count", "1", "nvidia.com/gpu.replicas", "4", "nvidia.com/gpu.sharing-strategy", "time-slicing"), []string{"a", "b"}},
	{"MPS", labelsOf(4, "nvidia.com/gpu.count", "1", "nvidia.com/gpu.replicas", "4", "nvidia.com/gpu.sharing-strategy", "mps"), []string{"a", "b"}},
	{"MIG", labelsOf(0, "nvidia.com/gpu.count", "1", "nvidia.com/mig.strategy", "mixed", "nvidia.com/gpu.product", "NVIDIA-A100-SXM4-40GB"), []string{"a"}},
	{"unknown", labelsOf(0), []string{"a", "b"}},
}

// docExporters are its rows: what the exporter shows of the pods in a mode; nil: of none.
var docExporters = []struct {
	name string
	show func(mode string, pods []string) []Series
}{
	{"`dcgm`", func(mode string, pods []string) []Series { // one arbitrary pod
		if mode == "MIG" {
			return instance("7", "1g.5gb", 1000, 3863, "pod", "a", "namespace", "ml", "container", "c")
		}
		return wholeGPU(testUUID, 20*gib, 20*gib, "pod", "a", "namespace", "ml", "container", "c")
	}},
	{"`dcgm`, virtual-gpus before 4.5.3", func(mode string, pods []string) []Series {
		if mode == "MIG" {
			return instance("7", "1g.5gb", 1000, 3863, "pod", "a", "namespace", "ml", "container", "c", "vgpu", "0")
		}
		var out []Series
		for i, p := range pods {
			out = append(out, wholeGPU(testUUID, 20*gib, 20*gib, "pod", p, "namespace", "ml", "container", "c", "vgpu", fmt.Sprint(i))...)
		}
		return out
	}},
	{"`dcgm`, per process", func(mode string, pods []string) []Series {
		if mode == "MIG" {
			pod := []string{"pod", "a", "namespace", "ml", "container", "c", "pod_uid", "uid-a"}
			return append(instance("7", "1g.5gb", 1000, 3863), instance("7", "1g.5gb", 900, 3863, pod...)...)
		}
		out := wholeGPU(testUUID, 20*gib, 20*gib)
		for _, p := range pods {
			out = append(out, perProcess(p, always(10*gib)))
		}
		return out
	}},
	{"`runai`", func(mode string, pods []string) []Series {
		var out []Series
		for _, p := range pods {
			out = append(out, raw("runai_gpu_memory_used_mebibytes_per_pod_per_gpu", 10*gib, "pod_name", p, "pod_namespace", "ml", "pod_uuid", "uid-"+p, "node", "n1", "gpu", "0"))
		}
		return append(out, raw("runai_gpu_memory_total_mebibytes_per_gpu", 40*gib, "node", "n1", "gpu", "0"))
	}},
	{"`nvidia-smi`", func(mode string, pods []string) []Series {
		uuid := strings.TrimPrefix(testUUID, "GPU-")
		info := raw("nvidia_smi_gpu_info", 1, "uuid", uuid, "name", "NVIDIA A100-SXM4-40GB", "node", "n1")
		if mode == "MIG" {
			l := []string{"uuid", uuid, "node", "n1", "gpu_instance_id", "7", "profile", "1g.5gb"}
			return []Series{info, raw("nvidia_smi_mig_memory_used_bytes", 1<<30, l...), raw("nvidia_smi_mig_memory_free_bytes", 3<<30, l...)}
		}
		return []Series{info, raw("nvidia_smi_memory_used_bytes", 20<<30, "uuid", uuid, "node", "n1"), raw("nvidia_smi_memory_free_bytes", 20<<30, "uuid", uuid, "node", "n1")}
	}},
	{"`gke`", func(mode string, pods []string) []Series {
		var out []Series
		for _, p := range pods {
			l := []string{"namespace", "ml", "pod", p, "container", "c", "accelerator_id", testUUID, "model", "NVIDIA A100-SXM4-40GB", "node", "n1"}
			out = append(out, raw("memory_used", 20<<30, l...), raw("memory_total", 40<<30, l...))
		}
		return out
	}},
	{"`aws-container-insights`", func(mode string, pods []string) []Series {
		l := []string{"NodeName", "n1", "Namespace", "ml", "PodName", "a", "ContainerName", "c", "GpuDevice", "nvidia0"}
		return []Series{raw("container_gpu_memory_used", 20<<30, l...), raw("container_gpu_memory_total", 40<<30, l...)}
	}},
	{"`k8s-gpu-exporter`, `my-gpu-exporter`", func(mode string, pods []string) []Series {
		out := []Series{raw("nvidia_gpu_used_memory", 20<<30, "gpu_node", "n1", "name", "NVIDIA A100-SXM4-40GB", "uuid", testUUID, "gpu_pod_name", "")}
		for _, p := range pods {
			out = append(out, raw("nvidia_gpu_used_memory", 10<<30, "gpu_node", "n1", "name", "NVIDIA A100-SXM4-40GB", "uuid", testUUID, "gpu_pod_name", p, "namepace_name", "ml"))
		}
		return out
	}},
	{"none, kube-state-metrics only", func(string, []string) []Series { return nil }},
}

// notUnderMIG are exporters that show no instances, so that the table has no word of it.
var notUnderMIG = map[string]bool{"`runai`": true, "`gke`": true, "`aws-container-insights`": true, "`k8s-gpu-exporter`, `my-gpu-exporter`": true}

// The table of docs/telemetry.md is what comes out.
func TestTableOfTelemetry(t *testing.T) {
	text, err := os.ReadFile("../docs/telemetry.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range docExporters {
		row := []string{e.name}
		for _, m := range docModes {
			if m.name == "MIG" && notUnderMIG[e.name] {
				row = append(row, "–")
				continue
			}
			inv := join(m.node, running(m.pods...))
			if m.name == "MIG" {
				inv = join(m.node, testPod("a", -2000, 9000, "nvidia_com_mig_1g_5gb", 1))
			}
			if m.name == "unknown" && e.show(m.name, m.pods) == nil {
				inv = join(labelsOf(2), running(m.pods...)) // a capacity by itself
			}
			got := FoldHour(inv, e.show(m.name, m.pods), hour0, Settings{})
			method := Method(0)
			for _, d := range got.Nodes[0].Devices {
				for _, p := range d.Partitions {
					for _, r := range p.Rows {
						if r.PodUID == "uid-a" && r.Shares.MaxNone+r.Shares.RequestReplica > 0 {
							method = max(method, r.Method)
						}
					}
				}
			}
			row = append(row, fmt.Sprint(int(method)))
		}
		if want := "| " + strings.Join(row, " | ") + " |"; !strings.Contains(string(text), want) {
			t.Errorf("docs/telemetry.md does not have\n%s", want)
		}
	}
	for _, preset := range presetNames() {
		if !strings.Contains(string(text), "`"+preset+"`") {
			t.Errorf("docs/telemetry.md says nothing of the preset %s", preset)
		}
	}
	for rule := 1; rule <= 38; rule++ {
		if !strings.Contains(string(text), fmt.Sprintf("\n| %d | ", rule)) {
			t.Errorf("docs/telemetry.md says nothing of trap %d", rule)
		}
	}
}
