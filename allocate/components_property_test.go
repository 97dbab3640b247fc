package allocate

import (
	"fmt"
	"math/big"
	"sort"
	"testing"

	"pgregory.net/rapid"

	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/gpu"
)

// genNode draws a window of genWindow's kind with CPU, memory and pods that ask for
// them, some of which have no GPU and some of which ask for nothing.
func genNode(t *rapid.T) Window {
	w := genWindow(t)
	w.Node.CPUMilli, w.Node.MemoryBytes = rapid.Int64Range(1, 200_000).Draw(t, "vcpu"), rapid.Int64Range(1, 2048*gib).Draw(t, "memory")
	w.ListCost, w.Currency = money.FromInt(rapid.Int64Range(1, 100).Draw(t, "list")), "USD"
	w.ListMicros = rapid.Int64Range(1, w.Span.Micros()).Draw(t, "list time")
	for i := range w.Hours {
		h := &w.Hours[i]
		if rapid.Bool().Draw(t, "capacity") {
			h.CPUMilli, h.MemoryBytes = rapid.Int64Range(1, 200_000).Draw(t, "cpu"), rapid.Int64Range(1, 2048*gib).Draw(t, "bytes")
		}
		if h.ReadyMicros > 0 && rapid.Bool().Draw(t, "late") {
			h.ReadyStartMicros = rapid.Int64Range(0, full-h.ReadyMicros).Draw(t, "from")
			h.ReadyEndMicros = h.ReadyStartMicros + h.ReadyMicros
		}
		for p := range rapid.IntRange(0, 6).Draw(t, "users") {
			h.Pods = append(h.Pods, gpu.PodUse{
				PodUID: fmt.Sprintf("p%d", p), StartMicros: rapid.Int64Range(0, full).Draw(t, "start"), LifeMicros: rapid.Int64Range(0, full).Draw(t, "life"),
				CPUMilli: rapid.Int64Range(0, 100_000).Draw(t, "asks cpu"), Memory: rapid.Int64Range(0, 1024*gib).Draw(t, "asks memory"),
				CPUUsedMilli: rapid.Int64Range(0, 100_000).Draw(t, "uses cpu"), MemoryUsed: rapid.Int64Range(0, 1024*gib).Draw(t, "uses memory"),
			})
		}
		h.Pods = append(h.Pods, gpu.PodUse{PodUID: "nothing", LifeMicros: full})
	}
	return w
}

var genSplit = rapid.SampledFrom([]string{
	"component_split: ratio", "component_split: scad", tenPrices, "component_split: billed_sku",
	"{component_split: ratio, idle: {default: proportional}}", "{component_split: ratio, idle: {default: even, slot_held: even}}",
	`{component_split: price_difference, component_prices: {vcpu: "0", gib: "0"}}`,
})

var genAny = rapid.OneOf(genPolicy, genSplit)

// Σ exact, nothing negative, component sums are the parts to the unit, and who asked
// for nothing pays nothing.
func TestPropertyComponents(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w, p := genNode(rt), testPolicy(t, genSplit.Draw(rt, "policy"))
		v, err := Compute(w, p, &nobody, nil)
		if err != nil {
			rt.Fatal(err)
		}
		component := rapid.SampledFrom([]billing.Component{billing.Node, billing.GPU, billing.CPU, billing.Memory}).Draw(rt, "line")
		shares, err := v.Of(component, true)
		if err != nil {
			rt.Fatal(err)
		}
		sums := map[billing.Component]money.Ratio{}
		var all, time money.Ratio
		keys := map[string]bool{}
		for _, s := range shares {
			var by money.Ratio
			for _, r := range s.ByMethod {
				by += r
			}
			if s.Ratio < 0 || s.GPURatio < 0 || by != s.Ratio || s.PodUID == "nothing" || keys[s.Key()] {
				rt.Fatalf("%+v", s)
			}
			if (s.Component == billing.CPU || s.Component == billing.Memory) && (s.GPURatio != 0 || s.UsedByteSeconds != 0 || s.Model != "" || s.Ratio == 0) {
				rt.Fatalf("%+v", s)
			}
			keys[s.Key()] = true
			sums[s.Component] += s.Ratio
			all, time = all+s.Ratio, time+s.GPURatio
		}
		want := map[billing.Component]money.Ratio{component: money.One}
		if component == billing.Node && v.Undivided == "" {
			want = map[billing.Component]money.Ratio{billing.GPU: v.Parts.GPU, billing.CPU: v.Parts.CPU, billing.Memory: v.Parts.Memory}
		} else if component == billing.Node {
			want = map[billing.Component]money.Ratio{"": money.One}
		}
		for c, r := range want {
			if sums[c] != r {
				rt.Fatalf("%s sums to %s, not %s", c, sums[c], r)
			}
		}
		if timed := component == billing.GPU || component == billing.Node; all != money.One || timed && time != money.One || !timed && time != 0 {
			rt.Fatalf("Σ ratio %s, Σ device time %s", all, time)
		}
	})
}

