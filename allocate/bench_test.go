package allocate

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"gpuledger/billing"
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

// costColumns are the billed, effective, list and contracted cost of a line, in 1e-12.
var costColumns = [4]uint64{98_320_000_000_000, 55_040_000_000_000, 98_320_000_000_000, 71_234_567_890_123}

// columns multiplies ratios into four cost columns, exactly, and keeps their sums.
func columns(ratio uint64, sums *[4]money.Weight) {
	for c, cost := range costColumns {
		w, _ := money.W(cost).Mul(ratio)
		sums[c], _ = sums[c].Add(w)
	}
}

func checkColumns(b *testing.B, sums [4]money.Weight) {
	b.Helper()
	for c, cost := range costColumns {
		if whole, _ := money.W(cost).Mul(uint64(money.One)); sums[c] != whole {
			b.Fatalf("column %d: %v, not %v", c, sums[c], whole)
		}
	}
}

func benchOwners(b *testing.B) *policy.Owners {
	b.Helper()
	owners, err := policy.ParseOwners("owners.yaml", []byte(`
rules: [{match: {namespace: "team-0"}, team: a}, {match: {namespace: "team-1"}, team: b}, {match: {namespace: "team-*"}, team: c}]
dimensions: {ai_model: [label:model]}`))
	if err != nil {
		b.Fatal(err)
	}
	return &owners
}

// The split of a node-hour and its multiplication into four cost columns, as a month of
// them is split: one after another.
func BenchmarkSplit(b *testing.B) {
	w, x := benchWindow(), NewSplitter(testPolicy(b, ""), benchOwners(b))
	var sums [4]money.Weight
	b.ReportAllocs()
	for b.Loop() {
		shares, err := x.Split(w)
		if err != nil {
			b.Fatal(err)
		}
		sums = [4]money.Weight{}
		for i := range shares {
			columns(uint64(shares[i].Ratio), &sums)
		}
	}
	checkColumns(b, sums)
}

// The same for a splitter that has seen nothing yet.
func BenchmarkSplitFirst(b *testing.B) {
	w, p, owners := benchWindow(), testPolicy(b, ""), benchOwners(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Split(w, p, owners); err != nil {
			b.Fatal(err)
		}
	}
}

// The bare integer split of the same vector into the same columns: what no method can
// do without.
func BenchmarkBareRatios(b *testing.B) {
	shares, err := Split(benchWindow(), testPolicy(b, ""), &nobody)
	if err != nil {
		b.Fatal(err)
	}
	weights := make([]money.Weight, len(shares))
	for i, s := range shares {
		weights[i] = money.W(uint64(s.Ratio))
	}
	var sums [4]money.Weight
	b.ReportAllocs()
	for b.Loop() {
		ratios, err := money.Ratios(weights)
		if err != nil {
			b.Fatal(err)
		}
		sums = [4]money.Weight{}
		for _, r := range ratios {
			columns(uint64(r), &sums)
		}
	}
	checkColumns(b, sums)
}

// monthNode is one of many nodes alike: 8 GPUs, 32 holders, a window for each hour.
type monthNode struct{ Window }

func (n *monthNode) at(node, hour int) {
	start := hour0.Add(time.Duration(hour) * time.Hour)
	n.Span, n.Hours[0].Start = period.Hour(start), start
	for g := range n.Hours[0].Devices {
		rows := n.Hours[0].Devices[g].Partitions[0].Rows
		left := full
		for i := range rows[:4] {
			us := full/8 + int64((node*31+hour*17+g*7+i)%1000)
			rows[i].Shares = podRow("", us).Shares
			left -= us
		}
		rows[4].Shares = podRow("", left).Shares
	}
}

// A month of 1,000 nodes, 744 hours, two lines an hour of 4 costs each, on all
// processors; the peak memory is that of the whole process.
func BenchmarkMonth(b *testing.B) {
	const nodes, hours, lines = 1_000, 744, 2
	p, owners := testPolicy(b, ""), benchOwners(b)
	workers := runtime.GOMAXPROCS(0)
	for b.Loop() {
		sums := make([][4]money.Weight, workers)
		var g errgroup.Group
		for k := range workers {
			g.Go(func() error {
				x, n := NewSplitter(p, owners), monthNode{benchWindow()}
				for node := k; node < nodes; node += workers {
					for hour := range hours {
						n.at(node, hour)
						v, err := x.Compute(n.Window, nil)
						if err != nil {
							return err
						}
						for range lines {
							shares, err := v.Of(billing.Node, false)
							if err != nil {
								return err
							}
							for i := range shares {
								columns(uint64(shares[i].Ratio), &sums[k])
							}
						}
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			b.Fatal(err)
		}
		var all [4]money.Weight
		for _, s := range sums {
			for c := range all {
				all[c], _ = all[c].Add(s[c])
			}
		}
		for c, cost := range costColumns {
			want, _ := money.W(cost).Mul(uint64(money.One))
			if want, _ = want.Mul(nodes * hours * lines); all[c] != want {
				b.Fatalf("column %d: %v, not %v", c, all[c], want)
			}
		}
	}
	b.ReportMetric(float64(nodes*hours*lines)/b.Elapsed().Seconds()*float64(b.N), "lines/s")
	b.ReportMetric(peakMB(b), "peak-MB")
}

// peakMB is the most memory that the process had.
func peakMB(b *testing.B) float64 {
	b.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Log(err) // no Linux
		return 0
	}
	for _, line := range strings.Split(string(text), "\n") {
		var kb float64
		if n, _ := fmt.Sscanf(line, "VmHWM: %f kB", &kb); n == 1 {
			return kb / 1024
		}
	}
	return 0
}
