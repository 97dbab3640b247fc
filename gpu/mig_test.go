package gpu

import (
	"fmt"
	"testing"
)

// O07: 3g all hour, 2g for half of it, 1g all hour, and a 1g that nobody holds.
func TestMIG(t *testing.T) {
	inv := join(testNode(1), testPod("a", -2000, 9000, "nvidia_com_mig_3g_20gb", 1), testPod("b", 0, 1800, "nvidia_com_mig_2g_10gb", 1), testPod("c", -2000, 9000, "nvidia_com_mig_1g_5gb", 1))
	mig := func(gi, profile string, usedMiB, freeMiB float64, kv ...string) []Series {
		l := append([]string{"GPU_I_ID", gi, "GPU_I_PROFILE", profile}, kv...)
		return []Series{dcgm("DCGM_FI_DEV_FB_USED", always(usedMiB), l...), dcgm("DCGM_FI_DEV_FB_FREE", always(freeMiB), l...)}
	}
	pod := func(n string) []string { return []string{"pod", n, "namespace", "ml", "container", "c"} }
	dev := join(mig("2", "3g.20gb", 1000, 18968, pod("a")...), mig("7", "1g.5gb", 6, 4858, pod("c")...), mig("8", "1g.5gb", 6, 4858))
	l := []string{"GPU_I_ID", "5", "GPU_I_PROFILE", "2g.10gb"}
	dev = append(dev, dcgm("DCGM_FI_DEV_FB_USED", sampled(step{-900, 0, 13}, step{1800, 4500, 13}), l...),
		dcgm("DCGM_FI_DEV_FB_USED", sampled(step{0, 1800, 900}), append(l, pod("b")...)...), dcgm("DCGM_FI_DEV_FB_FREE", always(8956), l...))
	got := FoldHour(inv, dev, hour0, Settings{})
	parts := got.Nodes[0].Devices[0].Partitions
	if len(parts) != 4 {
		t.Fatalf("%d partitions", len(parts))
	}
	wantSlices := map[string]int{"2": 4, "5": 2, "7": 1, "8": 1}
	wantHeld := map[string]int64{"2": fullHour, "5": fullHour / 2, "7": fullHour, "8": 0}
	for _, p := range parts {
		if p.MemorySlices != wantSlices[p.GPUInstance] || p.DeviceSlices != 8 || p.Geometry != "1g.5gb,1g.5gb,2g.10gb,3g.20gb" {
			t.Errorf("%s: %d of %d in %s", p.GPUInstance, p.MemorySlices, p.DeviceSlices, p.Geometry)
		}
		var held int64
		for _, r := range p.Rows {
			if r.PodUID != "" {
				held += r.Shares.MaxNone
			}
		}
		if held != wantHeld[p.GPUInstance] {
			t.Errorf("%s: held %d, want %d", p.GPUInstance, held, wantHeld[p.GPUInstance])
		}
	}
}

// A mixed node: two of four GPUs are partitioned, the capacity of whole GPUs is 2:
// they are exclusive, though GPU feature discovery says replicas 0.
func TestWholeGPUsOfAMIGNode(t *testing.T) {
	inv := []Series{
		ksm("kube_node_info", always(1), "node", "n1", "provider_id", "aws:///us-east-1a/i-1"),
		ksm("kube_node_labels", always(1), "node", "n1", "label_nvidia_com_gpu_count", "4", "label_nvidia_com_gpu_replicas", "0", "label_nvidia_com_mig_strategy", "mixed"),
		ksm("kube_node_status_capacity", always(2), "node", "n1", "resource", "nvidia_com_gpu"),
	}
	var dev []Series
	for i := range 4 {
		l := []string{"UUID", fmt.Sprintf("GPU-%d", i)}
		if i < 2 {
			l = append(l, "GPU_I_ID", "1", "GPU_I_PROFILE", "7g.40gb")
		}
		dev = append(dev, dcgm("DCGM_FI_DEV_FB_USED", always(0), l...), dcgm("DCGM_FI_DEV_FB_FREE", always(40*gib), l...))
	}
	ds := FoldHour(inv, dev, hour0, Settings{}).Nodes[0].Devices
	for i, want := range []Mode{ModeMIG, ModeMIG, ModeExclusive, ModeExclusive} {
		if got := ds[i].Partitions[0].Mode; got != want {
			t.Errorf("device %d: %s, want %s", i, got, want)
		}
	}
}

// The exporter of a MIG node is silent: pods hold what they requested.
func TestSilentMIGNode(t *testing.T) {
	inv := join([]Series{
		ksm("kube_node_info", always(1), "node", "n1", "provider_id", "aws:///us-east-1a/i-1"),
		ksm("kube_node_labels", always(1), "node", "n1", "label_node_kubernetes_io_instance_type", "p4d.24xlarge", "label_nvidia_com_gpu_replicas", "0", "label_nvidia_com_mig_strategy", "mixed"),
	}, testPod("a", -2000, 9000, "nvidia_com_mig_3g_20gb", 1), testPod("b", 0, 1800, "nvidia_com_mig_1g_5gb", 1), testPod("c", 1800, 9000, "nvidia_com_mig_1g_5gb", 1))
	ds := FoldHour(inv, nil, hour0, Settings{}).Nodes[0].Devices
	if len(ds) != 8 {
		t.Fatalf("%d devices", len(ds))
	}
	held := map[string]int64{}
	slices := 0
	for _, p := range ds[0].Partitions {
		slices += p.MemorySlices
		for _, r := range p.Rows {
			if r.PodUID != "" {
				held[r.PodUID] += r.Shares.MaxNone * int64(p.MemorySlices)
				if r.Method != ReplicaRequest {
					t.Errorf("%s by %s", r.PodUID, r.Method)
				}
			} else if r.Category != NoTelemetry {
				t.Errorf("%s", r.Category)
			}
		}
	}
	if slices != 8 || held["uid-a"] != 4*fullHour || held["uid-b"] != fullHour/2 || held["uid-c"] != fullHour/2 {
		t.Errorf("%d slices, held %v", slices, held)
	}
}

