package money_test

import (
	"encoding/json"
	"errors"
	"maps"
	"math/big"
	"os"
	"slices"
	"sort"
	"testing"

	"pgregory.net/rapid"

	"gpuledger/billing/billingtest"
	"gpuledger/billing/money"
)

func weights() *rapid.Generator[[]money.Weight] {
	one := rapid.Custom(func(t *rapid.T) money.Weight {
		w := money.W(rapid.OneOf(rapid.Uint64(), rapid.Uint64Range(0, 9), rapid.Just(uint64(0))).Draw(t, "lo"))
		if rapid.IntRange(0, 3).Draw(t, "wide") == 0 {
			w.Hi = rapid.Uint64Range(0, 1<<56).Draw(t, "hi")
		}
		return w
	})
	return rapid.SliceOfN(one, 1, 30)
}

func nonZero(ws []money.Weight) []money.Weight {
	if !slices.ContainsFunc(ws, func(w money.Weight) bool { return !w.IsZero() }) {
		ws[0] = money.W(1)
	}
	return ws
}

func bigWeight(w money.Weight) *big.Int {
	n := new(big.Int).Lsh(new(big.Int).SetUint64(w.Hi), 64)
	return n.Add(n, new(big.Int).SetUint64(w.Lo))
}

// P20 of reference/allocation-method.md §4.2, of any vector, and of those that lines of a
// fleet get in allocate: the sum is exact, no part is off its quota by a unit or more, none is negative,
// equal weights differ by at most a unit, and a credit mirrors a charge.
func TestP20RoundingQuota(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ws := nonZero(weights().Draw(t, "weights"))
		total := rapid.OneOf(rapid.Int64Range(0, 1_000_000_000_000), rapid.Int64Range(0, 200)).Draw(t, "total")
		parts, err := money.Apportion(total, ws)
		if err != nil {
			t.Fatal(err)
		}
		sum := new(big.Int)
		for _, w := range ws {
			sum.Add(sum, bigWeight(w))
		}
		var got int64
		for i, p := range parts {
			got += p
			quota := new(big.Rat).SetFrac(new(big.Int).Mul(bigWeight(ws[i]), big.NewInt(total)), sum)
			off := new(big.Rat).Sub(new(big.Rat).SetInt64(p), quota)
			if p < 0 || off.Abs(off).Cmp(big.NewRat(1, 1)) >= 0 || ws[i].IsZero() && p != 0 {
				t.Fatalf("part %d is %d, its quota %s", i, p, quota.FloatString(6))
			}
			for j := range i {
				if ws[i] == ws[j] && (p > parts[j] || p < parts[j]-1) {
					t.Fatalf("equal weights %d and %d get %d and %d", j, i, parts[j], p)
				}
			}
		}
		if got != total {
			t.Fatalf("parts sum to %d, want %d", got, total)
		}
		mirror, err := money.Apportion(-total, ws)
		for i := range mirror {
			if err != nil || mirror[i] != -parts[i] {
				t.Fatalf("credit %v, charge %v, %v", mirror, parts, err)
			}
		}
	})
}

// The arithmetic of 64 and 128 bits is that of big integers, ties included.
func TestRatiosAreThoseOfBigIntegers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ws := nonZero(weights().Draw(t, "weights"))
		if rapid.Bool().Draw(t, "near the edge") {
			ws = []money.Weight{{Hi: 1<<62 - 1, Lo: ws[0].Lo}, {Hi: rapid.Uint64Range(0, 3).Draw(t, "hi"), Lo: ^uint64(0)}, ws[0]}
		}
		var wide []*big.Int
		for _, w := range ws {
			wide = append(wide, bigWeight(w))
		}
		got, err := money.Ratios(ws)
		want, err2 := money.RatiosOf(wide)
		if err != nil || err2 != nil || !slices.Equal(got, want) {
			t.Fatalf("%v, want %v, %v, %v", got, want, err, err2)
		}
	})
}

// Sorted by key, the result belongs to the key, whatever the order of arrival.
func TestPermutation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ws := nonZero(weights().Draw(t, "weights"))
		arrival := rapid.Permutation(indexes(len(ws))).Draw(t, "arrival")
		want, err := money.Ratios(ws)
		if err != nil {
			t.Fatal(err)
		}
		keys := slices.Clone(arrival)
		sort.Ints(keys)
		again := make([]money.Weight, 0, len(ws))
		for _, k := range keys {
			again = append(again, ws[k])
		}
		got, err := money.Ratios(again)
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v, %v", got, want, err)
		}
	})
}

