package gpu

import (
	"testing"
	"time"
)

// sharesOf adds up what each pod and category has of the hour's partitions, in seconds.
func sharesOf(t *testing.T, c ClusterHour) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	for _, n := range c.Nodes {
		for _, d := range n.Devices {
			for _, p := range d.Partitions {
				for _, r := range p.Rows {
					who := r.PodUID
					if who == "" {
						who = string(r.Category)
					}
					out[who] += r.Shares.MaxNone / 1_000_000
				}
			}
		}
	}
	return out
}

func wantShares(t *testing.T, got, want map[string]int64) {
	t.Helper()
	for who, s := range want {
		if got[who] != s {
			t.Errorf("%s has %d s, want %d", who, got[who], s)
		}
	}
	for who, s := range got {
		if _, ok := want[who]; !ok && s != 0 {
			t.Errorf("%s has %d s, not wanted", who, s)
		}
	}
}

func migNode() []Series {
	return []Series{
		ksm("kube_node_info", always(1), "node", "n1", "provider_id", "aws:///us-east-1a/i-1"),
		ksm("kube_node_labels", always(1), "node", "n1", "label_nvidia_com_gpu_count", "1", "label_nvidia_com_mig_strategy", "mixed"),
	}
}

func draNode() []Series {
	return []Series{
		ksm("kube_node_info", always(1), "node", "n1", "provider_id", "aws:///us-east-1a/i-1"),
		ksm("kube_node_labels", always(1), "node", "n1", "label_nvidia_com_gpu_count", "1"),
	}
}

func migSeries(metric, gi, profile string, samples []Sample) Series {
	return dcgm(metric, samples, "GPU_I_ID", gi, "GPU_I_PROFILE", profile, "modelName", "NVIDIA A100-SXM4-40GB")
}

// A pod that is on an instance by its request stays on it when another instance is made
// beside it.
func TestRequestOutlivesAGeometry(t *testing.T) {
	later := sampled(step{1200, 9000, 100})
	dev := []Series{
		migSeries("DCGM_FI_DEV_FB_USED", "1", "3g.20gb", always(100)), migSeries("DCGM_FI_DEV_FB_FREE", "1", "3g.20gb", always(20_000)),
		migSeries("DCGM_FI_DEV_FB_USED", "2", "2g.10gb", later), migSeries("DCGM_FI_DEV_FB_FREE", "2", "2g.10gb", later),
	}
	got := FoldHour(join(migNode(), testPod("a", -2000, 9000, "nvidia_com_mig_3g_20gb", 1)), dev, hour0, Settings{})
	if s := sharesOf(t, got); s["uid-a"] != 3_600 {
		t.Errorf("%v", s)
	}
}

// Two pods that ask for one profile are on two instances of its size, though one has the
// wrong name.
func TestLikeSizedInstance(t *testing.T) {
	dev := []Series{
		migSeries("DCGM_FI_DEV_FB_USED", "1", "1g.5gb", always(100)), migSeries("DCGM_FI_DEV_FB_FREE", "1", "1g.5gb", always(4_900)),
		migSeries("DCGM_FI_DEV_FB_USED", "2", "1g.6gb", always(100)), migSeries("DCGM_FI_DEV_FB_FREE", "2", "1g.6gb", always(4_900)),
	}
	inv := join(migNode(), testPod("a", -2000, 9000, "nvidia_com_mig_1g_5gb", 1), testPod("b", -2000, 9000, "nvidia_com_mig_1g_5gb", 1))
	wantShares(t, sharesOf(t, FoldHour(inv, dev, hour0, Settings{})), map[string]int64{"uid-a": 3_600, "uid-b": 3_600})
}

func claimSeries(pod, claim, device string, mib float64) Series {
	return perProcess(pod, always(mib), "dra_claim_name", claim, "dra_claim_namespace", "ml", "dra_pool_name", "n1", "dra_device_name", device)
}

func claimInfo(pod, claim string) Series {
	return ksm("kube_pod_resourceclaim_info", always(1), "namespace", "ml", "pod", pod, "uid", "uid-"+pod, "resourceclaim_name", claim)
}

func claimDevice(claim, driver, device string, bytes float64) []Series {
	l := []string{"namespace", "ml", "name", claim, "driver", driver, "pool", "n1", "device", device}
	out := []Series{ksm(ClaimDeviceMetric, always(1), l...)}
	if bytes > 0 {
		out = append(out, ksm(ClaimCapacityMetric, always(bytes), l...))
	}
	return out
}

