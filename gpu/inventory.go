package gpu

import (
	"cmp"
	"math"
	"path"
	"slices"
	"sort"
	"strings"
	"time"

	"gpuledger/billing/period"
)

// machine is one provider's machine behind a node's name: a Spot node's name is soon
// used again.
type machine struct {
	instanceID, providerID string
	present                []interval
}

func (n *Node) machine(instanceID, providerID string, seen []interval) {
	for i := range n.machines {
		if m := &n.machines[i]; m.instanceID == instanceID {
			m.present = union(append(m.present, seen...))
			return
		}
	}
	n.machines = append(n.machines, machine{instanceID, providerID, seen})
}

// Handover is how long two machines may seem to have one name, or two clusters one
// machine: what an exporter's last and first samples are taken to last for when a node
// is replaced.
const Handover = 10 * time.Minute

// clash reports whether two machines had the node's name at the same time.
func (n *Node) clash(hour interval) (Clash, bool) {
	if n == nil {
		return Clash{}, false
	}
	for i, a := range n.machines {
		for _, b := range n.machines[i+1:] {
			if total(intersect(intersect(a.present, b.present), []interval{hour})) > Handover.Microseconds() {
				return Clash{n.Name, [2]string{a.instanceID, b.instanceID}}, true
			}
		}
	}
	return Clash{}, false
}

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
	created      int64
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

// poolLabels name a node's pool, as kube_node_labels spells them; the first that is
// there counts. Karpenter comes before the managed services: its nodes carry both.
var poolLabels = []string{
	"karpenter_sh_nodepool", "karpenter_sh_provisioner_name",
	"eks_amazonaws_com_nodegroup", "alpha_eksctl_io_nodegroup_name",
	"cloud_google_com_gke_nodepool",
	"kubernetes_azure_com_agentpool", "agentpool",
	"kops_k8s_io_instancegroup", "worker_gardener_cloud_pool", "doks_digitalocean_com_node_pool", "ibm_cloud_kubernetes_io_worker_pool_name",
	"k8s_scaleway_com_pool_name", "lke_linode_com_pool_id", "vke_vultr_com_node_pool", "alibabacloud_com_nodepool_id", "cluster_x_k8s_io_deployment_name",
	"node_pool",
}

// Seen returns when, within a span, the inventory showed the machine under the node's
// name.
func (n *Node) Seen(instanceID string, within period.Span) []period.Span {
	var out []period.Span
	for _, m := range n.machines {
		if m.instanceID == instanceID {
			for _, i := range intersect(m.present, []interval{spanMicros(within)}) {
				out = append(out, period.Span{Start: fromMicros(i.start), End: fromMicros(i.end)})
			}
		}
	}
	return out
}