// Scaling all weights by one factor changes nothing, through 64 and 128 bits.
func TestScaleInvariance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		small := rapid.SliceOfN(rapid.Uint64Range(0, 1<<30), 1, 20).Draw(t, "weights")
		factor := rapid.Uint64Range(1, 1<<62).Draw(t, "factor")
		var a, b []money.Weight
		for _, w := range small {
			m, ok := money.W(w).Mul(factor)
			if !ok {
				t.Fatal("does not fit")
			}
			a, b = append(a, money.W(w)), append(b, m)
		}
		x, errX := money.Ratios(a)
		y, errY := money.Ratios(b)
		if !slices.Equal(x, y) || !errors.Is(errX, errY) {
			t.Fatalf("%v and %v", x, y)
		}
	})
}

func indexes(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

func TestNoWeight(t *testing.T) {
	for _, ws := range [][]money.Weight{nil, {{}}, {{}, {}}} {
		if _, err := money.Ratios(ws); !errors.Is(err, money.ErrNoWeight) {
			t.Errorf("%v: %v, want ErrNoWeight", ws, err)
		}
	}
	if _, err := money.Ratios([]money.Weight{{Hi: 1 << 63}, {Hi: 1 << 63}}); !errors.Is(err, money.ErrRange) {
		t.Errorf("%v, want ErrRange", err)
	}
}

// The published cases of exact splits.
func TestGoldenSplits(t *testing.T) {
	p := billingtest.Shared(t, "cases/golden.json", "golden cases G20, G21, O15 and O16")
	raw, err := os.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		ID     string                     `json:"id"`
		Input  map[string]json.RawMessage `json:"input"`
		Expect map[string]json.RawMessage `json:"expect"`
	}
	if err := json.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, c := range cases {
		switch c.ID {
		case "G20-pennies":
			checkSplit(t, c.ID, c.Input["total_cents"], c.Input["weights"], c.Expect["lr"])
		case "G21-percent":
			checkSplit(t, c.ID, c.Input["total"], c.Input["weights"], c.Expect["lr"])
		case "O15-credit":
			checkSplit(t, c.ID, c.Input["total_cents"], values(t, c.Input["weights"]), values(t, mustJSON(t, c.Expect)))
		case "O16-alabama":
			var totals []json.RawMessage
			if err := json.Unmarshal(c.Input["totals"], &totals); err != nil {
				t.Fatal(err)
			}
			for i, name := range []string{"at3", "at4"} {
				checkSplit(t, c.ID+" "+name, totals[i], values(t, c.Input["weights"]), values(t, c.Expect[name]))
			}
		default:
			continue
		}
		seen++
	}
	if seen != 4 {
		t.Errorf("%d of 4 cases found", seen)
	}
}

// values turns an object into the list of its values in order of key.
func values(t *testing.T, raw json.RawMessage) json.RawMessage {
	t.Helper()
	var m map[string]json.RawMessage
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	var list []json.RawMessage
	for _, k := range slices.Sorted(maps.Keys(m)) {
		list = append(list, m[k])
	}
	return mustJSON(t, list)
}

func mustJSON(t *testing.T, v any) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// checkSplit reads weights as exact decimals in units of 1e-6.
func checkSplit(t *testing.T, id string, total, weights, want json.RawMessage) {
	t.Helper()
	var n int64
	var ws []json.Number
	var expect []int64
	for _, u := range []struct {
		raw json.RawMessage
		to  any
	}{{total, &n}, {weights, &ws}, {want, &expect}} {
		if err := json.Unmarshal(u.raw, u.to); err != nil {
			t.Fatalf("%s: %v", id, err)
		}
	}
	var units []money.Weight
	for _, w := range ws {
		a := money.MustParse(w.String()).Big()
		units = append(units, money.W(a.Quo(a, new(big.Int).Exp(big.NewInt(10), big.NewInt(18), nil)).Uint64()))
	}
	got, err := money.Apportion(n, units)
	if err != nil || !slices.Equal(got, expect) {
		t.Errorf("%s: got %v, want %v, %v", id, got, expect, err)
	}
}
