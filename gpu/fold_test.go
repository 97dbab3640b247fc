package gpu

import (
	"fmt"
	"math/rand"
	"reflect"
	"testing"
)

// O01: 20, 10 and 6 of 40; the device's own series is kept beside the pods'.
func TestThreePodsAreNot300Percent(t *testing.T) {
	inv := join(testNode(4), testPod("a", -2000, 9000, "nvidia_com_gpu", 1), testPod("b", -2000, 9000, "nvidia_com_gpu", 1), testPod("c", -2000, 9000, "nvidia_com_gpu", 1))
	dev := []Series{
		dcgm("DCGM_FI_DEV_FB_USED", always(36*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(4*gib)),
		perProcess("a", always(20*gib)), perProcess("b", always(10*gib)), perProcess("c", always(6*gib)),
	}
	check(t, FoldHour(inv, dev, hour0, Settings{}), used, want{"a", ProcessUID, fullHour / 2}, want{"b", ProcessUID, fullHour / 4},
		want{"c", ProcessUID, fullHour * 6 / 40}, want{"unallocated", NoMethod, fullHour / 10})
}

// O01 with copies only: the device's 36 appears at each pod, and is split by the
// replicas held; never three times.
func TestCopiesAreOneFigure(t *testing.T) {
	inv := join(testNode(4), testPod("a", -2000, 9000, "nvidia_com_gpu", 1), testPod("b", -2000, 9000, "nvidia_com_gpu", 1), testPod("c", -2000, 9000, "nvidia_com_gpu", 1))
	dev := []Series{dcgm("DCGM_FI_DEV_FB_FREE", always(4*gib))}
	for i, n := range []string{"a", "b", "c"} {
		dev = append(dev, dcgm("DCGM_FI_DEV_FB_USED", always(36*gib), "pod", n, "namespace", "ml", "container", "c", "vgpu", fmt.Sprint(i)))
	}
	got := FoldHour(inv, dev, hour0, Settings{})
	check(t, got, used, want{"a", ReplicaRequest, fullHour * 3 / 10}, want{"b", ReplicaRequest, fullHour * 3 / 10},
		want{"c", ReplicaRequest, fullHour * 3 / 10}, want{"unallocated", NoMethod, fullHour / 10})
	if got.Nodes[0].Devices[0].Partitions[0].Rows[0].Flags&FlagCopied == 0 {
		t.Error("not flagged as copied")
	}
}

// One arbitrary labelled pod while four hold a slot: the label says nothing.
func TestArbitraryLabel(t *testing.T) {
	inv := testNode(4)
	for _, n := range []string{"a", "b", "c", "d"} {
		inv = append(inv, testPod(n, -2000, 9000, "nvidia_com_gpu", 1)...)
	}
	dev := []Series{
		dcgm("DCGM_FI_DEV_FB_FREE", always(4*gib), "pod", "a", "namespace", "ml", "container", "c"),
		dcgm("DCGM_FI_DEV_FB_USED", always(36*gib), "pod", "a", "namespace", "ml", "container", "c"),
	}
	nine := fullHour * 9 / 40
	check(t, FoldHour(inv, dev, hour0, Settings{}), used, want{"a", ReplicaRequest, nine}, want{"b", ReplicaRequest, nine},
		want{"c", ReplicaRequest, nine}, want{"d", ReplicaRequest, nine}, want{"slot_held", NoMethod, fullHour / 10})
}

// O02 on its three bases: R = 4, a uses 30 of 40, b holds a slot and uses none.
func TestTimeSlicingBases(t *testing.T) {
	inv := join(testNode(4), testPod("a", -2000, 9000, "nvidia_com_gpu", 1), testPod("b", -2000, 9000, "nvidia_com_gpu", 1))
	dev := []Series{
		dcgm("DCGM_FI_DEV_FB_USED", always(30*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(10*gib)),
		perProcess("a", always(30*gib)), perProcess("b", always(0)),
	}
	got := FoldHour(inv, dev, hour0, Settings{})
	check(t, got, used, want{"a", ProcessUID, fullHour * 3 / 4}, want{"unallocated", NoMethod, fullHour / 4})
	check(t, got, requestReplica, want{"a", ProcessUID, fullHour / 4}, want{"b", ProcessUID, fullHour / 4}, want{"unallocated", NoMethod, fullHour / 2})
	check(t, got, maxReplica, want{"a", ProcessUID, fullHour * 3 / 4}, want{"b", ProcessUID, fullHour / 4})
}

// O04: a from 0 to 2400 s with 10, b from 1200 to 3600 s with 20.
func TestStartAndStop(t *testing.T) {
	inv := join(testNode(4), testPod("a", 0, 2400, "nvidia_com_gpu", 1), testPod("b", 1200, 9000, "nvidia_com_gpu", 1))
	dev := []Series{
		dcgm("DCGM_FI_DEV_FB_USED", sampled(step{-900, 0, 0}, step{0, 1200, 10 * gib}, step{1200, 2400, 30 * gib}, step{2400, 4500, 20 * gib})),
		dcgm("DCGM_FI_DEV_FB_FREE", sampled(step{-900, 0, 40 * gib}, step{0, 1200, 30 * gib}, step{1200, 2400, 10 * gib}, step{2400, 4500, 20 * gib})),
		perProcess("a", sampled(step{0, 2400, 10 * gib})), perProcess("b", sampled(step{1200, 4500, 20 * gib})),
	}
	check(t, FoldHour(inv, dev, hour0, Settings{}), used, want{"a", ProcessUID, fullHour / 6}, want{"b", ProcessUID, fullHour / 3}, want{"unallocated", NoMethod, fullHour / 2})
}

// O05: oversubscribed in the first half (10 used with a floor of 40 against 10):
// normalising at each instant gives 2.1 and 0.9 of 4.
func TestPointwise(t *testing.T) {
	pp := &placedPart{Partition: Partition{Mode: ModeTimeSlicing, Replicas: 0, UsableBytes: 40 << 30, PresentMicros: fullHour}, data: newReadings(nil)}
	pp.present = []interval{{0, fullHour}}
	pp.data.perPod = true
	cell1 := func(v uint64, from, to int64) cell { return cell{interval{from, to}, v << 30} }
	half := fullHour / 2
	pp.holders = []*holder{
		{uid: "uid-a", replicas: 1, byUID: true, life: interval{0, fullHour}, trail: trail{cells: []cell{cell1(40, 0, half), cell1(10, half, fullHour)}}},
		{uid: "uid-b", replicas: 1, byUID: true, life: interval{0, fullHour}, trail: trail{cells: []cell{cell1(10, 0, fullHour)}}},
	}
	rows := integrate(pp, interval{0, fullHour})
	got := ClusterHour{Nodes: []NodeHour{{Devices: []Device{{Partitions: []Partition{{Rows: rows, PresentMicros: fullHour}}}}}}}
	// 40/50 and 10/50 for half the hour, 10/40 each for the other.
	check(t, got, used, want{"a", ProcessUID, fullHour * 21 / 40}, want{"b", ProcessUID, fullHour * 9 / 40}, want{"unallocated", NoMethod, fullHour / 4})
}

// O06: usable memory excludes what the driver keeps, and the difference between
// the device and its processes is nobody's.
func TestDriverReservedAndUnattributed(t *testing.T) {
	inv := join(testNode(4), testPod("a", -2000, 9000, "nvidia_com_gpu", 1), testPod("b", -2000, 9000, "nvidia_com_gpu", 1))
	dev := []Series{
		dcgm("DCGM_FI_DEV_FB_USED", always(30000)), dcgm("DCGM_FI_DEV_FB_FREE", always(10448)),
		dcgm("DCGM_FI_DEV_FB_TOTAL", always(40960)), dcgm("DCGM_FI_DEV_FB_RESERVED", always(512)),
		perProcess("a", always(20000)), perProcess("b", always(9000)),
	}
	got := FoldHour(inv, dev, hour0, Settings{})
	if m := got.Nodes[0].Devices[0].Partitions[0].UsableBytes; m != 40448<<20 {
		t.Fatalf("usable %d", m>>20)
	}
	of := func(mib int64) int64 { return fullHour * mib / 40448 }
	check(t, got, used, want{"a", ProcessUID, of(20000)}, want{"b", ProcessUID, of(9000)}, want{"unattributed", NoMethod, of(1000)}, want{"unallocated", NoMethod, of(10448)})
}

// Every pod shows 0 while the device is full: not a bill of zeros.
func TestMappingFailed(t *testing.T) {
	inv := join(testNode(2), testPod("a", -2000, 9000, "nvidia_com_gpu", 1), testPod("b", -2000, 9000, "nvidia_com_gpu", 1))
	dev := []Series{
		dcgm("DCGM_FI_DEV_FB_USED", always(30*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(10*gib)),
		perProcess("a", always(0)), perProcess("b", always(0)),
	}
	got := FoldHour(inv, dev, hour0, Settings{})
	check(t, got, used, want{"a", ReplicaRequest, fullHour * 15 / 40}, want{"b", ReplicaRequest, fullHour * 15 / 40}, want{"slot_held", NoMethod, fullHour / 4})
	if got.Nodes[0].Devices[0].Partitions[0].Rows[0].Flags&FlagMappingFailed == 0 {
		t.Error("not flagged")
	}
}

// O13: 45 minutes measured at 20 of 40, then 15 without data at a quarter.
func TestGap(t *testing.T) {
	inv := join(testNode(4), testPod("a", -2000, 9000, "nvidia_com_gpu", 1))
	s := sampled(step{-900, 2640, 20 * gib}) // the last sample, at 2625 s, holds 75 s
	dev := []Series{dcgm("DCGM_FI_DEV_FB_USED", s), perProcess("a", s), dcgm("DCGM_FI_DEV_FB_FREE", s)}
	got := FoldHour(inv, dev, hour0, Settings{})
	check(t, got, used, want{"a", ProcessUID, 2700 * 1e6 / 2}, want{"a", ReplicaRequest, 900 * 1e6 / 4}, want{"unallocated", NoMethod, 2700*1e6/2 + 900*1e6*3/4})
}

// A GPU that no series shows is still there: held by the pod that requested it,
// or without telemetry.
func TestMissingSeries(t *testing.T) {
	inv := join(testNode(1), testPod("a", 0, 1800, "nvidia_com_gpu", 1))
	check(t, FoldHour(inv, nil, hour0, Settings{}), maxNone, want{"a", ReplicaRequest, fullHour / 2}, want{"no_telemetry", NoMethod, fullHour / 2})
}

// The node joins at 2,400 s: before it there is no present time to share out.
func TestNodeAppears(t *testing.T) {
	inv := []Series{
		ksm("kube_node_info", always(1), "node", "other", "provider_id", "aws:///us-east-1a/i-2"),
		ksm("kube_node_info", sampled(step{2400, 4500, 1}), "node", "n1", "provider_id", "aws:///us-east-1a/i-1"),
		ksm("kube_node_labels", sampled(step{2400, 4500, 1}), "node", "n1", "label_nvidia_com_gpu_count", "1", "label_nvidia_com_gpu_replicas", "1"),
	}
	dev := []Series{dcgm("DCGM_FI_DEV_FB_USED", sampled(step{2500, 4500, 0})), dcgm("DCGM_FI_DEV_FB_FREE", sampled(step{2500, 4500, 40 * gib}))}
	got := FoldHour(inv, dev, hour0, Settings{})
	nh := got.Nodes[0]
	if nh.ReadyMicros != 1200*1e6 || nh.UncoveredMicros != 0 {
		t.Errorf("ready %d, uncovered %d", nh.ReadyMicros, nh.UncoveredMicros)
	}
}

// Blank values and impossible sizes are no measurements.
func TestDropped(t *testing.T) {
	inv := join(testNode(1), testPod("a", -2000, 9000, "nvidia_com_gpu", 1))
	dev := []Series{
		dcgm("DCGM_FI_DEV_FB_USED", sampled(step{-900, 1800, 9223372036854775794}, step{1800, 4500, 1000}), "pod", "a", "namespace", "ml"),
		dcgm("DCGM_FI_DEV_FB_FREE", always(200000)), dcgm("DCGM_FI_DEV_FB_RESERVED", always(-1)),
	}
	d := FoldHour(inv, dev, hour0, Settings{}).Nodes[0].Devices[0]
	if d.Dropped["blank"] == 0 || d.Dropped["impossible_size"] == 0 || d.Dropped["negative"] == 0 {
		t.Errorf("dropped %v", d.Dropped)
	}
}

// Order of series changes nothing.
func TestOrderIndependent(t *testing.T) {
	inv := join(testNode(4), testPod("a", 0, 2400, "nvidia_com_gpu", 1), testPod("b", 1200, 9000, "nvidia_com_gpu", 2))
	dev := []Series{
		dcgm("DCGM_FI_DEV_FB_USED", always(25*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(15*gib)),
		perProcess("a", sampled(step{0, 2400, 10 * gib})), perProcess("b", sampled(step{1200, 4500, 14 * gib}), "vgpu", "1"), perProcess("b", sampled(step{1200, 4500, 14 * gib}), "vgpu", "2"),
	}
	first := FoldHour(inv, dev, hour0, Settings{})
	for seed := range int64(20) {
		r := rand.New(rand.NewSource(seed))
		r.Shuffle(len(inv), func(i, j int) { inv[i], inv[j] = inv[j], inv[i] })
		r.Shuffle(len(dev), func(i, j int) { dev[i], dev[j] = dev[j], dev[i] })
		if again := FoldHour(inv, dev, hour0, Settings{}); !reflect.DeepEqual(again.Nodes, first.Nodes) {
			t.Fatalf("seed %d differs", seed)
		}
	}
}

// A StatefulSet's pod is replaced at 1,800 s under the same name: two pods, each with
// its own bytes, though the exporter names them alike and gives no UID.
func TestNameUsedAgain(t *testing.T) {
	inv := testNode(4)
	for _, p := range []struct {
		uid      string
		from, to int
	}{{"old", -2000, 1800}, {"new", 1800, 9000}} {
		for _, s := range testPod(p.uid, p.from, p.to, "nvidia_com_gpu", 1) {
			s.Labels["pod"] = "db-0"
			inv = append(inv, s)
		}
	}
	byName := func(samples []Sample) Series {
		return dcgm("DCGM_FI_DEV_FB_USED", samples, "pod", "db-0", "namespace", "ml", "container", "c", "vgpu", "0")
	}
	dev := []Series{
		dcgm("DCGM_FI_DEV_FB_USED", sampled(step{-900, 1800, 11 * gib}, step{1800, 4500, 21 * gib})), dcgm("DCGM_FI_DEV_FB_FREE", sampled(step{-900, 1800, 29 * gib}, step{1800, 4500, 19 * gib})),
		byName(sampled(step{-900, 1800, 10 * gib}, step{1800, 4500, 20 * gib})),
	}
	got := FoldHour(inv, dev, hour0, Settings{})
	check(t, got, used, want{"old", ProcessName, fullHour / 2 / 4}, want{"new", ProcessName, fullHour / 4},
		want{"unattributed", NoMethod, fullHour / 40}, want{"unallocated", NoMethod, fullHour - fullHour/8 - fullHour/4 - fullHour/40})
}

// With honorLabels off, the workload's labels are the exported_ ones, and the plain
// ones are the exporter's own: an idle GPU is not the monitoring team's.
func TestExportedLabels(t *testing.T) {
	inv := join(testNode(1), testPod("a", 0, 1800, "nvidia_com_gpu", 1))
	own := []string{"pod", "dcgm-exporter-x1", "namespace", "monitoring", "container", "exporter"}
	dev := []Series{
		dcgm("DCGM_FI_DEV_FB_USED", sampled(step{0, 1800, 30 * gib}), append([]string{"exported_pod", "a", "exported_namespace", "ml", "exported_container", "c"}, own...)...),
		dcgm("DCGM_FI_DEV_FB_USED", sampled(step{-900, 0, 0}, step{1800, 4500, 0}), own...),
		dcgm("DCGM_FI_DEV_FB_FREE", sampled(step{-900, 0, 40 * gib}, step{0, 1800, 10 * gib}, step{1800, 4500, 40 * gib}), own...),
	}
	check(t, FoldHour(inv, dev, hour0, Settings{}), maxNone, want{"a", SoleHolder, fullHour / 2}, want{"unallocated", NoMethod, fullHour / 2})
}

// Two replicas of Prometheus scrape a second apart: the device is one, measured all
// the time; the second between their samples is no scrape interval.
func TestShiftedReplicas(t *testing.T) {
	inv := join(testNode(4), testPod("a", -2000, 9000, "nvidia_com_gpu", 1))
	shifted := func(v float64) []Sample {
		var out []Sample
		for _, s := range always(v) {
			out = append(out, Sample{s.UnixMilli + 1000, s.Value})
		}
		return out
	}
	var dev []Series
	for replica, samples := range map[string]func(float64) []Sample{"a": always, "b": shifted} {
		dev = append(dev, dcgm("DCGM_FI_DEV_FB_USED", samples(10*gib), "prometheus_replica", replica), dcgm("DCGM_FI_DEV_FB_FREE", samples(30*gib), "prometheus_replica", replica),
			perProcess("a", samples(10*gib), "prometheus_replica", replica))
	}
	got := FoldHour(inv, dev, hour0, Settings{})
	check(t, got, used, want{"a", ProcessUID, fullHour / 4}, want{"unallocated", NoMethod, fullHour * 3 / 4})
	if p := got.Nodes[0].Devices[0].Partitions[0]; p.MeasuredMicros != fullHour {
		t.Errorf("measured %d", p.MeasuredMicros)
	}
}

// What happens after the hour is the next hour's: labels of a pod, of its namespace
// and of its node, and the machine behind a name.
func TestNeighbourhoodDoesNotLeak(t *testing.T) {
	during, after := sampled(step{-900, 3600, 1}), sampled(step{3600, 4500, 1})
	node := func(s []Sample, id, pool, strategy string) []Series {
		return []Series{
			ksm("kube_node_info", s, "node", "n1", "provider_id", "aws:///us-east-1a/"+id),
			ksm("kube_node_labels", s, "node", "n1", "label_nvidia_com_gpu_count", "1", "label_karpenter_sh_nodepool", pool, "label_nvidia_com_gpu_sharing_strategy", strategy, "label_nvidia_com_gpu_replicas", "4"),
		}
	}
	inv := join(node(during, "i-old", "a", "time-slicing"), node(after, "i-new", "b", "mps"), testPod("p", -2000, 9000, "nvidia_com_gpu", 1))
	for s, team := range map[*[]Sample]string{&during: "old", &after: "new"} {
		inv = append(inv, ksm("kube_pod_labels", *s, "namespace", "ml", "pod", "p", "uid", "uid-p", "label_team", team), ksm("kube_namespace_labels", *s, "namespace", "ml", "label_owner", team))
	}
	dev := []Series{dcgm("DCGM_FI_DEV_FB_USED", always(10*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(30*gib)), perProcess("p", always(10*gib))}
	got := FoldHour(inv, dev, hour0, Settings{})
	n := got.Nodes[0]
	if len(got.Nodes) != 1 || n.InstanceID != "i-old" || n.Pool != "a" || n.Devices[0].Partitions[0].Mode != ModeTimeSlicing || n.ReadyMicros != fullHour {
		t.Errorf("%d nodes: %s, pool %s, %s, ready %d", len(got.Nodes), n.InstanceID, n.Pool, n.Devices[0].Partitions[0].Mode, n.ReadyMicros)
	}
	if l := got.Inventory.Pods["uid-p"].Labels["team"]; l != "old" {
		t.Errorf("pod label %s", l)
	}
	if l := got.Inventory.Namespaces["ml"]["owner"]; l != "old" {
		t.Errorf("namespace label %s", l)
	}
}

// A Spot node's name is used again at 1,500 s by another machine with another GPU and
// another pod, after 300 s without any: each machine has its own.
func TestNodeNameUsedAgainWithinTheHour(t *testing.T) {
	old, fresh := sampled(step{-900, 1200, 1}), sampled(step{1500, 4500, 1})
	labels := func(s []Sample) Series {
		return ksm("kube_node_labels", s, "node", "n1", "label_nvidia_com_gpu_count", "1", "label_nvidia_com_gpu_replicas", "1", "label_nvidia_com_gpu_sharing_strategy", "none")
	}
	inv := join([]Series{
		ksm("kube_node_info", always(1), "node", "other", "provider_id", "aws:///us-east-1a/i-9"),
		ksm("kube_node_info", old, "node", "n1", "provider_id", "aws:///us-east-1a/i-old"), ksm("kube_node_info", fresh, "node", "n1", "provider_id", "aws:///us-east-1a/i-new"),
		labels(old), labels(fresh),
	}, testPod("a", -2000, 1200, "nvidia_com_gpu", 1), testPod("b", 1500, 9000, "nvidia_com_gpu", 1))
	var dev []Series
	for uuid, s := range map[string][]Sample{"GPU-old": old, "GPU-new": fresh} {
		pod := map[string]string{"GPU-old": "a", "GPU-new": "b"}[uuid]
		dev = append(dev, dcgm("DCGM_FI_DEV_FB_USED", s, "UUID", uuid, "pod", pod, "namespace", "ml", "container", "c"), dcgm("DCGM_FI_DEV_FB_FREE", s, "UUID", uuid))
	}
	got := FoldHour(inv, dev, hour0, Settings{})
	if len(got.Nodes) != 2 {
		t.Fatalf("%d machines", len(got.Nodes))
	}
	for i, w := range []struct {
		id, pod string
		ready   int64
	}{{"i-old", "uid-a", 1200 * 1e6}, {"i-new", "uid-b", 2100 * 1e6}} {
		n := got.Nodes[i]
		if n.InstanceID != w.id || n.ReadyMicros != w.ready || len(n.Devices) != 1 {
			t.Fatalf("%s: ready %d, %d devices", n.InstanceID, n.ReadyMicros, len(n.Devices))
		}
		for _, r := range n.Devices[0].Partitions[0].Rows {
			if r.PodUID != w.pod || r.Shares.MaxNone != w.ready {
				t.Errorf("%s: %+v", w.id, r)
			}
		}
	}
}

// Each machine of a name was created by itself: the second does not take the time of the
// first.
func TestMachinesCreatedApart(t *testing.T) {
	at := func(from, to, created int) Series {
		return ksm("kube_node_created", sampled(step{from, to, float64(hour0.Unix() + int64(created))}), "node", "n1")
	}
	created := at(-900, 1200, -5000)
	created.Samples = append(created.Samples, at(1500, 4500, 1480).Samples...)
	inv := join([]Series{
		ksm("kube_node_info", always(1), "node", "other", "provider_id", "aws:///us-east-1a/i-9"), created,
		ksm("kube_node_info", sampled(step{-900, 1200, 1}), "node", "n1", "provider_id", "aws:///us-east-1a/i-old"),
		ksm("kube_node_info", sampled(step{1500, 4500, 1}), "node", "n1", "provider_id", "aws:///us-east-1a/i-new"),
	}, testNode(1)[1:])
	got := FoldHour(inv, nil, hour0, Settings{}).Nodes
	if len(got) != 2 || got[0].InstanceID != "i-old" || got[0].ReadyMicros != 1200*1e6 || got[1].ReadyMicros != 2100*1e6 {
		t.Errorf("%+v", got)
	}
}

// A node that has no provider id yet is the machine that it turns out to be, also where
// its name was another's before.
func TestProviderIDComesLater(t *testing.T) {
	info := func(from, to int, id string) Series {
		s := ksm("kube_node_info", sampled(step{from, to, 1}), "node", "n1")
		if id != "" {
			s.Labels["provider_id"] = "aws:///us-east-1a/" + id
		}
		return s
	}
	base := append(testNode(1)[1:], ksm("kube_node_info", always(1), "node", "other", "provider_id", "aws:///us-east-1a/i-9"))
	got := FoldHour(join(base, []Series{info(-900, 300, "i-old"), info(600, 900, ""), info(900, 4500, "i-new")}), nil, hour0, Settings{}).Nodes
	if len(got) != 2 || got[0].InstanceID != "i-old" || got[0].ReadyMicros != 300*1e6 || got[1].InstanceID != "i-new" || got[1].ReadyMicros != 3000*1e6 {
		t.Errorf("%+v", got)
	}
	got = FoldHour(join(base, []Series{info(-900, 3000, "i-1"), info(3000, 4500, "")}), nil, hour0, Settings{}).Nodes
	if len(got) != 1 || got[0].InstanceID != "i-1" || got[0].ReadyMicros != fullHour {
		t.Errorf("lost again: %+v", got)
	}
}

// A node relabelled within the hour is of the mode and the pool it had longest.
func TestLongestLabelsOfTheHour(t *testing.T) {
	for at, pool := range map[int]string{120: "late", 3480: "early", 1800: "late"} {
		labels := func(pool string, from, to int) Series {
			return ksm("kube_node_labels", sampled(step{from, to, 1}), "node", "n1", "label_nvidia_com_gpu_count", "1", "label_karpenter_sh_nodepool", pool)
		}
		inv := join(testNode(1)[:1], []Series{labels("early", -900, at), labels("late", at, 4500)})
		if got := FoldHour(inv, nil, hour0, Settings{}).Nodes[0].Pool; got != pool {
			t.Errorf("relabelled after %d s: %s, want %s", at, got, pool)
		}
	}
}

// Two machines with one name at once are two clusters in one source; one after the
// other is a node replaced, even where the exporter's samples overlap a little.
func TestTwoMachinesAtOnce(t *testing.T) {
	machine := func(id string, from, to int) Series {
		return ksm("kube_node_info", sampled(step{from, to, 1}), "node", "n1", "provider_id", "aws:///us-east-1a/"+id)
	}
	base := testNode(1)[1:]
	at := func(s ...Series) []Clash { return FoldHour(join(base, s), nil, hour0, Settings{}).Clashes }
	if got := at(machine("i-1", -900, 4500), machine("i-2", -900, 4500)); len(got) != 1 || got[0] != (Clash{"n1", [2]string{"i-1", "i-2"}}) {
		t.Errorf("at once: %v", got)
	}
	if got := at(machine("i-1", -900, 1800), machine("i-2", 1700, 4500)); len(got) != 0 {
		t.Errorf("in turn: %v", got)
	}
}

// Without any device sample nothing is measured, whatever kube-state-metrics says.
func TestNothingMeasured(t *testing.T) {
	inv := join(testNode(4), testPod("a", -2000, 9000, "nvidia_com_gpu", 1))
	if p := FoldHour(inv, nil, hour0, Settings{}).Nodes[0].Devices[0].Partitions[0]; p.MeasuredMicros != 0 {
		t.Errorf("measured %d", p.MeasuredMicros)
	}
}