// oracle recomputes the direct CPU and memory shares of a window in exact rationals,
// from the formula and not from the code: Σ hours of a·life ÷ max(capacity·ready, Σ)
// × ready over the billed time, times the part of the price.
func oracle(w Window, price map[billing.Component]*big.Rat) map[string]*big.Rat {
	rat := func(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }
	out := map[string]*big.Rat{}
	billed := min(w.BilledMicros, w.Span.Micros())
	var ready, unknown int64
	for _, h := range w.Hours {
		ready, unknown = ready+h.ReadyMicros, unknown+h.UncoveredMicros
	}
	whole := max(billed, ready)
	for _, c := range []billing.Component{billing.CPU, billing.Memory} {
		give := func(who string, micros *big.Rat) {
			k := string(c) + " " + who
			if out[k] == nil {
				out[k] = new(big.Rat)
			}
			out[k].Add(out[k], new(big.Rat).Mul(price[c], new(big.Rat).Quo(micros, rat(whole))))
		}
		for _, h := range w.Hours {
			if h.ReadyMicros == 0 {
				continue
			}
			capacity := h.CPUMilli
			ask := func(u gpu.PodUse) int64 { return max(u.CPUMilli, u.CPUUsedMilli) }
			node := w.Node.CPUMilli
			if c == billing.Memory {
				capacity, node = h.MemoryBytes, w.Node.MemoryBytes
				ask = func(u gpu.PodUse) int64 { return max(u.Memory, u.MemoryUsed) }
			}
			if capacity == 0 {
				capacity = node
			}
			start, end := h.ReadyStartMicros, h.ReadyEndMicros
			if end == 0 {
				end = h.ReadyMicros
			}
			life := func(u gpu.PodUse) (int64, int64) {
				return min(max(u.StartMicros, start), end), min(max(u.StartMicros+u.LifeMicros, start), end)
			}
			edges := []int64{start, end}
			for _, u := range h.Pods {
				a, b := life(u)
				edges = append(edges, a, b)
			}
			sort.Slice(edges, func(i, j int) bool { return edges[i] < edges[j] })
			for i := 0; i+1 < len(edges); i++ {
				asked := int64(0)
				var alive []gpu.PodUse
				for _, u := range h.Pods {
					if a, b := life(u); a <= edges[i] && edges[i+1] <= b {
						asked += ask(u)
						alive = append(alive, u)
					}
				}
				of := max(asked, capacity)
				for _, u := range alive {
					give(u.PodUID, new(big.Rat).Mul(rat(edges[i+1]-edges[i]), big.NewRat(ask(u), of)))
				}
				give("unallocated", new(big.Rat).Mul(rat(edges[i+1]-edges[i]), big.NewRat(of-asked, of)))
			}
		}
		if rest := billed - ready; rest > 0 {
			give("no_telemetry", rat(min(rest, unknown)))
			give("not_ready", rat(rest-min(rest, unknown)))
		}
	}
	return out
}

// exactParts is φ in rationals.
func exactParts(w Window, vcpu, gibPrice *big.Rat) map[billing.Component]*big.Rat {
	cpu, memory := w.Node.CPUMilli, w.Node.MemoryBytes
	var most [2]int64
	for _, h := range w.Hours {
		most[0], most[1] = max(most[0], h.CPUMilli), max(most[1], h.MemoryBytes)
	}
	if most[0] > 0 {
		cpu = most[0]
	}
	if most[1] > 0 {
		memory = most[1]
	}
	list := new(big.Rat).SetFrac(w.ListCost.Big(), money.FromInt(1).Big())
	list.Mul(list, new(big.Rat).SetFrac64(3_600_000_000, w.ListMicros))
	c := new(big.Rat).Mul(vcpu, big.NewRat(cpu, 1000))
	m := new(big.Rat).Mul(gibPrice, big.NewRat(memory, gib))
	if both := new(big.Rat).Add(c, m); both.Cmp(list) > 0 {
		list = both
	}
	return map[billing.Component]*big.Rat{billing.CPU: c.Quo(c, list), billing.Memory: m.Quo(m, list)}
}

func TestOracle(t *testing.T) {
	p := testPolicy(t, tenPrices)
	rapid.Check(t, func(rt *rapid.T) {
		w := genNode(rt)
		shares, err := Split(w, p, &nobody)
		if err != nil {
			rt.Fatal(err)
		}
		want := oracle(w, exactParts(w, big.NewRat(5, 100), big.NewRat(5, 1000)))
		got := map[string]money.Ratio{}
		for _, s := range shares {
			if s.Component != billing.GPU {
				who := s.PodUID
				if who == "" {
					who = s.Category
				}
				got[string(s.Component)+" "+who] += s.Ratio
			}
		}
		keys := map[string]bool{}
		for k := range want {
			keys[k] = true
		}
		for k := range got {
			keys[k] = true
		}
		names := make([]string, 0, len(keys))
		for k := range keys {
			names = append(names, k)
		}
		sort.Strings(names)
		for _, k := range names {
			exact := new(big.Rat)
			if want[k] != nil {
				exact.Mul(want[k], new(big.Rat).SetInt64(int64(money.One)))
			}
			d := exact.Sub(exact, new(big.Rat).SetInt64(int64(got[k])))
			// One unit for the part, one for the share of it, and in windows far shorter
			// than a bill's second what an hour's rounding to 2^-20 µs is of them.
			fine := big.NewRat(int64(money.One)*int64(len(w.Hours))*16, max(w.BilledMicros, 1)<<fineBits)
			if d.Abs(d).Cmp(fine.Add(fine, big.NewRat(2, 1))) > 0 {
				rt.Fatalf("%s: off by %s units", k, d.FloatString(6))
			}
		}
	})
}
