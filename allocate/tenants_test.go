package allocate

import (
	"testing"
	"time"

	"gpuledger/billing/period"
	"gpuledger/gpu"
)

// heldHour is an hour of one GPU that pods hold for parts of it.
func heldHour(i int, d gpu.Device, pods ...gpu.PodUse) Hour {
	start := hour0.Add(time.Duration(i) * time.Hour)
	h := Hour{Start: start, Seen: true, CoveredMicros: full}
	h.ReadyMicros, h.ReadyEndMicros, h.Devices, h.Pods = full, full, []gpu.Device{d}, pods
	return h
}

func lifeUse(uid string, from, to time.Duration) gpu.PodUse {
	return gpu.PodUse{PodUID: uid, StartMicros: from.Microseconds(), LifeMicros: (to - from).Microseconds()}
}

const minute = int64(60_000_000)

func freeGPU() gpu.Device { return wholeGPU("L4", catRow(gpu.Unallocated, full)) }

func TestLastTenants(t *testing.T) {
	until := func(m int64, uid string) gpu.Device {
		return wholeGPU("L4", podRow(uid, m*minute), catRow(gpu.Unallocated, full-m*minute))
	}
	all := lifeUse("a", 0, time.Hour)
	late := heldHour(1, freeGPU())
	late.ReadyMicros, late.ReadyStartMicros = full/2, full/2
	late.Devices[0] = wholeGPU("L4", catRow(gpu.Unallocated, full/2))
	late.Devices[0].Partitions[0].PresentMicros = full / 2
	cut := heldHour(1, freeGPU())
	cut.Devices[0].Partitions = nil
	for range 2 {
		p := wholeGPU("L4", catRow(gpu.Unallocated, full/2)).Partitions[0]
		p.PresentMicros = full / 2
		cut.Devices[0].Partitions = append(cut.Devices[0].Partitions, p)
	}
	together := heldHour(0, wholeGPU("L4", podRow("a", 30*minute), podRow("b", 10*minute), catRow(gpu.Unallocated, 20*minute)),
		lifeUse("a", 0, 40*time.Minute), lifeUse("b", 0, 40*time.Minute+30*time.Second))
	for _, c := range []struct {
		name           string
		policy         string
		before, within []Hour
		want           map[string]string // of 60 an hour
	}{
		{"it leaves within the hour", "10m", nil, []Hour{heldHour(0, until(30, "a"), lifeUse("a", 0, 30*time.Minute))}, map[string]string{"a": "40", "unallocated": "20"}},
		{"it left in the hour before", "30m", []Hour{heldHour(0, until(50, "a"), lifeUse("a", 0, 50*time.Minute))}, []Hour{heldHour(1, freeGPU())}, map[string]string{"a": "20", "unallocated": "40"}},
		{"the next one comes", "1h", nil, []Hour{heldHour(0, wholeGPU("L4", podRow("a", 10*minute), podRow("b", 20*minute), catRow(gpu.Unallocated, 30*minute)),
			lifeUse("a", 0, 10*time.Minute), lifeUse("b", 40*time.Minute, time.Hour))}, map[string]string{"a": "40", "b": "20"}},
		{"two leave together", "1h", nil, []Hour{together}, map[string]string{"a": "44.625", "b": "14.875", "unallocated": "0.5"}},
		{"the node was not ready meanwhile", "10m", []Hour{heldHour(0, until(60, "a"), all)}, []Hour{late}, map[string]string{"unallocated": "30", "not_ready": "30"}},
		{"the GPU was cut anew", "10m", []Hour{heldHour(0, until(60, "a"), all)}, []Hour{cut}, map[string]string{"a": "10", "unallocated": "50"}},
		{"nobody knows who came after", "3h", []Hour{heldHour(0, until(60, "a"), all), {Start: hour0.Add(time.Hour), CoveredMicros: full}}, []Hour{heldHour(2, freeGPU())}, map[string]string{"unallocated": "60"}},
		{"its life is not known", "1h", nil, []Hour{heldHour(0, until(30, "a"))}, map[string]string{"a": "30", "unallocated": "30"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := Window{Before: c.before, Hours: c.within, Span: period.Hour(c.within[0].Start), Node: Node{ExpectedGPUs: 1, ExpectedModel: "L4"}}
			wantCosts(t, costs(t, w, testPolicy(t, "idle: {unallocated: {policy: last_tenant, lookback: "+c.policy+"}}"), "60"), c.want)
			// An hour in two lines is the hour.
			halves := map[string]int64{}
			for i := range 2 {
				half := w
				half.Span.Start = w.Span.Start.Add(time.Duration(i) * 30 * time.Minute)
				half.Span.End = half.Span.Start.Add(30 * time.Minute)
				shares, err := Split(half, testPolicy(t, "idle: {unallocated: {policy: last_tenant, lookback: "+c.policy+"}}"), &nobody)
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range shares {
					if s.PodUID != "" {
						halves[s.PodUID] += int64(s.Ratio)
					}
				}
			}
			whole, err := Split(w, testPolicy(t, "idle: {unallocated: {policy: last_tenant, lookback: "+c.policy+"}}"), &nobody)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range whole {
				halves[s.PodUID] -= 2 * int64(s.Ratio)
			}
			for uid, d := range halves {
				if uid != "" && (d > 10 || d < -10) {
					t.Errorf("%s: two half hours differ from the hour by %d", uid, d)
				}
			}
		})
	}
}

