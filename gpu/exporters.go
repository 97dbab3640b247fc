package gpu

import (
	_ "embed" // the table of exporters
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// ExporterMetric is one metric of an exporter, and how it is read. The presets are such,
// and so is what a user adds.
type ExporterMetric struct {
	Preset string
	Name   string
	Is     string // used, free, reserved, total, limit, granted; gpu_util, engine_active, sm_active, dram_active; present, power
	Unit   string // MiB, bytes; percent, ratio, ratio_or_percent; watts
	Of     string // auto, device, copies, process, pod; see data/exporters.tsv
	// Labels are the exporter's names for uuid, index, model, node, namespace, pod,
	// container, pod_uid, slot, vdevice, mig_id and mig_profile, where they differ from
	// dcgm-exporter's.
	Labels map[string]string
	AMD    bool // the labels are those of AMD's device-metrics-exporter
}

//go:embed data/exporters.tsv
var exportersTSV string

var presets = sync.OnceValue(func() []ExporterMetric {
	all, err := parseExporters(exportersTSV)
	if err != nil {
		panic(err) // the table is part of the binary and read by a test
	}
	return all
})

// Presets returns how the metrics of known exporters are read.
func Presets() []ExporterMetric { return slices.Clone(presets()) }

// defaultPresets are read unless settings name others: all but dcgm-per-process, which
// dcgm tells by itself.
var defaultPresets = []string{"dcgm", "hami", "hami-legacy", "runai", "nvidia-smi", "amd", "gke", "aws-container-insights", "k8s-gpu-exporter", "my-gpu-exporter"}

func parseExporters(text string) (all []ExporterMetric, err error) {
	err = eachRow(text, 6, func(f []string) error {
		m := ExporterMetric{Preset: f[0], Name: f[1], Is: f[2], Unit: f[3], Of: f[4]}
		switch f[5] {
		case "-":
		case "amd":
			m.AMD = true
		default:
			m.Labels = map[string]string{}
			for _, pair := range strings.Split(f[5], ",") {
				ours, theirs, ok := strings.Cut(pair, "=")
				if !ok {
					return fmt.Errorf("label %q", pair)
				}
				m.Labels[ours] = theirs
			}
		}
		all = append(all, m)
		_, err := m.reading()
		return err
	})
	return all, err
}

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
	famSM
	famDRAM
	famPresent // only that it is there: a GPU without memory series may still be seen
	famPower   // that too, and it never stands still
	famGranted // what a scheduler gave a pod, used or not: HAMi
)

var familyNames = map[string]family{
	"used": famUsed, "free": famFree, "reserved": famReserved, "total": famTotal, "limit": famLimit,
	"gpu_util": famUtil, "engine_active": famEngine, "sm_active": famSM, "dram_active": famDRAM, "present": famPresent, "power": famPower, "granted": famGranted,
}

// memory reports whether the family's values are sizes.
func (f family) memory() bool { return f >= famUsed && f <= famLimit || f == famGranted }

// activity reports whether they are shares of time.
func (f family) activity() bool { return f >= famUtil && f <= famDRAM }

const mib = float64(1 << 20)

var units = map[string]float64{"MiB": mib, "bytes": 1, "percent": 0.01, "ratio": 1, "ratio_or_percent": 1, "watts": 1}

// units names the units that a metric of the family may be in.
func (f family) units() string {
	switch {
	case f.memory():
		return "MiB or bytes"
	case f == famPower:
		return "watts"
	}
	return "percent, ratio or ratio_or_percent"
}

// reading says how one metric of one exporter is read.
type reading struct {
	fam    family
	unit   float64 // bytes, or ratio, of one unit of the value
	either bool    // a ratio, or percent where a value is above 1
	of     string
	labels map[string]string // canonical label → the exporter's, where they differ
	amd    bool
}

// canonicalLabels are dcgm-exporter's names, as the rest of the package has them, for
// those of ExporterMetric.Labels.
var canonicalLabels = map[string]string{
	"uuid": "UUID", "index": "gpu", "model": "modelName", "node": "node", "namespace": "namespace", "pod": "pod", "container": "container",
	"pod_uid": "pod_uid", "slot": "vgpu", "vdevice": "vdevice", "mig_id": "GPU_I_ID", "mig_profile": "GPU_I_PROFILE",
}

