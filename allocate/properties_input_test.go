package allocate

import (
	"math/big"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/gpu"
	"gpuledger/internal/anyfleet"
	"gpuledger/policy"
)

// P9, P10, P12, P16 and P17: what the same reality, told otherwise, changes.

// P9 time consistency: a line over some hours is split as lines over each of them would
// be. So it is up to what leaves the node: a pool's or a cluster's remainders are shared
// out by the charges of one stretch of time.
func TestP09TimeConsistency(t *testing.T) {
	owners := fleetOwners(t)
	rapid.Check(t, func(rt *rapid.T) {
		f := anyfleet.Draw(rt, anyfleet.Options{Hours: 3, Past: 1})
		p := anyfleet.DrawPolicy(rt, anyfleet.PolicyOptions{Splits: anySplit, OnNode: true})
		n := f.Nodes[0]
		if rule := p.For(NotReady, n.Pool).Policy; rule == "proportional" || rule == "even" {
			p.Idle[NotReady] = anyfleet.Rule{Policy: "keep"}
		}
		rt.Logf("%s\n%s", f, p.YAML())
		r := newReal(rt, f, p, owners)
		whole, parts := byWho(r.split(n)), map[who]money.Ratio{}
		for hour := range f.Hours {
			for k, ratio := range byWho(r.shares(r.window(n, hour, hour+1, 0), billing.Node)) {
				parts[k] += ratio
			}
		}
		hours := money.Ratio(f.Hours)
		for k := range parts {
			whole[k] += 0 // what only the parts have
		}
		for k, ratio := range whole {
			if d := ratio*hours - parts[k]; d > mergedUnits*hours || d < -mergedUnits*hours {
				rt.Fatalf("%+v: %s in a line of %d hours, %s in lines of an hour", k, ratio, hours, parts[k])
			}
		}
	})
}

// P10 scale: in bytes as in MiB, and in twice the bytes of twice the memory, shares are
// the same; in another currency too.
func TestP10ScaleInvariance(t *testing.T) {
	owners := fleetOwners(t)
	rapid.Check(t, func(rt *rapid.T) {
		f := anyfleet.Draw(rt, anyfleet.Options{Hours: 2, Modes: []gpu.Mode{gpu.ModeTimeSlicing, gpu.ModeExclusive, gpu.ModeMPS, gpu.ModeFraction, gpu.ModeDRA}})
		p := anyfleet.DrawPolicy(rt, anyfleet.PolicyOptions{Splits: []string{"gpu_all", "price_difference"}, NoLast: !quiet(f)})
		n := f.Nodes[0]
		for _, g := range n.GPUs { // a card of no known size
			g.Model = "Contoso C1"
		}
		rt.Logf("%s\n%s", f, p.YAML())
		r := newReal(rt, f, p, owners)
		mib := r.split(n)

		inBytes := newReal(rt, f, p, owners)
		for hour := range f.Hours {
			inventory, devices := f.Series(hour, hour+1)
			for i := range devices {
				if s := &devices[i]; strings.HasPrefix(s.Metric, "DCGM_FI_DEV_FB_") {
					s.Metric = strings.Replace(s.Metric, "FB_TOTAL", "FB_CAPACITY", 1) + "_BYTES"
					for k := range s.Samples {
						s.Samples[k].Value *= 1 << 20
					}
				}
			}
			inBytes.folds[hour] = gpu.FoldHour(inventory, devices, anyfleet.At(hour*anyfleet.Hour), gpu.Settings{})
		}
		if got := inBytes.split(n); !reflect.DeepEqual(got, mib) {
			rt.Fatalf("in bytes\n%+v\nin MiB\n%+v", got, mib)
		}

		// Half of an odd byte is none: what is estimated differs by a byte.
		_, twice, bound := r.change(p, n, func(_ *anyfleet.Fleet, n *anyfleet.Node) { double(n) })
		was, is := charged(mib), charged(twice)
		for pod := range was {
			if d := is[pod] - was[pod]; d > bound[pod] || -d > bound[pod] {
				rt.Fatalf("%s: %s, and %s of twice the memory", pod, was[pod], is[pod])
			}
		}

		w := r.window(n, 0, f.Hours, 0)
		w.ListCost = money.FromInt(7 * listPrice)
		dear, err := policy.Parse("policy.yaml", []byte(strings.NewReplacer(`vcpu: "0.05"`, `vcpu: "0.35"`, `gib: "0.005"`, `gib: "0.035"`).Replace(p.YAML())))
		if err != nil {
			rt.Fatal(err)
		}
		other := &real{TB: rt, f: f, p: &dear, owners: owners, folds: r.folds}
		if got := other.shares(w, billing.Node); !reflect.DeepEqual(got, mib) {
			rt.Fatalf("times seven\n%+v\nbefore\n%+v", got, mib)
		}
	})
}

