package allocate

import (
	"errors"
	"math/bits"
	"slices"
	"sort"

	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/gpu"
	"gpuledger/policy"
)

// finish turns the weights of a component into ratios of its part of a line, applies
// the redistributions of node scope, and orders the shares. A line that is not
// divided ("") has the GPUs' vector.
func (s *split) finish(c billing.Component, part money.Ratio) ([]Share, error) {
	onGPU := c == "" || c == billing.GPU
	own := c
	if onGPU {
		own = ""
	}
	weights, times, n := s.weights[:0], s.times[:0], 0
	ordered := s.ordered()
	if s.divides() {
		ordered = slices.DeleteFunc(slices.Clone(ordered), func(t *target) bool { return t.Component != own })
	}
	for _, t := range ordered {
		weights = append(weights, t.weight)
		if s.priced {
			times = append(times, t.time)
		}
		n++
	}
	s.weights, s.times = weights, times
	if !s.priced {
		times = weights
	}
	ratios, err := s.divider.Apportion(int64(part), weights)
	if errors.Is(err, money.ErrNoWeight) {
		return s.unseen(c, part, onGPU)
	}
	if err != nil {
		return nil, err
	}
	room := s.lend(n, c)
	out := room.shares[:n:n]                         // who appends must not write into the room
	alike := onGPU && part == money.One && !s.priced // device time decides
	k, move, mixed := 0, false, false
	for _, t := range ordered {
		sh, ratio := &out[k], money.Ratio(ratios[k])
		if room.of[k] != t {
			sh.Target, sh.Component, room.of[k] = t.Target, c, t
		}
		sh.Ratio, sh.GPURatio = ratio, 0
		if alike {
			sh.GPURatio = ratio
		}
		sh.UsedByteSeconds, sh.HeldByteSeconds, sh.MeasuredMicros, sh.GapMicros = t.used, t.held, t.measured, t.gap
		sh.Method, sh.ByMethod = t.method, MethodRatios{}
		switch {
		case t.method == 0:
			sh.Method = gpu.NoMethod
		case t.from != nil:
			sh.Method = t.from.weakest()
		}
		sh.ByMethod[sh.Method] = ratio
		move = move || t.rule != nil && !s.settled(t.rule, c)
		mixed = mixed || t.byMethod != nil && t.from == nil
		k++
	}
	if onGPU && !alike {
		if ratios, err = s.divider.Apportion(int64(money.One), times); err != nil {
			return nil, err
		}
		for k := range out {
			out[k].GPURatio = money.Ratio(ratios[k])
		}
	}
	if mixed {
		k = 0
		for _, t := range ordered {
			if t.byMethod != nil && t.from == nil {
				out[k].Method, out[k].ByMethod = s.byMethod(out[k].Ratio, t.byMethod)
			}
			k++
		}
	}
	if move {
		if out, err = s.moveOnNode(out, slices.Clone(weights)); err != nil {
			return nil, err
		}
	}
	if !onGPU {
		// A pod that asked for nothing has no row; device time, which may cost nothing, has.
		out = slices.DeleteFunc(slices.Clone(out), func(sh Share) bool { return sh.Ratio == 0 })
	}
	return out, nil
}

// unseen is the share of a component's part of a line when nothing of it was seen.
func (s *split) unseen(c billing.Component, part money.Ratio, onGPU bool) ([]Share, error) {
	s.enter(s.w.Span.Start, s.w.Node.Pool, "", "")
	f, own := s.frame("", ""), c
	if onGPU {
		f, own = s.frame(s.w.Node.ExpectedModel, gpu.ModeUnknown), ""
	}
	t := s.remainder(string(gpu.NoTelemetry), f, own)
	out := Share{Target: t.Target, Ratio: part, Method: gpu.NoMethod, ByMethod: byOne(gpu.NoMethod, part)}
	if onGPU {
		out.GPURatio = money.One
	}
	out.Component = c
	return s.moveOnNode([]Share{out}, make([]money.Weight, 1))
}

// settled reports whether nothing is left to do about a remainder.
func (s *split) settled(rule *policy.Rule, c billing.Component) bool {
	return stays(rule, c) || s.byHour && ofNode(rule, c) && !rule.Climb
}

// stays reports whether a rule leaves a remainder where the walk put it.
func stays(rule *policy.Rule, c billing.Component) bool {
	if rule.Policy == policy.Fixed || rule.Policy == policy.Headroom {
		return false
	}
	device := c != billing.CPU && c != billing.Memory // these have no device
	return rule.Policy == policy.Keep || rule.Policy == policy.LastTenant || rule.ToTeam() || device && rule.Scope == policy.ScopeDevice && !rule.Climb
}