// Tenants of instances of two sizes share an emptied node by the sizes, wherever the
// hour is cut off.
func TestLastTenantsOfTwoSizes(t *testing.T) {
	mig := heldHour(0, migDevice(map[string][]gpu.Row{"A": {podRow("big", full)}, "B": {podRow("small", full)}}, []string{"A", "B"}, map[string]string{"A": "3g.20gb", "B": "1g.5gb"}),
		lifeUse("big", 0, time.Hour), lifeUse("small", 0, time.Hour))
	empty := heldHour(1, wholeGPU("A100-SXM4-40GB", catRow(gpu.Unallocated, full)))
	p := "idle: {unallocated: {policy: last_tenant, lookback: 1h}}"
	w := Window{Before: []Hour{mig}, Hours: []Hour{empty}, Span: period.Hour(empty.Start)}
	wantCosts(t, costs(t, w, testPolicy(t, p), "10"), map[string]string{"big": "8", "small": "2"})
}

// Devices whose instances no series shows weigh one GPU each, however many instances
// their pods' requests make up.
func TestMadeUpGeometriesOfTwoSizes(t *testing.T) {
	requested := func(n, of int, prefix string) gpu.Device {
		d := gpu.Device{UUID: prefix, Model: "A100-SXM4-40GB"}
		for i := range n {
			d.Partitions = append(d.Partitions, gpu.Partition{
				Geometry: "requested", Profile: "1g.5gb", GPUInstance: string(rune('a' + i)), MemorySlices: 1, ComputeSlices: 1, DeviceSlices: of,
				Mode: gpu.ModeMIG, Replicas: 1, PresentMicros: full, Rows: []gpu.Row{podRow(prefix+string(rune('0'+i)), full)},
			})
		}
		return d
	}
	got := costs(t, window(requested(7, 7, "A"), requested(1, 8, "B")), testPolicy(t, ""), "16")
	if got["B0"] != "1" || got["A0"] != "1.142857" {
		t.Errorf("%v", got)
	}
}

// More CPU and memory than there is anywhere is no reason to stop.
func TestAbsurdRequests(t *testing.T) {
	w := window(freeGPU())
	w.Node.CPUMilli, w.Node.MemoryBytes = 4_000, 16<<30
	for _, uid := range []string{"a", "b", "c"} {
		w.Hours[0].Pods = append(w.Hours[0].Pods, gpu.PodUse{PodUID: uid, LifeMicros: full, CPUMilli: 1<<63 - 1, Memory: 1<<63 - 1})
	}
	shares, err := Split(w, testPolicy(t, "component_split: ratio"), &nobody)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range shares {
		if s.Component != "gpu" && s.Category != PodCategory {
			t.Errorf("%+v", s)
		}
	}
}
