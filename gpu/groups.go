package gpu

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// Group is a set of nodes and the devices seen on them, complete in itself: no series of
// its devices or nodes is in another group, so it can be read and folded alone.
type Group struct {
	Nodes   []string // in order; none where nothing says on which node the devices are
	Devices []Choice
	Series  int // of its devices

	sets map[string]bool // "device UUID" and "node NAME" of what is in it
}

// Choice selects series of devices: of the metrics, those whose label has one of the
// values.
type Choice struct {
	Metrics []string
	Label   string // "" where the series have nothing to tell devices apart by: all of them
	Values  []string
}

// deviceLabels are labels that tell devices apart, in the order in which they are tried;
// the last ones tell exporters apart, which will do.
var deviceLabels = []string{"UUID", "uuid", "device_uuid", "deviceuuid", "gpu_uuid", "accelerator_id", "serial_number", "node", "instance"}

// DeviceLabel is the label by which a series of devices is chosen (Choice): the first of
// deviceLabels that it has, "" for none.
func DeviceLabel(s Series) string {
	for _, l := range deviceLabels {
		if s.Labels[l] != "" {
			return l
		}
	}
	return ""
}

// Groups sorts the series of devices, without their samples, into as many groups as
// there are sets of nodes that share no device. The inventory holds the nodes, and the
// pods that NamesOfPods asks for. Nodes with GPUs and no series are groups too.
func Groups(inv *Inventory, devices []Series, settings Settings) []Group {
	table, sets := settings.exporters(), disjoint{}
	type chosen struct{ set, metric, label, value string }
	var all []chosen
	for _, s := range devices {
		how, known := table[s.Metric]
		if !known {
			continue
		}
		c := how.canonical(s)
		nodes := nodesOf(c, inv)
		key := how.member(c, nodes)
		if key == "" {
			continue
		}
		sets.find(key)
		for _, n := range nodes {
			sets.join(key, "node "+n)
		}
		label := how.labels["UUID"]
		if s.Labels[label] == "" {
			label = DeviceLabel(s)
		}
		all = append(all, chosen{key, s.Metric, label, s.Labels[label]})
	}
	for _, n := range gpuNodes(inv, &Telemetry{}) {
		sets.find("node " + n)
	}
	bySet := map[string]*Group{}
	for name := range sets {
		root := sets.find(name)
		if bySet[root] == nil {
			bySet[root] = &Group{sets: map[string]bool{}}
		}
		bySet[root].sets[name] = true
		if n, ok := strings.CutPrefix(name, "node "); ok {
			bySet[root].Nodes = append(bySet[root].Nodes, n)
		}
	}
	type place struct{ root, label string }
	type named struct{ metrics, values map[string]bool }
	choices := map[place]*named{}
	for _, c := range all {
		root := sets.find(c.set)
		bySet[root].Series++
		p := place{root, c.label}
		if choices[p] == nil {
			choices[p] = &named{map[string]bool{}, map[string]bool{}}
		}
		choices[p].metrics[c.metric], choices[p].values[c.value] = true, true
	}
	for p, n := range choices {
		bySet[p.root].Devices = append(bySet[p.root].Devices, Choice{sortedKeys(n.metrics), p.label, sortedKeys(n.values)})
	}
	out := make([]Group, 0, len(bySet))
	for _, g := range bySet {
		slices.Sort(g.Nodes)
		slices.SortFunc(g.Devices, func(a, b Choice) int { return strings.Compare(a.Label, b.Label) })
		out = append(out, *g)
	}
	slices.SortFunc(out, func(a, b Group) int { return strings.Compare(a.key(), b.key()) })
	return out
}

// member is what a canonical series is a series of: a device, or a place in a node; "" for
// neither.
func (r reading) member(s Series, nodes []string) string {
	if uuid, _ := r.device(s); uuid != "" {
		return "device " + uuid
	}
	if r.indexOf(s) != "" && len(nodes) > 0 {
		return "node " + nodes[0]
	}
	return ""
}

// Owns reports whether a series of a device is one of the group's. A choice may bring
// others: one exporter for all nodes has one instance. The inventory and the settings are
// those that the groups were made with.
func (g Group) Owns(s Series, inv *Inventory, settings Settings) bool {
	how, known := settings.exporters()[s.Metric]
	if !known {
		return false
	}
	c := how.canonical(s)
	if uuid, _ := how.device(c); uuid != "" {
		return g.sets["device "+uuid]
	}
	return g.sets[how.member(c, nodesOf(c, inv))]
}

