package allocate

import (
	"math/big"
	"math/rand"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/gpu"
	"gpuledger/internal/anyfleet"
	"gpuledger/policy"
)

// P1, P2, P14 and P20, about all shares of a line together.

// Every way to divide a line between GPUs, CPU and memory; most nodes are not divided.
var anySplit = []string{"gpu_all", "gpu_all", "ratio", "scad", "price_difference", "billed_sku"}

// P1 efficiency: Σ pods + Σ remainder = the line, exactly, for every metric and for
// credits. And every share is what the definition says.
func TestP01Efficiency(t *testing.T) {
	owners := fleetOwners(t)
	rapid.Check(t, func(rt *rapid.T) {
		f := anyfleet.Draw(rt, anyfleet.Options{Nodes: 2, Hours: 2, Past: 1})
		p := anyfleet.DrawPolicy(rt, anyfleet.PolicyOptions{Splits: anySplit, NoLast: !quiet(f)})
		rt.Logf("%s\n%s", f, p.YAML())
		r := newReal(rt, f, p, owners)
		billed := 0
		if rapid.Bool().Draw(rt, "billed in part") { // less or more than the node was ready
			billed = rapid.IntRange(1, f.Hours*anyfleet.Hour).Draw(rt, "billed")
		}
		// What a line of the node costs divides the cluster's remainders.
		around, exactAround := &Around{}, map[string]sums{}
		for _, n := range f.Nodes {
			around.Add(r.shares(r.window(n, 0, f.Hours, billed), billing.Node), money.FromInt(listPrice))
			x := newExact(f, n, p, 0, f.Hours, billed)
			x.survey(exactAround)
		}
		for _, n := range f.Nodes {
			w := r.window(n, 0, f.Hours, billed)
			w.Around = around
			shares := r.shares(w, billing.Node)
			checkSums(rt, shares)
			x := newExact(f, n, p, 0, f.Hours, billed)
			want, parts := sums{}, x.phi(big.NewRat(listPrice, 1))
			for k, a := range x.ratios(exactAround) {
				if parts[k.component] != nil {
					want.add(k, a.times(parts[k.component]))
				}
			}
			compareExact(rt, shares, want)
		}
	})
}

// survey adds what the node's pods are charged to what those of its cluster are.
func (x *exactSplit) survey(around map[string]sums) {
	parts := x.phi(big.NewRat(listPrice, 1))
	for k, a := range x.ratios(nil) {
		if k.category != PodCategory || a.v.Sign() == 0 || parts[k.component] == nil {
			continue
		}
		for _, scope := range []string{k.component, k.component + " " + x.n.Pool} {
			if around[scope] == nil {
				around[scope] = sums{}
			}
			charge := a.times(parts[k.component])
			charge.off += 3e-12 // it is a rounded ratio, of up to three models
			around[scope].add(who{pod: k.pod, team: k.team, category: PodCategory}, charge)
		}
	}
}

// quiet reports whether nothing but pods makes a difference to what is free of a fleet:
// no silence, no bytes of nobody's, no GPU that is cut anew.
func quiet(f *anyfleet.Fleet) bool {
	for _, n := range f.Nodes {
		if n.Outage != [2]int{} || n.Down < f.Hours*anyfleet.Hour {
			return false
		}
		for _, g := range n.GPUs {
			for _, p := range g.Parts {
				if len(p.Stray) > 0 || len(g.Parts) > 1 && p.From != g.Parts[len(g.Parts)-1].From {
					return false
				}
			}
		}
	}
	return true
}

