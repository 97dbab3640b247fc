package allocate

import (
	"math"
	"math/big"
	"slices"
	"sort"

	"gpuledger/gpu"
	"gpuledger/internal/anyfleet"
)

// The rest of the exact split: who held an empty node last, and CPU and memory.

// empty is a stretch in which nobody held a GPU of the node.
type empty struct {
	from, to int
	tenants  sums // who left last, within a minute, by their device time
}

// empties are the stretches after the last pod left, as far as a rule looks back.
func (x *exactSplit) empties(lookback int) []empty {
	type stay struct {
		from, to int
		uid      string
		time     about
	}
	var stays []stay
	for hour := -x.f.Past; hour < x.to; hour++ {
		from, to := hour*anyfleet.Hour, (hour+1)*anyfleet.Hour
		time, holds := map[string]about{}, map[string]bool{}
		for g, card := range x.n.GPUs {
			for p, part := range card.Parts {
				s, of, _ := card.Slices(part, x.p.Weight, x.p.Normaliser)
				for _, r := range x.rows(g, p, from, to) {
					if r.Pod != "" {
						time[r.Pod] = r.share.times(big.NewRat(int64(s), int64(of))).plus(orZero(time[r.Pod]))
						holds[r.Pod] = holds[r.Pod] || r.Slots.Sign() > 0 || r.share.v.Sign() > 0
					}
				}
			}
		}
		for uid, t := range time {
			if pod := x.n.Pod(uid[len("uid-"):]); holds[uid] {
				stays = append(stays, stay{max(from, pod.From), min(to, pod.To), uid, t})
			}
		}
	}
	sort.Slice(stays, func(i, j int) bool { return stays[i].from < stays[j].from })
	var out []empty
	var last []stay
	end := math.MinInt
	over := func(until int) {
		e := empty{end, min(until, end+lookback), sums{}}
		for _, s := range last {
			e.tenants.add(who{pod: s.uid}, s.time)
		}
		if len(last) > 0 && e.from < e.to {
			out = append(out, e)
		}
	}
	for _, s := range stays {
		if len(last) > 0 && s.from > end {
			over(s.from)
			last = nil
		}
		end = max(end, s.to)
		last = slices.DeleteFunc(append(last, s), func(s stay) bool { return s.to < end-60 })
	}
	over(x.to * anyfleet.Hour)
	return out
}

// lastTenants gives what was unallocated of a partition while the node was empty to who
// held it last, and keeps the rest of it.
func (h *exactHour) lastTenants(g, p, lookback int, all about, mu *big.Rat) {
	from, to := h.span()
	for _, e := range h.empties(lookback) {
		a, b := max(e.from, from), min(e.to, to)
		if a >= b || e.tenants.total().v.Sign() == 0 {
			continue
		}
		for _, r := range h.rows(g, p, a, b) {
			if r.Category == string(gpu.Unallocated) && r.share.v.Sign() > 0 {
				moved := r.share
				if card := h.n.GPUs[g]; h.p.Driver == "own_line" && card.Parts[p].ID == "" {
					moved = moved.times(big.NewRat(card.TotalMiB-card.ReservedMiB, card.TotalMiB))
				}
				moved.off += 2 * oneMicro
				all = about{new(big.Rat).Sub(all.v, moved.v), all.off + moved.off}
				h.toTenants(e, moved, mu)
			}
		}
	}
	h.keep(string(gpu.Unallocated), all.times(mu))
}

func (h *exactHour) toTenants(e empty, a about, mu *big.Rat) {
	for k, mine := range e.tenants {
		h.give(k.pod, string(gpu.Unallocated), "last_tenant", a.part(mine, e.tenants.total()).plus(about{new(big.Rat), oneMicro}), mu)
	}
}

// requests is an hour of CPU or memory: what a pod requests of what the node has, or
// where all ask for more, of what they ask for, at each instant.
func (h *exactHour) requests() {
	from, to := h.span()
	from, to = max(from, h.n.Up), min(to, h.n.Down)
	one := big.NewRat(1, 1)
	capacity, ask := h.n.CPUMilli, func(p *anyfleet.Pod) int64 { return p.CPUMilli }
	if h.component == "memory" {
		capacity, ask = h.n.Memory, func(p *anyfleet.Pod) int64 { return p.Memory }
	}
	var gaps []empty
	if rule := h.p.For(string(gpu.Unallocated), h.n.Pool); rule.Policy == "last_tenant" {
		gaps = h.empties(rule.Lookback)
	}
	edges := []int{from, to}
	for _, p := range h.n.Pods {
		edges = append(edges, p.From, p.To)
	}
	for _, e := range gaps {
		edges = append(edges, e.from, e.to)
	}
	edges = slices.DeleteFunc(edges, func(t int) bool { return t < from || t > to })
	slices.Sort(edges)
	for i := 0; i+1 < len(edges); i++ {
		dt := big.NewRat(int64(edges[i+1]-edges[i]), 1)
		var alive []*anyfleet.Pod
		asked := int64(0)
		for _, p := range h.n.Pods {
			if p.From <= edges[i] && edges[i] < p.To {
				alive, asked = append(alive, p), asked+ask(p)
			}
		}
		of := max(asked, capacity)
		for _, p := range alive {
			h.give(p.UID(), PodCategory, "", exactly(new(big.Rat).Mul(dt, big.NewRat(ask(p), of))), one)
		}
		free := exactly(dt.Mul(dt, big.NewRat(of-asked, of)))
		to := slices.IndexFunc(gaps, func(e empty) bool {
			return e.from <= edges[i] && edges[i] < e.to && e.tenants.total().v.Sign() > 0
		})
		if to >= 0 {
			h.toTenants(gaps[to], free, one)
		} else {
			h.keep(string(gpu.Unallocated), free)
		}
	}
}

// phi is how much of a node's line each component is.
func (x *exactSplit) phi(list *big.Rat) map[string]*big.Rat {
	number := func(s string) *big.Rat { r, _ := new(big.Rat).SetString(s); return r }
	cpu, memory := big.NewRat(x.n.CPUMilli, 1000), big.NewRat(x.n.Memory, gib)
	weights := func(gpus, vcpu, perGiB string) map[string]*big.Rat {
		w := map[string]*big.Rat{
			"gpu": number(gpus), "cpu": number(vcpu), "memory": number(perGiB),
		}
		w["gpu"].Mul(w["gpu"], big.NewRat(int64(x.n.Devices()), 1))
		w["cpu"].Mul(w["cpu"], cpu)
		w["memory"].Mul(w["memory"], memory)
		return w
	}
	var w map[string]*big.Rat
	switch x.p.Split {
	case "ratio":
		w = weights("0.95", "0.031611", "0.004237")
	case "scad":
		w = weights("9", "0.9", "0.1")
	case "price_difference":
		w = weights("0", anyfleet.VCPU, anyfleet.GiB)
		w["gpu"].Sub(list, w["cpu"]).Sub(w["gpu"], w["memory"])
	default:
		return map[string]*big.Rat{"gpu": big.NewRat(1, 1)}
	}
	sum := new(big.Rat)
	for _, v := range w {
		sum.Add(sum, v)
	}
	for _, v := range w {
		v.Quo(v, sum)
	}
	return w
}
