package anyfleet

import (
	"math/big"
	"slices"

	"gpuledger/gpu"
)

// The columns of Had: the definitions of what a holder takes up.
const (
	Used = iota
	RequestNone
	RequestReplica
	MaxNone
	MaxReplica
	Columns
)

// Had is what one pod, or one category, had of a part over some time, in seconds.
type Had struct {
	Pod      string // UID, "" of a category
	Category string
	Columns  [Columns]*big.Rat
	InUse    [Columns]*big.Rat // what of it was in use
	Slots    *big.Rat          // slots × time
	Held     *big.Rat          // the time
}

func seconds(n int) *big.Rat { return big.NewRat(int64(n), 1) }

// Present is when a part is there within some time.
func (n *Node) Present(g, p, from, to int) (int, int) {
	part := n.GPUs[g].Parts[p]
	from, to = max(from, n.Up, part.From), min(to, n.Down, part.To)
	return from, max(from, to)
}

// Exact works out who had how much of a part, by the definition: at each instant a
// share is a ÷ max(M, Σ a), and shares are integrated over the time (docs/method.md).
func (n *Node) Exact(g, p, from, to int) []*Had {
	from, to = n.Present(g, p, from, to)
	var out []*Had
	row := func(pod, category string) *Had {
		for _, h := range out {
			if h.Pod == pod && h.Category == category {
				return h
			}
		}
		h := &Had{Pod: pod, Category: category, Slots: new(big.Rat), Held: new(big.Rat)}
		for c := range h.Columns {
			h.Columns[c], h.InUse[c] = new(big.Rat), new(big.Rat)
		}
		out = append(out, h)
		return h
	}
	edges := n.edges(g, p, from, to)
	for i := 0; i+1 < len(edges); i++ {
		dt := seconds(edges[i+1] - edges[i])
		takers, _ := n.takers(g, p, edges[i])
		for _, t := range takers {
			h := row(t.pod, t.category)
			for c := range Columns {
				h.Columns[c].Add(h.Columns[c], new(big.Rat).Mul(dt, t.share[c]))
				if t.pod != "" {
					h.InUse[c].Add(h.InUse[c], new(big.Rat).Mul(dt, t.inUse[c]))
				}
			}
			if t.pod != "" {
				h.Held.Add(h.Held, dt)
				h.Slots.Add(h.Slots, new(big.Rat).Mul(dt, seconds(t.slots)))
			}
		}
	}
	return out
}

// Silent is where a part without any series has all its time.
func Silent(from, to int) *Had {
	h := &Had{Category: "no_telemetry", Slots: new(big.Rat), Held: new(big.Rat)}
	for c := range h.Columns {
		h.Columns[c] = seconds(to - from)
	}
	return h
}

// Crowded reports whether at any instant more is taken up of a part than there is.
func (n *Node) Crowded(g, p, from, to, column int) bool {
	from, to = n.Present(g, p, from, to)
	for _, t := range n.edges(g, p, from, to) {
		if _, crowded := n.takers(g, p, t); t < to && crowded[column] {
			return true
		}
	}
	return false
}

// edges are the instants at which something changes.
func (n *Node) edges(g, p, from, to int) []int {
	all := []int{from, to}
	a, b := n.Outage[0], n.Outage[1]
	all = append(all, a, (a+b)/2, a+Hold-Interval/2, b-Hold+Interval/2, b)
	for _, s := range n.GPUs[g].Parts[p].Stray {
		all = append(all, s.At)
	}
	for _, h := range n.holders(g, p) {
		all = append(all, h.pod.From, h.pod.To)
		for _, s := range h.Used {
			all = append(all, s.At)
		}
	}
	all = slices.DeleteFunc(all, func(t int) bool { return t < from || t > to })
	slices.Sort(all)
	return slices.Compact(all)
}

// Hold is how long a sample stands for at most, to either side: 2.5 intervals.
const Hold = Interval * 5 / 2

// sample finds the sample that stands for an instant, among those from … to: the
// nearest, at most Hold away; of two as near the later.
func (n *Node) sample(t, from, to int) (int, bool) {
	before := t - mod(t-Interval/2, Interval)
	after := before + Interval
	there := func(at int) bool { return at >= from && at < to && n.sampled(at) }
	for t-before < Hold && !there(before) {
		before -= Interval
	}
	for after-t <= Hold && !there(after) {
		after += Interval
	}
	old, next := t-before < Hold, after-t <= Hold
	if next && (!old || after-t <= t-before) {
		return after, true
	}
	return before, old
}

