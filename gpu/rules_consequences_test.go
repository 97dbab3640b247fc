package gpu

import (
	"slices"
	"testing"
)

// The tests TestConsequence… are the bullets of reference/gpu-telemetry.md §8.

// 1: sizes are whole bytes from the start: MiB and bytes of one size are one hour.
func TestConsequence1BytesAtIngest(t *testing.T) {
	inv := join(testNode(2), running("a"))
	fold := func(suffix string, unit float64) ClusterHour {
		return FoldHour(inv, []Series{
			dcgm("DCGM_FI_DEV_FB_USED"+suffix, always(12_345*unit)), dcgm("DCGM_FI_DEV_FB_FREE"+suffix, always(28_000*unit)),
			dcgm("DCGM_FI_DEV_FB_USED"+suffix, always(10_000*unit), "pod", "a", "namespace", "ml", "pod_uid", "uid-a"),
		}, hour0, Settings{})
	}
	got := fold("", 1)
	sameNodes(t, "the unit", got, fold("_BYTES", 1<<20))
	if r := rowOf(t, partOf(t, got), "a"); r.UsedByteSeconds != 3600*10_000<<20 || r.PeakBytes != 10_000<<20 {
		t.Errorf("%+v", r)
	}
}

// 2: a preset for each exporter, with the metric, the unit, the labels and whose figure it
// is; what a user says of a metric takes its place.
func TestConsequence2Presets(t *testing.T) {
	for _, name := range []string{"dcgm", "dcgm-per-process", "hami", "hami-legacy", "runai", "nvidia-smi", "amd", "gke", "aws-container-insights", "k8s-gpu-exporter"} {
		if !slices.Contains(presetNames(), name) {
			t.Errorf("no preset %s", name)
		}
	}
	mine := Settings{Exporters: []ExporterMetric{{Name: "DCGM_FI_DEV_FB_USED", Is: "used", Unit: "bytes", Of: "device", Labels: map[string]string{"uuid": "gpu_id"}}}}
	r := mine.exporters()["DCGM_FI_DEV_FB_USED"]
	if r.unit != 1 || r.of != "device" || r.labels["UUID"] != "gpu_id" {
		t.Errorf("%+v", r)
	}
}

