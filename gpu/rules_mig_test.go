package gpu

import (
	"fmt"
	"testing"
)

// instance is a MIG instance's two series of memory.
func instance(gi, profile string, usedMiB, freeMiB float64, kv ...string) []Series {
	l := append([]string{"GPU_I_ID", gi, "GPU_I_PROFILE", profile}, kv...)
	return []Series{dcgm("DCGM_FI_DEV_FB_USED", always(usedMiB), l...), dcgm("DCGM_FI_DEV_FB_FREE", always(freeMiB), l...)}
}

// byInstance are the partitions of the only device by instance.
func byInstance(t *testing.T, got ClusterHour) map[string]Partition {
	t.Helper()
	if len(got.Nodes) != 1 || len(got.Nodes[0].Devices) != 1 {
		t.Fatalf("not one node with one device: %+v", got.Nodes)
	}
	out := map[string]Partition{}
	for _, p := range got.Nodes[0].Devices[0].Partitions {
		if _, twice := out[p.GPUInstance]; twice {
			t.Errorf("instance %s is there twice", p.GPUInstance)
		}
		out[p.GPUInstance] = p
	}
	return out
}

// #714, #590, #532: dcgm-exporter up to 4.8.2 puts the labels of a MIG claim on the parent,
// without GPU_I_*: a pod's instance of 1g.12gb of a GH200, not the GPU.
func TestRule08DRAClaimOnTheParent(t *testing.T) {
	l := []string{
		"modelName", "NVIDIA GH200 96GB HBM3", "pod", "a", "namespace", "ml", "container", "ctr0", "dra_claim_name", "pod-rxspm", "dra_claim_namespace", "ml", "dra_device_name", "gpu-0-mig-19-6-1",
		"dra_driver_name", "gpu.nvidia.com", "dra_mig_device_uuid", "MIG-24c6a0e5-fe28-53ac-9537-c4e23104f30f", "dra_mig_profile", "1g.12gb", "dra_pool_name", "n1",
	}
	inv := join(testNode(1)[:2], testPod("a", -2000, 9000, "", 0))
	dev := []Series{dcgm("DCGM_FI_DEV_FB_USED", always(40_000), l...), dcgm("DCGM_FI_DEV_FB_FREE", always(57_000), l...)}
	parts := byInstance(t, FoldHour(inv, dev, hour0, Settings{}))
	p, ok := parts["MIG-24c6a0e5-fe28-53ac-9537-c4e23104f30f"]
	if len(parts) != 1 || !ok || p.Profile != "1g.12gb" || p.MemorySlices != 1 || p.DeviceSlices != 8 || p.UsableBytes != 97871<<20/8 {
		t.Fatalf("%+v", parts)
	}
	// The figure is the parent's: the pod has the instance, and how much it uses is not known.
	if r := rowOf(t, p, "a"); r.Shares.MaxNone != fullHour || r.UsedByteSeconds != 0 || r.MeasuredMicros != 0 {
		t.Errorf("%+v", r)
	}
}

// 4.8.3 (#664) labels the instance: the claim's pod has it, and 3 of 4 slices of the A30
// are not partitioned.
func TestRule08DRAClaimOnTheInstance(t *testing.T) {
	l := []string{
		"modelName", "NVIDIA A30", "pod", "a", "namespace", "ml", "container", "ctr0", "dra_claim_name", "thfdj", "dra_claim_namespace", "ml", "dra_device_name", "gpu-1-mig-1g6gb-14-0",
		"dra_driver_name", "gpu.nvidia.com", "dra_mig_device_uuid", "MIG-c73ab1c4-6cb7-59b6-be7e-21c4ac35c3b6", "dra_mig_profile", "1g.6gb", "dra_pool_name", "n1",
	}
	inv := join(testNode(1)[:2], testPod("a", -2000, 9000, "", 0))
	p, ok := byInstance(t, FoldHour(inv, instance("3", "1g.6gb", 1000, 5013, l...), hour0, Settings{}))["3"]
	if !ok || p.MemorySlices != 1 || p.DeviceSlices != 4 {
		t.Fatalf("%+v", p)
	}
	if r := rowOf(t, p, "a"); r.Shares.MaxNone != fullHour || r.Method != SoleHolder || r.UsedByteSeconds != 3600*1000<<20 {
		t.Errorf("%+v", r)
	}
}

