package main

import (
	"slices"
	"strings"
	"testing"

	"gpuledger/gpu"
)

// publishedOthers are the files of other exporters, of kube-state-metrics and of node labels.
func publishedOthers(t *testing.T) []published {
	mixed, t4 := nodeLabels(t, "nodelabels-01-gfd-mig-mixed-a100.yaml"), nodeLabels(t, "nodelabels-02-gfd-t4.yaml")
	whole := [2]int{1, 1}
	scraped := func(instance string) func(string) string { return replaced(`{`, `{instance="`+instance+`:9835",`) }
	mistral := "mistral-7b-78c69f7cc4-fz96k"
	unused := wantPart{"", gpu.ModeTimeSlicing, whole, 0, []wantRow{{mistral, gpu.ReplicaRequest, 0, [2]uint64{0, 1}, gpu.FlagCapacityAssumed}, {"unallocated", gpu.NoMethod, 0, full, 0}}}
	return []published{
		// A vGPU of 300 MiB that its container has not touched. The card's size is not in the file:
		// what the limit is of it is an estimate, and all that is known of it.
		{
			file: "hami-01-legacy-vgpumonitor.prom", inventory: join(publishedNode("n", 10), publishedPod("n", "default", "gpu-cxeyttpu-5bc96fc469-8q2zb", "nvidia_com_gpu", 1)),
			want: []wantPart{{"", gpu.ModeFraction, whole, 0, []wantRow{{"gpu-cxeyttpu-5bc96fc469-8q2zb", gpu.ReplicaRequest, 0, full, gpu.FlagCapacityAssumed}}}},
		},
		// With the size that HAMi's scheduler has of the card, 300 of 16,384 MiB.
		{
			file: "hami-01-legacy-vgpumonitor.prom", variant: "with the scheduler's metrics", inventory: join(publishedNode("n", 10), publishedPod("n", "default", "gpu-cxeyttpu-5bc96fc469-8q2zb", "nvidia_com_gpu", 1)),
			edit: func(text string) string {
				return text + "\nGPUDeviceMemoryLimit{deviceidx=\"0\",deviceuuid=\"GPU-59ab1128-3130-b95a-9870-4bd748926e97\",nodeid=\"n\",zone=\"vGPU\"} 1.7179869184e+10\n"
			},
			want: []wantPart{{"", gpu.ModeFraction, whole, 16 << 30, []wantRow{
				{"gpu-cxeyttpu-5bc96fc469-8q2zb", gpu.ProcessName, 0, [2]uint64{300, 16384}, 0}, {"unallocated", gpu.NoMethod, 0, [2]uint64{16384 - 300, 16384}, 0},
			}}},
		},
		// Four vGPUs of one pod, of which one is used: 19,876,938,752 bytes, by a gauge that was
		// typed a counter and has the sizes as labels. Sizes of cards and limits are not in the file.
		{
			file: "hami-02-legacy-multi-gpu-pod.prom", inventory: join(publishedNode("n", 40), publishedPod("n", "default", mistral, "nvidia_com_gpu", 4)),
			want: []wantPart{
				{"", gpu.ModeTimeSlicing, whole, 0, []wantRow{{mistral, gpu.ReplicaRequest, 19_876_938_752, full, gpu.FlagCapacityAssumed}}}, unused, unused, unused,
			},
		},
		// An empty gpu_pod_name is the device's total, 307,691,520 bytes, of which the pod has
		// 89,128,960. The card is in no table: its size is one's own to say.
		{
			file: "k8sgpu-01-jk97.prom", inventory: join(publishedNode("dev-ms-7c22", 2), publishedPod("dev-ms-7c22", "default", "style-transfer-worker-0", "nvidia_com_gpu", 1)),
			settings: gpu.Settings{Models: []gpu.Model{{Name: "GEFORCE-GTX-1660-SUPER", TotalBytes: 6 << 30}}},
			want: []wantPart{{"", gpu.ModeTimeSlicing, whole, 6 << 30, []wantRow{
				{"style-transfer-worker-0", gpu.ProcessName, 89_128_960, [2]uint64{89_128_960, 6 << 30}, gpu.FlagCapacityAssumed},
				{"unallocated", gpu.NoMethod, 0, [2]uint64{6<<30 - 307_691_520, 6 << 30}, 0},
				{"unattributed", gpu.NoMethod, 218_562_560, [2]uint64{218_562_560, 6 << 30}, 0},
			}}},
		},
		{
			file: "k8sgpu-01-jk97.prom", variant: "a card of unknown size", inventory: join(publishedNode("dev-ms-7c22", 2), publishedPod("dev-ms-7c22", "default", "style-transfer-worker-0", "nvidia_com_gpu", 1)),
			want: []wantPart{{"", gpu.ModeTimeSlicing, whole, 0, []wantRow{
				{"style-transfer-worker-0", gpu.ReplicaRequest, 89_128_960, [2]uint64{89_128_960, 307_691_520}, gpu.FlagCapacityAssumed}, {"unattributed", gpu.NoMethod, 218_562_560, [2]uint64{218_562_560, 307_691_520}, 0},
			}}},
		},
		// Spelling of kube-state-metrics: two containers of a pod that asks for a GPU, a node with
		// four of which one can be allocated, two claims of a pod and one that is pending.
		{
			file: "ksm-01-gpu-requests-claims.prom", inventory: join([]gpu.Series{beside("kube_node_info", 1, "node", "node1"), beside("kube_node_info", 1, "node", "127.0.0.1")}, []gpu.Series{beside("kube_pod_info", 1, "node", "127.0.0.1", "namespace", "ns1", "pod", "pod1", "uid", "uid1")}),
			edit: replaced(`{`, `{job="ksm",`),
			want: slices.Repeat([]wantPart{{"", gpu.ModeUnknown, whole, 0, []wantRow{{"no_telemetry", gpu.NoMethod, 0, full, gpu.FlagModeUnknown}}}}, 4),
			check: func(t *testing.T, l landed) {
				if n := l.inventory.Nodes["127.0.0.1"]; n == nil || n.GPUCapacity["nvidia_com_gpu"] != 4 {
					t.Errorf("%+v", n)
				}
				if p := l.inventory.Pods["uid1"]; p == nil || !slices.Equal(p.Claims, []string{"ns1/pod1-gpu-tmpl-abcde", "ns1/shared-gpu-claim"}) {
					t.Errorf("claims of pod1: %+v", p)
				}
			},
		},
		// The labels of a MIG-mixed node, gpu.replicas "0": one A100, whose exporter is silent. Its
		// pod holds a 1g.5gb, an eighth; of the rest nothing is known.
		{
			file: "nodelabels-01-gfd-mig-mixed-a100.yaml", inventory: join(publishedNode("n", 0, mixed...), publishedPod("n", "ml", "a", "nvidia_com_mig_1g_5gb", 1)),
			want: []wantPart{
				{"requested-a", gpu.ModeMIG, [2]int{1, 8}, 5120 * mibytes, []wantRow{{"a", gpu.ReplicaRequest, 0, full, gpu.FlagPlacementInferred | gpu.FlagCapacityAssumed}}},
				{"rest", gpu.ModeMIG, [2]int{7, 8}, 7 * 5120 * mibytes, []wantRow{{"no_telemetry", gpu.NoMethod, 0, full, 0}}},
			},
		},
		// Two T4s; mig.strategy is "mixed" though a T4 has no MIG: they are exclusive.
		{
			file: "nodelabels-02-gfd-t4.yaml", inventory: join(publishedNode("n", 0, t4...), publishedPod("n", "ml", "a", "nvidia_com_gpu", 1)),
			want: []wantPart{
				{"", gpu.ModeExclusive, whole, 15360 * mibytes, []wantRow{{"a", gpu.ReplicaRequest, 0, full, gpu.FlagPlacementInferred | gpu.FlagCapacityAssumed}}},
				{"", gpu.ModeExclusive, whole, 15360 * mibytes, []wantRow{{"no_telemetry", gpu.NoMethod, 0, full, 0}}},
			},
		},
		// An exclusive H100 of one pod: its processes are 20 MiB less than the device's 20,780,679,168
		// bytes, and are no pods. The scrape's instance names the node; no label names the pod.
		{
			file: "nvsmi-01-h100-compute-apps-load.prom", edit: scraped("n"), inventory: join(publishedNode("n", 1), publishedPod("n", "ml", "train", "nvidia_com_gpu", 1)),
			want: []wantPart{{"", gpu.ModeExclusive, whole, 85_520_809_984 - 502_267_904, []wantRow{{"train", gpu.ReplicaRequest, 20_780_679_168, full, gpu.FlagPlacementInferred}}}},
			check: func(t *testing.T, l landed) {
				if d := l.device(t, 0); d.UUID != "GPU-00000000-0000-0000-0000-000000000000" || d.Model != "H100-80GB-HBM3" || d.TotalBytes != 85_520_809_984 || d.ReservedBytes != 502_267_904 {
					t.Errorf("%+v", d)
				}
			},
		},
		// An L40S, 46,068 MiB with 609 reserved, on which nobody's 1,294,991,360 bytes lie.
		{
			file: "nvsmi-03-l40s-load.prom", edit: scraped("n"), inventory: publishedNode("n", 1),
			want: []wantPart{{"", gpu.ModeExclusive, whole, 47_667_216_384, []wantRow{
				{"unallocated", gpu.NoMethod, 0, [2]uint64{47_667_216_384 - 1_294_991_360, 47_667_216_384}, 0}, {"unattributed", gpu.NoMethod, 1_294_991_360, [2]uint64{1_294_991_360, 47_667_216_384}, 0},
			}}},
			check: func(t *testing.T, l landed) {
				if d := l.device(t, 0); d.TotalBytes != 46_068*mibytes || d.ReservedBytes != 609*mibytes || d.Model != "L40S" {
					t.Errorf("%+v", d)
				}
			},
		},
		// Utilisation of containers only: it says nothing of memory, so the node's GPU is without
		// telemetry, and its pods have what they requested.
		{
			file: "tke-01-container-util.prom", uncounted: []string{"DCGM_FI_K8S_GPU_UTIL", "DCGM_FI_K8S_MEM_COPY_UTIL", "DCGM_FI_K8S_ENC_UTIL", "DCGM_FI_K8S_DEC_UTIL"},
			inventory: join(publishedNode("n", 1, "label_nvidia_com_gpu_count", "1", "label_nvidia_com_gpu_product", "Tesla-T4"), publishedPod("n", "default", "benchmark-0", "nvidia_com_gpu", 1)),
			want:      []wantPart{{"", gpu.ModeExclusive, whole, 15360 * mibytes, []wantRow{{"benchmark-0", gpu.ReplicaRequest, 0, full, gpu.FlagPlacementInferred | gpu.FlagCapacityAssumed}}}},
		},
	}
}

func join(parts ...[]gpu.Series) []gpu.Series { return slices.Concat(parts...) }

// linesOf are the lines of a text that begin with a prefix.
func linesOf(text, prefix string) []string {
	var out []string
	for _, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, prefix) {
			out = append(out, line)
		}
	}
	return out
}

func lastIndex(s string, b byte) int { return strings.LastIndexByte(s, b) }

func joinLines(lines []string) string { return strings.Join(lines, "\n") + "\n" }
