package gpu

import (
	"strings"
	"testing"
	"time"
)

// HAMi reports each container by itself: two containers of a pod on one card use and
// reserve the sum, under its old and its new metric names.
func TestContainersOfAPodAddUp(t *testing.T) {
	const g = float64(1 << 30)
	for name, series := range map[string]func(metric, container string, v float64) Series{
		"hami_vgpu_memory_used_bytes/hami_vgpu_memory_limit_bytes": func(metric, container string, v float64) Series {
			return Series{Metric: metric, Labels: map[string]string{"namespace": "ml", "pod": "a", "container": container, "vdevice_index": "0", "device_uuid": testUUID}, Samples: always(v)}
		},
		"vGPU_device_memory_usage_in_bytes/vGPU_device_memory_limit_in_bytes": func(metric, container string, v float64) Series {
			return Series{Metric: metric, Labels: map[string]string{"podnamespace": "ml", "podname": "a", "ctrname": container, "vdeviceid": "0", "deviceuuid": testUUID}, Samples: always(v)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			usedName, limitName, _ := strings.Cut(name, "/")
			dev := []Series{dcgm("DCGM_FI_DEV_FB_USED", always(8*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(32*gib))}
			for i, container := range []string{"c", "d"} {
				dev = append(dev, series(usedName, container, float64(3+2*i)*g), series(limitName, container, 10*g))
			}
			inv := join(testNode(1), testPod("a", -2000, 9000, "nvidia_com_gpu", 2))
			got := FoldHour(inv, dev, hour0, Settings{})
			check(t, got, used, want{"a", ProcessName, fullHour * 8 / 40}, want{"unallocated", NoMethod, fullHour * 32 / 40})
			check(t, got, maxReplica, want{"a", ProcessName, fullHour * 20 / 40}, want{"unallocated", NoMethod, fullHour * 20 / 40})
			if r := got.Nodes[0].Devices[0].Partitions[0].Rows[0]; r.PeakBytes != uint64(8*g) {
				t.Errorf("peak %d", r.PeakBytes)
			}
		})
	}
}

// A StatefulSet's pod that is made anew under its name with another limit has its own.
func TestLimitOfAPodMadeAnew(t *testing.T) {
	const g = float64(1 << 30)
	half := hour0.Add(30 * time.Minute)
	var limits, uses []Sample
	for _, x := range always(0) {
		bytes := 10 * g
		if x.UnixMilli >= half.UnixMilli() {
			bytes = 20 * g
		}
		limits, uses = append(limits, Sample{x.UnixMilli, bytes}), append(uses, Sample{x.UnixMilli, g})
	}
	l := map[string]string{"namespace": "ml", "pod": "a", "container": "c", "vdevice_index": "0", "device_uuid": testUUID}
	dev := []Series{
		dcgm("DCGM_FI_DEV_FB_USED", always(1*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(39*gib)),
		{Metric: "hami_vgpu_memory_used_bytes", Labels: l, Samples: uses},
		{Metric: "hami_vgpu_memory_limit_bytes", Labels: l, Samples: limits},
	}
	first, second := testPod("a", -2000, 1800, "nvidia_com_gpu", 1), testPod("a", 1800, 9000, "nvidia_com_gpu", 1)
	for i := range second {
		second[i].Labels["uid"] = "again"
	}
	got := FoldHour(join(testNode(1), first, second), dev, hour0, Settings{})
	shares := map[string]int64{}
	for _, r := range got.Nodes[0].Devices[0].Partitions[0].Rows {
		shares[r.PodUID] += r.Shares.MaxNone
	}
	if shares["again"] != fullHour/2*20/40 || shares[first[0].Labels["uid"]] != fullHour/2*10/40 {
		t.Errorf("%v", shares)
	}
}
