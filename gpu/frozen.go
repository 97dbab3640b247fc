package gpu

import (
	"slices"
	"time"
)

// An exporter that lost its host engine goes on to repeat what it last knew. A GPU's power
// never stands still, not even an idle one's: where it does for this long and for so many
// samples, and so does all else that is said of the device, the samples are no measurement.
const (
	frozenAfter   = 30 * time.Minute
	frozenSamples = 20
)

// frozenSpells finds when the values of devices were frozen, by UUID. A device without
// series of its power is never called frozen: an idle GPU's memory does stand still. Nor is
// one whose power is in whole watts: it is rounded.
func frozenSpells(all []placedSeries) map[string][]interval {
	var suspects map[string]bool
	for i := range all {
		s := &all[i]
		if s.how.fam != famPower {
			continue
		}
		if standsStill(s.Samples) {
			if suspects == nil {
				suspects = map[string]bool{}
			}
			suspects[s.uuid] = true
		}
	}
	out := map[string][]interval{}
	for uuid := range suspects {
		if spells := stoodStill(all, uuid); len(spells) > 0 {
			out[uuid] = spells
		}
	}
	return out
}

// standsStill reports whether a power that is known to fractions of a watt has one value
// for long.
func standsStill(power []Sample) bool {
	still, fine, from := false, false, 0
	for k, x := range power {
		if x.Value != power[from].Value {
			from = k
		}
		fine = fine || x.Value != float64(int64(x.Value))
		still = still || x.Value > 0 && k-from+1 >= frozenSamples && x.UnixMilli-power[from].UnixMilli >= frozenAfter.Milliseconds()
	}
	return still && fine
}

// stoodStill is when nothing that is said of a device changed, from the sample after that
// of the last change.
func stoodStill(all []placedSeries, uuid string) []interval {
	var changes, power []int64
	for i := range all {
		s := &all[i]
		if s.uuid != uuid || s.how.fam == famPresent || s.how.fam == famLimit || s.how.fam == famGranted {
			continue
		}
		for k, x := range s.Samples {
			if s.how.fam == famPower {
				power = append(power, x.UnixMilli*1000)
			}
			if k > 0 && x.Value != s.Samples[k-1].Value {
				changes = append(changes, x.UnixMilli*1000)
			}
		}
	}
	changes, power = sortedUnique(changes), sortedUnique(power)
	edges := sortedUnique(slices.Concat([]int64{power[0]}, changes, []int64{power[len(power)-1] + 1}))
	var out []interval
	for i := 0; i+1 < len(edges); i++ {
		spell := interval{edges[i] + 1, edges[i+1]}
		from, _ := slices.BinarySearch(power, edges[i])
		to, _ := slices.BinarySearch(power, edges[i+1])
		if spell.length() >= frozenAfter.Microseconds() && to-from >= frozenSamples {
			out = append(out, spell)
		}
	}
	return out
}

// stale marks the part's instants at which its device was frozen.
func (p *part) stale(frozen []interval) []bool {
	if len(frozen) == 0 {
		return nil
	}
	out := make([]bool, len(p.times))
	for i, at := range p.times {
		out[i] = contains(frozen, at)
	}
	return out
}
