package gpu

import (
	"slices"
	"strings"
	"testing"
)

// The table of exporters is complete: every metric is of a known kind, and every preset but
// one is read by default.
func TestExportersTable(t *testing.T) {
	all, err := parseExporters(exportersTSV)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, m := range all {
		if seen[m.Preset+m.Name] {
			t.Errorf("%s: %s is there twice", m.Preset, m.Name)
		}
		seen[m.Preset+m.Name] = true
	}
	for _, name := range presetNames() {
		if slices.Contains(defaultPresets, name) == (name == "dcgm-per-process") {
			t.Errorf("%s: read by default is %v", name, !slices.Contains(defaultPresets, name))
		}
	}
}

func TestExportersTableErrors(t *testing.T) {
	for text, want := range map[string]string{
		"p\tm\tused\tMiB\tauto":            "line 1 has 5 fields, not 6",
		"# c\np\tm\tused\tMiB\tauto\tuuid": "line 2: label \"uuid\"",
		"p\tm\tmemory\tMiB\tauto\t-":       "line 1: m: is: \"memory\" is none of",
		"p\tm\tused\tpercent\tauto\t-":     "line 1: m: unit: \"percent\" is no unit of used, which is in MiB or bytes",
		"p\tm\tpower\tratio\tauto\t-":      "line 1: m: unit: \"ratio\" is no unit of power, which is in watts",
		"p\tm\tgpu_util\twatts\tauto\t-":   "line 1: m: unit: \"watts\" is no unit of gpu_util, which is in percent, ratio or ratio_or_percent",
		"p\tm\tused\tMiB\tnobody\t-":       "line 1: m: of: \"nobody\" is not auto",
		"p\tm\tlimit\tbytes\tauto\t-":      "line 1: m: limit is of a pod",
		"p\tm\tgranted\tbytes\tdevice\t-":  "line 1: m: granted is of a pod",
		"p\tm\tused\tMiB\tauto\tcard=gpu":  "line 1: m: labels: \"card\" is none of",
		"p\t\tused\tMiB\tauto\t-":          "line 1: a metric without a name",
	} {
		if _, err := parseExporters(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	for want, s := range map[string]Settings{
		"presets: \"dcmg\" is none of dcgm, ":          {Presets: []string{"dcmg"}},
		"exporters: m: unit: \"%\" is no unit of used": {Exporters: []ExporterMetric{{Name: "m", Is: "used", Unit: "%", Of: "auto"}}},
	} {
		if err := s.CheckExporters(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", s, err, want)
		}
	}
}

// raw is a series of some exporter.
func raw(metric string, v float64, kv ...string) Series {
	l := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		l[kv[i]] = kv[i+1]
	}
	return Series{Metric: metric, Labels: l, Samples: always(v)}
}

// hourOf is a node with a GPU of so many slots, a pod on it, and what an exporter says.
func hourOf(replicas int, settings Settings, dev ...Series) ClusterHour {
	return FoldHour(join(testNode(replicas), running("a")), dev, hour0, settings)
}

// Run:ai names a GPU by its place in the node: its UUID is found by dcgm-exporter's gpu
// label where that is there too. The pod's figure in MiB is its own.
func TestPresetRunAI(t *testing.T) {
	pod := []string{"pod_name", "a", "pod_namespace", "ml", "pod_uuid", "uid-a", "node", "n1", "gpu", "0", "clusterId", "c"}
	dev := []Series{
		raw("runai_gpu_memory_used_mebibytes_per_pod_per_gpu", 10*gib, pod...), raw("runai_gpu_memory_total_mebibytes_per_gpu", 40*gib, "node", "n1", "gpu", "0"),
		raw("runai_gpu_utilization_per_gpu", 55, "node", "n1", "gpu", "0"),
	}
	alone := hourOf(2, Settings{}, dev...)
	check(t, alone, used, want{"a", ProcessUID, fullHour / 4}, want{"unallocated", NoMethod, fullHour * 3 / 4})
	if d := alone.Nodes[0].Devices[0]; d.UUID != "n1/gpu-0" || d.TotalBytes != 40<<30 || near(d.GPUUtil, 0.55) {
		t.Errorf("%+v", d)
	}
	beside := hourOf(2, Settings{}, append(dev, dcgm("DCGM_FI_DEV_FB_USED", always(12*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(28*gib)))...)
	check(t, beside, used, want{"a", ProcessUID, fullHour / 4}, want{"unattributed", NoMethod, fullHour / 20}, want{"unallocated", NoMethod, fullHour * 7 / 10})
	if ds := beside.Nodes[0].Devices; len(ds) != 1 || ds[0].UUID != testUUID {
		t.Errorf("%+v", ds)
	}
}

// nvidia_gpu_exporter leaves GPU- out of the UUID, counts in bytes, and knows processes by
// their ids, which are no pods: the device's figure is all there is.
func TestPresetNvidiaSMI(t *testing.T) {
	const uuid = "00000000-0000-0000-0000-000000000001"
	dev := []Series{
		raw("nvidia_smi_gpu_info", 1, "uuid", uuid, "name", "NVIDIA A100-SXM4-40GB", "index", "0", "node", "n1"),
		raw("nvidia_smi_memory_used_bytes", 10<<30, "uuid", uuid, "node", "n1"), raw("nvidia_smi_memory_free_bytes", 29<<30, "uuid", uuid, "node", "n1"),
		raw("nvidia_smi_memory_total_bytes", 40<<30, "uuid", uuid, "node", "n1"), raw("nvidia_smi_memory_reserved_bytes", 1<<30, "uuid", uuid, "node", "n1"),
		raw("nvidia_smi_utilization_gpu_ratio", 0.4, "uuid", uuid, "node", "n1"),
		raw("nvidia_smi_compute_app_used_memory_bytes", 9<<30, "uuid", uuid, "node", "n1", "pid", "11327", "process_name", "python"),
	}
	// No label says which pod is on which GPU: that it is this one's is an estimate.
	exclusive := hourOf(1, Settings{}, dev...)
	check(t, exclusive, used, want{"a", ReplicaRequest, fullHour})
	if d := exclusive.Nodes[0].Devices[0]; d.UUID != testUUID || d.Model != "A100-SXM4-40GB" || d.ReservedBytes != 1<<30 || d.Partitions[0].UsableBytes != 39<<30 || near(d.GPUUtil, 0.4) {
		t.Errorf("%+v", d)
	}
	check(t, hourOf(2, Settings{}, dev...), used, want{"a", ReplicaRequest, fullHour * 10 / 39}, want{"unallocated", NoMethod, fullHour * 29 / 39})
	// The exporter's own pod, which the scrape puts there, holds nothing.
	for i := range dev {
		dev[i].Labels["pod"], dev[i].Labels["namespace"] = "nvidia-gpu-exporter-x", "monitoring"
	}
	sameNodes(t, "the exporter's pod", exclusive, hourOf(1, Settings{}, dev...))
}

// MIG instances by nvidia_gpu_exporter.
func TestPresetNvidiaSMIUnderMIG(t *testing.T) {
	const uuid = "00000000-0000-0000-0000-000000000001"
	dev := []Series{
		raw("nvidia_smi_gpu_info", 1, "uuid", uuid, "name", "NVIDIA A100-SXM4-40GB", "node", "n1"),
		raw("nvidia_smi_mig_memory_used_bytes", 6<<20, "uuid", uuid, "node", "n1", "gpu_instance_id", "9", "profile", "1g.5gb"),
		raw("nvidia_smi_mig_memory_free_bytes", 4858<<20, "uuid", uuid, "node", "n1", "gpu_instance_id", "9", "profile", "1g.5gb"),
	}
	p := byInstance(t, FoldHour(testNode(1), dev, hour0, Settings{}))["9"]
	if p.Mode != ModeMIG || p.MemorySlices != 1 || p.DeviceSlices != 8 || p.UsableBytes != 4864<<20 {
		t.Errorf("%+v", p)
	}
}

// GKE's device plugin copies the device's figure to each container that shares it, with
// what the driver keeps in it; even where another series names no pod.
func TestPresetGKE(t *testing.T) {
	var dev []Series
	for _, pod := range []string{"a", "b"} {
		l := []string{"namespace", "ml", "pod", pod, "container", "c", "make", "nvidia", "accelerator_id", testUUID, "model", "NVIDIA A100-SXM4-40GB", "node", "n1"}
		dev = append(dev, raw("memory_used", 30<<30, l...), raw("memory_total", 40<<30, l...), raw("duty_cycle", 70, l...))
	}
	got := FoldHour(join(testNode(2), running("a", "b")), dev, hour0, Settings{})
	check(t, got, used, want{"a", ReplicaRequest, fullHour * 3 / 8}, want{"b", ReplicaRequest, fullHour * 3 / 8}, want{"slot_held", NoMethod, fullHour / 4})
	if d := got.Nodes[0].Devices[0]; near(d.GPUUtil, 0.7) || rowOf(t, partOf(t, got), "a").Flags&FlagCopied == 0 {
		t.Errorf("%+v", d)
	}
}

// AWS Container Insights scales dcgm-exporter's figures to bytes, and names a GPU by its
// place: nvidia0.
func TestPresetContainerInsights(t *testing.T) {
	l := []string{"NodeName", "n1", "Namespace", "ml", "PodName", "a", "ContainerName", "c", "GpuDevice", "nvidia0"}
	got := hourOf(1, Settings{}, raw("container_gpu_memory_used", 10<<30, l...), raw("container_gpu_memory_total", 40<<30, l...), raw("container_gpu_utilization", 20, l...))
	check(t, got, used, want{"a", SoleHolder, fullHour})
	if d := got.Nodes[0].Devices[0]; d.UUID != "n1/gpu-0" || d.TotalBytes != 40<<30 || near(d.GPUUtil, 0.2) {
		t.Errorf("%+v", d)
	}
}

// HAMi up to 2.8 by its own label names; the limit is what the pod holds.
func TestPresetHAMiLegacy(t *testing.T) {
	l := []string{"podnamespace", "ml", "podname", "a", "ctrname", "c", "vdeviceid", "0", "deviceuuid", testUUID, "zone", "vGPU", "node", "n1"}
	host := []string{"nodeid", "n1", "deviceuuid", testUUID, "deviceidx", "0", "zone", "vGPU"}
	got := hourOf(10, Settings{}, raw("vGPU_device_memory_usage_in_bytes", 2<<30, l...), raw("vGPU_device_memory_limit_in_bytes", 10<<30, l...), raw("GPUDeviceMemoryLimit", 40<<30, host...),
		raw("vGPUMemoryAllocated", 10<<30, "podnamespace", "ml", "podname", "a", "containeridx", "0", "deviceuuid", testUUID, "nodename", "n1"))
	check(t, got, maxNone, want{"a", ProcessName, fullHour / 4}, want{"unallocated", NoMethod, fullHour * 3 / 4})
	check(t, got, used, want{"a", ProcessName, fullHour / 20}, want{"unallocated", NoMethod, fullHour * 19 / 20})
}

// k8s-gpu-exporter has the device's total under an empty pod name: that is no idle pod.
func TestPresetK8sGPUExporter(t *testing.T) {
	l := []string{"gpu_node", "n1", "minor_number", "0", "name", "NVIDIA A100-SXM4-40GB", "uuid", testUUID}
	got := hourOf(2, Settings{}, raw("nvidia_gpu_used_memory", 12<<30, append(l, "gpu_pod_name", "", "namepace_name", "")...), raw("nvidia_gpu_used_memory", 10<<30, append(l, "gpu_pod_name", "a", "namepace_name", "ml")...))
	check(t, got, used, want{"a", ProcessName, fullHour / 4}, want{"unattributed", NoMethod, fullHour / 20}, want{"unallocated", NoMethod, fullHour * 7 / 10})
}

// One pod on a shared GPU, equal to the device: the shape does not tell that it is the
// pod's own figure; the preset that is named does.
func TestPresetDCGMPerProcess(t *testing.T) {
	dev := []Series{
		dcgm("DCGM_FI_DEV_FB_USED", always(10*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(30*gib)), labelled("a", always(10*gib), "vgpu", "0"),
	}
	check(t, hourOf(2, Settings{}, dev...), used, want{"a", SoleHolder, fullHour / 4}, want{"unallocated", NoMethod, fullHour * 3 / 4})
	check(t, hourOf(2, Settings{Presets: []string{"dcgm", "dcgm-per-process"}}, dev...), used, want{"a", ProcessName, fullHour / 4}, want{"unallocated", NoMethod, fullHour * 3 / 4})
}

// An exporter of one's own, by its metric and labels alone; and presets that are left out
// are not read.
func TestExporterOfOnesOwn(t *testing.T) {
	mine := Settings{Presets: []string{"dcgm"}, Exporters: []ExporterMetric{
		{Name: "acme_gpu_bytes", Is: "used", Unit: "bytes", Of: "pod", Labels: map[string]string{"uuid": "card", "pod": "workload", "namespace": "project", "node": "host"}},
	}}
	dev := []Series{
		raw("acme_gpu_bytes", 10<<30, "card", testUUID, "workload", "a", "project", "ml", "host", "n1"),
		dcgm("DCGM_FI_DEV_FB_USED", always(10*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(30*gib)),
		raw("hami_vgpu_memory_used_bytes", 20<<30, "device_uuid", testUUID, "pod", "a", "namespace", "ml", "node", "n1"),
	}
	check(t, hourOf(2, mine, dev...), used, want{"a", ProcessName, fullHour / 4}, want{"unallocated", NoMethod, fullHour * 3 / 4})
	if !slices.Contains(mine.DeviceMetrics(), "acme_gpu_bytes") || slices.Contains(mine.DeviceMetrics(), "hami_vgpu_memory_used_bytes") {
		t.Errorf("%v", mine.DeviceMetrics())
	}
}
