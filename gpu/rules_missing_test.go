package gpu

import (
	"fmt"
	"testing"
)

// eightGPUs is a node of eight GPUs by its instance type.
func eightGPUs() []Series {
	return []Series{
		ksm("kube_node_info", always(1), "node", "n1", "provider_id", "aws:///us-east-1a/i-1"),
		ksm("kube_node_labels", always(1), "node", "n1", "label_node_kubernetes_io_instance_type", "p4d.24xlarge", "label_nvidia_com_gpu_replicas", "1"),
	}
}

// wholeGPU is a GPU's two series of memory.
func wholeGPU(uuid string, usedMiB, freeMiB float64, kv ...string) []Series {
	l := append([]string{"UUID", uuid}, kv...)
	return []Series{dcgm("DCGM_FI_DEV_FB_USED", always(usedMiB), l...), dcgm("DCGM_FI_DEV_FB_FREE", always(freeMiB), l...)}
}

// #549, #611: with virtual-gpus, GPUs without a pod vanish: eight GPUs, three reported.
func TestRule06GPUsWithoutPodsVanish(t *testing.T) {
	inv := eightGPUs()
	var dev []Series
	for i := range 3 {
		pod := fmt.Sprintf("p%d", i)
		inv = append(inv, running(pod)...)
		dev = append(dev, wholeGPU(fmt.Sprintf("GPU-%d", i), 10*gib, 30*gib, "pod", pod, "namespace", "ml", "container", "c", "vgpu", "0")...)
	}
	got := FoldHour(inv, dev, hour0, Settings{})
	if n := len(got.Nodes[0].Devices); n != 8 {
		t.Fatalf("%d devices, want 8", n)
	}
	for i, d := range got.Nodes[0].Devices {
		r := d.Partitions[0].Rows[0]
		if i < 3 != (r.PodUID != "") || i >= 3 && (r.Category != NoTelemetry || r.Shares.Used != fullHour) {
			t.Errorf("%s: %+v", d.UUID, r)
		}
	}
	if n := len(FoldHour(eightGPUs(), nil, hour0, Settings{}).Nodes[0].Devices); n != 8 {
		t.Errorf("a node without any metrics has %d devices", n)
	}
}

// #569: under DRA the GPUs that nobody has are lost once one is allocated. Those that the
// pods of the node request are theirs, series or not.
func TestRule07UnallocatedGPUsLost(t *testing.T) {
	claim := []string{"dra_claim_name", "c1", "dra_claim_namespace", "ml"}
	inv := join(eightGPUs(), testPod("claimant", -2000, 9000, "", 0), running("plain"))
	dev := wholeGPU("GPU-0", 10*gib, 30*gib, append([]string{"pod", "claimant", "namespace", "ml", "container", "c"}, claim...)...)
	got := FoldHour(inv, dev, hour0, Settings{}).Nodes[0].Devices
	if len(got) != 8 || got[0].Partitions[0].Mode != ModeDRA {
		t.Fatalf("%d devices, %s", len(got), got[0].Partitions[0].Mode)
	}
	rows := map[string]int{}
	for _, d := range got {
		rows[d.Partitions[0].Rows[0].PodUID+string(d.Partitions[0].Rows[0].Category)]++
	}
	if rows["uid-claimant"] != 1 || rows["uid-plain"] != 1 || rows["no_telemetry"] != 6 {
		t.Errorf("%v", rows)
	}
}

