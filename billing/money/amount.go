// Package money holds exact amounts and the integer apportionment that makes a
// split add up to what was split. Nothing here is a float.
package money

import (
	"errors"
	"fmt"
	"math/big"
	"math/bits"
	"strings"
)

// Scale is the number of decimals an Amount carries.
const Scale = 24

// ErrPrecision is returned for a number with more than 24 decimals, ErrRange
// for one beyond ±1.7e14, and ErrSyntax for text that is no decimal number.
var (
	ErrPrecision = errors.New("more than 24 decimals")
	ErrRange     = errors.New("out of range (at most 1.7e14)")
	ErrSyntax    = errors.New("not a decimal number")
)

// Amount is an exact signed decimal: a 128-bit two's-complement count of 1e-24.
// The zero value is 0. Amounts are comparable with ==.
type Amount struct {
	hi int64
	lo uint64
}

// NullAmount is an Amount that may be absent. Absent is not zero: a provider
// that does not state a list price has no list price.
type NullAmount struct {
	Amount Amount
	Valid  bool
}

// Some returns a present NullAmount.
func Some(a Amount) NullAmount { return NullAmount{Amount: a, Valid: true} }

// FromInt returns n whole units.
func FromInt(n int64) Amount {
	a, err := FromBig(new(big.Int).Mul(big.NewInt(n), pow10(Scale)))
	if err != nil {
		panic(err) // an int64 of at most 1.7e14 fits; larger is a programming error
	}
	return a
}

// Parse reads a decimal number: optional sign, digits, optional fraction and
// exponent ("1.81E-8"). No spaces, no thousands separators. Digits beyond the
// 24th decimal are an error unless they are zeros.
func Parse(s string) (Amount, error) {
	neg, digits, exp, err := scan(s)
	if err != nil {
		return Amount{}, fmt.Errorf("%q: %w", s, err)
	}
	a, err := assemble(digits, exp)
	if err != nil {
		return Amount{}, fmt.Errorf("%q: %w", s, err)
	}
	if neg {
		a = a.Neg()
	}
	return a, nil
}

// MustParse is Parse for constants; it panics on an error.
func MustParse(s string) Amount {
	a, err := Parse(s)
	if err != nil {
		panic(err)
	}
	return a
}

// scan splits a number into its sign, its digits without the point and the
// power of ten of the last digit.
func scan(s string) (neg bool, digits string, exp int, err error) {
	rest := s
	if rest != "" && (rest[0] == '-' || rest[0] == '+') {
		neg = rest[0] == '-'
		rest = rest[1:]
	}
	mantissa := rest
	if i := strings.IndexAny(rest, "eE"); i >= 0 {
		mantissa = rest[:i]
		if exp, err = scanExponent(rest[i+1:]); err != nil {
			return false, "", 0, err
		}
	}
	whole, frac, _ := strings.Cut(mantissa, ".")
	digits = whole + frac
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return false, "", 0, ErrSyntax
	}
	return neg, digits, exp - len(frac), nil
}

func scanExponent(s string) (int, error) {
	neg := strings.HasPrefix(s, "-")
	if neg || strings.HasPrefix(s, "+") {
		s = s[1:]
	}
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, ErrSyntax
	}
	s = strings.TrimLeft(s, "0")
	if len(s) > 4 {
		return 0, ErrRange
	}
	n := 0
	for _, c := range []byte(s) {
		n = n*10 + int(c-'0')
	}
	if neg {
		n = -n
	}
	return n, nil
}

func assemble(digits string, exp int) (Amount, error) {
	digits = strings.TrimLeft(digits, "0")
	for strings.HasSuffix(digits, "0") {
		digits = digits[:len(digits)-1]
		exp++
	}
	if digits == "" {
		return Amount{}, nil
	}
	if exp < -Scale {
		return Amount{}, ErrPrecision
	}
	if len(digits)+exp+Scale > 39 {
		return Amount{}, ErrRange
	}
	var hi, lo uint64
	step := func(d uint64) bool {
		h1, l1 := bits.Mul64(lo, 10)
		h2, l2 := bits.Mul64(hi, 10)
		var c uint64
		lo, c = bits.Add64(l1, d, 0)
		hi, c = bits.Add64(l2, h1, c)
		return h2 == 0 && c == 0 && hi < 1<<63
	}
	for _, c := range []byte(digits) {
		if !step(uint64(c - '0')) {
			return Amount{}, ErrRange
		}
	}
	for range exp + Scale {
		if !step(0) {
			return Amount{}, ErrRange
		}
	}
	return Amount{hi: int64(hi), lo: lo}, nil
}

// String returns the exact value with neither exponent nor trailing zeros.
func (a Amount) String() string {
	return decimalText(a.Big(), Scale)
}

// Add returns a + b; it panics beyond ±1.7e14, which no bill reaches.
func (a Amount) Add(b Amount) Amount {
	lo, c := bits.Add64(a.lo, b.lo, 0)
	hi, _ := bits.Add64(uint64(a.hi), uint64(b.hi), c)
	r := Amount{hi: int64(hi), lo: lo}
	if (a.hi < 0) == (b.hi < 0) && (r.hi < 0) != (a.hi < 0) {
		panic("money: sum " + ErrRange.Error())
	}
	return r
}

// Neg returns -a.
func (a Amount) Neg() Amount {
	lo, b := bits.Sub64(0, a.lo, 0)
	hi, _ := bits.Sub64(0, uint64(a.hi), b)
	return Amount{hi: int64(hi), lo: lo}
}

// Sub returns a - b.
func (a Amount) Sub(b Amount) Amount { return a.Add(b.Neg()) }

// Sign returns -1, 0 or +1.
func (a Amount) Sign() int {
	switch {
	case a.hi < 0:
		return -1
	case a.hi == 0 && a.lo == 0:
		return 0
	}
	return 1
}

// Cmp returns -1, 0 or +1 as a is below, equal to or above b.
func (a Amount) Cmp(b Amount) int {
	switch {
	case a == b:
		return 0
	case a.hi < b.hi || a.hi == b.hi && a.lo < b.lo:
		return -1
	}
	return 1
}

// Big returns the count of 1e-24 as a new big integer.
func (a Amount) Big() *big.Int {
	n := new(big.Int).Lsh(big.NewInt(a.hi), 64)
	return n.Add(n, new(big.Int).SetUint64(a.lo))
}

// FromBig is the inverse of Big.
func FromBig(n *big.Int) (Amount, error) {
	if n.BitLen() > 127 {
		return Amount{}, ErrRange
	}
	mask := new(big.Int).SetUint64(^uint64(0))
	lo := new(big.Int).And(n, mask).Uint64()
	hi := new(big.Int).Rsh(n, 64).Int64()
	return Amount{hi: hi, lo: lo}, nil
}

// Mul returns the exact product of a and r as decimal text: a ratio has twelve
// decimals, so the product can have 36, more than an Amount holds.
func (a Amount) Mul(r Ratio) string {
	n := new(big.Int).Mul(a.Big(), big.NewInt(int64(r)))
	return decimalText(n, Scale+RatioScale)
}

func decimalText(n *big.Int, scale int) string {
	sign := ""
	if n.Sign() < 0 {
		sign = "-"
		n = new(big.Int).Neg(n)
	}
	s := n.String()
	if len(s) <= scale {
		s = strings.Repeat("0", scale-len(s)+1) + s
	}
	whole, frac := s[:len(s)-scale], strings.TrimRight(s[len(s)-scale:], "0")
	if frac == "" {
		return sign + whole
	}
	return sign + whole + "." + frac
}

func pow10(n int) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil) }
