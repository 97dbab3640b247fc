package allocate

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
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
	split  *split
	window uint64   // of the Splitter
	done   []doneOf // in room, as a rule
	room   [1]doneOf

	// Parts of a line that prices the whole node; of no use where Undivided.
	Parts Parts
	// Undivided says why such a line is the GPUs' as a whole, "" where it is divided.
	Undivided string
	Size      Size              // of the node, for Parts
	Base      policy.Nano       // price or weight of one of each, behind Parts
	Moves     map[string][]Move // of what left its hour, by the key of the target, where see was given
	Findings  []string          // what a reader of the month should know; the same words for the same defect
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
	return NewSplitter(p, owners).Compute(w, see)
}

// Compute is the function of that name. The vectors are those of this window until the
// next is computed.
func (x *Splitter) Compute(w Window, see func(Contribution)) (*Vectors, error) {
	x.begin()
	s := &x.current
	*s = split{Splitter: x, w: w, trace: see, waiting: s.waiting[:0]}
	if err := s.settleUnits(); err != nil {
		return nil, err
	}
	s.settleVacancies()
	s.byHour = s.sharesByHour()
	hourly := func(t *target) money.Weight { return t.hourly }
	var ready, uncovered uint64 // in units of scale
	for i := range s.w.Hours {
		h := &s.w.Hours[i]
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
		if s.billsAll() {
			s.restOfHour(h, overlap)
		}
		s.enter(h.Start, h.Pool, h.Node, nodeItself)
		s.endHour(hourly)
	}
	if !s.billsAll() {
		s.rest(ready, uncovered)
		s.endHour(func(t *target) money.Weight { return t.weight }) // what belongs to no hour
	}
	if s.wide {
		return nil, fmt.Errorf("the weights of the window's GPUs do not fit 128 bits: use smaller model_weights")
	}
	v := &Vectors{split: s, window: x.window}
	v.done = v.room[:0]
	if see != nil {
		v.Moves = map[string][]Move{}
		s.moves = v.Moves
	}
	if s.unknown > 0 {
		v.Findings = append(v.Findings, "the memory that the driver keeps is not known: collect DCGM_FI_DEV_FB_RESERVED; driver_reserved has no line for it there")
	}
	return v, v.settleParts()
}

// nodeItself stands for a device in a term that is of a node's whole hour.
const nodeItself = "the node"

// sharesByHour reports whether remainders of node scope are shared out hour by hour.
func (s *split) sharesByHour() bool {
	hours := 0
	for i := range s.w.Hours {
		if s.overlap(s.w.Hours[i].Start) > 0 {
			hours++
		}
	}
	return hours > 1 && (s.p.ComponentSplit == policy.SCAD || s.p.Idle.OnNode(s.divides()))
}

// divides reports whether the policy looks at CPU and memory at all.
func (x *Splitter) divides() bool { return x.p.ComponentSplit != policy.GPUAll }

// OwnComponent is the part of a node that a line prices by itself, "" where it
// prices the node or where the policy gives everything to the GPUs.
func OwnComponent(p *policy.Policy, c billing.Component) billing.Component {
	if p.ComponentSplit == policy.GPUAll || c == billing.Node {
		return ""
	}
	return c
}

// doneOf is a vector that lines have in common.
type doneOf struct {
	own     billing.Component
	divided bool
	shares  []Share
}

// Of returns the shares of a line, in the order of their keys. listed says whether
// the line states a list cost, which price_difference goes by.
func (v *Vectors) Of(component billing.Component, listed bool) ([]Share, error) {
	s := v.split
	if v.window != s.window {
		return nil, errors.New("allocate: the shares of a window are asked for after the next was split")
	}
	own := OwnComponent(s.p, component)
	divided := own == "" && v.Undivided == "" && (s.p.ComponentSplit != policy.PriceDifference || listed)
	for i := range v.done {
		if d := &v.done[i]; d.own == own && d.divided == divided {
			return d.shares, nil
		}
	}
	type part struct {
		component billing.Component
		ratio     money.Ratio
	}
	parts, n := [3]part{{own, money.One}}, 1
	if divided {
		parts, n = [3]part{{billing.CPU, v.Parts.CPU}, {billing.GPU, v.Parts.GPU}, {billing.Memory, v.Parts.Memory}}, 3
	}
	var out []Share
	for _, p := range parts[:n] {
		shares, err := s.finish(p.component, p.ratio)
		if err != nil {
			return nil, err
		}
		if out == nil {
			out = shares
		} else {
			out = append(out, shares...)
		}
	}
	v.done = append(v.done, doneOf{own, divided, out})
	return out, nil
}

// resource is one of the two components that pods request of a node.
type resource struct {
	component billing.Component
	capacity  int64 // 0 where unknown
	of        func(u *gpu.PodUse) int64
}

// fineBits divides a microsecond of CPU and memory shares, so that rounding them in
// each hour stays far below a unit of the ratio.
const fineBits = 20