// taker is what somebody has of a part at an instant.
type taker struct {
	pod, category string
	slots         int
	share, inUse  [Columns]*big.Rat
}

// claim is a pod on a part at an instant.
type claim struct {
	holder
	used    *big.Rat // MiB
	known   bool     // by a figure of its own
	members int      // pods of the same DRA claim
}

// takers works out the shares of an instant, and where they are of more than there is.
func (n *Node) takers(g, p, t int) (who []taker, crowded [Columns]bool) {
	part := n.GPUs[g].Parts[p]
	usable := big.NewRat(part.UsableMiB, 1)
	var claims []*claim
	held := 0
	for _, h := range n.holders(g, p) {
		if t >= h.pod.From && t < h.pod.To {
			claims = append(claims, &claim{holder: h})
			held += h.Slots
		}
	}
	for _, c := range claims {
		for _, o := range claims {
			if o.Claim == c.Claim {
				c.members++
			}
		}
	}
	at, measured := n.sample(t, part.From, part.To)
	device := int64(0)
	if measured {
		device = n.deviceMiB(g, p, at)
	}
	claims = slices.DeleteFunc(claims, func(c *claim) bool { // it requested nothing, and nothing says that it uses the GPU now
		return c.Slots == 0 && n.exporterOf(c, part, t) == nil
	})
	stray := n.ladder(part, claims, t, device, measured)

	var demands [][Columns]*big.Rat
	whole := false
	for _, c := range claims {
		d, all := n.demand(c, part, len(claims) == 1)
		demands, whole = append(demands, d), whole || all
	}
	if whole { // the driver's own bytes are inside what the holder pays for
		stray = new(big.Rat)
	}
	who = make([]taker, len(claims), len(claims)+3)
	for i, c := range claims {
		who[i] = taker{pod: c.pod.UID(), slots: c.Slots}
	}
	add := func(category string, d [Columns]*big.Rat) {
		who, demands = append(who, taker{category: category}), append(demands, d)
	}
	none := new(big.Rat)
	if stray.Sign() > 0 {
		add("unattributed", [Columns]*big.Rat{stray, none, none, stray, stray})
	}
	idle, limited := claimIdle(claims)
	if n.Mode == gpu.ModeDRA && idle[RequestNone].Sign() > 0 {
		add("claim_idle", idle)
	}
	free := "unallocated"
	switch {
	case len(claims) == 0 && !measured:
		free = "no_telemetry"
	case n.Mode == gpu.ModeDRA && len(claims) > 0 && !limited:
		free = "claim_idle"
	case n.Replicas > 1 && held >= n.Replicas && n.Mode != gpu.ModeFraction && n.Mode != gpu.ModeDRA:
		free = "slot_held"
	}
	rest := taker{category: free}
	for c := range Columns {
		sum := new(big.Rat)
		for _, d := range demands {
			sum.Add(sum, d[c])
		}
		of := sum
		crowded[c] = sum.Cmp(usable) > 0
		if !crowded[c] {
			of = usable
		}
		left := new(big.Rat).Sub(of, sum)
		rest.share[c] = left.Quo(left, of)
		for i, d := range demands {
			who[i].share[c] = new(big.Rat).Quo(d[c], of)
			if i < len(claims) {
				who[i].inUse[c] = new(big.Rat).Quo(claims[i].used, of)
			}
		}
	}
	return append(who, rest), crowded
}

// exporterOf is what the exporter says of a pod's own bytes at an instant; nil where it
// says nothing.
func (n *Node) exporterOf(c *claim, part *Part, t int) *int64 {
	if n.Exporter != Process && n.Exporter != HAMi || c.Unseen {
		return nil
	}
	at, ok := n.sample(t, max(c.pod.From, part.From), min(c.pod.To, part.To))
	if !ok {
		return nil
	}
	v := valueAt(c.Used, at)
	return &v
}