// checkSums checks that ratios sum to one, device time too, and that costs of every
// sign add up to the line, with every digit.
func checkSums(t *rapid.T, shares []Share) {
	var all, device money.Ratio
	keys := map[string]bool{}
	for _, s := range shares {
		if keys[s.Key()] {
			t.Fatalf("twice: %+v", s)
		}
		keys[s.Key()] = true
		var by money.Ratio
		for _, r := range s.ByMethod {
			by += r
		}
		if by != s.Ratio {
			t.Fatalf("by method %s of %s: %+v", by, s.Ratio, s)
		}
		all, device = all+s.Ratio, device+s.GPURatio
	}
	if all != money.One || device != money.One {
		t.Fatalf("Σ ratio %s, Σ device time %s", all, device)
	}
	for _, text := range []string{"98.32", "-0.000000000123456789", rapid.StringMatching(`-?[0-9]{1,8}\.[0-9]{1,24}`).Draw(t, "cost")} {
		line, sum := money.MustParse(text), new(big.Rat)
		for _, s := range shares {
			part, _ := new(big.Rat).SetString(line.Mul(s.Ratio))
			sum.Add(sum, part)
		}
		if want, _ := new(big.Rat).SetString(text); sum.Cmp(want) != 0 {
			t.Fatalf("a line of %s is split into %s in all", text, sum.FloatString(40))
		}
	}
}

// P2 non-negativity: no share is below 0, of cost or of device time, so no part of a
// charge is below 0 and none of a credit above. That is so of rows that no exporter would
// show, too.
func TestP02NonNegativity(t *testing.T) {
	owners := fleetOwners(t)
	rapid.Check(t, func(rt *rapid.T) {
		var shares []Share
		if rapid.Bool().Draw(rt, "a fleet") {
			f := anyfleet.Draw(rt, anyfleet.Options{Hours: 2, Past: 1})
			shares = newReal(rt, f, anyfleet.DrawPolicy(rt, anyfleet.PolicyOptions{Splits: anySplit}), owners).split(f.Nodes[0])
		} else {
			var err error
			if shares, err = Split(genNode(rt), testPolicy(t, genAny.Draw(rt, "policy")), &nobody); err != nil {
				rt.Fatal(err)
			}
		}
		checkSums(rt, shares)
		cost := money.MustParse(rapid.StringMatching(`-?[0-9]{1,8}\.[0-9]{1,24}`).Draw(rt, "line"))
		for _, s := range shares {
			if s.Ratio < 0 || s.GPURatio < 0 || s.UsedByteSeconds < 0 || s.HeldByteSeconds < 0 || s.MeasuredMicros < 0 || s.GapMicros < 0 {
				rt.Fatalf("%+v", s)
			}
			for _, r := range s.ByMethod {
				if r < 0 {
					rt.Fatalf("%+v", s)
				}
			}
			if part, _ := new(big.Rat).SetString(cost.Mul(s.Ratio)); part.Sign()*cost.Sign() < 0 {
				rt.Fatalf("%s of a line of %s: %+v", part.FloatString(30), cost, s)
			}
		}
	})
}

// P14 determinism, as far as rows go: their order changes nothing. Files and lines are
// shuffled in cmd/gpuledger.
func TestP14OrderOfRows(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w, p := genNode(rt), testPolicy(t, genAny.Draw(rt, "policy"))
		first, err := Split(w, p, &nobody)
		if err != nil {
			rt.Fatal(err)
		}
		r := rand.New(rand.NewSource(rapid.Int64().Draw(rt, "seed")))
		for i := range w.Hours {
			ds, us := w.Hours[i].Devices, w.Hours[i].Pods
			r.Shuffle(len(ds), func(a, b int) { ds[a], ds[b] = ds[b], ds[a] })
			r.Shuffle(len(us), func(a, b int) { us[a], us[b] = us[b], us[a] })
		}
		again, err := Split(w, p, &nobody)
		if err != nil || !reflect.DeepEqual(first, again) {
			rt.Fatalf("%v\n%+v\n%+v", err, first, again)
		}
	})
}