// requests adds an hour of CPU and memory: each pod the larger of what it requested
// and used, for as long as it lived, of the node's capacity, normalised at each instant
// as GPU memory is.
func (s *split) requests(h *Hour, overlap uint64) {
	if h.ReadyMicros <= 0 {
		return
	}
	s.enter(h.Start, h.Pool, h.Node, "")
	pods := append([]gpu.PodUse(nil), h.Pods...)
	sort.Slice(pods, func(i, j int) bool { return pods[i].PodUID < pods[j].PodUID })
	cpu, memory := s.capacity(h)
	for _, r := range []resource{
		{billing.CPU, cpu, func(u *gpu.PodUse) int64 { return max(u.CPUMilli, u.CPUUsedMilli) }},
		{billing.Memory, memory, func(u *gpu.PodUse) int64 { return max(u.Memory, u.MemoryUsed) }},
	} {
		s.component(h, pods, r, overlap)
	}
}

// component adds one of the two.
func (s *split) component(h *Hour, pods []gpu.PodUse, r resource, overlap uint64) {
	f := s.frame("", "")
	free := s.remainder(string(gpu.Unallocated), f, r.component)
	var empty []vacancy
	if free.rule.Policy == policy.LastTenant {
		for _, v := range s.vacancies[h.Start] {
			if v.from, v.to = v.within(free.rule); v.from < v.to {
				empty = append(empty, v)
			}
		}
	}
	weights := pieces(h, pods, r, empty) // of the pods, of the empty stretches, of what is free else
	parts, err := money.Apportion(h.ReadyMicros<<fineBits, weights)
	if err != nil { // nothing is known of the time at all
		parts = append(make([]int64, len(weights)-1), h.ReadyMicros<<fineBits)
	}
	at, lasts := s.ownerTimes(h.Start)
	s.place = Contribution{Hour: h.Start, Capacity: r.capacity}
	give := func(uid, category, movedBy string, m gpu.Method, amount int64) {
		pieces, err := money.Apportion(amount, lasts)
		for k, piece := range pieces {
			if err == nil { // the pieces of an hour are never nothing
				s.addPart(s.pod(s.podOf(uid), at[k], s.change(at[k]), f, r.component, category, movedBy), m, uint64(piece), overlap)
			}
		}
	}
	for i := range pods {
		start, end := lifeOf(&pods[i])
		s.place.Requested, s.place.LifeMicros = r.of(&pods[i]), min(end-start, h.ReadyMicros)
		// A request is a reservation: nobody else can be scheduled on it.
		give(pods[i].PodUID, PodCategory, "", gpu.Limit, parts[i])
	}
	s.place.Requested, s.place.LifeMicros = 0, 0
	left := parts[len(parts)-1]
	for k := range empty {
		amount := parts[len(pods)+k]
		if !s.toTenants(empty[k].tenants, uint64(amount), func(t *tenancy, part uint64) {
			give(t.uid, string(gpu.Unallocated), policy.LastTenant, t.method, int64(part))
		}) {
			left += amount
		}
	}
	s.addPart(free, gpu.NoMethod, uint64(left), overlap)
}

// mostAsked is more CPU or memory than any node has, so that sums of it fit.
const mostAsked = 1 << 50

func askedBy(r resource, u *gpu.PodUse) uint64 { return uint64(min(max(0, r.of(u)), mostAsked)) }

// pieces integrates the shares of one component over the time the node was ready, in
// units of 2^-20 µs rounded down; what is lost goes with what is free.
func pieces(h *Hour, pods []gpu.PodUse, r resource, empty []vacancy) []money.Weight {
	zero := h.Start.UnixMicro()
	from, to := h.readyWithin()
	from, to = from-zero, to-zero
	edges := []int64{from, to}
	for i := range pods {
		start, end := lifeOf(&pods[i])
		edges = append(edges, start, end)
	}
	for _, v := range empty {
		edges = append(edges, v.from-zero, v.to-zero)
	}
	slices.Sort(edges)
	out := make([]money.Weight, len(pods)+len(empty)+1)
	add := func(i int, n uint64) { out[i], _ = out[i].Add(money.W(n)) }
	for i := 0; i+1 < len(edges); i++ {
		a, b := max(edges[i], from), min(edges[i+1], to)
		if a >= b {
			continue
		}
		fine, asked := uint64(b-a)<<fineBits, uint64(0)
		alive := func(u *gpu.PodUse) bool { start, end := lifeOf(u); return start <= a && b <= end }
		for k := range pods {
			if alive(&pods[k]) {
				asked += askedBy(r, &pods[k])
			}
		}
		left := fine
		if of := max(asked, uint64(max(0, r.capacity))); asked > 0 {
			for k := range pods {
				if alive(&pods[k]) {
					hi, lo := bits.Mul64(fine, askedBy(r, &pods[k]))
					n, _ := bits.Div64(hi, lo, of)
					add(k, n)
					left -= n
				}
			}
		}
		slot := len(out) - 1
		for k, v := range empty {
			if v.from-zero <= a && b <= v.to-zero {
				slot = len(pods) + k
			}
		}
		add(slot, left)
	}
	return out
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

// parts are the components that the policy divides off a node.
func (x *Splitter) parts() []billing.Component {
	if !x.divides() {
		return nil
	}
	return []billing.Component{billing.CPU, billing.Memory}
}

// addPart gives a target time of CPU or memory in an hour, in units of 2^-20 µs.
func (s *split) addPart(t *target, m gpu.Method, units, overlap uint64) {
	by := s.inHour(overlap, 1, 1)
	by.per = 1 << fineBits
	s.addUnits(t, m, units, by)
}
