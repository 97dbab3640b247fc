package gpu

import (
	"fmt"
	"math/big"
	"sort"
	"testing"

	"pgregory.net/rapid"
)

// The properties P1 to P20 of reference/allocation-method.md §4.2, as far as they
// concern the share of a partition. What concerns ratios and lines is in allocate,
// what concerns the pipeline in cmd/gpuledger.

// randomCase is a time-sliced GPU with pods whose bytes change at common instants.
type randomCase struct {
	usable   uint64
	replicas int
	edges    []int64             // of the segments, first 0, last an hour
	used     map[string][]uint64 // by pod and segment
	slots    map[string]int
}

func drawCase(t *rapid.T, pods int) randomCase {
	c := randomCase{
		usable: uint64(rapid.IntRange(1, 80).Draw(t, "usableGiB")) << 30, replicas: rapid.SampledFrom([]int{0, 2, 4, 7}).Draw(t, "R"),
		used: map[string][]uint64{}, slots: map[string]int{},
	}
	cuts := rapid.SliceOfNDistinct(rapid.Int64Range(1, fullHour-1), 0, 5, rapid.ID[int64]).Draw(t, "cuts")
	c.edges = sortedUnique(append([]int64{0, fullHour}, cuts...))
	for i := range pods {
		name := fmt.Sprintf("p%d", i)
		c.slots[name] = rapid.IntRange(1, 3).Draw(t, "slots")
		for range len(c.edges) - 1 {
			c.used[name] = append(c.used[name], uint64(rapid.Int64Range(0, 90<<30).Draw(t, "bytes")))
		}
	}
	return c
}

// shares runs the real integration.
func (c randomCase) shares() map[string]Shares {
	pp := &placedPart{Partition: Partition{Mode: ModeTimeSlicing, Replicas: c.replicas, UsableBytes: c.usable, PresentMicros: fullHour}, data: newReadings(nil), present: []interval{{0, fullHour}}}
	pp.data.perPod = true
	for name, used := range c.used {
		h := &holder{uid: name, replicas: c.slots[name], byUID: true, life: interval{0, fullHour}}
		for i, u := range used {
			h.cells = append(h.cells, cell{interval{c.edges[i], c.edges[i+1]}, u, c.edges[i]})
		}
		pp.holders = append(pp.holders, h)
	}
	sort.Slice(pp.holders, func(i, j int) bool { return pp.holders[i].uid < pp.holders[j].uid })
	out := map[string]Shares{}
	for _, r := range integrate(pp, interval{0, fullHour}) {
		who := r.PodUID
		if who == "" {
			who = string(r.Category)
		}
		s := out[who]
		for k := range columns {
			*s.column(k) += *r.Shares.column(k)
		}
		out[who] = s
	}
	return out
}

// oracle is the definition in exact rationals: σ = a / max(M, Σ a), integrated.
func (c randomCase) oracle(name string, column int) *big.Rat {
	a := func(pod string, seg int) *big.Rat {
		used := new(big.Rat).SetInt64(int64(c.used[pod][seg]))
		floor := new(big.Rat)
		if c.replicas > 0 {
			floor.SetFrac64(int64(c.usable)*int64(c.slots[pod]), int64(c.replicas))
		}
		switch column {
		case colUsed, colMaxNone:
			return used
		case colRequestNone:
			return new(big.Rat)
		case colRequestReplica:
			return floor
		}
		if used.Cmp(floor) > 0 {
			return used
		}
		return floor
	}
	sum := new(big.Rat)
	for seg := range len(c.edges) - 1 {
		all := new(big.Rat)
		for pod := range c.used {
			all.Add(all, a(pod, seg))
		}
		if m := new(big.Rat).SetInt64(int64(c.usable)); all.Cmp(m) < 0 {
			all = m
		}
		part := new(big.Rat).Quo(a(name, seg), all)
		sum.Add(sum, part.Mul(part, new(big.Rat).SetInt64(c.edges[seg+1]-c.edges[seg])))
	}
	return sum
}

