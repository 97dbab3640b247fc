package money

import (
	"errors"
	"fmt"
	"math/big"
	"math/bits"
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

func (w Weight) big() *big.Int {
	n := new(big.Int).Lsh(new(big.Int).SetUint64(w.Hi), 64)
	return n.Add(n, new(big.Int).SetUint64(w.Lo))
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
	if total < 0 {
		parts, err := Apportion(-total, weights)
		for i := range parts {
			parts[i] = -parts[i]
		}
		return parts, err
	}
	if sum.Hi == 0 {
		return apportion64(uint64(total), weights, sum.Lo), nil
	}
	return apportionBig(total, weights, sum), nil
}

func apportion64(total uint64, weights []Weight, sum uint64) []int64 {
	parts := make([]int64, len(weights))
	remainders := make([]Weight, len(weights))
	left := total
	for i, w := range weights {
		hi, lo := bits.Mul64(total, w.Lo)
		q, r := bits.Div64(hi, lo, sum) // hi < sum because w ≤ sum and total < 2^64
		parts[i], remainders[i] = int64(q), W(r)
		left -= q
	}
	handOut(parts, remainders, weights, left)
	return parts
}

func apportionBig(total int64, weights []Weight, sum Weight) []int64 {
	parts := make([]int64, len(weights))
	remainders := make([]Weight, len(weights))
	s, t := sum.big(), big.NewInt(total)
	left := uint64(total)
	for i, w := range weights {
		q, r := new(big.Int).QuoRem(new(big.Int).Mul(w.big(), t), s, new(big.Int))
		parts[i] = q.Int64()
		remainders[i] = weightOf(r)
		left -= q.Uint64()
	}
	handOut(parts, remainders, weights, left)
	return parts
}

func weightOf(n *big.Int) Weight {
	mask := new(big.Int).SetUint64(^uint64(0))
	return Weight{Hi: new(big.Int).Rsh(n, 64).Uint64(), Lo: new(big.Int).And(n, mask).Uint64()}
}

// handOut gives the left-over units, fewer than there are parts, one each.
func handOut(parts []int64, remainders, weights []Weight, left uint64) {
	if left == 0 {
		return
	}
	order := make([]int, len(parts))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(i, j int) bool {
		a, b := order[i], order[j]
		if c := remainders[a].Cmp(remainders[b]); c != 0 {
			return c > 0
		}
		return weights[a].Cmp(weights[b]) > 0
	})
	for _, i := range order[:left] {
		parts[i]++
	}
}
