package gpu

import (
	"regexp"
	"sort"
	"strconv"
	"strings"
	"sync"
)

// Profile is a MIG instance profile.
type Profile struct {
	Name          string // as labelled: 3g.20gb, 1g.10gb+me
	ComputeSlices int    // of the GPU instance (the 3 in 3g)
	MemoryGB      int    // the nominal gigabytes in the name
	MemorySlices  int    // of the GPU's 8 (or 4); 0 until resolved against a model
}

// profilePattern covers the grammar of the MIG user guide: an optional compute
// instance ("1c."), the GPU instance, its size, and attributes.
var profilePattern = regexp.MustCompile(`^(?:\d+c\.)?(\d+)g\.(\d+)gb(?:[+-][a-z.]+)*$`)

// ParseProfile reads a profile name: 1g.5gb, 1g.5gb+me, 1c.3g.20gb, 1g.10gb+gfx,
// 2g.12gb+me.all, 4g.96gb-me. It reports false for anything else.
func ParseProfile(name string) (Profile, bool) {
	m := profilePattern.FindStringSubmatch(strings.ToLower(name))
	if m == nil {
		return Profile{}, false
	}
	compute, err1 := strconv.Atoi(m[1])
	gb, err2 := strconv.Atoi(m[2])
	if err1 != nil || err2 != nil || compute == 0 || gb == 0 {
		return Profile{}, false
	}
	return Profile{Name: name, ComputeSlices: compute, MemoryGB: gb}, true
}

// Resolve fills MemorySlices for a model. On 7-slice GPUs (8 memory slices) the
// compute part fixes it (2g: 2, 3g and 4g: 4, 7g: 8), except that a 1g profile
// exists with one and with two memory slices; its size then decides. On 4-slice
// GPUs memory and compute slices are equal. Source: MIG user guide, "Supported
// MIG Profiles", with 1g.10gb of an A100-40GB taken as 2/8, as its size says.
func (p Profile) Resolve(m Model) (Profile, bool) {
	switch {
	case m.MemorySlices == 4 && p.ComputeSlices <= 4:
		p.MemorySlices = p.ComputeSlices
	case m.MemorySlices == 8:
		switch p.ComputeSlices {
		case 1:
			p.MemorySlices = 1
			// Half-way between one eighth and two: 1.5/8 of the card in nominal GB.
			if uint64(p.MemoryGB)<<30*16 > 3*m.TotalBytes {
				p.MemorySlices = 2
			}
		case 2:
			p.MemorySlices = 2
		case 3, 4:
			p.MemorySlices = 4
		case 7:
			p.MemorySlices = 8
		}
	}
	return p, p.MemorySlices > 0
}

// placement is where an instance of some shape may start on the memory slices.
type placement struct {
	compute, memory int
	starts          []int
}

// The placements the driver offers (nvmlDeviceGetGpuInstancePossiblePlacements).
var (
	placements8 = []placement{
		{1, 1, []int{0, 1, 2, 3, 4, 5, 6}},
		{1, 2, []int{0, 2, 4, 6}},
		{2, 2, []int{0, 2, 4}},
		{3, 4, []int{0, 4}},
		{4, 4, []int{0}},
		{7, 8, []int{0}},
	}
	placements4 = []placement{
		{1, 1, []int{0, 1, 2, 3}},
		{2, 2, []int{0, 2}},
		{4, 4, []int{0}},
	}
)

// shape counts instances by index into a placement table.
type shape [6]int

type geometry struct {
	counts          shape
	memory, compute int // Σ slices
	dominant        int // Σ DominantSlices
}

