package allocate

import (
	"fmt"
	"math/big"
	"math/rand"
	"reflect"
	"testing"
	"time"

	"gpuledger/billing"
	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/policy"
)

// everyPolicy is a policy of each kind, and some that meet.
var everyPolicy = []string{
	"", "basis: used", "basis: request", "unattributed: {mode: spread}", "idle: {default: proportional}", "idle: {default: even, slot_held: even}", "idle: {slot_held: replica}",
	"idle: {default: {headroom: 20%}}", "idle: {unallocated: {headroom: 20%}, no_telemetry: {headroom: 30%}, not_ready: even}",
	"idle: {unallocated: {policy: last_tenant, lookback: 10m}}", "{component_split: ratio, idle: {unallocated: {policy: last_tenant, lookback: 2h}}}",
	"component_split: scad", "component_split: ratio", "{component_split: ratio, idle: {default: even}}", "{component_split: ratio, idle: {default: {headroom: 20%}}}",
	"{driver_reserved: own_line, idle: {default: proportional}}", "{driver_reserved: own_line, component_split: scad}",
	"idle: {default: {policy: proportional, climb: true}}", "idle: {default: {fixed: {a: 3, b: 7}}}", "idle: {default: platform}", "idle: {default: owner}",
	"{partition: {weight: compute}, idle: {default: even}}", "{partition: {weight: dominant, normaliser: physical}, idle: {default: proportional}}",
	"idle: {default: {policy: proportional, scope: device, climb: true}}",
}

func changingOwners(t *testing.T) *policy.Owners {
	t.Helper()
	o, err := policy.ParseOwners("owners.yaml", []byte(`
timezone: Asia/Kolkata
rules:
  - {match: {namespace: "ns0"}, team: red, to: 2026-10-06}
  - {match: {namespace: "ns0"}, team: blue, from: 2026-10-06}
  - {match: {label: {app: x}}, team: green}
  - {match: {node_pool: "a"}, team: pool-a, to: 2026-10-06}
  - {match: {node_pool: "*"}, team: platform, cost_center: "77", from: 2026-10-06}
`))
	if err != nil {
		t.Fatal(err)
	}
	return &o
}

// randomHour draws an hour of whole or MIG GPUs with pods that hold parts of them.
func randomHour(r *rand.Rand, start time.Time, devices int, mig bool) Hour {
	h := Hour{Start: start, Seen: true, CoveredMicros: full}
	h.ReadyMicros = full
	if r.Intn(3) == 0 {
		h.ReadyMicros = r.Int63n(full + 1)
		h.UncoveredMicros = r.Int63n(full - h.ReadyMicros + 1)
		h.ReadyStartMicros = r.Int63n(full - h.ReadyMicros + 1)
	}
	h.ReadyEndMicros = h.ReadyStartMicros + h.ReadyMicros
	h.Pool, h.CPUMilli, h.MemoryBytes = "a", 4_000, 16<<30
	rows := func() []gpu.Row {
		left := h.ReadyMicros
		var out []gpu.Row
		for p := range 6 {
			if r.Intn(3) == 0 {
				us := r.Int63n(left + 1)
				left -= us
				x := podRow(fmt.Sprintf("p%d", p), us)
				x.Method = gpu.Method(1 + r.Intn(6))
				out = append(out, x)
			}
		}
		return append(out, catRow([]gpu.Category{gpu.Unallocated, gpu.Unallocated, gpu.SlotHeld, gpu.Unattributed, gpu.NoTelemetry}[r.Intn(5)], left))
	}
	for d := range devices {
		dev := wholeGPU("A100-SXM4-40GB", rows()...)
		if mig {
			dev = migDevice(map[string][]gpu.Row{"A": rows(), "B": rows(), "C": rows()}, []string{"A", "B", "C"}, map[string]string{"A": "3g.20gb", "B": "2g.10gb", "C": "1g.5gb"})
		}
		for i := range dev.Partitions {
			dev.Partitions[i].PresentMicros = h.ReadyMicros
		}
		dev.UUID, dev.TotalBytes, dev.ReservedBytes = fmt.Sprintf("GPU-%d", d), 40<<30, 1<<29
		h.Devices = append(h.Devices, dev)
	}
	for p := range 6 {
		start := r.Int63n(full)
		h.Pods = append(h.Pods, gpu.PodUse{PodUID: fmt.Sprintf("p%d", p), StartMicros: start, LifeMicros: r.Int63n(full - start + 1), CPUMilli: r.Int63n(3_000), Memory: r.Int63n(8 << 30)})
	}
	return h
}

