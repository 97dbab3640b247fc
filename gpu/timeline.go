package gpu

import (
	"cmp"
	"math"
	"slices"
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

// cell is the stretch of time that a sample, or a run of samples of one value, stands for.
type cell struct {
	interval
	value uint64
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
	slices.Sort(gaps)
	return time.Duration(gaps[(len(gaps)-1)/2]) * time.Millisecond
}

// holdOf is how long a sample may stand for to either side, in µs.
func holdOf(every time.Duration) int64 {
	if every <= 0 {
		every = defaultInterval
	}
	return int64(float64(every.Microseconds()) * holdFactor)
}

// cells gives each figure the time to the midpoints of its neighbours, at most
// holdFactor intervals to either side, clipped to life. Times are in order. Figures
// that follow each other without a gap and are equal share a cell: nothing changes
// between them.
func cells(times []int64, values []uint64, every time.Duration, life interval) []cell {
	hold := holdOf(every)
	var out []cell
	start := int64(math.MinInt64)
	for i, at := range times {
		c := cell{interval{max(start, at-hold), at + hold}, values[i]}
		if i+1 < len(times) {
			start = midpoint(at, times[i+1])
			c.end = min(c.end, start)
		}
		if n := len(out); n > 0 && out[n-1].value == c.value && out[n-1].end == c.start && c.start > life.start {
			out[n-1].end = min(c.end, life.end)
			continue
		}
		c.interval = c.clip(life)
		if c.start < c.end {
			out = append(out, c)
		}
	}
	return out
}

func midpoint(a, b int64) int64 { return a + (b-a)/2 }

// covered is the time that samples stand for, joined where they touch.
func covered(times []int64, every time.Duration) []interval {
	hold := holdOf(every)
	var out []interval
	for i, at := range times {
		if i > 0 && (at-times[i-1])/2 <= hold {
			out[len(out)-1].end = at + hold
			continue
		}
		out = append(out, interval{at - hold, at + hold})
	}
	return out
}

func union(in []interval) []interval {
	if len(in) > 1 {
		slices.SortFunc(in, func(a, b interval) int { return cmp.Compare(a.start, b.start) })
	}
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

// scrapes holds, for one scrape target, the time each of its scrapes stands for.
type scrapes struct {
	times []int64
	hold  int64
	last  *lastPresence
}

// lastPresence is what presence said last: many series share their samples.
type lastPresence struct {
	samples []Sample
	ones    bool
	present []interval
}

func newScrapes(times []int64, every time.Duration) scrapes {
	return scrapes{times, holdOf(every), &lastPresence{}}
}

// within is the time that some of the target's scrapes stand for, joined where they
// touch. Times are ascending; one that is no scrape of the target counts for nothing.
func (sc scrapes) within(times []int64) []interval {
	var out []interval
	k := 0
	for _, t := range times {
		for k < len(sc.times) && sc.times[k] < t {
			k++
		}
		if k == len(sc.times) {
			break
		}
		if sc.times[k] != t {
			continue
		}
		c := interval{t - sc.hold, t + sc.hold}
		if k > 0 {
			c.start = max(c.start, midpoint(sc.times[k-1], t))
		}
		if k+1 < len(sc.times) {
			c.end = min(c.end, midpoint(t, sc.times[k+1]))
		}
		if n := len(out); n > 0 && out[n-1].end >= c.start {
			out[n-1].end = c.end
			continue
		}
		out = append(out, c)
	}
	return out
}

// presence turns the samples of an "exists while sampled" series, such as
// kube_pod_info, into the intervals in which it existed, or with ones in which it was 1.
// A scrape of the target without the series says that it did not exist.
func (sc scrapes) presence(samples []Sample, ones bool) []interval {
	if len(samples) == 0 {
		return nil
	}
	if l := sc.last; len(l.samples) == len(samples) && &l.samples[0] == &samples[0] && l.ones == ones {
		return l.present
	}
	times := make([]int64, 0, len(samples))
	for _, s := range samples {
		if !ones || s.Value == 1 {
			times = append(times, s.UnixMilli*1000)
		}
	}
	*sc.last = lastPresence{samples, ones, sc.within(times)}
	return sc.last.present
}

// unionTimes merges ascending times.
func unionTimes(a, b []int64) []int64 {
	switch {
	case len(a) == 0:
		return b
	case subset(b, a):
		return a
	}
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}
