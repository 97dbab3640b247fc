package gpu

import (
	"fmt"
	"strconv"
	"testing"
)

// labelsOf is a node of one GPU with the given labels and a capacity of GPUs.
func labelsOf(capacity int, kv ...string) []Series {
	out := []Series{ksm("kube_node_info", always(1), "node", "n1", "provider_id", "aws:///us-east-1a/i-1")}
	l := []string{"node", "n1"}
	for i := 0; i < len(kv); i += 2 {
		l = append(l, "label_"+resourceName(kv[i]), kv[i+1])
	}
	out = append(out, ksm("kube_node_labels", always(1), l...))
	if capacity > 0 {
		out = append(out, ksm("kube_node_status_capacity", always(float64(capacity)), "node", "n1", "resource", "nvidia_com_gpu"))
	}
	return out
}

// k8s-device-plugin#732, #535, #1605, gpu-operator#76, #334, gfd#13: replicas stays 1 where
// GFD lacks the plugin's configuration, memory is not divided, and one label names the
// model of all: capacity ÷ count tells.
func TestRule34LabelsThatLie(t *testing.T) {
	inv := join(labelsOf(4, "nvidia.com/gpu.count", "1", "nvidia.com/gpu.replicas", "1", "nvidia.com/gpu.memory", "40960", "nvidia.com/gpu.product", "Tesla-T4"), running("a", "b"))
	got := FoldHour(inv, wholeGPU(testUUID, 30*gib, 10*gib), hour0, Settings{})
	check(t, got, used, want{"a", ReplicaRequest, fullHour * 15 / 40}, want{"b", ReplicaRequest, fullHour * 15 / 40}, want{"unallocated", NoMethod, fullHour / 4})
	if p := partOf(t, got); p.Mode != ModeTimeSlicing || p.Replicas != 4 || p.UsableBytes != 40<<30 || got.Nodes[0].Devices[0].Model != "A100-SXM4-40GB" {
		t.Errorf("%+v", p)
	}
}

// The precedence of reference §4.4: each word beside all of those below it.
func TestModePrecedence(t *testing.T) {
	claim := []string{"dra_claim_name", "c1", "dra_claim_namespace", "ml"}
	pods := []string{"a", "b"}
	copies := func(kv ...string) []Series {
		out := []Series{dcgm("DCGM_FI_DEV_FB_FREE", always(10*gib))}
		for i, pod := range pods {
			out = append(out, labelled(pod, always(30*gib), append([]string{"vgpu", strconv.Itoa(i)}, kv...)...))
		}
		return out
	}
	mps := []string{"nvidia.com/gpu.count", "1", "nvidia.com/gpu.replicas", "4", "nvidia.com/gpu.sharing-strategy", "mps", "karpenter.sh/nodepool", "shared-1"}
	override := Settings{Modes: []ModeOverride{{NodePool: "other", Mode: ModeExclusive}, {NodePool: "shared-*", Mode: ModeTimeSlicing, Replicas: 8}}}
	for name, c := range map[string]struct {
		node     []Series
		dev      []Series
		settings Settings
		mode     Mode
		replicas int
		flags    Flags
	}{
		"1 configuration over a claim":           {labelsOf(4, mps...), copies(claim...), override, ModeTimeSlicing, 8, 0},
		"2 a claim over labels":                  {labelsOf(4, mps...), copies(claim...), Settings{}, ModeDRA, 4, 0},
		"3 MIG series over labels and override":  {labelsOf(4, mps...), instance("7", "1g.5gb", 6, 4857, "pod", "a", "namespace", "ml"), override, ModeMIG, 1, 0},
		"4 GFD's label over capacity":            {labelsOf(8, mps...), copies(), Settings{}, ModeMPS, 4, 0},
		"4 GKE's label":                          {labelsOf(0, "cloud.google.com/gke-gpu-sharing-strategy", "time-sharing", "cloud.google.com/gke-max-shared-clients-per-gpu", "3"), copies(), Settings{}, ModeTimeSlicing, 3, 0},
		"4 GKE's label of MPS":                   {labelsOf(0, "cloud.google.com/gke-gpu-sharing-strategy", "mps", "cloud.google.com/gke-max-shared-clients-per-gpu", "48"), copies(), Settings{}, ModeMPS, 48, 0},
		"5 capacity over count":                  {labelsOf(6, "nvidia.com/gpu.count", "1"), copies(), Settings{}, ModeTimeSlicing, 6, 0},
		"5 capacity over the devices seen":       {labelsOf(4), copies(), Settings{}, ModeTimeSlicing, 4, 0},
		"5 capacity equal to count is exclusive": {labelsOf(1, "nvidia.com/gpu.count", "1"), wholeGPU(testUUID, 1, 1, "pod", "a", "namespace", "ml"), Settings{}, ModeExclusive, 1, 0},
		"6 the data's shape: slots":              {labelsOf(0), copies(), Settings{}, ModeTimeSlicing, 0, FlagModeInferred},
		"6 the data's shape: copies": {labelsOf(0), []Series{
			labelled("a", always(15_866)), labelled("b", always(15_866)), dcgm("DCGM_FI_DEV_FB_FREE", always(24_518)),
		}, Settings{}, ModeTimeSlicing, 0, FlagModeInferred},
		"6 the data's shape: processes":         {labelsOf(0), []Series{perProcess("a", always(1000)), perProcess("b", always(2000)), dcgm("DCGM_FI_DEV_FB_USED", always(3000))}, Settings{}, ModeTimeSlicing, 0, FlagModeInferred},
		"7 unknown: one pod's label is no word": {labelsOf(0), wholeGPU(testUUID, 30*gib, 10*gib, "pod", "a", "namespace", "ml"), Settings{}, ModeUnknown, 0, FlagModeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			p := partOf(t, FoldHour(join(c.node, running("a", "b")), c.dev, hour0, c.settings))
			if p.Mode != c.mode || p.Replicas != c.replicas {
				t.Errorf("%s of %d replicas, want %s of %d", p.Mode, p.Replicas, c.mode, c.replicas)
			}
			for _, r := range p.Rows {
				if got := r.Flags & (FlagModeInferred | FlagModeUnknown); got != c.flags {
					t.Errorf("%s%s: flags %b, want %b", r.PodUID, r.Category, got, c.flags)
				}
			}
		})
	}
}

