package allocate

import (
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/policy"
)

var hour0 = time.Date(2026, 10, 5, 10, 0, 0, 0, time.UTC)

const full = int64(hourMicros)

func testPolicy(t testing.TB, yaml string) *policy.Policy {
	t.Helper()
	p, err := policy.Parse("policy.yaml", []byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	return &p
}

var nobody = policy.NoOwners()

// podRow is a holder whose every column is the same.
func podRow(uid string, us int64) gpu.Row {
	return gpu.Row{
		PodUID: uid, Method: gpu.ProcessUID, Replicas: 1, MeasuredMicros: full,
		Shares: gpu.Shares{Used: us, RequestNone: us, RequestReplica: us, MaxNone: us, MaxReplica: us},
	}
}

func catRow(c gpu.Category, us int64) gpu.Row {
	r := podRow("", us)
	r.Category, r.Method, r.Replicas = c, gpu.NoMethod, 0
	return r
}

func wholeGPU(model string, rows ...gpu.Row) gpu.Device {
	return gpu.Device{UUID: "GPU-1", Model: model, Partitions: []gpu.Partition{{
		MemorySlices: 1, DeviceSlices: 1, Mode: gpu.ModeTimeSlicing, Replicas: 4, PresentMicros: full, Rows: rows,
	}}}
}

func window(devices ...gpu.Device) Window {
	return Window{Span: period.Hour(hour0), Hours: []Hour{{
		Start: hour0, Seen: true, CoveredMicros: full,
		NodeHour: gpu.NodeHour{Hour: hour0, ReadyMicros: full, Devices: devices},
	}}}
}

// costs splits a cost and adds it up by pod or kept category.
func costs(t *testing.T, w Window, p *policy.Policy, cost string) map[string]string {
	t.Helper()
	shares, err := Split(w, p, &nobody)
	if err != nil {
		t.Fatal(err)
	}
	sum := map[string]money.Ratio{}
	var all money.Ratio
	for _, s := range shares {
		who := s.PodUID
		if who == "" {
			who = s.Category
		}
		sum[who] += s.Ratio
		all += s.Ratio
	}
	if all != money.One {
		t.Fatalf("ratios sum to %s", all)
	}
	out := map[string]string{}
	for who, r := range sum {
		out[who] = rounded(t, money.MustParse(cost).Mul(r), 6)
	}
	return out
}

// rounded rounds decimal text half up, for comparison with published figures.
func rounded(t *testing.T, s string, digits int) string {
	t.Helper()
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		t.Fatal(s)
	}
	out := r.FloatString(digits)
	return strings.TrimRight(strings.TrimRight(out, "0"), ".")
}

func wantCosts(t *testing.T, got map[string]string, want map[string]string) {
	t.Helper()
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s: %s, want %s", k, got[k], v)
		}
	}
	for k, v := range got {
		if _, ok := want[k]; !ok && v != "0" {
			t.Errorf("%s: %s, not wanted", k, v)
		}
	}
}

func migDevice(rows map[string][]gpu.Row, order []string, profiles map[string]string) gpu.Device {
	m, _ := gpu.LookupModel("A100-SXM4-40GB")
	d := gpu.Device{UUID: "GPU-1", Model: m.Name}
	var ps []gpu.Profile
	var names []string
	for _, id := range order {
		p, _ := gpu.ParseProfile(profiles[id])
		p, _ = p.Resolve(m)
		ps, names = append(ps, p), append(names, p.Name)
	}
	for i, id := range order {
		d.Partitions = append(d.Partitions, gpu.Partition{
			Geometry: strings.Join(names, ","), GPUInstance: id, Profile: ps[i].Name, MemorySlices: ps[i].MemorySlices, ComputeSlices: ps[i].ComputeSlices,
			DeviceSlices: gpu.ConfiguredSlices(m, ps), Mode: gpu.ModeMIG, Replicas: 1, PresentMicros: full, Rows: rows[id],
		})
	}
	return d
}

func TestO07MIGMixed(t *testing.T) {
	d := migDevice(map[string][]gpu.Row{
		"A": {podRow("a", full)}, "B": {podRow("b", full/2), catRow(gpu.Unallocated, full/2)},
		"C": {podRow("c", full)}, "D": {catRow(gpu.Unallocated, full)},
	}, []string{"A", "B", "C", "D"}, map[string]string{"A": "3g.20gb", "B": "2g.10gb", "C": "1g.5gb", "D": "1g.5gb"})
	wantCosts(t, costs(t, window(d), testPolicy(t, ""), "7"), map[string]string{"a": "3.5", "b": "0.875", "c": "0.875", "unallocated": "1.75"})
	wantCosts(t, costs(t, window(d), testPolicy(t, "partition: {weight: compute}"), "7"), map[string]string{"a": "3", "b": "1", "c": "1", "unallocated": "2"})
	for _, n := range []string{"configured", "physical"} { // 60 of 56 under dominant: both give the same
		p := testPolicy(t, "partition: {weight: dominant, normaliser: "+n+"}")
		wantCosts(t, costs(t, window(d), p, "7"), map[string]string{"a": "3.266667", "b": "0.933333", "c": "0.933333", "unallocated": "1.866667"})
	}
}

