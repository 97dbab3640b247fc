package anyfleet

import (
	"fmt"
	"math/bits"
	"sync"

	"pgregory.net/rapid"

	"gpuledger/gpu"
)

// profile is a MIG profile of a card, with its slices and the memory slices at which
// the driver lets it begin (MIG user guide, "Supported MIG Profiles").
type profile struct {
	name            string
	memory, compute int
	usableMiB       int64
	starts          []int
}

// card is what a model that can be cut has.
type card struct {
	memory, compute int
	profiles        []profile
}

var cards = map[string]card{
	"NVIDIA A100-SXM4-40GB": {8, 7, []profile{
		{"1g.5gb", 1, 1, 4864, []int{0, 1, 2, 3, 4, 5, 6}},
		{"1g.10gb", 2, 1, 9856, []int{0, 2, 4, 6}},
		{"2g.10gb", 2, 2, 9856, []int{0, 2, 4}},
		{"3g.20gb", 4, 3, 19968, []int{0, 4}},
		{"4g.20gb", 4, 4, 19968, []int{0}},
		{"7g.40gb", 8, 7, 40192, []int{0}},
	}},
	"NVIDIA A30": {4, 4, []profile{
		{"1g.6gb", 1, 1, 5952, []int{0, 1, 2, 3}},
		{"2g.12gb", 2, 2, 12032, []int{0, 2}},
		{"4g.24gb", 4, 4, 24320, []int{0}},
	}},
}

// cut gives a card its parts.
func (d *drawer) cut(n *Node, g *GPU) {
	const ever = 1 << 29
	if n.Mode != gpu.ModeMIG {
		g.Parts = []*Part{{Memory: 1, Compute: 1, UsableMiB: g.TotalMiB - g.ReservedMiB, From: -ever, To: ever}}
		return
	}
	c := cards[g.Model]
	geometry := rapid.SampledFrom(geometries(g.Model)).Draw(d.T, "geometry")
	from := d.between(0, len(geometry)-1, "first instance")
	all := geometry[from : from+d.between(1, len(geometry)-from, "instances")]
	for i, k := range all {
		p := c.profiles[k]
		g.Parts = append(g.Parts, &Part{ID: fmt.Sprint(1 + i), Profile: p.name, Memory: p.memory, Compute: p.compute, UsableMiB: p.usableMiB, From: -ever, To: ever})
	}
	last := len(c.profiles) - 1
	if n.Outage == [2]int{} && all[0] != last && d.one(3, "cut anew") { // into one: no other instance can be beside it
		at := d.grid(d.first(), d.last(), "cut at")
		for _, p := range g.Parts {
			p.To = at
		}
		p := c.profiles[last]
		g.Parts = append(g.Parts, &Part{ID: "0", Profile: p.name, Memory: p.memory, Compute: p.compute, UsableMiB: p.usableMiB, From: at, To: ever})
	}
}

var complete sync.Map // of model, [][]int

// geometries lists every complete set of instances of a model, as profiles' indexes in
// ascending order: no instance can be added to it.
func geometries(model string) [][]int {
	if known, ok := complete.Load(model); ok {
		return known.([][]int)
	}
	c := cards[model]
	var out [][]int
	seen := map[string]bool{}
	var place func(taken uint, compute int, chosen []int)
	place = func(taken uint, compute int, chosen []int) {
		full := true
		for k, p := range c.profiles {
			for _, start := range p.starts {
				mask := (uint(1)<<p.memory - 1) << start
				if taken&mask != 0 || compute+p.compute > c.compute || bits.Len(mask) > c.memory {
					continue
				}
				full = false
				if len(chosen) == 0 || k >= chosen[len(chosen)-1] {
					place(taken|mask, compute+p.compute, append(chosen[:len(chosen):len(chosen)], k))
				}
			}
		}
		if name := fmt.Sprint(chosen); full && !seen[name] {
			seen[name] = true
			out = append(out, chosen)
		}
	}
	place(0, 0, nil)
	complete.Store(model, out)
	return out
}

// Slices is a part's μ under a weight and a normaliser of the policy, as s of D, for
// the geometry it belongs to, and Σ s over that geometry.
func (g *GPU) Slices(p *Part, weight, normaliser string) (s, of, sum int) {
	if p.ID == "" {
		return 1, 1, 1
	}
	c := cards[g.Model]
	measure := func(memory, compute int) int {
		switch weight {
		case "compute":
			return compute
		case "dominant": // the larger of m/memory and c/compute
			return max(memory*c.compute, compute*c.memory)
		}
		return memory
	}
	have := make([]int, len(c.profiles))
	for _, q := range g.Parts {
		if q.From == p.From {
			sum += measure(q.Memory, q.Compute)
			for k := range c.profiles {
				if c.profiles[k].name == q.Profile {
					have[k]++
				}
			}
		}
	}
	s = measure(p.Memory, p.Compute)
	if normaliser == "physical" {
		all := map[string]int{"compute": c.compute, "dominant": c.memory * c.compute}[weight]
		if all == 0 {
			all = c.memory
		}
		return s, max(all, sum), sum
	}
	for _, geometry := range geometries(g.Model) {
		total := 0
		count := make([]int, len(c.profiles))
		for _, k := range geometry {
			count[k]++
			total += measure(c.profiles[k].memory, c.profiles[k].compute)
		}
		contains := true
		for k := range have {
			contains = contains && count[k] >= have[k]
		}
		if contains {
			of = max(of, total)
		}
	}
	return s, of, sum
}
