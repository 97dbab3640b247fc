package gpu

import (
	"math"
	"path"
	"slices"
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

// settleMachines makes the time before a provider id is known that of the machine which
// got it: the id comes a while after the node.
func (n *Node) settleMachines() {
	i := slices.IndexFunc(n.machines, func(m machine) bool { return m.instanceID == "" })
	if i < 0 || len(n.machines) == 1 {
		return
	}
	unnamed := n.machines[i].present
	n.machines = slices.Delete(n.machines, i, i+1)
	for _, u := range unnamed {
		heir := &n.machines[0]
		for k := range n.machines {
			if m := &n.machines[k]; m.after(u) < heir.after(u) {
				heir = m
			}
		}
		heir.present = union(append(slices.Clone(heir.present), u))
	}
}

// after is how long after a stretch of time the machine is first seen again; where that is
// never, longer the longer it was seen before.
func (m *machine) after(u interval) int64 {
	last := int64(math.MinInt64)
	for _, p := range m.present {
		if p.end >= u.end {
			return max(0, p.start-u.end)
		}
		last = p.end
	}
	return math.MaxInt64/2 - last/2
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
		n.machine(InstanceIDOf(s.Labels["provider_id"]), s.Labels["provider_id"], seen)
	case "kube_node_created":
		for _, x := range s.Samples {
			if at := int64(x.Value * 1e6); at > 0 && !slices.Contains(n.created, at) {
				n.created = append(n.created, at)
			}
		}
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
	n.settleMachines()
	if len(n.created) == 0 {
		return
	}
	if len(n.machines) < 2 {
		n.ready = intersect(n.ready, []interval{{slices.Max(n.created), 1 << 62}})
		return
	}
	var ready []interval
	for _, m := range n.machines { // each was created by itself
		var created int64
		for _, at := range n.created {
			if len(m.present) > 0 && at < m.present[len(m.present)-1].end {
				created = max(created, at)
			}
		}
		ready = append(ready, intersect(intersect(n.ready, m.present), []interval{{created, 1 << 62}})...)
	}
	n.ready = union(ready)
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