func TestO08SevenInstances(t *testing.T) {
	rows, profiles, want, physical := map[string][]gpu.Row{}, map[string]string{}, map[string]string{}, map[string]string{"mig_unpartitioned": "0.875"}
	var order []string
	for i := range 7 {
		id := fmt.Sprint(i)
		order = append(order, id)
		rows[id], profiles[id] = []gpu.Row{podRow("p"+id, full)}, "1g.5gb"
		want["p"+id], physical["p"+id] = "1", "0.875"
	}
	d := migDevice(rows, order, profiles)
	wantCosts(t, costs(t, window(d), testPolicy(t, ""), "7"), want)
	wantCosts(t, costs(t, window(d), testPolicy(t, "partition: {normaliser: physical}"), "7"), physical)
	one := migDevice(map[string][]gpu.Row{"0": rows["0"]}, []string{"0"}, profiles)
	wantCosts(t, costs(t, window(one), testPolicy(t, ""), "8"), map[string]string{"p0": "1", "mig_unpartitioned": "7"})
}

// G09: Koku's scenario, 4g.20gb for a day of 70 by compute slices.
func TestG09KokuScenario1(t *testing.T) {
	d := migDevice(map[string][]gpu.Row{"1": {podRow("pod", full)}}, []string{"1"}, map[string]string{"1": "4g.20gb"})
	wantCosts(t, costs(t, window(d), testPolicy(t, "partition: {weight: compute}"), "70"), map[string]string{"pod": "40", "mig_unpartitioned": "30"})
}

func TestO14IdlePolicies(t *testing.T) {
	w := window(wholeGPU("L4", podRow("a", full/2), podRow("b", full/4), catRow(gpu.Unallocated, full/4)))
	for yaml, want := range map[string]map[string]string{
		"":                              {"a": "6", "b": "3", "unallocated": "3"},
		"idle: {default: proportional}": {"a": "8", "b": "4"},
		"idle: {default: even}":         {"a": "7.5", "b": "4.5"},
		"idle: {unallocated: {policy: proportional, scope: device}}": {"a": "8", "b": "4"},
		"idle: {unallocated: {policy: even, scope: device}}":         {"a": "7.5", "b": "4.5"},
	} {
		t.Run(yaml, func(t *testing.T) { wantCosts(t, costs(t, w, testPolicy(t, yaml), "12"), want) })
	}
}

func TestMovedRowsKeepTheirSource(t *testing.T) {
	w := window(wholeGPU("L4", podRow("a", full/2), catRow(gpu.Unallocated, full/2)))
	shares, err := Split(w, testPolicy(t, "idle: {default: proportional}"), &nobody)
	if err != nil {
		t.Fatal(err)
	}
	if len(shares) != 2 || shares[1].Category != "unallocated" || shares[1].PodUID != "a" || shares[1].MovedBy != "proportional" || shares[1].Ratio != money.One/2 {
		t.Errorf("%+v", shares)
	}
}

// The H100 of issue and design: 79 GiB usable, four replicas held by a 30 GiB
// server and three 1 GiB notebooks, 4,953.60 a month.
func TestSlotHeld(t *testing.T) {
	us := func(gib int64) int64 { return full * gib / 79 }
	rows := []gpu.Row{podRow("server", us(30)), podRow("n1", us(1)), podRow("n2", us(1)), podRow("n3", us(1))}
	rows = append(rows, catRow(gpu.SlotHeld, full-us(30)-3*us(1)))
	for yaml, want := range map[string][2]string{ // the server, each notebook
		"":                           {"4503.272727", "150.109091"},
		"idle: {slot_held: even}":    {"2602.207595", "783.797468"},
		"idle: {slot_held: replica}": {"2602.207595", "783.797468"},
		"idle: {slot_held: keep}":    {"1881.113924", "62.703797"},
	} {
		t.Run(yaml, func(t *testing.T) {
			got := costs(t, window(wholeGPU("H100-80GB-HBM3", rows...)), testPolicy(t, yaml), "4953.60")
			for who, w := range map[string]string{"server": want[0], "n1": want[1], "n2": want[1], "n3": want[1]} {
				if d := diff(t, got[who], w); d > 0.00001 {
					t.Errorf("%s: %s, want %s", who, got[who], w)
				}
			}
		})
	}
}

