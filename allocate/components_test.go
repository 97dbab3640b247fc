package allocate

import (
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"strings"
	"testing"

	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/billing/period"
	"gpuledger/gpu"
)

const gib = int64(1) << 30

// node is an hour of a node of some CPU and memory; use is what its pods ask for.
func node(vcpu, memoryGiB int64, devices []gpu.Device, use ...gpu.PodUse) Window {
	w := window(devices...)
	w.Hours[0].CPUMilli, w.Hours[0].MemoryBytes, w.Hours[0].Pods = vcpu*1000, memoryGiB*gib, use
	return w
}

func asks(uid string, cpuMilli, usedMilli, memoryGiB, usedGiB int64) gpu.PodUse {
	return gpu.PodUse{PodUID: uid, LifeMicros: full, CPUMilli: cpuMilli, CPUUsedMilli: usedMilli, Memory: memoryGiB * gib, MemoryUsed: usedGiB * gib}
}

// byPod splits a cost and adds it up by pod, apart for what was moved to it.
func byPod(t *testing.T, w Window, yaml, cost string) (direct, moved map[string]string) {
	t.Helper()
	shares, err := Split(w, testPolicy(t, yaml), &nobody)
	if err != nil {
		t.Fatal(err)
	}
	sums := []map[string]money.Ratio{{}, {}}
	var all money.Ratio
	for _, s := range shares {
		who, k := s.PodUID, 0
		if who == "" {
			who = s.Category + " " + string(s.Component)
		} else if s.MovedBy != "" {
			k = 1
		}
		sums[k][who] += s.Ratio
		all += s.Ratio
	}
	if all != money.One {
		t.Fatalf("ratios sum to %s", all)
	}
	out := []map[string]string{{}, {}}
	for k := range sums {
		for who, r := range sums[k] {
			out[k][who] = rounded(t, money.MustParse(cost).Mul(r), 6)
		}
	}
	return out[0], out[1]
}

// G01: an m5.xlarge at 1 an hour. Pod2 uses more than it requested, of CPU and memory,
// and the four ask for 4.9 of 4 vCPU.
func TestG01SCAD(t *testing.T) {
	w := node(4, 16, nil, asks("Pod1", 1000, 100, 4, 3), asks("Pod2", 1000, 1900, 4, 6), asks("Pod3", 1000, 500, 2, 2), asks("Pod4", 1000, 500, 2, 2))
	split, unused := byPod(t, w, "component_split: scad", "1")
	wantCosts(t, split, map[string]string{"Pod1": "0.21821", "Pod2": "0.38383", "Pod3": "0.179749", "Pod4": "0.179749"})
	wantCosts(t, unused, map[string]string{"Pod1": "0.010989", "Pod2": "0.016484", "Pod3": "0.005495", "Pod4": "0.005495"})
	total := costs(t, w, testPolicy(t, "component_split: scad"), "1")
	wantCosts(t, total, map[string]string{"Pod1": "0.229199", "Pod2": "0.400314", "Pod3": "0.185243", "Pod4": "0.185243"})
}