func (m ExporterMetric) reading() (reading, error) {
	r := reading{fam: familyNames[m.Is], unit: units[m.Unit], either: m.Unit == "ratio_or_percent", of: m.Of, amd: m.AMD}
	size := m.Unit == "MiB" || m.Unit == "bytes"
	switch {
	case m.Name == "":
		return r, fmt.Errorf("a metric without a name")
	case r.fam == famNone:
		return r, fmt.Errorf("%s: is: %q is none of %s", m.Name, m.Is, strings.Join(slices.Sorted(maps.Keys(familyNames)), ", "))
	case r.unit == 0 || r.fam.memory() != size || (r.fam == famPower) != (m.Unit == "watts"):
		return r, fmt.Errorf("%s: unit: %q is no unit of %s, which is in %s", m.Name, m.Unit, m.Is, r.fam.units())
	case !slices.Contains([]string{"auto", "device", "copies", "process", "pod"}, m.Of):
		return r, fmt.Errorf("%s: of: %q is not auto, device, copies, process or pod", m.Name, m.Of)
	case (r.fam == famLimit || r.fam == famGranted) && m.Of != "pod":
		return r, fmt.Errorf("%s: %s is of a pod: of: pod", m.Name, m.Is)
	}
	if m.Labels != nil {
		r.labels = map[string]string{}
	}
	for ours, theirs := range m.Labels {
		name, ok := canonicalLabels[ours]
		if !ok || theirs == "" {
			return r, fmt.Errorf("%s: labels: %q is none of %s", m.Name, ours, strings.Join(slices.Sorted(maps.Keys(canonicalLabels)), ", "))
		}
		r.labels[name] = theirs
	}
	return r, nil
}

// readings are how metrics are read, by name.
type exporters map[string]reading

var defaultExporters = sync.OnceValue(func() exporters {
	e, err := Settings{}.exporterTable()
	if err != nil {
		panic(err)
	}
	return e
})

// exporters returns how the settings read metrics; CheckExporters says what is wrong
// with them.
func (s Settings) exporters() exporters {
	if s.Presets == nil && s.Exporters == nil {
		return defaultExporters()
	}
	e, err := s.exporterTable()
	if err != nil {
		return defaultExporters()
	}
	return e
}

// CheckExporters reports what is wrong with the presets and metrics of the settings.
func (s Settings) CheckExporters() error {
	_, err := s.exporterTable()
	return err
}

func (s Settings) exporterTable() (exporters, error) {
	names := s.Presets
	if names == nil {
		names = defaultPresets
	}
	out := exporters{}
	for _, name := range names {
		found := false
		for _, m := range presets() {
			if m.Preset == name {
				found = true
				out[m.Name], _ = m.reading()
			}
		}
		if !found {
			return nil, fmt.Errorf("presets: %q is none of %s", name, strings.Join(presetNames(), ", "))
		}
	}
	for _, m := range s.Exporters {
		r, err := m.reading()
		if err != nil {
			return nil, fmt.Errorf("exporters: %w", err)
		}
		out[m.Name] = r
	}
	return out, nil
}

func presetNames() []string {
	var out []string
	for _, m := range presets() {
		if !slices.Contains(out, m.Preset) {
			out = append(out, m.Preset)
		}
	}
	return out
}

// DeviceMetrics are the exporters' metrics that the settings read, in order.
func (s Settings) DeviceMetrics() []string { return slices.Sorted(maps.Keys(s.exporters())) }

// DeviceMetrics are those of the default settings.
var DeviceMetrics = Settings{}.DeviceMetrics()

// canonical gives a series the labels that the rest of the package knows.
func (r reading) canonical(s Series) Series {
	switch {
	case r.amd:
		s.Labels = amdLabels(s.Labels)
	case r.labels != nil:
		l := make(map[string]string, len(s.Labels))
		for _, name := range canonicalLabels {
			theirs, ok := r.labels[name]
			if !ok {
				theirs = name
				if name == "GPU_I_ID" || name == "GPU_I_PROFILE" || name == "vgpu" || name == "UUID" || name == "gpu" {
					continue // of another meaning, if it is there at all
				}
			}
			if v := workloadLabel(s.Labels, theirs); v != "" {
				l[name] = v
			}
		}
		for _, name := range []string{"node", "kubernetes_node", "node_name", "instance", "Hostname", "hostname"} {
			if l[name] == "" && s.Labels[name] != "" {
				l[name] = s.Labels[name]
			}
		}
		s.Labels = l
	}
	return s
}

// device is the UUID of the device of a canonical series, with the replica that an
// exporter may have written behind it; "" where it has none.
func (r reading) device(s Series) (uuid, slot string) {
	uuid, slot = replicaOf(first(s.Labels, "UUID", "uuid"))
	if gpu, _, ok := instanceOfGPU(uuid); ok {
		return gpu, slot
	}
	if bareUUID.MatchString(uuid) { // nvidia-smi exporters leave the prefix out
		uuid = "GPU-" + uuid
	}
	return uuid, slot
}

var bareUUID = regexp.MustCompile(`^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// indexOf is the place of a device in its node, of a series that has no UUID for it:
// "0" of 0 or nvidia0; "" where there is none.
func (r reading) indexOf(s Series) string {
	if r.labels == nil || r.labels["gpu"] == "" {
		return ""
	}
	return strings.TrimPrefix(s.Labels["gpu"], "nvidia")
}
