package gpu

import (
	"regexp"
	"strings"
)

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

// instinct is the product in a card's series, behind the chip's name: "Aldebaran/MI200
// [Instinct MI250X/MI250]", "Advanced Micro Devices, Inc. [AMD/ATI] [Instinct MI300X OAM]".
var instinct = regexp.MustCompile(`\bINSTINCT (MI[0-9]{2,3}[A-Z]?)\b|\b(MI[0-9]{2,3}[A-Z]?)\b`)

// amdModel finds the product in a card's series.
func amdModel(series string) string {
	product := ""
	for _, f := range instinct.FindAllStringSubmatch(strings.ToUpper(series), -1) {
		if f[1] != "" {
			return "AMD INSTINCT " + f[1]
		}
		if product == "" {
			product = f[2]
		}
	}
	if product != "" {
		return "AMD INSTINCT " + product
	}
	return series
}
