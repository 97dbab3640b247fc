package gpu

import (
	"math"
	"sort"
	"strings"
)

// UsageMetrics are cAdvisor's, read where Settings.Usage asks for them.
var UsageMetrics = []string{cpuMetric, memoryMetric}

const (
	cpuMetric    = "container_cpu_usage_seconds_total"  // seconds of a core, a counter
	memoryMetric = "container_memory_working_set_bytes" // what the kubelet evicts by
)

// containerUse is what one container used within an hour, of CPU in µs of a core or of
// memory in byte-µs, and when it was seen.
type containerUse struct {
	hi, lo uint64
	seen   []interval
}

// addUsage adds what one container used of CPU or memory to its pod, within the hour
// and the pod's life. The rows of a pod's cgroup and of its pause container are no
// containers. Of one container that two jobs or replicas scraped, the larger counts; one
// that was started again has another id, and both count.
func (inv *Inventory) addUsage(s Series, hour interval) {
	container := workloadLabel(s.Labels, "container")
	if container == "" || container == "POD" || len(s.Samples) == 0 {
		return
	}
	for _, p := range inv.byName[workloadLabel(s.Labels, "namespace")+"/"+workloadLabel(s.Labels, "pod")] {
		within := p.life.clip(hour)
		if within.length() == 0 {
			continue
		}
		var use containerUse
		if s.Metric == cpuMetric {
			use = p.cpuUse(s.Samples, within)
		} else {
			times, values := figuresOf(s.Samples, p.life, 1)
			for _, c := range cells(times, values, observedInterval(s.Samples), within) {
				add128(&use.hi, &use.lo, c.value, uint64(c.length()))
				use.seen = append(use.seen, c.interval)
			}
		}
		if len(use.seen) == 0 {
			continue
		}
		key := strings.Join([]string{s.Metric, container, s.Labels["id"], s.Labels["name"]}, "\x00")
		if p.containers == nil {
			p.containers = map[string]containerUse{}
		}
		if o, ok := p.containers[key]; ok && (o.hi > use.hi || o.hi == use.hi && o.lo >= use.lo) {
			use.hi, use.lo = o.hi, o.lo
		}
		use.seen = union(append(use.seen, p.containers[key].seen...))
		p.containers[key] = use
	}
}

// figuresOf are the samples within a life, in whole units of 1/scale.
func figuresOf(samples []Sample, life interval, scale float64) (times []int64, values []uint64) {
	for _, x := range samples {
		if at := x.UnixMilli * 1000; at >= life.start && at < life.end && x.Value >= 0 && x.Value*scale < 1<<62 {
			times, values = append(times, at), append(values, uint64(math.Round(x.Value*scale)))
		}
	}
	return times, values
}

// cpuUse is by how much a counter of seconds rose within a part of the pod's life. A
// counter begins at 0 with its container: of a pod that is known to have started within
// the hour, what it shows first was used since then. Between two samples it rises evenly;
// a lower one is a container that was started again.
func (p *Pod) cpuUse(samples []Sample, within interval) containerUse {
	const seconds = 1e6
	times, values := figuresOf(samples, p.life, seconds)
	if len(times) == 0 {
		return containerUse{}
	}
	since, counted := times[0], values[0]
	if p.started > 0 && p.life.start == p.started && p.started >= within.start {
		since, counted = p.started, 0
	}
	use := containerUse{seen: []interval{interval{since, times[len(times)-1]}.clip(within)}}
	if use.seen[0].length() == 0 {
		return containerUse{}
	}
	for i, at := range times {
		risen := values[i]
		if risen >= counted {
			risen -= counted
		}
		if gap := (interval{since, at}); gap.length() > 0 {
			use.lo += mulDiv(risen, uint64(gap.clip(within).length()), uint64(gap.length()))
		}
		since, counted = at, values[i]
	}
	return use
}

// used is the pod's mean use over the time in which it was seen within the hour, in
// thousandths of a core and bytes; 0 where it is not collected.
func (p *Pod) used() (cpuMilli, memory int64) {
	keys := make([]string, 0, len(p.containers))
	for k := range p.containers {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	mean := func(metric string, scale uint64) int64 {
		var hi, lo uint64
		var seen []interval
		for _, k := range keys {
			if u := p.containers[k]; strings.HasPrefix(k, metric+"\x00") {
				add128(&hi, &lo, u.lo, scale)
				hi += u.hi * scale
				seen = append(seen, u.seen...)
			}
		}
		if t := total(union(seen)); t > 0 {
			return int64(div128(hi, lo, uint64(t)))
		}
		return 0
	}
	return mean(cpuMetric, 1_000), mean(memoryMetric, 1)
}