func double(n *anyfleet.Node) {
	steps := func(all []anyfleet.Step) {
		for i := range all {
			all[i].MiB *= 2
		}
	}
	for _, g := range n.GPUs {
		g.TotalMiB, g.ReservedMiB = 2*g.TotalMiB, 2*g.ReservedMiB
		for _, p := range g.Parts {
			p.UsableMiB *= 2
			steps(p.Stray)
		}
	}
	for _, p := range n.Pods {
		for i := range p.Places {
			pl := &p.Places[i]
			pl.LimitMiB, pl.CapacityMiB = 2*pl.LimitMiB, 2*pl.CapacityMiB
			steps(pl.Used)
		}
	}
}

// P12 sample refinement: one scrape more, that says what those before and after it say,
// changes no share by more than the rounding of its row.
func TestP12SampleRefinement(t *testing.T) {
	owners := fleetOwners(t)
	rapid.Check(t, func(rt *rapid.T) {
		f := anyfleet.Draw(rt, anyfleet.Options{})
		p := anyfleet.DrawPolicy(rt, tellable(f))
		n := f.Nodes[0]
		rt.Logf("%s\n%s", f, p.YAML())
		r := newReal(rt, f, p, owners)
		before := charged(r.split(n))
		inventory, devices := f.Series(0, 1)
		all := devices
		if rapid.Bool().Draw(rt, "of the inventory") {
			all = inventory
		}
		at := anyfleet.At(anyfleet.Interval * rapid.IntRange(-5, 35).Draw(rt, "at"))
		if !refine(all, at) {
			rt.Skip("something changes there")
		}
		r.folds[0] = gpu.FoldHour(inventory, devices, anyfleet.At(0), gpu.Settings{})
		after, bound := charged(r.split(n)), tolerance(f, n, p)
		for pod := range before {
			if d := after[pod] - before[pod]; d > 2*bound[pod] || -d > 2*bound[pod] {
				rt.Fatalf("%s: %s, and %s with one scrape more", pod, before[pod], after[pod])
			}
		}
	})
}

// refine adds a scrape between two others where they say the same.
func refine(all []gpu.Series, at time.Time) bool {
	const half = anyfleet.Interval * 1000 / 2
	milli := at.UnixMilli()
	places := make([]int, len(all))
	for i, s := range all {
		find := func(t int64) (float64, bool) {
			k, ok := slices.BinarySearchFunc(s.Samples, t, func(x gpu.Sample, t int64) int { return int(x.UnixMilli - t) })
			if !ok {
				return 0, false
			}
			places[i] = k
			return s.Samples[k].Value, true
		}
		old, was := find(milli - half)
		next, is := find(milli + half)
		if was != is || old != next {
			return false
		}
		if !is {
			places[i] = -1
		}
	}
	for i, k := range places {
		if k > 0 {
			all[i].Samples = slices.Insert(all[i].Samples, k, gpu.Sample{UnixMilli: milli, Value: all[i].Samples[k].Value})
		}
	}
	return true
}