// ladder gives every claim its used bytes, by the best rung there is, and returns the
// bytes that no pod answers for.
func (n *Node) ladder(part *Part, claims []*claim, t int, device int64, measured bool) *big.Rat {
	sum, missing, slots := int64(0), 0, 0
	for _, c := range claims {
		if v := n.exporterOf(c, part, t); v != nil {
			c.known = true
			c.used = big.NewRat(*v, 1)
			sum += *v
		}
		if !c.known {
			missing++
			slots += c.Slots
		}
	}
	off := device - sum
	small := max(off, -off)*100 <= 2*part.UsableMiB
	holds := func(c *claim) bool { return c.Slots > 0 }
	if measured && missing == 0 && slices.ContainsFunc(claims, holds) && sum == 0 && !small { // the mapping of processes failed
		for _, c := range claims {
			if holds(c) { // who requested nothing may well use nothing
				c.known = false
				missing++
				slots += c.Slots
			}
		}
	}
	left := big.NewRat(max(0, off), 1)
	usable := big.NewRat(part.UsableMiB, 1)
	for _, c := range claims {
		if !c.known {
			c.used = n.estimate(c, usable, left, measured, len(claims), missing, slots)
		}
	}
	switch {
	case !measured || missing > 0:
	case off > 0 && !small:
		return big.NewRat(off, 1)
	case sum > 0: // spread by use, or scaled down
		for _, c := range claims {
			c.used.Mul(c.used, big.NewRat(device, sum))
		}
	}
	return new(big.Rat)
}

func (n *Node) estimate(c *claim, usable, left *big.Rat, measured bool, claims, missing, slots int) *big.Rat {
	part := func(of *big.Rat, a, b int) *big.Rat { return new(big.Rat).Mul(of, big.NewRat(int64(a), int64(b))) }
	switch {
	case n.Mode == gpu.ModeMPS && c.Slots > 0:
		return part(usable, c.Slots, n.Replicas)
	case c.LimitMiB > 0:
		return big.NewRat(c.LimitMiB, 1)
	case c.CapacityMiB > 0:
		return big.NewRat(c.CapacityMiB, int64(c.members))
	case measured && slots > 0:
		return part(left, c.Slots, slots)
	case measured:
		return part(left, 1, missing)
	case c.Slots > 0 && (n.whole() || n.Mode == gpu.ModeDRA && claims == 1):
		return new(big.Rat)
	case c.Slots > 0 && n.Mode != gpu.ModeDRA:
		return part(usable, min(c.Slots, n.Replicas), n.Replicas)
	}
	return part(usable, 1, missing)
}

// whole reports whether one holder takes all of a part.
func (n *Node) whole() bool {
	return n.Mode == gpu.ModeExclusive || n.Mode == gpu.ModeMIG && n.Replicas <= 1
}

// demand is what a claim takes up under each definition.
func (n *Node) demand(c *claim, part *Part, alone bool) (d [Columns]*big.Rat, all bool) {
	usable := big.NewRat(part.UsableMiB, 1)
	reserved, replica := new(big.Rat), new(big.Rat)
	slots := new(big.Rat).Mul(usable, big.NewRat(int64(c.Slots), int64(max(1, n.Replicas))))
	switch {
	case c.Slots > 0 && c.CapacityMiB == 0 && (n.whole() || n.Mode == gpu.ModeDRA && alone):
		return [Columns]*big.Rat{usable, usable, usable, usable, usable}, true
	case c.Slots == 0:
	case c.LimitMiB > 0:
		reserved = big.NewRat(min(c.LimitMiB, part.UsableMiB), 1)
		replica = reserved
	case c.CapacityMiB > 0 && c.members == 1:
		reserved = big.NewRat(min(c.CapacityMiB, part.UsableMiB), 1)
		replica = reserved
	case n.Mode == gpu.ModeDRA:
	case n.Mode == gpu.ModeMPS:
		reserved, replica = slots, slots
	default:
		replica = slots
	}
	larger := func(a, b *big.Rat) *big.Rat {
		if a.Cmp(b) > 0 {
			return a
		}
		return b
	}
	return [Columns]*big.Rat{c.used, reserved, replica, larger(c.used, reserved), larger(c.used, replica)}, false
}

// claimIdle is what claims of several pods leave unused of their capacity, and whether
// every claim has one.
func claimIdle(claims []*claim) (idle [Columns]*big.Rat, limited bool) {
	for c := range idle {
		idle[c] = new(big.Rat)
	}
	limited = len(claims) > 0
	seen := map[string]bool{}
	for _, c := range claims {
		limited = limited && c.CapacityMiB > 0
		if c.members < 2 || c.CapacityMiB == 0 || seen[c.Claim] {
			continue
		}
		seen[c.Claim] = true
		capacity, left := big.NewRat(c.CapacityMiB, 1), big.NewRat(c.CapacityMiB, 1)
		for _, o := range claims {
			if o.Claim == c.Claim {
				left.Sub(left, o.used)
			}
		}
		if left.Sign() < 0 {
			left = new(big.Rat)
		}
		for c, v := range map[int]*big.Rat{RequestNone: capacity, RequestReplica: capacity, MaxNone: left, MaxReplica: left} {
			idle[c].Add(idle[c], v)
		}
	}
	return idle, limited
}