// P20 rounding quota: where nothing is moved, every ratio is its exact share of the rows
// rounded down or up to a unit.
func TestP20RoundingQuota(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := anyfleet.Draw(rt, anyfleet.Options{Hours: 3})
		p := anyfleet.DrawPolicy(rt, anyfleet.PolicyOptions{Rules: []string{"keep"}})
		p.Unattributed, p.Driver, p.Idle["slot_held"] = "own_line", "exclude", anyfleet.Rule{Policy: "keep"}
		n := f.Nodes[0]
		rt.Logf("%s\n%s", f, p.YAML())
		r := newReal(rt, f, p, &nobody)
		w := r.window(n, 0, f.Hours, 0)
		weights, all := weightsOf(f, n, p, w)
		got, rows := map[string]money.Ratio{}, map[string]int64{}
		for _, s := range r.shares(w, billing.Node) {
			k := s.Target
			k.Component, k.Node = "", "" // of hours that were seen and of others
			if k.Category == NotReady {
				k.Model = "" // each of the node's
			}
			k.give(policy.Owner{})
			got[k.Key()] += s.Ratio
			rows[k.Key()]++
		}
		for k, ratio := range got {
			exact := new(big.Rat)
			if weights[k] != nil {
				exact.Quo(weights[k], all).Mul(exact, new(big.Rat).SetInt64(int64(money.One)))
			}
			if off := exact.Sub(exact, new(big.Rat).SetInt64(int64(ratio))); off.Abs(off).Cmp(big.NewRat(rows[k], 1)) >= 0 {
				rt.Fatalf("%q: off by %s units", k, off.FloatString(9))
			}
		}
	})
}

// weightsOf are μ·w·share of every target over the hours of a window, from its rows.
func weightsOf(f *anyfleet.Fleet, n *anyfleet.Node, p *anyfleet.Policy, w Window) (weights map[string]*big.Rat, all *big.Rat) {
	x := newExact(f, n, p, 0, f.Hours, 0)
	weights, all = map[string]*big.Rat{}, new(big.Rat)
	add := func(t Target, amount *big.Rat) {
		t.Pool = n.Pool
		if weights[t.Key()] == nil {
			weights[t.Key()] = new(big.Rat)
		}
		weights[t.Key()].Add(weights[t.Key()], amount)
		all.Add(all, amount)
	}
	seconds := func(micros int64) *big.Rat { return big.NewRat(micros, 1_000_000) }
	for _, h := range w.Hours {
		for _, d := range h.Devices {
			var card *anyfleet.GPU
			for _, g := range n.GPUs {
				if g.UUID == d.UUID {
					card = g
				}
			}
			cut := map[int]bool{}
			for _, q := range d.Partitions {
				mu := x.weight(n.GPUs[0].Model).v // of a GPU that no series shows
				if card != nil {
					part := card.Parts[slices.IndexFunc(card.Parts, func(p *anyfleet.Part) bool { return p.ID == q.GPUInstance })]
					s, of, sum := card.Slices(part, p.Weight, p.Normaliser)
					price := x.weight(card.Model).v
					mu = new(big.Rat).Mul(price, big.NewRat(int64(s), int64(of)))
					if !cut[part.From] && sum < of {
						cut[part.From] = true
						rest := new(big.Rat).Mul(price, big.NewRat(int64(of-sum), int64(of)))
						add(Target{Category: MIGUnpartitioned, Model: d.Model, Mode: gpu.ModeMIG}, rest.Mul(rest, seconds(q.PresentMicros)))
					}
				}
				for _, row := range q.Rows {
					share := [...]int64{row.Shares.Used, row.Shares.RequestNone, row.Shares.RequestReplica, row.Shares.MaxNone, row.Shares.MaxReplica}[x.column]
					t := Target{PodUID: row.PodUID, Category: string(row.Category), Model: d.Model, Mode: q.Mode}
					if row.PodUID != "" {
						t.Category = PodCategory
					}
					add(t, new(big.Rat).Mul(mu, seconds(share)))
				}
			}
		}
	}
	if rest := x.notReady("gpu", 0, f.Hours, 0).v; rest.Sign() > 0 {
		add(Target{Category: NotReady, Mode: gpu.ModeUnknown}, rest)
	}
	return weights, all
}
