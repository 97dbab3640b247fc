package gpu

import (
	"fmt"
	"testing"
)

// The tests TestRule… are the numbered reports of reference/gpu-telemetry.md §7, each with
// the values given there.

// running are pods of the whole hour that request one GPU or slot each.
func running(names ...string) []Series {
	var out []Series
	for _, n := range names {
		out = append(out, testPod(n, -2000, 9000, "nvidia_com_gpu", 1)...)
	}
	return out
}

// labelled is the device's figure with a pod's labels, as the kubelet mapping gives it.
func labelled(pod string, samples []Sample, kv ...string) Series {
	return dcgm("DCGM_FI_DEV_FB_USED", samples, append([]string{"pod", pod, "namespace", "ml", "container", "c"}, kv...)...)
}

// partOf is the only partition of the only device.
func partOf(t *testing.T, got ClusterHour) Partition {
	t.Helper()
	if len(got.Nodes) != 1 || len(got.Nodes[0].Devices) != 1 || len(got.Nodes[0].Devices[0].Partitions) != 1 {
		t.Fatalf("not one node with one device of one partition: %+v", got.Nodes)
	}
	return got.Nodes[0].Devices[0].Partitions[0]
}

// rowOf is a pod's or a category's row of a partition.
func rowOf(t *testing.T, p Partition, who string) Row {
	t.Helper()
	for _, r := range p.Rows {
		if r.PodUID == "uid-"+who || string(r.Category) == who {
			return r
		}
	}
	t.Fatalf("no row of %s in %+v", who, p.Rows)
	return Row{}
}

// #587, #582, #474, #642: virtual-gpus copies the device's 15,866 MiB to each pod.
func TestRule01DuplicatedDeviceValue(t *testing.T) {
	const total = 81_920
	inv := join(testNode(2), running("a", "b"))
	model := []string{"modelName", "NVIDIA A100-SXM4-80GB"}
	dev := []Series{
		labelled("a", always(15_866), append(model, "vgpu", "1")...), labelled("b", always(15_866), append(model, "vgpu", "3")...),
		dcgm("DCGM_FI_DEV_FB_FREE", always(total-15_866), model...),
	}
	got := FoldHour(inv, dev, hour0, Settings{})
	half := fullHour * 15_866 / 2 / total
	check(t, got, used, want{"a", ReplicaRequest, half}, want{"b", ReplicaRequest, half}, want{"slot_held", NoMethod, fullHour * (total - 15_866) / total})
	for _, pod := range []string{"a", "b"} {
		if r := rowOf(t, partOf(t, got), pod); r.UsedByteSeconds != 3600*15_866<<20/2 || r.Flags&FlagCopied == 0 {
			t.Errorf("%s: %d byte-seconds, flags %b", pod, r.UsedByteSeconds, r.Flags)
		}
	}
}

// The utilisation of 0.714 shown for three pods, and 99 for four, is the device's mean
// once: never a sum.
func TestRule01DuplicatedUtilisation(t *testing.T) {
	inv := join(testNode(4), running("a", "b", "c", "d"))
	var dev []Series
	for i, pod := range []string{"a", "b", "c", "d"} {
		l := []string{"pod", pod, "namespace", "ml", "container", "c", "vgpu", fmt.Sprint(i)}
		if i < 3 {
			dev = append(dev, dcgm("DCGM_FI_PROF_GR_ENGINE_ACTIVE", always(0.714), l...))
		}
		dev = append(dev, dcgm("DCGM_FI_DEV_GPU_UTIL", always(99), l...))
	}
	d := FoldHour(inv, dev, hour0, Settings{}).Nodes[0].Devices[0]
	if near(d.EngineActive, 0.714) || near(d.GPUUtil, 0.99) {
		t.Errorf("engine %v, utilisation %v", d.EngineActive, d.GPUUtil)
	}
}

// near reports whether two shares differ.
func near(a, b float64) bool { return a-b > 1e-9 || b-a > 1e-9 }

