package allocate

import (
	"math/big"
	"slices"

	"gpuledger/gpu"
	"gpuledger/internal/anyfleet"
)

// The exact split of a window, from the definition in docs/method.md and a fleet as it
// is, in fractions: pointwise shares, μ and w, the moves by the hour, ratios. Nothing of
// it is taken from the program.

// exactSplit is one node's window under a policy.
type exactSplit struct {
	f        *anyfleet.Fleet
	n        *anyfleet.Node
	p        *anyfleet.Policy
	billed   int // seconds; 0: the window
	from, to int // hours
	column   int
	coarse   float64
	out      sums
	rest     sums // what belongs to no pod yet, by category
	direct   sums // the pods' own, of the window
	all      map[string]about
}

const oneMicro = 1.01e-6 // seconds

func newExact(f *anyfleet.Fleet, n *anyfleet.Node, p *anyfleet.Policy, from, to, billed int) *exactSplit {
	x := &exactSplit{f: f, n: n, p: p, billed: billed, from: from, to: to, out: sums{}, rest: sums{}, direct: sums{}, all: map[string]about{}}
	x.column = x.basis()
	for _, component := range []string{"gpu", "cpu", "memory"} {
		for hour := from; hour < to; hour++ {
			h := &exactHour{x, component, hour, sums{}, sums{}, exactly(new(big.Rat))}
			if component == "gpu" {
				h.devices()
			} else {
				h.requests()
			}
			h.end()
		}
		x.beyond(component)
	}
	return x
}

// basis is the column that a policy goes by.
func (x *exactSplit) basis() int {
	switch {
	case x.p.Basis == "used":
		return anyfleet.Used
	case x.p.Basis == "request":
		return anyfleet.RequestReplica
	case x.p.Reservation == "replica":
		return anyfleet.MaxReplica
	}
	return anyfleet.MaxNone
}

// exactHour is one component of an hour.
type exactHour struct {
	*exactSplit
	component   string
	hour        int
	pods, spare sums  // the pods' own, and what is nobody's
	all         about // of the hour
}

func (h *exactHour) span() (int, int) { return h.hour * anyfleet.Hour, (h.hour + 1) * anyfleet.Hour }

// give is a pod's part of a partition that weighs mu, by whose the pod is in the hour:
// midnight may be within it.
func (h *exactHour) give(uid, category, movedBy string, a about, mu *big.Rat) {
	if a.v.Sign() == 0 {
		return
	}
	h.all = h.all.plus(exactly(a.times(mu).v))
	from, to := h.span()
	pod := h.n.Pod(uid[len("uid-"):])
	k := who{h.component, uid, category, movedBy, pod.Team(from)}
	parts := []struct {
		k who
		r *big.Rat
	}{{k, big.NewRat(1, 1)}}
	if old, now := pod.Team(from), pod.Team(to-1); old != now {
		parts[0].r = big.NewRat(anyfleet.Changes-int64(from), anyfleet.Hour)
		k.team = now
		parts = append(parts, parts[0])
		parts[1].k, parts[1].r = k, new(big.Rat).Sub(big.NewRat(1, 1), parts[0].r)
	}
	for _, p := range parts {
		mine := a.times(p.r)
		if len(parts) > 1 {
			mine.off += oneMicro
		}
		if category == PodCategory {
			h.pods.add(p.k, mine.times(mu))
		} else {
			h.out.add(p.k, mine.times(mu))
		}
	}
}

func (h *exactHour) keep(category string, a about) {
	h.all = h.all.plus(exactly(a.v))
	h.spare.add(who{component: h.component, category: category}, a)
}

// row is a row of a partition, weighed.
type exactRow struct {
	*anyfleet.Had
	share about
}

func (h *exactHour) devices() {
	from, to := h.span()
	for g, card := range h.n.GPUs {
		w := h.weight(card.Model)
		left := map[int]bool{} // by when a geometry begins
		for p, part := range card.Parts {
			a, b := h.n.Present(g, p, from, to)
			if a == b {
				continue
			}
			s, of, sum := card.Slices(part, h.p.Weight, h.p.Normaliser)
			h.partition(g, p, w.times(big.NewRat(int64(s), int64(of))).v)
			if !left[part.From] && sum < of {
				left[part.From] = true
				h.keep(MIGUnpartitioned, exactly(new(big.Rat).Mul(w.times(big.NewRat(int64(of-sum), int64(of))).v, big.NewRat(int64(b-a), 1))))
			}
		}
	}
	if ready := min(to, h.n.Down) - max(from, h.n.Up); ready > 0 && h.n.Unseen > 0 {
		h.keep(string(gpu.NoTelemetry), h.weight(h.n.GPUs[0].Model).times(big.NewRat(int64(ready*h.n.Unseen), 1)))
	}
}

// weight is w(model), 1 where the node has one model.
func (x *exactSplit) weight(model string) about {
	for _, g := range x.n.GPUs {
		if g.Model != x.n.GPUs[0].Model {
			w, _ := new(big.Rat).SetString(anyfleet.ModelWeights[slices.Index(anyfleet.Models(), model)])
			return exactly(w)
		}
	}
	return exactly(big.NewRat(1, 1))
}