// P16 hide test: a pod that drops its request pays no less than for what it used of its
// charge before. So it is where its processes are seen, and not under basis request,
// which charges nobody without one.
func TestP16Hiding(t *testing.T) {
	owners := fleetOwners(t)
	rapid.Check(t, func(rt *rapid.T) {
		f := anyfleet.Draw(rt, anyfleet.Options{
			Hours: 2, Measured: true, NoStray: true,
			Modes: []gpu.Mode{gpu.ModeTimeSlicing, gpu.ModeExclusive, gpu.ModeMPS, gpu.ModeMIG},
		})
		o := tellable(f)
		o.WholeBasis = true
		p := anyfleet.DrawPolicy(rt, o)
		n, pod := anyPod(rt, f, func(n *anyfleet.Node, pod *anyfleet.Pod) bool {
			return n.Exporter == anyfleet.Process && pod.Places[0].Slots > 0
		})
		_, after, bound := newReal(rt, f, p, owners).change(p, n, func(_ *anyfleet.Fleet, n *anyfleet.Node) {
			pl := &n.Pod(pod.Name).Places[0]
			pl.Slots, pl.NoSlotLabel = 0, true
		})
		used := ofLine(f, n, p, pod, func(h *anyfleet.Had, column int) *big.Rat { return h.InUse[column] })
		if got := charged(after)[pod.UID()]; got < used-bound[pod.UID()] {
			rt.Fatalf("%s used %s, hid, and is charged %s", pod.Name, used, got)
		}
	})
}

// P17 floor: who holds an exclusive GPU or a MIG instance pays all of it while it does,
// under every basis, though it uses nothing.
func TestP17Floor(t *testing.T) {
	owners := fleetOwners(t)
	rapid.Check(t, func(rt *rapid.T) {
		f := anyfleet.Draw(rt, anyfleet.Options{Hours: 2, NoRogue: true, Modes: []gpu.Mode{gpu.ModeExclusive, gpu.ModeMIG}})
		p := anyfleet.DrawPolicy(rt, tellable(f))
		n, pod := anyPod(rt, f, func(n *anyfleet.Node, _ *anyfleet.Pod) bool { return n.Mode == gpu.ModeExclusive || n.Replicas == 1 })
		_, after, bound := newReal(rt, f, p, owners).change(p, n, func(_ *anyfleet.Fleet, n *anyfleet.Node) { n.Pod(pod.Name).Places[0].Used = nil })
		held := ofLine(f, n, p, pod, func(h *anyfleet.Had, _ int) *big.Rat { return h.Held })
		if got := direct(after)[pod.UID()]; got < held-bound[pod.UID()] || got > held+bound[pod.UID()] {
			rt.Fatalf("%s holds %s of the line and is charged %s", pod.Name, held, got)
		}
	})
}

// ofLine is a part of a pod's time on its part, as a ratio of the node's line; what the
// driver has a line for is not the pod's.
func ofLine(f *anyfleet.Fleet, n *anyfleet.Node, p *anyfleet.Policy, pod *anyfleet.Pod, of func(*anyfleet.Had, int) *big.Rat) money.Ratio {
	pl := pod.Places[0]
	card := n.GPUs[pl.GPU]
	x := newExact(f, n, p, 0, f.Hours, 0)
	sum, all := new(big.Rat), new(big.Rat)
	for _, had := range n.Exact(pl.GPU, pl.Part, 0, f.Hours*anyfleet.Hour) {
		if had.Pod == pod.UID() {
			sum.Add(sum, of(had, x.column))
		}
	}
	s, d, _ := card.Slices(card.Parts[pl.Part], p.Weight, p.Normaliser)
	sum.Mul(sum, big.NewRat(int64(s), int64(d))).Mul(sum, x.weight(card.Model).v)
	if p.Driver == "own_line" && card.Parts[pl.Part].ID == "" {
		sum.Mul(sum, big.NewRat(card.TotalMiB-card.ReservedMiB, card.TotalMiB))
	}
	for _, part := range []sums{x.out, x.rest} {
		for k, a := range part {
			if k.component == "gpu" {
				all.Add(all, a.v)
			}
		}
	}
	ratio, _ := sum.Quo(sum, all).Float64()
	return money.Ratio(ratio * float64(money.One))
}