// G02: a p3.16xlarge at 10 an hour, to the ten digits of its worked example; Pod2
// holds three GPUs.
func TestG02SCADAccelerated(t *testing.T) {
	var ds []gpu.Device
	for i, pod := range []string{"Pod1", "Pod2", "Pod2", "Pod2", "Pod3", "Pod3", "Pod4", "Pod4"} {
		d := wholeGPU("TESLA-V100-SXM2-16GB", podRow(pod, full))
		d.UUID = fmt.Sprint("GPU-", i)
		ds = append(ds, d)
	}
	w := node(64, 488, ds, asks("Pod1", 16000, 4000, 100, 60), asks("Pod2", 16000, 18000, 100, 140), asks("Pod3", 16000, 4000, 100, 60), asks("Pod4", 16000, 4000, 100, 40))
	w.Node = Node{ExpectedGPUs: 8, ExpectedModel: "TESLA-V100-SXM2-16GB"}
	shares, err := Split(w, testPolicy(t, "component_split: scad"), &nobody)
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]money.Ratio{}
	for _, s := range shares {
		sums[s.PodUID] += s.Ratio
		if s.MovedBy != "" {
			sums[s.PodUID+" "+s.MovedBy+" "+s.Category] += s.Ratio
		}
	}
	for who, want := range map[string]string{
		"Pod1": "1.908887077", "Pod2": "3.264370159", "Pod3": "2.413371382", "Pod4": "2.413371382",
		"Pod1 scad unallocated": "0.0611496127", "Pod2 scad unallocated": "0.0856094578", "Pod3 scad unallocated": "0.0611496127", "Pod4 scad unallocated": "0.0611496127",
	} {
		// A pod's total is a sum of up to five ratios, each within two units of 1e-12.
		if got := money.MustParse("10").Mul(sums[who]); diff(t, got, want) > 1e-10 {
			t.Errorf("%s: %s, want %s", who, got, want)
		}
	}
	v, err := Compute(w, testPolicy(t, "component_split: scad"), &nobody, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		part money.Ratio
		of   int64
		unit string
	}{{v.Parts.GPU, 8, "0.504484"}, {v.Parts.CPU, 64, "0.050448"}, {v.Parts.Memory, 488, "0.005605"}} {
		each := new(big.Rat).SetFrac64(int64(c.part)*10, c.of*int64(money.One))
		if each.FloatString(6) != c.unit {
			t.Errorf("a unit costs %s, want %s", each.FloatString(6), c.unit)
		}
	}
}

