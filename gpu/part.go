package gpu

import (
	"math"
	"slices"
	"time"
)

type partKey struct{ gi, profile string }

// part gathers the samples of one GPU or MIG instance, as columns over its instants.
type part struct {
	partKey
	// times are the instants, in Unix µs and ascending, at which a series has a figure of
	// the part's memory or shows that it was there.
	times  []int64
	tracks []track

	// Made of the tracks by finish; nil where there is nothing.
	bare []uint64 // of series that name no pod, the largest
	// beside is bare, of exporters only that name pods in the same metric: what another
	// exporter shows tells nothing of how they read the device.
	beside []uint64
	free   []uint64
	used   []uint64 // the largest of all
	own    []bool   // some pod's figure is its own
	pods   []podTrack

	interval time.Duration // of the scrapes
	frozen   []bool        // at which instants the figures were stale; nil: never
	usable   uint64        // largest used + free seen at one instant
	total    uint64
	reserve  uint64
	// scraped are the series of used memory by when they have samples. Gaps are looked at
	// within a series: where two exporters or replicas scrape one device a second apart,
	// the gaps between their merged samples say nothing.
	scraped []scraped
	limits  map[podRef]limit      // the most each pod may use, where something enforces it
	named   map[podRef]limit      // pods that series without a figure for the part name
	claims  map[podRef][]claimRef // DRA claims by pod
}

// absent marks an instant at which there is no figure.
const absent = math.MaxUint64

// track is one series: its figures in bytes at the part's instants.
type track struct {
	free, own, named bool
	process, copies  bool // what the exporter is said to do, whatever the figures look like
	ref              podRef
	slot, share      string
	from             exporter
	values           []uint64
}

// exporter is who says what: one target, by one metric.
type exporter struct{ metric, instance string }

// podTrack is what all series of one pod say together.
type podTrack struct {
	ref    podRef
	values []uint64
	slots  int // the most client slots seen at once; 0: no slot label
	// What the exporter is said to do.
	process, copies bool
}

// scraped is a number of series with samples at the same times.
type scraped struct {
	samples []Sample
	series  int
}

// addTrack adds a series with its accepted figures.
func (p *part) addTrack(t track, times []int64, values []uint64) {
	if len(times) == 0 {
		return
	}
	p.addTimes(times)
	t.values = spread(p.times, times, values)
	p.tracks = append(p.tracks, t)
}

// addTimes makes room for the instants that the part does not have yet. The series of
// one scrape have the same, so most bring none.
func (p *part) addTimes(times []int64) {
	all := unionTimes(p.times, times)
	if len(all) == len(p.times) {
		return
	}
	for i := range p.tracks {
		p.tracks[i].values = spread(all, p.times, p.tracks[i].values)
	}
	p.times = all
}

// subset reports whether all of a is in b, both ascending.
func subset(a, b []int64) bool {
	j := 0
	for _, t := range a {
		for j < len(b) && b[j] < t {
			j++
		}
		if j == len(b) || b[j] != t {
			return false
		}
	}
	return true
}

// spread moves figures from their own times to those of all, which has them.
func spread(all, times []int64, values []uint64) []uint64 {
	if len(all) == len(times) {
		return values
	}
	out := make([]uint64, len(all))
	j := 0
	for i, t := range all {
		out[i] = absent
		if j < len(times) && times[j] == t {
			out[i] = values[j]
			j++
		}
	}
	return out
}

// show says that a part was there, and with whom, without a figure of its memory.
func (p *part) show(s Series) {
	if len(s.Samples) == 0 {
		return
	}
	times := make([]int64, len(s.Samples))
	for i, x := range s.Samples {
		times[i] = x.UnixMilli * 1000
	}
	p.addTimes(times)
	if ref, named := podOf(s); named {
		if p.named == nil {
			p.named = map[podRef]limit{}
		}
		p.named[ref] = p.named[ref].with("", 0, times[0]).with("", 0, times[len(times)-1])
		p.addClaim(ref, s.Labels)
	}
}

func (p *part) addClaim(ref podRef, l map[string]string) {
	claim, ok := claimOf(l)
	if !ok || slices.Contains(p.claims[ref], claim) {
		return
	}
	if p.claims == nil {
		p.claims = map[podRef][]claimRef{}
	}
	p.claims[ref] = append(p.claims[ref], claim)
}

// addLimit keeps what one container may use, from when to when, by what enforces it or
// by who granted it.
func (p *part) addLimit(ref podRef, share string, granted bool, times []int64, values []uint64) {
	if granted {
		share = grantedShare + share
	}
	if p.limits == nil {
		p.limits = map[podRef]limit{}
	}
	l := p.limits[ref]
	for i := range values {
		if i > 0 && i+1 < len(values) && values[i-1] == values[i] && values[i+1] == values[i] {
			continue // within a run
		}
		l = l.with(share, values[i], times[i])
	}
	if len(values) > 0 {
		p.limits[ref] = l
	}
}

func (p *part) addScraped(samples []Sample) {
	for i := range p.scraped {
		if sameTimes(samples, p.scraped[i].samples) {
			p.scraped[i].series++
			return
		}
	}
	p.scraped = append(p.scraped, scraped{samples, 1})
}

