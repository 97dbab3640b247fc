package allocate

import (
	"fmt"
	"testing"

	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/gpu"
)

// g05 is one of its two nodes, of 6 units an hour each.
func g05(pool string, units map[string]int64) Window {
	var rows []gpu.Row
	free := int64(6)
	for _, uid := range []string{"w1", "w2", "w3", "w4", "w5"} {
		if n := units[uid]; n > 0 {
			rows = append(rows, podRow(uid, full/6*n))
			free -= n
		}
	}
	w := window(wholeGPU("A100-SXM4-40GB", append(rows, catRow(gpu.Unallocated, full/6*free))...))
	w.Hours[0].Pool = pool
	return w
}

// idleOf splits windows that cost 6 each and adds the moved rows up by pod, the kept
// ones by category.
func idleOf(t *testing.T, yaml string, windows ...Window) map[string]string {
	t.Helper()
	p := testPolicy(t, yaml)
	var around Around
	for i := range windows {
		v, err := Compute(windows[len(windows)-1-i], p, &nobody, nil)
		if err != nil {
			t.Fatal(err)
		}
		shares, err := v.Of(billing.Node, true)
		if err != nil {
			t.Fatal(err)
		}
		around.Add(shares, money.MustParse("6"))
	}
	sum := map[string]money.Ratio{}
	for _, w := range windows {
		w.Around = &around
		shares, err := Split(w, p, &nobody)
		if err != nil {
			t.Fatal(err)
		}
		var all, device money.Ratio
		for _, s := range shares {
			all, device = all+s.Ratio, device+s.GPURatio
			who := s.PodUID
			if who == "" {
				who = s.Category
			}
			if s.Category != PodCategory {
				sum[who] += s.Ratio
			}
			if s.Pool != w.Hours[0].Pool {
				t.Errorf("a share of pool %q says %q", w.Hours[0].Pool, s.Pool)
			}
		}
		if all != money.One || device != money.One {
			t.Fatalf("%s: ratios sum to %s, of device time to %s", yaml, all, device)
		}
	}
	out := map[string]string{}
	for who, r := range sum {
		out[who] = rounded(t, money.MustParse("6").Mul(r), 6)
	}
	return out
}

func TestGoldenG05(t *testing.T) {
	one, two := map[string]int64{"w1": 1, "w2": 1, "w3": 1, "w4": 1}, map[string]int64{"w5": 1}
	byNode := map[string]string{"w1": "0.5", "w2": "0.5", "w3": "0.5", "w4": "0.5", "w5": "5"}
	byCluster := map[string]string{"w1": "1.4", "w2": "1.4", "w3": "1.4", "w4": "1.4", "w5": "1.4"}
	for _, how := range []string{"proportional", "even"} {
		for _, c := range []struct {
			rule, pool string
			want       map[string]string
		}{
			{"keep", "a", map[string]string{"unallocated": "7"}},
			{how, "a", byNode},
			{fmt.Sprintf("{policy: %s, scope: cluster}", how), "b", byCluster},
			{fmt.Sprintf("{policy: %s, scope: pool}", how), "a", byCluster},
			{fmt.Sprintf("{policy: %s, scope: pool}", how), "b", byNode},
			{fmt.Sprintf("{policy: %s, scope: node, climb: true}", how), "b", byNode},
		} {
			wantCosts(t, idleOf(t, "idle: {default: "+c.rule+"}", g05("a", one), g05(c.pool, two)), c.want)
		}
	}
}

// Of 1, 2 and nobody: w1 and w2 on node a, an empty node in pool b.
func TestClimbs(t *testing.T) {
	pods := map[string]int64{"w1": 1, "w2": 2}
	for rule, want := range map[string]map[string]string{
		"proportional":                                       {"w1": "1", "w2": "2", "unallocated": "6"},
		"{policy: proportional, scope: device}":              {"w1": "1", "w2": "2", "unallocated": "6"},
		"{policy: proportional, scope: pool}":                {"w1": "3", "w2": "6"},
		"{policy: even, scope: pool}":                        {"w1": "4.5", "w2": "4.5"},
		"{policy: proportional, climb: true}":                {"w1": "3", "w2": "6"},
		"{policy: even, scope: device, climb: true}":         {"w1": "4.5", "w2": "4.5"},
		"{policy: proportional, scope: cluster}":             {"w1": "3", "w2": "6"},
		"{policy: proportional, scope: device, climb: true}": {"w1": "3", "w2": "6"},
	} {
		wantCosts(t, idleOf(t, "idle: {default: "+rule+"}", g05("a", pods), g05("b", nil)), want)
	}
	// Nobody anywhere: it stays.
	wantCosts(t, idleOf(t, "idle: {default: {policy: even, scope: cluster}}", g05("a", nil), g05("b", nil)), map[string]string{"unallocated": "12"})
}
