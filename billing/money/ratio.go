package money

import (
	"errors"
	"fmt"
	"math/big"
	"math/bits"
	"slices"
	"sort"
)

// RatioScale is the number of decimals of a Ratio.
const RatioScale = 12

// One is the whole of a bill line in Ratio units.
const One Ratio = 1_000_000_000_000

// Ratio is a share of one bill line, in units of 1e-12.
type Ratio int64

// String returns the ratio as a decimal number, exactly.
func (r Ratio) String() string { return decimalText(big.NewInt(int64(r)), RatioScale) }

// ErrNoWeight is returned when every weight is zero: there is nobody to share with.
var ErrNoWeight = errors.New("all weights are zero")

// Weight is a non-negative 128-bit integer weight.
type Weight struct{ Hi, Lo uint64 }

// W returns a weight of n.
func W(n uint64) Weight { return Weight{Lo: n} }

// Big returns the weight as an integer.
func (w Weight) Big() *big.Int {
	n := new(big.Int).Lsh(new(big.Int).SetUint64(w.Hi), 64)
	return n.Add(n, new(big.Int).SetUint64(w.Lo))
}

// IsZero reports whether w is 0.
func (w Weight) IsZero() bool { return w.Hi == 0 && w.Lo == 0 }

// Add returns w + v and whether it fits in 128 bits.
func (w Weight) Add(v Weight) (Weight, bool) {
	lo, c := bits.Add64(w.Lo, v.Lo, 0)
	hi, c := bits.Add64(w.Hi, v.Hi, c)
	return Weight{Hi: hi, Lo: lo}, c == 0
}

// Sub returns w − v, or 0 where v is larger.
func (w Weight) Sub(v Weight) Weight {
	if w.Cmp(v) < 0 {
		return Weight{}
	}
	lo, b := bits.Sub64(w.Lo, v.Lo, 0)
	hi, _ := bits.Sub64(w.Hi, v.Hi, b)
	return Weight{Hi: hi, Lo: lo}
}

// Mul returns w × n and whether it fits in 128 bits.
func (w Weight) Mul(n uint64) (Weight, bool) {
	h1, lo := bits.Mul64(w.Lo, n)
	h2, l2 := bits.Mul64(w.Hi, n)
	hi, c := bits.Add64(l2, h1, 0)
	return Weight{Hi: hi, Lo: lo}, h2 == 0 && c == 0
}

// Scale returns w × n ÷ d, rounded down, for n ≤ d.
func (w Weight) Scale(n, d uint64) Weight {
	hq, hr := w.Hi/d, w.Hi%d
	lq, lr := bits.Div64(hr, w.Lo, d) // w = d × (hq, lq) + lr
	q, _ := Weight{Hi: hq, Lo: lq}.Mul(n)
	hi, lo := bits.Mul64(lr, n)
	rest, _ := bits.Div64(hi, lo, d)
	q, _ = q.Add(W(rest))
	return q
}

// Part returns n × w ÷ whole, rounded down, for w ≤ whole.
func (w Weight) Part(n uint64, whole Weight) uint64 {
	q, _ := mulDiv(w, n, whole)
	return q
}

// Cmp compares two weights.
func (w Weight) Cmp(v Weight) int {
	switch {
	case w == v:
		return 0
	case w.Hi < v.Hi || w.Hi == v.Hi && w.Lo < v.Lo:
		return -1
	}
	return 1
}

// Ratios turns weights into ratios that sum to exactly One, by largest
// remainder. The weights are in ascending order of their keys: ties go to the
// larger remainder, then the larger weight, then the earlier key.
func Ratios(weights []Weight) ([]Ratio, error) {
	parts, err := Apportion(int64(One), weights)
	if err != nil {
		return nil, err
	}
	out := make([]Ratio, len(parts))
	for i, p := range parts {
		out[i] = Ratio(p)
	}
	return out, nil
}

// RatiosOf is Ratios for non-negative weights of any size. It keeps the algorithm's
// order: remainder, weight, key.
func RatiosOf(weights []*big.Int) ([]Ratio, error) {
	sum := new(big.Int)
	for _, w := range weights {
		sum.Add(sum, w)
	}
	if sum.Sign() <= 0 {
		return nil, ErrNoWeight
	}
	out := make([]Ratio, len(weights))
	remainders := make([]*big.Int, len(weights))
	order := make([]int, len(weights))
	left := One
	for i, w := range weights {
		q, r := new(big.Int).QuoRem(new(big.Int).Mul(w, big.NewInt(int64(One))), sum, new(big.Int))
		out[i], remainders[i], order[i] = Ratio(q.Int64()), r, i
		left -= out[i]
	}
	sort.SliceStable(order, func(i, j int) bool {
		a, b := order[i], order[j]
		if c := remainders[a].Cmp(remainders[b]); c != 0 {
			return c > 0
		}
		return weights[a].Cmp(weights[b]) > 0
	})
	for _, i := range order[:left] {
		out[i]++
	}
	return out, nil
}

