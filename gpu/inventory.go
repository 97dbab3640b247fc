package gpu

import (
	"path"
	"sort"
	"strings"
	"time"

	"gpuledger/billing/period"
)

// The kube-state-metrics families the inventory is built from (DESIGN §5).
var InventoryMetrics = []string{
	"kube_node_info", "kube_node_labels", "kube_node_created", "kube_node_status_capacity", "kube_node_status_condition",
	"kube_pod_info", "kube_pod_labels", "kube_pod_annotations", "kube_pod_owner", "kube_pod_start_time", "kube_pod_completion_time",
	"kube_pod_status_phase", "kube_pod_container_resource_requests", "kube_namespace_labels",
}

// Inventory is what kube-state-metrics says of a cluster over a window.
type Inventory struct {
	Nodes      map[string]*Node // by name
	Pods       map[string]*Pod  // by UID
	Namespaces map[string]map[string]string
	covered    []interval // when the inventory itself was seen
	byName     map[string][]*Pod
	unlisted   map[string]*Pod // pods that only device series name
	anyName    map[string]*Pod // for podAnywhere; nil value: ambiguous
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
	present      []interval
	ready        []interval // intervals with the condition Ready
	hasReady     bool
	created      int64
}

// Pod is a pod that ran on a node within a window.
type Pod struct {
	UID, Namespace, Name string
	Node                 string
	WorkloadKind         string // Deployment, StatefulSet, Job, …; "Pod" where nothing owns it
	WorkloadName         string
	Labels               map[string]string
	Annotations          map[string]string
	Requests             map[string]int64 // summed over containers: nvidia_com_gpu in devices, cpu in milli-cores, memory in bytes
	requestBy            map[string]int64
	life                 interval
	seen                 []interval
	running              []interval
	hasPhase             bool
	started, completed   int64 // Unix µs, 0 where unknown
}

// Lifetime returns when the pod held what it requested, as far as the window shows.
func (p *Pod) Lifetime() period.Span {
	return period.Span{Start: fromMicros(p.life.start), End: fromMicros(p.life.end)}
}

