package gpu

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// kube-state-metrics#1569: deleted pods are still reported; a StatefulSet's pod has the
// name of the one before. By UID, each has its own time and its own bytes.
func TestRule35DeletedPodsAndReusedNames(t *testing.T) {
	named := func(uid string, from, to int) []Series {
		in := testPod(uid, from, to, "nvidia_com_gpu", 1)
		for i := range in {
			in[i].Labels["pod"] = "db-0"
		}
		return in
	}
	inv := join(testNode(1), named("old", -2000, 1200), named("new", 1500, 9000))
	for i := range inv { // the old object is reported to the end, as Failed
		if inv[i].Labels["uid"] == "uid-old" && inv[i].Metric != "kube_pod_completion_time" {
			inv[i].Samples = always(inv[i].Samples[0].Value)
		}
	}
	inv = append(inv, ksm("kube_pod_status_phase", always(0), "namespace", "ml", "pod", "db-0", "uid", "uid-old", "phase", "Running"),
		ksm("kube_pod_status_phase", always(1), "namespace", "ml", "pod", "db-0", "uid", "uid-old", "phase", "Failed"))
	dev := []Series{labelled("db-0", sampled(step{-900, 1200, 10 * gib}, step{1500, 4500, 20 * gib})), dcgm("DCGM_FI_DEV_FB_USED", sampled(step{1200, 1500, 0})), dcgm("DCGM_FI_DEV_FB_FREE", always(20*gib))}
	got := FoldHour(inv, dev, hour0, Settings{})
	check(t, got, maxNone, want{"old", SoleHolder, 1200 * 1e6}, want{"new", SoleHolder, 2100 * 1e6}, want{"unallocated", NoMethod, 300 * 1e6})
	if n := rowOf(t, partOf(t, got), "old").PeakBytes; n != 10<<30 {
		t.Errorf("the old pod's peak is %d", n)
	}
}

// The same pod name on two nodes at once (two clusters in one store, or a StatefulSet's pod
// that moved): the series of a node are of the pod on it. Two machines of one node name are
// refused: a store of several clusters is told apart by a label (config: match, discover).
func TestRule36OneNameTwice(t *testing.T) {
	inv := testNode(1)
	for _, s := range testNode(1) {
		s.Labels["node"] = "n2"
		if s.Labels["provider_id"] != "" {
			s.Labels["provider_id"] = "aws:///us-east-1a/i-2"
		}
		inv = append(inv, s)
	}
	for uid, node := range map[string]string{"here": "n1", "there": "n2"} {
		for _, s := range testPod(uid, -2000, 9000, "nvidia_com_gpu", 1) {
			s.Labels["pod"] = "web-0"
			if s.Labels["node"] != "" {
				s.Labels["node"] = node
			}
			inv = append(inv, s)
		}
	}
	var dev []Series
	for i, node := range []string{"n1", "n2"} {
		dev = append(dev, wholeGPU(fmt.Sprintf("GPU-%d", i), float64(i+1)*10*gib, 10*gib, "Hostname", node, "pod", "web-0", "namespace", "ml", "container", "c")...)
	}
	got := FoldHour(inv, dev, hour0, Settings{})
	for i, uid := range []string{"uid-here", "uid-there"} {
		rows := got.Nodes[i].Devices[0].Partitions[0].Rows
		if len(rows) != 1 || rows[0].PodUID != uid || rows[0].Shares.MaxNone != fullHour || rows[0].PeakBytes != uint64(i+1)*10<<30 {
			t.Errorf("%s: %+v", got.Nodes[i].Node, rows)
		}
	}
	clash := ksm("kube_node_info", always(1), "node", "n1", "provider_id", "aws:///us-east-1a/i-9")
	if got := FoldHour(append(inv, clash), dev, hour0, Settings{}); len(got.Clashes) != 1 {
		t.Errorf("clashes %v", got.Clashes)
	}
}

// A label that stays behind on a node is not of the pod that has the name on another.
func TestRule36LabelStaysBehind(t *testing.T) {
	inv := join(testNode(1), testPod("moved", -2000, 9000, "nvidia_com_gpu", 1))
	for i := range inv {
		if inv[i].Labels["node"] != "" && inv[i].Labels["uid"] != "" {
			inv[i].Labels["node"] = "n2"
		}
	}
	dev := wholeGPU("GPU-0", 20*gib, 20*gib, "Hostname", "n1", "pod", "moved", "namespace", "ml", "container", "c")
	for name, s := range map[string][]Series{
		"read alone": inv, "read together": append(inv[:len(inv):len(inv)], ksm("kube_node_info", always(1), "node", "n2", "provider_id", "aws:///us-east-1a/i-2")),
	} {
		got := FoldHour(s, slices.Clone(dev), hour0, Settings{})
		if len(got.Nodes) != 1 {
			t.Fatalf("%s: %d nodes", name, len(got.Nodes))
		}
		for _, r := range partOf(t, got).Rows {
			if r.PodUID != "" {
				t.Errorf("%s: %+v", name, r)
			}
		}
	}
}

