package allocate

import (
	"fmt"
	"math/bits"
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
	units uint64 // of time: µs × 2^20
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
	room := map[[2]string]money.Weight{} // what is left of the headroom, by category and component
	for _, w := range s.waiting {
		var to []*target
		var pods []string
		var weights []money.Weight
		whole := money.Weight{}
		for _, t := range all {
			if t.Component == w.t.Component {
				to, pods, weights = append(to, t), append(pods, t.PodUID), append(weights, weigh(t))
				whole, _ = whole.Add(weigh(t))
			}
		}
		if w.t.rule.Policy == policy.Headroom {
			w = s.keepHeadroom(w, whole, room)
		}
		if w.t.rule.Policy == policy.EvenSplit {
			weights = evenly(pods, weights)
		}
		up := min(fineBits, 62-bits.Len64(w.units>>fineBits)) // as fine as fits
		parts, err := money.Apportion(int64(w.units>>(fineBits-up)), weights)
		if err != nil {
			s.addUnits(w.t, gpu.NoMethod, w.units, w.by) // nobody is there
			continue
		}
		all := total(weights)
		for i, t := range to {
			s.place.Move = &Move{fmt.Sprintf("%.6f s", float64(w.units>>fineBits)/1e6), weights[i], all}
			s.addUnits(s.moved(t, w.t.Category, w.t.rule.Policy), t.method, uint64(parts[i])<<(fineBits-up), w.by)
		}
		s.place.Move = nil
	}
}

// keepHeadroom gives the platform its part of a remainder, and returns the rest.
func (s *split) keepHeadroom(w waiting, pods money.Weight, room map[[2]string]money.Weight) waiting {
	k := [2]string{w.t.Category, string(w.t.Component)}
	left, ok := room[k]
	if !ok {
		whole := pods
		for _, o := range s.waiting {
			if o.t.Component == w.t.Component {
				whole, _ = whole.Add(o.by.weight(o.units))
			}
		}
		left = whole.Scale(w.t.rule.HeadroomUnits(), uint64(money.One))
	}
	mine := w.by.weight(w.units)
	keep := w.units
	if left.Cmp(mine) < 0 {
		keep = left.Part(w.units, mine)
	}
	room[k] = left.Sub(w.by.weight(keep))
	own := w.t.Target
	own.MovedBy = policy.Headroom
	own.give(s.p.TeamOf(policy.PlatformTeam, s.owners, s.w.Span.Start))
	s.addUnits(s.intern(own, nil), gpu.NoMethod, keep, w.by)
	w.units -= keep
	return w
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