func TestClaims(t *testing.T) {
	const gi = float64(1 << 30)
	device := []Series{dcgm("DCGM_FI_DEV_FB_USED", always(8*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(32*gib))}
	a, b := testPod("a", -2000, 9000, "", 0), testPod("b", -2000, 9000, "", 0)
	for _, c := range []struct {
		name     string
		inv, dev []Series
		want     map[string]int64
	}{
		{
			"a network card beside a GPU's holder",
			join(a, b, []Series{claimInfo("a", "gpu"), claimInfo("b", "nic")}, claimDevice("gpu", "gpu.nvidia.com", "gpu-0", 0), claimDevice("nic", "dra.net", "eth1", 0)),
			append([]Series{claimSeries("a", "gpu", "gpu-0", 8*gib)}, device...),
			map[string]int64{"uid-a": 3_600},
		},
		{
			"a claim that the inventory alone shows does not share a device that another holds",
			join(a, b, []Series{claimInfo("b", "other")}, claimDevice("other", "gpu.nvidia.com", "gpu-1", 0)),
			append([]Series{claimSeries("a", "gpu", "gpu-0", 8*gib)}, device...),
			map[string]int64{"uid-a": 3_600},
		},
		{
			"capacity that the inventory alone shows",
			join(a, b, []Series{claimInfo("a", "ten"), claimInfo("b", "twenty")}, claimDevice("ten", "gpu.nvidia.com", "gpu-0", 10*gi), claimDevice("twenty", "gpu.nvidia.com", "gpu-0", 20*gi)),
			device,
			map[string]int64{"uid-a": 900, "uid-b": 1_800, "unallocated": 900},
		},
		{
			"two claims of one pod on one device",
			join(a, b, claimDevice("one", "gpu.nvidia.com", "gpu-0", 10*gi), claimDevice("two", "gpu.nvidia.com", "gpu-0", 10*gi), claimDevice("three", "gpu.nvidia.com", "gpu-0", 10*gi)),
			append([]Series{claimSeries("a", "one", "gpu-0", 4*gib), claimSeries("a", "two", "gpu-0", 4*gib), claimSeries("b", "three", "gpu-0", 4*gib)}, device...),
			map[string]int64{"uid-a": 1_800, "uid-b": 900, "unallocated": 900},
		},
		{
			"a claim of its own beside one that is shared",
			join(a, b, claimDevice("own", "gpu.nvidia.com", "gpu-0", 10*gi), claimDevice("both", "gpu.nvidia.com", "gpu-0", 10*gi)),
			append([]Series{claimSeries("a", "own", "gpu-0", 4*gib), claimSeries("a", "both", "gpu-0", 4*gib), claimSeries("b", "both", "gpu-0", 4*gib)}, device...),
			map[string]int64{"uid-a": 900, "uid-b": 360, "claim_idle": 540, "unallocated": 1_800},
		},
		{
			"more capacity than the device has",
			join(a, b, claimDevice("both", "gpu.nvidia.com", "gpu-0", 1e18)),
			append([]Series{claimSeries("a", "both", "gpu-0", 4*gib), claimSeries("b", "both", "gpu-0", 4*gib)}, device...),
			map[string]int64{"uid-a": 360, "uid-b": 360, "claim_idle": 2_880},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			wantShares(t, sharesOf(t, FoldHour(join(draNode(), c.inv), c.dev, hour0, Settings{})), c.want)
		})
	}
}

// A machine that takes over a name has its own GPU, and its predecessor's is not its.
func TestMachineAfterAnother(t *testing.T) {
	for _, gap := range []int{0, 30, 60, 180} {
		half, after := 1_800, 1_800+gap
		node := func(id string, from, to int) []Series {
			return []Series{ksm("kube_node_info", sampled(step{from, to, 1}), "node", "n1", "provider_id", "aws:///us-east-1a/"+id)}
		}
		on := func(uuid, pod string, from, to int) []Series {
			l := []string{"UUID", uuid, "pod", pod, "namespace", "ml", "container", "c"}
			return []Series{dcgm("DCGM_FI_DEV_FB_USED", sampled(step{from, to, 100}), l...), dcgm("DCGM_FI_DEV_FB_FREE", sampled(step{from, to, 40_000}), l...)}
		}
		inv := join(
			[]Series{ksm("kube_node_labels", always(1), "node", "n1", "label_node_kubernetes_io_instance_type", "g6.xlarge", "label_nvidia_com_gpu_replicas", "1")},
			node("i-1", -2000, half), node("i-2", half, 9000), testPod("a", -2000, half, "nvidia_com_gpu", 1), testPod("b", half, 9000, "nvidia_com_gpu", 1))
		got := FoldHour(inv, join(on("GPU-a", "a", -2000, half), on("GPU-b", "b", after, 9000)), hour0, Settings{})
		if len(got.Nodes) != 2 || len(got.Nodes[0].Devices) != 1 || len(got.Nodes[1].Devices) != 1 {
			t.Fatalf("gap %d: %+v", gap, got.Nodes)
		}
		if s := sharesOf(t, got); s["uid-a"] != 1_800 || s["uid-b"] < 1_700 {
			t.Errorf("gap %d: %v", gap, s)
		}
	}
}