// #307, #144, #201, #151: four slots, one arbitrary pod labelled, no vgpu label.
func TestRule02ArbitraryPodLabel(t *testing.T) {
	inv := join(testNode(4), running("a", "b", "c", "d"))
	dev := []Series{labelled("c", always(36*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(4*gib))}
	quarter := fullHour * 9 / 40
	check(t, FoldHour(inv, dev, hour0, Settings{}), used, want{"a", ReplicaRequest, quarter}, want{"b", ReplicaRequest, quarter},
		want{"c", ReplicaRequest, quarter}, want{"d", ReplicaRequest, quarter}, want{"slot_held", NoMethod, fullHour / 10})
}

// #340: exported_pod flaps between three pods, a new series at each scrape.
func TestRule03FlappingLabel(t *testing.T) {
	inv := join(testNode(3), running("pod1", "pod2", "pod3"))
	byPod := map[string][]Sample{}
	for i, s := range always(30 * gib) {
		pod := fmt.Sprintf("pod%d", i%3+1)
		byPod[pod] = append(byPod[pod], s)
	}
	dev := []Series{dcgm("DCGM_FI_DEV_FB_FREE", always(10*gib))}
	for pod, samples := range byPod {
		dev = append(dev, dcgm("DCGM_FI_DEV_FB_USED", samples, "exported_pod", pod, "exported_namespace", "ml", "pod", "exporter-x", "namespace", "gpu", "container", "exporter"))
	}
	got := FoldHour(inv, dev, hour0, Settings{})
	check(t, got, used, want{"pod1", ReplicaRequest, fullHour / 4}, want{"pod2", ReplicaRequest, fullHour / 4},
		want{"pod3", ReplicaRequest, fullHour / 4}, want{"slot_held", NoMethod, fullHour / 4})
	if p := partOf(t, got); p.MeasuredMicros != fullHour {
		t.Errorf("measured %d µs", p.MeasuredMicros)
	}
}

// #725: a pod's whole 10,056 MiB repeated for each of its slots.
func TestRule04TotalRepeatedForEachSlot(t *testing.T) {
	inv := join(testNode(4), testPod("a", -2000, 9000, "nvidia_com_gpu", 2))
	dev := []Series{
		dcgm("DCGM_FI_DEV_FB_USED", always(10_076)), dcgm("DCGM_FI_DEV_FB_FREE", always(30_308)),
		perProcess("a", always(10_056), "vgpu", "5"), perProcess("a", always(10_056), "vgpu", "19"),
	}
	p := partOf(t, FoldHour(inv, dev, hour0, Settings{}))
	// The device's 20 MiB beyond it are within the tolerance, and spread by use.
	if r := rowOf(t, p, "a"); r.Method != ProcessUID || r.Replicas != 2 || r.UsedByteSeconds != 3600*10_076<<20 || r.SpreadMicros == 0 {
		t.Errorf("%+v", r)
	}
}

// PR #594: the device's series stays beside the pods': it is the cap, not a further user.
func TestRule05DeviceSeriesBesidePods(t *testing.T) {
	inv := join(testNode(4), running("a", "b"))
	dev := []Series{
		dcgm("DCGM_FI_DEV_FB_USED", always(20*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(20*gib)),
		perProcess("a", always(12*gib)), perProcess("b", always(8*gib)),
		// All other families are copies of the device's.
		dcgm("DCGM_FI_DEV_FB_FREE", always(20*gib), "pod", "a", "namespace", "ml", "pod_uid", "uid-a"),
	}
	check(t, FoldHour(inv, dev, hour0, Settings{}), used, want{"a", ProcessUID, fullHour * 12 / 40}, want{"b", ProcessUID, fullHour * 8 / 40}, want{"unallocated", NoMethod, fullHour / 2})
}

// #428, #237: at one instant two pods are named, as one ends and the next begins: the one
// that runs by kube-state-metrics has the GPU, and its figure is measured as ever.
func TestRule20TwoPodsAtOneInstant(t *testing.T) {
	inv := join(testNode(1), testPod("a", -2000, 1800, "nvidia_com_gpu", 1), testPod("b", 1800, 9000, "nvidia_com_gpu", 1))
	dev := []Series{
		labelled("a", sampled(step{-900, 1890, 10 * gib})), labelled("b", sampled(step{1800, 4500, 10 * gib})),
		dcgm("DCGM_FI_DEV_FB_FREE", always(30*gib)),
	}
	got := FoldHour(inv, dev, hour0, Settings{})
	check(t, got, maxNone, want{"a", SoleHolder, fullHour / 2}, want{"b", SoleHolder, fullHour / 2})
	if r := rowOf(t, partOf(t, got), "b"); r.Flags&FlagCopied != 0 {
		t.Error("called a copy")
	}
}

// gpu-monitoring-tools#174: two exporters on one node, every series twice.
func TestRule21TwoExporters(t *testing.T) {
	inv := join(testNode(2), running("a", "b"))
	var dev []Series
	for _, instance := range []string{"10.0.0.1:9400", "10.0.0.1:9445"} {
		l := []string{"instance", instance, "job", "job-" + instance}
		dev = append(dev, dcgm("DCGM_FI_DEV_FB_USED", always(20*gib), l...), dcgm("DCGM_FI_DEV_FB_FREE", always(20*gib), l...),
			perProcess("a", always(15*gib), l...), perProcess("b", always(5*gib), l...))
	}
	got := FoldHour(inv, dev, hour0, Settings{})
	check(t, got, used, want{"a", ProcessUID, fullHour * 15 / 40}, want{"b", ProcessUID, fullHour * 5 / 40}, want{"slot_held", NoMethod, fullHour / 2})
	if n := len(got.Nodes[0].Devices); n != 1 {
		t.Errorf("%d devices", n)
	}
}

// What another exporter shows of the device, scraped at the same instant or not, does not
// make copies of its figure the pods' own.
func TestRule21AnotherExporterBesideCopies(t *testing.T) {
	for name, shift := range map[string]int64{"at once": 0, "7 s later": 7000} {
		smi := Series{Metric: "nvidia_smi_memory_used_bytes", Labels: map[string]string{"uuid": testUUID[4:], "instance": "n1:9835", "Hostname": "n1"}}
		for _, x := range always(20.5 * gib * (1 << 20)) {
			smi.Samples = append(smi.Samples, Sample{x.UnixMilli + shift, x.Value})
		}
		from := []string{"instance", "n1:9400"}
		free := dcgm("DCGM_FI_DEV_FB_FREE", always(20*gib), from...)
		got := FoldHour(join(testNode(2), running("a", "b")), []Series{labelled("a", always(20*gib), from...), labelled("b", always(20*gib), from...), free, smi}, hour0, Settings{})
		for _, pod := range []string{"a", "b"} {
			if r := rowOf(t, partOf(t, got), pod); r.Method != ReplicaRequest || r.Flags&FlagCopied == 0 {
				t.Errorf("%s, %s: %v, flags %b", name, pod, r.Method, r.Flags)
			}
		}
		got = FoldHour(join(testNode(1), running("a")), []Series{labelled("a", always(20*gib), from...), free, smi}, hour0, Settings{})
		if r := rowOf(t, partOf(t, got), "a"); r.Method != SoleHolder {
			t.Errorf("%s: %v", name, r.Method)
		}
	}
}

// #127, #347, #175: a pod that requests no GPU has no metrics: what it uses is in the
// residual, and nobody else's.
func TestRule26UserWithoutRequest(t *testing.T) {
	inv := join(testNode(4), running("a"), testPod("sneaky", -2000, 9000, "", 0))
	dev := []Series{
		dcgm("DCGM_FI_DEV_FB_USED", always(20*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(20*gib)), perProcess("a", always(12*gib)),
	}
	check(t, FoldHour(inv, dev, hour0, Settings{}), used, want{"a", ProcessUID, fullHour * 12 / 40}, want{"unattributed", NoMethod, fullHour * 8 / 40}, want{"unallocated", NoMethod, fullHour / 2})
}

// go-nvml#75, #21, nvitop#75: driver 535.54 scrambles process ids and sizes. A size that
// no card has is dropped; what adds up to more than the device is scaled to it, and said.
func TestRule32ScrambledProcessMemory(t *testing.T) {
	inv := join(testNode(2), running("a", "b"))
	device := []Series{dcgm("DCGM_FI_DEV_FB_USED", always(20*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(20*gib))}
	got := FoldHour(inv, append(device, perProcess("a", always(30*gib)), perProcess("b", always(10*gib))), hour0, Settings{})
	check(t, got, used, want{"a", ProcessUID, fullHour * 15 / 40}, want{"b", ProcessUID, fullHour * 5 / 40}, want{"slot_held", NoMethod, fullHour / 2})
	if rowOf(t, partOf(t, got), "a").Flags&FlagOverReported == 0 {
		t.Error("not flagged")
	}
	got = FoldHour(inv, append(device, perProcess("a", always(5*gib)), perProcess("b", always(300*gib))), hour0, Settings{})
	if d := got.Nodes[0].Devices[0]; d.Dropped["impossible_size"] == 0 {
		t.Errorf("300 GiB of a process of a 40 GiB card kept: %v", d.Dropped)
	}
	check(t, got, used, want{"a", ProcessUID, fullHour * 5 / 40}, want{"b", ReplicaRequest, fullHour * 15 / 40}, want{"slot_held", NoMethod, fullHour / 2})
}

// nvtop#213, pynvml#63: managed memory is of no process: residual. That of §1.5's cards
// (20 MiB of an H100, 16 of an L40S) is within the tolerance and spread.
func TestRule33ManagedMemory(t *testing.T) {
	inv := join(testNode(2), running("a"))
	for _, c := range []struct {
		model                string
		total, device, pod   float64 // bytes
		residual, attributed bool
	}{
		{"NVIDIA H100 80GB HBM3", 85_018_542_080, 20_780_679_168, 20_759_707_648, false, true},
		{"NVIDIA L40S", 47_667_216_384, 1_294_991_360, 1_278_214_144, false, true},
		{"NVIDIA H100 80GB HBM3", 85_018_542_080, 20_780_679_168, 10_000_000_000, true, true},
	} {
		l := []string{"modelName", c.model}
		dev := []Series{
			dcgm("DCGM_FI_DEV_FB_USED_BYTES", always(c.device), l...), dcgm("DCGM_FI_DEV_FB_FREE_BYTES", always(c.total-c.device), l...),
			dcgm("DCGM_FI_DEV_FB_USED_BYTES", always(c.pod), append(l, "pod", "a", "namespace", "ml", "container", "c", "pod_uid", "uid-a")...),
		}
		p := partOf(t, FoldHour(inv, dev, hour0, Settings{}))
		residual := false
		for _, r := range p.Rows {
			if r.Category == Unattributed {
				residual = true
				if got, want := r.UsedByteSeconds, int64(c.device-c.pod)*3600; got != want {
					t.Errorf("%s: residual %d, want %d", c.model, got, want)
				}
			}
		}
		if residual != c.residual || (rowOf(t, p, "a").SpreadMicros > 0) == c.residual {
			t.Errorf("%s: residual %v, spread %d µs", c.model, residual, rowOf(t, p, "a").SpreadMicros)
		}
	}
}

// §1.4: per-process mode without hostPID: every pod is 0 and the device is full: by
// replicas, and said. A device that is next to empty is no failure.
func TestFailedMapping(t *testing.T) {
	inv := join(testNode(4), running("a", "b"))
	at := func(device float64) ClusterHour {
		return FoldHour(inv, []Series{
			dcgm("DCGM_FI_DEV_FB_USED", always(device)), dcgm("DCGM_FI_DEV_FB_FREE", always(40*gib-device)),
			perProcess("a", always(0)), perProcess("b", always(0)),
		}, hour0, Settings{})
	}
	got := at(40 * gib)
	check(t, got, used, want{"a", ReplicaRequest, fullHour / 2}, want{"b", ReplicaRequest, fullHour / 2})
	if rowOf(t, partOf(t, got), "a").Flags&FlagMappingFailed == 0 {
		t.Error("not flagged")
	}
	if r := rowOf(t, partOf(t, at(400)), "a"); r.Method != ProcessUID || r.Flags&FlagMappingFailed != 0 {
		t.Errorf("an empty device: %+v", r)
	}
}