// Every random case against the oracle, in every column: within a microsecond (P20),
// summing exactly (P1), never negative (P2).
func TestP1P2P20Oracle(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := drawCase(rt, rapid.IntRange(1, 5).Draw(rt, "pods"))
		got := c.shares()
		for k := range columns {
			var sum int64
			for who, s := range got {
				v := *s.column(k)
				sum += v
				if v < 0 {
					rt.Fatalf("%s: %d", who, v)
				}
			}
			if sum != fullHour {
				rt.Fatalf("column %d sums to %d", k, sum)
			}
			for name := range c.used {
				s := got[name]
				diff := new(big.Rat).Sub(new(big.Rat).SetInt64(*s.column(k)), c.oracle(name, k))
				if diff.Abs(diff).Cmp(big.NewRat(1001, 1000)) > 0 {
					rt.Fatalf("column %d, %s: %d, exact %s", k, name, *s.column(k), c.oracle(name, k).FloatString(3))
				}
			}
		}
	})
}

// P3 null player: a pod that reserves and uses nothing pays nothing and changes nobody.
func TestP3NullPlayer(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := drawCase(rt, 3)
		before := c.shares()
		c.used["zero"], c.slots["zero"] = make([]uint64, len(c.edges)-1), 0
		after := c.shares()
		if after["zero"] != (Shares{}) {
			rt.Fatalf("%+v", after["zero"])
		}
		for name := range before {
			if before[name] != after[name] {
				rt.Fatalf("%s: %+v, without it %+v", name, after[name], before[name])
			}
		}
	})
}

// P4 symmetry: equal bytes and slots, equal shares up to the unit of rounding.
func TestP4Symmetry(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := drawCase(rt, 3)
		c.used["p1"], c.slots["p1"] = c.used["p0"], c.slots["p0"]
		s := c.shares()
		a, b := s["p0"], s["p1"]
		for k := range columns {
			if d := *a.column(k) - *b.column(k); d > 1 || d < -1 {
				rt.Fatalf("column %d: %d and %d", k, *a.column(k), *b.column(k))
			}
		}
	})
}

// P5 own monotonicity and P7 solidarity: more use never lowers my share, and moves
// all others the same way.
func TestP5P7MoreUse(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := drawCase(rt, 3)
		before := c.shares()
		seg := rapid.IntRange(0, len(c.edges)-2).Draw(rt, "segment")
		more := append([]uint64(nil), c.used["p0"]...)
		more[seg] += uint64(rapid.Int64Range(0, 50<<30).Draw(rt, "more"))
		c.used["p0"] = more
		after := c.shares()
		for k := range columns {
			mine, was := after["p0"], before["p0"]
			if *mine.column(k) < *was.column(k)-1 {
				rt.Fatalf("column %d: my share fell from %d to %d", k, *was.column(k), *mine.column(k))
			}
			for _, other := range []string{"p1", "p2"} {
				now, then := after[other], before[other]
				if *now.column(k) > *then.column(k)+1 {
					rt.Fatalf("column %d: %s gained from my use", k, other)
				}
			}
		}
	})
}

// P6 independence: where no instant was oversubscribed, taking a pod away changes no
// other's share.
func TestP6Independence(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := drawCase(rt, 4)
		for name := range c.used { // four pods of at most a quarter each, one slot each of at least four
			c.slots[name] = 1
			for i := range c.used[name] {
				c.used[name][i] %= c.usable/4 + 1
			}
		}
		if c.replicas > 0 {
			c.replicas = max(4, c.replicas)
		}
		before := c.shares()
		delete(c.used, "p3")
		after := c.shares()
		for _, name := range []string{"p0", "p1", "p2"} {
			a, b := before[name], after[name]
			for k := range columns {
				if d := *a.column(k) - *b.column(k); d > 1 || d < -1 {
					rt.Fatalf("column %d, %s: %d with, %d without", k, name, *a.column(k), *b.column(k))
				}
			}
		}
	})
}

