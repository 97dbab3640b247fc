package main

import (
	"fmt"
	"slices"
	"strings"

	"gpuledger/gpu"
)

// family is what kube-state-metrics has to export, and what brings it.
type family struct {
	metric, result, what, fix string
}

// families are the ones that need no label.
var families = []family{
	{"kube_node_info", missing, "nodes and their provider ids", kubeDefault("nodes", "kube_node_info")},
	{"kube_node_status_capacity", missing, "what a node has", kubeDefault("nodes", "kube_node_status_capacity")},
	{"kube_node_status_condition", note, "when a node is Ready: it is taken to be while it is there", kubeDefault("nodes", "kube_node_status_condition")},
	{"kube_pod_info", missing, "pods and their nodes", kubeDefault("pods", "kube_pod_info")},
	{gpu.RequestMetric, missing, "requests of GPUs", kubeDefault("pods", gpu.RequestMetric)},
	{"kube_pod_start_time", missing, "when a pod began", kubeDefault("pods", "kube_pod_start_time")},
	{"kube_pod_status_phase", missing, "when a pod ended: one that has is taken to hold its GPU while it is listed", kubeDefault("pods", "kube_pod_status_phase")},
	{"kube_pod_owner", missing, "workloads", kubeDefault("pods", "kube_pod_owner")},
}

func kubeDefault(resource, metric string) string {
	return fmt.Sprintf("kube-state-metrics: %s in --resources, and %s not in --metric-denylist (nor missing in --metric-allowlist)", resource, metric)
}

// judgeFamilies says which families are missing on the nodes that were looked at.
func (l *look) judgeFamilies() {
	have := 0
	for _, f := range families {
		if l.seen.countOf(f.metric) > 0 {
			have++
			continue
		}
		l.r.add(f.result, "kube", l.name, "no "+f.metric+": "+f.what, f.fix)
	}
	if have > 0 {
		what := fmt.Sprintf("kube-state-metrics%s has %d of %d families that are always read", l.ksm, have, len(families))
		l.r.good("kube", l.name, "%s", what)
	}
	for _, f := range []family{
		{"kube_replicaset_owner", note, "Deployments are told by the names of their ReplicaSets", kubeDefault("replicasets", "kube_replicaset_owner")},
		{"kube_job_owner", note, "CronJobs are told by the names of their Jobs", kubeDefault("jobs", "kube_job_owner")},
	} {
		if l.seen.wouldFollow(f.metric) && l.seen.countOf(f.metric) == 0 {
			l.r.add(f.result, "kube", l.name, "no "+f.metric+": "+f.what, f.fix)
		}
	}
	if l.cl.Usage && l.seen.countOf(gpu.UsageMetrics...) == 0 {
		l.r.bad("kube", l.name, "no "+strings.Join(gpu.UsageMetrics, " or ")+", and the cluster has usage: true", "scrape the kubelets' cAdvisor (/metrics/cadvisor)")
	}
	l.judgeClaims()
	l.judgeMemory()
}

func (o *observed) wouldFollow(metric string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.follow[metric]
}

// judgeClaims looks for what tells of DRA claims, where pods have some.
func (l *look) judgeClaims() {
	byInventory := l.seen.countOf("kube_pod_resourceclaim_info") > 0
	if !l.fleet.claims && !byInventory {
		return
	}
	result := missing
	if !l.fleet.plain { // a device plugin hands out all GPUs: the claims may be of something else
		result = note
	}
	if !byInventory {
		l.r.add(missing, "kube", l.name, "no kube_pod_resourceclaim_info, and pods hold GPUs by DRA claims: one that no sample shows is not seen",
			"kube-state-metrics 2.20 or newer"+strings.TrimSuffix(" (here:"+l.ksm+")", " (here:)"))
	}
	if l.seen.countOf(gpu.ClaimDeviceMetric) == 0 {
		l.r.add(result, "kube", l.name, "no "+gpu.ClaimDeviceMetric+": which devices DRA claims have, and how much of their memory, is not known", "kube-state-metrics --custom-resource-state-config-file with deploy/kube-state-metrics/resourceclaims.yaml")
	}
}

// judgeMemory looks for the exporters' figures of memory.
func (l *look) judgeMemory() {
	settings := l.cl.settings()
	found := map[string]bool{}
	devices := 0
	for _, m := range settings.DeviceMetrics() {
		if n := l.seen.countOf(m); n > 0 {
			found[settings.FamilyOf(m)] = true
			devices += n
		}
	}
	const exporter = "exporter"
	switch {
	case devices == 0:
		l.r.bad(exporter, l.name, "no series of any GPU", "scrape dcgm-exporter (or another: gpuledger exporters lists those that are known), and check that metrics.match is true of its series too")
		return
	case !found["used"]:
		l.r.bad(exporter, l.name, "no series of GPU memory in use", "let the exporter have DCGM_FI_DEV_FB_USED (4.9: DCGM_FI_DEV_FB_USED_BYTES) among its counters")
	case !found["free"] && !found["total"]:
		l.r.bad(exporter, l.name, "no series of free or of all GPU memory: sizes are of the table of models", "let the exporter have DCGM_FI_DEV_FB_FREE among its counters, and best DCGM_FI_DEV_FB_TOTAL and DCGM_FI_DEV_FB_RESERVED")
	}
	if !found["gpu_util"] && !found["engine_active"] && !found["sm_active"] {
		l.r.note(exporter, l.name, "no series of activity: efficiency is of memory only", "let the exporter have DCGM_FI_DEV_GPU_UTIL or DCGM_FI_PROF_GR_ENGINE_ACTIVE among its counters")
	}
}

// judge writes what was found.
func (l *look) judge() {
	l.judgeNodes()
	if len(l.fleet.nodes) == 0 {
		return
	}
	l.judgeFamilies()
	l.judgeLabels()
	l.judgeOwners()
}

// spelt is a label as kube-state-metrics spells it.
func spelt(key string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '_'
	}, key)
}

// has reports whether some object's labels, of a metric, include one.
func (o *observed) has(metric, key string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.labels[metric][spelt(key)]
}

func (o *observed) hasAny(metric string, keys []string) bool {
	return slices.ContainsFunc(keys, func(k string) bool { return o.has(metric, k) })
}
