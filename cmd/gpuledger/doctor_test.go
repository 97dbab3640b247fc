package main

import (
	"strings"
	"testing"
	"time"

	"gpuledger/gpu"
	"gpuledger/internal/pgtest"
)

// illness is one thing that is wrong with a fleet.
type illness struct {
	name string
	hurt func(w *ward)
	what string // "RESULT check": what the finding says
	fix  string // within its fix
}

func (i illness) check(t *testing.T, dsn string) {
	t.Helper()
	w := healthy()
	i.hurt(w)
	code, found, text := w.examine(t, dsn)
	head, what, _ := strings.Cut(i.what, ": ")
	result, check, _ := strings.Cut(head, " ")
	want := exitIncomplete
	if result == note {
		want = 0
	}
	if code != want {
		t.Errorf("exit %d, want %d\n%s", code, want, text)
	}
	for _, f := range found {
		if f.result == result && f.check == check && strings.Contains(f.subject+": "+f.what, what) && strings.Contains(f.fix, i.fix) {
			return
		}
	}
	t.Errorf("no %q with the fix %q in\n%s", i.what, i.fix, text)
}

// Each thing that can be wrong with nodes and the exporters on them, one by one: the
// finding names it, and the line that fixes it. A NOTE is no fault.
func TestDoctorFindsNodes(t *testing.T) {
	dsn := pgtest.New(t, migrate)
	for _, i := range []illness{
		{"clock", func(w *ward) { w.now = doctorNow.Add(-10 * time.Minute) }, "MISSING telemetry: later than now by 9m45s", "NTP"},
		{"wrong cluster", func(w *ward) {
			w.config = strings.Replace(w.config, "path: m.om", "path: m.om, match: {cluster: other}", 1)
		}, "MISSING telemetry: no GPU node", "metrics.match"},
		{"no exporter", func(w *ward) { w.without("DCGM", "node", "n2") }, "MISSING node: n2: no series of any of its 1 GPU", "dcgm-exporter runs on it"},
		{"a GPU is gone", func(w *ward) { w.without("DCGM", "UUID", "GPU-n4-2") }, "MISSING node: n4: 1 GPU of 4 without series: number 2", "fallen off the bus"},
		{"idle GPUs left out", func(w *ward) {
			w.without("DCGM", "UUID", "GPU-n4-2")
			w.edit(func(s *gpu.Series) bool {
				if s.Labels["node"] == "n4" && strings.HasPrefix(s.Metric, "DCGM") {
					s.Labels["vgpu"] = "0"
				}
				return true
			})
		}, "MISSING node: n4: 1 GPU of 4", "4.5.3-4.8.2 or newer"},
		{"device plugin down", func(w *ward) {
			w.setValue("kube_node_status_capacity", 0, "node", "n4", "resource", "nvidia_com_gpu", "unit", "integer")
		}, "MISSING node: n4: has GPUs and a capacity of none", "device plugin"},
		{"no provider id", func(w *ward) { w.unlabel("kube_node_info", "n3", "provider_id") }, "MISSING node: n3: no provider id", "spec.providerID"},
		{
			"two machines", func(w *ward) { w.add("kube_node_info", 1, "node", "n1", "provider_id", "aws:///us-east-1a/i-other") },
			"FAILED node: node n1 is two machines at once", "metrics.match",
		},
		{"unplaced", func(w *ward) {
			w.unlabel("DCGM", "n2", "hostname", "instance", "exported_pod", "exported_namespace", "pod_uid", "node")
		}, "MISSING node: 1 GPU of no known node: GPU-n2-0", "__meta_kubernetes_pod_node_name"},
		{"unknown to kube-state-metrics", func(w *ward) { w.without("kube_node", "node", "n3") }, "MISSING node: n3: kube-state-metrics does not know it", "export nodes"},
		{"mode unknown", func(w *ward) {
			w.without("kube_node_status_capacity", "node", "n3")
			w.unlabel("kube_node_labels", "n3", "label_nvidia_com_gpu_replicas", "label_nvidia_com_gpu_sharing_strategy")
		}, "MISSING node: n3: 1 × L4, unknown: the sharing mode cannot be told", "flag: --metric-labels-allowlist=nodes=[eks.amazonaws.com/nodegroup,karpenter.sh/nodepool,node.kubernetes.io/instance-type,nvidia.com/gpu.count,nvidia.com/gpu.product,nvidia.com/gpu.replicas,nvidia.com/gpu.sharing-strategy,nvidia.com/mig.strategy,"},

		{"copies", func(w *ward) {
			w.unlabel("DCGM", "n5", "pod_uid")
			w.edit(func(s *gpu.Series) bool {
				shared := s.Metric == "DCGM_FI_DEV_FB_USED" && s.Labels["node"] == "n5"
				for k := range s.Samples {
					if shared {
						s.Samples[k].Value = 9000
					}
				}
				return !shared || s.Labels["exported_pod"] != ""
			})
		}, "MISSING bytes: n5: replica_request: the exporter copies the device's figure", "dcgm-exporter 4.5.3-4.8.2 or newer with --kubernetes-virtual-gpus (KUBERNETES_VIRTUAL_GPUS=true) and hostPID: true"},
		{"one of several is named", func(w *ward) {
			w.unlabel("DCGM", "n5", "pod_uid", "vgpu")
			w.without("DCGM_FI_DEV_FB_USED", "node", "n5", "exported_pod", "b")
			w.edit(func(s *gpu.Series) bool {
				return s.Metric != "DCGM_FI_DEV_FB_USED" || s.Labels["node"] != "n5" || s.Labels["exported_pod"] != ""
			})
		}, "MISSING bytes: n5: replica_request: the exporter names one pod", "--kubernetes-virtual-gpus"},
		{"PIDs are not mapped", func(w *ward) {
			w.edit(func(s *gpu.Series) bool {
				for k := range s.Samples {
					if s.Labels["vgpu"] != "" {
						s.Samples[k].Value = 0
					}
				}
				return true
			})
		}, "MISSING bytes: n5: replica_request: every pod shows 0 bytes", "hostPID: true"},
		{"by name", func(w *ward) { w.unlabel("DCGM", "n5", "pod_uid") }, "NOTE bytes: n5: process_name", "--kubernetes-enable-pod-uid"},
		{
			"no pod is named", func(w *ward) {
				w.unlabel("DCGM", "n1", "exported_pod", "exported_namespace", "exported_container", "pod_uid")
			},
			"MISSING bytes: n1: replica_request: the exporter names no pod", "DCGM_EXPORTER_KUBERNETES=true",
		},
		{"HAMi", func(w *ward) {
			w.add("kube_pod_container_resource_requests", 8000, "namespace", "ml", "pod", "a", "uid", "uid-a", "node", "n5", "container", "c", "resource", "nvidia_com_gpumem", "unit", "integer")
		}, "MISSING bytes: n5: process_uid: HAMi gives pods parts", "vGPUmonitor"},
		{"MPS", func(w *ward) {
			w.edit(func(s *gpu.Series) bool {
				if s.Metric == "kube_node_labels" && s.Labels["node"] == "n5" {
					s.Labels["label_nvidia_com_gpu_sharing_strategy"] = "mps"
				}
				return s.Labels["vgpu"] == ""
			})
		}, "NOTE bytes: n5: limit: MPS clients are charged the cap", "MPS clients on recent drivers"},
		{"not measured", func(w *ward) { w.without("DCGM_FI_DEV_FB", "node", "n1") }, "MISSING bytes: n1: replica_request: the memory that they use is not measured", "DCGM_FI_DEV_FB_USED"},
		{"pods unlisted", func(w *ward) { w.without("kube_pod", "uid", "uid-p-n1") }, "MISSING node: n1: pods that hold its GPUs are not in kube-state-metrics", "--namespaces"},
		{"rogue", func(w *ward) {
			w.without("kube_pod_container_resource_requests", "uid", "uid-a")
			w.unlabel("DCGM", "n5", "vgpu")
		}, "NOTE node: n5: pods use its GPUs without having requested one", "ACCEPT_NVIDIA_VISIBLE_DEVICES"},
	} {
		t.Run(i.name, func(t *testing.T) { i.check(t, dsn) })
	}
}