// Samples 05 and 18: an A100 with one 1g.5gb shows 1/8 of itself, and one without any
// instance no memory at all. What is not partitioned is of the GPU all the same.
func TestRule12UnassignedSlices(t *testing.T) {
	p := byInstance(t, FoldHour(testNode(1), instance("8", "1g.5gb", 6, 4857), hour0, Settings{}))["8"]
	if p.MemorySlices != 1 || p.DeviceSlices != 8 || p.UsableBytes != 4863<<20 {
		t.Errorf("%d of %d slices, %d MiB", p.MemorySlices, p.DeviceSlices, p.UsableBytes>>20)
	}
	node := join(testNode(1)[:1], []Series{ksm("kube_node_labels", always(1), "node", "n1", "label_nvidia_com_gpu_count", "1", "label_nvidia_com_gpu_replicas", "0", "label_nvidia_com_mig_strategy", "mixed", "label_nvidia_com_mig_capable", "true")})
	dev := []Series{dcgm("DCGM_FI_DEV_POWER_USAGE", drawn(75.96)), dcgm("DCGM_FI_PROF_GR_ENGINE_ACTIVE", always(0.000033))}
	check(t, FoldHour(node, dev, hour0, Settings{}), used, want{"mig_unpartitioned", NoMethod, fullHour})
}

// #544, gfd#7: driver 535 calls an H100 NVL's 1g.12gb "1g.11gb", and a 3g.20gb came as
// 3g.21gb: by the size, and the pod that asks for the right name gets it.
func TestRule16WrongProfileNames(t *testing.T) {
	for _, c := range []struct {
		model, label, resource string
		memory                 int
		freeMiB                float64
	}{
		{"NVIDIA H100 NVL", "1g.11gb", "nvidia_com_mig_1g_12gb", 1, 11_900},
		{"NVIDIA H100 NVL", "1g.12gb", "nvidia_com_mig_1g_11gb", 1, 11_900},
		{"NVIDIA A100-SXM4-40GB", "3g.21gb", "nvidia_com_mig_3g_20gb", 4, 19_900},
		{"NVIDIA A100-SXM4-40GB", "3g.20gb", "nvidia_com_mig_3g_21gb", 4, 19_900},
		{"NVIDIA A100-SXM4-40GB", "gpu instance", "nvidia_com_mig_3g_20gb", 4, 19_900}, // no profile at all
	} {
		inv := join(testNode(1)[:2], testPod("a", -2000, 9000, c.resource, 1))
		p := byInstance(t, FoldHour(inv, instance("1", c.label, 60, c.freeMiB, "modelName", c.model), hour0, Settings{}))["1"]
		if p.MemorySlices != c.memory || p.DeviceSlices != 8 {
			t.Errorf("%s: %d of %d slices", c.label, p.MemorySlices, p.DeviceSlices)
		}
		if r := rowOf(t, p, "a"); r.Shares.MaxNone != fullHour {
			t.Errorf("%s for %s: %+v", c.label, c.resource, r)
		}
	}
}

// #736: a node of several models: each GPU is of the model its series name, not of the one
// that the node's label does.
func TestRule19MixedModels(t *testing.T) {
	inv := []Series{
		ksm("kube_node_info", always(1), "node", "n1", "provider_id", "aws:///us-east-1a/i-1"),
		ksm("kube_node_labels", always(1), "node", "n1", "label_nvidia_com_gpu_count", "2", "label_nvidia_com_gpu_replicas", "1", "label_nvidia_com_gpu_product", "Tesla-T4"),
	}
	dev := join(wholeGPU("GPU-0", 0, 14_960, "modelName", "Tesla T4"), wholeGPU("GPU-1", 0, 40_384))
	got := FoldHour(inv, dev, hour0, Settings{}).Nodes[0].Devices
	if len(got) != 2 || got[0].Model != "TESLA-T4" || got[1].Model != "A100-SXM4-40GB" || got[0].TotalBytes != 15_360<<20 || got[1].TotalBytes != 40_960<<20 {
		t.Errorf("%+v", got)
	}
}

