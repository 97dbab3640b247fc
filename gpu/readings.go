package gpu

import (
	"math"
	"slices"
	"time"
)

// readings are a part's samples brought to one meaning, by the rules of
// reference/gpu-telemetry.md §1.4: the device's own figure over time, and, where
// the exporter really reports per process, each pod's.
type readings struct {
	every  time.Duration
	device trail // the device's (or instance's) used bytes
	perPod bool
	copied bool                // one figure was repeated for several pods
	labels map[podRef]int      // pods seen, with the most slots seen at once (0: no slot label)
	spans  map[podRef]interval // first and last label of each pod, with its cells
	times  []int64
	stale  []bool              // instants whose figures are no measurement; nil: none
	values map[podRef][]uint64 // by times; cut into cells once lives are known
}

// trail is a figure over time: cells in order, that do not overlap, and the times of
// the samples behind them.
type trail struct {
	cells   []cell
	samples []int64
}

func newReadings(p *part) *readings {
	r := &readings{labels: map[podRef]int{}, spans: map[podRef]interval{}, values: map[podRef][]uint64{}}
	if p == nil {
		return r
	}
	r.every, r.times, r.stale = p.interval, p.times, p.frozen
	r.classify(p)
	device := p.bare
	if !r.perPod && p.used != nil { // then it is the device's, whoever is named with it
		device = instead(p.bare, p.used)
	}
	r.device = r.trail(device, everlasting)
	for i := range p.pods {
		pt := &p.pods[i]
		r.labels[pt.ref] = pt.slots
		first, last := bounds(p.times, pt.values)
		hold := holdOf(r.every)
		r.spans[pt.ref] = interval{first - hold, last + hold}
		if r.perPod {
			r.values[pt.ref] = pt.values
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
	return r
}

// bounds are the first and last instant with a figure.
func bounds(times []int64, values []uint64) (first, last int64) {
	i, j := 0, len(values)-1
	for i < j && values[i] == absent {
		i++
	}
	for j > i && values[j] == absent {
		j--
	}
	return times[i], times[j]
}

var everlasting = interval{math.MinInt64, math.MaxInt64}

// classify decides between per-pod figures and copies of the device's.
func (r *readings) classify(p *part) {
	for i := range p.times {
		if p.own != nil && p.own[i] {
			r.perPod = true
		}
		if r.perPod {
			break
		}
		bare := p.beside != nil && p.beside[i] != absent
		n, equal, copies, most := 0, true, false, uint64(0)
		if bare {
			most = p.beside[i]
		}
		for k := range p.pods {
			if v := p.pods[k].values[i]; v != absent {
				most = max(most, v)
			}
		}
		for k := range p.pods {
			pt := &p.pods[k]
			if v := pt.values[i]; v != absent {
				n++
				copies = copies || pt.copies
				// Only an exporter that reports per process keeps the device's own
				// series beside one that carries a pod's UID.
				equal = equal && (pt.copies || v == most && !(pt.ref.uid != "" && bare))
				r.perPod = r.perPod || pt.process
			}
		}
		switch {
		case n >= 2 && bare && !copies, n >= 2 && !equal, n == 1 && bare && !equal:
			r.perPod = true
		case n >= 2:
			r.copied = true
		}
	}
	if r.perPod {
		r.copied = false
	}
}

// sharedByShape reports whether the data itself shows several pods on the part: slots
// are named, or more than one pod is for more than a few scrapes (a label may outlive its
// pod).
func (p *part) sharedByShape() bool {
	for i := range p.pods {
		if p.pods[i].slots > 0 {
			return true
		}
	}
	at := 0
	for i := range p.times {
		if at += p.severalAt(i); at > strays {
			return true
		}
	}
	for a, l := range p.named { // of a GPU without figures
		for b, o := range p.named {
			if !a.samePod(b) && l.seen.clip(o.seen).length() > holdOf(p.interval)*strays {
				return true
			}
		}
	}
	return false
}

// severalAt is 1 where several pods have a figure at an instant, else 0.
func (p *part) severalAt(i int) int {
	var one *podTrack
	for k := range p.pods {
		pt := &p.pods[k]
		if pt.values[i] == absent {
			continue
		}
		if one != nil && !one.ref.samePod(pt.ref) {
			return 1
		}
		one = pt
	}
	return 0
}

// samePod tells whether two names are of one pod, one of them perhaps without its UID.
func (r podRef) samePod(o podRef) bool {
	return r.namespace == o.namespace && r.name == o.name && (r.uid == o.uid || r.uid == "" || o.uid == "")
}

// refs returns the pods that the samples name, in a fixed order.
func (r *readings) refs() []podRef {
	out := make([]podRef, 0, len(r.labels))
	for ref := range r.labels {
		out = append(out, ref)
	}
	slices.SortFunc(out, podRef.compare)
	return out
}

// trail gives each figure its time within a life.
func (r *readings) trail(values []uint64, life interval) trail {
	if values == nil {
		return trail{}
	}
	var t trail
	whole := true
	for i, at := range r.times {
		whole = whole && values[i] != absent && at >= life.start && at < life.end && r.stale == nil
		if !whole {
			break
		}
	}
	if whole {
		t.samples = r.times
	} else {
		t.samples = make([]int64, 0, len(values))
		own := make([]uint64, 0, len(values))
		for i, at := range r.times {
			if values[i] != absent && at >= life.start && at < life.end && !(r.stale != nil && r.stale[i]) {
				t.samples, own = append(t.samples, at), append(own, values[i])
			}
		}
		values = own
	}
	t.cells = cells(t.samples, values, r.every, life)
	return t
}

// cut gives the pod's own samples their time within its life, so that its first
// sample reaches back to its start. Samples outside it belong to another pod of the
// same name, or to a label that outlived its pod.
func (r *readings) cut(refs []podRef, life interval) trail {
	var values []uint64
	for _, ref := range refs { // several: the same pod under two names, one after the other or both at once
		if v := r.values[ref]; v != nil {
			values = larger(values, v)
		}
	}
	return r.trail(values, life)
}
