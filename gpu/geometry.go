package gpu

import (
	"slices"
	"sort"
	"strconv"
	"strings"
)

// instances returns the device's MIG instances in the order of their ids.
func (d *device) instances() []*part {
	var out []*part
	for k, p := range d.parts {
		if k.gi != "" {
			out = append(out, p)
		}
	}
	sort.Slice(out, func(i, j int) bool {
		a, errA := strconv.Atoi(out[i].gi)
		b, errB := strconv.Atoi(out[j].gi)
		if errA == nil && errB == nil && a != b {
			return a < b
		}
		return out[i].gi+"\x00"+out[i].profile < out[j].gi+"\x00"+out[j].profile
	})
	return out
}

// migPartitions cuts the hour into epochs of constant geometry and returns one
// partition for each instance of each epoch. An AMD card was whole (SPX) while its
// series said so; what a MIG GPU shows of itself says nothing.
func (f *nodeFold) migPartitions(d *device, index int, instances []*part) []*placedPart {
	model, _ := f.settings.model(d.rawModel)
	var out []*placedPart
	within := f.ready
	if p := d.parts[partKey{}]; p != nil && amdPartitionCount(instances[0].profile) > 0 {
		if whole := intersect(f.ready, scrapesOf(append([]*part{p}, instances...)).of(p)); total(whole) > 0 {
			out = append(out, &placedPart{dev: d, devIndex: index, part: p, present: whole, Partition: Partition{
				MemorySlices: 1, DeviceSlices: 1, ComputeSlices: 1, Mode: ModeExclusive, Replicas: 1,
			}})
			within = intersect(f.ready, complement(whole, f.hour))
		}
	}
	for _, e := range epochs(instances, f.existence(instances, model), f.hour) {
		present := intersect(within, []interval{e.interval})
		if total(present) == 0 {
			continue
		}
		var profiles []Profile
		for _, p := range e.instances {
			profiles = append(profiles, p.resolved(model))
		}
		slices, mode := ConfiguredSlices(model, profiles), ModeMIG
		if n := amdPartitionCount(e.instances[0].profile); n > 0 {
			slices, mode = n, ModePartition // a card in CPX has eight partitions, seen or not
		}
		names := make([]string, len(profiles))
		for i, p := range profiles {
			names[i] = p.Name
		}
		sort.Strings(names)
		for i, p := range e.instances {
			pp := &placedPart{dev: d, devIndex: index, part: p, present: present, Partition: Partition{
				Geometry: strings.Join(names, ","), GPUInstance: p.gi, Profile: p.profile,
				MemorySlices: max(1, profiles[i].MemorySlices), DeviceSlices: max(1, slices), ComputeSlices: profiles[i].ComputeSlices,
				Mode: mode, Replicas: f.migReplicas(p.profile),
			}}
			if mode == ModeMIG && f.migEnabled() {
				pp.unpartitioned = intersect(d.seen(), complement(e.seen, f.hour))
			}
			out = again(out, pp)
		}
	}
	return out
}

// again adds an instance, or the time of it where the same geometry was there before.
func again(all []*placedPart, pp *placedPart) []*placedPart {
	for _, o := range all {
		if o.part == pp.part && o.Geometry == pp.Geometry {
			o.present = union(append(o.present, pp.present...))
			o.unpartitioned = intersect(o.unpartitioned, pp.unpartitioned)
			return all
		}
	}
	return append(all, pp)
}

// resolved finds the instance's slices by its profile, or by its size where the
// label is not a profile.
func (p *part) resolved(m Model) Profile {
	if n := amdPartitionCount(p.profile); n > 0 {
		return Profile{Name: p.profile, ComputeSlices: 1, MemorySlices: 1}
	}
	if prof, ok := ParseProfile(p.profile); ok {
		if prof, ok = prof.Resolve(m); ok {
			return prof
		}
	}
	slices := 1
	if m.TotalBytes > 0 && m.MemorySlices > 0 {
		slices = max(1, int((p.usable*uint64(m.MemorySlices)+m.TotalBytes/2)/m.TotalBytes))
	}
	return Profile{Name: p.profile, ComputeSlices: min(slices, max(1, m.ComputeSlices)), MemorySlices: slices}
}

// migReplicas is how many pods may share one instance of the profile by time-slicing.
// Compute instances (1c.3g.20gb) are no slots: who holds one alone holds the instance,
// and several share it.
func (f *nodeFold) migReplicas(profile string) int {
	if f.node == nil {
		return 1
	}
	if r := labelReplicas(f.node); r > 1 && f.node.Labels["nvidia_com_mig_strategy"] == "single" {
		return r
	}
	label := "nvidia_com_mig_" + resourceName(profile) + "_replicas"
	if r, err := strconv.Atoi(f.node.Labels[label]); err == nil && r > 1 {
		return r
	}
	return 1
}

type epoch struct {
	interval
	instances []*part
	seen      []interval // when any of them existed
}

// scrapesOf are the scrapes of a device, seen through any of its instances: a scrape
// without an instance says that it was not there.
func scrapesOf(instances []*part) scrapes {
	var times []int64
	for _, p := range instances {
		times = unionTimes(times, p.times)
	}
	return newScrapes(times, instances[0].interval)
}

// of is when the part was seen.
func (sc scrapes) of(p *part) []interval { return sc.within(p.times) }

