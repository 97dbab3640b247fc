package gpu

import "strings"

// owner is an object that owns another, as kube-state-metrics' *_owner families name
// it; kind is "" where nothing does.
type owner struct{ kind, name string }

// owned is a ReplicaSet or a Job.
type owned struct{ kind, namespace, name string }

// ownerOf reads an *_owner series; false where it names none.
func ownerOf(s Series) (owner, bool) {
	kind, name := s.Labels["owner_kind"], s.Labels["owner_name"]
	if kind == "" || kind == "<none>" || name == "" || name == "<none>" {
		return owner{}, false
	}
	return owner{kind, name}, true
}

// addOwner keeps who owns a ReplicaSet (kube_replicaset_owner) or a Job
// (kube_job_owner): an object that nothing owns is known too.
func (inv *Inventory) addOwner(s Series) {
	of := owned{"ReplicaSet", workloadLabel(s.Labels, "namespace"), s.Labels["replicaset"]}
	if s.Metric == "kube_job_owner" {
		of.kind, of.name = "Job", s.Labels["job_name"]
	}
	if of.name == "" {
		return
	}
	o, ok := ownerOf(s)
	if known := inv.owners[of]; ok && known.kind != "" && s.Labels["owner_is_controller"] == "false" {
		return
	}
	inv.owners[of] = o
}

// workload names the workload a pod belongs to: up the chain of owners where it is
// collected (ReplicaSet to Deployment, Job to CronJob), else by the naming rule of
// their controllers. A pod that nothing owns is its own.
func (inv *Inventory) workload(p *Pod) (kind, name string) {
	if p.owner.kind == "" {
		return "Pod", p.Name
	}
	above, known := inv.owners[owned{p.owner.kind, p.Namespace, p.owner.name}]
	switch {
	case !known:
		return workloadOf(p.owner.kind, p.owner.name)
	case above.kind == "":
		return p.owner.kind, p.owner.name
	}
	return above.kind, above.name
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