// NewInventory builds an inventory from kube-state-metrics series.
func NewInventory(series []Series) *Inventory {
	inv := &Inventory{Nodes: map[string]*Node{}, Pods: map[string]*Pod{}, Namespaces: map[string]map[string]string{}, byName: map[string][]*Pod{}, unlisted: map[string]*Pod{}}
	targets := scrapesByTarget(series)
	sort.SliceStable(series, func(i, j int) bool { return lessSeries(series[i], series[j]) })
	for _, s := range series {
		sc := targets[targetOf(s)]
		switch {
		case strings.HasPrefix(s.Metric, "kube_node_"):
			inv.addNode(s, sc)
		case strings.HasPrefix(s.Metric, "kube_pod_"):
			inv.addPod(s, sc)
		case s.Metric == "kube_namespace_labels":
			inv.Namespaces[workloadLabel(s.Labels, "namespace")] = prefixed(s.Labels, "label_")
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
	}
	for _, p := range inv.sortedPods() {
		key := p.Namespace + "/" + p.Name
		inv.byName[key] = append(inv.byName[key], p)
	}
	return inv
}

// targetOf names the scrape target of a series: every series of one target has
// its samples at the same instants.
func targetOf(s Series) string { return s.Labels["job"] + "\x00" + s.Labels["instance"] }

func scrapesByTarget(series []Series) map[string]scrapes {
	groups := map[string][]Series{}
	for _, s := range series {
		groups[targetOf(s)] = append(groups[targetOf(s)], s)
	}
	out := map[string]scrapes{}
	for k, g := range groups {
		out[k] = newScrapes(g, scrapeInterval(g))
	}
	return out
}

// scrapeInterval is the median of the series' own median gaps.
func scrapeInterval(series []Series) time.Duration {
	var all []time.Duration
	for _, s := range series {
		if d := observedInterval(s.Samples); d > 0 {
			all = append(all, d)
		}
	}
	if len(all) == 0 {
		return 0
	}
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	return all[len(all)/2]
}

func (inv *Inventory) addNode(s Series, sc scrapes) {
	name := workloadLabel(s.Labels, "node")
	if name == "" {
		return
	}
	n := inv.Nodes[name]
	if n == nil {
		n = &Node{Name: name, Labels: map[string]string{}, GPUCapacity: map[string]int64{}}
		inv.Nodes[name] = n
	}
	last := lastValue(s)
	switch s.Metric {
	case "kube_node_info":
		seen := sc.presence(s.Samples, func(float64) bool { return true })
		n.present = union(append(n.present, seen...))
		inv.covered = union(append(inv.covered, seen...))
		if id := s.Labels["provider_id"]; id != "" {
			n.ProviderID, n.InstanceID = id, InstanceIDOf(id)
		}
	case "kube_node_created":
		n.created = int64(last * 1e6)
	case "kube_node_labels":
		n.Labels = prefixed(s.Labels, "label_")
		n.InstanceType = first(n.Labels, "node_kubernetes_io_instance_type", "beta_kubernetes_io_instance_type")
		n.Region = first(n.Labels, "topology_kubernetes_io_region", "failure_domain_beta_kubernetes_io_region")
		n.Zone = first(n.Labels, "topology_kubernetes_io_zone", "failure_domain_beta_kubernetes_io_zone")
		n.Pool = first(n.Labels, "karpenter_sh_nodepool", "eks_amazonaws_com_nodegroup", "cloud_google_com_gke_nodepool", "kubernetes_azure_com_agentpool", "agentpool", "node_pool")
	case "kube_node_status_capacity":
		switch r := s.Labels["resource"]; r {
		case "cpu":
			n.CPUMilli = int64(last*1000 + 0.5)
		case "memory":
			n.MemoryBytes = int64(last)
		default:
			if IsGPUResource(r) {
				n.GPUCapacity[r] = max(n.GPUCapacity[r], int64(last))
			}
		}
	case "kube_node_status_condition":
		if s.Labels["condition"] == "Ready" && s.Labels["status"] == "true" {
			n.hasReady = true
			n.ready = union(append(n.ready, sc.presence(s.Samples, func(v float64) bool { return v == 1 })...))
		}
	}
}

// finish settles when the node was ready: the Ready condition where it is
// collected, else the time kube-state-metrics knew the node, never before it was
// created.
func (n *Node) finish() {
	if !n.hasReady {
		n.ready = n.present
	}
	if n.created > 0 {
		n.ready = intersect(n.ready, []interval{{n.created, 1 << 62}})
	}
}

func (inv *Inventory) addPod(s Series, sc scrapes) {
	uid := s.Labels["uid"]
	if uid == "" {
		return
	}
	p := inv.Pods[uid]
	if p == nil {
		p = &Pod{UID: uid, WorkloadKind: "Pod", Requests: map[string]int64{}, requestBy: map[string]int64{}}
		inv.Pods[uid] = p
	}
	if p.Namespace == "" {
		p.Namespace, p.Name = workloadLabel(s.Labels, "namespace"), workloadLabel(s.Labels, "pod")
	}
	last := lastValue(s)
	switch s.Metric {
	case "kube_pod_info":
		if node := workloadLabel(s.Labels, "node"); node != "" {
			p.Node = node
			p.seen = union(append(p.seen, sc.presence(s.Samples, func(float64) bool { return true })...))
		}
	case "kube_pod_labels":
		p.Labels = prefixed(s.Labels, "label_")
	case "kube_pod_annotations":
		p.Annotations = prefixed(s.Labels, "annotation_")
	case "kube_pod_owner":
		if kind := s.Labels["owner_kind"]; kind != "" && kind != "<none>" {
			p.WorkloadKind, p.WorkloadName = workloadOf(kind, s.Labels["owner_name"])
		}
	case "kube_pod_start_time":
		p.started = int64(last * 1e6)
	case "kube_pod_completion_time":
		p.completed = int64(last * 1e6)
	case "kube_pod_status_phase":
		p.hasPhase = true
		if ph := s.Labels["phase"]; ph == "Running" || ph == "Pending" {
			// A Pending pod with a node holds its devices: it is pulling its image.
			p.running = union(append(p.running, sc.presence(s.Samples, func(v float64) bool { return v == 1 })...))
		}
	case "kube_pod_container_resource_requests":
		if p.Node == "" {
			p.Node = workloadLabel(s.Labels, "node")
		}
		switch r := s.Labels["resource"]; {
		case r == "cpu":
			p.request(r, workloadLabel(s.Labels, "container"), int64(last*1000+0.5))
		case r == "memory", IsGPUResource(r):
			p.request(r, workloadLabel(s.Labels, "container"), int64(last))
		}
	}
}

// request adds one container's request, once however many exporters report it.
func (p *Pod) request(resource, container string, n int64) {
	key := resource + "\x00" + container
	if n > p.requestBy[key] {
		p.Requests[resource] += n - p.requestBy[key]
		p.requestBy[key] = n
	}
}

// finish settles the pod's life: from its start time (or the first sight of it)
// to its completion time (or the last sight of it running). A pod whose object
// outlives it (Succeeded, Failed) holds nothing any more.
func (p *Pod) finish(covered []interval) {
	if p.WorkloadName == "" {
		p.WorkloadName = p.Name
	}
	alive := p.seen
	if p.hasPhase {
		alive = p.running
	}
	if len(alive) > 0 {
		p.life = interval{alive[0].start, alive[len(alive)-1].end}
		// Seen up to the edge of what the inventory covers: the edge is the
		// inventory's, not the pod's.
		if n := len(covered); n > 0 && p.life.end >= covered[n-1].end {
			p.life.end = 1 << 62
		}
	} else if len(p.seen) > 0 && !p.hasPhase {
		p.life = interval{p.seen[0].start, p.seen[len(p.seen)-1].end}
	}
	if p.started > 0 && p.life.start < p.life.end {
		p.life.start = p.started
	}
	if p.completed > 0 {
		if p.life.end == 0 && p.started > 0 {
			p.life.start = p.started
		}
		p.life.end = p.completed
	}
}

// PodByName finds the pod of a namespace and name that was alive at t, or failing
// that the one whose life is nearest, since exporters lag.
func (inv *Inventory) PodByName(namespace, name string, t time.Time) *Pod {
	us := micros(t)
	var best *Pod
	bestGap := int64(1 << 62)
	for _, p := range inv.byName[namespace+"/"+name] {
		gap := max(p.life.start-us, us-p.life.end, 0)
		if gap < bestGap {
			best, bestGap = p, gap
		}
	}
	return best
}

func (inv *Inventory) sortedPods() []*Pod {
	out := make([]*Pod, 0, len(inv.Pods))
	for _, p := range inv.Pods {
		out = append(out, p)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].UID < out[j].UID })
	return out
}

