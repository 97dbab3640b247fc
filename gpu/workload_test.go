package gpu

import (
	"testing"
	"time"

	"gpuledger/billing/period"
)

// The chain of owners where it is collected, and the controllers' naming rule where it
// is not: a ReplicaSet of its own, and one of an Argo Rollout, are not a Deployment.
func TestWorkloads(t *testing.T) {
	hour := time.Date(2026, 10, 5, 10, 0, 0, 0, time.UTC)
	one := func(metric string, kv ...string) Series {
		s := Series{Metric: metric, Labels: map[string]string{"namespace": "ml"}}
		for i := 0; i < len(kv); i += 2 {
			s.Labels[kv[i]] = kv[i+1]
		}
		for m := range 60 {
			s.Samples = append(s.Samples, Sample{UnixMilli: hour.Add(time.Duration(m) * time.Minute).UnixMilli(), Value: 1})
		}
		s.Prepare()
		return s
	}
	pod := func(uid, kind, name string) []Series {
		return []Series{
			one("kube_pod_info", "uid", uid, "pod", uid, "node", "n"),
			one("kube_pod_owner", "uid", uid, "pod", uid, "owner_kind", kind, "owner_name", name, "owner_is_controller", "true"),
		}
	}
	var all []Series
	all = append(all, pod("chained", "ReplicaSet", "web-7d9c5b8f6")...)
	all = append(all, one("kube_replicaset_owner", "replicaset", "web-7d9c5b8f6", "owner_kind", "Deployment", "owner_name", "web-of-another-name", "owner_is_controller", "true"))
	all = append(all, pod("alone", "ReplicaSet", "by-hand")...)
	all = append(all, one("kube_replicaset_owner", "replicaset", "by-hand", "owner_kind", "", "owner_name", "", "owner_is_controller", ""))
	all = append(all, pod("rollout", "ReplicaSet", "api-6f5d")...)
	all = append(all, one("kube_replicaset_owner", "replicaset", "api-6f5d", "owner_kind", "Rollout", "owner_name", "api", "owner_is_controller", "true"))
	all = append(all, pod("by-name", "ReplicaSet", "ranker-5c6b7d8f9")...)
	all = append(all, pod("nightly", "Job", "nightly-29341440")...)
	all = append(all, one("kube_job_owner", "job_name", "nightly-29341440", "owner_kind", "CronJob", "owner_name", "nightly", "owner_is_controller", "true"))
	all = append(all, pod("once", "Job", "import-20261005")...)
	all = append(all, one("kube_job_owner", "job_name", "import-20261005", "owner_kind", "<none>", "owner_name", "<none>", "owner_is_controller", "<none>"))
	all = append(all, pod("hourly", "Job", "hourly-29341500")...)
	all = append(all, pod("set", "StatefulSet", "db")...)
	all = append(all, one("kube_pod_info", "uid", "bare", "pod", "bare", "node", "n"), one("kube_pod_owner", "uid", "bare", "pod", "bare", "owner_kind", "<none>", "owner_name", "<none>"))
	inv := NewInventory(all, Settings{}, period.Hour(hour))
	for uid, want := range map[string][2]string{
		"chained": {"Deployment", "web-of-another-name"}, "alone": {"ReplicaSet", "by-hand"}, "rollout": {"Rollout", "api"},
		"by-name": {"Deployment", "ranker"}, "nightly": {"CronJob", "nightly"}, "once": {"Job", "import-20261005"}, "hourly": {"CronJob", "hourly"},
		"set": {"StatefulSet", "db"}, "bare": {"Pod", "bare"},
	} {
		if p := inv.Pods[uid]; p == nil || [2]string{p.WorkloadKind, p.WorkloadName} != want {
			t.Errorf("%s: %+v, want %v", uid, p, want)
		}
	}
}

// The usual labels of node pools, each alone, and Karpenter's before a managed one's.
func TestNodePools(t *testing.T) {
	hour := time.Date(2026, 10, 5, 10, 0, 0, 0, time.UTC)
	pool := func(kv ...string) string {
		s := Series{Metric: "kube_node_labels", Labels: map[string]string{"node": "n"}, Samples: []Sample{{UnixMilli: hour.UnixMilli(), Value: 1}}}
		for i := 0; i < len(kv); i += 2 {
			s.Labels["label_"+resourceName(kv[i])] = kv[i+1]
		}
		return NewInventory([]Series{s}, Settings{}, period.Hour(hour)).Nodes["n"].Pool
	}
	for _, l := range []string{
		"karpenter.sh/nodepool", "karpenter.sh/provisioner-name", "eks.amazonaws.com/nodegroup", "alpha.eksctl.io/nodegroup-name", "cloud.google.com/gke-nodepool",
		"kubernetes.azure.com/agentpool", "agentpool", "kops.k8s.io/instancegroup", "worker.gardener.cloud/pool", "doks.digitalocean.com/node-pool",
		"ibm-cloud.kubernetes.io/worker-pool-name", "k8s.scaleway.com/pool-name", "lke.linode.com/pool-id", "vke.vultr.com/node-pool", "alibabacloud.com/nodepool-id", "cluster.x-k8s.io/deployment-name",
	} {
		if got := pool(l, "gpu-a"); got != "gpu-a" {
			t.Errorf("%s: pool %q", l, got)
		}
	}
	if got := pool("eks.amazonaws.com/nodegroup", "managed", "karpenter.sh/nodepool", "karp"); got != "karp" {
		t.Errorf("pool %q", got)
	}
	if got := pool("some/other", "x"); got != "" {
		t.Errorf("pool %q", got)
	}
}
