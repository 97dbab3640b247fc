package allocate

import (
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"gpuledger/billing/money"
	"gpuledger/gpu"
	"gpuledger/internal/anyfleet"
)

// P3 to P8, about what one pod's bytes and requests do to its charge and to others', from
// the series of a random fleet to the shares of its lines.

// units turns an error of the exact split into units of a ratio.
func units(off float64) money.Ratio { return money.Ratio(min(off, 1)*float64(money.One)) + mergedUnits }

// tolerance is how far each pod's charge may be from the exact one.
func tolerance(f *anyfleet.Fleet, n *anyfleet.Node, p *anyfleet.Policy) map[string]money.Ratio {
	out := map[string]money.Ratio{}
	for k, a := range newExact(f, n, p, 0, f.Hours, 0).ratios(nil) {
		if k.component == "gpu" && k.pod != "" {
			out[k.pod] += units(a.off)
		}
	}
	return out
}

// tellable leaves rules out whose exact split of a fleet the program does not follow.
func tellable(f *anyfleet.Fleet) anyfleet.PolicyOptions {
	return anyfleet.PolicyOptions{NoLast: !quiet(f)}
}

// direct adds up what pods are charged themselves.
func direct(shares []Share) map[string]money.Ratio {
	return charged(slices.DeleteFunc(slices.Clone(shares), func(s Share) bool { return s.Category != PodCategory }))
}

// before and after split a node's line in two states of a fleet, and bound each pod's
// error in both together.
func (r *real) change(p *anyfleet.Policy, n *anyfleet.Node, change func(*anyfleet.Fleet, *anyfleet.Node)) (before, after []Share, bound map[string]money.Ratio) {
	other := r.f.Clone()
	var now *anyfleet.Node
	for _, o := range other.Nodes {
		if o.Name == n.Name {
			now = o
		}
	}
	change(other, now)
	r.Logf("%s\nbecomes\n%s\n%s", r.f, other, p.YAML())
	bound = tolerance(r.f, n, p)
	for pod, u := range tolerance(other, now, p) {
		bound[pod] += u
	}
	return r.split(n), newReal(r.TB, other, p, r.owners).split(now), bound
}

// anyPod draws one of a fleet's pods that will do.
func anyPod(t *rapid.T, f *anyfleet.Fleet, will func(*anyfleet.Node, *anyfleet.Pod) bool) (*anyfleet.Node, *anyfleet.Pod) {
	type place struct {
		n *anyfleet.Node
		p *anyfleet.Pod
	}
	var all []place
	for _, n := range f.Nodes {
		for _, p := range n.Pods {
			if will(n, p) {
				all = append(all, place{n, p})
			}
		}
	}
	if len(all) == 0 {
		t.Skip("no such pod")
	}
	x := rapid.SampledFrom(all).Draw(t, "pod")
	return x.n, x.p
}

func anybody(*anyfleet.Node, *anyfleet.Pod) bool { return true }

// P3 null player: a pod that requests and uses nothing pays nothing, and nobody else
// pays another unit.
func TestP03NullPlayer(t *testing.T) {
	owners := fleetOwners(t)
	rapid.Check(t, func(rt *rapid.T) {
		f := anyfleet.Draw(rt, anyfleet.Options{Hours: 2, Past: 1})
		p := anyfleet.DrawPolicy(rt, anyfleet.PolicyOptions{Splits: anySplit})
		n := f.Nodes[0]
		before, after, _ := newReal(rt, f, p, owners).change(p, n, func(f *anyfleet.Fleet, n *anyfleet.Node) {
			from, to := max(n.Up, -f.Past*anyfleet.Hour), min(n.Down, f.Hours*anyfleet.Hour)
			n.Pods = append(n.Pods, &anyfleet.Pod{Namespace: "ml", Name: "null", From: from, To: to})
		})
		if !reflect.DeepEqual(before, after) {
			rt.Fatalf("without it\n%+v\nwith it\n%+v", before, after)
		}
	})
}

