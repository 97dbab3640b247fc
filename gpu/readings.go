package gpu

import (
	"math"
	"slices"
	"sort"
	"time"
)

// readings are a part's samples brought to one meaning, by the rules of
// reference/gpu-telemetry.md §1.4: the device's own figure over time, and, where
// the exporter really reports per process, each pod's.
type readings struct {
	every  time.Duration
	device []cell            // the device's (or instance's) used bytes
	pods   map[podRef][]cell // only where perPod
	perPod bool
	copied bool                // one figure was repeated for several pods
	labels map[podRef]int      // pods seen, with the most slots seen at once (0: no slot label)
	spans  map[podRef]interval // first and last label of each pod, with its cells
	points map[podRef][]point  // raw, cut into cells once lives are known
}

func newReadings(p *part) *readings {
	r := &readings{labels: map[podRef]int{}, pods: map[podRef][]cell{}, points: map[podRef][]point{}, spans: map[podRef]interval{}}
	if p == nil {
		return r
	}
	times := p.times()
	r.every = p.every()
	r.classify(p, times)
	var device []point
	labelled := map[podRef][]point{}
	for _, t := range times {
		sc := p.scrapes[t]
		if !sc.hasUsed {
			continue
		}
		for ref, v := range sc.pods {
			r.labels[ref] = max(r.labels[ref], len(sc.slots[ref]))
			labelled[ref] = append(labelled[ref], point{t, v})
		}
		switch {
		case sc.bare != nil:
			device = append(device, point{t, *sc.bare})
		case !r.perPod && !sc.own:
			device = append(device, point{t, sc.used})
		}
	}
	for _, seen := range []map[podRef]limit{p.limits, p.named} { // a pod that has not touched the GPU yet has a limit and no use
		for ref, l := range seen {
			if _, ok := r.labels[ref]; !ok {
				r.labels[ref] = 0
				r.spans[ref] = l.seen
			}
		}
	}
	r.device = cells(device, r.every, everlasting)
	for ref, pts := range labelled {
		cs := cells(pts, r.every, everlasting)
		if len(cs) > 0 {
			r.spans[ref] = interval{cs[0].start, cs[len(cs)-1].end}
		}
		if r.perPod {
			r.points[ref] = pts
		}
	}
	return r
}

var everlasting = interval{math.MinInt64, math.MaxInt64}

// classify decides between per-pod figures and copies of the device's.
func (r *readings) classify(p *part, times []int64) {
	for _, t := range times {
		sc := p.scrapes[t]
		if sc.own {
			r.perPod = true
			continue
		}
		equal := true
		for ref, v := range sc.pods {
			// Only an exporter that reports per process keeps the device's own
			// series beside one that carries a pod's UID.
			equal = equal && v == sc.used && !(ref.uid != "" && sc.bare != nil)
		}
		switch n := len(sc.pods); {
		case n >= 2 && sc.bare != nil, n >= 2 && !equal, n == 1 && sc.bare != nil && !equal:
			r.perPod = true
		case n >= 2:
			r.copied = true
		}
	}
	if r.perPod {
		r.copied = false
	}
}

func (p *part) times() []int64 {
	times := make([]int64, 0, len(p.scrapes))
	for t := range p.scrapes {
		times = append(times, t)
	}
	sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
	return times
}

// every is the scrape interval of the part: the median of the gaps in its series, the
// smaller of two in the middle, for what is missing makes gaps longer and nothing shorter.
func (p *part) every() time.Duration {
	if len(p.gaps) == 0 {
		return intervalOf(p.times())
	}
	all := append([]int64(nil), p.gaps...)
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	return time.Duration(all[(len(all)-1)/2]) * time.Millisecond
}

func intervalOf(times []int64) time.Duration {
	if len(times) < 2 {
		return 0
	}
	gaps := make([]int64, 0, len(times)-1)
	for i := 1; i < len(times); i++ {
		gaps = append(gaps, times[i]-times[i-1])
	}
	sort.Slice(gaps, func(i, j int) bool { return gaps[i] < gaps[j] })
	return time.Duration(gaps[(len(gaps)-1)/2]) * time.Microsecond
}

// coverage is when the part has samples of any kind.
func (p *part) coverage() []interval {
	times := p.times()
	pts := make([]point, len(times))
	for i, t := range times {
		pts[i] = point{at: t}
	}
	return coverage(cells(pts, p.every(), everlasting))
}

// refs returns the pods that the samples name, in a fixed order.
func (r *readings) refs() []podRef {
	out := make([]podRef, 0, len(r.labels))
	for ref := range r.labels {
		out = append(out, ref)
	}
	sort.Slice(out, func(i, j int) bool {
		a, b := out[i], out[j]
		if a.namespace != b.namespace {
			return a.namespace < b.namespace
		}
		if a.name != b.name {
			return a.name < b.name
		}
		return a.uid < b.uid
	})
	return out
}

// cut gives the pod's own samples their time within its life, so that its first
// sample reaches back to its start. Samples outside it belong to another pod of the
// same name, or to a label that outlived its pod.
func (r *readings) cut(refs []podRef, life interval) []cell {
	var own []point
	for _, ref := range refs {
		for _, p := range r.points[ref] {
			if p.at >= life.start && p.at < life.end {
				own = append(own, p)
			}
		}
	}
	if len(refs) > 1 { // the same pod under two names, one after the other or both at once
		sort.SliceStable(own, func(i, j int) bool {
			return own[i].at < own[j].at || own[i].at == own[j].at && own[i].value > own[j].value
		})
		own = slices.CompactFunc(own, func(a, b point) bool { return a.at == b.at })
	}
	return cells(own, r.every, life)
}