func cadvisor(metric, container string, samples []Sample, kv ...string) Series {
	return ksm(metric, samples, append([]string{"namespace", "ml", "pod", "a", "container", container}, kv...)...)
}

func counter(from, to int, perSecond float64) []Sample {
	var out []Sample
	for _, x := range sampled(step{from, to, 0}) {
		out = append(out, Sample{x.UnixMilli, float64(x.UnixMilli-hour0.UnixMilli())/1000*perSecond + 1e6})
	}
	return out
}

func TestUsage(t *testing.T) {
	const gi = float64(1 << 30)
	for _, c := range []struct {
		name        string
		series      []Series
		from        int
		cpu, memory int64
	}{
		{"one container", []Series{cadvisor(cpuMetric, "c", counter(-900, 4500, 0.5)), cadvisor(memoryMetric, "c", always(4*gi))}, -2000, 500, 4 << 30},
		{
			"scraped by two jobs",
			[]Series{
				cadvisor(cpuMetric, "c", counter(-900, 4500, 0.5), "job", "x"), cadvisor(cpuMetric, "c", counter(-900, 4500, 0.5), "job", "y"),
				cadvisor(memoryMetric, "c", always(4*gi), "job", "x"), cadvisor(memoryMetric, "c", always(4*gi), "job", "y"),
			},
			-2000, 500, 4 << 30,
		},
		{"seen for a quarter of the hour", []Series{cadvisor(cpuMetric, "c", counter(-900, 900, 0.5)), cadvisor(memoryMetric, "c", sampled(step{-900, 900, 4 * gi}))}, -2000, 500, 4 << 30},
		{"two containers", []Series{cadvisor(cpuMetric, "c", counter(-900, 4500, 0.5)), cadvisor(cpuMetric, "d", counter(-900, 4500, 0.25))}, -2000, 750, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			inv := join(testNode(1), testPod("a", c.from, 9000, "nvidia_com_gpu", 1), c.series)
			got := FoldHour(inv, nil, hour0, Settings{Usage: true})
			u := got.Nodes[0].Pods[0]
			if u.CPUUsedMilli != c.cpu || u.MemoryUsed != c.memory {
				t.Errorf("%d m, %d bytes", u.CPUUsedMilli, u.MemoryUsed)
			}
		})
	}
}

