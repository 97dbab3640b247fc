package allocate

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/internal/anyfleet"
	"gpuledger/policy"
)

// fleetOwners are the owners of every random fleet.
func fleetOwners(t testing.TB) *policy.Owners {
	t.Helper()
	o, err := policy.ParseOwners("owners.yaml", []byte(anyfleet.Owners))
	if err != nil {
		t.Fatal(err)
	}
	return &o
}

// real is what the program makes of a fleet: its series folded hour by hour, and split.
type real struct {
	rapid.TB
	f      *anyfleet.Fleet
	p      *policy.Policy
	owners *policy.Owners
	folds  map[int]gpu.ClusterHour
}

func newReal(t rapid.TB, f *anyfleet.Fleet, p *anyfleet.Policy, owners *policy.Owners) *real {
	parsed, err := policy.Parse("policy.yaml", []byte(p.YAML()))
	if err != nil {
		t.Fatalf("%v\n%s", err, p.YAML())
	}
	r := &real{TB: t, f: f, p: &parsed, owners: owners, folds: map[int]gpu.ClusterHour{}}
	for hour := -f.Past; hour < f.Hours; hour++ {
		inventory, devices := f.Series(hour, hour+1)
		r.folds[hour] = gpu.FoldHour(inventory, devices, anyfleet.At(hour*anyfleet.Hour), gpu.Settings{})
	}
	return r
}

// The list price of every node, an hour.
const listPrice = 10

// window is that of some hours of a node, as the warehouse puts it together.
func (r *real) window(n *anyfleet.Node, from, to, billed int) Window {
	w := Window{
		Span: period.Span{Start: anyfleet.At(from * anyfleet.Hour), End: anyfleet.At(to * anyfleet.Hour)}, BilledMicros: int64(billed) * 1e6,
		Node: Node{Cluster: "c", Pool: n.Pool, ExpectedGPUs: n.Devices(), ExpectedModel: gpu.NormalizeModel(n.GPUs[0].Model), CPUMilli: n.CPUMilli, MemoryBytes: n.Memory},
		Pods: map[string]Pod{}, Currency: "USD", ListMicros: hourMicros, ListCost: money.FromInt(listPrice),
	}
	for _, p := range n.Pods {
		w.Pods[p.UID()] = Pod{UID: p.UID(), Namespace: p.Namespace}
	}
	for hour := -r.f.Past; hour < to; hour++ {
		h := Hour{Start: anyfleet.At(hour * anyfleet.Hour), CoveredMicros: r.folds[hour].CoveredMicros}
		for _, x := range r.folds[hour].Nodes {
			if x.Node == n.Name {
				h.Seen, h.NodeHour = true, x
			}
		}
		if hour < from {
			w.Before = append(w.Before, h)
		} else {
			w.Hours = append(w.Hours, h)
		}
	}
	return w
}

// shares are those of a line of a window.
func (r *real) shares(w Window, c billing.Component) []Share {
	v, err := NewSplitter(r.p, r.owners).Compute(w, nil)
	if err != nil {
		r.Fatal(err)
	}
	shares, err := v.Of(c, true)
	if err != nil {
		r.Fatal(err)
	}
	return append([]Share(nil), shares...)
}

// split is the node's line over all hours of the fleet.
func (r *real) split(n *anyfleet.Node) []Share {
	return r.shares(r.window(n, 0, r.f.Hours, 0), billing.Node)
}

// asWho names a share as the exact split does.
func asWho(s Share) who {
	k := who{string(s.Component), s.PodUID, s.Category, s.MovedBy, s.Owner.Team}
	if k.component == "" {
		k.component = "gpu"
	}
	return k
}

// of adds up ratios by who pays.
func byWho(shares []Share) map[who]money.Ratio {
	out := map[who]money.Ratio{}
	for _, s := range shares {
		out[asWho(s)] += s.Ratio
	}
	return out
}

// charged adds up what each pod is charged, moved remainders included.
func charged(shares []Share) map[string]money.Ratio {
	out := map[string]money.Ratio{}
	for _, s := range shares {
		if s.PodUID != "" {
			out[s.PodUID] += s.Ratio
		}
	}
	return out
}

// mergedUnits bounds the roundings to a unit that a sum of shares has in it: a share is
// rounded once, once more for each part of it that was moved, and what is added up here
// may be of four models.
const mergedUnits = 16

// compare compares a line's shares with the exact ones.
func compareExact(t *rapid.T, got []Share, want sums) {
	ratios := byWho(got)
	for _, k := range want.sorted() {
		exact := new(big.Rat).Mul(want[k].v, new(big.Rat).SetInt64(int64(money.One)))
		off, _ := exact.Sub(exact, new(big.Rat).SetInt64(int64(ratios[k]))).Float64()
		if bound := want[k].off*float64(money.One) + mergedUnits; off > bound || off < -bound {
			t.Fatalf("%+v: %s, exact %s, off by %.1f units, more than %.1f", k, ratios[k], want[k].v.FloatString(15), -off, bound)
		}
		delete(ratios, k)
	}
	for k, r := range ratios {
		if r > mergedUnits {
			t.Fatalf("%+v: %s, and should have nothing", k, r)
		}
	}
}