// #577, #272, #342, #411, #477, #349, #150: pod labels are missing for some scrapes, or
// for most of the hour. The kubelet takes no device from a running pod: what a scrape
// says of the owner holds for as long as kube-state-metrics shows the pod, and a pod that
// it does not know is carried over the gap between two of its labels.
func TestRule09LabelsMissing(t *testing.T) {
	free := dcgm("DCGM_FI_DEV_FB_FREE", always(10*gib))
	gap := func(from, to int) []Series {
		return []Series{
			labelled("a", sampled(step{-900, from, 30 * gib}, step{to, 4500, 30 * gib})), dcgm("DCGM_FI_DEV_FB_USED", sampled(step{from, to, 30 * gib})), free,
		}
	}
	for name, c := range map[string]struct {
		inv      []Series
		from, to int
		who      string
	}{
		"three minutes":                      {join(testNode(1), running("a")), 1200, 1380, "a"},
		"most of the hour":                   {join(testNode(1), running("a")), 300, 3300, "a"},
		"three minutes, requests not known":  {join(testNode(1), testPod("a", -2000, 9000, "", 0)), 1200, 1380, "a"},
		"three minutes, pod not in the list": {testNode(1), 1200, 1380, ":ml/a"},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, FoldHour(c.inv, gap(c.from, c.to), hour0, Settings{}), maxNone, want{c.who, SoleHolder, fullHour})
		})
	}
	// After its end the label-less samples are nobody's.
	inv := join(testNode(1), testPod("a", -2000, 1800, "nvidia_com_gpu", 1))
	dev := []Series{labelled("a", sampled(step{-900, 1200, 30 * gib})), dcgm("DCGM_FI_DEV_FB_USED", sampled(step{1200, 1800, 30 * gib}, step{1800, 4500, 0})), dcgm("DCGM_FI_DEV_FB_FREE", sampled(step{-900, 1800, 10 * gib}, step{1800, 4500, 40 * gib}))}
	check(t, FoldHour(inv, dev, hour0, Settings{}), maxNone, want{"a", SoleHolder, fullHour / 2}, want{"unallocated", NoMethod, fullHour / 2})
}