// byMethod divides a ratio by the rungs behind it, and returns the weakest of them.
func (s *split) byMethod(ratio money.Ratio, weights *methodWeights) (gpu.Method, MethodRatios) {
	weakest := weights.weakest()
	var out MethodRatios
	parts, err := s.divider.Apportion(int64(ratio), weights[:])
	if err != nil {
		return weakest, byOne(weakest, ratio)
	}
	for m, r := range parts {
		out[m] = money.Ratio(r)
	}
	return weakest, out
}

// weakest is the weakest of the rungs.
func (w *methodWeights) weakest() gpu.Method {
	for m := gpu.NoMethod; m > 0; m-- {
		if !w[m].IsZero() {
			return m
		}
	}
	return gpu.NoMethod
}

func (e *entry) weakest() gpu.Method {
	switch {
	case e.byMethod != nil:
		return e.byMethod.weakest()
	case e.method == 0:
		return gpu.NoMethod
	}
	return e.method
}

// moveOnNode re-targets remainders whose policy shares them out over everyone
// charged for the node, or over the teams of a table. Where nobody is, they stay.
func (s *split) moveOnNode(shares []Share, weights []money.Weight) ([]Share, error) {
	var receivers []int
	var whole money.Ratio
	for i := range shares {
		whole += shares[i].Ratio
		if shares[i].Category == PodCategory && !weights[i].IsZero() {
			receivers = append(receivers, i)
		}
	}
	kept, err := s.headrooms(shares, whole)
	if err != nil {
		return nil, err
	}
	var out []Share
	for i, sh := range shares {
		rule := s.ruleFor(sh.Category, sh.Pool)
		if sh.PodUID != "" || sh.Category == PodCategory || s.settled(&rule, sh.Component) {
			out = append(out, sh)
			continue
		}
		var moved []Share
		if rule.Policy == policy.Headroom && !s.byHour {
			var own Share
			own, sh = s.headroom(sh, kept[i])
			if own.Ratio > 0 || own.GPURatio > 0 {
				out = append(out, own)
			}
			if sh.Ratio == 0 && sh.GPURatio == 0 {
				continue
			}
		}
		switch {
		case rule.Policy == policy.Fixed:
			moved, err = s.payers().fixed(sh, rule, s.w.Span.Start)
			for i := range moved {
				s.note(&moved[i], sh.Ratio, money.W(uint64(moved[i].Ratio)), []money.Weight{money.W(uint64(sh.Ratio))})
			}
		case rule.Beyond() || s.byHour || len(receivers) == 0:
			moved, err = s.moveWide(sh, rule)
		default:
			moved, err = s.spread(sh, shares, receivers, weights, &rule)
		}
		if err != nil {
			return nil, err
		}
		if moved == nil {
			moved = []Share{sh}
		}
		out = append(out, moved...)
	}
	return mergeTargets(out), nil
}

func (s *split) payers() payers { return payers{s.p, s.owners} }

// headrooms is how much of each share the platform keeps free on purpose: the first so
// many percent of the node, from each remainder in proportion.
func (s *split) headrooms(shares []Share, whole money.Ratio) ([]money.Ratio, error) {
	out := make([]money.Ratio, len(shares))
	if s.byHour {
		return out, nil // done hour by hour
	}
	groups := map[string][]int{}
	for i := range shares {
		if sh := &shares[i]; sh.PodUID == "" && sh.Category != PodCategory {
			if rule := s.ruleFor(sh.Category, sh.Pool); rule.Policy == policy.Headroom {
				groups[rule.Headroom] = append(groups[rule.Headroom], i)
			}
		}
	}
	for size, of := range groups {
		room := money.Ratio(money.W(uint64(whole)).Scale((&policy.Rule{Headroom: size}).HeadroomUnits(), uint64(money.One)).Lo)
		weights := make([]money.Weight, len(of))
		var idle money.Ratio
		for k, i := range of {
			weights[k] = money.W(uint64(shares[i].Ratio))
			idle += shares[i].Ratio
		}
		if idle == 0 {
			continue
		}
		parts, err := money.Apportion(int64(min(room, idle)), weights)
		if err != nil {
			return nil, err
		}
		for k, i := range of {
			out[i] = money.Ratio(parts[k])
		}
	}
	return out, nil
}