// Quantities that no node has neither stop the fold nor wrap around.
func TestAbsurdQuantities(t *testing.T) {
	done := make(chan ClusterHour, 1)
	go func() {
		inv := join(testNode(1), testPod("a", -2000, 9000, "nvidia_com_gpu", 1_000_000_000_000), testPod("b", -2000, 9000, "memory", 1<<62), testPod("c", -2000, 9000, "nvidia_com_mig_1g_5gb", 1_000_000_000))
		done <- FoldHour(inv, nil, hour0, Settings{})
	}()
	select {
	case got := <-done:
		for _, u := range got.Nodes[0].Pods {
			if u.PodUID == "uid-b" && u.Memory <= 0 {
				t.Errorf("%+v", u)
			}
		}
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
}

// Limits on a card whose size nobody tells still say who holds how much of what is known.
func TestLimitsOnACardOfUnknownSize(t *testing.T) {
	const mb = float64(1 << 20)
	hami := func(metric, pod string, bytes float64) Series {
		return Series{Metric: metric, Labels: map[string]string{"namespace": "ml", "pod": pod, "container": "c", "vdevice_index": "0", "device_uuid": "GPU-x", "node": "n1"}, Samples: always(bytes)}
	}
	dev := []Series{
		hami("hami_vgpu_memory_used_bytes", "a", 0), hami("hami_vgpu_memory_limit_bytes", "a", 1_000*mb),
		hami("hami_vgpu_memory_used_bytes", "b", 2_048), hami("hami_vgpu_memory_limit_bytes", "b", 3_000*mb),
	}
	inv := join([]Series{ksm("kube_node_info", always(1), "node", "n1", "provider_id", "aws:///us-east-1a/i-1")}, testPod("a", -2000, 9000, "nvidia_com_gpu", 1), testPod("b", -2000, 9000, "nvidia_com_gpu", 1))
	got := FoldHour(inv, dev, hour0, Settings{})
	wantShares(t, sharesOf(t, got), map[string]int64{"uid-a": 900, "uid-b": 2_700})
	for _, r := range got.Nodes[0].Devices[0].Partitions[0].Rows {
		if r.Method < ReplicaRequest {
			t.Errorf("%s: %s is no measurement", r.PodUID, r.Method)
		}
	}
}

// A card of the two of n1, by number, as the exporter writes it.
func cardOf(k string, used float64, kv ...string) []Series {
	l := append([]string{"UUID", "GPU-00000000-0000-0000-0000-00000000000" + k, "gpu", k}, kv...)
	return []Series{dcgm("DCGM_FI_DEV_FB_USED", always(used), l...), dcgm("DCGM_FI_DEV_FB_FREE", always(40960-used), l...)}
}

func twoCards() []Series {
	return []Series{
		ksm("kube_node_info", always(1), "node", "n1", "provider_id", "aws:///us-east-1a/i-1"),
		ksm("kube_node_labels", always(1), "node", "n1", "label_nvidia_com_gpu_count", "2"),
	}
}

// What a series says about a claim's device holds for those whose claims no series names.
func TestClaimsBesideANamedOne(t *testing.T) {
	named := cardOf("1", 16384, "pod", "a", "namespace", "ml", "container", "c", "pod_uid", "uid-a",
		"dra_claim_name", "c", "dra_claim_namespace", "ml", "dra_pool_name", "n1", "dra_device_name", "gpu-0")
	free := cardOf("2", 0)
	a, b := testPod("a", -2000, 9000, "", 0), testPod("b", -2000, 9000, "", 0)
	for _, c := range []struct {
		name string
		ksm  []Series
		want map[string]int64
	}{
		{
			"one claim, two pods: half of what is used each, and the other card is nobody's", join(a, b,
				[]Series{claimInfo("a", "c"), claimInfo("b", "c")}, claimDevice("c", "gpu.nvidia.com", "gpu-0", 0)),
			map[string]int64{"uid-a": 720, "uid-b": 720, "claim_idle": 2160, "unallocated": 3600},
		},
		{
			"one pod, two claims: the second is the other card", join(a,
				[]Series{claimInfo("a", "c"), claimInfo("a", "d")}, claimDevice("c", "gpu.nvidia.com", "gpu-0", 0),
				claimDevice("d", "gpu.nvidia.com", "gpu-1", 0)),
			map[string]int64{"uid-a": 7200},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			wantShares(t, sharesOf(t, FoldHour(join(twoCards(), c.ksm), join(named, free), hour0, Settings{})), c.want)
		})
	}
}

// A claim of an instance that no series shows is not put on a card that happens to be free.
func TestUnseenInstanceTakesNoWholeCard(t *testing.T) {
	cut := []Series{
		migSeries("DCGM_FI_DEV_FB_USED", "1", "3g.20gb", always(100)), migSeries("DCGM_FI_DEV_FB_FREE", "1", "3g.20gb", always(20000)),
		migSeries("DCGM_FI_DEV_FB_USED", "2", "4g.20gb", always(100)), migSeries("DCGM_FI_DEV_FB_FREE", "2", "4g.20gb", always(20000)),
	}
	got := sharesOf(t, FoldHour(join(twoCards(), testPod("a", -2000, 9000, "", 0), []Series{claimInfo("a", "c")},
		claimDevice("c", "gpu.nvidia.com", "gpu-0-mig-9-0-4", 0)), join(cut, cardOf("2", 0)), hour0, Settings{}))
	if got["uid-a"] != 0 {
		t.Errorf("a has %d s of a card that its claim does not name", got["uid-a"])
	}
}

// One instance whose profile is renamed half-way is one instance at a time: its halves add up
// to the hour.
func TestProfileRenamedWithinAnHour(t *testing.T) {
	spell := func(profile string, from, to int) []Series {
		s := sampled(step{from, to, 1000})
		return []Series{migSeries("DCGM_FI_DEV_FB_FREE", "9", profile, s), dcgm("DCGM_FI_DEV_FB_USED", s, "GPU_I_ID", "9",
			"GPU_I_PROFILE", profile, "modelName", "NVIDIA A100-SXM4-40GB", "pod", "a", "namespace", "ml", "container", "c")}
	}
	other := []Series{migSeries("DCGM_FI_DEV_FB_USED", "1", "3g.20gb", always(0)), migSeries("DCGM_FI_DEV_FB_FREE", "1", "3g.20gb", always(20000))}
	got := FoldHour(join(migNode(), testPod("a", -2000, 9000, "nvidia_com_mig_1g_5gb", 1)),
		join(other, spell("1g.5gb", -900, 1800), spell("1g.5gb+me", 1800, 4500)), hour0, Settings{})
	wantShares(t, sharesOf(t, got), map[string]int64{"uid-a": 3600, "unallocated": 3600})
}