// Apportion splits an integer total over the weights by largest remainder
// (Hamilton's method), so that the parts sum to the total and each part is the
// floor or the ceiling of its exact share. A negative total mirrors the positive
// one. Order and ties as in Ratios.
func Apportion(total int64, weights []Weight) ([]int64, error) {
	return new(Divider).Apportion(total, weights)
}

// Divider apportions again and again without allocating. It is not for concurrent use.
type Divider struct {
	parts      []int64
	remainders []Weight
	order      []int32
}

// Apportion is the function of that name; the parts are valid until the next call.
func (d *Divider) Apportion(total int64, weights []Weight) ([]int64, error) {
	sum := Weight{}
	for _, w := range weights {
		var ok bool
		if sum, ok = sum.Add(w); !ok {
			return nil, fmt.Errorf("apportion: sum of weights: %w", ErrRange)
		}
	}
	if sum.IsZero() {
		return nil, ErrNoWeight
	}
	if n := len(weights); cap(d.parts) < n {
		d.parts, d.remainders, d.order = make([]int64, n), make([]Weight, n), make([]int32, n)
	}
	d.parts, d.remainders = d.parts[:len(weights)], d.remainders[:len(weights)]
	units := uint64(max(total, -total)) // of the smallest integer too: it is its own negative
	left := units
	for i, w := range weights {
		q, r := mulDiv(w, units, sum)
		d.parts[i], d.remainders[i] = int64(q), r
		left -= q
	}
	d.handOut(weights, left)
	if total < 0 {
		for i := range d.parts {
			d.parts[i] = -d.parts[i]
		}
	}
	return d.parts, nil
}

// mulDiv returns the quotient and the remainder of w × n ÷ sum, for w ≤ sum: the
// quotient is at most n.
func mulDiv(w Weight, n uint64, sum Weight) (uint64, Weight) {
	if sum.Hi == 0 {
		hi, lo := bits.Mul64(n, w.Lo)
		q, r := bits.Div64(hi, lo, sum.Lo) // hi < sum because w ≤ sum
		return q, W(r)
	}
	if w == sum {
		return n, Weight{}
	}
	// w × n in three words, divided by two: Knuth's algorithm D with one digit.
	h, n0 := bits.Mul64(w.Lo, n)
	n2, n1 := bits.Mul64(w.Hi, n)
	n1, c := bits.Add64(n1, h, 0)
	n2 += c
	s := uint(bits.LeadingZeros64(sum.Hi))
	d1, d0 := sum.Hi<<s|sum.Lo>>1>>(63-s), sum.Lo<<s
	n2, n1, n0 = n2<<s|n1>>1>>(63-s), n1<<s|n0>>1>>(63-s), n0<<s
	q := ^uint64(0)
	if n2 < d1 {
		q, _ = bits.Div64(n2, n1, d1)
	}
	for {
		ph, p0 := bits.Mul64(q, d0)
		p2, p1 := bits.Mul64(q, d1)
		p1, c = bits.Add64(p1, ph, 0)
		p2 += c
		r0, b := bits.Sub64(n0, p0, 0)
		r1, b := bits.Sub64(n1, p1, b)
		if _, b = bits.Sub64(n2, p2, b); b == 0 {
			return q, Weight{Hi: r1 >> s, Lo: r0>>s | r1<<1<<(63-s)}
		}
		q-- // the estimate is at most two too large
	}
}

// handOut gives the left-over units, fewer than there are parts, one each.
func (d *Divider) handOut(weights []Weight, left uint64) {
	if left == 0 {
		return
	}
	order := d.order[:len(d.parts)]
	for i := range order {
		order[i] = int32(i)
	}
	first := func(a, b int32) int {
		if c := d.remainders[b].Cmp(d.remainders[a]); c != 0 {
			return c
		}
		if c := weights[b].Cmp(weights[a]); c != 0 {
			return c
		}
		return int(a - b)
	}
	if few := 8; len(order) <= few { // no need to sort all of them
		for k := range order[:left] {
			for i := k + 1; i < len(order); i++ {
				if first(order[i], order[k]) < 0 {
					order[i], order[k] = order[k], order[i]
				}
			}
		}
	} else {
		slices.SortFunc(order, first)
	}
	for _, i := range order[:left] {
		d.parts[i]++
	}
}
