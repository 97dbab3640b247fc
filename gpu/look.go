package gpu

import (
	"slices"
	"strings"

	"gpuledger/billing/period"
)

// Signs are what the name and the labels of a device's series tell of its exporter
// (reference/gpu-telemetry.md §1.2 and §1.3).
type Signs struct {
	Preset string // of data/exporters.tsv; OwnExporter for a metric that the settings add
	Driver string // the GPU driver's version, "" where no label has it

	MiB, Bytes, Old   bool // memory in MiB, memory in bytes, dcgm-exporter's names of before 2021
	Pods, PodUID      bool // it names a pod, and its UID
	Slots, Claims     bool // it has a client slot, a DRA claim
	BusID, LowerLabel bool // pci_bus_id; hostname instead of Hostname
}

// OwnExporter is the preset of metrics that are none of the presets'.
const OwnExporter = "configured"

// SignsOf reads a series, with the UUID of its device ("" where it has none), the device's
// place on its node ("" where nothing says) and the node that its labels name. It reports
// false where the settings do not read the metric.
func (s Settings) SignsOf(x Series) (signs Signs, uuid, index, node string, ok bool) {
	how, known := s.exporters()[x.Metric]
	if !known {
		return signs, "", "", "", false
	}
	c := how.canonical(x)
	uuid, slot := how.device(c)
	_, named := podOf(c)
	signs = Signs{
		Preset: s.presetOf(x.Metric), Driver: first(x.Labels, "DCGM_FI_DRIVER_VERSION", "DCGM_FI_SYSTEM_DRIVER_VERSION", "driver_version"),
		MiB: how.fam.memory() && how.unit != 1, Bytes: how.fam.memory() && how.unit == 1, Old: strings.HasPrefix(x.Metric, "dcgm_"),
		Pods: named && how.of != "device", PodUID: named && c.Labels["pod_uid"] != "",
		Slots: slot != "" || c.Labels["vgpu"] != "", Claims: x.Labels["dra_claim_name"] != "",
		BusID: x.Labels["pci_bus_id"] != "", LowerLabel: x.Labels["hostname"] != "" && x.Labels["Hostname"] == "",
	}
	return signs, uuid, strings.TrimPrefix(first(c.Labels, "gpu", "device"), "nvidia"), first(c.Labels, nodeLabels...), true
}

func (s Settings) presetOf(metric string) string {
	for _, m := range s.Exporters {
		if m.Name == metric {
			return OwnExporter
		}
	}
	names, found := s.Presets, OwnExporter
	if names == nil {
		names = defaultPresets
	}
	for _, name := range names { // of two that have a metric, the later reads it
		for _, m := range presets() {
			if m.Preset == name && m.Name == metric {
				found = name
			}
		}
	}
	return found
}

// With adds what another series of the same exporter tells.
func (a Signs) With(b Signs) Signs {
	if a.Driver < b.Driver {
		a.Driver = b.Driver
	}
	a.MiB, a.Bytes, a.Old = a.MiB || b.MiB, a.Bytes || b.Bytes, a.Old || b.Old
	a.Pods, a.PodUID = a.Pods || b.Pods, a.PodUID || b.PodUID
	a.Slots, a.Claims = a.Slots || b.Slots, a.Claims || b.Claims
	a.BusID, a.LowerLabel = a.BusID || b.BusID, a.LowerLabel || b.LowerLabel
	return a
}

// Version says what is known of the exporter's version: dcgm-exporter exports none, but
// what it writes has changed over time. "" where nothing is known.
func (a Signs) Version() string {
	if a.Preset != "dcgm" && a.Preset != "dcgm-per-process" {
		return ""
	}
	switch {
	case a.Bytes && a.MiB:
		return "4.9 or newer and an older one"
	case a.Bytes:
		return "4.9 or newer"
	case a.Old:
		return "names of before 2021"
	case a.LowerLabel:
		return "4.6.0-4.8.3 or newer"
	case a.PodUID:
		return "4.4.0-4.5.0 or newer"
	case a.Slots:
		return "4.1.1-4.0.3 or newer"
	case a.BusID:
		return "of June 2024 or newer"
	}
	return "older than June 2024 by its labels"
}

// Clashes are the nodes whose name two machines had at once.
func (inv *Inventory) Clashes(within period.Span) []Clash {
	var out []Clash
	for _, name := range sortedKeys(keysAsSet(inv.Nodes)) {
		if c, ok := inv.Nodes[name].clash(spanMicros(within)); ok {
			out = append(out, c)
		}
	}
	return out
}

func keysAsSet[V any](m map[string]V) map[string]bool {
	out := make(map[string]bool, len(m))
	for k := range m {
		out[k] = true
	}
	return out
}

// Has reports whether a device's series is of the group.
func (g Group) Has(s Series) bool {
	label := DeviceLabel(s)
	return slices.ContainsFunc(g.Devices, func(c Choice) bool {
		if c.Label != label {
			return false
		}
		_, metric := slices.BinarySearch(c.Metrics, s.Metric)
		_, value := slices.BinarySearch(c.Values, s.Labels[label])
		return metric && value
	})
}

// NodeName is the node that a series of the inventory is of, "" for one of none.
func NodeName(s Series) string { return workloadLabel(s.Labels, "node") }

// Reserves reports whether pods of a namespace reserve GPUs for groups of others: those of
// Run:ai and KAI.
func Reserves(namespace string) bool { return reservationNamespaces[namespace] }

// LimitMarks are extended resources by which HAMi gives pods a part of a GPU, as
// kube-state-metrics spells them.
var LimitMarks = []string{"nvidia_com_gpumem", "nvidia_com_gpumem_percentage", "nvidia_com_gpucores"}

// FamilyOf is what a metric of an exporter is (ExporterMetric.Is); "" where the settings do
// not read it.
func (s Settings) FamilyOf(metric string) string {
	fam := s.exporters()[metric].fam
	for name, f := range familyNames {
		if f == fam {
			return name
		}
	}
	return ""
}