// #663: before 4.8.3 the labels of one GPU leak to another's series: a UUID with two models
// is of the one it had longest, whichever metric leaks and whenever.
func TestRule37LabelsLeak(t *testing.T) {
	for _, metric := range []string{"DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_GPU_UTIL"} {
		for _, leak := range []step{{-900, 300, 0}, {3300, 4500, 0}} {
			var dev []Series
			for _, m := range []string{"DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_GPU_UTIL"} {
				if m != metric {
					dev = append(dev, dcgm(m, always(50)))
					continue
				}
				dev = append(dev, dcgm(m, sampled(step{leak.from, leak.to, 50}), "modelName", "Tesla T4"), dcgm(m, sampled(step{-900, leak.from, 50}, step{leak.to, 4500, 50})))
			}
			if d := FoldHour(testNode(1), dev, hour0, Settings{}).Nodes[0].Devices[0]; d.Model != "A100-SXM4-40GB" || d.TotalBytes != 40_960<<20 {
				t.Errorf("%s leaks %v: %s", metric, leak, d.Model)
			}
		}
	}
}

// GPU-…::2 (NVIDIA's plugin) and GPU-…-2 name slots of a GPU, not GPUs; a UUID's own last
// group is no slot.
func TestReplicaSuffixes(t *testing.T) {
	inv := join(testNode(4), running("a", "b"))
	for _, suffix := range []string{"::", "-"} {
		dev := []Series{dcgm("DCGM_FI_DEV_FB_FREE", always(10*gib))}
		for i, pod := range []string{"a", "b"} {
			dev = append(dev, labelled(pod, always(30*gib), "UUID", testUUID+suffix+fmt.Sprint(i)))
		}
		got := FoldHour(inv, dev, hour0, Settings{})
		check(t, got, used, want{"a", ReplicaRequest, fullHour * 15 / 40}, want{"b", ReplicaRequest, fullHour * 15 / 40}, want{"unallocated", NoMethod, fullHour / 4})
		if u := got.Nodes[0].Devices[0].UUID; u != testUUID {
			t.Errorf("%s: device %s", suffix, u)
		}
	}
	if uuid, slot := replicaOf(testUUID); uuid != testUUID || slot != "" {
		t.Errorf("%s has slot %q", uuid, slot)
	}
}

// A pod that lived for 20 s between two scrapes: its times say so, and it held the GPU.
func TestPodShorterThanAScrape(t *testing.T) {
	inv := join(testNode(1), testPod("a", 1000, 1020, "nvidia_com_gpu", 1))
	for i := range inv { // the object is seen afterwards, completed
		if s := &inv[i]; s.Labels["uid"] == "uid-a" {
			v := 1.0
			switch s.Metric {
			case "kube_pod_start_time":
				v = float64(hour0.Unix() + 1000)
			case "kube_pod_completion_time":
				v = float64(hour0.Unix() + 1020)
			}
			s.Samples = sampled(step{1020, 1200, v})
		}
	}
	inv = append(inv, ksm("kube_pod_status_phase", sampled(step{1020, 1200, 1}), "namespace", "ml", "pod", "a", "uid", "uid-a", "phase", "Succeeded"))
	dev := wholeGPU(testUUID, 0, 40*gib)
	got := FoldHour(inv, dev, hour0, Settings{})
	check(t, got, maxNone, want{"a", ReplicaRequest, 20 * 1e6}, want{"unallocated", NoMethod, fullHour - 20*1e6})
}

// A node's clock is ahead: what is dated after the hour is the next hour's, and what is
// dated after all that was asked for is nothing at all.
func TestClockAhead(t *testing.T) {
	inv := testNode(2)
	dev := func(more ...Sample) []Series {
		s := append(sampled(step{-900, 1800, 30 * gib}), more...)
		return []Series{dcgm("DCGM_FI_DEV_FB_USED", s), dcgm("DCGM_FI_DEV_FB_FREE", sampled(step{-900, 1800, 10 * gib})), perProcess("a", s)}
	}
	late := Sample{hour0.Add(25 * time.Hour).UnixMilli(), 39 * gib}
	sameNodes(t, "a sample of tomorrow", FoldHour(inv, dev(), hour0, Settings{}), FoldHour(inv, dev(late), hour0, Settings{}))
	ahead := join(testNode(2), []Series{ksm("kube_node_labels", []Sample{{late.UnixMilli, 1}}, "node", "n1", "label_nvidia_com_gpu_sharing_strategy", "mps")})
	sameNodes(t, "a label of tomorrow", FoldHour(inv, dev(), hour0, Settings{}), FoldHour(ahead, dev(), hour0, Settings{}))
}

// A scrape every 15 s of what is collected every 30 s gives each value twice: by time, not
// by the number of samples, they weigh the same.
func TestScrapesOfACollectionTwiceAsSlow(t *testing.T) {
	inv := join(testNode(2), running("a"))
	fold := func(twice bool) ClusterHour {
		used := sampled(step{-900, 1200, 10 * gib}, step{1200, 4500, 20 * gib})
		if twice {
			var out []Sample
			for _, s := range used {
				out = append(out, Sample{s.UnixMilli - 7500, s.Value}, Sample{s.UnixMilli + 7500, s.Value})
			}
			used = out
		}
		return FoldHour(inv, []Series{dcgm("DCGM_FI_DEV_FB_USED", used), dcgm("DCGM_FI_DEV_FB_FREE", used), perProcess("a", used)}, hour0, Settings{})
	}
	for _, twice := range []bool{false, true} {
		check(t, fold(twice), used, want{"a", ProcessUID, 1200*1e6/4 + 2400*1e6/2}, want{"unallocated", NoMethod, 1200*1e6*3/4 + 2400*1e6/2})
	}
}
