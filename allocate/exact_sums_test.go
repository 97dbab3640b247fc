package allocate

import (
	"math"
	"math/big"
	"sort"
)

// about is an exact number with how far from it the program may be, since it counts
// whole microseconds: a share that others are divided by passes its error on.
type about struct {
	v   *big.Rat
	off float64
}

func exactly(v *big.Rat) about { return about{v: v} }

func (a about) plus(b about) about {
	if a.v == nil {
		return b
	}
	return about{new(big.Rat).Add(a.v, b.v), a.off + b.off}
}

func (a about) times(r *big.Rat) about {
	f, _ := r.Float64()
	return about{new(big.Rat).Mul(a.v, r), a.off * math.Abs(f)}
}

// part is a × mine ÷ all.
func (a about) part(mine, all about) about {
	q := new(big.Rat).Quo(mine.v, all.v)
	amount, _ := a.v.Float64()
	share, _ := q.Float64()
	whole, _ := all.v.Float64()
	off := math.Inf(1)
	if whole > all.off {
		off = amount * (mine.off + share*all.off) / (whole - all.off)
	}
	return about{new(big.Rat).Mul(a.v, q), a.off*share + min(off, amount)}
}

// who pays, and for what.
type who struct{ component, pod, category, movedBy, team string }

type sums map[who]about

func (s sums) add(k who, a about) {
	if a.v.Sign() != 0 || a.off != 0 {
		s[k] = s[k].plus(a)
	}
}

func (s sums) total() about {
	t := exactly(new(big.Rat))
	for _, a := range s {
		t = t.plus(a)
	}
	return t
}

func orZero(a about) about {
	if a.v == nil {
		return exactly(new(big.Rat))
	}
	return a
}

// shareOut divides an amount between pods by what they are charged, or a part each.
func shareOut(policy string, a about, pods sums) sums {
	out, each := sums{}, sums{}
	for k, mine := range pods {
		each.add(who{pod: k.pod}, mine)
	}
	for k, mine := range pods {
		if policy == "even" {
			out.add(k, a.times(big.NewRat(1, int64(len(each)))).part(mine, each[who{pod: k.pod}]))
		} else {
			out.add(k, a.part(mine, pods.total()))
		}
	}
	return out
}

// sorted lists who pays in a fixed order, for messages.
func (s sums) sorted() []who {
	out := make([]who, 0, len(s))
	for k := range s {
		out = append(out, k)
	}
	sort.Slice(out, func(i, j int) bool {
		a, b := out[i], out[j]
		return a.component+"\x00"+a.category+"\x00"+a.pod+"\x00"+a.movedBy+"\x00"+a.team < b.component+"\x00"+b.category+"\x00"+b.pod+"\x00"+b.movedBy+"\x00"+b.team
	})
	return out
}
