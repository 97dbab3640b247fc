package gpu

import (
	"math"
	"sort"
	"time"

	"gpuledger/billing/period"
)

// holdFactor is how many observed intervals a sample may stand for on either
// side of itself: beyond it, time is uncovered and goes down the ladder.
const holdFactor = 2.5

// defaultInterval is assumed for a series too short to show its own.
const defaultInterval = 60 * time.Second

// micros and fromMicros convert between instants and the integers the folding
// works with.
func micros(t time.Time) int64      { return t.UnixMicro() }
func fromMicros(us int64) time.Time { return time.UnixMicro(us).UTC() }

// interval is a half-open interval in Unix microseconds.
type interval struct{ start, end int64 }

func (i interval) length() int64 { return max(0, i.end-i.start) }

func (i interval) clip(o interval) interval {
	return interval{max(i.start, o.start), min(i.end, o.end)}
}

func spanMicros(s period.Span) interval { return interval{micros(s.Start), micros(s.End)} }

// cell is the stretch of time one sample stands for.
type cell struct {
	interval
	value uint64
	at    int64 // the sample's own time
}

// observedInterval returns the median gap between samples, 0 below two samples.
func observedInterval(samples []Sample) time.Duration {
	if len(samples) < 2 {
		return 0
	}
	gaps := make([]int64, 0, len(samples)-1)
	for i := 1; i < len(samples); i++ {
		gaps = append(gaps, samples[i].UnixMilli-samples[i-1].UnixMilli)
	}
	sort.Slice(gaps, func(i, j int) bool { return gaps[i] < gaps[j] })
	return time.Duration(gaps[(len(gaps)-1)/2]) * time.Millisecond
}

// point is a sample with an integer value.
type point struct {
	at    int64 // Unix µs
	value uint64
}

// cells gives each point the time to the midpoints of its neighbours, at most
// holdFactor intervals to either side, clipped to life. Points are in order.
func cells(points []point, every time.Duration, life interval) []cell {
	if every <= 0 {
		every = defaultInterval
	}
	hold := int64(float64(every.Microseconds()) * holdFactor)
	out := make([]cell, 0, len(points))
	for i, p := range points {
		c := cell{interval{p.at - hold, p.at + hold}, p.value, p.at}
		if i > 0 {
			c.start = max(c.start, midpoint(points[i-1].at, p.at))
		}
		if i+1 < len(points) {
			c.end = min(c.end, midpoint(p.at, points[i+1].at))
		}
		c.interval = c.clip(life)
		if c.start < c.end {
			out = append(out, c)
		}
	}
	return out
}

func midpoint(a, b int64) int64 { return a + (b-a)/2 }

// coverage merges overlapping or touching cells into intervals.
func coverage(cs []cell) []interval {
	var out []interval
	for _, c := range cs {
		out = append(out, c.interval)
	}
	return union(out)
}

func union(in []interval) []interval {
	sort.Slice(in, func(i, j int) bool { return in[i].start < in[j].start })
	var out []interval
	for _, i := range in {
		if i.start >= i.end {
			continue
		}
		if n := len(out); n > 0 && i.start <= out[n-1].end {
			out[n-1].end = max(out[n-1].end, i.end)
			continue
		}
		out = append(out, i)
	}
	return out
}

func intersect(a, b []interval) []interval {
	var out []interval
	for i, j := 0, 0; i < len(a) && j < len(b); {
		if c := a[i].clip(b[j]); c.start < c.end {
			out = append(out, c)
		}
		if a[i].end < b[j].end {
			i++
		} else {
			j++
		}
	}
	return out
}

func total(in []interval) int64 {
	var sum int64
	for _, i := range in {
		sum += i.length()
	}
	return sum
}

// at returns the cell that covers instant t, by binary search; cells are ordered
// and do not overlap.
func at(cs []cell, t int64) (cell, bool) {
	i := sort.Search(len(cs), func(i int) bool { return cs[i].end > t })
	if i < len(cs) && cs[i].start <= t {
		return cs[i], true
	}
	return cell{}, false
}

// scrapes holds, for one scrape target, the time each of its scrapes stands for.
type scrapes []cell

// newScrapes derives them from every series of the target.
func newScrapes(series []Series, every time.Duration) scrapes {
	seen := map[int64]bool{}
	var pts []point
	for _, s := range series {
		for _, x := range s.Samples {
			if t := x.UnixMilli * 1000; !seen[t] {
				seen[t] = true
				pts = append(pts, point{at: t})
			}
		}
	}
	sort.Slice(pts, func(i, j int) bool { return pts[i].at < pts[j].at })
	return cells(pts, every, interval{math.MinInt64, math.MaxInt64})
}

// presence turns the samples of an "exists while sampled" series, such as
// kube_pod_info, into the intervals in which it existed with a wanted value. A
// scrape of the target without the series says that it did not exist.
func (sc scrapes) presence(samples []Sample, want func(float64) bool) []interval {
	var on []cell
	for _, s := range samples {
		if c, ok := at(sc, s.UnixMilli*1000); ok && want(s.Value) {
			on = append(on, c)
		}
	}
	return coverage(on)
}