// The same of kube-state-metrics, labels, owners and the configuration.
func TestDoctorFindsTheRest(t *testing.T) {
	dsn := pgtest.New(t, migrate)
	all := []illness{
		{
			"no pod labels", func(w *ward) { w.without("kube_pod_labels") },
			"MISSING labels: prod: no series has app.kubernetes.io/part-of, model, serving.kserve.io/inferenceservice (label of pods, for a rule of owners.yaml and the dimension ai_model)",
			"pods=[app.kubernetes.io/part-of,model,serving.kserve.io/inferenceservice]",
		},
		{"a pod label", func(w *ward) {
			w.edit(func(s *gpu.Series) bool {
				if v := s.Labels["label_app_kubernetes_io_part_of"]; v != "" {
					delete(s.Labels, "label_app_kubernetes_io_part_of")
					s.Labels["label_my_own"], s.Labels["label_tier"] = v, v
				}
				return true
			})
		}, "MISSING labels: prod: no series has app.kubernetes.io/part-of (label", "pods=[app.kubernetes.io/part-of,model,serving.kserve.io/inferenceservice,tier] and what is listed now as my_own"},
		{"a label that nobody has", func(w *ward) {
			w.edit(func(s *gpu.Series) bool {
				if s.Metric == "kube_pod_labels" {
					delete(s.Labels, "label_app_kubernetes_io_part_of")
					s.Labels["label_pod_template_hash"] = "5d8f7c"
				}
				return true
			})
		}, "NOTE labels: no object has app.kubernetes.io/part-of", ""},
		{"namespace labels", func(w *ward) { w.rule("{match: {namespace_label: {team: x}}, team: y}") }, "MISSING labels: no series has team (label of namespaces", "namespaces=[team]"},
		{
			"annotations", func(w *ward) { w.rule("{match: {annotation: {billing/team: x}}, team: y}") },
			"MISSING labels: no series has billing/team (annotation of pods", "--metric-annotations-allowlist=pods=[billing/team]",
		},
		{"Run:ai", func(w *ward) {
			w.add("kube_pod_info", 1, "namespace", "runai-reservation", "pod", "r", "uid", "uid-r", "node", "n1")
		}, "MISSING labels: no series has runai-gpu-group (label of pods", "runai-gpu-group"},
		{"no node labels", func(w *ward) { w.without("kube_node_labels") }, "MISSING labels: no labels of nodes", "nvidia.com/gpu.sharing-strategy"},
		{"uncounted", func(w *ward) {
			w.unlabel("kube_node_labels", "", "label_nvidia_com_gpu_count", "label_node_kubernetes_io_instance_type")
		}, "MISSING labels: no label of nodes says how many GPUs", "node.kubernetes.io/instance-type"},
		{"pool", func(w *ward) {
			w.unlabel("kube_node_labels", "", "label_eks_amazonaws_com_nodegroup")
			w.policies = "remainder_owner: [{match: {node_pool: \"gpu-*\"}, team: platform}, {team: platform}]\n"
		}, "MISSING labels: no GPU node has a label of its pool, which remainder_owner of the policy read", "nodes=[eks.amazonaws.com/nodegroup,karpenter.sh/nodepool,"},
		{"pool that nobody needs", func(w *ward) { w.unlabel("kube_node_labels", "", "label_eks_amazonaws_com_nodegroup") }, "NOTE labels: no GPU node has a label of its pool", "eks.amazonaws.com/nodegroup"},
		{"DRA pods", claim, "MISSING kube: no kube_pod_resourceclaim_info, and pods hold GPUs by DRA claims", "2.20 or newer"},
		{"DRA devices", claim, "MISSING kube: no kube_resourceclaim_allocated_device", "deploy/kube-state-metrics/resourceclaims.yaml"},
		{"usage", func(w *ward) { w.config = strings.Replace(w.config, "name: prod", "name: prod, usage: true", 1) }, "MISSING kube: no container_cpu_usage_seconds_total", "/metrics/cadvisor"},
		{"owners of ReplicaSets", func(w *ward) {
			w.edit(func(s *gpu.Series) bool {
				if s.Metric == "kube_pod_owner" {
					s.Labels["owner_kind"] = "ReplicaSet"
				}
				return true
			})
		}, "NOTE kube: no kube_replicaset_owner", "replicasets in --resources"},
		{"no used", func(w *ward) { w.without("DCGM_FI_DEV_FB_USED") }, "MISSING exporter: no series of GPU memory in use", "DCGM_FI_DEV_FB_USED"},
		{"no free", func(w *ward) { w.without("DCGM_FI_DEV_FB_FREE") }, "MISSING exporter: no series of free or of all GPU memory", "DCGM_FI_DEV_FB_FREE"},
		{"no activity", func(w *ward) { w.without("DCGM_FI_DEV_GPU_UTIL") }, "NOTE exporter: no series of activity", "DCGM_FI_DEV_GPU_UTIL"},
		{"no exporter at all", func(w *ward) { w.without("DCGM") }, "MISSING exporter: no series of any GPU", "scrape dcgm-exporter"},

		{
			"no owner", func(w *ward) { w.owners = "rules: [{match: {namespace: other}, team: x}]\n" },
			"MISSING owners: prod: ml/set-p-n4 (StatefulSet, 1 pod, 4.00 GPUs) has no owner; labels app_kubernetes_io_part_of=ranking, model=llama", `{match: {namespace: "ml"}`,
		},
		{"a rule for nothing", func(w *ward) { w.rule("{match: {namespace: other}, team: x}") }, "NOTE owners: rule 3: the rule of team x matches nothing", ""},
		{"by account", func(w *ward) { w.owners = "rules: [{match: {account: \"1111*\"}, team: x}]\n" }, "NOTE owners: prod: 6 pods with GPUs whose owner depends on the account", ""},
		{"owners that cannot be read", func(w *ward) { w.owners = "rules: [{match: {namespace: x}}]\n" }, "FAILED owners: rule 1 has no team", "mend the line"},
		{"policy that cannot be read", func(w *ward) { w.policies = "basis: most\n" }, "FAILED policy: most", "mend the line"},
		{"two clusters", func(w *ward) {
			w.config = strings.Replace(w.config, "clusters: [", "clusters: [{name: west, metrics: {type: openmetrics, path: m.om}}, ", 1)
		}, "FAILED node: the machine i-n1 is in the clusters west and prod at once", "metrics.match of each"},
		{"fallback", func(w *ward) {
			w.config = strings.Replace(w.config, "path: m.om}", "path: m.om}, fallback: [{type: openmetrics, path: gone.om}]", 1)
		}, "FAILED telemetry: prod, fallback 1: openmetrics: ", "metrics.url"},
		{"discovery", func(w *ward) {
			w.config = strings.Replace(w.config, "name: prod", "discover: {label: cluster}", 1)
		}, "FAILED telemetry: clusters: ", "discover:"},
		{"no cluster", func(w *ward) { w.config = "bills: [{name: b, type: focus, location: bill.csv}]\nowners: owners.yaml\n" }, "MISSING telemetry: no cluster is configured", "clusters:"},
		{"no bill", func(w *ward) {
			w.config = strings.Replace(w.config, "bills: [{name: b, type: focus, location: bill.csv}]\n", "", 1)
		}, "MISSING bill: no bill source", "bills:"},
	}
	for _, f := range families {
		all = append(all, illness{f.metric, func(w *ward) { w.without(f.metric) }, f.result + " kube: no " + f.metric, f.metric + " not in --metric-denylist"})
	}
	for _, i := range all {
		t.Run(i.name, func(t *testing.T) { i.check(t, dsn) })
	}
}

// claim makes the pod of n1 hold its GPU by a DRA claim.
func claim(w *ward) {
	w.without("kube_node_status_capacity", "node", "n1")
	w.without("kube_pod_container_resource_requests", "uid", "uid-p-n1")
	w.edit(func(s *gpu.Series) bool {
		if strings.HasPrefix(s.Metric, "DCGM") && s.Labels["node"] == "n1" {
			for k, v := range map[string]string{"dra_claim_name": "c1", "dra_claim_namespace": "ml", "dra_driver_name": "gpu.nvidia.com", "dra_pool_name": "n1", "dra_device_name": "gpu-0"} {
				s.Labels[k] = v
			}
		}
		return true
	})
}
