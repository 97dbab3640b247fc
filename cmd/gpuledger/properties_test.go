package main

import (
	"fmt"
	"maps"
	"math/big"
	"strings"
	"testing"

	"gpuledger/gpu"
	"gpuledger/internal/anyfleet"
)

// The properties of reference/allocation-method.md §4.2 that are about the pipeline, on
// small random fleets through the program and Postgres. The arithmetic ones are in
// allocate.

const seeds = 2 // each is a month

var (
	anyFleets = anyfleet.Options{Nodes: 3, Hours: 3, Past: 1}
	splits    = []string{"gpu_all", "ratio", "scad", "price_difference", "billed_sku"}
	anyPolicy = anyfleet.PolicyOptions{Splits: splits}
)

// ledger reads a query whose last columns are numbers and the rest names.
func ledger(t *testing.T, dsn, query string, numbers int) map[string][]*big.Rat {
	t.Helper()
	out := map[string][]*big.Rat{}
	for _, line := range strings.Split(one(t, dsn, query), "\n") {
		if line == "" {
			continue
		}
		f := strings.Split(line, "|")
		var values []*big.Rat
		for _, text := range f[len(f)-numbers:] {
			v, ok := new(big.Rat).SetString(text)
			if text == "" {
				v, ok = new(big.Rat), true
			}
			if !ok {
				t.Fatalf("%q is no number: %s", text, line)
			}
			values = append(values, v)
		}
		out[strings.Join(f[:len(f)-numbers], "|")] = values
	}
	return out
}

// The charges of a month by whom, what for and when, whatever the lines.
const byTarget = `SELECT charge_start, charge_end, node, category, moved_by, team, pod_uid, component, sum(billed_cost), sum(effective_cost), sum(list_cost)
	FROM finance.allocation GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8`

// P4 anonymity: other names of pods, nodes and GPUs, in another order, change who gets
// the unit that is left over. A unit is a microsecond of a partition-hour, 278 units of
// 1e-12 of a GPU's hour, here of a row and of what is divided by owner within the hour;
// where nothing is moved by what was rounded so.
func TestP04Anonymity(t *testing.T) {
	const query = "SELECT charge_start, charge_end, category, team, pod_uid, component, sum(ratio), count(*) FROM finance.allocation GROUP BY 1, 2, 3, 4, 5, 6"
	for seed := range seeds {
		m := drawMonth(seed, anyFleets, anyfleet.PolicyOptions{Splits: splits[:2], Rules: []string{"keep", "platform", "fixed"}})
		m.policy.Unattributed, m.policy.Idle["slot_held"] = "own_line", anyfleet.Rule{Policy: "keep"}
		dsn, _ := m.run(t)
		was := map[string][]*big.Rat{}
		other, names := m.renamed()
		for k, v := range ledger(t, dsn, query, 2) {
			for old, now := range names {
				k = strings.ReplaceAll(k, "|"+old+"|", "|"+now+"|")
			}
			was[k] = v
		}
		dsn, _ = other.run(t)
		is := ledger(t, dsn, query, 2)
		if len(is) != len(was) {
			t.Errorf("seed %d: %d charges, %d by other names", seed, len(was), len(is))
		}
		for k, v := range was {
			if is[k] == nil {
				t.Errorf("seed %d: %s is charged nothing by its other name", seed, k)
				continue
			}
			bound := new(big.Rat).Mul(v[1], big.NewRat(4*278, 1_000_000_000_000))
			if d := new(big.Rat).Sub(v[0], is[k][0]); d.Abs(d).Cmp(bound) > 0 {
				t.Errorf("seed %d: %s is charged %s, and by its other name %s\n%s\n%s", seed, k, v[0].FloatString(12), is[k][0].FloatString(12), m.fleet, m.policy.YAML())
			}
		}
	}
}

// renamed gives pods, nodes and GPUs other names, in the opposite order, and returns the
// pods' new UIDs by the old ones.
func (m *anyMonth) renamed() (*anyMonth, map[string]string) {
	names := map[string]string{}
	other := *m
	other.fleet = m.fleet.Clone()
	for i, n := range other.fleet.Nodes {
		n.Name = fmt.Sprint("node-", 9-i)
		for g := range n.GPUs {
			n.GPUs[g].UUID = fmt.Sprintf("GPU-%d-%d", 9-i, 9-g)
		}
		for k, p := range n.Pods {
			old := p.UID()
			p.Name = fmt.Sprintf("pod-%d-%02d", 9-i, 99-k)
			names[old] = p.UID()
		}
	}
	inventory, devices := other.fleet.Series(-other.fleet.Past, other.fleet.Hours)
	other.files = [][]gpu.Series{append(inventory, devices...)}
	return &other, names
}

// P11 refinement: two halves of a line, with half the hours and costs each, charge
// everybody what the line did, to a unit of each half.
func TestP11Refinement(t *testing.T) {
	for seed := range seeds {
		m := drawMonth(10+seed, anyFleets, anyPolicy)
		dsn, _ := m.run(t)
		was := ledger(t, dsn, byTarget, 3)
		halves := *m
		halves.bill = nil
		largest := new(big.Rat)
		half := func(text string) string {
			if text == "" {
				return ""
			}
			v, _ := new(big.Rat).SetString(text)
			v.Quo(v, big.NewRat(2, 1))
			if largest.Cmp(v) < 0 {
				largest.Set(v)
			}
			return v.FloatString(12)
		}
		for _, r := range m.bill {
			r.hours, r.billed, r.effective, r.listed = half(r.hours), half(r.billed), half(r.effective), half(r.listed)
			halves.bill = append(halves.bill, r, r)
		}
		dsn, _ = halves.run(t)
		is := ledger(t, dsn, byTarget, 3)
		lines := big.NewRat(int64(2*len(m.bill)), 1_000_000_000_000)
		compareCharges(t, was, is, lines.Mul(lines, largest), fmt.Sprintf("seed %d, in halves", 10+seed))
	}
}

// compareCharges compares what everybody is charged, up to a bound.
func compareCharges(t *testing.T, was, is map[string][]*big.Rat, bound *big.Rat, what string) {
	t.Helper()
	keys := maps.Clone(was)
	maps.Copy(keys, is)
	for k := range keys {
		a, b := was[k], is[k]
		for i := range keys[k] {
			d := new(big.Rat)
			if a != nil {
				d.Add(d, a[i])
			}
			if b != nil {
				d.Sub(d, b[i])
			}
			if d.Abs(d).Cmp(bound) > 0 {
				t.Errorf("%s: %s: %v and %v", what, k, a, b)
			}
		}
	}
}