// gpu-monitoring-tools#142, gpu-operator#2482: the exporter is gone around a
// reconfiguration, and the instance's id is used again for another profile. Each has its
// own time, and the GPU's time is shared out once.
func TestRule24InstanceIDReused(t *testing.T) {
	of := func(gi, profile string, from, to int, free float64, kv ...string) []Series {
		l := append([]string{"GPU_I_ID", gi, "GPU_I_PROFILE", profile}, kv...)
		return []Series{dcgm("DCGM_FI_DEV_FB_USED", sampled(step{from, to, 10}), l...), dcgm("DCGM_FI_DEV_FB_FREE", sampled(step{from, to, free}), l...)}
	}
	inv := join(testNode(1)[:2], testPod("a", -2000, 1200, "nvidia_com_mig_3g_20gb", 1), testPod("b", 1800, 9000, "nvidia_com_mig_2g_10gb", 1))
	dev := join(of("1", "3g.20gb", -900, 1200, 19_958, "pod", "a", "namespace", "ml", "container", "c"), of("1", "2g.10gb", 1800, 4500, 9_846, "pod", "b", "namespace", "ml", "container", "c"))
	parts := FoldHour(inv, dev, hour0, Settings{}).Nodes[0].Devices[0].Partitions
	if len(parts) != 2 || parts[0].Profile == parts[1].Profile {
		t.Fatalf("%+v", parts)
	}
	var present int64
	for _, p := range parts {
		present += p.PresentMicros
		who, slices, held := "a", 4, int64(1200*1e6)
		if p.Profile == "2g.10gb" {
			who, slices, held = "b", 2, 1800*1e6
		}
		if r := rowOf(t, p, who); p.MemorySlices != slices || r.Shares.MaxNone != held {
			t.Errorf("%s: %d slices, %s has %d µs", p.Profile, p.MemorySlices, who, r.Shares.MaxNone)
		}
	}
	if present != fullHour {
		t.Errorf("the GPU is there for %d µs", present)
	}
}

// A MIG device by the names that drivers gave it: MIG-GPU-<uuid>/<instance>/<compute
// instance> before R470, MIG-<uuid> since. Neither is a GPU of its own.
func TestMIGDeviceNames(t *testing.T) {
	const mig = "MIG-c73ab1c4-6cb7-59b6-be7e-21c4ac35c3b6"
	inv := join(testNode(1)[:2], testPod("a", -2000, 9000, "nvidia_com_mig_1g_5gb", 1))
	pod := []string{"pod", "a", "namespace", "ml", "container", "c"}
	old := join(instance("7", "1g.5gb", 6, 4857, append(pod, "UUID", "MIG-"+testUUID+"/7/0")...))
	// The instance's own UUID, which another series has beside its GPU.
	fresh := append(wholeGPU(mig, 6, 4857, pod...), dcgm("DCGM_FI_PROF_DRAM_ACTIVE", always(0.1), "GPU_I_ID", "7", "GPU_I_PROFILE", "1g.5gb", "dra_mig_device_uuid", mig))
	for name, dev := range map[string][]Series{"MIG-GPU-": old, "MIG-": fresh} {
		got := FoldHour(inv, dev, hour0, Settings{})
		p, ok := byInstance(t, got)["7"]
		if !ok || got.Nodes[0].Devices[0].UUID != testUUID || p.Profile != "1g.5gb" || rowOf(t, p, "a").Shares.MaxNone != fullHour || len(got.Unplaced) > 0 {
			t.Errorf("%s: %+v", name, got.Nodes)
		}
	}
	// Where nothing names the GPU it is said, and the node has no GPU more for it.
	got := FoldHour(inv, join(instance("7", "1g.5gb", 6, 4857), wholeGPU(mig, 6, 4857)), hour0, Settings{})
	if len(got.Nodes[0].Devices) != 1 || fmt.Sprint(got.Unplaced) != "["+mig+"]" {
		t.Errorf("%d devices, unplaced %v", len(got.Nodes[0].Devices), got.Unplaced)
	}
}
