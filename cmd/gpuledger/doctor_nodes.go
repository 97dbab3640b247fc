package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gpuledger/gpu"
)

// nodesFound is what was found of the nodes that were looked at.
type nodesFound struct {
	nodes    map[string]bool
	gpus     int
	lines    map[finding][]string // nodes by what is said of them
	unplaced map[string]bool
	machines map[string]string // nodes by the provider's name of their machine
	clouds   map[string]bool   // schemes of provider ids: aws, gce, azure
	pools    map[string]bool   // nodes that have one
	unknown  bool              // the sharing mode of some node cannot be told
	claims   bool              // pods hold GPUs by DRA claims
	plain    bool              // nodes without any GPU of a device plugin
}

func (f *nodesFound) say(node, result, check, what, fix string) {
	k := finding{check: check, result: result, what: what, fix: fix}
	f.lines[k] = append(f.lines[k], node)
}

// add takes what was folded of some nodes.
func (f *nodesFound) add(seen *observed, h gpu.ClusterHour) {
	if f.nodes == nil {
		*f = nodesFound{nodes: map[string]bool{}, lines: map[finding][]string{}, unplaced: map[string]bool{}, machines: map[string]string{}, clouds: map[string]bool{}, pools: map[string]bool{}}
	}
	for _, uuid := range h.Unplaced {
		f.unplaced[uuid] = true
	}
	for _, nh := range h.Nodes {
		f.node(seen, h.Inventory, nh)
	}
}

func (f *nodesFound) node(seen *observed, inv *gpu.Inventory, nh gpu.NodeHour) {
	f.nodes[nh.Node] = true
	var uuids []string
	for _, d := range nh.Devices {
		if !strings.HasPrefix(d.UUID, "missing-") {
			uuids = append(uuids, d.UUID)
		}
	}
	f.gpus += len(nh.Devices)
	signs := seen.exporters(nh.Node, uuids)
	f.exporter(nh, signs, uuids)
	f.machine(seen, inv, nh, signs)
	if nh.ReadyMicros == 0 {
		f.say(nh.Node, note, "node", "not Ready in this hour", "")
		return
	}
	f.devices(seen, nh, signs, uuids)
	if len(uuids) > 0 {
		f.mode(nh, signs)
		f.rung(seen, inv, nh, signs)
	}
}

// machine checks what ties the node to a bill and to its GPUs.
func (f *nodesFound) machine(seen *observed, inv *gpu.Inventory, nh gpu.NodeHour, signs []gpu.Signs) {
	n := inv.Nodes[nh.Node]
	if n == nil {
		f.say(nh.Node, missing, "node", "kube-state-metrics does not know it, so no bill line can be matched", "let kube-state-metrics export nodes, and give the exporter's series a label node with the node's name (relabel __meta_kubernetes_pod_node_name)")
		return
	}
	if nh.Pool != "" {
		f.pools[nh.Node] = true
	}
	if nh.ProviderID == "" {
		f.say(nh.Node, missing, "node", "no provider id, so no bill line can be matched", "see that the cloud's controller has set spec.providerID, and kube_node_info shows it as provider_id")
	} else {
		scheme, _, _ := strings.Cut(nh.ProviderID, "://")
		f.clouds[scheme] = true
		f.machines[nh.InstanceID] = nh.Node
	}
	claims := slices.ContainsFunc(signs, func(s gpu.Signs) bool { return s.Claims })
	for _, p := range nh.Pods {
		if pod := inv.Pods[p.PodUID]; pod != nil && len(pod.Claims) > 0 {
			claims = true
		}
	}
	f.claims = f.claims || claims
	var capacity int64
	for _, c := range n.GPUCapacity {
		capacity += c
	}
	if capacity == 0 {
		f.plain = true
		if !claims && seen.countOf("kube_node_status_capacity") > 0 {
			f.say(nh.Node, missing, "node", "has GPUs and a capacity of none: no pod can request one", "see that the device plugin runs on it (its DaemonSet's tolerations and log); a resource of another name goes into resources: of the cluster")
		}
	}
}

