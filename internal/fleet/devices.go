package fleet

import (
	"fmt"
	"strconv"
	"time"

	"gpuledger/billing/period"
	"gpuledger/gpu"
)

// The families of dcgm-exporter (before 4.9: MiB) that are written.
var families = [...]string{
	"DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
	"DCGM_FI_DEV_FB_RESERVED", "DCGM_FI_DEV_FB_TOTAL",
}

const (
	famUsed = iota
	famFree
	famUtil
	famEngine
	famReserved
	famTotal
)

// What of them a series set has: everything of a device; no reservation, total or
// utilisation of a MIG instance; and beside a per-process device series only what
// tells pods apart, plus the free memory that the exporter copies.
var (
	ofDevice   = []int{famUsed, famFree, famUtil, famEngine, famReserved, famTotal}
	ofInstance = []int{famUsed, famFree, famEngine}
	ofProcess  = []int{famUsed, famFree, famUtil}
)

// grid returns the scrapes of a period: half an interval after each multiple of it.
func grid(span period.Span, every time.Duration) []time.Time {
	var out []time.Time
	t := span.Start.UTC().Truncate(every).Add(every / 2)
	if t.Before(span.Start) {
		t = t.Add(every)
	}
	for ; t.Before(span.End); t = t.Add(every) {
		out = append(out, t)
	}
	return out
}

// scrapes are the times at which the node's exporter answered.
func (f *Fleet) scrapes(n *Node, day period.Span) []time.Time {
	var out []time.Time
next:
	for _, t := range grid(day.Intersect(period.Span{Start: n.Ready, End: n.Billed.End}), f.Interval) {
		for _, o := range n.Outages {
			if o.Contains(t) {
				continue next
			}
		}
		out = append(out, t)
	}
	return out
}

// devices returns the device series of some nodes on a day.
func (f *Fleet) devices(day period.Span, nodes []Node, pods map[string][]*Pod) []gpu.Series {
	var out []gpu.Series
	for i := range nodes {
		n := &nodes[i]
		times := f.scrapes(n, day)
		if len(times) == 0 {
			continue
		}
		var today []*Pod
		for _, p := range pods[n.Name] {
			if !p.Life.Intersect(day).Empty() {
				today = append(today, p)
			}
		}
		for _, pt := range f.partitions(n, today) {
			out = append(out, pt.series(n, times)...)
		}
	}
	return out
}

// series samples one partition. The exporter's way of labelling decides which
// series a figure goes to: 0 is the one without a pod, k+1 that of pod k.
func (pt *partition) series(n *Node, times []time.Time) []gpu.Series {
	acc := make([][len(families)][]gpu.Sample, len(pt.pods)+1)
	for _, t := range times {
		v, alive := pt.measure(n, t)
		switch {
		case n.Sharing == PerProcess:
			put(&acc[0], t, v, ofDevice)
			for _, k := range alive {
				own := v
				own[famUsed] = float64(pt.pods[k].UsedMiB(t))
				own[famUtil] = float64(int64(v[famUtil]) / int64(len(alive)))
				put(&acc[k+1], t, own, ofProcess)
			}
		case len(alive) == 0:
			put(&acc[0], t, v, pt.has())
		case n.Sharing == Copies:
			for _, k := range alive {
				put(&acc[k+1], t, v, pt.has())
			}
		default:
			put(&acc[alive[0]+1], t, v, pt.has())
		}
	}
	var out []gpu.Series
	for i := range acc {
		for fam, samples := range acc[i] {
			if len(samples) == 0 {
				continue
			}
			labels := pt.labels(n)
			if i > 0 {
				pt.pods[i-1].label(labels, n)
			}
			out = append(out, gpu.Series{Metric: families[fam], Labels: labels, Samples: samples})
		}
	}
	return out
}

func (pt *partition) has() []int {
	if pt.instance != nil {
		return ofInstance
	}
	return ofDevice
}

func put(acc *[len(families)][]gpu.Sample, t time.Time, v [len(families)]float64, which []int) {
	for _, fam := range which {
		acc[fam] = append(acc[fam], gpu.Sample{UnixMilli: t.UnixMilli(), Value: v[fam]})
	}
}

// measure is what NVML says of the partition at an instant, and which of its pods
// are there.
func (pt *partition) measure(n *Node, t time.Time) (v [len(families)]float64, alive []int) {
	total, usable, used := n.GPU.TotalMiB, n.GPU.UsableMiB(), int64(0)
	if pt.instance != nil {
		total, usable, used = pt.instance.TotalMiB, pt.instance.TotalMiB, instanceBaseMiB
	}
	for k, p := range pt.pods {
		if p.Life.Contains(t) {
			alive = append(alive, k)
			used += valueAt(p.Memory, t)
		}
	}
	if pt.gpu == 0 && pt.instance == nil {
		used += valueAt(n.Residual, t)
	}
	used = min(used, usable)
	v[famUsed], v[famFree] = float64(used), float64(usable-used)
	v[famReserved], v[famTotal] = float64(total-usable), float64(total)
	if len(alive) > 0 {
		mills := between(n.InstanceID+strconv.Itoa(pt.gpu)+strconv.FormatInt(t.Unix()/1800, 10), 350, 970)
		v[famUtil], v[famEngine] = float64(mills/10), float64(mills)/1000
	}
	return v, alive
}

// labels are those of dcgm-exporter on the host network, with the workload's
// names kept (honorLabels: true).
func (pt *partition) labels(n *Node) map[string]string {
	l := map[string]string{
		"job": "dcgm-exporter", "instance": n.ip() + ":9400", "Hostname": n.Name,
		"gpu": strconv.Itoa(pt.gpu), "device": "nvidia" + strconv.Itoa(pt.gpu), "UUID": n.gpuUUID(pt.gpu),
		"pci_bus_id": fmt.Sprintf("00000000:%02X:00.0", 0x18+16*pt.gpu), "modelName": n.GPU.Model,
	}
	if pt.instance != nil {
		l["GPU_I_ID"], l["GPU_I_PROFILE"] = pt.instance.ID, pt.instance.Profile
	}
	return l
}

func (p tenant) label(l map[string]string, n *Node) {
	l["namespace"], l["pod"], l["container"] = p.Namespace, p.Name, container
	switch n.Sharing {
	case PerProcess:
		l["pod_uid"], l["vgpu"] = p.UID, strconv.Itoa(p.slot)
	case Copies:
		l["vgpu"] = strconv.Itoa(p.slot) // of an exporter that does not yet know UIDs
	}
}

// container is the name of every pod's only container.
const container = "main"