// finish brings the tracks together.
func (p *part) finish() {
	p.interval = p.every()
	var bare, free, used column
	for i := range p.tracks {
		switch t := &p.tracks[i]; {
		case t.free:
			free.add(t.values)
			continue
		case !t.named:
			bare.add(t.values)
		case t.own:
			if p.own == nil {
				p.own = make([]bool, len(p.times))
			}
			for k, v := range t.values {
				p.own[k] = p.own[k] || v != absent
			}
			continue // counted with its pod's other containers below
		}
		used.add(p.tracks[i].values)
	}
	p.bare, p.free = bare.values, free.values
	p.beside = p.bareBeside()
	p.finishPods(&used)
	p.used = used.values
	device := p.used // a process that claims more than the device makes it no larger
	if p.bare != nil {
		device = instead(p.bare, p.used)
	}
	for i := range p.free {
		if device != nil && device[i] != absent && p.free[i] != absent {
			p.usable = max(p.usable, device[i]+p.free[i])
		}
	}
	if p.total > p.reserve && (p.reserve > 0 || p.usable == 0) {
		p.usable = p.total - p.reserve
	}
}

// bareBeside gathers the series without a pod of the exporters that name pods too.
func (p *part) bareBeside() []uint64 {
	var out column
	all := true
	for i := range p.tracks {
		t := &p.tracks[i]
		if t.free || t.named {
			continue
		}
		if slices.ContainsFunc(p.tracks, func(o track) bool { return o.named && !o.free && o.from == t.from }) {
			out.add(t.values)
		} else {
			all = false
		}
	}
	if all {
		return p.bare
	}
	return out.values
}

// column gathers the largest figure at each instant. It never changes what is added.
type column struct {
	values []uint64
	own    bool // values may be changed
}

func (c *column) add(values []uint64) {
	if c.values == nil {
		c.values = values
		return
	}
	if !c.own {
		c.values, c.own = slices.Clone(c.values), true
	}
	for i, v := range values {
		if v != absent && (c.values[i] == absent || v > c.values[i]) {
			c.values[i] = v
		}
	}
}

// larger is the larger of two columns at each instant.
func larger(a, b []uint64) []uint64 {
	c := column{values: a}
	c.add(b)
	return c.values
}

func (p *part) finishPods(used *column) {
	byRef := map[podRef][]*track{}
	var order []podRef
	for i := range p.tracks {
		if t := &p.tracks[i]; t.named && !t.free {
			if byRef[t.ref] == nil {
				order = append(order, t.ref)
			}
			byRef[t.ref] = append(byRef[t.ref], t)
		}
	}
	slices.SortFunc(order, podRef.compare)
	for _, ref := range order {
		pt := podTrack{ref: ref, slots: slotsAtOnce(byRef[ref])}
		var copied, own []*track
		for _, t := range byRef[ref] {
			pt.process, pt.copies = pt.process || t.process, pt.copies || t.copies
			if t.own {
				own = append(own, t)
			} else {
				copied = append(copied, t)
			}
		}
		for _, t := range copied {
			pt.values = larger(pt.values, t.values)
		}
		if len(own) > 0 {
			sum := sumOfShares(own)
			used.add(sum)
			pt.values = instead(sum, pt.values)
		}
		p.pods = append(p.pods, pt)
	}
}

// instead is a where it has a figure, else b.
func instead(a, b []uint64) []uint64 {
	switch {
	case b == nil:
		return a
	case a == nil:
		return b
	}
	out := slices.Clone(a)
	for i := range out {
		if out[i] == absent {
			out[i] = b[i]
		}
	}
	return out
}

// sumOfShares adds what a pod's containers use by themselves: unlike copies of a
// device's figure, they add up.
func sumOfShares(own []*track) []uint64 {
	byShare := map[string][]uint64{}
	for _, t := range own {
		byShare[t.share] = larger(byShare[t.share], t.values)
	}
	var sum []uint64
	for _, values := range byShare {
		if sum == nil {
			sum = values
			continue
		}
		next := make([]uint64, len(sum))
		for i := range next {
			switch {
			case sum[i] == absent:
				next[i] = values[i]
			case values[i] == absent:
				next[i] = sum[i]
			default:
				next[i] = sum[i] + values[i]
			}
		}
		sum = next
	}
	return sum
}

// slotsAtOnce is the most different slots that a pod's series have at one instant.
func slotsAtOnce(tracks []*track) int {
	bySlot := map[string][]uint64{}
	for _, t := range tracks {
		if t.slot != "" {
			bySlot[t.slot] = larger(bySlot[t.slot], t.values)
		}
	}
	if len(bySlot) < 2 {
		return len(bySlot)
	}
	most := 0
	for i := range tracks[0].values {
		n := 0
		for _, values := range bySlot {
			if values[i] != absent {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// every is the scrape interval of the part: the median of the gaps in its series, the
// smaller of two in the middle, for what is missing makes gaps longer and nothing shorter.
func (p *part) every() time.Duration {
	if len(p.scraped) == 1 {
		if d := observedInterval(p.scraped[0].samples); d > 0 {
			return d
		}
	}
	var gaps []int64
	for _, s := range p.scraped {
		for range s.series {
			for i := 1; i < len(s.samples); i++ {
				gaps = append(gaps, s.samples[i].UnixMilli-s.samples[i-1].UnixMilli)
			}
		}
	}
	if len(gaps) == 0 {
		return intervalOf(p.times)
	}
	slices.Sort(gaps)
	return time.Duration(gaps[(len(gaps)-1)/2]) * time.Millisecond
}

func intervalOf(times []int64) time.Duration {
	if len(times) < 2 {
		return 0
	}
	gaps := make([]int64, 0, len(times)-1)
	for i := 1; i < len(times); i++ {
		gaps = append(gaps, times[i]-times[i-1])
	}
	slices.Sort(gaps)
	return time.Duration(gaps[(len(gaps)-1)/2]) * time.Microsecond
}

// coverage is when the part has samples of any kind.
func (p *part) coverage() []interval { return covered(p.times, p.interval) }
