package main

import (
	"maps"
	"slices"
	"strings"
)

// Labels of nodes, as Kubernetes spells them.
var (
	modeLabels = []string{"nvidia.com/gpu.count", "nvidia.com/gpu.product", "nvidia.com/gpu.replicas", "nvidia.com/gpu.sharing-strategy", "nvidia.com/mig.strategy"}
	gkeLabels  = []string{"cloud.google.com/gke-gpu-sharing-strategy", "cloud.google.com/gke-max-shared-clients-per-gpu"}
	typeLabels = []string{"node.kubernetes.io/instance-type", "topology.kubernetes.io/region", "topology.kubernetes.io/zone"}
	// poolLabels by the scheme of provider ids; "" of any other.
	poolLabels = map[string][]string{
		"aws":   {"karpenter.sh/nodepool", "eks.amazonaws.com/nodegroup"},
		"gce":   {"cloud.google.com/gke-nodepool"},
		"azure": {"kubernetes.azure.com/agentpool", "karpenter.sh/nodepool"},
		"":      {"node_pool"},
	}
	groupLabel  = "runai-gpu-group"
	groupNotes  = []string{"gpu-fraction", "gpu-memory", "runai-allocated-gpu-memory", "runai-allocated-gpus"}
	allowLabels = "--metric-labels-allowlist="
	allowNotes  = "--metric-annotations-allowlist="
)

// everyLabel are labels that nobody lists: where one is seen, the list is *.
var everyLabel = map[string][]string{
	"kube_node_labels":      {"beta.kubernetes.io/arch", "beta.kubernetes.io/os"},
	"kube_pod_labels":       {"pod-template-hash", "controller-revision-hash", "pod-template-generation", "batch.kubernetes.io/controller-uid"},
	"kube_namespace_labels": {"kubernetes.io/metadata.name"},
}

// known are labels whose names can be told from what kube-state-metrics makes of them.
var known = slices.Concat(modeLabels, gkeLabels, typeLabels, poolLabels["aws"], poolLabels["gce"], poolLabels["azure"], poolLabels[""], groupNotes, []string{
	groupLabel, "app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/part-of", "app.kubernetes.io/component", "app.kubernetes.io/managed-by",
	"app.kubernetes.io/version", "serving.kserve.io/inferenceservice", "batch.kubernetes.io/job-name", "job-name", "kubernetes.io/metadata.name", "kubernetes.io/hostname",
	"kubernetes.io/arch", "kubernetes.io/os", "karpenter.sh/capacity-type", "eks.amazonaws.com/capacityType", "cost-center",
})

// needs are the labels that something of the configuration reads.
type needs struct {
	pods, namespaces, notes map[string]string // what for, by label
	pool                    string            // what needs a node's pool, "" for nothing
}

// needed works out which labels owners, policy and modes read: all of them, or without
// those of a dimension that some pod has, for one of its labels is enough.
func (l *look) needed(all bool) needs {
	n := needs{map[string]string{}, map[string]string{}, map[string]string{}, ""}
	if len(l.cl.Modes) > 0 {
		n.pool = "modes: of the cluster"
	}
	if p := l.policy; p != nil {
		if len(p.Idle.Pools) > 0 {
			n.pool = "idle.pools of the policy"
		}
		for _, r := range p.RemainderOwner {
			if r.Match.NodePool != "" && r.Match.NodePool != "*" {
				n.pool = "remainder_owner of the policy"
			}
		}
	}
	if l.owners == nil {
		return n
	}
	for _, r := range l.owners.Rules {
		if r.Match.NodePool != "" {
			n.pool = "rules of owners.yaml"
		}
		for _, of := range []struct {
			keys map[string]string
			into map[string]string
		}{{r.Match.Label, n.pods}, {r.Match.NamespaceLabel, n.namespaces}, {r.Match.Annotation, n.notes}} {
			for k := range of.keys {
				of.into[k] = "a rule of owners.yaml"
			}
		}
	}
	for _, dim := range slices.Sorted(maps.Keys(l.owners.Dimensions)) {
		if !all && l.pods.dimensions[dim] {
			continue
		}
		for _, from := range l.owners.Dimensions[dim] {
			kind, key, _ := strings.Cut(from, ":")
			into := map[string]map[string]string{"label": n.pods, "namespace_label": n.namespaces, "annotation": n.notes}[kind]
			if into[key] == "" {
				into[key] = "the dimension " + dim
			}
		}
	}
	return n
}

