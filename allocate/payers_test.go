package allocate

import (
	"testing"

	"gpuledger/billing/money"
	"gpuledger/gpu"
	"gpuledger/policy"
)

// byTeam splits a cost and adds it up by the payer, who is the pod where it has no owner.
func byTeam(t *testing.T, shares []Share, cost string) map[string]string {
	t.Helper()
	sum := map[string]money.Ratio{}
	var all, device money.Ratio
	for _, s := range shares {
		who := s.PodUID
		if who == "" {
			who = s.Owner.Team
		}
		sum[who] += s.Ratio
		all, device = all+s.Ratio, device+s.GPURatio
	}
	if all != money.One || device != money.One {
		t.Fatalf("ratios sum to %s, of device time to %s", all, device)
	}
	out := map[string]string{}
	for who, r := range sum {
		out[who] = rounded(t, money.MustParse(cost).Mul(r), 6)
	}
	return out
}

// G14: 12,000 shared over direct costs of 50,000, 30,000 and 20,000. The pods are named
// as the teams they belong to.
func TestGoldenG14(t *testing.T) {
	const hour = 3_600_000_000
	share := func(of int64) int64 { return hour / 112 * of }
	rows := []gpu.Row{podRow("sales", share(50)), podRow("qa", share(30)), podRow("eng", share(20))}
	rows = append(rows, catRow(gpu.Unallocated, hour-share(100)))
	for yaml, want := range map[string]map[string]string{
		"idle: {default: proportional}":                               {"sales": "56000", "qa": "33600", "eng": "22400"},
		"idle: {default: even}":                                       {"sales": "54000", "qa": "34000", "eng": "24000"},
		"idle: {default: {fixed: {sales: 45, qa: 30, eng: 25}}}":      {"sales": "55400", "qa": "33600", "eng": "23000"},
		"idle: {unallocated: {fixed: {sales: .9, qa: 0.6, eng: .5}}}": {"sales": "55400", "qa": "33600", "eng": "23000"},
	} {
		shares, err := Split(window(wholeGPU("A100-SXM4-40GB", rows...)), testPolicy(t, yaml), &nobody)
		if err != nil {
			t.Fatal(err)
		}
		got := byTeam(t, shares, "112000")
		for who := range got {
			got[who] = rounded(t, got[who], 2) // an hour is no multiple of 112 µs
		}
		wantCosts(t, got, want)
	}
}

func TestOwnerOfThePool(t *testing.T) {
	owners, err := policy.ParseOwners("o", []byte(`rules: [{match: {node_pool: "train-*", cluster: c1}, team: train, cost_center: "7"}, {match: {namespace: x}, team: x}]`))
	if err != nil {
		t.Fatal(err)
	}
	for pool, want := range map[string]Target{
		"train-a": {MovedBy: policy.PoolOwner, Owner: policy.Owner{Team: "train", CostCenter: "7"}},
		"serve":   {Owner: policy.Owner{Team: "finops"}}, // no rule: it stays
	} {
		w := window(wholeGPU("A100-SXM4-40GB", podRow("a", full/2), catRow(gpu.Unallocated, full/2)))
		w.Node.Cluster, w.Hours[0].Pool = "c1", pool
		shares, err := Split(w, testPolicy(t, "{idle: {default: owner}, remainder_owner: [{team: finops}]}"), &owners)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range shares {
			if s.PodUID == "" && (s.Category != "unallocated" || s.MovedBy != want.MovedBy || s.Owner.Key() != want.Owner.Key()) {
				t.Errorf("%s: %+v", pool, s.Target)
			}
		}
	}
}

// A node of which nothing is known goes by the rule of no_telemetry.
func TestNothingKnownToTeams(t *testing.T) {
	w := window()
	w.Hours = []Hour{{Start: hour0}}
	for yaml, want := range map[string]map[string]string{
		"idle: {no_telemetry: {fixed: {a: 1, b: 2}}}":                         {"a": "1", "b": "2"},
		"idle: {no_telemetry: platform}":                                      {"platform": "3"},
		"{idle: {no_telemetry: platform}, remainder_owner: [{team: finops}]}": {"platform": "3"},
	} {
		shares, err := Split(w, testPolicy(t, yaml), &nobody)
		if err != nil {
			t.Fatal(err)
		}
		wantCosts(t, byTeam(t, shares, "3"), want)
		if shares[0].Category != string(gpu.NoTelemetry) || shares[0].MovedBy == "" {
			t.Errorf("%s: %+v", yaml, shares[0].Target)
		}
	}
}

func TestLooseLines(t *testing.T) {
	p := testPolicy(t, `idle: {commitment_unused: {fixed: {a: 1, b: 1, c: 1}}, tax: platform, pools: [{node_pool: "x*", no_telemetry: platform}]}`)
	for _, c := range []struct {
		l    Loose
		want map[string]string
	}{
		{Loose{Category: "commitment_unused", Devices: true}, map[string]string{"a": "1", "b": "1", "c": "1"}},
		{Loose{Category: "tax", Devices: true}, map[string]string{"platform": "3"}},
		{Loose{Category: "no_telemetry", Pool: "x1", Devices: true}, map[string]string{"platform": "3"}},
	} {
		shares, err := c.l.Shares(p, &nobody)
		if err != nil {
			t.Fatal(err)
		}
		wantCosts(t, byTeam(t, shares, "3"), c.want)
		for _, s := range shares {
			if s.MovedBy == "" || s.Category != c.l.Category || s.ByMethod[gpu.NoMethod] != s.Ratio {
				t.Errorf("%+v", s)
			}
		}
	}
}

// What the driver keeps of a GPU goes to those who hold it, where the rule is of the
// device, and stays where nobody does.
func TestDriverReservedToTheHolders(t *testing.T) {
	held, free := wholeGPU("L4", podRow("a", full/2), catRow(gpu.Unallocated, full/2)), wholeGPU("L4", catRow(gpu.Unallocated, full))
	held.UUID, free.UUID = "GPU-1", "GPU-2"
	for _, d := range []*gpu.Device{&held, &free} {
		d.TotalBytes, d.ReservedBytes = 100, 10
	}
	p := testPolicy(t, "{driver_reserved: own_line, idle: {driver_reserved: {policy: proportional, scope: device}}}")
	shares, err := Split(window(held, free), p, &nobody)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]money.Ratio{}
	for _, s := range shares {
		got[s.PodUID+"/"+s.Category+"/"+s.MovedBy] += s.Ratio
	}
	want := map[string]money.Ratio{"a/pod/": 225_000_000_000, "/unallocated/": 675_000_000_000, "a/driver_reserved/proportional": 50_000_000_000, "/driver_reserved/": 50_000_000_000}
	for k, r := range want {
		if got[k] != r {
			t.Errorf("%s: %s, want %s", k, got[k], r)
		}
	}
}
