package allocate

import (
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
	entries := s.ordered(c)
	if len(entries) == 0 {
		var out Share
		s.pool = s.w.Node.Pool
		if onGPU {
			model := s.w.Node.ExpectedModel
			t := s.remainderTarget(string(gpu.NoTelemetry), model, gpu.ModeUnknown)
			out = Whole(t.Category, model, t.Mode, t.Owner)
			out.Target = t
		} else {
			t := s.partRemainder(string(gpu.NoTelemetry), c)
			out = Whole(t.Category, "", "", t.Owner)
			out.GPURatio, out.Target = 0, t
		}
		out.Component = c
		out.Ratio, out.ByMethod = part, map[gpu.Method]money.Ratio{gpu.NoMethod: part}
		return s.moveOnNode([]Share{out}, make([]money.Weight, 1))
	}
	weights := make([]money.Weight, len(entries))
	times := make([]money.Weight, len(entries))
	for i, e := range entries {
		weights[i], times[i] = e.weight, e.time
	}
	ratios, err := money.Apportion(int64(part), weights)
	if err != nil {
		return nil, err
	}
	gpuRatios := make([]money.Ratio, len(entries))
	if onGPU {
		if gpuRatios, err = money.Ratios(times); err != nil {
			return nil, err
		}
	}
	out := make([]Share, len(entries))
	for i, e := range entries {
		out[i] = Share{
			Target: e.Target, Ratio: money.Ratio(ratios[i]), GPURatio: gpuRatios[i],
			UsedByteSeconds: e.used, HeldByteSeconds: e.held, MeasuredMicros: e.measured, GapMicros: e.gap,
			ByMethod: byMethod(money.Ratio(ratios[i]), e.byMethod),
		}
		out[i].Component = c
		for m := range e.byMethod {
			out[i].Method = max(out[i].Method, m)
		}
		if out[i].Method == 0 {
			out[i].Method = gpu.NoMethod
		}
	}
	out, err = s.moveOnNode(out, weights)
	if onGPU {
		return out, err
	}
	// A pod that asked for nothing has no row; device time, which may cost nothing, has.
	return slices.DeleteFunc(out, func(sh Share) bool { return sh.Ratio == 0 }), err
}

func byMethod(ratio money.Ratio, weights map[gpu.Method]money.Weight) map[gpu.Method]money.Ratio {
	methods := make([]gpu.Method, 0, len(weights))
	for m := range weights {
		methods = append(methods, m)
	}
	sort.Slice(methods, func(i, j int) bool { return methods[i] < methods[j] })
	ws := make([]money.Weight, len(methods))
	for i, m := range methods {
		ws[i] = weights[m]
	}
	out := map[gpu.Method]money.Ratio{}
	parts, err := money.Apportion(int64(ratio), ws)
	if err != nil {
		out[gpu.NoMethod] = ratio
		return out
	}
	for i, m := range methods {
		out[m] = money.Ratio(parts[i])
	}
	return out
}

// ordered returns a component's entries with any weight, or a pod's memo, by key.
func (s *split) ordered(c billing.Component) []*entry {
	if c == billing.GPU {
		c = ""
	}
	keys := make([]string, 0, len(s.entries))
	any := false
	for k, e := range s.entries {
		if e.Component != c {
			continue
		}
		keys = append(keys, k)
		any = any || !e.weight.IsZero()
	}
	if !any {
		return nil
	}
	sort.Strings(keys)
	out := make([]*entry, len(keys))
	for i, k := range keys {
		out[i] = s.entries[k]
	}
	return out
}

// moveOnNode re-targets remainders whose policy shares them out over everyone
// charged for the node, or over the teams of a table. Where nobody is, they stay.
func (s *split) moveOnNode(shares []Share, weights []money.Weight) ([]Share, error) {
	var receivers []int
	for i := range shares {
		if shares[i].Category == PodCategory && !weights[i].IsZero() {
			receivers = append(receivers, i)
		}
	}
	var out []Share
	for i := range shares {
		sh := shares[i]
		if sh.PodUID != "" || sh.Category == PodCategory {
			out = append(out, sh)
			continue
		}
		s.pool = sh.Pool
		rule := s.ruleFor(sh.Category)
		if rule.Policy == policy.Fixed {
			parts, err := s.payers().fixed(sh, rule, s.w.Span.Start)
			if err != nil {
				return nil, err
			}
			out = append(out, parts...)
			continue
		}
		here := rule.Scope == policy.ScopeNode || rule.Climb || sh.Component == billing.CPU || sh.Component == billing.Memory // these have no device
		if rule.Policy == policy.Keep || rule.ToTeam() {
			out = append(out, sh)
			continue
		}
		if rule.Beyond() || !here || len(receivers) == 0 {
			wide, err := s.moveWide(sh, rule)
			if err != nil {
				return nil, err
			}
			if wide == nil {
				wide = []Share{sh}
			}
			out = append(out, wide...)
			continue
		}
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
		ratios, err := money.Apportion(int64(sh.Ratio), ws)
		if err != nil {
			return nil, err
		}
		gpuRatios, err := money.Apportion(int64(sh.GPURatio), ws)
		if err != nil {
			return nil, err
		}
		for k, r := range receivers {
			to := shares[r].Target
			to.Category, to.MovedBy = sh.Category, rule.Policy
			out = append(out, Share{
				Target: to, Ratio: money.Ratio(ratios[k]), GPURatio: money.Ratio(gpuRatios[k]), Method: shares[r].Method,
				ByMethod: map[gpu.Method]money.Ratio{shares[r].Method: money.Ratio(ratios[k])},
			})
		}
	}
	return mergeTargets(out), nil
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