func diff(t *testing.T, a, b string) float64 {
	t.Helper()
	x, _ := new(big.Rat).SetString(a)
	y, _ := new(big.Rat).SetString(b)
	d, _ := new(big.Rat).Abs(new(big.Rat).Sub(x, y)).Float64()
	return d
}

// Nobody used anything: slots decide.
func TestSlotHeldWithoutUse(t *testing.T) {
	a, b := podRow("a", 0), podRow("b", 0)
	b.Replicas = 3
	w := window(wholeGPU("L4", a, b, catRow(gpu.SlotHeld, full)))
	wantCosts(t, costs(t, w, testPolicy(t, ""), "4"), map[string]string{"a": "1", "b": "3"})
}

func TestUnattributedSpread(t *testing.T) {
	of := func(mib int64) int64 { return full * mib / 40448 }
	w := window(wholeGPU("A100-SXM4-40GB", podRow("a", of(20000)), podRow("b", of(9000)), catRow(gpu.Unattributed, of(1000)), catRow(gpu.Unallocated, full-of(30000))))
	wantCosts(t, costs(t, w, testPolicy(t, ""), "4.0448"), map[string]string{"a": "2", "b": "0.9", "unattributed": "0.1", "unallocated": "1.0448"})
	wantCosts(t, costs(t, w, testPolicy(t, "unattributed: {mode: spread}"), "4.0448"), map[string]string{"a": "2.068966", "b": "0.931034", "unallocated": "1.0448"})
}

// O09: one window whose devices are of three models, 10 H100, 20 L4, 10 A100 hours.
func TestO09ModelWeights(t *testing.T) {
	var ds []gpu.Device
	for model, n := range map[string]int{"H100-80GB-HBM3": 1, "L4": 2, "A100-SXM4-40GB": 1} {
		for range n {
			ds = append(ds, wholeGPU(model, podRow(model, full)))
		}
	}
	weights := `model_weights: [{model: NVIDIA H100 80GB HBM3, weight: "4"}, {model: L4, weight: "0.5"}, {model: A100-SXM4-40GB, weight: "1"}]`
	wantCosts(t, costs(t, window(ds...), testPolicy(t, weights), "100"), map[string]string{"H100-80GB-HBM3": "66.666667", "L4": "16.666667", "A100-SXM4-40GB": "16.666667"})

	_, err := Split(window(ds...), testPolicy(t, strings.Replace(weights, ", {model: L4, weight: \"0.5\"}", "", 1)), &nobody)
	var missing *MissingWeight
	if !errors.As(err, &missing) || missing.Model != "L4" || !strings.Contains(err.Error(), "model_weights") {
		t.Errorf("%v", err)
	}
}

func TestNotReadyAndNoTelemetry(t *testing.T) {
	third := full / 3
	w := window(wholeGPU("L4", podRow("a", third)))
	w.Hours[0].ReadyMicros, w.Hours[0].Devices[0].Partitions[0].PresentMicros = third, third
	wantCosts(t, costs(t, w, testPolicy(t, ""), "3"), map[string]string{"a": "1", "not_ready": "2"})

	w.Hours[0].UncoveredMicros = third
	wantCosts(t, costs(t, w, testPolicy(t, ""), "3"), map[string]string{"a": "1", "not_ready": "1", "no_telemetry": "1"})

	w.BilledMicros = 2 * third // a billed 0.667 h of which a third was ready: the rest is what is unknown first
	wantCosts(t, costs(t, w, testPolicy(t, ""), "3"), map[string]string{"a": "1.5", "no_telemetry": "1.5"})

	unseen := Window{Span: period.Hour(hour0), Node: Node{ExpectedGPUs: 1, ExpectedModel: "L4"}, Hours: []Hour{{Start: hour0}}}
	wantCosts(t, costs(t, unseen, testPolicy(t, ""), "3"), map[string]string{"no_telemetry": "3"})
	unseen.Hours[0].CoveredMicros = full // the cluster was seen, the node was not in it
	wantCosts(t, costs(t, unseen, testPolicy(t, ""), "3"), map[string]string{"not_ready": "3"})
}

// A node of four GPUs of which one is seen: the others are not free of charge.
func TestMissingDevices(t *testing.T) {
	w := window(wholeGPU("L4", podRow("a", full)))
	w.Node = Node{ExpectedGPUs: 4, ExpectedModel: "L4"}
	wantCosts(t, costs(t, w, testPolicy(t, ""), "4"), map[string]string{"a": "1", "no_telemetry": "3"})
}