// rows are those of a partition in some time, as the policy's basis has them.
func (x *exactSplit) rows(g, p, from, to int) []exactRow {
	var out []exactRow
	for _, had := range x.n.Exact(g, p, from, to) {
		r := exactRow{had, exactly(had.Columns[x.column])}
		if r.share.v.Sign() > 0 { // whole microseconds, and whole bytes
			r.share.off = oneMicro + 5*float64(to-from)/float64(x.n.GPUs[g].Parts[p].UsableMiB<<20)
		}
		out = append(out, r)
	}
	return out
}

func (h *exactHour) partition(g, p int, mu *big.Rat) {
	from, to := h.span()
	rows := h.rows(g, p, from, to)
	off := oneMicro + 5*float64(anyfleet.Hour)/float64(h.n.GPUs[g].Parts[p].UsableMiB<<20)
	if card := h.n.GPUs[g]; h.p.Driver == "own_line" && card.Parts[p].ID == "" {
		a, b := h.n.Present(g, p, from, to)
		driver := big.NewRat(card.ReservedMiB, card.TotalMiB)
		h.keep(DriverReserved, about{new(big.Rat).Mul(big.NewRat(int64(b-a), 1), driver), oneMicro}.times(mu))
		rest := new(big.Rat).Sub(big.NewRat(1, 1), driver)
		for i := range rows {
			if r := &rows[i]; r.share.v.Sign() > 0 {
				r.share = r.share.times(rest).plus(about{new(big.Rat), oneMicro})
			}
		}
	}
	for _, r := range rows {
		if r.Pod != "" {
			h.give(r.Pod, PodCategory, "", r.share, mu)
			continue
		}
		rule := h.p.For(r.Category, h.n.Pool)
		switch {
		case r.share.v.Sign() == 0:
		case rule.Policy == "last_tenant":
			h.lastTenants(g, p, rule.Lookback, r.share, mu)
		case rule.Scope == "device" && h.toHolders(rows, r, rule.Policy, off, mu):
		default:
			h.keep(r.Category, r.share.times(mu))
		}
	}
}

// toHolders shares a remainder of a partition out over those who hold it in the hour.
func (h *exactHour) toHolders(rows []exactRow, rem exactRow, policy string, off float64, mu *big.Rat) bool {
	used := func(r exactRow) about { return about{r.Columns[anyfleet.Used], off} }
	share := func(r exactRow) about { return about{r.Columns[h.column], off} }
	slots := func(r exactRow) about { return exactly(r.Slots) }
	held := func(r exactRow) about {
		if r.Slots.Sign() == 0 && r.share.v.Sign() == 0 {
			return exactly(new(big.Rat)) // it requested nothing and uses nothing
		}
		return exactly(r.Held)
	}
	var by []func(exactRow) about
	switch policy {
	case "proportional": // by bytes used, where the remainder is the device's own
		by = append(by, share)
		if rem.Category != string(gpu.Unallocated) {
			by = []func(exactRow) about{used, slots, held}
		}
	case "replica":
		by = append(by, slots, held)
	case "even":
		by = append(by, held)
	}
	for _, measure := range by {
		all := exactly(new(big.Rat))
		for _, r := range rows {
			if r.Pod != "" && measure(r).v.Sign() > 0 {
				all = all.plus(measure(r))
			}
		}
		if all.v.Sign() == 0 {
			continue
		}
		for _, r := range rows {
			if r.Pod != "" && measure(r).v.Sign() > 0 {
				moved := rem.share.part(measure(r), all).plus(about{new(big.Rat), oneMicro})
				h.give(r.Pod, rem.Category, policy, moved, mu)
			}
		}
		return true
	}
	return false
}

// end shares out what is left of the hour over those who are charged in it.
func (h *exactHour) end() {
	billed := 0
	if h.to-h.from == 1 { // the line is the hour
		billed = h.billed
	}
	if rest := h.notReady(h.component, h.hour, h.hour+1, billed); h.byHour() && rest.v.Sign() > 0 {
		h.keep(NotReady, rest)
	}
	h.exactSplit.all[h.component] = h.all.plus(orZero(h.exactSplit.all[h.component]))
	idle := map[int]about{} // what one headroom is taken of, by its size
	for k, a := range h.spare {
		if rule := h.p.For(k.category, h.n.Pool); rule.Policy == "headroom" {
			idle[rule.Headroom] = a.plus(orZero(idle[rule.Headroom]))
		}
	}
	for k, a := range h.spare {
		h.onNode(k, a, h.pods, h.all, idle)
	}
	for k, a := range h.pods {
		h.direct.add(k, a)
		h.out.add(k, a)
	}
}

// byHour reports whether it is known of every hour what of it was billed and not ready.
func (x *exactSplit) byHour() bool {
	return x.billed == 0 || x.to-x.from == 1 || x.billed >= (x.to-x.from)*anyfleet.Hour
}

