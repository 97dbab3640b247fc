package warehouse

import (
	"sort"
	"time"
)

// spell is a stretch of time in which something was seen in one state.
type spell struct {
	start, end time.Time // half-open
	state      string    // canonical JSON of what is kept beside the range; "{}" where nothing is
}

// spells are what is known of each thing, by its id: in order, never overlapping. They
// are a function of time, so that what hours say can be put in in any order and
// again, with the same outcome.
type spells map[int64][]spell

// cut forgets what is known of a thing within a stretch of time.
func (s spells) cut(id int64, start, end time.Time) {
	var out []spell
	for _, x := range s[id] {
		if !x.start.Before(end) || !start.Before(x.end) {
			out = append(out, x)
			continue
		}
		if x.start.Before(start) {
			out = append(out, spell{x.start, start, x.state})
		}
		if end.Before(x.end) {
			out = append(out, spell{end, x.end, x.state})
		}
	}
	s[id] = out
}

// put says how a thing was within a stretch of time, in place of what was known.
func (s spells) put(id int64, x spell) {
	if !x.start.Before(x.end) {
		return
	}
	s.cut(id, x.start, x.end)
	s[id] = append(s[id], x)
}

// covers reports whether anything is known of a thing at an instant.
func (s spells) covers(id int64, at time.Time) bool {
	for _, x := range s[id] {
		if !at.Before(x.start) && at.Before(x.end) {
			return true
		}
	}
	return false
}

// join puts spells in order and makes one of those that touch in the same state.
func join(in []spell) []spell {
	in = inOrder(in)
	out := in[:0]
	for _, x := range in {
		if n := len(out); n > 0 && out[n-1].end.Equal(x.start) && out[n-1].state == x.state {
			out[n-1].end = x.end
			continue
		}
		out = append(out, x)
	}
	return out
}

func inOrder(in []spell) []spell {
	in = append([]spell(nil), in...)
	sort.Slice(in, func(i, j int) bool { return in[i].start.Before(in[j].start) })
	return in
}

// clone copies spells, so that they can be compared with what became of them.
func (s spells) clone() spells {
	out := make(spells, len(s))
	for id, xs := range s {
		out[id] = append([]spell(nil), xs...)
	}
	return out
}

// idSpell is a spell with its thing.
type idSpell struct {
	id int64
	spell
}

// changes are the spells that have to go from old, and to come, to make it new.
func changes(old, now spells) (gone, come []idSpell) {
	ids := map[int64]bool{}
	for id := range old {
		ids[id] = true
	}
	for id := range now {
		ids[id] = true
	}
	sorted := make([]int64, 0, len(ids))
	for id := range ids {
		sorted = append(sorted, id)
	}
	sort.Slice(sorted, func(i, j int) bool { return sorted[i] < sorted[j] })
	for _, id := range sorted {
		a, b := inOrder(old[id]), join(now[id])
		for i, j := 0, 0; i < len(a) || j < len(b); {
			switch {
			case j == len(b) || i < len(a) && a[i].start.Before(b[j].start):
				gone = append(gone, idSpell{id, a[i]})
				i++
			case i == len(a) || b[j].start.Before(a[i].start):
				come = append(come, idSpell{id, b[j]})
				j++
			default:
				if !a[i].end.Equal(b[j].end) || a[i].state != b[j].state {
					gone, come = append(gone, idSpell{id, a[i]}), append(come, idSpell{id, b[j]})
				}
				i++
				j++
			}
		}
	}
	return gone, come
}
