package gpu

import "testing"

func TestTables(t *testing.T) {
	tab, err := parseTables(modelsTSV, instancesTSV)
	if err != nil {
		t.Fatal(err)
	}
	if len(tab.models) < 35 || len(tab.instances) < 100 {
		t.Fatalf("%d models, %d instance types", len(tab.models), len(tab.instances))
	}
	for _, c := range []struct {
		name  string
		gpus  int
		model string
	}{{"p5.48xlarge", 8, "H100-80GB-HBM3"}, {"standard_nc24ads_a100_v4", 1, "A100-80GB-PCIE"}, {"g4dn.12xlarge", 4, "TESLA-T4"}, {"a2-highgpu-1g", 1, "A100-SXM4-40GB"}} {
		it, ok := LookupInstanceType(c.name)
		if !ok || it.GPUs != c.gpus || it.Model != c.model {
			t.Errorf("%s: %+v", c.name, it)
		}
	}
	if IsGPUInstanceType("m5.xlarge") || IsGPUFamily("m5") || !IsGPUFamily("p5") || !IsGPUFamily("a3") || IsGPUFamily("n1") || IsGPUFamily("Standard_NC6s_v3") {
		t.Error("families")
	}
}

func TestNormalizeModel(t *testing.T) {
	for raw, want := range map[string]string{
		"NVIDIA A100-SXM4-40GB": "A100-SXM4-40GB", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb": "A100-SXM4-40GB",
		"Tesla T4": "TESLA-T4", "Tesla-T4-SHARED": "TESLA-T4", "NVIDIA H100 80GB HBM3": "H100-80GB-HBM3", "NVIDIA A10G": "A10G",
	} {
		if got := NormalizeModel(raw); got != want {
			t.Errorf("%q: %q, want %q", raw, got, want)
		}
	}
}

// The published figures of reference/allocation-method.md §2.4: an A100 has 38
// maximal geometries, 22 of which use all eight memory slices; none below 7.
func TestGeometries(t *testing.T) {
	all := complete8()
	full, least := 0, 8
	for _, g := range all {
		if g.memory == 8 {
			full++
		}
		least = min(least, g.memory)
	}
	if len(all) != 38 || full != 22 || least != 7 {
		t.Fatalf("%d geometries, %d full, least %d; want 38, 22, 7", len(all), full, least)
	}
}

func TestConfiguredSlices(t *testing.T) {
	a100, _ := LookupModel("A100-SXM4-40GB")
	a30, _ := LookupModel("NVIDIA A30")
	for _, c := range []struct {
		model    Model
		profiles []string
		want     int
	}{
		{a100, []string{"1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb"}, 7},
		{a100, []string{"1g.5gb"}, 8},
		{a100, []string{"3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb"}, 8},
		{a100, []string{"3g.20gb", "3g.20gb"}, 8},
		{a100, nil, 8},
		{a30, []string{"1g.6gb"}, 4},
	} {
		var ps []Profile
		for _, n := range c.profiles {
			p, ok := ParseProfile(n)
			if !ok {
				t.Fatal(n)
			}
			if p, ok = p.Resolve(c.model); !ok {
				t.Fatal(n)
			}
			ps = append(ps, p)
		}
		if got := ConfiguredSlices(c.model, ps); got != c.want {
			t.Errorf("%v: %d, want %d", c.profiles, got, c.want)
		}
	}
}

func TestParseProfile(t *testing.T) {
	a100, _ := LookupModel("A100-SXM4-40GB")
	for name, want := range map[string][2]int{
		"1g.5gb": {1, 1}, "1g.5gb+me": {1, 1}, "1c.3g.20gb": {3, 4}, "1g.10gb": {1, 2}, "1g.10gb+gfx": {1, 2},
		"2g.10gb+me.all": {2, 2}, "4g.20gb-me": {4, 4}, "7g.40gb": {7, 8},
	} {
		p, ok := ParseProfile(name)
		if !ok {
			t.Errorf("%s: not a profile", name)
			continue
		}
		if p, _ = p.Resolve(a100); p.ComputeSlices != want[0] || p.MemorySlices != want[1] {
			t.Errorf("%s: %+v, want %v", name, p, want)
		}
	}
	for _, name := range []string{"", "gpu", "g.5gb", "1g", "0g.5gb"} {
		if _, ok := ParseProfile(name); ok {
			t.Errorf("%q accepted", name)
		}
	}
}
