package allocate

import (
	"fmt"
	"sort"

	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/gpu"
	"gpuledger/policy"
)

// A remainder of node scope belongs to those who are charged for the node in the same
// hour, so that a day's line is divided as its hours' lines would be. In a window of one
// hour that is everyone charged in the window, and finish sees to it.

// waiting is a remainder that its hour's end shares out.
type waiting struct {
	t     *target
	units uint64 // of time
	by    factors
}

// movedKey names the target that a remainder becomes with who receives it.
type movedKey struct {
	to                *target
	category, movedBy string
}

// ofNode reports whether a rule shares a remainder out over those charged for the node.
func ofNode(rule *policy.Rule, c billing.Component) bool {
	return rule != nil && !rule.Beyond() && (rule.Policy == policy.Headroom || !stays(rule, c) && rule.Policy != policy.Fixed)
}

// endHour shares out what waits, by what weigh says of the receivers, and begins the
// next hour.
func (s *split) endHour(weigh func(*target) money.Weight) {
	if !s.byHour {
		return
	}
	if len(s.waiting) > 0 {
		s.shareOut(weigh)
	}
	s.waiting = s.waiting[:0]
	for _, t := range s.touched {
		t.hourly = money.Weight{}
	}
}

func (s *split) shareOut(weigh func(*target) money.Weight) {
	var all []*target
	for _, t := range s.touched {
		if t.Category == PodCategory && !weigh(t).IsZero() {
			all = append(all, t)
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].key < all[j].key })
	s.keepHeadroom(weigh)
	for _, w := range s.waiting {
		var to []*target
		var pods []string
		var weights []money.Weight
		for _, t := range all {
			if t.Component == w.t.Component {
				to, pods, weights = append(to, t), append(pods, t.PodUID), append(weights, weigh(t))
			}
		}
		if w.t.rule.Policy == policy.EvenSplit {
			weights = evenly(pods, weights)
		}
		parts, err := s.divider.Apportion(int64(w.units), weights) // units of an hour, or of a line, are below 2^63
		if err != nil {
			s.put(w.t, gpu.NoMethod, w.units, w.by) // nobody is there
			continue
		}
		sum := total(weights)
		for i, t := range to {
			s.place.Move = &Move{fmt.Sprintf("%.6f s", float64(w.units/w.by.per)/1e6), weights[i], sum}
			moved := s.moved(t, w.t.Category, w.t.rule.Policy)
			s.put(moved, t.method, uint64(parts[i]), w.by)
			moved.from = t
		}
		s.place.Move = nil
	}
}

// headroomOf is what remainders have in common that one headroom is taken of.
type headroomOf struct {
	component billing.Component
	size      string
}

// keepHeadroom gives the platform its part of the remainders that wait: the first so
// many percent of all there is in the hour, from each in proportion.
func (s *split) keepHeadroom(weigh func(*target) money.Weight) {
	idle, whole := map[headroomOf]money.Weight{}, map[billing.Component]money.Weight{}
	for _, w := range s.waiting {
		weight, _ := w.by.weight(w.units)
		whole[w.t.Component], _ = whole[w.t.Component].Add(weight)
		if w.t.rule.Policy == policy.Headroom {
			k := headroomOf{w.t.Component, w.t.rule.Headroom}
			idle[k], _ = idle[k].Add(weight)
		}
	}
	if len(idle) == 0 {
		return
	}
	for _, t := range s.touched {
		whole[t.Component], _ = whole[t.Component].Add(weigh(t))
	}
	for i := range s.waiting {
		w := &s.waiting[i]
		if w.t.rule.Policy != policy.Headroom {
			continue
		}
		room := whole[w.t.Component].Scale(w.t.rule.HeadroomUnits(), uint64(money.One))
		keep := w.units
		if all := idle[headroomOf{w.t.Component, w.t.rule.Headroom}]; room.Cmp(all) < 0 {
			keep = room.Part(w.units, all)
		}
		own := w.t.Target
		own.MovedBy = policy.Headroom
		own.give(s.p.TeamOf(policy.PlatformTeam, s.owners, s.at))
		s.put(s.intern(own, nil), gpu.NoMethod, keep, w.by)
		w.units -= keep
	}
}

// moved returns the target of a remainder that a pod's target receives.
func (s *split) moved(to *target, category, movedBy string) *target {
	k := movedKey{to, category, movedBy}
	known := s.movedTo[k]
	if known != nil {
		return known
	}
	t := to.Target
	t.Category, t.MovedBy = category, movedBy
	known = s.intern(t, nil)
	s.movedTo[k] = known
	return known
}
