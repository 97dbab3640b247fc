package allocate

import (
	"fmt"
	"math/big"
	"sort"
	"time"

	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/gpu"
	"gpuledger/policy"
)

// Parts is φ of DESIGN §4.1: how much of a line each component of its node is. They
// sum to One.
type Parts struct{ GPU, CPU, Memory money.Ratio }

// Size is what a node has of each component, as far as the price of it is concerned.
type Size struct {
	GPUs        int
	CPUMilli    int64
	MemoryBytes int64
}

// Vectors says how a window's lines are given away. Each component has a vector of
// its own; a line takes them by its parts.
type Vectors struct {
	split *split
	done  map[string][]Share

	// Parts of a line that prices the whole node; of no use where Undivided.
	Parts Parts
	// Undivided says why such a line is the GPUs' as a whole, "" where it is divided.
	Undivided string
	Size      Size        // of the node, for Parts
	Base      policy.Nano // price or weight of one of each, behind Parts
	Findings  []string    // what a reader of the month should know; the same words for the same defect
}

// MissingPrice is the error for a policy that has no price of CPU and memory at the
// time of a window. It is never taken to be 0.
type MissingPrice struct {
	Currency string
	At       time.Time
}

func (e *MissingPrice) Error() string {
	day := e.At.UTC().Format("2006-01-02")
	return fmt.Sprintf(`component_split price_difference has no price of CPU and memory in %s on %s; add to policy.yaml: component_prices: [{vcpu: "0.0347", gib: "0.0039", from: %s}]`, e.Currency, day, day)
}

// Compute walks a window. see is told every term of every weight, and may be nil.
func Compute(w Window, p *policy.Policy, owners *policy.Owners, see func(Contribution)) (*Vectors, error) {
	s := &split{w: w, p: p, owners: owners, entries: map[string]*entry{}, trace: see}
	if err := s.settleUnits(); err != nil {
		return nil, err
	}
	var ready, uncovered uint64 // in units of scale
	for _, h := range w.Hours {
		overlap := s.overlap(h.Start)
		if overlap == 0 {
			continue
		}
		r, u, err := s.hour(h, overlap)
		if err != nil {
			return nil, err
		}
		ready, uncovered = ready+r, uncovered+u
		if h.Seen && s.divides() {
			s.requests(h, overlap)
		}
	}
	s.remainder(ready, uncovered)
	v := &Vectors{split: s, done: map[string][]Share{}}
	return v, v.settleParts()
}

// divides reports whether the policy looks at CPU and memory at all.
func (s *split) divides() bool { return s.p.ComponentSplit != policy.GPUAll }

// OwnComponent is the part of a node that a line prices by itself, "" where it
// prices the node or where the policy gives everything to the GPUs.
func OwnComponent(p *policy.Policy, c billing.Component) billing.Component {
	if p.ComponentSplit == policy.GPUAll || c == billing.Node {
		return ""
	}
	return c
}

// Of returns the shares of a line, in the order of their keys. listed says whether
// the line states a list cost, which price_difference goes by.
func (v *Vectors) Of(component billing.Component, listed bool) ([]Share, error) {
	type part struct {
		component billing.Component
		ratio     money.Ratio
	}
	var parts []part
	own := OwnComponent(v.split.p, component)
	switch {
	case own != "":
		parts = []part{{own, money.One}}
	case v.Undivided != "", v.split.p.ComponentSplit == policy.PriceDifference && !listed:
		parts = []part{{"", money.One}}
	default:
		parts = []part{{billing.CPU, v.Parts.CPU}, {billing.GPU, v.Parts.GPU}, {billing.Memory, v.Parts.Memory}}
	}
	key := fmt.Sprint(own, len(parts))
	if done, ok := v.done[key]; ok {
		return done, nil
	}
	var out []Share
	for _, p := range parts {
		shares, err := v.split.finish(p.component, p.ratio)
		if err != nil {
			return nil, err
		}
		out = append(out, shares...)
	}
	v.done[key] = out
	return out, nil
}

// resource is one of the two components that pods request of a node.
type resource struct {
	component billing.Component
	capacity  func(h *Hour) int64
	of        func(u *gpu.PodUse) int64
}

var resources = []resource{
	{
		billing.CPU, func(h *Hour) int64 { return h.CPUMilli },
		func(u *gpu.PodUse) int64 { return max(u.CPUMilli, u.CPUUsedMilli) },
	},
	{
		billing.Memory, func(h *Hour) int64 { return h.MemoryBytes },
		func(u *gpu.PodUse) int64 { return max(u.Memory, u.MemoryUsed) },
	},
}