// A pod's own figure missing from a per-process exporter, while the device's is there: it
// holds for 2.5 intervals, and then what the device shows beyond the others is its.
func TestRule09FigureMissing(t *testing.T) {
	inv := join(testNode(2), running("a", "b"))
	dev := []Series{
		dcgm("DCGM_FI_DEV_FB_USED", always(30*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(10*gib)),
		perProcess("a", sampled(step{-900, 1800, 20 * gib}, step{2400, 4500, 20 * gib})), perProcess("b", always(10*gib)),
	}
	// a's last sample before the gap is at 1,785 s, the next at 2,415 s: 75 s of each hold.
	gap := int64(2415-1785-150) * 1e6
	check(t, FoldHour(inv, dev, hour0, Settings{}), used, want{"a", ProcessUID, (fullHour - gap) / 2}, want{"a", ReplicaRequest, gap / 2},
		want{"b", ProcessUID, fullHour / 4}, want{"slot_held", NoMethod, fullHour / 4})
}

// #140, #16: a completed pod keeps the device's label for half an hour, with 0 used.
func TestRule10CompletedPodKeepsLabel(t *testing.T) {
	inv := join(testNode(1), testPod("completed", -2000, 900, "nvidia_com_gpu", 1))
	inv = append(inv, ksm("kube_pod_status_phase", sampled(step{900, 4500, 1}), "namespace", "ml", "pod", "completed", "uid", "uid-completed", "phase", "Succeeded"),
		ksm("kube_pod_status_phase", sampled(step{-900, 900, 1}), "namespace", "ml", "pod", "completed", "uid", "uid-completed", "phase", "Running"))
	dev := []Series{
		labelled("completed", sampled(step{-900, 900, 10 * gib}, step{900, 2700, 0})), dcgm("DCGM_FI_DEV_FB_USED", sampled(step{2700, 4500, 0})),
		dcgm("DCGM_FI_DEV_FB_FREE", sampled(step{-900, 900, 30 * gib}, step{900, 4500, 40 * gib})),
	}
	check(t, FoldHour(inv, dev, hour0, Settings{}), maxNone, want{"completed", SoleHolder, fullHour / 4}, want{"unallocated", NoMethod, fullHour * 3 / 4})
}

// kube-state-metrics has a completion time as soon as one container of a pod has ended, or
// is about to be started again: a pod that runs on after it has not ended.
func TestCompletionOfOneContainer(t *testing.T) {
	l := []string{"namespace", "ml", "pod", "a", "uid", "uid-a"}
	inv := join(testNode(1), running("a"), []Series{ksm("kube_pod_status_phase", always(1), append(l, "phase", "Running")...)})
	dev := []Series{labelled("a", always(20*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(20*gib))}
	for name, seen := range map[string]step{"a sidecar": {600, 4500, 0}, "started again": {600, 630, 0}} {
		seen.value = float64(hour0.Unix() + 600)
		got := FoldHour(join(inv, []Series{ksm("kube_pod_completion_time", sampled(seen), l...)}), dev, hour0, Settings{})
		t.Log(name)
		check(t, got, maxNone, want{"a", SoleHolder, fullHour})
		if at := got.Inventory.Pods["uid-a"].Completed(); !at.IsZero() {
			t.Errorf("completed at %s", at)
		}
	}
}

// #380, #512, #103, #71, #3: no series of memory, though profiling shows the GPU and who
// is on it. No data is not 0: the pod has what it was given, which is said.
func TestRule11NoMemorySeries(t *testing.T) {
	pod := []string{"pod", "a", "namespace", "ml", "container", "c"}
	for name, inv := range map[string][]Series{
		"by request": join(testNode(1), running("a")), "by label": join(testNode(1), testPod("a", -2000, 9000, "", 0)),
	} {
		got := FoldHour(inv, []Series{dcgm("DCGM_FI_PROF_GR_ENGINE_ACTIVE", always(0.7), pod...)}, hour0, Settings{})
		check(t, got, maxNone, want{"a", ReplicaRequest, fullHour})
		if r := rowOf(t, partOf(t, got), "a"); r.Flags&FlagCapacityAssumed == 0 || r.MeasuredMicros != 0 {
			t.Errorf("%s: %+v", name, r)
		}
	}
	// An H100's instance: its size is the profile's, 1 of 8 slices.
	l := append([]string{"GPU_I_ID", "9", "GPU_I_PROFILE", "1g.10gb", "modelName", "NVIDIA H100 80GB HBM3"}, pod...)
	inv := join(testNode(1), testPod("a", -2000, 9000, "nvidia_com_mig_1g_10gb", 1))
	p := partOf(t, FoldHour(inv, []Series{dcgm("DCGM_FI_PROF_GR_ENGINE_ACTIVE", always(0.7), l...)}, hour0, Settings{}))
	if r := rowOf(t, p, "a"); p.Mode != ModeMIG || p.MemorySlices != 1 || p.UsableBytes != 81559<<20/8 || r.Shares.MaxNone != fullHour || r.Flags&FlagCapacityAssumed == 0 || r.MeasuredMicros != 0 {
		t.Errorf("%+v", p)
	}
}

// gpu-monitoring-tools#188, #164: nv-hostengine restarted, and the exporter repeats what
// it last knew. From 1,200 s on nothing moves, not even the power: that is no measurement.
func TestRule22FrozenValues(t *testing.T) {
	inv := join(testNode(2), running("a"))
	moving := func(v, by float64) []Sample {
		out := always(v)
		last := 0.0
		for i := range out {
			if at := out[i].UnixMilli - hour0.UnixMilli(); at <= 1_200_000 {
				last = by * float64(i%5)
			}
			out[i].Value += last
		}
		return out
	}
	dev := func(used, power []Sample) []Series {
		return []Series{dcgm("DCGM_FI_DEV_FB_USED", used), perProcess("a", used), dcgm("DCGM_FI_DEV_FB_FREE", always(20*gib)), dcgm("DCGM_FI_DEV_POWER_USAGE", power)}
	}
	got := FoldHour(inv, dev(always(20*gib), moving(75.96, 0.01)), hour0, Settings{})
	// The last true sample is at 1,185 s and holds for 75 s; then a slot is half of the GPU.
	measured := int64(1260 * 1e6)
	check(t, got, used, want{"a", ProcessUID, measured / 2}, want{"a", ReplicaRequest, (fullHour - measured) / 2}, want{"unallocated", NoMethod, fullHour / 2})
	p := partOf(t, got)
	if p.MeasuredMicros != measured || got.Nodes[0].Devices[0].Dropped["frozen"] == 0 {
		t.Errorf("measured %d µs, dropped %v", p.MeasuredMicros, got.Nodes[0].Devices[0].Dropped)
	}
	for _, r := range p.Rows {
		if (r.Flags&FlagFrozen != 0) != (r.Method != ProcessUID) { // the measured row has only what was true
			t.Errorf("%s by %v: flags %b", r.PodUID, r.Method, r.Flags)
		}
	}
	for name, d := range map[string][]Series{
		"an idle GPU whose power is not read": dev(always(20*gib), nil),
		"an idle GPU":                         dev(always(20*gib), drawn(75.96)),
		"power in whole watts":                dev(always(20*gib), always(75)),
		"the memory moves":                    dev(drawn(20*gib), always(75.96)),
		"no power at all":                     dev(always(20*gib), always(0)),
	} {
		p := partOf(t, FoldHour(inv, d, hour0, Settings{}))
		if r := rowOf(t, p, "a"); p.MeasuredMicros != fullHour || r.Flags&FlagFrozen != 0 {
			t.Errorf("%s is called frozen: %+v", name, r)
		}
	}
}

// Nothing of a frozen hour is measured, and where nobody requests the GPU it is without
// telemetry, not idle.
func TestRule22FrozenAndIdle(t *testing.T) {
	dev := []Series{dcgm("DCGM_FI_DEV_FB_USED", always(0)), dcgm("DCGM_FI_DEV_FB_FREE", always(40*gib)), dcgm("DCGM_FI_DEV_GPU_UTIL", always(0)), dcgm("DCGM_FI_DEV_POWER_USAGE", always(75.96))}
	got := FoldHour(testNode(1), dev, hour0, Settings{})
	check(t, got, used, want{"no_telemetry", NoMethod, fullHour})
	if d := got.Nodes[0].Devices[0]; d.GPUUtil != -1 {
		t.Errorf("utilisation %v of stale samples", d.GPUUtil)
	}
}

// HAMi#281, #1794: no series until the pod touches CUDA: the scheduler's metric shows that
// it holds the card. HAMi#128: what stays after the pod's exit is nobody's.
func TestRule28AllocatedAndIdle(t *testing.T) {
	const g = float64(1 << 30)
	inv := join(testNode(10), running("idle"), testPod("gone", -2000, 1800, "nvidia_com_gpu", 1))
	pod := func(metric, name string, v float64) Series {
		return Series{Metric: metric, Labels: map[string]string{"namespace": "ml", "pod": name, "node": "n1", "device_uuid": testUUID}, Samples: always(v)}
	}
	granted := pod("hami_vgpu_memory_allocated_bytes", "idle", 10*g)
	granted.Labels["container_index"] = "0"
	gone := pod("hami_vgpu_memory_used_bytes", "gone", 10*g)
	gone.Labels["container"], gone.Labels["vdevice_index"] = "c", "0"
	dev := []Series{dcgm("DCGM_FI_DEV_FB_USED", always(10*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(30*gib)), granted, gone}
	got := FoldHour(inv, dev, hour0, Settings{})
	check(t, got, maxNone, want{"idle", Limit, fullHour / 4}, want{"gone", ProcessName, fullHour / 8}, want{"unallocated", NoMethod, fullHour * 5 / 8})
	if m := partOf(t, got).Mode; m != ModeFraction {
		t.Errorf("mode %s", m)
	}
	// What enforces the limit counts the same memory by other names: not twice.
	limit := pod("hami_vgpu_memory_limit_bytes", "idle", 10*g)
	limit.Labels["container"], limit.Labels["vdevice_index"] = "c", "0"
	check(t, FoldHour(inv, append(dev, limit), hour0, Settings{}), maxNone, want{"idle", Limit, fullHour / 4}, want{"gone", ProcessName, fullHour / 8}, want{"unallocated", NoMethod, fullHour * 5 / 8})
}