// G03 and G04: OpenCost's base prices scaled to the node's price.
func TestOpenCostRatio(t *testing.T) {
	for _, c := range []struct{ name, yaml, cost, gpu, cpu, memory string }{
		{"G03", `{component_split: ratio, component_ratios: {gpu: "30", vcpu: "30", gib: "10"}}`, "35", "15.000000", "15.000000", "5.000000"},
		{"G04", "component_split: ratio", "0.526", "0.436711", "0.058126", "0.031164"},
	} {
		w := node(1, 1, []gpu.Device{wholeGPU("TESLA-T4", podRow("a", full))})
		if c.name == "G04" {
			w = node(4, 16, w.Hours[0].Devices)
		}
		v, err := Compute(w, testPolicy(t, c.yaml), &nobody, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []struct {
			part money.Ratio
			want string
		}{{v.Parts.GPU, c.gpu}, {v.Parts.CPU, c.cpu}, {v.Parts.Memory, c.memory}} {
			r, _ := new(big.Rat).SetString(money.MustParse(c.cost).Mul(p.part))
			if r.FloatString(6) != p.want {
				t.Errorf("%s: %s, want %s", c.name, r.FloatString(6), p.want)
			}
		}
		if c.name == "G04" {
			cpu, _ := new(big.Rat).SetString(money.MustParse(c.cost).Mul(v.Parts.CPU))
			if each := cpu.Quo(cpu, big.NewRat(4, 1)); each.FloatString(6) != "0.014531" {
				t.Errorf("a vCPU costs %s", each.FloatString(6))
			}
			ram, _ := new(big.Rat).SetString(money.MustParse(c.cost).Mul(v.Parts.Memory))
			if each := ram.Quo(ram, big.NewRat(16, 1)); each.FloatString(8) != "0.00194773" {
				t.Errorf("a GiB costs %s", each.FloatString(8))
			}
		}
	}
}

const tenPrices = `{component_split: price_difference, component_prices: {vcpu: "0.05", gib: "0.005"}}`

// O10: list price 10, 40 vCPU at 0.05, 200 GiB at 0.005; 6 are paid.
func TestO10PriceDifference(t *testing.T) {
	w := node(40, 200, []gpu.Device{wholeGPU("L4", podRow("a", full))}, asks("a", 40000, 0, 200, 0))
	w.ListCost, w.ListMicros, w.Currency = money.MustParse("10"), full, "USD"
	shares, err := Split(w, testPolicy(t, tenPrices), &nobody)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, s := range shares {
		got[string(s.Component)] = rounded(t, money.MustParse("6").Mul(s.Ratio), 12)
		if hasTime := s.GPURatio == money.One; hasTime != (s.Component == billing.GPU) {
			t.Errorf("device time of %s: %s", s.Component, s.GPURatio)
		}
	}
	wantCosts(t, got, map[string]string{"gpu": "4.2", "cpu": "1.2", "memory": "0.6"})

	// Two halves of a reserved hour have one price an hour.
	w.ListCost, w.ListMicros = money.MustParse("5"), full/2
	again, err := Split(w, testPolicy(t, tenPrices), &nobody)
	if err != nil || !reflect.DeepEqual(shares, again) {
		t.Errorf("%v %+v", err, again)
	}
}

func TestPriceDifferenceGuards(t *testing.T) {
	w := node(40, 200, []gpu.Device{wholeGPU("L4", podRow("a", full))}, asks("web", 40000, 0, 200, 0))
	w.Node.InstanceType, w.Currency = "g6.test", "USD"
	parts := func(list, yaml string) *Vectors {
		w.ListCost, w.ListMicros = money.MustParse(list), full
		v, err := Compute(w, testPolicy(t, yaml), &nobody, nil)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if v := parts("10", tenPrices); len(v.Findings) != 0 || v.Undivided != "" {
		t.Errorf("%+v", v)
	}
	// CPU and memory alone cost 3: nothing is left to the GPU, which still has its time.
	v := parts("2", tenPrices)
	if v.Parts != (Parts{CPU: 666_666_666_667, Memory: 333_333_333_333}) || len(v.Findings) != 1 || !strings.Contains(v.Findings[0], "leave 0 of the list price of g6.test") {
		t.Errorf("%+v %q", v.Parts, v.Findings)
	}
	shares, err := v.Of(billing.Node, true)
	if err != nil || len(shares) != 3 || shares[1].Component != billing.GPU || shares[1].GPURatio != money.One || shares[1].Ratio != 0 {
		t.Errorf("%v %+v", err, shares)
	}
	if v := parts("1000", tenPrices); len(v.Findings) != 1 {
		t.Errorf("%q", v.Findings)
	}
	// A line without a list cost stays whole.
	whole, err := parts("10", tenPrices).Of(billing.Node, false)
	if err != nil || len(whole) != 1 || whole[0].Component != "" || whole[0].PodUID != "a" || whole[0].Ratio != money.One {
		t.Errorf("%v %+v", err, whole)
	}
	// Prices that start later are missing now, and never 0.
	_, err = Compute(w, testPolicy(t, `{component_split: price_difference, component_prices: [{vcpu: "1", gib: "1", from: 2026-11-01}]}`), &nobody, nil)
	var missing *MissingPrice
	if !errors.As(err, &missing) || !strings.Contains(err.Error(), "component_prices: [{vcpu:") || !strings.Contains(err.Error(), "from: 2026-10-05") {
		t.Errorf("%v", err)
	}
	// Nothing says what CPU and memory the node has.
	w.Hours[0].CPUMilli, w.Hours[0].MemoryBytes = 0, 0
	if v := parts("10", tenPrices); v.Undivided == "" || len(v.Findings) != 1 || !strings.Contains(v.Findings[0], "kube_node_status_capacity") {
		t.Errorf("%+v", v)
	}
	w.Node.CPUMilli, w.Node.MemoryBytes = 40_000, 200*gib // its instance type does
	if v := parts("10", tenPrices); v.Parts != (Parts{GPU: 700_000_000_000, CPU: 200_000_000_000, Memory: 100_000_000_000}) {
		t.Errorf("%+v", v)
	}
}

// Under billed_sku each line is its own component's, and one for the node is the GPUs'.
func TestBilledSKU(t *testing.T) {
	w := node(8, 32, []gpu.Device{wholeGPU("L4", podRow("a", full/2), catRow(gpu.Unallocated, full/2))}, asks("a", 2000, 0, 8, 0), asks("web", 4000, 0, 4, 0))
	v, err := Compute(w, testPolicy(t, "component_split: billed_sku"), &nobody, nil)
	if err != nil {
		t.Fatal(err)
	}
	for c, want := range map[billing.Component]map[string]string{
		billing.GPU:    {"a": "0.5", "unallocated": "0.5"},
		billing.Node:   {"a": "0.5", "unallocated": "0.5"},
		billing.CPU:    {"a": "0.25", "web": "0.5", "unallocated": "0.25"},
		billing.Memory: {"a": "0.25", "web": "0.125", "unallocated": "0.625"},
	} {
		shares, err := v.Of(c, true)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		var sum, time money.Ratio
		for _, s := range shares {
			who := s.PodUID
			if who == "" {
				who = s.Category
			}
			got[who] = rounded(t, s.Ratio.String(), 12)
			sum, time = sum+s.Ratio, time+s.GPURatio
			if want := c; c != billing.Node && s.Component != want {
				t.Errorf("%s: %+v", c, s)
			}
		}
		wantCosts(t, got, want)
		if timed := c == billing.GPU || c == billing.Node; sum != money.One || timed && time != money.One || !timed && time != 0 {
			t.Errorf("%s: %s, device time %s", c, sum, time)
		}
	}
}

// A pod that lived for half of the hour pays half; time before the node was ready is
// not_ready of each component; an idle policy moves what is left within it.
func TestRequestsInTime(t *testing.T) {
	half := asks("half", 2000, 0, 16, 0)
	half.LifeMicros = full / 2
	w := node(4, 16, []gpu.Device{wholeGPU("L4", catRow(gpu.Unallocated, full))}, half)
	yaml := `{component_split: ratio, component_ratios: {gpu: "2", vcpu: "0.25", gib: "0.0625"}}` // half GPU, a quarter each
	direct, _ := byPod(t, w, yaml, "16")
	wantCosts(t, direct, map[string]string{"half": "3", "unallocated gpu": "8", "unallocated cpu": "3", "unallocated memory": "2"})

	_, moved := byPod(t, w, strings.Replace(yaml, "{", "{idle: {default: proportional}, ", 1), "16")
	wantCosts(t, moved, map[string]string{"half": "5"}) // of CPU and memory; nobody is charged for the GPU

	w.Hours[0].ReadyMicros = full / 2
	w.Hours[0].Devices[0].Partitions[0].Rows[0] = catRow(gpu.Unallocated, full/2)
	direct, _ = byPod(t, w, yaml, "16")
	wantCosts(t, direct, map[string]string{
		"half": "3", "unallocated gpu": "4", "unallocated cpu": "1",
		"not_ready gpu": "4", "not_ready cpu": "2", "not_ready memory": "2",
	})
}

// Parts of hours: a window that takes a piece of its hours has the same shares of it.
func TestComponentsOfHalfAnHour(t *testing.T) {
	w := node(4, 16, []gpu.Device{wholeGPU("L4", podRow("a", full))}, asks("a", 1000, 0, 4, 0), asks("web", 2000, 0, 4, 0))
	whole, err := Split(w, testPolicy(t, "component_split: ratio"), &nobody)
	if err != nil {
		t.Fatal(err)
	}
	w.Span = period.Span{Start: hour0, End: hour0.Add(1800e9)}
	half, err := Split(w, testPolicy(t, "component_split: ratio"), &nobody)
	if err != nil || len(half) != len(whole) {
		t.Fatalf("%v %+v", err, half)
	}
	for i := range half {
		if half[i].Key() != whole[i].Key() || half[i].Ratio != whole[i].Ratio {
			t.Errorf("%+v, whole %+v", half[i], whole[i])
		}
	}
}
