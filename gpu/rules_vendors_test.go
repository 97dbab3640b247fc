package gpu

import (
	"fmt"
	"testing"
)

// HAMi#112, #1032: under HAMi dcgm-exporter's series name no pod: HAMi's own do, by the
// same UUID.
func TestRule27HAMiBesideDCGM(t *testing.T) {
	const g = 1 << 30
	pod := map[string]string{"namespace": "ml", "pod": "a", "container": "c", "vdevice_index": "0", "device_uuid": testUUID, "zone": "vGPU", "node": "n1"}
	dev := []Series{
		dcgm("DCGM_FI_DEV_FB_USED", always(13*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(27*gib)),
		{Metric: "hami_vgpu_memory_used_bytes", Labels: pod, Samples: always(12 * g)},
		{Metric: "hami_vgpu_memory_limit_bytes", Labels: pod, Samples: always(20 * g)},
		{Metric: "hami_container_device_memory_bytes", Labels: pod, Samples: always(12 * g)}, // the same figure again
	}
	got := FoldHour(join(testNode(10), running("a")), dev, hour0, Settings{})
	check(t, got, maxNone, want{"a", ProcessName, fullHour / 2}, want{"unattributed", NoMethod, fullHour / 40}, want{"unallocated", NoMethod, fullHour * 19 / 40})
	if p := partOf(t, got); p.Mode != ModeFraction || rowOf(t, p, "a").UsedByteSeconds != 3600*12*g {
		t.Errorf("%+v", p)
	}
}

// HAMi 2.9 has sizes as label values: a new series at every change. It is one figure.
func TestRule30SizesAsLabels(t *testing.T) {
	inv := join(testNode(10), running("a"))
	fold := func(churn int) ClusterHour {
		byLabels := map[string][]Sample{}
		for i, s := range always(0) {
			size := float64(int64(i/4) << 28 % (8 << 30))
			key := "0"
			if churn > 0 {
				key = fmt.Sprint(i / churn)
			}
			byLabels[key] = append(byLabels[key], Sample{s.UnixMilli, size})
		}
		dev := []Series{dcgm("DCGM_FI_DEV_FB_USED", always(10*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(30*gib))}
		for size, samples := range byLabels {
			dev = append(dev, Series{Metric: "hami_vgpu_memory_used_bytes", Samples: samples, Labels: map[string]string{
				"namespace": "ml", "pod": "a", "container": "c", "vdevice_index": "0", "device_uuid": testUUID, "context_size": size, "module_size": size, "buffer_size": size, "offset": "0",
			}})
		}
		return FoldHour(inv, dev, hour0, Settings{})
	}
	for _, churn := range []int{4, 1} {
		sameNodes(t, fmt.Sprintf("a new series every %d samples", churn), fold(0), fold(churn))
	}
}

// amdGPU is a series of AMD's device-metrics-exporter.
func amdGPU(metric string, v float64, kv ...string) Series {
	l := map[string]string{
		"gpu_id": "0", "serial_number": "692251001124", "card_model": "", "card_series": "Advanced Micro Devices, Inc. [AMD/ATI] [Instinct MI300X OAM]",
		"card_vendor": "Advanced Micro Devices Inc. [AMD/ATI]", "hostname": "n1", "gpu_compute_partition_type": "spx", "gpu_memory_partition_type": "nps1", "gpu_partition_id": "0",
	}
	for i := 0; i < len(kv); i += 2 {
		l[kv[i]] = kv[i+1]
	}
	return Series{Metric: metric, Labels: l, Samples: always(v)}
}

// amdNode is a node with cards of AMD, as its device plugin counts them.
func amdNode(cards int) []Series {
	return []Series{
		ksm("kube_node_info", always(1), "node", "n1", "provider_id", "azure:///subscriptions/s/resourceGroups/r/providers/Microsoft.Compute/virtualMachines/n1"),
		ksm("kube_node_status_capacity", always(float64(cards)), "node", "n1", "resource", "amd_com_gpu"),
	}
}

// ROCm/device-metrics-exporter#171: card_model is empty; the series' names have a prefix
// where one is configured; #562: on an SR-IOV host used_vram is suppressed, which is not 0.
func TestRule31AMDCard(t *testing.T) {
	inv := join(amdNode(1), testPod("a", -2000, 9000, "amd_com_gpu", 1))
	pod := []string{"pod", "a", "namespace", "ml", "container", "c"}
	for _, prefix := range []string{"", "amd_"} {
		for unit, one := range map[string]float64{"MB": 1, "bytes": 1 << 20} {
			got := FoldHour(inv, []Series{
				amdGPU(prefix+"gpu_used_vram", 65_536*one, pod...), amdGPU(prefix+"gpu_total_vram", 196_608*one, pod...),
				amdGPU(prefix+"gpu_gfx_activity", 80, pod...), amdGPU(prefix+"gpu_umc_activity", 30, pod...),
			}, hour0, Settings{})
			check(t, got, used, want{"a", SoleHolder, fullHour})
			d := got.Nodes[0].Devices[0]
			if r := rowOf(t, partOf(t, got), "a"); d.Model != "AMD-INSTINCT-MI300X" || d.TotalBytes != 192<<30 || r.UsedByteSeconds != 3600*64<<30 || near(d.GPUUtil, 0.8) || near(d.DRAMActive, 0.3) {
				t.Errorf("%q in %s: %+v", prefix, unit, d)
			}
		}
	}
	got := FoldHour(inv, []Series{amdGPU("gpu_total_vram", 196_608), amdGPU("gpu_gfx_activity", 80)}, hour0, Settings{})
	if r := rowOf(t, partOf(t, got), "a"); r.Method != ReplicaRequest || r.MeasuredMicros != 0 || r.Shares.MaxNone != fullHour {
		t.Errorf("used_vram suppressed: %+v", r)
	}
}

// #259, #495: the second partition of a DPX card is missing from the series: the card has
// two all the same, and half of it is no telemetry's or nobody's, not the first one's.
func TestRule31PartitionMissing(t *testing.T) {
	l := []string{"gpu_compute_partition_type", "dpx", "gpu_partition_id", "0", "card_series", "[Instinct MI355X]", "pod", "a", "namespace", "ml", "container", "c"}
	inv := join(amdNode(2), testPod("a", -2000, 9000, "amd_com_gpu", 1))
	got := FoldHour(inv, []Series{amdGPU("gpu_used_vram", 1000, l...), amdGPU("gpu_total_vram", 147_456, l...)}, hour0, Settings{})
	p := byInstance(t, got)["0"]
	if p.Mode != ModePartition || p.MemorySlices != 1 || p.DeviceSlices != 2 || p.UsableBytes != 144<<30 || rowOf(t, p, "a").Shares.MaxNone != fullHour {
		t.Errorf("%+v", p)
	}
	// ROCm/gpu-operator#555: the node's label says 144G of the card's 288G: the card's size
	// is the model's.
	if d := got.Nodes[0].Devices[0]; d.Model != "AMD-INSTINCT-MI355X" || d.TotalBytes != 288<<30 {
		t.Errorf("%+v", d)
	}
}
