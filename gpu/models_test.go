package gpu

import (
	"strings"
	"testing"
)

// The table of reference/gpu-telemetry.md §6: by the names that exporters give, the total
// as they show it and the datasheet's bandwidth.
func TestModels(t *testing.T) {
	for _, c := range []struct {
		name     string
		mib, gbs uint64
		compute  int
	}{
		{"Tesla T4", 15360, 320, 0},
		{"Tesla P100-PCIE-16GB", 16384, 732, 0},
		{"Tesla V100-SXM2-16GB", 16384, 900, 0},
		{"Tesla V100-SXM2-32GB", 32768, 900, 0},
		{"Tesla V100-PCIE-32GB", 32768, 900, 0},
		{"NVIDIA A10", 23028, 600, 0},
		{"NVIDIA A10G", 23028, 600, 0},
		{"NVIDIA A16", 15356, 200, 0},
		{"NVIDIA A30", 24576, 933, 4},
		{"NVIDIA A40", 46068, 696, 0},
		{"NVIDIA A100-SXM4-40GB", 40960, 1555, 7},
		{"A100-PCIE-40GB", 40960, 1555, 7},
		{"NVIDIA A100-SXM4-80GB", 81920, 2039, 7},
		{"NVIDIA A100 80GB PCIe", 81920, 1935, 7},
		{"NVIDIA L4", 23034, 300, 0},
		{"NVIDIA L40", 46068, 864, 0},
		{"NVIDIA L40S", 46068, 864, 0},
		{"NVIDIA RTX A6000", 49140, 768, 0},
		{"NVIDIA RTX 6000 Ada Generation", 49140, 960, 0},
		{"NVIDIA RTX 2000 Ada Generation", 16380, 224, 0},
		{"NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, 1597, 4},
		{"NVIDIA H100 80GB HBM3", 81559, 3350, 7},
		{"NVIDIA H100 PCIe", 81559, 2000, 7},
		{"NVIDIA H100 NVL", 95830, 3938, 7},
		{"NVIDIA H20", 97871, 4000, 7},
		{"NVIDIA GH200 480GB", 97871, 4000, 7},
		{"NVIDIA GH200 120GB", 97871, 4000, 7},
		{"NVIDIA GH200 96GB HBM3", 97871, 4000, 7},
		{"NVIDIA H200", 143771, 4800, 7},
		{"NVIDIA H200 NVL", 143771, 4800, 7},
		{"NVIDIA B200", 183359, 8000, 7},
		{"NVIDIA GB200", 189471, 8000, 7},
		{"NVIDIA B300 SXM6 AC", 275040, 8000, 7},
		{"NVIDIA GB300", 284000, 8000, 7},
		{"GRID A100-8C", 8192, 0, 0},
		{"NVIDIA A10-4Q", 4096, 0, 0},
		{"GRID A100-1-5C", 5120, 0, 0}, // of an instance of 1g.5gb
		{amdModel("[Instinct MI210]"), 65536, 1638, 0},
		{amdModel("Aldebaran/MI200 [Instinct MI250X/MI250]"), 65536, 1638, 0},
		{amdModel("[Instinct MI300X OAM]"), 196608, 5300, 0},
		{amdModel("[Instinct MI325X]"), 262144, 6000, 0},
		{amdModel("[Instinct MI355X]"), 294912, 8000, 0},
		{"Intel Data Center GPU Max 1550", 131072, 3277, 0},
	} {
		m, ok := LookupModel(c.name)
		if !ok || m.TotalBytes != c.mib<<20 || m.BandwidthBytesPerSecond != c.gbs*1e9 || m.ComputeSlices != c.compute {
			t.Errorf("%s: %v %+v", c.name, ok, m)
		}
	}
	for _, unknown := range []string{"", "NVIDIA Graphics Device", "A100", "GRID A100-0C", "H200-SOMETHING"} {
		if m, ok := LookupModel(unknown); ok {
			t.Errorf("%q is %+v", unknown, m)
		}
	}
}

// One table for all spellings: vendor prefixes, blanks, and what GPU feature discovery
// makes of a name.
func TestModelSpellings(t *testing.T) {
	for want, spellings := range map[string][]string{
		"A100-SXM4-40GB": {
			"NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB", "NVIDIA-A100-SXM4-40GB", "nvidia a100 sxm4 40gb", "NVIDIA-A100-SXM4-40GB-SHARED", " NVIDIA  A100-SXM4-40GB ",
			"NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED", "NVIDIA-A100-SXM4-40GB-MIG-INVALID",
		},
		"H100-80GB-HBM3":       {"NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3", "NVIDIA_H100_80GB_HBM3"},
		"TESLA-T4":             {"Tesla T4", "Tesla-T4", "Tesla-T4-SHARED", "TESLA T4"},
		"TESLA-V100-SXM2-16GB": {"Tesla V100-SXM2-16GB", "Tesla-V100-SXM2-16GB"},
	} {
		for _, s := range spellings {
			if m, ok := LookupModel(s); !ok || m.Name != want {
				t.Errorf("%q is %q, want %s", s, m.Name, want)
			}
		}
	}
}

// A table of one's own says what the program does not know, and corrects what it does:
// throughout a fold.
func TestModelsOfSettings(t *testing.T) {
	models, err := ParseModels("# my own\nNVIDIA Z900 96GB\t98304\t7\t8\t5000\n\nA100-SXM4-40GB\t39000\t7\t8\t1555\n")
	if err != nil {
		t.Fatal(err)
	}
	settings := Settings{Models: models}
	l := []string{"modelName", "NVIDIA-Z900-96GB"}
	d := FoldHour(testNode(1), []Series{dcgm("DCGM_FI_DEV_FB_USED", always(98_000), l...)}, hour0, settings).Nodes[0].Devices[0]
	if d.TotalBytes != 96<<30 || d.Partitions[0].UsableBytes != 96<<30 {
		t.Errorf("%+v", d)
	}
	p := byInstance(t, FoldHour(testNode(1), instance("7", "2g.24gb", 100, 23_000, l...), hour0, settings))["7"]
	if p.MemorySlices != 2 || p.DeviceSlices != 8 {
		t.Errorf("%+v", p)
	}
	if d := FoldHour(testNode(1), wholeGPU(testUUID, 0, 38_000), hour0, settings).Nodes[0].Devices[0]; d.TotalBytes != 39_000<<20 {
		t.Errorf("the program's own size of a corrected model: %d", d.TotalBytes)
	}
	// What is impossible follows the table: 1.5 × 96 GiB.
	if d := FoldHour(testNode(1), []Series{dcgm("DCGM_FI_DEV_FB_USED", always(150_000), l...)}, hour0, settings).Nodes[0].Devices[0]; d.Dropped["impossible_size"] == 0 {
		t.Errorf("%+v", d.Dropped)
	}
	silent := []Series{
		ksm("kube_node_info", always(1), "node", "n1"), ksm("kube_node_labels", always(1), "node", "n1", "label_nvidia_com_gpu_count", "1", "label_nvidia_com_gpu_product", "NVIDIA-Z900-96GB"),
	}
	if d := FoldHour(silent, nil, hour0, settings).Nodes[0].Devices[0]; d.TotalBytes != 96<<30 {
		t.Errorf("a silent one: %+v", d)
	}
}

func TestParseModelsErrors(t *testing.T) {
	for text, want := range map[string]string{
		"A\t1\t0\t0":                          "line 1 has 4 fields, not 5",
		"# c\nA\tx\t0\t0\t1":                  "line 2: model A: total \"x\"",
		"A\t0\t0\t0\t1":                       "line 1: model A: total \"0\"",
		"A\t100\t7\t7\t1":                     "line 1: model A: 7 compute and 7 memory slices",
		"A\t100\t0\t0\t1.5":                   "bandwidth \"1.5\"",
		"A\t100\t0\t0\t-1":                    "bandwidth \"-1\"",
		"A\t1\t0\t0\t1\nnvidia a\t1\t0\t0\t1": "line 2: model \"nvidia a\" has no name, or is there twice",
		"\t1\t0\t0\t1":                        "has no name",
	} {
		if _, err := ParseModels(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
