package gpu

import "math"

// UsageMetrics are cAdvisor's, read where Settings.Usage asks for them.
var UsageMetrics = []string{cpuMetric, memoryMetric}

const (
	cpuMetric    = "container_cpu_usage_seconds_total"  // seconds of a core, a counter
	memoryMetric = "container_memory_working_set_bytes" // what the kubelet evicts by
)

// addUsage adds what one container used of CPU and memory to its pod, within the hour
// and the pod's life. The rows of a pod's cgroup and of its pause container are no
// containers.
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
		if s.Metric == cpuMetric {
			p.cpuMicros += increase(s.Samples, p.life, within)
		} else {
			hi, lo := &p.memoryHi, &p.memoryLo
			for _, c := range cells(pointsOf(s.Samples, p.life, 1), observedInterval(s.Samples), within) {
				add128(hi, lo, c.value, uint64(c.length()))
			}
		}
	}
}

// pointsOf are the samples within a life, in whole units of 1/scale.
func pointsOf(samples []Sample, life interval, scale float64) []point {
	var out []point
	for _, x := range samples {
		if at := x.UnixMilli * 1000; at >= life.start && at < life.end && x.Value >= 0 && x.Value*scale < 1<<62 {
			out = append(out, point{at, uint64(math.Round(x.Value * scale))})
		}
	}
	return out
}

// increase is by how much a counter of seconds rose within a part of a pod's life, in
// µs. A counter begins at 0 with its container: what it shows first was used since the
// pod's start. Between two samples it rises evenly; a lower one is a container that was
// started again.
func increase(samples []Sample, life, within interval) int64 {
	const seconds = 1e6
	pts := pointsOf(samples, life, seconds)
	if len(pts) == 0 {
		return 0
	}
	var sum uint64
	before := point{pts[0].at, pts[0].value}
	if life.start >= within.start { // born within the hour
		before = point{life.start, 0}
	}
	for _, p := range pts {
		risen := p.value
		if p.value >= before.value {
			risen -= before.value
		}
		if gap := (interval{before.at, p.at}); gap.length() > 0 {
			sum += mulDiv(risen, uint64(gap.clip(within).length()), uint64(gap.length()))
		}
		before = p
	}
	return int64(sum)
}

// usage is the pod's mean use over its life within the hour, in thousandths of a core
// and bytes; 0 where it is not collected.
func (p *Pod) usage(lived int64) (cpuMilli, memory int64) {
	if lived <= 0 {
		return 0, 0
	}
	cpuMilli = (p.cpuMicros*1_000 + lived/2) / lived
	return cpuMilli, int64(div128(p.memoryHi, p.memoryLo, uint64(lived)))
}