// InstanceIDOf returns the segment of a Kubernetes providerID that names the
// machine: i-0abc of aws:///us-east-1a/i-0abc, project/zone/name of a GCE id
// (names repeat between zones), and vmss/number, lower case, of an Azure scale set.
func InstanceIDOf(providerID string) string {
	scheme, rest, ok := strings.Cut(providerID, "://")
	rest = strings.Trim(rest, "/")
	switch {
	case !ok:
		return providerID
	case scheme == "gce":
		return rest
	case scheme == "azure":
		parts := strings.Split(strings.ToLower(rest), "/")
		if n := len(parts); n >= 3 && parts[n-2] == "virtualmachines" && n >= 4 && parts[n-4] == "virtualmachinescalesets" {
			return parts[n-3] + "/" + parts[n-1]
		}
		return parts[len(parts)-1]
	}
	return path.Base(rest)
}

// IsGPUResource reports whether a resource, as kube-state-metrics spells it,
// stands for GPUs: nvidia_com_gpu, nvidia_com_gpu_shared, nvidia_com_mig_1g_5gb.
func IsGPUResource(r string) bool {
	return r == "nvidia_com_gpu" || r == "nvidia_com_gpu_shared" || strings.HasPrefix(r, "nvidia_com_mig_")
}

// workloadOf names the workload behind an owner: a ReplicaSet's Deployment and a
// Job's CronJob by the naming rule of their controllers (a hash or a number
// after the last dash).
func workloadOf(kind, name string) (string, string) {
	i := strings.LastIndexByte(name, '-')
	switch {
	case kind == "ReplicaSet" && i > 0:
		return "Deployment", name[:i]
	case kind == "Job" && i > 0 && len(name)-i-1 >= 8 && strings.Trim(name[i+1:], "0123456789") == "":
		return "CronJob", name[:i]
	}
	return kind, name
}

// workloadLabel reads a label that Prometheus may have renamed: with honorLabels
// off, the target's own label keeps the name and the exported one is prefixed.
func workloadLabel(l map[string]string, name string) string {
	if v := l["exported_"+name]; v != "" {
		return v
	}
	return l[name]
}

func prefixed(l map[string]string, prefix string) map[string]string {
	out := map[string]string{}
	for k, v := range l {
		if name, ok := strings.CutPrefix(k, prefix); ok {
			out[name] = v
		}
	}
	return out
}

func first(l map[string]string, names ...string) string {
	for _, n := range names {
		if l[n] != "" {
			return l[n]
		}
	}
	return ""
}

func lastValue(s Series) float64 {
	if len(s.Samples) == 0 {
		return 0
	}
	return s.Samples[len(s.Samples)-1].Value
}

// lessSeries orders series by metric, then labels, so that nothing depends on
// the order in which a source returns them. Of two label sets of one object the
// one seen last wins, so a relabelled pod has its newest labels.
func lessSeries(a, b Series) bool {
	if a.Metric != b.Metric {
		return a.Metric < b.Metric
	}
	la, lb := int64(0), int64(0)
	if n := len(a.Samples); n > 0 {
		la = a.Samples[n-1].UnixMilli
	}
	if n := len(b.Samples); n > 0 {
		lb = b.Samples[n-1].UnixMilli
	}
	if la != lb {
		return la < lb
	}
	return LabelKey(a.Labels) < LabelKey(b.Labels)
}

// LabelKey renders a label set canonically.
func LabelKey(l map[string]string) string {
	names := make([]string, 0, len(l))
	for n := range l {
		names = append(names, n)
	}
	sort.Strings(names)
	var b strings.Builder
	for _, n := range names {
		b.WriteString(n)
		b.WriteByte(0)
		b.WriteString(l[n])
		b.WriteByte(0)
	}
	return b.String()
}

// resourceName spells a MIG profile the way kube-state-metrics spells it within a
// resource or label name: every character outside [a-zA-Z0-9_] becomes "_".
func resourceName(profile string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, profile)
}

// AllPods returns the pods of the inventory and those that only device series
// name, by UID.
func (inv *Inventory) AllPods() []*Pod {
	out := inv.sortedPods()
	for _, p := range inv.unlisted {
		out = append(out, p)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].UID < out[j].UID })
	return out
}
