package allocate

import (
	"fmt"
	"testing"

	"gpuledger/billing/money"
	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/policy"
)

// benchWindow is a node-hour of 8 GPUs with 32 holders, four on each.
func benchWindow() Window {
	w := Window{Span: period.Hour(hour0), Node: Node{Cluster: "prod", Pool: "train", ExpectedGPUs: 8, ExpectedModel: "H100-80GB-HBM3"}, Pods: map[string]Pod{}}
	h := Hour{Start: hour0, Seen: true, CoveredMicros: full, NodeHour: gpu.NodeHour{ReadyMicros: full}}
	for g := range 8 {
		var rows []gpu.Row
		for i := range 4 {
			uid := fmt.Sprintf("pod-%02d", g*4+i)
			rows = append(rows, podRow(uid, full/8+int64(g*1000+i)))
			w.Pods[uid] = Pod{UID: uid, Namespace: fmt.Sprintf("team-%d", i), Labels: map[string]string{"model": "llama"}}
		}
		left := full
		for _, r := range rows {
			left -= r.Shares.Used
		}
		d := wholeGPU("H100-80GB-HBM3", append(rows, catRow(gpu.SlotHeld, left))...)
		d.UUID = fmt.Sprintf("GPU-%d", g)
		h.Devices = append(h.Devices, d)
	}
	w.Hours = []Hour{h}
	return w
}

var sink any

// The split of a node-hour and its multiplication into four cost columns.
func BenchmarkSplit(b *testing.B) {
	w, p := benchWindow(), testPolicy(b, "")
	owners, err := policy.ParseOwners("owners.yaml", []byte(`
rules: [{match: {namespace: "team-0"}, team: a}, {match: {namespace: "team-1"}, team: b}, {match: {namespace: "team-*"}, team: c}]
dimensions: {ai_model: [label:model]}`))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		shares, err := Split(w, p, &owners)
		if err != nil {
			b.Fatal(err)
		}
		sink = shares
	}
}

// The bare integer split of the same vector: what no method can do without.
func BenchmarkBareRatios(b *testing.B) {
	shares, err := Split(benchWindow(), testPolicy(b, ""), &nobody)
	if err != nil {
		b.Fatal(err)
	}
	weights := make([]money.Weight, len(shares))
	for i, s := range shares {
		weights[i] = money.W(uint64(s.Ratio))
	}
	b.ReportAllocs()
	for b.Loop() {
		ratios, err := money.Ratios(weights)
		if err != nil {
			b.Fatal(err)
		}
		sink = ratios
	}
}
