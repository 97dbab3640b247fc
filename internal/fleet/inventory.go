package fleet

import (
	"strconv"
	"time"

	"gpuledger/billing/period"
	"gpuledger/gpu"
)

// objectStays is how long a finished Job's pod is kept (ttlSecondsAfterFinished).
const objectStays = time.Hour

// inventory returns what kube-state-metrics shows on a day of some nodes and
// their pods, and of the namespaces where asked.
func (f *Fleet) inventory(day period.Span, nodes []Node, pods map[string][]*Pod, namespaces bool) []gpu.Series {
	k := kube{every: f.InventoryInterval, day: day}
	for i := range nodes {
		k.node(f, &nodes[i])
		for _, p := range pods[nodes[i].Name] {
			k.pod(&nodes[i], p)
		}
	}
	if !namespaces {
		return k.out
	}
	alive := grid(day.Intersect(f.life()), k.every)
	for _, n := range f.Namespaces {
		l := map[string]string{"namespace": n.Name, "label_kubernetes_io_metadata_name": n.Name}
		addLabels(l, n.Labels)
		k.add("kube_namespace_labels", l, alive, constant(1))
	}
	return k.out
}

// life is from the first node's launch to the last one's end.
func (f *Fleet) life() period.Span {
	var s period.Span
	for i, n := range f.Nodes {
		if i == 0 || n.Billed.Start.Before(s.Start) {
			s.Start = n.Billed.Start
		}
		if n.Billed.End.After(s.End) {
			s.End = n.Billed.End
		}
	}
	return s
}

// kube gathers series of one kube-state-metrics.
type kube struct {
	every time.Duration
	day   period.Span
	out   []gpu.Series
}

func constant(v float64) func(time.Time) float64 { return func(time.Time) float64 { return v } }

func unix(t time.Time) func(time.Time) float64 { return constant(float64(t.Unix())) }

// since is 1 while the instant is in the span, else 0.
func since(s period.Span) func(time.Time) float64 {
	return func(t time.Time) float64 {
		if s.Contains(t) {
			return 1
		}
		return 0
	}
}

func (k *kube) add(metric string, labels map[string]string, times []time.Time, value func(time.Time) float64) {
	if len(times) == 0 {
		return
	}
	all := map[string]string{"job": "kube-state-metrics", "instance": "10.0.9.31:8080"}
	for name, v := range labels {
		all[name] = v
	}
	s := gpu.Series{Metric: metric, Labels: all, Samples: make([]gpu.Sample, len(times))}
	for i, t := range times {
		s.Samples[i] = gpu.Sample{UnixMilli: t.UnixMilli(), Value: value(t)}
	}
	k.out = append(k.out, s)
}

func (k *kube) node(f *Fleet, n *Node) {
	times := grid(k.day.Intersect(period.Span{Start: n.Registered, End: n.Billed.End}), k.every)
	with := func(kv ...string) map[string]string { return pairs(append([]string{"node", n.Name}, kv...)...) }
	k.add("kube_node_info", with("provider_id", "aws:///"+n.Zone+"/"+n.InstanceID, "internal_ip", n.ip(),
		"kubelet_version", "v1.33.4-eks-99d6cc0", "os_image", "Amazon Linux 2023", "system_uuid", uuidOf(n.InstanceID)), times, constant(1))
	labels := with()
	addLabels(labels, n.labels(f.Region))
	k.add("kube_node_labels", labels, times, constant(1))
	k.add("kube_node_created", with(), times, unix(n.Registered))
	k.add("kube_node_status_condition", with("condition", "Ready", "status", "true"), times, since(period.Span{Start: n.Ready, End: n.Billed.End}))
	capacity := func(resource, unit string, v int64) {
		k.add("kube_node_status_capacity", with("resource", resource, "unit", unit), times, constant(float64(v)))
	}
	capacity("cpu", "core", n.CPUs)
	capacity("memory", "byte", n.MemoryMiB<<20)
	switch n.Sharing {
	case None:
	case MIG:
		capacity("nvidia_com_gpu", "integer", 0)
		profiles, counts := n.profiles()
		for _, p := range profiles {
			capacity("nvidia_com_mig_"+sanitised(p), "integer", counts[p])
		}
	default:
		capacity("nvidia_com_gpu", "integer", int64(n.GPUs*max(1, n.Replicas)))
	}
}

