package gpu

import (
	"slices"
	"testing"

	"gpuledger/billing/period"
)

// What series tell of their exporter, by the renames and additions of
// reference/gpu-telemetry.md §1.2 and §1.3.
func TestSignsOf(t *testing.T) {
	for _, c := range []struct {
		metric                          string
		labels                          map[string]string
		preset, version, uuid, at, node string
	}{
		{"dcgm_fb_used", map[string]string{"uuid": "GPU-1", "gpu": "0"}, "dcgm", "names of before 2021", "GPU-1", "0", ""},
		{"DCGM_FI_DEV_FB_USED", map[string]string{"UUID": "GPU-1", "gpu": "3", "Hostname": "n1"}, "dcgm", "older than June 2024 by its labels", "GPU-1", "3", "n1"},
		{"DCGM_FI_DEV_FB_USED", map[string]string{"UUID": "GPU-1", "device": "nvidia2", "Hostname": "n1", "pci_bus_id": "00000000:10:1E.0"}, "dcgm", "of June 2024 or newer", "GPU-1", "2", "n1"},
		{"DCGM_FI_DEV_FB_USED", map[string]string{"UUID": "GPU-1", "Hostname": "n1", "pod": "p", "namespace": "ml", "vgpu": "0"}, "dcgm", "4.1.1-4.0.3 or newer", "GPU-1", "", "n1"},
		{"DCGM_FI_DEV_FB_USED", map[string]string{"UUID": "GPU-1::2", "Hostname": "n1", "pod": "p", "namespace": "ml", "pod_uid": "u"}, "dcgm", "4.4.0-4.5.0 or newer", "GPU-1", "", "n1"},
		{"DCGM_FI_DEV_FB_USED", map[string]string{"UUID": "GPU-1", "hostname": "n1"}, "dcgm", "4.6.0-4.8.3 or newer", "GPU-1", "", "n1"},
		{"DCGM_FI_DEV_FB_USED_BYTES", map[string]string{"UUID": "GPU-1", "hostname": "n1"}, "dcgm", "4.9 or newer", "GPU-1", "", "n1"},
		{"runai_gpu_memory_used_mebibytes_per_pod_per_gpu", map[string]string{"gpu": "1", "node": "n1", "pod_name": "p", "pod_namespace": "ml", "pod_uuid": "u"}, "runai", "", "", "1", "n1"},
		{"nvidia_smi_memory_used_bytes", map[string]string{"uuid": "11111111-2222-3333-4444-555555555555", "instance": "n1:9835"}, "nvidia-smi", "", "GPU-11111111-2222-3333-4444-555555555555", "", ""},
	} {
		s, uuid, index, node, ok := Settings{}.SignsOf(Series{Metric: c.metric, Labels: c.labels})
		if !ok || s.Preset != c.preset || s.Version() != c.version || uuid != c.uuid || index != c.at || node != c.node {
			t.Errorf("%s %v: %+v %q, %q %q %q %v", c.metric, c.labels, s, s.Version(), uuid, index, node, ok)
		}
	}
	if _, _, _, _, ok := (Settings{}).SignsOf(Series{Metric: "up"}); ok {
		t.Error("up is of no GPU")
	}
	own := Settings{Exporters: []ExporterMetric{{Name: "my_used", Is: "used", Unit: "bytes", Of: "device"}}}
	if s, _, _, _, ok := own.SignsOf(Series{Metric: "my_used", Labels: map[string]string{"UUID": "GPU-1"}}); !ok || s.Preset != OwnExporter || own.FamilyOf("my_used") != "used" || own.FamilyOf("up") != "" {
		t.Errorf("own metric: %+v %v", s, ok)
	}
	if both := (Signs{Preset: "dcgm", MiB: true}).With(Signs{Preset: "dcgm", Bytes: true, Driver: "580"}); both.Version() != "4.9 or newer and an older one" || both.Driver != "580" {
		t.Errorf("%+v", both)
	}
}

// A group has the series of its own devices and of no others.
func TestGroupHas(t *testing.T) {
	devices := []Series{
		{Metric: "DCGM_FI_DEV_FB_USED", Labels: map[string]string{"UUID": "GPU-1", "node": "n1"}},
		{Metric: "DCGM_FI_DEV_FB_USED", Labels: map[string]string{"UUID": "GPU-2", "node": "n2"}},
		{Metric: "hami_vgpu_memory_used_bytes", Labels: map[string]string{"device_uuid": "GPU-2", "node": "n2"}},
	}
	groups := Groups(NewInventory(nil, Settings{}, period.Span{}), devices, Settings{})
	var all []int
	for _, g := range groups {
		for i, s := range devices {
			if g.Has(s) {
				all = append(all, i)
			}
		}
	}
	if len(groups) != 2 || !slices.Equal(all, []int{0, 1, 2}) {
		t.Errorf("%+v: %v", groups, all)
	}
}
