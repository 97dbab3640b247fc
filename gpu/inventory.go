package gpu

import (
	"slices"
	"strings"
	"time"

	"gpuledger/billing/period"
)

// Inventory is what kube-state-metrics says of a cluster over a window.
type Inventory struct {
	Nodes      map[string]*Node // by name
	Pods       map[string]*Pod  // by UID
	Namespaces map[string]map[string]string
	resources  map[string]bool        // further GPU resources
	claims     map[string][]allocated // by namespace/name
	owners     map[owned]owner        // who owns a ReplicaSet or a Job, where that is collected
	covered    []interval             // when the inventory itself was seen
	byName     map[string][]*Pod
	onNode     map[string][]*Pod // each in the order of their UIDs
	unlisted   map[string]*Pod   // pods that only device series name
	anyName    map[string]*Pod   // for podAnywhere; nil value: ambiguous
	named      map[string][]*Pod // for podsNamed
}

// Node is a Kubernetes node over a window.
type Node struct {
	Name         string
	ProviderID   string // aws:///us-east-1a/i-0abc
	InstanceID   string // the provider's name of the machine: its last segment
	InstanceType string
	Region, Zone string
	Pool         string
	Labels       map[string]string // as kube_node_labels spells them, without "label_"
	GPUCapacity  map[string]int64  // by resource as kube-state-metrics spells it: nvidia_com_gpu
	CPUMilli     int64
	MemoryBytes  int64
	machines     []machine // in the order in which they were seen
	present      []interval
	ready        []interval // intervals with the condition Ready
	hasReady     bool
	created      []int64 // of each machine, Unix µs
}

// NewInventory builds an inventory from kube-state-metrics series.
func NewInventory(series []Series, settings Settings, hour period.Span) *Inventory {
	inv := &Inventory{Nodes: map[string]*Node{}, Pods: map[string]*Pod{}, Namespaces: map[string]map[string]string{}, byName: map[string][]*Pod{}, unlisted: map[string]*Pod{}, resources: map[string]bool{}, claims: map[string][]allocated{}, owners: map[owned]owner{}}
	for _, r := range settings.Resources {
		inv.resources[resourceName(r)] = true
	}
	targets := scrapesByTarget(series)
	order(series, spanMicros(hour))
	for _, s := range series {
		sc := targets[targetOf(s)]
		switch {
		case strings.HasPrefix(s.Metric, "kube_node_"):
			inv.addNode(s, sc)
		case strings.HasPrefix(s.Metric, "kube_pod_"):
			inv.addPod(s, sc)
		case s.Metric == ClaimDeviceMetric, s.Metric == ClaimCapacityMetric:
			inv.addClaim(s)
		case s.Metric == "kube_replicaset_owner", s.Metric == "kube_job_owner":
			inv.addOwner(s)
		case s.Metric == "kube_namespace_labels":
			inv.Namespaces[workloadLabel(s.Labels, "namespace")] = s.ofObject()
		}
	}
	for _, n := range inv.Nodes {
		n.finish()
	}
	for uid, p := range inv.Pods {
		if p.Name == "" && p.Node == "" {
			delete(inv.Pods, uid) // seen only by a label or a phase: nothing to place it by
			continue
		}
		p.finish(inv.covered)
		p.WorkloadKind, p.WorkloadName = inv.workload(p)
	}
	inv.onNode = map[string][]*Pod{}
	for _, p := range inv.sortedPods() {
		key := p.Namespace + "/" + p.Name
		inv.byName[key] = append(inv.byName[key], p)
		inv.onNode[p.Node] = append(inv.onNode[p.Node], p)
	}
	for _, s := range series {
		if s.Metric == cpuMetric || s.Metric == memoryMetric {
			inv.addUsage(s, spanMicros(hour))
		}
	}
	return inv
}

// targetOf names the scrape target of a series: every series of one target has
// its samples at the same instants.
func targetOf(s Series) string { return s.Labels["job"] + "\x00" + s.Labels["instance"] }

func scrapesByTarget(series []Series) map[string]scrapes {
	type target struct {
		times []int64
		gaps  []time.Duration // the median gap of each series
		// of the series before, which most are like
		last    []Sample
		lastGap time.Duration
	}
	groups := map[string]*target{}
	for _, s := range series {
		key := targetOf(s)
		g := groups[key]
		if g == nil {
			g = &target{}
			groups[key] = g
		}
		if !sameTimes(s.Samples, g.last) {
			g.last, g.lastGap = s.Samples, observedInterval(s.Samples)
			times := make([]int64, len(s.Samples))
			for i, x := range s.Samples {
				times[i] = x.UnixMilli * 1000
			}
			g.times = unionTimes(g.times, times)
		}
		if g.lastGap > 0 {
			g.gaps = append(g.gaps, g.lastGap)
		}
	}
	out := map[string]scrapes{}
	for key, g := range groups {
		var every time.Duration
		if n := len(g.gaps); n > 0 {
			slices.Sort(g.gaps)
			every = g.gaps[(n-1)/2]
		}
		out[key] = newScrapes(g.times, every)
	}
	return out
}

func sameTimes(a, b []Sample) bool {
	if len(a) != len(b) {
		return false
	}
	if len(a) == 0 || &a[0] == &b[0] { // series share what they have in common
		return true
	}
	for i := range a {
		if a[i].UnixMilli != b[i].UnixMilli {
			return false
		}
	}
	return true
}

// isGPU reports whether a resource, as kube-state-metrics spells it, stands for GPUs:
// nvidia_com_gpu, nvidia_com_gpu_shared, nvidia_com_mig_1g_5gb, amd_com_gpu, and what
// the settings add.
func (inv *Inventory) isGPU(r string) bool {
	return r == "nvidia_com_gpu" || r == "nvidia_com_gpu_shared" || r == "amd_com_gpu" || isMIGResource(r) || inv.resources[r]
}

func isMIGResource(r string) bool { return strings.HasPrefix(r, "nvidia_com_mig_") }