// P4 symmetry: pods of equal bytes and requests are charged the same, to a microsecond of
// each partition-hour, which is 278 units of 1e-12 of an hour of one GPU. A remainder
// that follows the bytes used magnifies that: by its length ÷ that of the use.
func TestP04Symmetry(t *testing.T) {
	owners := fleetOwners(t)
	rapid.Check(t, func(rt *rapid.T) {
		f := anyfleet.Draw(rt, anyfleet.Options{Hours: 2, Past: 1})
		p := anyfleet.DrawPolicy(rt, tellable(f))
		n, pod := anyPod(rt, f, anybody)
		_, after, bound := newReal(rt, f, p, owners).change(p, n, func(_ *anyfleet.Fleet, n *anyfleet.Node) {
			one := n.Pod(pod.Name)
			for i := range one.Places {
				for k := range one.Places[i].Used {
					one.Places[i].Used[k].MiB /= 2 // both fit where one did
				}
			}
			twin := (&anyfleet.Fleet{Nodes: []*anyfleet.Node{{Pods: []*anyfleet.Pod{one}}}}).Clone().Nodes[0].Pods[0]
			twin.Name += "-twin"
			n.Pods = append(n.Pods, twin)
		})
		got := charged(after)
		one, twin := got[pod.UID()], got[pod.UID()+"-twin"]
		if b := bound[pod.UID()+"-twin"] + bound[pod.UID()]; one > twin+b || twin > one+b {
			rt.Fatalf("%s and %s, more than %s apart", one, twin, b)
		}
	})
}

// P5 own monotonicity: who uses more, or reserves more, is not charged less. Use is what
// a figure of the pod's own shows: of a device's figure, which its holders share, others
// have a part of what it used. What it reserves also decides whether free memory is
// slot_held or unallocated, so for reservations a policy must treat the two alike.
func TestP05OwnMonotonicity(t *testing.T) {
	owners := fleetOwners(t)
	rapid.Check(t, func(rt *rapid.T) {
		more := rapid.Bool().Draw(rt, "reserves more")
		f := anyfleet.Draw(rt, anyfleet.Options{Hours: 2, NoStray: true, Past: 1, Measured: !more})
		o := tellable(f)
		if more {
			o.Rules = []string{"keep", "platform", "fixed"}
		}
		p := anyfleet.DrawPolicy(rt, o)
		if more {
			p.Idle["slot_held"] = anyfleet.Rule{Policy: "keep"}
		}
		n, pod := anyPod(rt, f, anybody)
		before, after, bound := newReal(rt, f, p, owners).change(p, n, func(_ *anyfleet.Fleet, n *anyfleet.Node) {
			pl := &n.Pod(pod.Name).Places[0]
			switch {
			case !more:
				grow(rt, n, pod.Name)
			case n.Mode == gpu.ModeFraction:
				pl.LimitMiB += rapid.Int64Range(0, 1<<14).Draw(rt, "limit")
			case pl.CapacityMiB > 0:
				alone := true // what a claim of several pods reserves is not one's own
				for _, o := range n.Pods {
					alone = alone && (o.Name == pod.Name || o.Places[0].Claim != pl.Claim)
				}
				if alone {
					pl.CapacityMiB += 1 << 12
				}
			case pl.Slots > 0 && (n.Mode == gpu.ModeTimeSlicing || n.Mode == gpu.ModeMPS):
				pl.Slots++
			}
		})
		was, is := charged(before)[pod.UID()], charged(after)[pod.UID()]
		if is < was-bound[pod.UID()] {
			rt.Fatalf("%s is charged %s, and %s before; more than %s less", pod.Name, is, was, bound[pod.UID()])
		}
	})
}

// grow makes a pod use more from some time on.
func grow(t *rapid.T, n *anyfleet.Node, name string) {
	pod := n.Pod(name)
	pl := &pod.Places[0]
	if len(pl.Used) == 0 {
		pl.Used = []anyfleet.Step{{At: pod.From}}
	}
	k := rapid.IntRange(0, len(pl.Used)-1).Draw(t, "step")
	room := n.GPUs[pl.GPU].Parts[pl.Part].UsableMiB / 8 // a device's figure above 1.5 × its size is none
	pl.Used[k].MiB += rapid.Int64Range(1, room).Draw(t, "more")
}

