package gpu

import (
	"regexp"
	"sort"
	"strings"
)

// requestedInstances makes up the MIG instances that pods hold on a node whose
// exporter is silent: as many of each profile as were held at once, packed into as
// few of the node's devices as they fit. want becomes the number of devices left
// over. What such a device has beyond its instances is nobody's word: no telemetry.
func (f *nodeFold) requestedInstances(pods []*Pod, want *int) []*placedPart {
	model, ok := f.modelOf(&placedPart{})
	if !ok || model.MemorySlices == 0 {
		return nil
	}
	if out := f.singleInstances(model, want); out != nil {
		return out
	}
	var open []Profile // instances not yet on a device
	for _, name := range requestedProfiles(pods) {
		p, ok := profileOfResource(name, model)
		if !ok {
			continue
		}
		for range f.heldAtOnce(pods, name) {
			open = append(open, p)
		}
	}
	sort.SliceStable(open, func(i, j int) bool { return open[i].MemorySlices > open[j].MemorySlices })
	var out []*placedPart
	for index := 0; len(open) > 0 && index < *want; index++ {
		var here, rest []Profile
		for _, p := range open {
			if Fits(model, append(here[:len(here):len(here)], p)) {
				here = append(here, p)
			} else {
				rest = append(rest, p)
			}
		}
		if len(here) == 0 {
			break
		}
		open = rest
		out = append(out, f.silentDevice(index, model, here, model.MemorySlices, 1)...)
	}
	if n := len(out); n > 0 {
		*want -= out[n-1].devIndex + 1
	}
	f.silent = 0
	if n := len(out); n > 0 {
		f.silent = out[n-1].devIndex + 1
	}
	return out
}

// silentDevice is one device with the given instances and the rest of its slices, of
// so many in all.
func (f *nodeFold) silentDevice(index int, m Model, instances []Profile, slices, replicas int) []*placedPart {
	var out []*placedPart
	add := func(p Profile, gi string, mode Mode) {
		pp := &placedPart{devIndex: index, present: f.ready, data: newReadings(nil), Partition: Partition{
			Geometry: "requested", GPUInstance: gi, Profile: p.Name, MemorySlices: p.MemorySlices, DeviceSlices: slices,
			ComputeSlices: p.ComputeSlices, Mode: mode, Replicas: replicas, PresentMicros: total(f.ready),
		}}
		pp.UsableBytes = m.TotalBytes * uint64(p.MemorySlices) / uint64(m.MemorySlices)
		out = append(out, pp)
	}
	used, compute := 0, 0
	for i, p := range instances {
		add(p, "requested-"+string(rune('a'+i)), ModeMIG)
		used, compute = used+p.MemorySlices, compute+p.ComputeSlices
	}
	if used < slices {
		add(Profile{Name: "rest", MemorySlices: slices - used, ComputeSlices: max(0, m.ComputeSlices-compute)}, "rest", ModeMIG)
	}
	return out
}

// requestedProfiles lists the MIG resources that pods request, in order.
func requestedProfiles(pods []*Pod) []string {
	set := map[string]bool{}
	for _, p := range pods {
		for r, q := range p.Requests {
			if q > 0 && strings.HasPrefix(r, "nvidia_com_mig_") {
				set[r] = true
			}
		}
	}
	out := make([]string, 0, len(set))
	for r := range set {
		out = append(out, r)
	}
	sort.Strings(out)
	return out
}

// migResource is how kube-state-metrics spells a resource of a MIG profile: 1g.5gb+me
// is 1g_5gb_me, and 1c.3g.20gb, a compute instance, 1c_3g_20gb.
var migResource = regexp.MustCompile(`^nvidia_com_mig_(?:([0-9]+)c_)?([0-9]+g)_([0-9]+gb)((?:_[a-z]+)*?)(?:_shared)?$`)

// profileOfResource reads nvidia_com_mig_1g_5gb back into a profile: of a compute
// instance, that of its GPU instance.
func profileOfResource(resource string, m Model) (Profile, bool) {
	f := migResource.FindStringSubmatch(resource)
	if f == nil {
		return Profile{}, false
	}
	name := f[2] + "." + f[3]
	if attributes := strings.Trim(f[4], "_"); attributes != "" {
		name += "+" + strings.ReplaceAll(attributes, "_", ".")
	}
	if f[1] != "" {
		name = f[1] + "c." + name
	}
	p, ok := ParseProfile(name)
	if !ok {
		return p, false
	}
	return p.Resolve(m)
}

// singleProfile is the profile of all of a node's instances under the single strategy,
// which gpu-feature-discovery puts behind the product's name, and how many of them a
// GPU has.
func (f *nodeFold) singleProfile() (p Profile, each int, ok bool) {
	if f.node == nil || f.node.Labels["nvidia_com_mig_strategy"] != "single" {
		return p, 0, false
	}
	product, name, ok := strings.Cut(f.node.Labels["nvidia_com_gpu_product"], "-MIG-")
	m, known := f.settings.model(product)
	if !ok || !known {
		return p, 0, false
	}
	if p, ok = ParseProfile(name); ok {
		p, ok = p.Resolve(m)
	}
	if !ok {
		return p, 0, false
	}
	for all := []Profile{p}; Fits(m, all); all = append(all, p) {
		each++
	}
	return p, each, each > 0
}

// singleInstances makes up the instances of a silent node under the single strategy:
// their number is the node's capacity.
func (f *nodeFold) singleInstances(model Model, want *int) []*placedPart {
	p, each, ok := f.singleProfile()
	if !ok {
		return nil
	}
	left := int(f.node.wholeGPUCapacity()) / max(1, labelReplicas(f.node))
	var out []*placedPart
	for f.silent = 0; left > 0 && f.silent < *want; f.silent++ {
		n := min(each, left)
		left -= n
		var here []Profile
		for range n {
			here = append(here, p)
		}
		out = append(out, f.silentDevice(f.silent, model, here, ConfiguredSlices(model, here), max(1, labelReplicas(f.node)))...)
	}
	*want -= f.silent
	return out
}

// heldAtOnce is the largest number of units of a resource held at one instant of
// the hour.
func (f *nodeFold) heldAtOnce(pods []*Pod, resource string) int64 {
	var most int64
	for _, p := range pods { // the most is reached when some pod starts
		at := max(p.life.start, f.hour.start)
		var now int64
		for _, q := range pods {
			if q.life.start <= at && at < q.life.end {
				now += q.Requests[resource]
			}
		}
		most = max(most, now)
	}
	return most
}