// onNode shares a remainder out over pods by its rule, where that is of the node.
func (x *exactSplit) onNode(k who, a about, pods sums, whole about, idle map[int]about) {
	rule := x.p.For(k.category, x.n.Pool)
	all := pods.total()
	of := func(policy string) bool { return rule.Policy == policy }
	device := rule.Scope == "device" && k.component == "gpu" && !rule.Climb
	switch {
	case rule.Scope == "pool" || rule.Scope == "cluster" || device || !of("proportional") && !of("even") && !of("replica") && !of("scad") && !of("headroom"):
		x.rest.add(k, a)
		return
	case of("headroom"):
		room, all := whole.times(big.NewRat(int64(rule.Headroom), 100)), idle[rule.Headroom]
		own := a
		if room.v.Cmp(all.v) < 0 {
			own = room.part(a, all)
		}
		own.off += a.off + room.off
		k.movedBy, k.team = "headroom", "platform"
		x.out.add(k, own)
		k.movedBy, k.team = "", ""
		a = about{new(big.Rat).Sub(a.v, own.v), a.off + own.off}
	}
	if all.v.Sign() == 0 {
		x.rest.add(k, a)
		return
	}
	for to, mine := range shareOut(rule.Policy, a, pods) {
		to.category, to.movedBy = k.category, rule.Policy
		x.out.add(to, mine.plus(about{new(big.Rat), x.coarse}))
	}
}

// notReady is what is billed beyond the time the node was ready.
func (x *exactSplit) notReady(component string, from, to, billed int) about {
	rest := (to - from) * anyfleet.Hour
	if billed > 0 {
		rest = billed
	}
	rest -= max(0, min(to*anyfleet.Hour, x.n.Down)-max(from*anyfleet.Hour, x.n.Up))
	if rest <= 0 {
		return exactly(new(big.Rat))
	}
	if component != "gpu" {
		return exactly(big.NewRat(int64(rest), 1))
	}
	return x.devices().times(big.NewRat(int64(rest), 1))
}

// devices are those of the node, each by its weight; one that nobody sees is of the type
// that is expected.
func (x *exactSplit) devices() about {
	sum := x.weight(x.n.GPUs[0].Model).times(big.NewRat(int64(x.n.Unseen), 1))
	for _, g := range x.n.GPUs {
		sum = sum.plus(x.weight(g.Model))
	}
	return sum
}

// beyond does what is left to do with the window as a whole.
func (x *exactSplit) beyond(component string) {
	pods := sums{}
	for k, a := range x.direct {
		if k.component == component {
			pods[k] = a
		}
	}
	if rest := x.notReady(component, x.from, x.to, x.billed); !x.byHour() && rest.v.Sign() > 0 {
		x.coarse = oneMicro // what belongs to no hour is moved in whole microseconds
		idle := map[int]about{x.p.For(NotReady, x.n.Pool).Headroom: rest}
		x.onNode(who{component: component, category: NotReady}, rest, pods, rest.plus(orZero(x.all[component])), idle)
	}
}

// ratios divides by the whole, and gives what is left to pods of the pool and the
// cluster, to teams, or to who pays for it. around is what the cluster's pods are
// charged, by pool.
func (x *exactSplit) ratios(around map[string]sums) sums {
	totals := map[string]about{}
	for _, s := range []sums{x.out, x.rest} {
		for k, a := range s {
			totals[k.component] = exactly(a.v).plus(orZero(totals[k.component]))
		}
	}
	of := func(k who, a about) about { return a.times(new(big.Rat).Inv(totals[k.component].v)) }
	out := sums{}
	for k, a := range x.out {
		out.add(k, of(k, a))
	}
	for k, a := range x.rest {
		x.wide(out, k, of(k, a), around)
	}
	return out
}

func (x *exactSplit) wide(out sums, k who, a about, around map[string]sums) {
	rule := x.p.For(k.category, x.n.Pool)
	k.team = "platform"
	switch {
	case rule.Policy == "platform", rule.Policy == "owner" && x.n.Pool == "a":
		k.movedBy = rule.Policy
		if rule.Policy == "owner" {
			k.team = "pool-a"
		}
		out.add(k, a)
	case rule.Policy == "fixed":
		all := 0
		for _, s := range rule.Shares {
			all += s
		}
		for team, s := range rule.Shares {
			k.team, k.movedBy = team, "fixed"
			out.add(k, a.times(big.NewRat(int64(s), int64(all))))
		}
	case rule.Climb || rule.Scope == "pool" || rule.Scope == "cluster":
		pods := around[k.component+" "+x.n.Pool]
		if rule.Scope == "cluster" || len(pods) == 0 {
			pods = around[k.component]
		}
		if len(pods) == 0 {
			out.add(k, a)
		}
		for to, mine := range shareOut(rule.Policy, a, pods) {
			k.pod, k.team, k.movedBy = to.pod, to.team, rule.Policy
			out.add(k, mine)
		}
	default:
		out.add(k, a)
	}
}
