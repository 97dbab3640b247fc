package allocate

import (
	"fmt"
	"math/big"
	"testing"
	"time"

	"gpuledger/billing/money"
	"gpuledger/billing/period"
	"gpuledger/gpu"
)

// Published and own cases that no other test reproduces.

// kokuDay is a day of one GPU cut into 4g, 2g and 1g: ml-train has the 4g and serving the
// 2g for two hours, inference the 1g for six.
func kokuDay() Window {
	day := time.Date(2026, 10, 5, 0, 0, 0, 0, time.UTC)
	w := Window{Span: period.Span{Start: day, End: day.AddDate(0, 0, 1)}}
	for h := range 24 {
		rows := map[string][]gpu.Row{}
		for id, pod := range map[string]string{"1": "ml-train", "2": "serving", "3": "inference"} {
			rows[id] = []gpu.Row{catRow(gpu.Unallocated, full)}
			if h < 2 || h < 6 && pod == "inference" {
				rows[id] = []gpu.Row{podRow(pod, full)}
			}
		}
		one := window(kokuGPU(rows)).Hours[0]
		one.Start = day.Add(time.Duration(h) * time.Hour)
		w.Hours = append(w.Hours, one)
	}
	return w
}

func kokuGPU(rows map[string][]gpu.Row) gpu.Device {
	return migDevice(rows, []string{"1", "2", "3"}, map[string]string{"1": "4g.20gb", "2": "2g.10gb", "3": "1g.5gb"})
}

// kokuHour has the same slice-time, 8, 6 and 4, within one hour: 180 of 420 slice-minutes.
func kokuHour() Window {
	rows := map[string][]gpu.Row{}
	for id, of := range map[string]struct {
		pod     string
		minutes int64
	}{"1": {"ml-train", 20}, "2": {"serving", 20}, "3": {"inference", 60}} {
		rows[id] = []gpu.Row{podRow(of.pod, full/60*of.minutes), catRow(gpu.Unallocated, full-full/60*of.minutes)}
	}
	return window(kokuGPU(rows))
}

// G07: 2,016 a month of 28 days is 72 a day; then 1,000 of remainder by slice-time.
func TestG07Koku(t *testing.T) {
	const compute = "partition: {weight: compute}\n"
	wantCosts(t, costs(t, kokuDay(), testPolicy(t, compute), "72"), map[string]string{
		"ml-train": "3.428571", "inference": "2.571429", "serving": "1.714286", "unallocated": "64.285714",
	})
	_, moved := byPod(t, kokuHour(), compute+"idle: {default: proportional}", "1750") // of which 240/420 are free
	wantCosts(t, moved, map[string]string{"ml-train": "444.444444", "inference": "333.333333", "serving": "222.222222"})
}

// G08: 1,000 a month of 30 days.
func TestG08KokuScenario2(t *testing.T) {
	const compute = "partition: {weight: compute}\n"
	wantCosts(t, costs(t, kokuDay(), testPolicy(t, compute), "33.333333333333333333"), map[string]string{
		"ml-train": "1.587302", "inference": "1.190476", "serving": "0.793651", "unallocated": "29.761905",
	})
	// 29.761905 is 240/420 of 52.083333.
	_, moved := byPod(t, kokuHour(), compute+"idle: {default: proportional}", "52.083333333333333333")
	wantCosts(t, moved, map[string]string{"ml-train": "13.227513", "inference": "9.920635", "serving": "6.613757"})
}

// G10: 100 of remainder over a use of 25 and 75. The remainder's row is re-targeted, so
// nothing negative is written and nothing of it is left.
func TestG10Worker(t *testing.T) {
	w := window(wholeGPU("L4", podRow("A", full/8), podRow("B", full/8*3), catRow(gpu.Unallocated, full/2)))
	direct, moved := byPod(t, w, "idle: {default: proportional}", "200")
	wantCosts(t, direct, map[string]string{"A": "25", "B": "75"})
	wantCosts(t, moved, map[string]string{"A": "25", "B": "75"})
	shares, err := Split(w, testPolicy(t, "idle: {default: proportional}"), &nobody)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range shares {
		if s.Ratio < 0 || s.PodUID == "" || (s.MovedBy != "") != (s.Category == string(gpu.Unallocated)) {
			t.Errorf("%+v", s)
		}
	}
}

// O09 in cents: three equal remainders, so the largest weight first and then the key.
func TestO09InCents(t *testing.T) {
	day := time.Date(2026, 10, 5, 0, 0, 0, 0, time.UTC)
	w := Window{Span: period.Span{Start: day, End: day.Add(10 * time.Hour)}}
	for h := range 10 {
		var ds []gpu.Device
		for i, model := range []string{"H100-80GB-HBM3", "L4", "L4", "A100-SXM4-40GB"} {
			d := wholeGPU(model, podRow(model, full))
			d.UUID = fmt.Sprint("GPU-", i)
			ds = append(ds, d)
		}
		one := window(ds...).Hours[0]
		one.Start = day.Add(time.Duration(h) * time.Hour)
		w.Hours = append(w.Hours, one)
	}
	shares, err := Split(w, testPolicy(t, `model_weights: [{model: H100-80GB-HBM3, weight: "4"}, {model: L4, weight: "0.5"}, {model: A100-SXM4-40GB, weight: "1"}]`), &nobody)
	if err != nil {
		t.Fatal(err)
	}
	weights := make([]money.Weight, len(shares))
	for i, s := range shares {
		weights[i] = money.W(uint64(s.Ratio))
	}
	cents, err := money.Apportion(100_00, weights)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int64{"H100-80GB-HBM3": 66_67, "A100-SXM4-40GB": 16_67, "L4": 16_66}
	for i, s := range shares {
		if cents[i] != want[s.PodUID] {
			t.Errorf("%s: %d cents, want %d", s.PodUID, cents[i], want[s.PodUID])
		}
	}
}

// G04's intermediate: the node's price is that of 270.05806 GiB.
func TestG04Multiple(t *testing.T) {
	w := node(4, 16, []gpu.Device{wholeGPU("TESLA-T4", podRow("a", full))})
	v, err := Compute(w, testPolicy(t, "component_split: ratio"), &nobody, nil)
	if err != nil {
		t.Fatal(err)
	}
	if k := big.NewRat(16*int64(money.One), int64(v.Parts.Memory)); k.FloatString(5) != "270.05806" {
		t.Errorf("%s", k.FloatString(5))
	}
}
