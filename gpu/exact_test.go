package gpu_test

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"gpuledger/gpu"
	"gpuledger/internal/anyfleet"
)

// Every row that comes of the series of a random fleet is what the definition gives, in
// each of the five columns, to a microsecond; and in each they sum to the time that the
// partition was present.
func TestEveryRowIsExact(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := anyfleet.Draw(rt, anyfleet.Options{Hours: 2})
		rt.Log(f)
		for hour := range f.Hours {
			inventory, devices := f.Series(hour, hour+1)
			got := gpu.FoldHour(inventory, devices, anyfleet.At(hour*anyfleet.Hour), gpu.Settings{})
			for _, n := range f.Nodes {
				checkNode(rt, n, hour, nodeHour(got, n.Name))
			}
		}
	})
}

func nodeHour(c gpu.ClusterHour, name string) *gpu.NodeHour {
	for i := range c.Nodes {
		if c.Nodes[i].Node == name {
			return &c.Nodes[i]
		}
	}
	return nil
}

func checkNode(t *rapid.T, n *anyfleet.Node, hour int, got *gpu.NodeHour) {
	from, to := hour*anyfleet.Hour, (hour+1)*anyfleet.Hour
	ready := max(0, min(to, n.Down)-max(from, n.Up))
	if got == nil {
		if ready > 0 {
			t.Fatalf("hour %d: node %s is not there", hour, n.Name)
		}
		return
	}
	if got.ReadyMicros != int64(ready)*1e6 || got.UncoveredMicros != 0 {
		t.Fatalf("hour %d: ready for %d µs, not %d s; %d not covered", hour, got.ReadyMicros, ready, got.UncoveredMicros)
	}
	if ready > 0 && len(got.Devices) != n.Devices() {
		t.Fatalf("hour %d: %d devices, not %d", hour, len(got.Devices), n.Devices())
	}
	seen := map[[2]string]*gpu.Partition{}
	for i := range got.Devices {
		for j := range got.Devices[i].Partitions {
			p := &got.Devices[i].Partitions[j]
			seen[[2]string{got.Devices[i].UUID, p.GPUInstance}] = p
		}
	}
	for g, card := range n.GPUs {
		for p, part := range card.Parts {
			a, b := n.Present(g, p, from, to)
			k := [2]string{card.UUID, part.ID}
			if (a < b) != (seen[k] != nil) {
				t.Fatalf("hour %d: %v is there: %v", hour, k, seen[k] != nil)
			}
			if seen[k] != nil {
				checkPartition(t, seen[k], n.Exact(g, p, from, to), int64(b-a)*1e6)
				s, of, _ := card.Slices(part, "memory", "configured")
				if seen[k].MemorySlices != s || seen[k].DeviceSlices != of {
					t.Fatalf("%v is %d of %d slices, not %d of %d", k, seen[k].MemorySlices, seen[k].DeviceSlices, s, of)
				}
			}
			delete(seen, k)
		}
	}
	for k, p := range seen {
		if k[0] != "missing-"+string(rune('0'+len(n.GPUs))) {
			t.Fatalf("hour %d: %v should not be", hour, k)
		}
		checkPartition(t, p, []*anyfleet.Had{anyfleet.Silent(0, ready)}, int64(ready)*1e6)
	}
}

// offBy is how far a share may be from the exact one, in µs: it is rounded to whole
// microseconds once, after pieces of 2^-20 µs were rounded down; and what is estimated
// or scaled of each pod was rounded down to a byte, which is 0.7 µs of an hour of an
// instance of 4.75 GiB.
func offBy(p *gpu.Partition, pods int) *big.Rat {
	byteMicros := big.NewRat(p.PresentMicros*int64(pods), max(1, int64(p.UsableBytes)))
	return byteMicros.Add(byteMicros, big.NewRat(101, 100))
}

func checkPartition(t *rapid.T, p *gpu.Partition, want []*anyfleet.Had, present int64) {
	type who struct{ pod, category string }
	got := map[who][anyfleet.Columns]int64{}
	var sums [anyfleet.Columns]int64
	held, slots := map[string]int64{}, map[string]int64{}
	for _, r := range p.Rows {
		k := who{r.PodUID, string(r.Category)}
		row := got[k]
		for c, v := range [...]int64{r.Shares.Used, r.Shares.RequestNone, r.Shares.RequestReplica, r.Shares.MaxNone, r.Shares.MaxReplica} {
			if v < 0 {
				t.Fatalf("%+v", r)
			}
			row[c] += v
			sums[c] += v
		}
		got[k] = row
		held[r.PodUID] += r.MeasuredMicros + r.GapMicros
		slots[r.PodUID] += (r.MeasuredMicros + r.GapMicros) * int64(r.Replicas)
	}
	if p.PresentMicros != present {
		t.Fatalf("present for %d µs, not %d", p.PresentMicros, present)
	}
	for c, sum := range sums {
		if sum != present {
			t.Fatalf("column %d sums to %d µs of %d", c, sum, present)
		}
	}
	micros, bound := big.NewRat(1_000_000, 1), offBy(p, len(held))
	for _, h := range want {
		k := who{h.Pod, h.Category}
		for c, exact := range h.Columns {
			exact = new(big.Rat).Mul(exact, micros)
			off := new(big.Rat).Sub(new(big.Rat).SetInt64(got[k][c]), exact)
			if off.Abs(off).Cmp(bound) > 0 {
				t.Fatalf("column %d of %v: %d µs, exact %s; rows %+v", c, k, got[k][c], exact.FloatString(3), p.Rows)
			}
		}
		if h.Pod != "" && (new(big.Rat).Mul(h.Held, micros).Cmp(new(big.Rat).SetInt64(held[h.Pod])) != 0 || new(big.Rat).Mul(h.Slots, micros).Cmp(new(big.Rat).SetInt64(slots[h.Pod])) != 0) {
			t.Fatalf("%s held for %d µs and %d slot-µs, not %s and %s s", h.Pod, held[h.Pod], slots[h.Pod], h.Held.FloatString(3), h.Slots.FloatString(3))
		}
		delete(got, k)
	}
	for k, row := range got {
		if row != ([anyfleet.Columns]int64{}) {
			t.Fatalf("%v has %v and should have nothing", k, row)
		}
	}
}