// judgeLabels says which labels nobody exports that something reads, with the flag that
// brings them.
func (l *look) judgeLabels() {
	n := l.needed(false)
	l.judgeNodeLabels(n)
	if l.pods.reserved {
		n.pods[groupLabel] = "the groups of Run:ai or KAI"
	}
	l.lacking("kube_pod_labels", "pods", n.pods, l.allowLabels)
	l.lacking("kube_namespace_labels", "namespaces", n.namespaces, l.allowLabels)
	if l.pods.reserved && !l.seen.hasAny("kube_pod_annotations", groupNotes) {
		for _, k := range groupNotes {
			n.notes[k] = "the parts of Run:ai or KAI"
		}
	}
	l.lacking("kube_pod_annotations", "pods", n.notes, l.allowAnnotations)
	if l.seen.countOf("kube_pod_labels") == 0 && len(n.pods) == 0 {
		l.r.note("labels", l.name, "no labels of pods: nothing reads them now, and audits will not have them", "kube-state-metrics "+allowLabels+"pods=[*]")
	}
}

// lacking reports labels that something reads and no series of a metric has.
func (l *look) lacking(metric, objects string, needed map[string]string, flag func() string) {
	var lack, why []string
	for _, k := range slices.Sorted(maps.Keys(needed)) {
		if !l.seen.has(metric, k) {
			lack = append(lack, k)
			if !slices.Contains(why, needed[k]) {
				why = append(why, needed[k])
			}
		}
	}
	kind := "label"
	if metric == "kube_pod_annotations" {
		kind = "annotation"
	}
	switch {
	case len(needed) == 0:
	case len(lack) == 0:
		l.r.good("labels", l.name, "%ss of %s that rules, dimensions and groups read: all there (%s)", kind, objects, names(slices.Sorted(maps.Keys(needed)), true))
	case l.all(metric):
		l.r.note("labels", l.name, "no object has "+strings.Join(lack, ", ")+" ("+kind+" of "+objects+", for "+strings.Join(why, " and ")+"); all are exported, so nobody has set it", "")
	default:
		l.r.bad("labels", l.name, "no series has "+strings.Join(lack, ", ")+" ("+kind+" of "+objects+", for "+strings.Join(why, " and ")+")", "kube-state-metrics "+flag())
	}
}

// all reports whether every label of a kind of object is exported.
func (l *look) all(metric string) bool { return l.seen.hasAny(metric, everyLabel[metric]) }

// judgeNodeLabels looks at the labels of nodes. Those by which modes are told are missed
// where a mode cannot be told, which the nodes say.
func (l *look) judgeNodeLabels(n needs) {
	const metric = "kube_node_labels"
	l.seen.mu.Lock()
	some := len(l.seen.labels[metric])
	l.seen.mu.Unlock()
	if some == 0 {
		l.r.bad("labels", l.name, "no labels of nodes: instance types, pools and sharing modes are not known", "kube-state-metrics "+l.allowLabels())
		return
	}
	counted := l.seen.has(metric, "nvidia.com/gpu.count") || l.seen.has(metric, typeLabels[0]) || l.seen.has(metric, "beta.kubernetes.io/instance-type")
	switch {
	case !counted:
		l.r.bad("labels", l.name, "no label of nodes says how many GPUs they have: one without series is not missed", "kube-state-metrics "+l.allowLabels())
	case !l.seen.has(metric, typeLabels[0]):
		l.r.note("labels", l.name, "no "+typeLabels[0]+" of nodes: the audit and GPUs that have no series go without it", "kube-state-metrics "+l.allowLabels())
	default:
		l.r.good("labels", l.name, "labels of nodes that are exported: %s", names(l.visible(metric), true))
	}
	switch {
	case len(l.fleet.pools) > 0:
	case n.pool != "":
		l.r.bad("labels", l.name, "no GPU node has a label of its pool, which "+n.pool+" read", "kube-state-metrics "+l.allowLabels())
	default:
		l.r.note("labels", l.name, "no GPU node has a label of its pool", "kube-state-metrics "+l.allowLabels())
	}
}

