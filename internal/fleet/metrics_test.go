package fleet

import (
	"context"
	"maps"
	"math/big"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/ingest"
	"gpuledger/ingest/openmetrics"
)

func demoSource(t *testing.T) ingest.Source {
	t.Helper()
	_, dir, _ := writtenDemo(t)
	src, err := openmetrics.New(openmetrics.Config{
		Paths: []string{filepath.Join(dir, "metrics", "*.om.gz")}, Metrics: slices.Concat(gpu.InventoryMetrics, gpu.DeviceMetrics),
	})
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// foldHour reads one hour back and returns one node's part of it.
func foldHour(t *testing.T, src ingest.Source, hour time.Time, node string) (gpu.ClusterHour, *gpu.NodeHour) {
	t.Helper()
	var out gpu.ClusterHour
	err := ingest.FoldWhole(context.Background(), src, nil, gpu.Settings{}, period.Hour(hour), func(c ingest.Chunk) error {
		out = c.Hours[0]
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Unplaced) > 0 || out.CoveredMicros != time.Hour.Microseconds() {
		t.Errorf("%s: unplaced %v, covered %d µs", hour, out.Unplaced, out.CoveredMicros)
	}
	for i := range out.Nodes {
		if out.Nodes[i].Node == node {
			return out, &out.Nodes[i]
		}
	}
	t.Fatalf("%s: no %s", hour, node)
	return out, nil
}

// The golden hours of the demo, by hand. Times are in µs, within 1 µs a row: a
// row's microseconds are handed out by largest remainder.
func TestGoldenHours(t *testing.T) {
	b, _, _ := writtenDemo(t)
	src := demoSource(t)
	for _, c := range []struct {
		story, node string
		day, hour   int
		ready       int64
		want        map[string]int64
	}{
		{
			story: "all four slots held, residual within 2 %", node: nodeShared, day: 12, hour: 7, ready: 3_600_000_000,
			// Usable 22,528 MiB. Pods 5,632 + 2,816 + 2,048 + 4,096 = 14,592 MiB; the
			// device shows 96 more (0.43 %), so each pod counts × 14,688 / 14,592.
			//   query-encoder 5,632: 3,600 s × 5,632/22,528 × 14,688/14,592 = 905.921053 s; the second one, 4,096: 658.851675
			//   ranker 2,816: 452.960526; embedder 2,048: 329.425837
			//   free: 3,600 × (22,528 − 14,688)/22,528 = 1,252.840909, and nobody else could get it
			want: map[string]int64{
				"query-encoder process_uid": 905_921_053 + 658_851_675, "ranker process_uid": 452_960_526, "embedder process_uid": 329_425_837,
				"slot_held none": 1_252_840_909,
			},
		},
		{
			story: "a pod of two GPUs from 10:20 to 10:50", node: nodeTraining, day: 5, hour: 10, ready: 3_600_000_000,
			// Eight GPUs: four of atlas-pretrain (14,400 s), two of ranker-eval for
			// 1,800 s each, their other half hours and the last two GPUs free: 2 × 1,800 + 2 × 3,600.
			want: map[string]int64{"atlas-pretrain sole_holder": 14_400_000_000, "ranker-eval sole_holder": 3_600_000_000, "unallocated none": 10_800_000_000},
		},
		{
			story: "exporter down from 14:00", node: nodeShared, day: 17, hour: 14, ready: 3_600_000_000,
			// The last sample, at 13:57:30, holds for 2.5 intervals of 5 min, to 14:10; the
			// first one after, at 15:12:30, reaches back to 15:00. So 600 s are measured:
			//   device 6,656 + 4,096 + 2,048 + 96 = 12,896 MiB, pods 12,800: × 12,896/12,800
			//   query-encoder 600 × 6,656/22,528 × 1.0075 = 178.602273; ranker 109.909091; embedder 54.954545
			// and 3,000 s are a quarter of the GPU for each slot: 750 s. The rest is free:
			//   600 × (22,528 − 12,896)/22,528 + 3,000/4 = 256.534091 + 750
			want: map[string]int64{
				"query-encoder process_uid": 178_602_273, "ranker process_uid": 109_909_091, "embedder process_uid": 54_954_545,
				"query-encoder replica_request": 750_000_000, "ranker replica_request": 750_000_000, "embedder replica_request": 750_000_000,
				"unallocated none": 1_006_534_091,
			},
		},
		{
			story: "2 GiB of no pod, 9 % of the L4", node: nodeShared, day: 19, hour: 11, ready: 3_600_000_000,
			// 5,632 = 1/4, 3,072 = 3/22, 2,048 = 1/11 of usable, and 2,048 stray.
			want: map[string]int64{
				"query-encoder process_uid": 900_000_000, "ranker process_uid": 490_909_091, "embedder process_uid": 327_272_727,
				"unattributed none": 327_272_727, "unallocated none": 1_554_545_455,
			},
		},
		{
			story: "the device's 90 % shown for each of three pods", node: nodeCopied, day: 12, hour: 13, ready: 3_600_000_000,
			// 13,464 of 14,960 MiB, once, in three equal slots: 0.3 × 3,600 each.
			want: map[string]int64{
				"suggest replica_request": 1_080_000_000, "ctr-scorer replica_request": 1_080_000_000, "guardrails replica_request": 1_080_000_000,
				"unallocated none": 360_000_000,
			},
		},
		{
			story: "Spot, billed from 13:40, registered at 13:42:30, its pod from 13:50", node: nodeSpot, day: 20, hour: 13, ready: 1_050_000_000,
			want: map[string]int64{"rollout-0 sole_holder": 600_000_000, "unallocated none": 450_000_000},
		},
		{
			story: "p5 launched at 06:00, Ready at 06:04, eight GPUs idle", node: nodeTraining, day: 3, hour: 6, ready: 3_360_000_000,
			want: map[string]int64{"unallocated none": 8 * 3_360_000_000},
		},
		{
			story: "an idle Savings Plan node", node: nodePlan, day: 24, hour: 2, ready: 3_600_000_000,
			want: map[string]int64{"unallocated none": 3_600_000_000},
		},
	} {
		t.Run(c.story, func(t *testing.T) {
			ch, n := foldHour(t, src, b.at(c.day, c.hour, 0), c.node)
			if n.ReadyMicros != c.ready || n.UncoveredMicros != 0 {
				t.Errorf("ready %d µs, want %d; uncovered %d", n.ReadyMicros, c.ready, n.UncoveredMicros)
			}
			have := named(ch, n)
			for who, us := range c.want {
				if d := have[who] - us; d < -2 || d > 2 {
					t.Errorf("%s: %d µs, want %d", who, have[who], us)
				}
				delete(have, who)
			}
			for who, us := range have {
				t.Errorf("%s: %d µs, want none", who, us)
			}
		})
	}
}

// named sums the shares of basis max over the node's devices, by workload or
// category and method.
func named(ch gpu.ClusterHour, n *gpu.NodeHour) map[string]int64 {
	out := map[string]int64{}
	for _, d := range n.Devices {
		for _, p := range d.Partitions {
			for _, r := range p.Rows {
				who := string(r.Category)
				if r.PodUID != "" {
					who = ch.Inventory.Pods[r.PodUID].WorkloadName
					if ch.Inventory.Pods[r.PodUID].WorkloadKind == "StatefulSet" {
						who = ch.Inventory.Pods[r.PodUID].Name
					}
				}
				out[who+" "+r.Method.String()] += r.Shares.MaxNone
			}
		}
	}
	return out
}

// The p4d's instances weigh by their slices: 4, 2, 1 and 1 of D = 8, seven times
// 1 of D = 7, and 8 of 8.
func TestMIGHour(t *testing.T) {
	b, _, _ := writtenDemo(t)
	ch, n := foldHour(t, demoSource(t), b.at(11, 12, 0), nodeMIG)
	instances := map[string]int{}
	held := map[string]string{}
	for _, d := range n.Devices {
		for _, p := range d.Partitions {
			if p.Mode != gpu.ModeMIG || p.PresentMicros != 3_600_000_000 {
				t.Errorf("%+v", p)
			}
			key := p.Profile + " " + big.NewRat(int64(p.MemorySlices), int64(p.DeviceSlices)).String()
			instances[key]++
			for _, r := range p.Rows {
				if r.PodUID != "" && r.Shares.MaxNone == 3_600_000_000 {
					held[ch.Inventory.Pods[r.PodUID].Name] = key
				}
			}
		}
	}
	if want := (map[string]int{"3g.20gb 1/2": 1, "2g.10gb 1/4": 1, "1g.5gb 1/8": 2, "1g.5gb 1/7": 7, "7g.40gb 1/1": 6}); !maps.Equal(instances, want) {
		t.Errorf("instances %v, want %v", instances, want)
	}
	want := map[string]string{
		"intent-classifier-0": "3g.20gb 1/2", "title-gen-0": "2g.10gb 1/4", "canary-0": "1g.5gb 1/8",
		"notebook-bo-0": "1g.5gb 1/7", "notebook-cy-0": "1g.5gb 1/7", "distill-0": "7g.40gb 1/1",
	}
	if !maps.Equal(held, want) {
		t.Errorf("held %v, want %v", held, want)
	}
}

// Every eleventh hour of the month, the L4's shares are what the Fleet's own steps
// say, summed by an independent rule over the twelve cells of the hour.
func TestSharedAllMonth(t *testing.T) {
	b, _, _ := writtenDemo(t)
	src := demoSource(t)
	node := b.Fleet.Node(nodeShared)
	usable := node.GPU.UsableMiB()
	hours := b.Month.Span().Hours()
	for i := 0; i < len(hours); i += 11 {
		hour := hours[i]
		if !(period.Span{Start: hour, End: hour.Add(time.Hour)}).Intersect(node.Outages[0]).Empty() {
			continue
		}
		want := map[string]*big.Rat{}
		for at := hour; at.Before(hour.Add(time.Hour)); at = at.Add(b.Interval) {
			var sum int64
			for _, p := range b.podsByNode()[nodeShared] {
				sum += p.UsedMiB(at)
			}
			residual, device := valueAt(node.Residual, at), sum
			if residual*100 <= usable*2 {
				device += residual
			}
			for _, p := range b.podsByNode()[nodeShared] {
				if used := p.UsedMiB(at); used > 0 {
					if want[p.UID] == nil {
						want[p.UID] = new(big.Rat)
					}
					share := big.NewRat(used*device, sum*usable)
					want[p.UID].Add(want[p.UID], share.Mul(share, big.NewRat(b.Interval.Microseconds(), 1)))
				}
			}
		}
		_, n := foldHour(t, src, hour, nodeShared)
		for _, r := range n.Devices[0].Partitions[0].Rows {
			if r.PodUID == "" {
				continue
			}
			w := want[r.PodUID]
			delete(want, r.PodUID)
			if w == nil {
				t.Errorf("%s: %s holds, but the fleet has it not there", hour, r.PodUID)
				continue
			}
			if d := new(big.Rat).Sub(w, big.NewRat(r.Shares.Used, 1)); d.Abs(d).Cmp(big.NewRat(2, 1)) > 0 || r.Method != gpu.ProcessUID {
				t.Errorf("%s: %s has %d µs by %s, want %s", hour, r.PodUID, r.Shares.Used, r.Method, w.FloatString(1))
			}
		}
		if len(want) > 0 {
			t.Errorf("%s: %d pods are missing", hour, len(want))
		}
	}
}