// devices compares the GPUs that have series with those that the node has.
func (f *nodesFound) devices(seen *observed, nh gpu.NodeHour, signs []gpu.Signs, uuids []string) {
	lost := len(nh.Devices) - len(uuids)
	switch {
	case lost == 0 && len(nh.Devices) > 0:
		return
	case len(uuids) == 0:
		what := "no series of any of its GPUs"
		if lost > 0 {
			what = fmt.Sprintf("no series of any of its %s", count(lost, "GPU"))
		}
		f.say(nh.Node, missing, "node", what, "see that dcgm-exporter runs on it (its DaemonSet's nodeSelector and tolerations) and that Prometheus scrapes it")
		return
	}
	fix := "see dcgm-exporter's log on the node, and nvidia-smi: a GPU may have fallen off the bus"
	if slices.ContainsFunc(signs, func(s gpu.Signs) bool { return s.Slots }) {
		fix = "dcgm-exporter 4.1.1-4.0.3 to 4.4.2-4.7.0 with --kubernetes-virtual-gpus leaves out GPUs without a pod: take 4.5.3-4.8.2 or newer"
	}
	f.say(nh.Node, missing, "node", fmt.Sprintf("%s of %d without series%s", count(lost, "GPU"), len(nh.Devices), seen.absent(uuids, len(nh.Devices))), fix)
}

// absent names the places of GPUs that have no series, where all others say theirs.
func (o *observed) absent(uuids []string, all int) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	have := map[int]bool{}
	for _, u := range uuids {
		i, err := strconv.Atoi(o.index[u])
		if err != nil || i < 0 || i >= all || have[i] {
			return ""
		}
		have[i] = true
	}
	var out []string
	for i := range all {
		if !have[i] {
			out = append(out, strconv.Itoa(i))
		}
	}
	return ": number " + strings.Join(out, ", ")
}

// exporter says what reads the node's GPUs.
func (f *nodesFound) exporter(nh gpu.NodeHour, signs []gpu.Signs, uuids []string) {
	if len(uuids) == 0 {
		return
	}
	var texts []string
	for _, s := range signs {
		var parts []string
		if v := s.Version(); v != "" {
			parts = append(parts, v)
		}
		switch {
		case s.MiB && s.Bytes:
			parts = append(parts, "memory in MiB and in bytes")
		case s.Bytes:
			parts = append(parts, "memory in bytes")
		case s.MiB:
			parts = append(parts, "memory in MiB")
		}
		pods := "no pod named"
		switch {
		case s.PodUID:
			pods = "pods by UID"
		case s.Pods:
			pods = "pods by name"
		}
		parts = append(parts, pods)
		for _, more := range []struct {
			is   bool
			text string
		}{{s.Slots, "client slots" + copiesOrProcesses(nh)}, {s.Claims, "DRA claims"}, {s.Driver != "", "driver " + s.Driver}} {
			if more.is {
				parts = append(parts, more.text)
			}
		}
		texts = append(texts, s.Preset+" ("+strings.Join(parts, ", ")+")")
	}
	f.say(nh.Node, fine, "exporter", strings.Join(texts, " + "), "")
}

// copiesOrProcesses tells what an exporter with client slots puts into them.
func copiesOrProcesses(nh gpu.NodeHour) string {
	var methods, copies int
	eachPodRow(nh, func(_ gpu.Partition, r gpu.Row) {
		if r.Method == gpu.ProcessUID || r.Method == gpu.ProcessName {
			methods++
		}
		if r.Flags&gpu.FlagCopied != 0 {
			copies++
		}
	})
	switch {
	case copies > 0:
		return " with copies of the device's figure"
	case methods > 0:
		return " with each pod's own figure"
	}
	return ""
}

// eachPodRow calls fn for what pods have of the GPUs that series show.
func eachPodRow(nh gpu.NodeHour, fn func(gpu.Partition, gpu.Row)) {
	for _, d := range nh.Devices {
		if strings.HasPrefix(d.UUID, "missing-") {
			continue
		}
		for _, p := range d.Partitions {
			for _, r := range p.Rows {
				if r.PodUID != "" {
					fn(p, r)
				}
			}
		}
	}
}