// fineBits divides a microsecond of CPU and memory shares, so that rounding them in
// each hour stays far below a unit of the ratio.
const fineBits = 20

// requests adds an hour of CPU and memory: each pod the larger of what it requested
// and used, for as long as it lived, of the node's capacity. Only the durations of
// lives are known, so the hour is normalised as a whole; the scheduler keeps the
// requests of any instant within capacity, so that makes no difference to them.
func (s *split) requests(h Hour, overlap uint64) {
	if h.ReadyMicros <= 0 {
		return
	}
	h.CPUMilli, h.MemoryBytes = s.capacity(&h)
	pods := append([]gpu.PodUse(nil), h.Pods...)
	sort.Slice(pods, func(i, j int) bool { return pods[i].PodUID < pods[j].PodUID })
	at, lasts := s.ownerTimes(h.Start)
	for _, r := range resources {
		capacity := r.capacity(&h)
		free, _ := money.W(uint64(max(0, capacity))).Mul(uint64(h.ReadyMicros))
		weights := make([]money.Weight, 0, len(pods)+1)
		for i := range pods {
			w, _ := money.W(uint64(max(0, r.of(&pods[i])))).Mul(uint64(min(max(0, pods[i].LifeMicros), h.ReadyMicros)))
			weights, free = append(weights, w), free.Sub(w)
		}
		parts, err := money.Apportion(h.ReadyMicros<<fineBits, append(weights, free))
		if err != nil { // no capacity is known and nobody asked
			parts = append(make([]int64, len(pods)), h.ReadyMicros<<fineBits)
		}
		s.place = Contribution{Hour: h.Start, Capacity: capacity}
		for i := range pods {
			s.place.Requested, s.place.LifeMicros = r.of(&pods[i]), min(pods[i].LifeMicros, h.ReadyMicros)
			pieces, err := money.Apportion(parts[i], lasts)
			if err != nil {
				continue // the pieces of an hour are never nothing
			}
			for k, piece := range pieces {
				t := s.podTarget(at[k], pods[i].PodUID, "", "", PodCategory, "")
				t.Component = r.component
				// A request is a reservation: nobody else can be scheduled on it.
				s.addPart(t, gpu.Limit, uint64(piece), overlap)
			}
		}
		s.place.Requested, s.place.LifeMicros = 0, 0
		s.addPart(s.partRemainder(string(gpu.Unallocated), r.component), gpu.NoMethod, uint64(parts[len(pods)]), overlap)
	}
}

// capacity is what a node has in an hour: as its own inventory says, else its
// instance type.
func (s *split) capacity(h *Hour) (cpuMilli, memoryBytes int64) {
	cpuMilli, memoryBytes = h.CPUMilli, h.MemoryBytes
	if cpuMilli <= 0 {
		cpuMilli = s.w.Node.CPUMilli
	}
	if memoryBytes <= 0 {
		memoryBytes = s.w.Node.MemoryBytes
	}
	return cpuMilli, memoryBytes
}

func (s *split) partRemainder(category string, c billing.Component) Target {
	t := s.remainderTarget(category, "", "")
	t.Component = c
	return t
}

// partsRemainder adds CPU and memory that were billed while the node was not ready
// (micros in units of scale), or while nothing is known.
func (s *split) partsRemainder(category string, micros uint64) {
	if !s.divides() {
		return
	}
	for _, r := range resources {
		s.addPart(s.partRemainder(category, r.component), gpu.NoMethod, micros, 1<<fineBits)
	}
}

// addPart gives a target time of CPU or memory, in units of 2^-20 µs.
func (s *split) addPart(t Target, m gpu.Method, units, times uint64) {
	if units == 0 {
		return
	}
	w, _ := money.W(units).Mul(times)
	e := s.entry(t)
	e.weight, _ = e.weight.Add(w)
	e.byMethod[m], _ = e.byMethod[m].Add(w)
	if s.trace != nil {
		c := s.place
		c.Target, c.Method, c.PriceWeight, c.Slices, c.Of = t, m, 1, 1, 1
		micros := new(big.Int).Mul(new(big.Int).SetUint64(units), new(big.Int).SetUint64(times))
		micros.Quo(micros, new(big.Int).SetUint64(s.scale<<fineBits))
		c.ShareMicros = micros.Uint64()
		s.trace(c)
	}
}