// P6 independence: where nothing is oversubscribed at any instant, a pod that is gone
// changes no other's direct charge. This is about what pods are measured or limited to:
// a device's figure that is shared out, and a claim that is left to one pod, change it.
func TestP06Independence(t *testing.T) {
	owners := fleetOwners(t)
	rapid.Check(t, func(rt *rapid.T) {
		f := anyfleet.Draw(rt, anyfleet.Options{
			Hours: 2, Measured: true, NoStray: true,
			Modes: []gpu.Mode{gpu.ModeTimeSlicing, gpu.ModeExclusive, gpu.ModeMIG, gpu.ModeMPS, gpu.ModeFraction},
		})
		p := anyfleet.DrawPolicy(rt, anyfleet.PolicyOptions{NoLast: true})
		n, gone := anyPod(rt, f, func(n *anyfleet.Node, pod *anyfleet.Pod) bool {
			pl := pod.Places[0]
			return !n.Crowded(pl.GPU, pl.Part, 0, f.Hours*anyfleet.Hour, (&exactSplit{p: p}).basis())
		})
		before, after, bound := newReal(rt, f, p, owners).change(p, n, func(_ *anyfleet.Fleet, n *anyfleet.Node) {
			n.Pods = slices.DeleteFunc(n.Pods, func(o *anyfleet.Pod) bool { return o.Name == gone.Name })
		})
		was, is := direct(before), direct(after)
		for pod := range was {
			if d := is[pod] - was[pod]; pod != gone.UID() && (d > bound[pod] || -d > bound[pod]) {
				rt.Fatalf("%s is charged %s, and %s with %s", pod, is[pod], was[pod], gone.Name)
			}
		}
	})
}

// P7 solidarity: where everything is shared out over pods, the growth of one lowers what
// all others are charged, or leaves it.
func TestP07Solidarity(t *testing.T) {
	owners := fleetOwners(t)
	rapid.Check(t, func(rt *rapid.T) {
		f := anyfleet.Draw(rt, anyfleet.Options{Hours: 2, Measured: true, NoStray: true})
		p := anyfleet.DrawPolicy(rt, anyfleet.PolicyOptions{Rules: []string{"proportional", "even", "replica"}})
		if p.Idle["default"].Policy == "" {
			p.Idle["default"] = anyfleet.Rule{Policy: "even"}
		}
		n, pod := anyPod(rt, f, anybody)
		before, after, bound := newReal(rt, f, p, owners).change(p, n, func(_ *anyfleet.Fleet, n *anyfleet.Node) { grow(rt, n, pod.Name) })
		was, is := charged(before), charged(after)
		for _, other := range n.Pods {
			if uid := other.UID(); uid != pod.UID() && is[uid] > was[uid]+bound[uid] {
				rt.Fatalf("%s gains by what %s uses: %s, before %s", uid, pod.Name, is[uid], was[uid])
			}
		}
	})
}

// P8 split-neutral: two pods in place of one, with its bytes and slots between them, are
// charged the same in all under basis used, and under max no less: each brings its own
// floor. An even share goes to each pod, so it is not meant.
func TestP08SplitNeutral(t *testing.T) {
	owners := fleetOwners(t)
	rapid.Check(t, func(rt *rapid.T) {
		f := anyfleet.Draw(rt, anyfleet.Options{
			Hours: 2, Past: 1, Measured: true,
			Modes: []gpu.Mode{gpu.ModeTimeSlicing, gpu.ModeMPS, gpu.ModeFraction, gpu.ModeExclusive},
		})
		p := anyfleet.DrawPolicy(rt, anyfleet.PolicyOptions{Rules: []string{"keep", "proportional", "platform", "owner", "fixed", "replica", "last_tenant"}, NoLast: !quiet(f)})
		n, pod := anyPod(rt, f, func(_ *anyfleet.Node, pod *anyfleet.Pod) bool {
			return pod.Places[0].Slots != 1 || pod.Places[0].LimitMiB > 1
		})
		before, after, bound := newReal(rt, f, p, owners).change(p, n, func(_ *anyfleet.Fleet, n *anyfleet.Node) {
			one := n.Pod(pod.Name)
			half := (&anyfleet.Fleet{Nodes: []*anyfleet.Node{{Pods: []*anyfleet.Pod{one}}}}).Clone().Nodes[0].Pods[0]
			half.Name += "-half"
			a, b := &one.Places[0], &half.Places[0]
			b.Slots, b.LimitMiB = a.Slots/2, a.LimitMiB/2
			a.LimitMiB -= b.LimitMiB
			if n.Mode != gpu.ModeFraction {
				a.Slots -= b.Slots
			} else {
				b.Slots = a.Slots
			}
			for k := range a.Used {
				b.Used[k].MiB = rapid.Int64Range(0, a.Used[k].MiB).Draw(rt, "half")
				a.Used[k].MiB -= b.Used[k].MiB
			}
			n.Pods = append(n.Pods, half)
		})
		was, is := charged(before), charged(after)
		one, two, b := was[pod.UID()], is[pod.UID()]+is[pod.UID()+"-half"], bound[pod.UID()]+bound[pod.UID()+"-half"]
		if two < one-b || p.Basis == "used" && two > one+b {
			rt.Fatalf("%s is charged %s, and in two %s", pod.Name, one, two)
		}
	})
}
