package gpu

import (
	"math"
	"slices"
	"testing"
)

// #271, #136, #83, #77: USED + FREE is 40,384 of an A100's 40,960 MiB, and RESERVED is not
// collected: the total is the model's, and what is missing the driver's.
func TestRule13UsedAndFreeAreNotTotal(t *testing.T) {
	inv := join(testNode(2), running("a"))
	dev := []Series{dcgm("DCGM_FI_DEV_FB_USED", always(10*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(40_384-10*gib)), perProcess("a", always(10*gib)), dcgm("DCGM_FI_DEV_FB_USED_PERCENT", always(0.25))}
	at := func(more ...Series) Device {
		return FoldHour(inv, append(slices.Clone(dev), more...), hour0, Settings{}).Nodes[0].Devices[0]
	}
	for name, d := range map[string]Device{
		"from the model":   at(),
		"from TOTAL":       at(dcgm("DCGM_FI_DEV_FB_TOTAL", always(40_960))),
		"from CAPACITY":    at(dcgm("DCGM_FI_DEV_FB_CAPACITY_BYTES", always(40_960<<20))),
		"TOTAL, RESERVED":  at(dcgm("DCGM_FI_DEV_FB_TOTAL", always(40_960)), dcgm("DCGM_FI_DEV_FB_RESERVED", always(576))),
		"without used yet": FoldHour(testNode(1), []Series{dcgm("DCGM_FI_DEV_FB_FREE", always(40_384)), dcgm("DCGM_FI_DEV_FB_USED", always(0))}, hour0, Settings{}).Nodes[0].Devices[0],
	} {
		if d.TotalBytes != 40_960<<20 || d.ReservedBytes != 576<<20 || d.Partitions[0].UsableBytes != 40_384<<20 {
			t.Errorf("%s: total %d, reserved %d, usable %d MiB", name, d.TotalBytes>>20, d.ReservedBytes>>20, d.Partitions[0].UsableBytes>>20)
		}
	}
}

// gpu-operator#348: DCGM 2.3 on driver 510 shows hundreds of MiB on an idle A100: within
// the tolerance that is nobody's use, and of several pods it is spread by theirs.
func TestRule14IdleBaseline(t *testing.T) {
	const baseline = 562
	free := func(used float64) Series { return dcgm("DCGM_FI_DEV_FB_FREE", always(40*gib-used)) }
	check(t, FoldHour(testNode(4), []Series{dcgm("DCGM_FI_DEV_FB_USED", always(baseline)), free(baseline)}, hour0, Settings{}), used, want{"unallocated", NoMethod, fullHour})
	dev := []Series{dcgm("DCGM_FI_DEV_FB_USED", always(20*gib+baseline)), free(20*gib + baseline), perProcess("a", always(15*gib)), perProcess("b", always(5*gib))}
	p := partOf(t, FoldHour(join(testNode(4), running("a", "b")), dev, hour0, Settings{}))
	if a, b := rowOf(t, p, "a"), rowOf(t, p, "b"); a.SpreadMicros/3 != b.SpreadMicros || a.SpreadMicros == 0 {
		t.Errorf("spread %d and %d µs", a.SpreadMicros, b.SpreadMicros)
	}
}

// The README, slurm-job-exporter#30, DCGM#202: blank values are exported. All of them, and
// the float64 that the 64-bit ones become.
func TestRule15Sentinels(t *testing.T) {
	inv := join(testNode(1), running("a"))
	for _, c := range []struct {
		metric string
		value  float64
		kept   bool
	}{
		{"DCGM_FI_DEV_FB_USED", 2147483632, false},
		{"DCGM_FI_DEV_FB_USED", 2147483633, false},
		{"DCGM_FI_DEV_FB_USED", 2147483634, false},
		{"DCGM_FI_DEV_FB_USED", 2147483635, false},
		{"DCGM_FI_DEV_FB_USED", 9223372036854775792, false},
		{"DCGM_FI_DEV_FB_USED", 9223372036854775793, false},
		{"DCGM_FI_DEV_FB_USED", 9223372036854775794, false},
		{"DCGM_FI_DEV_FB_USED", 9223372036854775795, false},
		{"DCGM_FI_DEV_FB_USED", 9.223372036854776e+18, false},
		{"DCGM_FI_DEV_FB_USED", 140737488355328, false},
		{"DCGM_FI_DEV_FB_USED", 140737488355331, false},
		{"DCGM_FI_DEV_FB_USED", 1.8446744073709552e+19, false},
		{"DCGM_FI_DEV_FB_USED", math.NaN(), false},
		{"DCGM_FI_DEV_FB_USED", math.Inf(1), false},
		{"DCGM_FI_DEV_FB_USED", -1, false},
		{"DCGM_FI_DEV_FB_USED_BYTES", 2147483632, true}, // 2 GiB less 16 bytes
		{"DCGM_FI_DEV_FB_USED_BYTES", 9.223372036854776e+18, false},
		{"DCGM_FI_DEV_FB_USED_BYTES", 140737488355328, false},
		{"DCGM_FI_DEV_FB_USED_BYTES", 1.8446744073709552e+19, false},
		{"DCGM_FI_DEV_FB_USED_BYTES", 1.6 * 40960 * (1 << 20), false}, // above 1.5 × an A100
		{"DCGM_FI_DEV_GPU_UTIL", 2147483634, false},
		{"DCGM_FI_DEV_POWER_USAGE", 140737488355328, false},
	} {
		// Before 1,800 s one blank value, which in MiB would outweigh a year; then 1,000 MiB.
		blank := dcgm(c.metric, sampled(step{-900, 1800, c.value}), "pod", "a", "namespace", "ml")
		dev := []Series{blank, dcgm("DCGM_FI_DEV_FB_USED", sampled(step{1800, 4500, 1000}), "pod", "a", "namespace", "ml"), dcgm("DCGM_FI_DEV_FB_FREE", always(39_384))}
		got := FoldHour(inv, dev, hour0, Settings{}).Nodes[0].Devices[0]
		dropped := int64(0)
		for _, n := range got.Dropped {
			dropped += n
		}
		if kept := dropped == 0; kept != c.kept {
			t.Errorf("%s %v: dropped %v", c.metric, c.value, got.Dropped)
		}
		if r := rowOf(t, got.Partitions[0], "a"); !c.kept && (r.PeakBytes > 1000<<20 || r.Shares.MaxNone == 0) {
			t.Errorf("%s %v: peak %d", c.metric, c.value, r.PeakBytes)
		}
		if got.GPUUtil > 1 {
			t.Errorf("%s %v: utilisation %v", c.metric, c.value, got.GPUUtil)
		}
	}
}

// #105, #216, #430: GPU_UTIL is absent under MIG: the engines' activity is there, and is
// kept apart.
func TestRule17UtilisationUnderMIG(t *testing.T) {
	l := []string{"GPU_I_ID", "9", "GPU_I_PROFILE", "1g.5gb"}
	dev := []Series{dcgm("DCGM_FI_DEV_FB_USED", always(4384), l...), dcgm("DCGM_FI_DEV_FB_FREE", always(480), l...), dcgm("DCGM_FI_PROF_GR_ENGINE_ACTIVE", always(0.999917), l...), dcgm("DCGM_FI_PROF_DRAM_ACTIVE", always(0.647986), l...)}
	d := FoldHour(testNode(1), dev, hour0, Settings{}).Nodes[0].Devices[0]
	if d.GPUUtil != -1 || near(d.EngineActive, 0.999917) || near(d.DRAMActive, 0.647986) {
		t.Errorf("%v, %v, %v: missing is not 0", d.GPUUtil, d.EngineActive, d.DRAMActive)
	}
}

// #662: GR_ENGINE_ACTIVE is silently 0 after weeks while GPU_UTIL is 99; #68: MIG's drifts.
// Both are kept as they are, and no charge hangs on either.
func TestRule18EngineActivityStuckAtZero(t *testing.T) {
	inv := join(testNode(2), running("a"))
	at := func(engine, util float64) ClusterHour {
		return FoldHour(inv, []Series{
			dcgm("DCGM_FI_DEV_FB_USED", always(10*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(30*gib)), perProcess("a", always(10*gib)),
			dcgm("DCGM_FI_PROF_GR_ENGINE_ACTIVE", always(engine)), dcgm("DCGM_FI_DEV_GPU_UTIL", always(util)),
		}, hour0, Settings{})
	}
	for _, got := range []ClusterHour{at(0, 99), at(0.99, 99), at(0, 0)} {
		check(t, got, used, want{"a", ProcessUID, fullHour / 4}, want{"unallocated", NoMethod, fullHour * 3 / 4})
	}
	if d := at(0, 99).Nodes[0].Devices[0]; d.EngineActive != 0 || near(d.GPUUtil, 0.99) {
		t.Errorf("engine %v, utilisation %v", d.EngineActive, d.GPUUtil)
	}
}

// ignored folds an hour with and without a metric: nothing may change.
func ignored(t *testing.T, metric string, samples []Sample) {
	t.Helper()
	if slices.Contains(DeviceMetrics, metric) {
		t.Errorf("%s is read", metric)
	}
	inv := join(testNode(2), running("a"))
	dev := []Series{dcgm("DCGM_FI_DEV_FB_USED", always(10*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(30*gib)), perProcess("a", always(10*gib))}
	without := FoldHour(inv, dev, hour0, Settings{})
	with := FoldHour(inv, append(dev, dcgm(metric, samples, "pod", "a", "namespace", "ml")), hour0, Settings{})
	sameNodes(t, metric, without, with)
}

// #500, DCGM#277: the gauge of the last XID never resets: nobody gets time back for it.
func TestRule23XIDIsNoDowntime(t *testing.T) { ignored(t, "DCGM_FI_DEV_XID_ERRORS", always(79)) }

// #345, #147: MEM_COPY_UTIL is bandwidth, whatever its HELP says: 30 % of it is no 30 % of
// the memory.
func TestRule25MemCopyIsNoCapacity(t *testing.T) { ignored(t, "DCGM_FI_DEV_MEM_COPY_UTIL", always(30)) }

// FB_USED_PERCENT is a ratio of no use beside the sizes, and 1.1's other memory families
// are of hosts of vGPUs.
func TestRule13PercentIsNotRead(t *testing.T) {
	ignored(t, "DCGM_FI_DEV_FB_USED_PERCENT", always(0.5))
	ignored(t, "DCGM_FI_DEV_VGPU_MEMORY_USAGE", always(8192))
}

// HAMi#555, #1565, #601: utilisation above 100, or 0 throughout: no mean is above 1, and
// memory alone decides.
func TestRule29UtilisationAbove100(t *testing.T) {
	pod := map[string]string{"podnamespace": "ml", "podname": "a", "ctrname": "c", "vdeviceid": "0", "deviceuuid": testUUID, "nodeid": "n1"}
	for _, util := range []float64{0, 250} {
		dev := []Series{
			{Metric: "vGPU_device_memory_usage_in_bytes", Labels: pod, Samples: always(10 << 30)},
			{Metric: "vGPU_device_memory_limit_in_bytes", Labels: pod, Samples: always(20 << 30)},
			{Metric: "Device_utilization_desc_of_container", Labels: pod, Samples: always(util)},
			{Metric: "hami_host_gpu_utilization_ratio", Labels: map[string]string{"device_uuid": testUUID, "node": "n1"}, Samples: always(util)},
			dcgm("DCGM_FI_DEV_FB_USED", always(10*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(30*gib)),
		}
		got := FoldHour(join(testNode(10), running("a")), dev, hour0, Settings{})
		check(t, got, maxNone, want{"a", ProcessName, fullHour / 2}, want{"unallocated", NoMethod, fullHour / 2})
		if d := got.Nodes[0].Devices[0]; d.GPUUtil != min(util/100, 1) {
			t.Errorf("%v: mean %v", util, d.GPUUtil)
		}
	}
}

// Version drift (§1.2): dcgm-exporter 4.9 renames and counts in bytes, Hostname becomes
// hostname, and uuid is the old namespace's UUID. The same hour by each.
func TestRule38VersionDrift(t *testing.T) {
	inv := join(testNode(2), running("a"))
	all := func(used, free, util string, unit, percent float64, host, uuid string) []Series {
		l := map[string]string{uuid: testUUID, "modelName": "NVIDIA A100-SXM4-40GB", host: "n1", "gpu": "0"}
		pod := map[string]string{"pod": "a", "namespace": "ml", "container": "c", "pod_uid": "uid-a"}
		for k, v := range l {
			pod[k] = v
		}
		return []Series{
			{Metric: used, Labels: l, Samples: always(20 * gib * unit)},
			{Metric: free, Labels: l, Samples: always(20 * gib * unit)},
			{Metric: used, Labels: pod, Samples: always(10 * gib * unit)},
			{Metric: util, Labels: l, Samples: always(99 * percent)},
		}
	}
	old := FoldHour(inv, all("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_GPU_UTIL", 1, 1, "Hostname", "UUID"), hour0, Settings{})
	check(t, old, used, want{"a", ProcessUID, fullHour / 4}, want{"unattributed", NoMethod, fullHour / 4}, want{"unallocated", NoMethod, fullHour / 2})
	for name, dev := range map[string][]Series{
		"4.8.3, lower-case host":      all("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_GPU_UTIL", 1, 1, "hostname", "UUID"),
		"old namespace":               all("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_GPU_UTIL", 1, 1, "Hostname", "uuid"),
		"DCGM 4.6: a ratio of 0..100": all("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_GPU_UTIL_RATIO", 1, 1, "hostname", "UUID"),
		"4.9: bytes, a ratio of 0..1": all("DCGM_FI_DEV_FB_USED_BYTES", "DCGM_FI_DEV_FB_FREE_BYTES", "DCGM_FI_DEV_GPU_UTIL_RATIO", 1<<20, 0.01, "hostname", "UUID"),
		"bytes under a name of MiB":   all("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_GPU_UTIL", 1<<20, 1, "hostname", "UUID"),
	} {
		got := FoldHour(inv, dev, hour0, Settings{})
		if d := got.Nodes[0].Devices[0]; near(d.GPUUtil, 0.99) {
			t.Errorf("%s: utilisation %v", name, d.GPUUtil)
		} else {
			got.Nodes[0].Devices[0].GPUUtil = old.Nodes[0].Devices[0].GPUUtil // up to a rounding of the mean
		}
		sameNodes(t, name, old, got)
	}
}

// §1.2: a fleet in mid-upgrade has both for one GPU in one hour, one after the other or at
// once: one figure, never the sum.
func TestMiBAndBytesAtOnce(t *testing.T) {
	inv := join(testNode(2), running("a"))
	in := func(from, to int, metric string, unit float64) []Series {
		s := func(v float64) []Sample { return sampled(step{from, to, v * unit}) }
		pod := []string{"pod", "a", "namespace", "ml", "container", "c", "pod_uid", "uid-a"}
		return []Series{dcgm("DCGM_FI_DEV_FB_USED"+metric, s(20*gib)), dcgm("DCGM_FI_DEV_FB_FREE"+metric, s(20*gib)), dcgm("DCGM_FI_DEV_FB_USED"+metric, s(10*gib), pod...)}
	}
	for name, dev := range map[string][]Series{
		"in turn": join(in(-900, 1800, "", 1), in(1800, 4500, "_BYTES", 1<<20)),
		"at once": join(in(-900, 4500, "", 1), in(-900, 4500, "_BYTES", 1<<20)),
	} {
		t.Run(name, func(t *testing.T) {
			got := FoldHour(inv, dev, hour0, Settings{})
			check(t, got, used, want{"a", ProcessUID, fullHour / 4}, want{"unattributed", NoMethod, fullHour / 4}, want{"unallocated", NoMethod, fullHour / 2})
			if p := partOf(t, got); p.UsableBytes != 40<<30 {
				t.Errorf("usable %d", p.UsableBytes)
			}
		})
	}
}