func (inv *Inventory) addNode(s Series, sc scrapes) {
	name := workloadLabel(s.Labels, "node")
	if name == "" {
		if s.Metric == "kube_node_info" { // of no node: when the target was scraped
			inv.covered = union(append(inv.covered, sc.presence(s.Samples, false)...))
		}
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
		seen := sc.presence(s.Samples, false)
		n.present = union(append(n.present, seen...))
		inv.covered = union(append(inv.covered, seen...))
		if id := s.Labels["provider_id"]; id != "" {
			n.ProviderID, n.InstanceID = id, InstanceIDOf(id)
		}
		n.machine(n.InstanceID, s.Labels["provider_id"], seen)
	case "kube_node_created":
		n.created = int64(last * 1e6)
	case "kube_node_labels":
		n.Labels = s.ofObject()
		n.InstanceType = first(n.Labels, "node_kubernetes_io_instance_type", "beta_kubernetes_io_instance_type")
		n.Region = first(n.Labels, "topology_kubernetes_io_region", "failure_domain_beta_kubernetes_io_region")
		n.Zone = first(n.Labels, "topology_kubernetes_io_zone", "failure_domain_beta_kubernetes_io_zone")
		n.Pool = first(n.Labels, poolLabels...)
	case "kube_node_status_capacity":
		switch r := s.Labels["resource"]; r {
		case "cpu":
			n.CPUMilli = int64(wholeNumber(last * 1000))
		case "memory":
			n.MemoryBytes = int64(wholeNumber(last))
		default:
			if inv.isGPU(r) {
				n.GPUCapacity[r] = max(n.GPUCapacity[r], int64(min(wholeNumber(last), mostUnits)))
			}
		}
	case "kube_node_status_condition":
		if s.Labels["condition"] == "Ready" && s.Labels["status"] == "true" {
			n.hasReady = true
			n.ready = union(append(n.ready, sc.presence(s.Samples, true)...))
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

// isGPU reports whether a resource, as kube-state-metrics spells it, stands for GPUs:
// nvidia_com_gpu, nvidia_com_gpu_shared, nvidia_com_mig_1g_5gb, amd_com_gpu, and what
// the settings add.
func (inv *Inventory) isGPU(r string) bool {
	return r == "nvidia_com_gpu" || r == "nvidia_com_gpu_shared" || r == "amd_com_gpu" || isMIGResource(r) || inv.resources[r]
}

func isMIGResource(r string) bool { return strings.HasPrefix(r, "nvidia_com_mig_") }

// Settings is what a cluster's owner knows and its metrics do not say.
type Settings struct {
	// Resources are further extended resources that stand for whole GPUs or client
	// slots, as Kubernetes spells them: example.com/gpu.
	Resources []string
	// Modes override the sharing mode by node pool; the first match wins.
	Modes []ModeOverride
	// Presets are the exporters that are read, of data/exporters.tsv; nil: all that do
	// not exclude each other. Of two that have a metric, the later reads it.
	Presets []string `json:",omitempty"`
	// Exporters are further metrics, or other readings of the presets'.
	Exporters []ExporterMetric `json:",omitempty"`
	// Models are known beside, and before, those of data/models.tsv; see ParseModels.
	Models []Model `json:",omitempty"`
	// Usage reads what pods use of CPU and memory, from cAdvisor.
	Usage bool
}

// ModeOverride sets the sharing mode of a pool's whole GPUs.
type ModeOverride struct {
	NodePool string // * is a wildcard
	Mode     Mode
	Replicas int // client slots a GPU, for time_slicing and mps
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

// mostUnits is more GPUs, slots or MIG devices than any node has.
const mostUnits = 1 << 12

// wholeNumber reads a quantity, at most more of it than any node has.
func wholeNumber(v float64) uint64 {
	const most = 1 << 50
	switch {
	case !(v > 0): // NaN too
		return 0
	case v >= most:
		return most
	}
	return uint64(v + 0.5)
}

func lastValue(s Series) float64 {
	if len(s.Samples) == 0 {
		return 0
	}
	return s.Samples[len(s.Samples)-1].Value
}

// order sorts series by metric, then by how many samples they have within the hour and
// the time of the last of them, then by labels, so that nothing depends on the order in
// which a source returns them. Of two label sets of one object the one that held longest
// in the hour wins, of two as long the later: what came after it belongs to the next.
func order(series []Series, hour interval) {
	type rank struct {
		at, held int
		last     int64
	}
	ranks := make([]rank, len(series))
	for i := range series {
		s := &series[i]
		if s.Key == "" {
			s.Prepare()
		}
		before := func(t int64) int {
			return sort.Search(len(s.Samples), func(k int) bool { return s.Samples[k].UnixMilli*1000 >= t })
		}
		n := before(hour.end)
		ranks[i] = rank{i, n - before(hour.start), math.MinInt64}
		if n > 0 {
			ranks[i].last = s.Samples[n-1].UnixMilli
		}
	}
	slices.SortFunc(ranks, func(x, y rank) int {
		a, b := &series[x.at], &series[y.at]
		if c := strings.Compare(a.Metric, b.Metric); c != 0 {
			return c
		}
		switch {
		case x.held != y.held:
			return x.held - y.held
		case x.last != y.last:
			return cmp.Compare(x.last, y.last)
		}
		if c := strings.Compare(a.Key, b.Key); c != 0 {
			return c
		}
		return x.at - y.at
	})
	all := slices.Clone(series)
	for i, r := range ranks {
		series[i] = all[r.at]
	}
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
