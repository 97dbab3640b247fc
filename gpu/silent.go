package gpu

import (
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
		out = append(out, f.silentDevice(index, model, here)...)
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

// silentDevice is one device with the given instances and the rest of its slices.
func (f *nodeFold) silentDevice(index int, m Model, instances []Profile) []*placedPart {
	var out []*placedPart
	add := func(p Profile, gi string, mode Mode) {
		pp := &placedPart{devIndex: index, present: f.ready, data: newReadings(nil), Partition: Partition{
			Geometry: "requested", GPUInstance: gi, Profile: p.Name, MemorySlices: p.MemorySlices, DeviceSlices: m.MemorySlices,
			ComputeSlices: p.ComputeSlices, Mode: mode, Replicas: 1, PresentMicros: total(f.ready),
		}}
		pp.UsableBytes = m.TotalBytes * uint64(p.MemorySlices) / uint64(m.MemorySlices)
		out = append(out, pp)
	}
	used, compute := 0, 0
	for i, p := range instances {
		add(p, "requested-"+string(rune('a'+i)), ModeMIG)
		used, compute = used+p.MemorySlices, compute+p.ComputeSlices
	}
	if used < m.MemorySlices {
		add(Profile{Name: "rest", MemorySlices: m.MemorySlices - used, ComputeSlices: max(0, m.ComputeSlices-compute)}, "rest", ModeMIG)
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

// profileOfResource reads nvidia_com_mig_1g_5gb back into a profile.
func profileOfResource(resource string, m Model) (Profile, bool) {
	name := strings.TrimSuffix(strings.TrimPrefix(resource, "nvidia_com_mig_"), "_shared")
	p, ok := ParseProfile(strings.Replace(name, "g_", "g.", 1))
	if !ok {
		return p, false
	}
	return p.Resolve(m)
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
