package gpu

import (
	"strconv"
)

// expectedDevices counts the node's GPUs from its instance type, its GPU count
// label, or its capacity over its replicas; 0 where nothing says.
// Where it is the capacity, that is no word on how many slots a GPU has.
func (f *nodeFold) expectedDevices(pods []*Pod) (n int, byCapacity bool) {
	if f.node != nil {
		if t, ok := LookupInstanceType(f.node.InstanceType); ok {
			return t.GPUs, false
		}
		if _, each, ok := f.singleProfile(); ok && len(f.devices) == 0 {
			n := max(1, int(f.node.wholeGPUCapacity())/max(1, labelReplicas(f.node)))
			return (n + each - 1) / each, false
		}
		if n, err := strconv.Atoi(f.node.Labels["nvidia_com_gpu_count"]); err == nil && n > 0 && f.node.Labels["nvidia_com_mig_strategy"] != "single" {
			return n, false
		}
		if c := f.node.wholeGPUCapacity(); c > 0 && len(f.devices) == 0 {
			return int(c) / max(1, labelReplicas(f.node)), true
		}
	}
	if len(f.devices) > 0 {
		return len(f.devices), false
	}
	var most int64
	for _, p := range pods {
		most = max(most, p.wholeRequest())
	}
	return int(most), false
}

func (n *Node) wholeGPUCapacity() int64 {
	var sum int64
	for r, c := range n.GPUCapacity {
		if !isMIGResource(r) {
			sum += c
		}
	}
	return sum
}

func labelReplicas(n *Node) int {
	for _, l := range []string{"nvidia_com_gpu_replicas", "cloud_google_com_gke_max_shared_clients_per_gpu"} {
		if r, err := strconv.Atoi(n.Labels[l]); err == nil && r > 0 {
			return r
		}
	}
	return 0
}

// sharing tells the mode and the client slots of a node's whole GPUs, in the
// order of reference/gpu-telemetry.md §4.4: the configuration, then labels, then capacity
// over the count of physical GPUs. Claims, MIG series and the shape of the data are a
// partition's own business, see settleMode.
func (f *nodeFold) sharing(devices int) (Mode, int) {
	n := f.node
	for _, o := range f.settings.Modes {
		if n != nil && matchPool(o.NodePool, n.Pool) {
			f.configured = true
			return o.Mode, max(1, o.Replicas)
		}
	}
	if n == nil {
		return ModeUnknown, 0
	}
	replicas := labelReplicas(n)
	capacity := f.wholeCapacity(devices)
	if replicas <= 1 && devices > 0 && capacity > int64(devices) {
		replicas = int(capacity) / devices // the label stays 1 where GFD lacks the plugin's configuration
	}
	switch first(n.Labels, "nvidia_com_gpu_sharing_strategy", "cloud_google_com_gke_gpu_sharing_strategy") {
	case "mps":
		return ModeMPS, replicas
	case "time-slicing", "time-sharing":
		return ModeTimeSlicing, replicas
	}
	switch {
	case replicas > 1:
		return ModeTimeSlicing, replicas
	case replicas == 1 || devices > 0 && capacity == int64(devices) && !f.byCapacity:
		return ModeExclusive, 1
	}
	return ModeUnknown, 0
}

// wholeCapacity is the capacity of whole GPUs: AMD's plugin may count the partitions of
// its cards (CPX) under the same resource as cards that are not partitioned (SPX).
func (f *nodeFold) wholeCapacity(devices int) int64 {
	capacity := f.node.wholeGPUCapacity()
	var partitions int64
	for _, d := range f.devices {
		if in := d.instances(); len(in) > 0 {
			partitions += int64(amdPartitionCount(in[0].profile))
		}
	}
	if rest := capacity - partitions; rest >= int64(devices) {
		return rest
	}
	return capacity
}

// partitioned counts the devices cut into MIG instances: the node's capacity of
// whole GPUs leaves them out.
func (f *nodeFold) partitioned() int {
	n := 0
	for _, d := range f.devices {
		if len(d.instances()) > 0 {
			n++
		}
	}
	return n
}