const unknownMode = "run GPU feature discovery, and let kube-state-metrics export its labels, or say it in modes: of the cluster; flag: "

// mode says which GPUs the node has and how they are shared.
func (f *nodesFound) mode(nh gpu.NodeHour, signs []gpu.Signs) {
	models, modes := map[string]int{}, map[string]bool{}
	unknown := false
	for _, d := range nh.Devices {
		models[orNone(d.Model)]++
		for _, p := range d.Partitions {
			text := string(p.Mode)
			if p.Replicas > 1 {
				text += fmt.Sprintf(" of %d", p.Replicas)
			}
			modes[text] = true
			unknown = unknown || p.Mode == gpu.ModeUnknown
		}
	}
	var gpus []string
	for _, m := range slices.Sorted(maps.Keys(models)) {
		gpus = append(gpus, fmt.Sprintf("%d × %s", models[m], m))
	}
	what := strings.Join(gpus, ", ") + ", " + strings.Join(slices.Sorted(maps.Keys(modes)), " and ")
	if unknown {
		f.unknown = true
		f.say(nh.Node, missing, "node", what+": the sharing mode cannot be told, and pods are charged by estimates", unknownMode)
		return
	}
	f.say(nh.Node, fine, "node", what, "")
}

// judgeNodes writes the lines of the nodes: those that are alike in one, the odd ones by
// name.
func (l *look) judgeNodes() {
	f, r := &l.fleet, l.r
	all, chosen := l.nodesIn(l.groups), l.nodesIn(l.chosen)
	if all == 0 {
		r.bad("telemetry", l.name, "no GPU node in "+l.span.String(), "see that metrics.match names the right cluster, and that kube-state-metrics and dcgm-exporter are scraped")
		return
	}
	if n := len(f.nodes); n > 0 {
		what := fmt.Sprintf("looked at %d of %s with %s, %s", n, count(all, "GPU node"), count(f.gpus, "GPU"), l.span)
		if chosen < all {
			what += fmt.Sprintf("; more than %d are not looked at in one go: some of each pool and instance type are", l.most)
		}
		r.good("telemetry", l.name, "%s", what)
	}
	keys := slices.Collect(maps.Keys(f.lines))
	slices.SortFunc(keys, func(a, b finding) int {
		for _, c := range []int{
			slices.Index(checkOrder, a.check) - slices.Index(checkOrder, b.check),
			slices.Index(resultOrder, a.result) - slices.Index(resultOrder, b.result),
			len(f.lines[b]) - len(f.lines[a]), strings.Compare(a.what, b.what), strings.Compare(a.fix, b.fix),
		} {
			if c != 0 {
				return c
			}
		}
		return 0
	})
	for _, k := range keys {
		fix := k.fix
		if fix == unknownMode {
			fix += l.allowLabels()
		}
		r.add(k.result, k.check, l.name, names(f.lines[k], k.result != fine)+": "+k.what, fix)
	}
	if n := len(f.unplaced); n > 0 {
		r.bad("node", l.name, fmt.Sprintf("%s of no known node: %s", count(n, "GPU"), names(slices.Sorted(maps.Keys(f.unplaced)), true)), "give the exporter's series a label node with the node's name: in its ServiceMonitor or PodMonitor relabel __meta_kubernetes_pod_node_name to node")
	}
}

var (
	checkOrder  = []string{"node", "exporter", "bytes"}
	resultOrder = []string{fine, note, missing, failed}
)

// names lists some names, or how many they are; of a fault always the first ones.
func names(all []string, fault bool) string {
	slices.Sort(all)
	switch n := len(all); {
	case n <= 4:
		return strings.Join(all, ", ")
	case fault:
		return fmt.Sprintf("%d (%s and %d more)", n, strings.Join(all[:3], ", "), n-3)
	default:
		return fmt.Sprintf("%d nodes", n)
	}
}
