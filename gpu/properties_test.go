package gpu

import (
	"fmt"
	"math/big"
	"sort"
	"testing"

	"pgregory.net/rapid"
)

// The share of a time-sliced GPU at instants and of bytes that no series would show:
// between samples, and to the byte. Series of every sharing mode are in exact_test.go;
// the properties P1 to P20 of reference/allocation-method.md §4.2 are in allocate and
// cmd/gpuledger.

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
			h.trail.cells = append(h.trail.cells, cell{interval{c.edges[i], c.edges[i+1]}, u})
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

// Every random case against the oracle, in every column: within a microsecond, summing
// exactly, never negative.
func TestShareAtAnyInstant(t *testing.T) {
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
