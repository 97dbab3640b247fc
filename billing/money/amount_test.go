package money_test

import (
	"errors"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpuledger/billing/money"
)

func TestParse(t *testing.T) {
	for in, want := range map[string]string{
		"0": "0", "-0": "0", "+1.50": "1.5", ".5": "0.5", "5.": "5", "1.81E-8": "0.0000000181", "9.052e-7": "0.0000009052",
		"1e3": "1000", "1.2300e+01": "12.3", "0e9999": "0", "0.000000000000000000000001": "0.000000000000000000000001",
		"0.1000000000000000000000000000": "0.1", "12.126483324": "12.126483324", "-170141183460469": "-170141183460469",
		"00012": "12", "1E0": "1", "781.8499760000028": "781.8499760000028",
	} {
		a, err := money.Parse(in)
		if err != nil || a.String() != want {
			t.Errorf("Parse(%q) = %s, %v; want %s", in, a, err, want)
		}
	}
	for in, want := range map[string]error{
		"": money.ErrSyntax, "-": money.ErrSyntax, ".": money.ErrSyntax, "1,5": money.ErrSyntax, " 1": money.ErrSyntax, "1e": money.ErrSyntax, "1e-": money.ErrSyntax, "1e-+5": money.ErrSyntax, "NaN": money.ErrSyntax,
		"Infinity": money.ErrSyntax, "1.2.3": money.ErrSyntax, "0x10": money.ErrSyntax, "1_000": money.ErrSyntax, "--1": money.ErrSyntax, "1e2.5": money.ErrSyntax,
		"0.0000000000000000000000001": money.ErrPrecision, "1e-25": money.ErrPrecision, "1e15": money.ErrRange, "1e99999": money.ErrRange, "-170141183460470": money.ErrRange,
	} {
		if _, err := money.Parse(in); !errors.Is(err, want) {
			t.Errorf("Parse(%q): %v, want %v", in, err, want)
		}
	}
}

// units draws an amount as a count of 1e-24 that leaves room for a sum.
func units() *rapid.Generator[*big.Int] {
	return rapid.Custom(func(t *rapid.T) *big.Int {
		b := rapid.SliceOfN(rapid.Byte(), 0, 15).Draw(t, "bytes")
		n := new(big.Int).SetBytes(b)
		if rapid.Bool().Draw(t, "negative") {
			n.Neg(n)
		}
		return n
	})
}

func amount(t *rapid.T, n *big.Int) money.Amount {
	a, err := money.FromBig(n)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Amounts against math/big: the arithmetic, the order, and text both ways.
func TestAmountAgainstBig(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, y := units().Draw(t, "x"), units().Draw(t, "y")
		a, b := amount(t, x), amount(t, y)
		if got, want := a.Add(b).Big(), new(big.Int).Add(x, y); got.Cmp(want) != 0 {
			t.Fatalf("add: %s, want %s", got, want)
		}
		if got, want := a.Sub(b).Big(), new(big.Int).Sub(x, y); got.Cmp(want) != 0 {
			t.Fatalf("sub: %s, want %s", got, want)
		}
		if got, want := a.Neg().Big(), new(big.Int).Neg(x); got.Cmp(want) != 0 {
			t.Fatalf("neg: %s, want %s", got, want)
		}
		if a.Cmp(b) != x.Cmp(y) || a.Sign() != x.Sign() {
			t.Fatalf("order of %s and %s", a, b)
		}
		want := new(big.Rat).SetFrac(x, new(big.Int).Exp(big.NewInt(10), big.NewInt(money.Scale), nil))
		got, ok := new(big.Rat).SetString(a.String())
		if !ok || got.Cmp(want) != 0 {
			t.Fatalf("text %s, want %s", a, want)
		}
		if back, err := money.Parse(a.String()); err != nil || back != a {
			t.Fatalf("%s does not read back: %s, %v", a, back, err)
		}
	})
}

func TestMulIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := units().Draw(t, "x")
		r := rapid.Int64Range(0, int64(money.One)).Draw(t, "ratio")
		n := new(big.Int).Mul(x, big.NewInt(r))
		want := new(big.Rat).SetFrac(n, new(big.Int).Exp(big.NewInt(10), big.NewInt(money.Scale+money.RatioScale), nil))
		got, ok := new(big.Rat).SetString(amount(t, x).Mul(money.Ratio(r)))
		if !ok || got.Cmp(want) != 0 {
			t.Fatalf("got %s, want %s", got, want)
		}
	})
}

// The products of a line's cost with ratios that sum to One sum to the cost.
func TestSplitAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := amount(t, units().Draw(t, "cost"))
		ratios, err := money.Ratios(nonZero(weights().Draw(t, "weights")))
		if err != nil {
			t.Fatal(err)
		}
		sum := new(big.Rat)
		for _, r := range ratios {
			part, _ := new(big.Rat).SetString(a.Mul(r))
			sum.Add(sum, part)
		}
		want, _ := new(big.Rat).SetString(a.String())
		if sum.Cmp(want) != 0 {
			t.Fatalf("parts sum to %s, want %s", sum, want)
		}
	})
}

func TestOverflowIsNotSilent(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a sum beyond the range did not panic")
		}
	}()
	top := money.FromInt(170_000_000_000_000)
	top.Add(top)
}

// FuzzParse: whatever is accepted means what math/big reads, and reads back.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"0", "-1.81E-8", "1e3", ".5", "5.", "1e-24", "0.1234567890123456789012345", "+7", "1e", "NaN", "170141183460469.231731687303715884105727"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := money.Parse(s)
		if err != nil {
			if a != (money.Amount{}) {
				t.Fatalf("%q: an amount beside an error", s)
			}
			return
		}
		if back, err := money.Parse(a.String()); err != nil || back != a {
			t.Fatalf("%q: %s does not read back: %v", s, a, err)
		}
		if i := strings.IndexAny(s, "eE"); i >= 0 && len(s)-i > 6 {
			return // math/big would build the power
		}
		want, ok := new(big.Rat).SetString(strings.TrimSuffix(s, "."))
		if got, _ := new(big.Rat).SetString(a.String()); !ok || got.Cmp(want) != 0 {
			t.Fatalf("%q: got %s, want %v", s, a, want)
		}
	})
}
