package gpu

import (
	"maps"
	"slices"
	"strings"
)

// The kube-state-metrics families the inventory is built from (DESIGN §5), by what they
// are chosen by when the nodes of a fleet are read apart.
var (
	// NodeMetrics say which nodes have GPUs.
	NodeMetrics = []string{"kube_node_info", "kube_node_labels", "kube_node_status_capacity"}
	// OnNodeMetrics are of a node, beside kube_node_info.
	OnNodeMetrics = []string{"kube_node_labels", "kube_node_created", "kube_node_status_capacity", "kube_node_status_condition"}
	// PodMetric is of a pod and names its node.
	PodMetric = "kube_pod_info"
	// RequestMetric does too, of a pod that requests something.
	RequestMetric = "kube_pod_container_resource_requests"
	// OfPodMetrics are of a pod and name it by its UID.
	OfPodMetrics = []string{
		"kube_pod_labels", "kube_pod_annotations", "kube_pod_owner", "kube_pod_start_time", "kube_pod_completion_time",
		"kube_pod_status_phase", RequestMetric, claimOfPodMetric,
	}
	// ClusterMetrics are of no node and no pod.
	ClusterMetrics = []string{"kube_namespace_labels", ClaimDeviceMetric, ClaimCapacityMetric}

	// OwnerMetrics name what owns a ReplicaSet or a Job, by the label that names it.
	OwnerMetrics = map[string]string{"kube_replicaset_owner": "replicaset", "kube_job_owner": "job_name"}

	// InventoryMetrics are all of them.
	InventoryMetrics = slices.Concat([]string{"kube_node_info", PodMetric}, OnNodeMetrics, OfPodMetrics, slices.Sorted(maps.Keys(OwnerMetrics)), ClusterMetrics)
)

const claimOfPodMetric = "kube_pod_resourceclaim_info"

// Coverage makes one series for each scrape target of series of nodes, with every time at
// which it was scraped: they tell when the inventory was seen, of whatever nodes.
func Coverage(info []Series) []Series {
	type target struct{ job, instance string }
	times := map[target][]int64{}
	for _, s := range info {
		key := target{s.Labels["job"], s.Labels["instance"]}
		at := make([]int64, len(s.Samples))
		for i, x := range s.Samples {
			at[i] = x.UnixMilli
		}
		times[key] = unionTimes(times[key], at)
	}
	var out []Series
	for key, all := range times {
		s := Series{Metric: "kube_node_info", Labels: map[string]string{}}
		for name, v := range map[string]string{"job": key.job, "instance": key.instance} {
			if v != "" {
				s.Labels[name] = v
			}
		}
		for _, t := range all {
			s.Samples = append(s.Samples, Sample{t, 1})
		}
		s.Prepare()
		out = append(out, s)
	}
	return out
}

// ClaimOf is the resource claim, namespace/name, that a series of the cluster is about.
func ClaimOf(s Series) (claim string, ok bool) {
	if s.Metric != ClaimDeviceMetric && s.Metric != ClaimCapacityMetric {
		return "", false
	}
	return workloadLabel(s.Labels, "namespace") + "/" + s.Labels["name"], true
}

// ClaimNamed is the resource claim, namespace/name, that a series of a pod or of a device
// names; "" where it names none.
func ClaimNamed(s Series) string {
	if c, ok := claimOf(s.Labels); ok {
		return c.name
	}
	if claim := s.Labels["resourceclaim_name"]; s.Metric == claimOfPodMetric && claim != "" {
		return workloadLabel(s.Labels, "namespace") + "/" + claim
	}
	return ""
}

// OwnerToFollow is the owner that a series of a pod names, where that has owners of its
// own: by which of OwnerMetrics they are found, and its name; "" for any other.
func OwnerToFollow(s Series) (metric, name string) {
	if o, ok := ownerOf(s); ok && s.Metric == "kube_pod_owner" {
		switch o.kind {
		case "ReplicaSet":
			return "kube_replicaset_owner", o.name
		case "Job":
			return "kube_job_owner", o.name
		}
	}
	return "", ""
}

// PodName is the pod that a series of the inventory is of; "" for one of no pod.
func PodName(s Series) string {
	if s.Labels["uid"] == "" {
		return ""
	}
	return workloadLabel(s.Labels, "pod")
}

// PodKey is namespace/name of the pod that a series of the inventory is of.
func PodKey(s Series) string {
	return workloadLabel(s.Labels, "namespace") + "/" + workloadLabel(s.Labels, "pod")
}

// NamedPod is the pod that a series of a device names: namespace/name, name and UID; all
// "" where it names none.
func (s Settings) NamedPod(x Series) (key, name, uid string) {
	how, known := s.exporters()[x.Metric]
	if !known || how.of == "device" {
		return "", "", ""
	}
	ref, ok := podOf(how.canonical(x))
	if !ok {
		return "", "", ""
	}
	return ref.namespace + "/" + ref.name, ref.name, ref.uid
}

// Add brings in what another part of the fleet had in the same hour.
func (h *ClusterHour) Add(o ClusterHour) {
	h.Hour, h.CoveredMicros = o.Hour, max(h.CoveredMicros, o.CoveredMicros)
	h.Nodes = append(h.Nodes, o.Nodes...)
	slices.SortStableFunc(h.Nodes, func(a, b NodeHour) int { return strings.Compare(a.Node, b.Node) })
	h.Unplaced = merged(h.Unplaced, o.Unplaced)
	h.Clashes = append(h.Clashes, o.Clashes...)
	for _, p := range o.Inventory.Pods { // what only the folding needed
		p.requestBy, p.containers, p.seen, p.running = nil, nil, nil, nil
	}
	if h.Inventory == nil {
		h.Inventory = o.Inventory
		return
	}
	inv := h.Inventory
	maps.Copy(inv.Nodes, o.Inventory.Nodes)
	maps.Copy(inv.Pods, o.Inventory.Pods)
	maps.Copy(inv.Namespaces, o.Inventory.Namespaces)
	for key, p := range o.Inventory.unlisted {
		if mine := inv.unlisted[key]; mine != nil {
			p.life = interval{min(p.life.start, mine.life.start), max(p.life.end, mine.life.end)}
		}
		inv.unlisted[key] = p
	}
	inv.byName, inv.onNode, inv.anyName, inv.named = nil, nil, nil, nil
}