// headroom cuts off a remainder what the platform keeps.
func (s *split) headroom(sh Share, keep money.Ratio) (own, rest Share) {
	own, rest = sh, sh
	own.Ratio = min(keep, sh.Ratio)
	own.GPURatio = 0
	if sh.Ratio > 0 {
		hi, lo := bits.Mul64(uint64(sh.GPURatio), uint64(own.Ratio))
		q, _ := bits.Div64(hi, lo, uint64(sh.Ratio))
		own.GPURatio = money.Ratio(q)
	}
	rest.Ratio, rest.GPURatio = sh.Ratio-own.Ratio, sh.GPURatio-own.GPURatio
	own.MovedBy = policy.Headroom
	own.give(s.p.TeamOf(policy.PlatformTeam, s.owners, s.w.Span.Start))
	s.note(&own, sh.Ratio, money.W(uint64(own.Ratio)), []money.Weight{money.W(uint64(sh.Ratio))})
	s.note(&rest, sh.Ratio, money.W(uint64(rest.Ratio)), []money.Weight{money.W(uint64(sh.Ratio))})
	own.ByMethod, rest.ByMethod = byOne(sh.Method, own.Ratio), byOne(sh.Method, rest.Ratio)
	return own, rest
}

// spread shares a remainder out over those charged for the node.
func (s *split) spread(sh Share, shares []Share, receivers []int, weights []money.Weight, rule *policy.Rule) ([]Share, error) {
	ws := make([]money.Weight, len(receivers))
	for k, r := range receivers {
		ws[k] = weights[r]
	}
	if rule.Policy == policy.EvenSplit {
		pods := make([]string, len(receivers))
		for k, r := range receivers {
			pods[k] = shares[r].PodUID
		}
		ws = evenly(pods, ws)
	}
	ratios, gpuRatios, err := sh.apportion(ws)
	if err != nil {
		return nil, err
	}
	out := make([]Share, len(receivers))
	for k, r := range receivers {
		to := shares[r].Target
		to.Category, to.MovedBy = sh.Category, rule.Policy
		out[k] = Share{
			Target: to, Ratio: money.Ratio(ratios[k]), GPURatio: money.Ratio(gpuRatios[k]), Method: shares[r].Method,
			ByMethod: byOne(shares[r].Method, money.Ratio(ratios[k])),
		}
		s.note(&out[k], sh.Ratio, ws[k], ws)
	}
	return out, nil
}

// note keeps the arithmetic of a move for who asks.
func (s *split) note(sh *Share, of money.Ratio, mine money.Weight, all []money.Weight) {
	if s.moves != nil && of > 0 {
		s.moves[sh.key()] = append(s.moves[sh.key()], Move{of.String(), mine, total(all)})
	}
}

func total(weights []money.Weight) money.Weight {
	sum := money.Weight{}
	for _, w := range weights {
		sum, _ = sum.Add(w)
	}
	return sum
}

// evenly gives every pod the same; a pod with several shares (two models, two owners
// in one window) divides its part by what it is charged in each.
func evenly(pods []string, direct []money.Weight) []money.Weight {
	const each = int64(1) << 40
	perPod := map[string][]int{}
	for k, uid := range pods {
		perPod[uid] = append(perPod[uid], k)
	}
	out := make([]money.Weight, len(pods))
	for _, ks := range perPod {
		ws := make([]money.Weight, len(ks))
		for i, k := range ks {
			ws[i] = direct[k]
		}
		parts, err := money.Apportion(each, ws)
		if err != nil {
			continue // receivers have weight above zero
		}
		for i, k := range ks {
			out[k] = money.W(uint64(parts[i]))
		}
	}
	return out
}

// mergeTargets adds up shares of one target and orders them by key.
func mergeTargets(in []Share) []Share {
	at := map[string]int{}
	var out []Share
	for _, sh := range in {
		i, ok := at[sh.key()]
		if !ok {
			at[sh.key()] = len(out)
			out = append(out, sh)
			continue
		}
		o := &out[i]
		o.Ratio += sh.Ratio
		o.GPURatio += sh.GPURatio
		o.UsedByteSeconds += sh.UsedByteSeconds
		o.HeldByteSeconds += sh.HeldByteSeconds
		o.MeasuredMicros += sh.MeasuredMicros
		o.GapMicros += sh.GapMicros
		o.Method = max(o.Method, sh.Method)
		for m, r := range sh.ByMethod {
			o.ByMethod[m] += r
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].key() < out[j].key() })
	return out
}
