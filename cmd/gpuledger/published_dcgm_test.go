package main

import (
	"math"
	"testing"

	"gpuledger/gpu"
)

const mibytes = 1 << 20

// near reports whether a mean of samples is what it should be.
func near(got, want float64) bool { return math.Abs(got-want) < 1e-9 }

// publishedDCGM are the files of dcgm-exporter, with the node labels that were published
// with two of them.
func publishedDCGM(t *testing.T) []published {
	mixed, t4 := nodeLabels(t, "nodelabels-01-gfd-mig-mixed-a100.yaml"), nodeLabels(t, "nodelabels-02-gfd-t4.yaml")
	inferred := gpu.FlagPlacementInferred
	whole := [2]int{1, 1}
	elided := `,gpu="0",UUID="GPU-00000000-0000-0000-0000-000000000008",modelName="NVIDIA A10G",Hostname="n",namespace="default",container="c"`
	return []published{
		// An idle A100, exclusive: FREE 40,384 + USED 0 of 40,960 MiB, so 576 reserved. Pod labels
		// that are empty are none.
		{
			file: "dcgm-01-exclusive-idle-a100-driver520.prom", inventory: join(publishedNode("n", 1), exporterOn("n", "nvidia-dcgm-exporter-drqwq")),
			want: []wantPart{{"", gpu.ModeExclusive, whole, 40384 * mibytes, []wantRow{{"unallocated", gpu.NoMethod, 0, full, 0}}}},
			check: func(t *testing.T, l landed) {
				if d := l.device(t, 0); d.TotalBytes != 40960*mibytes || d.ReservedBytes != 576*mibytes || d.GPUUtil != 0 || d.EngineActive != 0 || d.DRAMActive != 0 || d.SMActive != -1 {
					t.Errorf("%+v", d)
				}
			},
		},
		{
			file: "dcgm-01-exclusive-idle-a100-driver520.prom", variant: "nothing tells the mode",
			want: []wantPart{{"", gpu.ModeUnknown, whole, 40384 * mibytes, []wantRow{{"unallocated", gpu.NoMethod, 0, full, gpu.FlagModeUnknown}}}},
		},
		// Run:ai: the label is of the reservation pod. Its user has half of 14,831 + 128 MiB; the
		// other T4, 14,955 + 5 of 15,360, is idle. The node's labels say exclusive.
		{
			file: "dcgm-02-runai-fraction-reservation-t4-driver525.prom",
			inventory: join(publishedNode("n", 2, t4...), exporterOn("n", "nvidia-dcgm-exporter-s228n"),
				publishedPod("n", "runai-reservation", "runai-reservation-gpu-qa-mig-worker-gpu-1-kvltw", "nvidia_com_gpu", 1), publishedPod("n", "team-a", "notebook", "", 0), []gpu.Series{
					beside("kube_pod_labels", 1, "namespace", "runai-reservation", "pod", "runai-reservation-gpu-qa-mig-worker-gpu-1-kvltw", "uid", "uid-runai-reservation-gpu-qa-mig-worker-gpu-1-kvltw", "label_runai_gpu_group", "g1"),
					beside("kube_pod_labels", 1, "namespace", "team-a", "pod", "notebook", "uid", "uid-notebook", "label_runai_gpu_group", "g1"),
					beside("kube_pod_annotations", 1, "namespace", "team-a", "pod", "notebook", "uid", "uid-notebook", "annotation_gpu_fraction", "0.5"),
				}),
			want: []wantPart{
				{"", gpu.ModeExclusive, whole, 14960 * mibytes, []wantRow{{"unallocated", gpu.NoMethod, 0, full, 0}}},
				// Nothing says what of the 128 MiB is the user's: its limit counts, and is no measurement.
				{"", gpu.ModeFraction, whole, 14959 * mibytes, []wantRow{{"notebook", gpu.Limit, 0, [2]uint64{1, 2}, 0}, {"unallocated", gpu.NoMethod, 0, [2]uint64{1, 2}, 0}}},
			},
			check: func(t *testing.T, l landed) {
				if a, b := l.device(t, 0), l.device(t, 1); a.ReservedBytes != 400*mibytes || b.ReservedBytes != 401*mibytes || !near(b.EngineActive, 0.000039) {
					t.Errorf("%+v, %+v", a, b)
				}
			},
		},
		// Three instances of an A100, one busy with 4,384 of 4,864 MiB; nobody requests any, so what
		// is above 2 % is of a pod that is not known. There is no GPU_UTIL.
		{
			file: "dcgm-03-mig-a100-active-driver520.prom", inventory: join(publishedNode("n", 0), exporterOn("n", "nvidia-dcgm-exporter-q28k4")),
			want: []wantPart{
				{"5", gpu.ModeMIG, [2]int{2, 8}, 9855 * mibytes, []wantRow{{"unallocated", gpu.NoMethod, 0, full, 0}}}, // 153 MiB: 1.6 %
				{"7", gpu.ModeMIG, [2]int{1, 8}, 4864 * mibytes, []wantRow{{"unallocated", gpu.NoMethod, 0, [2]uint64{4766, 4864}, 0}, {"unattributed", gpu.NoMethod, 98 * mibytes, [2]uint64{98, 4864}, 0}}},
				{"9", gpu.ModeMIG, [2]int{1, 8}, 4864 * mibytes, []wantRow{{"unallocated", gpu.NoMethod, 0, [2]uint64{480, 4864}, 0}, {"unattributed", gpu.NoMethod, 4384 * mibytes, [2]uint64{4384, 4864}, 0}}},
			},
			check: func(t *testing.T, l landed) {
				if d := l.device(t, 0); d.GPUUtil != -1 || !near(d.EngineActive, (0.000062+0.999917+0.000036)/3) || !near(d.DRAMActive, (0.000053+0.647986+0.000001)/3) {
					t.Errorf("%+v", d)
				}
			},
		},
		// Four instances on the node of nodelabels-01, with a pod each by request; no label says
		// which pod has which 1g.5gb. Three of eight slices are not partitioned.
		{
			file: "dcgm-04-mig-a100-4instances-driver520.prom",
			inventory: join(publishedNode("n", 0, mixed...), exporterOn("n", "nvidia-dcgm-exporter-tl46n"), publishedPod("n", "ml", "a", "nvidia_com_mig_1g_5gb", 1),
				publishedPod("n", "ml", "b", "nvidia_com_mig_1g_5gb", 1), publishedPod("n", "ml", "c", "nvidia_com_mig_1g_5gb", 1), publishedPod("n", "ml", "d", "nvidia_com_mig_2g_10gb", 1)),
			want: []wantPart{
				{"5", gpu.ModeMIG, [2]int{2, 8}, 9856 * mibytes, []wantRow{{"d", gpu.ReplicaRequest, 13 * mibytes, full, inferred}}},
				{"7", gpu.ModeMIG, [2]int{1, 8}, 4863 * mibytes, []wantRow{{"a", gpu.ReplicaRequest, 6 * mibytes, full, inferred}}},
				{"8", gpu.ModeMIG, [2]int{1, 8}, 4864 * mibytes, []wantRow{{"b", gpu.ReplicaRequest, 4384 * mibytes, full, inferred}}},
				{"9", gpu.ModeMIG, [2]int{1, 8}, 4863 * mibytes, []wantRow{{"c", gpu.ReplicaRequest, 6 * mibytes, full, inferred}}},
			},
		},
		// One idle 1g.5gb: seven eighths of the GPU have no series at all, and are its all the same.
		{
			file: "dcgm-05-mig-a100-single-idle-driver520.prom", inventory: join(publishedNode("n", 0), exporterOn("n", "nvidia-dcgm-exporter-m48cc")),
			want: []wantPart{{"8", gpu.ModeMIG, [2]int{1, 8}, 4863 * mibytes, []wantRow{{"unallocated", gpu.NoMethod, 0, full, 0}}}},
		},
		// GKE, MPS: both pods show the device's 15,866 MiB. Without labels the shape tells that it is
		// shared, and each has half of it; a slot of four is a cap of 20,480 MiB.
		{
			file: "dcgm-06-mps-duplicated-device-values-gke-a100.prom", variant: "no labels",
			want: []wantPart{{"", gpu.ModeTimeSlicing, whole, 81920 * mibytes, []wantRow{
				{"name:default/gpu-burn-deployment-1-85dc8ff699-clvh5", gpu.ReplicaRequest, 7933 * mibytes, [2]uint64{7933, 81920}, gpu.FlagCopied | gpu.FlagCapacityAssumed | gpu.FlagHolderUnlisted | gpu.FlagModeInferred},
				{"name:vllm-inference/vllm-medgemma-4b-it-d599b4c99-f95nk", gpu.ReplicaRequest, 7933 * mibytes, [2]uint64{7933, 81920}, gpu.FlagCopied | gpu.FlagCapacityAssumed | gpu.FlagHolderUnlisted | gpu.FlagModeInferred},
				{"unallocated", gpu.NoMethod, 0, [2]uint64{81920 - 15866, 81920}, gpu.FlagModeInferred},
			}}},
		},
		{
			file: "dcgm-06-mps-duplicated-device-values-gke-a100.prom", variant: "GKE's labels of MPS",
			inventory: join(publishedNode("gke-gpu-share-test-a100-inference-mps-b3fc3d0e-3bpg", 4, "label_cloud_google_com_gke_gpu_sharing_strategy", "mps", "label_cloud_google_com_gke_max_shared_clients_per_gpu", "4"),
				publishedPod("gke-gpu-share-test-a100-inference-mps-b3fc3d0e-3bpg", "default", "gpu-burn-deployment-1-85dc8ff699-clvh5", "nvidia_com_gpu", 1),
				publishedPod("gke-gpu-share-test-a100-inference-mps-b3fc3d0e-3bpg", "vllm-inference", "vllm-medgemma-4b-it-d599b4c99-f95nk", "nvidia_com_gpu", 1)),
			want: []wantPart{{"", gpu.ModeMPS, whole, 81920 * mibytes, []wantRow{
				{"gpu-burn-deployment-1-85dc8ff699-clvh5", gpu.Limit, 7933 * mibytes, [2]uint64{1, 4}, gpu.FlagCopied | gpu.FlagCapacityAssumed},
				{"vllm-medgemma-4b-it-d599b4c99-f95nk", gpu.Limit, 7933 * mibytes, [2]uint64{1, 4}, gpu.FlagCopied | gpu.FlagCapacityAssumed},
				{"unallocated", gpu.NoMethod, 0, [2]uint64{1, 2}, 0},
			}}},
		},
		// The "300 %": 3 × 0.714 and 4 × 99, the labels elided as "...": filled in here, with the
		// namespace and a device. There is no memory in it: each pod has its slot of four.
		{
			file: "dcgm-08-time-slicing-duplicated.txt",
			edit: replaced(`, gpu="0",...`, elided, `,...`, elided),
			inventory: join(publishedNode("n", 4, "label_nvidia_com_gpu_count", "1", "label_nvidia_com_gpu_replicas", "4", "label_nvidia_com_gpu_sharing_strategy", "time-slicing"),
				publishedPod("n", "default", "gpu-workload-1", "nvidia_com_gpu", 1), publishedPod("n", "default", "gpu-workload-2", "nvidia_com_gpu", 1),
				publishedPod("n", "default", "gpu-workload-3", "nvidia_com_gpu", 1), publishedPod("n", "default", "gpu-workload-4", "nvidia_com_gpu", 1)),
			want: []wantPart{{"", gpu.ModeTimeSlicing, whole, 23028 * mibytes, []wantRow{
				{"gpu-workload-1", gpu.ReplicaRequest, 0, [2]uint64{1, 4}, gpu.FlagCapacityAssumed},
				{"gpu-workload-2", gpu.ReplicaRequest, 0, [2]uint64{1, 4}, gpu.FlagCapacityAssumed},
				{"gpu-workload-3", gpu.ReplicaRequest, 0, [2]uint64{1, 4}, gpu.FlagCapacityAssumed},
				{"gpu-workload-4", gpu.ReplicaRequest, 0, [2]uint64{1, 4}, gpu.FlagCapacityAssumed},
			}}},
			check: func(t *testing.T, l landed) {
				if d := l.device(t, 0); !near(d.EngineActive, 0.714) || !near(d.GPUUtil, 0.99) {
					t.Errorf("engine %v, utilisation %v", d.EngineActive, d.GPUUtil)
				}
			},
		},
		// Clocks only: nothing of memory, so nothing lands.
		{file: "dcgm-10-dra-mig-a30.prom", variant: "as published", uncounted: []string{"DCGM_FI_DEV_SM_CLOCK"}},
		// With memory under the published labels: a claim's pod has the instance, 1 of 4 slices; the
		// other A30 is nobody's.
		{
			file: "dcgm-10-dra-mig-a30.prom", variant: "with memory", inventory: join(publishedNode("nim-operator-72q5r53", 0), publishedPod("nim-operator-72q5r53", "gpu-test4", "pod-c98945f5d-dnjs6", "", 0)),
			edit: withMemory("DCGM_FI_DEV_SM_CLOCK", "1000", "5000"),
			want: []wantPart{
				{"3", gpu.ModeDRA, [2]int{1, 4}, 6000 * mibytes, []wantRow{{"pod-c98945f5d-dnjs6", gpu.SoleHolder, 1000 * mibytes, full, 0}}},
				{"", gpu.ModeUnknown, whole, 6000 * mibytes, []wantRow{{"unallocated", gpu.NoMethod, 0, [2]uint64{5, 6}, gpu.FlagModeUnknown}, {"unattributed", gpu.NoMethod, 1000 * mibytes, [2]uint64{1, 6}, 0}}},
			},
		},
		{file: "dcgm-11-dra-mig-gh200-no-gpu-i-labels.prom", variant: "as published", uncounted: []string{"DCGM_FI_DEV_VGPU_LICENSE_STATUS"}},
		// The older exporter puts the claim of an instance on its GPU: the pod has 1 of 8 slices of
		// 97,871 MiB, and the GPU's figure is not its.
		{
			file: "dcgm-11-dra-mig-gh200-no-gpu-i-labels.prom", variant: "with memory", inventory: join(publishedNode("sc-starwars-mab9-b00", 0), publishedPod("sc-starwars-mab9-b00", "gpu-test4", "pod-56dbf5cf44-xnfk5", "", 0)),
			edit: withMemory("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "40000", "57000"),
			want: []wantPart{{"MIG-24c6a0e5-fe28-53ac-9537-c4e23104f30f", gpu.ModeDRA, [2]int{1, 8}, 97871 * mibytes / 8, []wantRow{{"pod-56dbf5cf44-xnfk5", gpu.ReplicaRequest, 0, full, gpu.FlagCapacityAssumed}}}},
		},
		// A vGPU guest: 7,531 free of 8 GiB nominal; to its node it is a GPU.
		{
			file: "dcgm-13-vgpu-guest-grid-a100-8c-driver580.prom", inventory: publishedNode("vks-cluster-0-0-np1-worker-xtxww-xw4wp-wn7j2", 1),
			want: []wantPart{{"", gpu.ModeExclusive, whole, 7531 * mibytes, []wantRow{{"unallocated", gpu.NoMethod, 0, full, 0}}}},
			check: func(t *testing.T, l landed) {
				if d := l.device(t, 0); d.Model != "GRID-A100-8C" || d.TotalBytes != 8<<30 || d.ReservedBytes != (8192-7531)*mibytes {
					t.Errorf("%+v", d)
				}
			},
		},
		{file: "dcgm-17-sentinel-blank.prom", variant: "as published", uncounted: []string{"DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_MEM_CLOCK", "DCGM_FI_DEV_MEMORY_TEMP"}},
		// 9223372036854775794 is "not supported": on a series of memory it is dropped, and the GPU
		// is without telemetry.
		{
			file: "dcgm-17-sentinel-blank.prom", variant: "on a series of memory", inventory: publishedNode("n", 1), edit: replaced("DCGM_FI_DEV_MEMORY_TEMP{", `DCGM_FI_DEV_FB_USED{node="n", modelName="Tesla T4", `),
			want: []wantPart{{"", gpu.ModeExclusive, whole, 15360 * mibytes, []wantRow{{"no_telemetry", gpu.NoMethod, 0, full, 0}}}},
			check: func(t *testing.T, l landed) {
				if d := l.device(t, 0); d.Dropped["blank"] != 180 {
					t.Errorf("dropped %v", d.Dropped)
				}
			},
		},
		// MIG is on and there is no instance: no series of memory, and all of the GPU is not
		// partitioned, by the mixed strategy of nodelabels-01.
		{
			file: "dcgm-18-mig-enabled-no-instances-no-fb-series.prom", inventory: join(publishedNode("n", 0, mixed...), exporterOn("n", "nvidia-dcgm-exporter-wwvv9")),
			want: []wantPart{{"", gpu.ModeMIG, whole, 40960 * mibytes, []wantRow{{"mig_unpartitioned", gpu.NoMethod, 0, full, 0}}}},
		},
	}
}

// withMemory gives the label sets of a metric the two families of memory that an exporter
// has under the same.
func withMemory(metric, used, free string) func(string) string {
	return func(text string) string {
		var out []string
		for _, line := range linesOf(text, metric+"{") {
			labels := line[len(metric) : lastIndex(line, '}')+1]
			out = append(out, "DCGM_FI_DEV_FB_USED"+labels+" "+used, "DCGM_FI_DEV_FB_FREE"+labels+" "+free)
		}
		return joinLines(out)
	}
}