// P8: splitting a pod leaves its sum under basis used, and never lowers it under max.
func TestP8Splitting(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := drawCase(rt, 2)
		c.slots["p0"] = 2
		before := c.shares()["p0"]
		whole := c.used["p0"]
		half, rest := make([]uint64, len(whole)), make([]uint64, len(whole))
		for i, u := range whole {
			half[i] = uint64(rapid.Int64Range(0, int64(u)).Draw(rt, "half"))
			rest[i] = u - half[i]
		}
		c.used["p0"], c.used["x"], c.slots["p0"], c.slots["x"] = half, rest, 1, 1
		after := c.shares()
		if d := after["p0"].Used + after["x"].Used - before.Used; d > 2 || d < -2 {
			rt.Fatalf("used: %d after, %d before", after["p0"].Used+after["x"].Used, before.Used)
		}
		if after["p0"].MaxReplica+after["x"].MaxReplica < before.MaxReplica-2 {
			rt.Fatalf("max: %d after, %d before", after["p0"].MaxReplica+after["x"].MaxReplica, before.MaxReplica)
		}
	})
}

// P10 scale: twice the memory and twice the bytes, the same shares.
func TestP10Scale(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := drawCase(rt, 3)
		before := c.shares()
		c.usable *= 2
		for name, used := range c.used {
			twice := make([]uint64, len(used))
			for i, u := range used {
				twice[i] = 2 * u
			}
			c.used[name] = twice
		}
		after := c.shares()
		for name := range before {
			if before[name] != after[name] {
				rt.Fatalf("%s: %+v, scaled %+v", name, before[name], after[name])
			}
		}
	})
}

// P12: a sample equal to the step function changes no share.
func TestP12SampleRefinement(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := drawCase(rt, 3)
		before := c.shares()
		seg := rapid.IntRange(0, len(c.edges)-2).Draw(rt, "segment")
		if c.edges[seg+1]-c.edges[seg] < 2 {
			return
		}
		mid := c.edges[seg] + (c.edges[seg+1]-c.edges[seg])/2
		c.edges = append(c.edges[:seg+1:seg+1], append([]int64{mid}, c.edges[seg+1:]...)...)
		for name, used := range c.used {
			c.used[name] = append(used[:seg+1:seg+1], used[seg:]...)
		}
		after := c.shares()
		for name := range before {
			a, b := before[name], after[name]
			for k := range columns {
				if d := *a.column(k) - *b.column(k); d > 1 || d < -1 {
					rt.Fatalf("column %d, %s: %d, refined %d", k, name, *a.column(k), *b.column(k))
				}
			}
		}
	})
}

// P16 hide test: dropping its request never lowers a pod's charge below its used share.
func TestP16Hiding(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := drawCase(rt, 3)
		c.slots["p0"] = 0
		hidden := c.shares()["p0"]
		if hidden.MaxNone < hidden.Used {
			rt.Fatalf("%+v", hidden)
		}
	})
}

// P17 floor: the holder of an exclusive GPU pays all of it at zero use, under every
// definition.
func TestP17Floor(t *testing.T) {
	pp := &placedPart{Partition: Partition{Mode: ModeExclusive, Replicas: 1, UsableBytes: 40 << 30, PresentMicros: fullHour}, data: newReadings(nil), present: []interval{{0, fullHour}}}
	pp.holders = []*holder{{uid: "a", replicas: 1, life: interval{0, fullHour}}}
	rows := integrate(pp, interval{0, fullHour})
	all := Shares{fullHour, fullHour, fullHour, fullHour, fullHour}
	if len(rows) != 1 || rows[0].Shares != all {
		t.Errorf("%+v", rows)
	}
}