// existence is when each instance existed. Samples may be missing while it does: a
// blank value, a pod's exporter lagging. So an instance exists from its first sample
// to its last, and on while a pod that its samples name lives, unless all of them
// could not have existed together: then the geometry did change.
func (f *nodeFold) existence(instances []*part, m Model) [][]interval {
	cover, whole := make([][]interval, len(instances)), make([][]interval, len(instances))
	var profiles []Profile
	ticks := scrapesOf(instances)
	for i, p := range instances {
		cover[i] = ticks.of(p)
		profiles = append(profiles, p.resolved(m))
		if n := len(cover[i]); n > 0 {
			hull := interval{cover[i][0].start, cover[i][n-1].end}
			for k := range p.pods {
				if pod := f.inv.find(p.pods[k].ref, fromMicros(hull.end-1)); pod != nil && pod.life.start < hull.end {
					hull.end = max(hull.end, min(pod.life.end, f.hour.end))
				}
			}
			whole[i] = []interval{hull}
		}
	}
	oneProfileAtATime(instances, cover, whole)
	if amdPartitionCount(instances[0].profile) > 0 || m.MemorySlices > 0 && Fits(m, profiles) {
		return lastTogether(ticks, whole)
	}
	return cover
}

// oneProfileAtATime parts the time of an instance id that had several profiles: each spell
// of one lasts from its first sample to the first of the next, also where one returns.
func oneProfileAtATime(instances []*part, cover, whole [][]interval) {
	type spell struct {
		interval
		of int
	}
	by := map[string][]spell{}
	for i, p := range instances {
		for _, c := range cover[i] {
			by[p.gi] = append(by[p.gi], spell{c, i})
		}
	}
	for _, spells := range by {
		sort.Slice(spells, func(i, j int) bool {
			a, b := spells[i], spells[j]
			return a.start < b.start || a.start == b.start && a.of < b.of
		})
		if !slices.ContainsFunc(spells, func(s spell) bool { return s.of != spells[0].of }) {
			continue // one profile: it is there between its spells too
		}
		end := map[int]int64{}
		for _, s := range spells {
			if len(whole[s.of]) > 0 {
				end[s.of] = whole[s.of][len(whole[s.of])-1].end
			}
			whole[s.of] = nil
		}
		for k, s := range spells {
			until := end[s.of]
			if k+1 < len(spells) {
				until = spells[k+1].start
			}
			whole[s.of] = union(append(whole[s.of], interval{s.start, max(s.start, until)}))
		}
	}
}

// lastTogether lets instances that were all there when the device was last seen exist as
// long as each other: a silent exporter says of none of them that it went.
func lastTogether(ticks scrapes, whole [][]interval) [][]interval {
	if len(ticks.times) == 0 {
		return whole
	}
	seen, end := ticks.times[len(ticks.times)-1]+ticks.hold, int64(0)
	for _, w := range whole {
		for _, i := range w {
			end = max(end, i.end)
		}
	}
	for k := range whole {
		for i := range whole[k] {
			if whole[k][i].end >= seen {
				whole[k][i].end = end
			}
		}
	}
	return whole
}

// epochs finds the stretches of the hour in which the same instances exist. Time in
// which none does belongs to the epoch before it, or at the start to the first.
func epochs(instances []*part, exist [][]interval, hour interval) []epoch {
	cover := make([][]interval, len(instances))
	edges := []int64{hour.start, hour.end}
	for i := range instances {
		cover[i] = intersect(exist[i], []interval{hour})
		for _, c := range cover[i] {
			edges = append(edges, c.start, c.end)
		}
	}
	edges = sortedUnique(edges)
	var out []epoch
	for i := 0; i+1 < len(edges); i++ {
		var now []*part
		for k, c := range cover {
			if contains(c, edges[i]) {
				now = append(now, instances[k])
			}
		}
		piece := interval{edges[i], edges[i+1]}
		n := len(out)
		switch {
		case n > 0 && (len(now) == 0 || sameParts(out[n-1].instances, now)):
			out[n-1].end = piece.end
		case n > 0 && len(out[n-1].instances) == 0:
			out[n-1].end, out[n-1].instances = piece.end, now
		default:
			out = append(out, epoch{interval: piece, instances: now})
		}
		if len(now) > 0 {
			out[len(out)-1].seen = append(out[len(out)-1].seen, piece)
		}
	}
	if len(out) == 1 && len(out[0].instances) == 0 {
		out[0].instances = instances // seen only in the neighbourhood of the hour
	}
	return out
}

func sameParts(a, b []*part) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func contains(in []interval, t int64) bool {
	for _, i := range in {
		if i.start <= t && t < i.end {
			return true
		}
	}
	return false
}

func sortedUnique(in []int64) []int64 {
	slices.Sort(in)
	return slices.Compact(in)
}

// migEnabled reports whether the node's GPUs are under MIG by its labels.
func (f *nodeFold) migEnabled() bool {
	if f.node == nil {
		return false
	}
	s := f.node.Labels["nvidia_com_mig_strategy"]
	return (s == "mixed" || s == "single") && f.node.Labels["nvidia_com_mig_capable"] != "false"
}

// seen is when the exporter showed the device at all. A MIG-enabled GPU without an
// instance has no memory series, and nobody can be on it.
func (d *device) seen() []interval {
	times := slices.Clone(d.alive)
	slices.Sort(times)
	times = slices.Compact(times)
	return covered(times, intervalOf(times))
}