// 3: Σ pods and categories is the device's present time in each column; no pod has more of
// copied series than the device uses; no data is not no cost.
func TestConsequence3Invariants(t *testing.T) {
	inv := join(testNode(2), running("a", "b"))
	for name, dev := range map[string][]Series{
		"per process":    {dcgm("DCGM_FI_DEV_FB_USED", always(30*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(10*gib)), perProcess("a", always(20*gib)), perProcess("b", always(5*gib))},
		"copies":         {dcgm("DCGM_FI_DEV_FB_FREE", always(10*gib)), labelled("a", always(30*gib), "vgpu", "0"), labelled("b", always(30*gib), "vgpu", "1")},
		"half the hour":  {dcgm("DCGM_FI_DEV_FB_USED", sampled(step{-900, 1800, 30 * gib})), dcgm("DCGM_FI_DEV_FB_FREE", sampled(step{-900, 1800, 10 * gib}))},
		"no data at all": nil,
	} {
		p := partOf(t, FoldHour(inv, dev, hour0, Settings{}))
		for c := range columns {
			var sum, pods int64
			for _, r := range p.Rows {
				sum += *r.Shares.column(c)
				if r.PodUID != "" {
					pods += *r.Shares.column(c)
				}
			}
			if sum != p.PresentMicros || p.PresentMicros != fullHour {
				t.Errorf("%s: column %d is %d of %d µs", name, c, sum, p.PresentMicros)
			}
			if name == "copies" && c == colUsed && pods > fullHour*30/40 {
				t.Errorf("copies: the pods have %d µs of a device that is three quarters full", pods)
			}
			if name == "no data at all" && c == colMaxReplica && pods != fullHour {
				t.Errorf("no data: the pods that hold all slots have %d µs", pods)
			}
		}
	}
}

// 4: the buckets beside pods: idle, the driver's, unattributed, not partitioned, no data.
func TestConsequence4Buckets(t *testing.T) {
	inv := join(labelsOf(0, "node.kubernetes.io/instance-type", "p4d.24xlarge", "nvidia.com/gpu.replicas", "2", "nvidia.com/mig.strategy", "mixed", "nvidia.com/mig.capable", "true"), running("a"))
	dev := join(wholeGPU("GPU-0", 20*gib, 20_384-64, "pod", "", "namespace", ""), []Series{perProcess("a", always(10*gib), "UUID", "GPU-0"), dcgm("DCGM_FI_DEV_POWER_USAGE", drawn(75.96), "UUID", "GPU-1")},
		[]Series{dcgm("DCGM_FI_DEV_FB_RESERVED", always(576), "UUID", "GPU-0"), dcgm("DCGM_FI_DEV_FB_TOTAL", always(40_960), "UUID", "GPU-0")})
	got := FoldHour(inv, dev, hour0, Settings{}).Nodes[0].Devices
	if len(got) != 8 || got[0].ReservedBytes != 576<<20 {
		t.Fatalf("%d devices, %d reserved", len(got), got[0].ReservedBytes)
	}
	seen := map[Category]bool{}
	for _, d := range got {
		for _, r := range d.Partitions[0].Rows {
			seen[r.Category] = true
		}
	}
	for _, c := range []Category{Unallocated, Unattributed, MIGUnpartitioned, NoTelemetry} {
		if !seen[c] {
			t.Errorf("no %s in %v", c, seen)
		}
	}
}

// 5: samples at their own times, however uneven: no step and no lookback moves a change.
func TestConsequence5OwnTimes(t *testing.T) {
	inv := join(testNode(2), running("a"))
	var samples []Sample
	for i, s := range always(10 * gib) {
		s.UnixMilli += int64(i*7919%20_000) - 10_000 // up to 10 s to either side
		if s.UnixMilli >= hour0.UnixMilli()+1_800_000 {
			s.Value = 20 * gib
		}
		samples = append(samples, s)
	}
	var before, after int64
	for _, s := range samples {
		if s.Value == 10*gib {
			before = s.UnixMilli
		} else if after == 0 {
			after = s.UnixMilli
		}
	}
	change := ((before+after)/2 - hour0.UnixMilli()) * 1000
	if odd := (before + after) % 2; odd != 0 {
		change += 500
	}
	got := FoldHour(inv, []Series{dcgm("DCGM_FI_DEV_FB_USED", samples), perProcess("a", samples), dcgm("DCGM_FI_DEV_FB_FREE", sampled(step{-900, 0, 30 * gib}))}, hour0, Settings{Models: nil})
	const usable = 40_960 // of the model
	check(t, got, used, want{"a", ProcessUID, change*10*gib/usable + (fullHour-change)*20*gib/usable}, want{"unallocated", NoMethod, fullHour - change*10*gib/usable - (fullHour-change)*20*gib/usable})
}

// 6: a sample stands for no more than 2.5 intervals to either side; what is beyond is not
// measured, and nothing of it is zero.
func TestConsequence6HoldIsCapped(t *testing.T) {
	inv := join(testNode(2), running("a"))
	s := sampled(step{-900, 1200, 10 * gib})
	got := FoldHour(inv, []Series{dcgm("DCGM_FI_DEV_FB_USED", s), perProcess("a", s), dcgm("DCGM_FI_DEV_FB_FREE", sampled(step{-900, 1200, 30 * gib}))}, hour0, Settings{})
	measured := int64(1185+75) * 1e6
	check(t, got, used, want{"a", ProcessUID, measured / 4}, want{"a", ReplicaRequest, (fullHour - measured) / 2}, want{"unallocated", NoMethod, measured*3/4 + (fullHour-measured)/2})
	if p := partOf(t, got); p.MeasuredMicros != measured {
		t.Errorf("measured %d µs", p.MeasuredMicros)
	}
}
