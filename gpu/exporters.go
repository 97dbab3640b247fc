package gpu

import (
	"sort"
	"strings"
)

type family int

const (
	famNone family = iota
	famUsed
	famFree
	famReserved
	famTotal
	famLimit // the most a pod may use: HAMi
	famUtil
	famEngine
	famPower // only that it is there: a GPU without memory series may still be seen
)

// memory reports whether the family's values are sizes.
func (f family) memory() bool { return f >= famUsed && f <= famLimit }

// reading says how one metric of one exporter is read.
type reading struct {
	fam    family
	unit   float64           // bytes (or ratio) of one unit of the value
	labels map[string]string // canonical label → the exporter's, where they differ
	ownPod bool              // the figure is the pod's own, never the device's
	amd    bool
}

const mib = float64(1 << 20)

// The labels of HAMi's monitor: since 2.9, and before it or with --legacy-metrics.
var (
	hamiLabels   = map[string]string{"UUID": "device_uuid", "namespace": "namespace", "pod": "pod", "container": "container", "vdevice": "vdevice_index"}
	hamiLegacy   = map[string]string{"UUID": "deviceuuid", "namespace": "podnamespace", "pod": "podname", "container": "ctrname", "node": "nodeid", "vdevice": "vdeviceid"}
	amdReading   = func(f family, unit float64) reading { return reading{fam: f, unit: unit, amd: true} }
	exporterData = map[string]reading{
		// dcgm-exporter, in MiB before 4.9 and in bytes after (reference/gpu-telemetry.md §1.1, §1.2).
		"DCGM_FI_DEV_FB_USED":           {fam: famUsed, unit: mib},
		"DCGM_FI_DEV_FB_FREE":           {fam: famFree, unit: mib},
		"DCGM_FI_DEV_FB_RESERVED":       {fam: famReserved, unit: mib},
		"DCGM_FI_DEV_FB_TOTAL":          {fam: famTotal, unit: mib},
		"DCGM_FI_DEV_FB_USED_BYTES":     {fam: famUsed, unit: 1},
		"DCGM_FI_DEV_FB_FREE_BYTES":     {fam: famFree, unit: 1},
		"DCGM_FI_DEV_FB_RESERVED_BYTES": {fam: famReserved, unit: 1},
		"DCGM_FI_DEV_FB_CAPACITY_BYTES": {fam: famTotal, unit: 1},
		"DCGM_FI_DEV_GPU_UTIL":          {fam: famUtil, unit: 0.01},
		"DCGM_FI_PROF_GR_ENGINE_ACTIVE": {fam: famEngine, unit: 1},
		"DCGM_FI_DEV_POWER_USAGE":       {fam: famPower, unit: 1},
		// HAMi: what a container uses and may use of a card.
		"hami_vgpu_memory_used_bytes":       {fam: famUsed, unit: 1, labels: hamiLabels, ownPod: true},
		"hami_vgpu_memory_limit_bytes":      {fam: famLimit, unit: 1, labels: hamiLabels, ownPod: true},
		"hami_gpu_memory_limit_bytes":       {fam: famTotal, unit: 1, labels: map[string]string{"UUID": "device_uuid"}},
		"vGPU_device_memory_usage_in_bytes": {fam: famUsed, unit: 1, labels: hamiLegacy, ownPod: true},
		"vGPU_device_memory_limit_in_bytes": {fam: famLimit, unit: 1, labels: hamiLegacy, ownPod: true},
		"GPUDeviceMemoryLimit":              {fam: famTotal, unit: 1, labels: hamiLegacy},
		// AMD device-metrics-exporter: megabytes that are MiB.
		"gpu_used_vram":  amdReading(famUsed, mib),
		"gpu_free_vram":  amdReading(famFree, mib),
		"gpu_total_vram": amdReading(famTotal, mib),
	}
)

// DeviceMetrics are the exporter families that are read.
var DeviceMetrics = metricNames()

func metricNames() []string {
	out := make([]string, 0, len(exporterData))
	for name := range exporterData {
		out = append(out, name)
	}
	sort.Strings(out)
	return out
}

// canonical gives a series the labels that the rest of the package knows.
func (r reading) canonical(s Series) Series {
	switch {
	case r.amd:
		s.Labels = amdLabels(s.Labels)
	case r.labels != nil:
		l := make(map[string]string, len(r.labels))
		for name, theirs := range r.labels {
			if v := s.Labels[theirs]; v != "" {
				l[name] = v
			}
		}
		for _, name := range []string{"node", "kubernetes_node", "instance"} {
			if l[name] == "" && s.Labels[name] != "" {
				l[name] = s.Labels[name]
			}
		}
		s.Labels = l
	}
	return s
}

// amdLabels translates the AMD exporter's labels. A card without a UUID is known by
// its serial number, or by its place in its host; a compute partition (DPX, QPX, CPX)
// is an instance of its card.
func amdLabels(l map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range l {
		out[k] = v
	}
	uuid := first(l, "gpu_uuid", "serial_number")
	if uuid == "" {
		uuid = l["hostname"] + "/gpu-" + l["gpu_id"]
	}
	out["UUID"] = "AMD-" + uuid
	out["modelName"] = amdModel(first(l, "card_series", "card_model"))
	if kind := strings.ToLower(l["gpu_compute_partition_type"]); amdPartitions[kind] > 1 {
		out["GPU_I_ID"] = first(l, "gpu_partition_id", "gpu_id")
		out["GPU_I_PROFILE"] = kind
		if memory := l["gpu_memory_partition_type"]; memory != "" {
			out["GPU_I_PROFILE"] += "-" + strings.ToLower(memory)
		}
	}
	return out
}

// amdPartitions is how many compute partitions a card has in each mode.
var amdPartitions = map[string]int{"spx": 1, "dpx": 2, "tpx": 3, "qpx": 4, "cpx": 8}

// amdPartitionCount reads the count back from a profile such as cpx-nps4.
func amdPartitionCount(profile string) int {
	kind, _, _ := strings.Cut(profile, "-")
	if n := amdPartitions[kind]; n > 1 {
		return n
	}
	return 0
}

// amdModel finds the product in a card's series: "… [Instinct MI300X OAM]".
func amdModel(series string) string {
	upper := strings.ToUpper(series)
	if i := strings.Index(upper, "MI"); i >= 0 {
		end := i + 2
		for end < len(upper) && (upper[end] >= '0' && upper[end] <= '9' || upper[end] == 'X') {
			end++
		}
		if end > i+2 {
			return "AMD INSTINCT " + upper[i:end]
		}
	}
	return series
}
