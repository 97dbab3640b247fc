package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gpuledger/gpu"
	"gpuledger/policy"
)

// holding is a workload whose pods held GPUs in the hour.
type holding struct {
	namespace, kind, name string
}

// podsFound is what was found of the pods on the nodes that were looked at.
type podsFound struct {
	pods       int
	unowned    map[holding]*held
	byAccount  int  // pods whose owner depends on the account of the bill
	reserved   bool // Run:ai or KAI reserve GPUs
	dimensions map[string]bool
	matched    map[int]bool // rules of owners.yaml that something matched, by their place
}

type held struct {
	pods   int
	gpus   float64 // mean over the hour
	labels map[string]string
}

// add takes the pods of some nodes.
func (f *podsFound) add(l *look, h gpu.ClusterHour) {
	if f.unowned == nil {
		f.unowned, f.dimensions, f.matched = map[holding]*held{}, map[string]bool{}, map[int]bool{}
	}
	pods := map[string]*gpu.Pod{}
	for _, p := range h.Inventory.AllPods() {
		pods[p.UID] = p
	}
	for _, nh := range h.Nodes {
		f.try(l, policy.Subject{Cluster: l.cl.Name, NodePool: nh.Pool})
		gpus := map[string]float64{}
		for _, d := range nh.Devices {
			for _, p := range d.Partitions {
				for _, r := range p.Rows {
					if r.PodUID != "" {
						gpus[r.PodUID] += float64(r.Shares.MaxNone) / float64(max(1, p.PresentMicros)) * float64(p.MemorySlices) / float64(max(1, p.DeviceSlices))
					}
				}
			}
		}
		uids := slices.Sorted(maps.Keys(gpus))
		for _, p := range nh.Pods {
			if _, ok := gpus[p.PodUID]; !ok {
				uids = append(uids, p.PodUID)
			}
		}
		for _, uid := range uids {
			if p := pods[uid]; p != nil {
				_, holds := gpus[uid]
				f.pod(l, h.Inventory, nh, p, gpus[uid], holds)
			}
		}
	}
}

func (f *podsFound) pod(l *look, inv *gpu.Inventory, nh gpu.NodeHour, p *gpu.Pod, gpus float64, holds bool) {
	f.reserved = f.reserved || gpu.Reserves(p.Namespace)
	if l.owners == nil {
		return
	}
	s := policy.Subject{
		Cluster: l.cl.Name, Namespace: p.Namespace, Workload: p.WorkloadName, NodePool: nh.Pool,
		Labels: p.Labels, NamespaceLabels: inv.Namespaces[p.Namespace], Annotations: p.Annotations,
	}
	owner := f.try(l, s)
	if !holds || gpu.Reserves(p.Namespace) {
		return
	}
	f.pods++
	for d := range owner.Dimensions {
		f.dimensions[d] = true
	}
	if owner.Team != "" {
		return
	}
	lenient := anyAccount(l.owners)
	if lenient.Resolve(s, l.hour).Team != "" {
		f.byAccount++
		return
	}
	k := holding{p.Namespace, p.WorkloadKind, p.WorkloadName}
	if f.unowned[k] == nil {
		f.unowned[k] = &held{labels: p.Labels}
	}
	f.unowned[k].pods++
	f.unowned[k].gpus += gpus
}

// try notes which rules match a subject, and returns its owner.
func (f *podsFound) try(l *look, s policy.Subject) policy.Owner {
	o := l.owners
	if o == nil {
		return policy.Owner{}
	}
	for i, r := range o.Rules {
		one := *o
		one.Rules, one.Dimensions = []policy.OwnerRule{r}, nil
		one.Rules[0].Match.Account = "" // only a bill tells
		if one.Resolve(s, l.hour).Team != "" {
			f.matched[i] = true
		}
	}
	return o.Resolve(s, l.hour)
}

// anyAccount is the document without the conditions that only a bill can decide.
func anyAccount(o *policy.Owners) policy.Owners {
	out := *o
	out.Rules = slices.Clone(o.Rules)
	for i := range out.Rules {
		out.Rules[i].Match.Account = ""
	}
	return out
}

// shown is how many workloads without an owner are named.
const shown = 10

// judgeOwners names the workloads without an owner.
func (l *look) judgeOwners() {
	f := &l.pods
	if l.owners == nil || f.pods == 0 {
		return
	}
	if len(f.unowned) == 0 {
		l.r.good("owners", l.name, "%s with GPUs, each with an owner", count(f.pods, "pod"))
	}
	if f.byAccount > 0 {
		l.r.note("owners", l.name, count(f.byAccount, "pod")+" with GPUs whose owner depends on the account of the bill", "")
	}
	all := slices.Collect(maps.Keys(f.unowned))
	slices.SortFunc(all, func(a, b holding) int {
		return cmp.Or(cmp.Compare(f.unowned[b].gpus, f.unowned[a].gpus), strings.Compare(a.namespace, b.namespace), strings.Compare(a.kind, b.kind), strings.Compare(a.name, b.name))
	})
	for i, k := range all {
		if i == shown {
			l.r.bad("owners", l.name, fmt.Sprintf("%s more without an owner hold GPUs", count(len(all)-shown, "workload")), "add rules to owners.yaml, or one for all at its end: {match: {}, team: …}")
			break
		}
		h := f.unowned[k]
		labels := make([]string, 0, len(h.labels))
		for _, name := range slices.Sorted(maps.Keys(h.labels)) {
			labels = append(labels, name+"="+h.labels[name])
		}
		has := "no labels seen"
		if len(labels) > 0 {
			has = "labels " + strings.Join(labels, ", ")
		}
		l.r.bad("owners", l.name, fmt.Sprintf("%s/%s (%s, %s, %.2f GPUs) has no owner; %s", k.namespace, k.name, k.kind, count(h.pods, "pod"), h.gpus, has),
			fmt.Sprintf("a rule in owners.yaml: {match: {namespace: %q}, team: …, cost_center: …}", k.namespace))
	}
}

// across says what only all clusters together show: rules of owners.yaml that nothing
// matched, and machines that two clusters have.
func across(looks []*look, owners *policy.Owners, r *report) {
	matched := map[int]bool{}
	pods, whole := 0, true
	machines := map[string][]string{}
	for _, l := range looks {
		pods += l.pods.pods
		whole = whole && l.complete
		maps.Copy(matched, l.pods.matched)
		if l.ordinal == 0 {
			for m := range l.fleet.machines {
				machines[m] = append(machines[m], l.name)
			}
		}
	}
	for _, m := range slices.Sorted(maps.Keys(machines)) {
		if c := machines[m]; len(c) > 1 {
			r.add(failed, "node", c[0], fmt.Sprintf("the machine %s is in the clusters %s at once", m, strings.Join(c, " and ")), "set metrics.match of each to the labels of its own series")
		}
	}
	if owners == nil || pods == 0 || !whole {
		return
	}
	for i, rule := range owners.Rules {
		if !matched[i] {
			r.note("owners", fmt.Sprintf("rule %d", i+1), fmt.Sprintf("the rule of team %s matches nothing of the hour that was looked at", rule.Team), "")
		}
	}
}