// geometries returns every complete (not extendable) set of instances, as counts.
func geometries(table []placement, memory, compute int) []geometry {
	seen := map[shape]geometry{}
	var walk func(used uint, computeLeft int, counts shape, memUsed, fromKind, fromStart int)
	fits := func(used uint, computeLeft, kind, start int) (uint, bool) {
		p := table[kind]
		mask := (uint(1)<<p.memory - 1) << start
		return mask, p.compute <= computeLeft && used&mask == 0 && start+p.memory <= memory
	}
	walk = func(used uint, computeLeft int, counts shape, memUsed, fromKind, fromStart int) {
		complete := true
		for k, p := range table {
			for _, s := range p.starts {
				mask, ok := fits(used, computeLeft, k, s)
				if !ok {
					continue
				}
				complete = false
				if k < fromKind || k == fromKind && s < fromStart {
					continue // each set once: instances in ascending (kind, start)
				}
				next := counts
				next[k]++
				walk(used|mask, computeLeft-p.compute, next, memUsed+p.memory, k, s+1)
			}
		}
		if complete {
			g := geometry{counts: counts, memory: memUsed, compute: compute - computeLeft}
			for k, n := range counts {
				if n > 0 {
					g.dominant += n * max(table[k].memory*compute, table[k].compute*memory)
				}
			}
			seen[counts] = g
		}
	}
	walk(0, compute, shape{}, 0, 0, 0)
	out := make([]geometry, 0, len(seen))
	for _, g := range seen {
		out = append(out, g)
	}
	sort.Slice(out, func(i, j int) bool { return lessShape(out[i].counts, out[j].counts) })
	return out
}

func lessShape(a, b shape) bool {
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}

var (
	complete8 = sync.OnceValue(func() []geometry { return geometries(placements8, 8, 7) })
	complete4 = sync.OnceValue(func() []geometry { return geometries(placements4, 4, 4) })
)

// ConfiguredSlices returns D of DESIGN §4.2: the largest sum of memory slices
// over the complete geometries that contain the given instances. Seven 1g on an
// A100 are complete with 7; a single 1g can still be completed to 8. An empty or
// impossible set gets all of the model's slices.
func ConfiguredSlices(m Model, instances []Profile) int {
	return completed(m, instances, m.MemorySlices, func(g geometry) int { return g.memory })
}

// ConfiguredComputeSlices is ConfiguredSlices counted in compute slices.
func ConfiguredComputeSlices(m Model, instances []Profile) int {
	return completed(m, instances, m.ComputeSlices, func(g geometry) int { return g.compute })
}

// DominantSlices is an instance's larger share of the two resources, in units of
// 1/(memory slices × compute slices) of the GPU: max(m/8, c/7) is max(7m, 8c)/56.
func (m Model) DominantSlices(memory, compute int) int {
	return max(memory*m.ComputeSlices, compute*m.MemorySlices)
}

// ConfiguredDominantSlices is ConfiguredSlices counted in DominantSlices.
func ConfiguredDominantSlices(m Model, instances []Profile) int {
	return completed(m, instances, m.MemorySlices*m.ComputeSlices, func(g geometry) int { return g.dominant })
}

// Fits reports whether the instances can exist together on one GPU of the model.
func Fits(m Model, instances []Profile) bool {
	return completed(m, instances, 0, func(g geometry) int { return g.memory }) > 0
}

func completed(m Model, instances []Profile, all int, slices func(geometry) int) int {
	table, complete := placements8, complete8
	if m.MemorySlices == 4 {
		table, complete = placements4, complete4
	}
	var have shape
	for _, p := range instances {
		k := kindOf(table, p)
		if k < 0 {
			return all
		}
		have[k]++
	}
	best := 0
	for _, g := range complete() {
		contains := true
		for k := range have {
			contains = contains && g.counts[k] >= have[k]
		}
		if contains {
			best = max(best, slices(g))
		}
	}
	if best == 0 {
		return all
	}
	return best
}

// GeometryProfiles parses a Partition's geometry for a model; false where a name
// is no profile.
func GeometryProfiles(m Model, geometry string) ([]Profile, bool) {
	var out []Profile
	for _, name := range strings.Split(geometry, ",") {
		p, ok := ParseProfile(name)
		if !ok {
			return nil, false
		}
		if p, ok = p.Resolve(m); !ok {
			return nil, false
		}
		out = append(out, p)
	}
	return out, true
}

func kindOf(table []placement, p Profile) int {
	for k, pl := range table {
		if pl.compute == p.ComputeSlices && pl.memory == p.MemorySlices {
			return k
		}
	}
	return -1
}