// visible are the labels of a metric by the names that Kubernetes has for them, as far as
// they can be told.
func (l *look) visible(metric string) []string {
	l.seen.mu.Lock()
	defer l.seen.mu.Unlock()
	var out []string
	for seen := range l.seen.labels[metric] {
		name := seen
		if i := slices.IndexFunc(known, func(k string) bool { return spelt(k) == seen }); i >= 0 {
			name = known[i]
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// allowLabels is the flag for all labels that are needed or were seen.
func (l *look) allowLabels() string {
	n := l.needed(true)
	if l.pods.reserved {
		n.pods[groupLabel] = ""
	}
	nodes := slices.Concat(modeLabels, typeLabels)
	clouds := slices.Sorted(maps.Keys(l.fleet.clouds))
	for _, c := range clouds {
		nodes = append(nodes, poolLabels[c]...)
		if c == "gce" {
			nodes = append(nodes, gkeLabels...)
		}
	}
	if len(clouds) == 0 {
		nodes = append(nodes, poolLabels[""]...)
	}
	lists := l.list("nodes", "kube_node_labels", nodes) + l.list("pods", "kube_pod_labels", slices.Collect(maps.Keys(n.pods))) +
		l.list("namespaces", "kube_namespace_labels", slices.Collect(maps.Keys(n.namespaces)))
	return allowLabels + strings.TrimSuffix(lists, ",") + l.unsure("kube_node_labels", "kube_pod_labels", "kube_namespace_labels")
}

// allowAnnotations is the flag for annotations of pods.
func (l *look) allowAnnotations() string {
	n := l.needed(true)
	keys := slices.Collect(maps.Keys(n.notes))
	if l.pods.reserved {
		keys = append(keys, groupNotes...)
	}
	return allowNotes + strings.TrimSuffix(l.list("pods", "kube_pod_annotations", keys), ",") + l.unsure("kube_pod_annotations")
}

func (l *look) list(resource, metric string, needed []string) string {
	if l.all(metric) {
		return resource + "=[*],"
	}
	all := append(slices.Clone(needed), slices.DeleteFunc(l.visible(metric), mangled)...)
	slices.Sort(all)
	if all = slices.Compact(all); len(all) == 0 {
		return ""
	}
	return resource + "=[" + strings.Join(all, ",") + "],"
}

// mangled reports whether the name of a label may have been another: kube-state-metrics
// makes _ of what is no letter and no digit.
func mangled(name string) bool { return strings.Contains(name, "_") && !slices.Contains(known, name) }

// unsure names labels that are exported now and cannot be spelt.
func (l *look) unsure(metrics ...string) string {
	needed := l.needed(true)
	var out []string
	for _, m := range metrics {
		for _, name := range l.visible(m) {
			isNeeded := slices.ContainsFunc(slices.Concat(slices.Collect(maps.Keys(needed.pods)), slices.Collect(maps.Keys(needed.namespaces)), slices.Collect(maps.Keys(needed.notes))), func(k string) bool { return spelt(k) == name })
			if mangled(name) && !isNeeded && !l.all(m) {
				out = append(out, name)
			}
		}
	}
	if len(out) == 0 {
		return ""
	}
	slices.Sort(out)
	return " and what is listed now as " + strings.Join(slices.Compact(out), ", ") + " (_ may be another character)"
}