// Unknown is never silently exclusive: what the one labelled pod is charged is an estimate
// of the weakest kind and says so; what a process was measured to use stays a measurement.
func TestUnknownMode(t *testing.T) {
	inv := join(labelsOf(0), running("a"))
	got := FoldHour(inv, wholeGPU(testUUID, 30*gib, 10*gib, "pod", "a", "namespace", "ml"), hour0, Settings{})
	check(t, got, maxNone, want{"a", Even, fullHour})
	got = FoldHour(inv, []Series{perProcess("a", always(10*gib)), dcgm("DCGM_FI_DEV_FB_USED", always(20*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(20*gib))}, hour0, Settings{})
	check(t, got, maxNone, want{"a", ProcessUID, fullHour / 4}, want{"unattributed", NoMethod, fullHour / 4}, want{"unallocated", NoMethod, fullHour / 2})
	if p := partOf(t, got); p.Mode != ModeUnknown || rowOf(t, p, "a").Flags&FlagModeUnknown == 0 {
		t.Errorf("%+v", p)
	}
}

// A pod's label that outlives it by some scrapes does not make a GPU a shared one.
func TestLingeringLabelIsNoSharing(t *testing.T) {
	inv := join(labelsOf(0), testPod("a", -2000, 1800, "nvidia_com_gpu", 1), testPod("b", 1800, 9000, "nvidia_com_gpu", 1))
	dev := []Series{labelled("a", sampled(step{-900, 1890, 10 * gib})), labelled("b", sampled(step{1800, 4500, 10 * gib}))}
	if m := partOf(t, FoldHour(inv, dev, hour0, Settings{})).Mode; m != ModeUnknown {
		t.Errorf("mode %s", m)
	}
}

// A node's sharing changes at 12:20: the hours before and after are of their own mode, and
// the hour of the change of the one it had longer.
func TestModeChangesWithinADay(t *testing.T) {
	strategy := func(from, to int, strategy, replicas string) Series {
		return ksm("kube_node_labels", sampledFor(from, to, 1), "node", "n1", "label_nvidia_com_gpu_count", "1", "label_nvidia_com_gpu_replicas", replicas, "label_nvidia_com_gpu_sharing_strategy", strategy)
	}
	const change = 2*3600 + 1200
	inv := []Series{
		ksm("kube_node_info", sampledFor(-900, 5*3600, 1), "node", "n1", "provider_id", "aws:///us-east-1a/i-1"),
		strategy(-900, change, "none", "1"), strategy(change, 5*3600, "time-slicing", "4"),
	}
	dev := []Series{dcgm("DCGM_FI_DEV_FB_USED", sampledFor(-900, 5*3600, 0)), dcgm("DCGM_FI_DEV_FB_FREE", sampledFor(-900, 5*3600, 40*gib))}
	for h, want := range []string{"exclusive 1", "exclusive 1", "time_slicing 4", "time_slicing 4"} {
		p := partOf(t, FoldHour(inv, dev, hour0.Add(hours(h)), Settings{}))
		if got := fmt.Sprint(p.Mode, " ", p.Replicas); got != want {
			t.Errorf("hour %d: %s, want %s", h, got, want)
		}
	}
}

// A silent node's capacity is all that is known of it: it may be as many GPUs, or as many
// slots of fewer.
func TestCapacityAloneTellsNoMode(t *testing.T) {
	got := FoldHour(join(labelsOf(4), running("a")), nil, hour0, Settings{}).Nodes[0].Devices
	if len(got) != 4 || got[0].Partitions[0].Mode != ModeUnknown {
		t.Fatalf("%d devices, %s", len(got), got[0].Partitions[0].Mode)
	}
	if r := rowOf(t, got[0].Partitions[0], "a"); r.Method != Even || r.Flags&FlagModeUnknown == 0 || r.Shares.MaxNone != fullHour {
		t.Errorf("%+v", r)
	}
}
