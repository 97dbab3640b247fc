package gpu

import (
	"regexp"
	"strings"
	"time"
)

// exporterContainers are the exporters' own containers: with honorLabels off
// Prometheus puts them where the workload's name would be.
var exporterContainers = map[string]bool{"exporter": true, "dcgm-exporter": true, "nvidia-dcgm-exporter": true}

// podOf reads the pod a series names. exported_pod beats pod; the exporter's own
// pod is no pod; "" is absent.
func podOf(s Series) (podRef, bool) {
	l := s.Labels
	if l["exported_pod"] != "" || l["exported_namespace"] != "" {
		return podRef{l["exported_namespace"], l["exported_pod"], l["pod_uid"]}, l["exported_pod"] != ""
	}
	name, namespace := l["pod"], l["namespace"]
	if name == "" {
		name, namespace = l["pod_name"], l["pod_namespace"] // the old namespace of dcgm-exporter
	}
	if name == "" || exporterContainers[l["container"]] || name == l["Hostname"] || name == l["hostname"] {
		return podRef{}, false
	}
	return podRef{namespace, name, l["pod_uid"]}, true
}

// nodeOf finds the node of a device series: a node label put there by the scrape
// configuration, the exporter's idea of its host where the inventory knows a node
// or an exporter pod of that name, the workload pod's node, or the scrape address.
// When is the time for which a pod's name is looked up.
func nodeOf(s Series, inv *Inventory, when time.Time) string {
	l := s.Labels
	for _, name := range nodeLabels {
		if n := l[name]; n != "" && (inv.Nodes[n] != nil || len(inv.Nodes) == 0) {
			return n
		}
	}
	for _, exporter := range []string{l["pod"], l["Hostname"], l["hostname"]} {
		if exporter == "" {
			continue
		}
		if p := inv.podAnywhere(exporter); p != nil {
			return p.Node
		}
	}
	if ref, ok := podOf(s); ok {
		if p := inv.find(ref, when); p != nil && p.Node != "" {
			return p.Node
		}
	}
	host, _, _ := strings.Cut(l["instance"], ":")
	if inv.Nodes[host] != nil {
		return host
	}
	if n := first(l, "node", "kubernetes_node", "node_name"); n != "" {
		return n
	}
	return first(l, "Hostname", "hostname")
}

// nodeLabels name the node of a device, or the exporter's idea of it.
var nodeLabels = []string{"node", "kubernetes_node", "node_name", "Hostname", "hostname"}

// podAnywhere finds a pod by name alone, which is enough for an exporter's
// generated name; an ambiguous name finds nothing.
func (inv *Inventory) podAnywhere(name string) *Pod {
	if inv.anyName == nil {
		inv.anyName = map[string]*Pod{}
		for _, p := range inv.sortedPods() {
			if q, ok := inv.anyName[p.Name]; ok && (q == nil || q.Node != p.Node) {
				inv.anyName[p.Name] = nil
				continue
			}
			inv.anyName[p.Name] = p
		}
	}
	return inv.anyName[name]
}

func (inv *Inventory) find(ref podRef, t time.Time) *Pod {
	if ref.uid != "" {
		if p := inv.Pods[ref.uid]; p != nil {
			return p
		}
	}
	return inv.PodByName(ref.namespace, ref.name, t)
}

func lastTime(s Series) time.Time {
	if len(s.Samples) == 0 {
		return time.Time{}
	}
	return time.UnixMilli(s.Samples[len(s.Samples)-1].UnixMilli)
}

// replicaOf tells the device from the replica where an exporter writes the kubelet's
// device ids: GPU-…::2, or GPU-…-2 after a whole UUID.
func replicaOf(id string) (uuid, replica string) {
	if uuid, replica, ok := strings.Cut(id, "::"); ok {
		return uuid, replica
	}
	if m := suffixedUUID.FindStringSubmatch(id); m != nil {
		return m[1], m[2]
	}
	return id, ""
}

var suffixedUUID = regexp.MustCompile(`^((?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-([0-9]+)$`)

// claimedInstance reports whether a series of a whole GPU carries the claim of one of
// its MIG instances, as dcgm-exporter up to 4.8.2 does, and which.
func claimedInstance(l map[string]string) (partKey, bool) {
	if l["GPU_I_ID"] != "" || l["dra_mig_profile"] == "" {
		return partKey{}, false
	}
	return partKey{first(l, "dra_mig_device_uuid", "dra_device_name"), l["dra_mig_profile"]}, true
}