func TestOwnerChangesWithinAWindow(t *testing.T) {
	o, err := policy.ParseOwners("o", []byte(`
timezone: Etc/GMT-1
rules:
  - {match: {namespace: ml}, team: old, to: 2026-10-06}
  - {match: {namespace: ml}, team: new}
`))
	if err != nil {
		t.Fatal(err)
	}
	day := time.Date(2026, 10, 5, 0, 0, 0, 0, time.UTC)
	w := Window{Span: period.Span{Start: day, End: day.AddDate(0, 0, 1)}, Pods: map[string]Pod{"a": {UID: "a", Namespace: "ml"}}}
	for h := range 24 {
		w.Hours = append(w.Hours, Hour{
			Start: day.Add(time.Duration(h) * time.Hour), Seen: true, CoveredMicros: full,
			NodeHour: gpu.NodeHour{ReadyMicros: full, Devices: []gpu.Device{wholeGPU("L4", podRow("a", full))}},
		})
	}
	shares, err := Split(w, testPolicy(t, ""), &o)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]money.Ratio{}
	for _, s := range shares {
		got[s.Owner.Team] += s.Ratio
	}
	if got["old"] != 958_333_333_333 || got["new"] != 41_666_666_667 {
		t.Errorf("%v", got)
	}
}

// Midnight in Kolkata is 18:30 UTC: the hour from 18:00 has two owners, half each.
func TestOwnerChangesWithinAnHour(t *testing.T) {
	o, err := policy.ParseOwners("o", []byte(`
timezone: Asia/Kolkata
rules:
  - {match: {namespace: ml}, team: old, to: 2026-10-06}
  - {match: {namespace: ml}, team: new}
`))
	if err != nil {
		t.Fatal(err)
	}
	hour := time.Date(2026, 10, 5, 18, 0, 0, 0, time.UTC)
	w := window(wholeGPU("L4", podRow("a", full/2), catRow(gpu.SlotHeld, full/2)))
	w.Span, w.Hours[0].Start, w.Pods = period.Hour(hour), hour, map[string]Pod{"a": {UID: "a", Namespace: "ml"}}
	shares, err := Split(w, testPolicy(t, ""), &o)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]money.Ratio{}
	for _, s := range shares {
		got[s.Owner.Team] += s.Ratio
	}
	if got["old"] != money.One/2 || got["new"] != money.One/2 {
		t.Errorf("%v", got)
	}

	// CPU and memory too: a pod without a GPU has two owners of half an hour each.
	w.Hours[0].CPUMilli, w.Hours[0].MemoryBytes, w.Hours[0].Pods = 4000, 16<<30, []gpu.PodUse{{PodUID: "a", LifeMicros: full, CPUMilli: 2000, Memory: 4 << 30}}
	v, err := Compute(w, testPolicy(t, "component_split: billed_sku"), &o, nil)
	if err != nil {
		t.Fatal(err)
	}
	shares, err = v.Of(billing.CPU, true)
	if err != nil || len(shares) != 3 || shares[0].Owner.Team == shares[1].Owner.Team || shares[0].Ratio != money.One/4 || shares[1].Ratio != money.One/4 {
		t.Errorf("%v %+v", err, shares)
	}
}

// genWindow draws a window of some hours of a node with rows that fill them.
func genWindow(t *rapid.T) Window {
	n := rapid.IntRange(1, 5).Draw(t, "hours")
	w := Window{Span: period.Span{Start: hour0, End: hour0.Add(time.Duration(n) * time.Hour)}, Node: Node{ExpectedGPUs: rapid.IntRange(0, 3).Draw(t, "gpus"), ExpectedModel: "L4"}}
	for i := range n {
		ready := rapid.Int64Range(0, full).Draw(t, "ready")
		h := Hour{Start: hour0.Add(time.Duration(i) * time.Hour), Seen: true, CoveredMicros: full, NodeHour: gpu.NodeHour{ReadyMicros: ready, UncoveredMicros: rapid.Int64Range(0, full-ready).Draw(t, "uncovered")}}
		for range rapid.IntRange(0, 3).Draw(t, "devices") {
			left := ready
			var rows []gpu.Row
			for p := range rapid.IntRange(0, 4).Draw(t, "pods") {
				us := rapid.Int64Range(0, left).Draw(t, "us")
				left -= us
				rows = append(rows, podRow(fmt.Sprintf("p%d", p), us))
			}
			rows = append(rows, catRow(rapid.SampledFrom([]gpu.Category{gpu.Unallocated, gpu.SlotHeld, gpu.Unattributed}).Draw(t, "free"), left))
			d := wholeGPU("L4", rows...)
			d.Partitions[0].PresentMicros = ready
			h.Devices = append(h.Devices, d)
		}
		w.Hours = append(w.Hours, h)
	}
	w.BilledMicros = rapid.Int64Range(1, w.Span.Micros()).Draw(t, "billed")
	return w
}

var genPolicy = rapid.SampledFrom([]string{"", "basis: used", "basis: request", "idle: {default: proportional}", "idle: {default: even, slot_held: even}", "idle: {slot_held: replica}", "unattributed: {mode: spread}"})