func (g Group) key() string {
	if len(g.Nodes) > 0 {
		return "0" + g.Nodes[0]
	}
	return "1" + g.Devices[0].Label + g.Devices[0].Values[0]
}

// Join makes one group of several, at least one.
func Join(groups []Group) Group {
	all := groups[0]
	for _, g := range groups[1:] {
		all = all.with(g)
	}
	return all
}

func (g Group) with(o Group) Group {
	all := Group{Nodes: slices.Concat(g.Nodes, o.Nodes), Devices: slices.Clone(g.Devices), Series: g.Series + o.Series, sets: map[string]bool{}}
	maps.Copy(all.sets, g.sets)
	maps.Copy(all.sets, o.sets)
	slices.Sort(all.Nodes)
	for _, c := range o.Devices {
		i := slices.IndexFunc(all.Devices, func(x Choice) bool { return x.Label == c.Label })
		if i < 0 {
			all.Devices = append(all.Devices, c)
			continue
		}
		x := &all.Devices[i]
		x.Metrics, x.Values = merged(x.Metrics, c.Metrics), merged(x.Values, c.Values)
	}
	return all
}

func merged(a, b []string) []string {
	out := slices.Concat(a, b)
	slices.Sort(out)
	return slices.Compact(out)
}

func sortedKeys(set map[string]bool) []string {
	out := make([]string, 0, len(set))
	for k := range set {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// NamesOfPods are the names of pods by which alone the node of some device can be told.
func NamesOfPods(inv *Inventory, devices []Series, settings Settings) []string {
	table, set := settings.exporters(), map[string]bool{}
	for _, s := range devices {
		how, known := table[s.Metric]
		if !known {
			continue
		}
		c := how.canonical(s)
		if len(labelledNodes(c, inv)) > 0 {
			continue
		}
		for _, name := range []string{c.Labels["pod"], c.Labels["exported_pod"], c.Labels["pod_name"], c.Labels["Hostname"], c.Labels["hostname"]} {
			if name != "" {
				set[name] = true
			}
		}
	}
	return sortedKeys(set)
}

// labelledNodes is the node that the labels of a series name, where the inventory knows it.
func labelledNodes(s Series, inv *Inventory) []string {
	for _, name := range nodeLabels {
		if n := s.Labels[name]; n != "" && (inv.Nodes[n] != nil || len(inv.Nodes) == 0) {
			return []string{n}
		}
	}
	return nil
}

// nodesOf finds the nodes that a device of a series may be on, in the order of nodeOf:
// more than one where a name of a pod has been on several.
func nodesOf(s Series, inv *Inventory) []string {
	if n := labelledNodes(s, inv); n != nil {
		return n
	}
	l := s.Labels
	set := map[string]bool{}
	for _, exporter := range []string{l["pod"], l["Hostname"], l["hostname"]} {
		for _, p := range inv.podsNamed(exporter) {
			if p.Node != "" {
				set[p.Node] = true
			}
		}
		if len(set) > 0 {
			return sortedKeys(set)
		}
	}
	if ref, ok := podOf(s); ok {
		for _, p := range inv.podsNamed(ref.name) {
			if p.Node != "" && p.Namespace == ref.namespace {
				set[p.Node] = true
			}
		}
	}
	if len(set) == 0 {
		if n := nodeOf(s, inv, time.Time{}); n != "" {
			set[n] = true
		}
	}
	return sortedKeys(set)
}

// podsNamed are the pods of a name, in any namespace.
func (inv *Inventory) podsNamed(name string) []*Pod {
	if name == "" {
		return nil
	}
	if inv.named == nil {
		inv.named = map[string][]*Pod{}
		for _, p := range inv.sortedPods() {
			inv.named[p.Name] = append(inv.named[p.Name], p)
		}
	}
	return inv.named[name]
}

// disjoint are sets of names that are joined as they turn out to be one.
type disjoint map[string]string

func (d disjoint) find(name string) string {
	up, ok := d[name]
	if !ok {
		d[name] = name
		return name
	}
	if up == name {
		return name
	}
	root := d.find(up)
	d[name] = root
	return root
}

func (d disjoint) join(a, b string) {
	x, y := d.find(a), d.find(b)
	d[max(x, y)] = min(x, y)
}