// profiles lists the node's MIG profiles in the order they appear, with counts.
func (n *Node) profiles() ([]string, map[string]int64) {
	var names []string
	counts := map[string]int64{}
	for _, i := range n.Instances {
		if counts[i.Profile] == 0 {
			names = append(names, i.Profile)
		}
		counts[i.Profile]++
	}
	return names, counts
}

// labels are the node's labels as Kubernetes spells them: the well-known ones,
// the pool's, and those of GPU feature discovery.
func (n *Node) labels(region string) map[string]string {
	l := map[string]string{
		"node.kubernetes.io/instance-type": n.Type, "topology.kubernetes.io/region": region,
		"topology.kubernetes.io/zone": n.Zone, "karpenter.sh/nodepool": n.Pool,
	}
	if n.Sharing == None {
		return l
	}
	l["nvidia.com/gpu.count"] = strconv.Itoa(n.GPUs)
	l["nvidia.com/gpu.memory"] = strconv.FormatInt(n.GPU.TotalMiB, 10)
	l["nvidia.com/gpu.product"] = product(n.GPU.Model)
	l["nvidia.com/gpu.sharing-strategy"], l["nvidia.com/gpu.replicas"] = "none", "1"
	l["nvidia.com/mig.strategy"] = "none"
	switch n.Sharing {
	case PerProcess, Copies:
		l["nvidia.com/gpu.sharing-strategy"], l["nvidia.com/gpu.replicas"] = "time-slicing", strconv.Itoa(n.Replicas)
		l["nvidia.com/gpu.product"] += "-SHARED"
	case MIG:
		l["nvidia.com/gpu.replicas"] = "0"
		l["nvidia.com/mig.strategy"] = "mixed"
		profiles, counts := n.profiles()
		for _, p := range profiles {
			l["nvidia.com/mig-"+p+".count"] = strconv.FormatInt(counts[p], 10)
			l["nvidia.com/mig-"+p+".replicas"] = "1"
		}
	}
	return l
}

// product is the model as GPU feature discovery spells it.
func product(model string) string {
	out := []byte(model)
	for i, c := range out {
		if c == ' ' {
			out[i] = '-'
		}
	}
	return string(out)
}

func (k *kube) pod(n *Node, p *Pod) {
	object := p.Life
	if p.Completes {
		object.End = object.End.Add(objectStays)
	}
	times := grid(k.day.Intersect(object), k.every)
	if len(times) == 0 {
		return
	}
	with := func(kv ...string) map[string]string {
		return pairs(append([]string{"namespace", p.Namespace, "pod", p.Name, "uid", p.UID}, kv...)...)
	}
	k.add("kube_pod_info", with("node", p.Node, "host_ip", n.ip(), "created_by_kind", p.OwnerKind, "created_by_name", p.OwnerName), times, constant(1))
	labels := with()
	addLabels(labels, p.Labels)
	k.add("kube_pod_labels", labels, times, constant(1))
	k.add("kube_pod_owner", with("owner_kind", p.OwnerKind, "owner_name", p.OwnerName, "owner_is_controller", "true"), times, constant(1))
	k.add("kube_pod_start_time", with(), times, unix(p.Life.Start))
	k.add("kube_pod_status_phase", with("phase", "Running"), times, since(p.Life))
	request := func(resource, unit string, v float64) {
		k.add("kube_pod_container_resource_requests", with("container", container, "node", p.Node, "resource", resource, "unit", unit), times, constant(v))
	}
	request("cpu", "core", float64(p.CPUMilli)/1000)
	request("memory", "byte", float64(p.MemoryMiB<<20))
	if p.Units > 0 {
		request(p.Resource, "integer", float64(p.Units))
	}
	if p.Completes {
		done := grid(k.day.Intersect(period.Span{Start: p.Life.End, End: object.End}), k.every)
		k.add("kube_pod_completion_time", with(), done, unix(p.Life.End))
		k.add("kube_pod_status_phase", with("phase", "Succeeded"), done, constant(1))
	}
}

func pairs(kv ...string) map[string]string {
	out := make(map[string]string, len(kv)/2)
	for i := 0; i+1 < len(kv); i += 2 {
		out[kv[i]] = kv[i+1]
	}
	return out
}

func addLabels(to, labels map[string]string) {
	for name, v := range labels {
		to["label_"+sanitised(name)] = v
	}
}