// randomWindow draws some hours in a row, the first two of which are before the line.
func randomWindow(r *rand.Rand) Window {
	start := time.Date(2026, 10, 5, 15, 0, 0, 0, time.UTC) // midnight in Kolkata is 18:30
	n, devices, mig := 1+r.Intn(6), 1+r.Intn(3), r.Intn(2) == 0
	w := Window{
		Span:     period.Span{Start: start.Add(2 * time.Hour), End: start.Add(time.Duration(2+n) * time.Hour)},
		Node:     Node{Cluster: "prod", Pool: "a", ExpectedGPUs: devices, ExpectedModel: "A100-SXM4-40GB", CPUMilli: 4_000, MemoryBytes: 16 << 30},
		Pods:     map[string]Pod{},
		Currency: "USD",
	}
	for p := range 6 {
		pod := Pod{UID: fmt.Sprintf("p%d", p), Namespace: fmt.Sprintf("ns%d", p%3)}
		if p%2 == 0 {
			pod.Labels = map[string]string{"app": "x"}
		}
		w.Pods[pod.UID] = pod
	}
	for i := range n + 2 {
		h := randomHour(r, start.Add(time.Duration(i)*time.Hour), devices, mig)
		if i < 2 {
			w.Before = append(w.Before, h)
		} else {
			w.Hours = append(w.Hours, h)
		}
	}
	return w
}

// The shares of a window do not depend on what was split before it.
func TestSplitterAsGoodAsNew(t *testing.T) {
	owners := changingOwners(t)
	for _, yaml := range everyPolicy {
		p, r := testPolicy(t, yaml), rand.New(rand.NewSource(1))
		used := NewSplitter(p, owners)
		for range 60 {
			w := randomWindow(r)
			if r.Intn(4) == 0 { // cut the hours
				w.Span.Start = w.Span.Start.Add(time.Duration(r.Intn(1_800)) * time.Second)
			}
			got, err := used.Split(w)
			if err != nil {
				t.Fatal(err)
			}
			want, err := Split(w, p, owners)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("%q: a used splitter says\n%+v\na new one\n%+v", yaml, got, want)
			}
			keys := map[string]bool{}
			for i := range want {
				if keys[want[i].Key()] {
					t.Fatalf("%q: two shares of %q", yaml, want[i].Key())
				}
				keys[want[i].Key()] = true
			}
		}
	}
}

// A line of several hours is divided as lines of its hours would be.
func TestLineIsItsHours(t *testing.T) {
	owners := changingOwners(t)
	for _, yaml := range everyPolicy {
		p, r := testPolicy(t, yaml), rand.New(rand.NewSource(2))
		for range 40 {
			w := randomWindow(r)
			off := map[string]*big.Rat{}
			add := func(w Window, hours int64) {
				shares, err := Split(w, p, owners)
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range shares {
					who := s.PodUID + "/" + s.Category + "/" + s.MovedBy + "/" + s.Owner.Team
					if off[who] == nil {
						off[who] = new(big.Rat)
					}
					off[who].Add(off[who], big.NewRat(int64(s.Ratio)*hours, 1_000_000_000_000))
				}
			}
			add(w, int64(len(w.Hours)))
			all := append(append([]Hour(nil), w.Before...), w.Hours...)
			for i, h := range w.Hours {
				one := w
				one.Span, one.Hours, one.Before = period.Hour(h.Start), []Hour{h}, all[:len(w.Before)+i]
				add(one, -1)
			}
			for who, d := range off {
				// Each window has its own rounding, of 1e-12 and, on a device, of a microsecond.
				if d.Abs(d).Cmp(big.NewRat(20, 1_000_000_000)) > 0 {
					t.Fatalf("%q: %s differs by %s node-hours", yaml, who, d.FloatString(12))
				}
			}
		}
	}
}

// Time in which a node was not ready stays what it is in windows that are cut at odd
// seconds, where an hour counts as 3,600 units.
func TestNotReadyOfAnOddWindow(t *testing.T) {
	w := Window{Span: period.Span{Start: hour0.Add(time.Second), End: hour0.Add(24 * time.Hour)}, Node: Node{ExpectedGPUs: 1, ExpectedModel: "L4"}}
	for i := range 24 {
		h := Hour{Start: hour0.Add(time.Duration(i) * time.Hour), Seen: true, CoveredMicros: full}
		if i < 6 {
			h.ReadyMicros, h.Devices = full, []gpu.Device{wholeGPU("L4", podRow("a", full))}
		}
		w.Hours = append(w.Hours, h)
	}
	for _, yaml := range []string{"", "idle: {unallocated: proportional}", "component_split: scad"} {
		for _, billed := range []int64{0, w.Span.Micros() - 1_000_000} {
			w.BilledMicros = billed
			v, err := Compute(w, testPolicy(t, yaml), &nobody, nil)
			if err != nil {
				t.Fatal(err)
			}
			shares, err := v.Of(billing.GPU, true)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range shares {
				if s.Category == PodCategory && (s.Ratio < 249_000_000_000 || s.Ratio > 251_000_000_000) {
					t.Errorf("%q, billed %d: the pod pays %s", yaml, billed, s.Ratio)
				}
			}
		}
	}
}
