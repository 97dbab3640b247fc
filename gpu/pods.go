package gpu

import (
	"slices"
	"sort"
	"time"

	"gpuledger/billing/period"
)

// Pod is a pod that ran on a node within a window.
type Pod struct {
	UID, Namespace, Name string
	Node                 string
	WorkloadKind         string // Deployment, StatefulSet, Job, …; "Pod" where nothing owns it
	WorkloadName         string
	Labels               map[string]string
	Annotations          map[string]string
	Requests             map[string]int64 // summed over containers: nvidia_com_gpu in devices, cpu in milli-cores, memory in bytes
	Claims               []string         // DRA claims, namespace/name, in order
	owner                owner            // the object right above the pod
	requestBy            map[string]int64
	containers           map[string]containerUse // by metric, name and id of the container
	life                 interval
	seen                 []interval
	running              []interval
	hasPhase             bool
	hold                 int64 // how long a sample of the phase stands for, at most
	started, completed   int64 // Unix µs, 0 where unknown
}

// Lifetime returns when the pod held what it requested, as far as the window shows.
func (p *Pod) Lifetime() period.Span {
	return period.Span{Start: fromMicros(p.life.start), End: fromMicros(p.life.end)}
}

// Started returns when Kubernetes started the pod, zero where it is not collected.
func (p *Pod) Started() time.Time {
	if p.started == 0 {
		return time.Time{}
	}
	return fromMicros(p.started)
}

// Completed returns when the pod ended by itself, zero where it did not or that is not
// collected.
func (p *Pod) Completed() time.Time {
	if p.completed == 0 {
		return time.Time{}
	}
	return fromMicros(p.completed)
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
			p.seen = union(append(p.seen, sc.presence(s.Samples, false)...))
		}
	case "kube_pod_labels":
		p.Labels = s.ofObject()
	case "kube_pod_annotations":
		p.Annotations = s.ofObject()
	case "kube_pod_owner":
		if o, ok := ownerOf(s); ok && (p.owner.kind == "" || s.Labels["owner_is_controller"] != "false") {
			p.owner = o
		}
	case claimOfPodMetric:
		if claim := s.Labels["resourceclaim_name"]; claim != "" {
			if claim = p.Namespace + "/" + claim; !slices.Contains(p.Claims, claim) {
				p.Claims = append(p.Claims, claim)
				slices.Sort(p.Claims)
			}
		}
	case "kube_pod_start_time":
		p.started = int64(last * 1e6)
	case "kube_pod_completion_time":
		p.completed = int64(last * 1e6)
	case "kube_pod_status_phase":
		p.hasPhase, p.hold = true, max(p.hold, sc.hold)
		if ph := s.Labels["phase"]; ph == "Running" || ph == "Pending" {
			// A Pending pod with a node holds its devices: it is pulling its image.
			p.running = union(append(p.running, sc.presence(s.Samples, true)...))
		}
	case "kube_pod_container_resource_requests":
		if p.Node == "" {
			p.Node = workloadLabel(s.Labels, "node")
		}
		switch r := s.Labels["resource"]; {
		case r == "cpu":
			p.request(r, workloadLabel(s.Labels, "container"), int64(wholeNumber(last*1000)))
		case r == "memory":
			p.request(r, workloadLabel(s.Labels, "container"), int64(wholeNumber(last)))
		case inv.isGPU(r):
			p.request(r, workloadLabel(s.Labels, "container"), int64(min(wholeNumber(last), mostUnits)))
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
	// kube-state-metrics says when the last container ended of those that are not running:
	// a sidecar's end, or that of a container which is started again, is not the pod's.
	if n := len(p.running); n > 0 && p.running[n-1].end > p.completed+2*p.hold {
		p.completed = 0
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