// A MIG-enabled GPU without any instance has no memory series; its power draw shows
// that it is there. Without even that, nothing is known.
func TestMIGWithoutInstances(t *testing.T) {
	inv := []Series{
		ksm("kube_node_info", always(1), "node", "n1", "provider_id", "aws:///us-east-1a/i-1"),
		ksm("kube_node_labels", always(1), "node", "n1", "label_nvidia_com_gpu_count", "1", "label_nvidia_com_mig_strategy", "mixed"),
	}
	check(t, FoldHour(inv, []Series{dcgm("DCGM_FI_DEV_POWER_USAGE", drawn(75.96))}, hour0, Settings{}), used, want{"mig_unpartitioned", NoMethod, fullHour})
	check(t, FoldHour(inv, nil, hour0, Settings{}), used, want{"no_telemetry", NoMethod, fullHour})
}

// The series of a held instance is blank for twenty minutes: the geometry did not
// change, and its holder holds it all the same.
func TestMIGBlankIsNoReconfiguration(t *testing.T) {
	inv := join(testNode(1), testPod("a", -2000, 9000, "nvidia_com_mig_3g_20gb", 1), testPod("b", -2000, 9000, "nvidia_com_mig_3g_20gb", 1))
	var dev []Series
	for gi, pod := range map[string]string{"1": "a", "2": "b"} {
		s := always(5000)
		if pod == "b" {
			s = sampled(step{-900, 1200, 5000}, step{1200, 2400, 9223372036854775794}, step{2400, 4500, 5000})
		}
		l := []string{"GPU_I_ID", gi, "GPU_I_PROFILE", "3g.20gb", "pod", pod, "namespace", "ml", "container", "c"}
		dev = append(dev, dcgm("DCGM_FI_DEV_FB_USED", s, l...), dcgm("DCGM_FI_DEV_FB_FREE", s, l...))
	}
	parts := FoldHour(inv, dev, hour0, Settings{}).Nodes[0].Devices[0].Partitions
	if len(parts) != 2 {
		t.Fatalf("%d partitions", len(parts))
	}
	for _, p := range parts {
		var held int64
		for _, r := range p.Rows {
			if r.PodUID != "" {
				held += r.Shares.MaxNone
			}
		}
		if held != fullHour || p.DeviceSlices != 8 {
			t.Errorf("instance %s: held %d, D %d", p.GPUInstance, held, p.DeviceSlices)
		}
	}
}

// A real change: one 3g becomes two 1g and a 2g at half-time, which could not have
// existed beside it and the other 3g.
func TestMIGReconfiguration(t *testing.T) {
	inv := testNode(1)
	mig := func(gi, profile string, s []Sample) Series {
		return dcgm("DCGM_FI_DEV_FB_USED", s, "GPU_I_ID", gi, "GPU_I_PROFILE", profile)
	}
	early, late := sampled(step{-900, 1800, 0}), sampled(step{1800, 4500, 0})
	dev := []Series{mig("1", "3g.20gb", always(0)), mig("2", "3g.20gb", early), mig("7", "1g.5gb", late), mig("8", "1g.5gb", late), mig("5", "2g.10gb", late)}
	seen := map[string]int64{}
	for _, p := range FoldHour(inv, dev, hour0, Settings{}).Nodes[0].Devices[0].Partitions {
		seen[p.Geometry] += p.PresentMicros * int64(p.MemorySlices)
	}
	if seen["3g.20gb,3g.20gb"] != 8*fullHour/2 || seen["1g.5gb,1g.5gb,2g.10gb,3g.20gb"] != 8*fullHour/2 {
		t.Errorf("%v", seen)
	}
}

// An id may be another profile for a while and the first again: each spell counts for its own.
func TestProfileReturns(t *testing.T) {
	spell := func(profile string, st ...step) []Series {
		s := sampled(st...)
		return []Series{migSeries("DCGM_FI_DEV_FB_FREE", "9", profile, s), dcgm("DCGM_FI_DEV_FB_USED", s, "GPU_I_ID", "9",
			"GPU_I_PROFILE", profile, "modelName", "NVIDIA A100-SXM4-40GB", "pod", "a", "namespace", "ml", "container", "c")}
	}
	other := []Series{migSeries("DCGM_FI_DEV_FB_USED", "1", "3g.20gb", always(0)), migSeries("DCGM_FI_DEV_FB_FREE", "1", "3g.20gb", always(20000))}
	c := FoldHour(join(migNode(), testPod("a", -2000, 9000, "nvidia_com_mig_1g_5gb", 1)),
		join(other, spell("1g.5gb", step{-900, 1200, 1000}, step{2400, 4500, 1000}), spell("2g.10gb", step{1200, 2400, 1000})), hour0, Settings{})
	got := map[string]int64{}
	for _, d := range c.Nodes[0].Devices {
		for _, p := range d.Partitions {
			for _, r := range p.Rows {
				got[p.Profile+" "+r.PodUID] += r.Shares.MaxNone / 1_000_000
			}
		}
	}
	wantShares(t, got, map[string]int64{"1g.5gb uid-a": 2400, "2g.10gb uid-a": 1200, "3g.20gb ": 3600})
}
