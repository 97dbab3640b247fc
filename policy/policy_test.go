package policy

import (
	"strings"
	"testing"
	"time"
)

func TestParseDefaultsAndHash(t *testing.T) {
	a, err := Parse("policy.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Parse("policy.yaml", []byte("# a comment\nbasis: max\nidle: {default: keep, slot_held: {policy: proportional, scope: device}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if a.Hash() != b.Hash() {
		t.Errorf("defaults written out change the hash:\n%s\n%s", a.Canonical(), b.Canonical())
	}
	if c, err := Parse("policy.yaml", []byte("idle: {default: keep, slot_held: proportional}")); err != nil || c.Hash() != a.Hash() {
		t.Errorf("the short form changes the hash: %v\n%s", err, c.Canonical())
	}
	if r := a.Idle.For("slot_held", "x"); r.Policy != Proportional || r.Scope != ScopeDevice {
		t.Errorf("slot_held %+v", r)
	}
	if r := a.Idle.For("unallocated", "x"); r.Policy != Keep {
		t.Errorf("unallocated %+v", r)
	}
	if r := a.Idle.For("no_telemetry", "x"); r.Policy != Keep {
		t.Errorf("no_telemetry %+v", r)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ text, says string }{
		{"basis: max\nbsis: used\n", `policy.yaml: line 2: unknown key "bsis"`},
		{"basis: most\n", `basis: "most" is not one of max, used, request`},
		{"idle: {default: keep, slot_hold: even}\n", `unknown key "slot_hold"`},
		{"idle: {slot_held: {policy: even, scop: node}}\n", `unknown key "scop"`},
		{"idle: {not_ready: last_tenant}\n", "idle.not_ready: last_tenant goes with unallocated only"},
		{"idle: {default: last_tenant}\n", "idle.default: last_tenant goes with unallocated only"},
		{"idle: {unallocated: {policy: last_tenant, lookback: soon}}\n", `line 1: lookback: "soon" is not a duration`},
		{"idle: {unallocated: {policy: last_tenant, lookback: 25h}}\n", "1s to 24h"},
		{"idle: {unallocated: {policy: last_tenant, scope: node}}\n", "last_tenant has no scope"},
		{"idle: {unallocated: {policy: even, lookback: 10m}}\n", "a lookback goes with the policy last_tenant, not even"},
		{"idle: {unallocated: {policy: last_tenant, lookback: 1ns}}\n", "1s to 24h"},
		{"idle: {default: {policy: keep, policy: even}}\n", "policy is there twice"},
		{"gates: {max_no_telemetry: -5%}\n", "gates.max_no_telemetry: -5% is below 0"},
		{"driver_reserved: {own_line: true}\n", "line 1: expected a text, found keys and values"},
		{"partition: memory\n", `line 1: expected keys and values, found "memory"`},
		{"model_weights: {model: a}\n", "line 1: expected a list, found keys and values"},
		{"idle: {unallocated: headroom}\n", "headroom needs its size: {headroom: 20%}"},
		{"idle: {unallocated: {headroom: 120%}}\n", `headroom: "120%" is not a percentage`},
		{"idle: {unallocated: {policy: even, headroom: 20%}}\n", "a headroom goes with the policy headroom, not even"},
		{"idle: {unallocated: {headroom: 20%, scope: pool}}\n", "headroom has no scope"},
		{"idle: {tax: {headroom: 20%}}\n", `"headroom" is not one of keep, platform, owner, fixed`},
		{"idle: {tax: even}\n", `idle.tax: "even" is not one of keep, platform, owner, fixed`},
		{"idle: {not_ready: fixed}\n", "idle.not_ready: fixed needs its shares"},
		{"idle: {not_ready: {policy: even, fixed: {a: 1}}}\n", "idle.not_ready: shares go with the policy fixed, not even"},
		{"idle: {default: {fixed: {a: 0}}}\n", `line 1: fixed.a: "0" is not a number above 0`},
		{"idle: {default: {fixed: {a: 0.0000000000001}}}\n", "at most 12 decimals"},
		{"idle: {default: {fixed: {a: 1, a: 2}}}\n", `team "a" is empty or there twice`},
		{"idle: {default: {fixed: [a, b]}}\n", "expected {team: share, …}"},
		{"idle: {unattributed: {policy: platform, scope: node}}\n", "idle.unattributed: platform has no scope"},
		{"idle: {pools: [{node_pool: \"*\", txa: platform}]}\n", `idle.pools.txa: unknown key "txa"`},
		{"idle: {tax: }\n", "idle.tax: no policy is named"},
		{"idle: {default: {policy: even, scope: world}}\n", `idle.default: scope "world" is not one of device, node, pool, cluster`},
		{"idle: {slot_held: {policy: replica, scope: pool}}\n", "idle.slot_held: replica does not look beyond the node"},
		{"idle: {pools: [{node_pool: a, not_ready: {policy: keep, climb: true}}]}\n", "idle.pools.not_ready: keep does not look beyond"},
		{"idle: {default: {policy: even, climb: up}}\n", `climb: "up" is not true or false`},
		{"driver_reserved: own\n", `driver_reserved: "own" is not one of exclude, own_line`},
		{"component_split: half\n", `component_split: "half" is not one of gpu_all, price_difference, ratio, scad, billed_sku`},
		{"component_split: price_difference\n", `add component_prices: {vcpu: "0.0347", gib: "0.0039"}`},
		{"component_prices: {vcpu: \"0.0347\"}\n", `component_prices.gib: "" is not a price`},
		{"component_prices: [{vcpu: \"0.0347\", gb: \"1\"}]\n", `line 1: unknown key "gb"`},
		{"component_prices: 0.0347\n", "expected component_prices: {vcpu:"},
		{"component_prices: {vcpu: \"-1\", gib: \"1\"}\n", "component_prices.vcpu: -1 is not above 0"},
		{"component_ratios: {gpu: \"0.0000000001\"}\n", "more than 9 decimals"},
		{"component_ratios: {cpu: \"1\"}\n", `unknown key "cpu"`},
		{"model_weights: [{model: H100, weight: \"0\"}]\n", "weight above 0"},
		{"gates: {max_unowned: 2}\n", "percentage"},
		{"remainder_owner: [{match: {category: idle}, team: x}]\n", `category "idle" is none of`},
		{"remainder_owner: [{match: {category: tax}, team: x}]\n", "every remainder has a payer"},
		{"remainder_owner: [{cost_center: \"1\"}]\n", "no team"},
		{"basis: max\n---\nbasis: used\n", "more than one"},
	} {
		if _, err := Parse("policy.yaml", []byte(c.text)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: %v, want %q", c.text, err, c.says)
		}
	}
}

func TestIdlePools(t *testing.T) {
	p, err := Parse("policy.yaml", []byte(`idle: {default: even, pools: [{node_pool: "train-*", unallocated: proportional}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if r := p.Idle.For("unallocated", "train-a"); r.Policy != Proportional || r.Scope != ScopeNode {
		t.Errorf("%+v", r)
	}
	if r := p.Idle.For("unallocated", "serve"); r.Policy != EvenSplit {
		t.Errorf("%+v", r)
	}
}

func TestIdleBeyondTheNode(t *testing.T) {
	for text, want := range map[string]bool{
		"":                                 false,
		"idle: {default: proportional}":    false,
		"idle: {default: {fixed: {a: 1}}}": false,
		"idle: {default: {policy: even, scope: cluster}}":                                  true,
		"idle: {no_telemetry: {policy: even, scope: pool}}":                                true,
		"idle: {unallocated: {policy: even, climb: true}}":                                 true,
		"idle: {pools: [{node_pool: a, claim_idle: {policy: proportional, scope: pool}}]}": true,
	} {
		p, err := Parse("p", []byte(text))
		if err != nil || p.Idle.Wide() != want {
			t.Errorf("%s: %v %v", text, p.Idle.Wide(), err)
		}
		if q, err := FromCanonical(p.Canonical()); err != nil || q.Hash() != p.Hash() || q.Idle.Wide() != want {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestIdleToTeams(t *testing.T) {
	a, err := Parse("p", []byte(`{idle: {default: platform, tax: {fixed: {sales: 45.0, qa: 30, eng: "25"}}, no_telemetry: owner, pools: [{node_pool: "b*", claim_idle: platform}]},
  remainder_owner: [{match: {category: tax}, team: platform, cost_center: "1"}, {team: platform, cost_center: "2"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Parse("p", []byte(`{idle: {default: platform, tax: {policy: fixed, fixed: {eng: 25, qa: 30, sales: 45}}, no_telemetry: owner, pools: [{node_pool: "b*", claim_idle: platform}]},
  remainder_owner: [{match: {category: tax}, team: platform, cost_center: "1"}, {team: platform, cost_center: "2"}]}`))
	if err != nil || a.Hash() != b.Hash() {
		t.Errorf("one table in two spellings has two hashes: %v\n%s\n%s", err, a.Canonical(), b.Canonical())
	}
	if c, err := FromCanonical(a.Canonical()); err != nil || c.Hash() != a.Hash() {
		t.Errorf("%v\n%s\n%s", err, a.Canonical(), c.Canonical())
	}
	for _, c := range []struct{ category, pool, policy string }{
		{"unallocated", "a", Platform},
		{"slot_held", "a", Proportional},
		{"tax", "", Fixed},
		{"no_telemetry", "a", PoolOwner},
		{"credit", "", Keep},
		{"claim_idle", "a", Keep},
		{"claim_idle", "b1", Platform},
		{"unattributed", "a", Keep},
	} {
		if r := a.Idle.For(c.category, c.pool); r.Policy != c.policy {
			t.Errorf("%s of %q: %+v", c.category, c.pool, r)
		}
	}
	if w := a.Idle.For("tax", "").Shares[2].Weight(); w != 45_000_000_000_000 {
		t.Errorf("weight %d", w)
	}
	o, err := ParseOwners("o", []byte(`rules: [{match: {node_pool: x}, team: qa, cost_center: "3", to: 2026-01-01}, {match: {node_pool: x}, team: qa, cost_center: "4"}]`))
	if err != nil {
		t.Fatal(err)
	}
	for team, want := range map[string]string{PlatformTeam: "1", "qa": "4", "eng": ""} {
		if got := a.TeamOf(team, &o, time.Date(2026, 10, 5, 0, 0, 0, 0, time.UTC)); got.Team != team || got.CostCenter != want {
			t.Errorf("%s: %+v", team, got)
		}
	}
}

func TestOwnersFirstMatchAtTheInstant(t *testing.T) {
	o, err := ParseOwners("owners.yaml", []byte(`
timezone: Europe/Berlin
rules:
  - {match: {namespace: "team-a-*", cluster: "prod-*"}, team: search, cost_center: "4711", from: 2026-01-01, to: 2026-10-16}
  - {match: {label: {app.kubernetes.io/part-of: ranking}}, team: ranking}
dimensions: {ai_model: [label:model, label:serving.kserve.io/inferenceservice]}
`))
	if err != nil {
		t.Fatal(err)
	}
	s := Subject{Cluster: "prod-1", Namespace: "team-a-x", Labels: map[string]string{"app_kubernetes_io_part_of": "ranking", "serving_kserve_io_inferenceservice": "llama"}}
	midnight := time.Date(2026, 10, 15, 22, 0, 0, 0, time.UTC) // 00:00 in Berlin
	if got := o.Resolve(s, midnight.Add(-time.Second)); got.Team != "search" || got.CostCenter != "4711" || got.Dimensions["ai_model"] != "llama" {
		t.Errorf("before: %+v", got)
	}
	if got := o.Resolve(s, midnight); got.Team != "ranking" {
		t.Errorf("after: %+v", got)
	}
	if got := o.Resolve(Subject{Namespace: "other"}, midnight); got.Team != "" {
		t.Errorf("nobody: %+v", got)
	}
}

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		want          bool
	}{{"a*", "abc", true}, {"*c", "abc", true}, {"a*c*e", "abcde", true}, {"a*c", "ab", false}, {"*", "", true}, {"ab*ba", "aba", false}, {"abc", "abc", true}, {"", "x", false}} {
		if Glob(c.pattern, c.text) != c.want {
			t.Errorf("%q %q", c.pattern, c.text)
		}
	}
}

func TestWeights(t *testing.T) {
	p, err := Parse("p", []byte(`model_weights: [{model: H100, weight: "4.0", from: 2026-01-01}, {model: H100, weight: "3.5", from: 2026-10-15}, {model: L4, weight: "0.5"}]`))
	if err != nil {
		t.Fatal(err)
	}
	id := strings.ToUpper
	for day, want := range map[int]uint64{1: 4_000_000, 15: 3_500_000} {
		if w, ok := p.WeightOf(id, "h100", time.Date(2026, 10, day, 0, 0, 0, 0, time.UTC)); !ok || w != want {
			t.Errorf("day %d: %d %v", day, w, ok)
		}
	}
	if _, ok := p.WeightOf(id, "A100", time.Now()); ok {
		t.Error("a model without a weight has one")
	}
}

func TestComponents(t *testing.T) {
	plain, err := Parse("p", nil)
	if err != nil || strings.Contains(string(plain.Canonical()), "component_prices") || strings.Contains(string(plain.Canonical()), "component_ratios") {
		t.Fatalf("a policy without prices changes its hash: %v\n%s", err, plain.Canonical())
	}
	ratio, err := Parse("p", []byte("component_split: ratio"))
	if err != nil {
		t.Fatal(err)
	}
	if r := ratio.Ratios(); r != (Nano{GPU: 950_000_000, VCPU: 31_611_000, GiB: 4_237_000}) {
		t.Errorf("%+v", r)
	}
	spelt, err := Parse("p", []byte(`{component_split: ratio, component_ratios: {gpu: "0.95", gib: "0.004237"}}`))
	if err != nil || spelt.Hash() != ratio.Hash() {
		t.Errorf("defaults written out change the hash: %v\n%s", err, spelt.Canonical())
	}
	p, err := Parse("p", []byte(`
component_split: price_difference
component_prices:
  - {vcpu: "0.03", gib: "0.004", from: 2026-01-01}
  - {vcpu: "0.0347", gib: "0.0039", from: 2026-10-15}
  - {vcpu: "0.032", gib: "0.0036", currency: EUR, from: 2026-10-20}
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		currency string
		day      int
		vcpu     uint64
	}{{"USD", 14, 30_000_000}, {"USD", 15, 34_700_000}, {"EUR", 15, 34_700_000}, {"EUR", 20, 32_000_000}, {"USD", 20, 34_700_000}} {
		if got, ok := p.PricesAt(c.currency, time.Date(2026, 10, c.day, 0, 0, 0, 0, time.UTC)); !ok || got.VCPU != c.vcpu {
			t.Errorf("%+v: %+v %v", c, got, ok)
		}
	}
	if _, ok := p.PricesAt("USD", time.Date(2025, 12, 31, 0, 0, 0, 0, time.UTC)); ok {
		t.Error("a day before the first price has one")
	}
	q, err := FromCanonical(p.Canonical())
	if err != nil || q.Hash() != p.Hash() {
		t.Errorf("%v\n%s\n%s", err, p.Canonical(), q.Canonical())
	}
}

func TestCanonicalRoundTrip(t *testing.T) {
	p, err := Parse("p", []byte(`idle: {default: even, pools: [{node_pool: "a*", slot_held: {policy: replica, scope: device}}]}
model_weights: [{model: H100, weight: "4.0", from: 2026-01-01}, {model: L4, weight: "1"}]`))
	if err != nil {
		t.Fatal(err)
	}
	q, err := FromCanonical(p.Canonical())
	if err != nil || q.Hash() != p.Hash() {
		t.Errorf("%v\n%s\n%s", err, p.Canonical(), q.Canonical())
	}
	o, err := ParseOwners("o", []byte(`{timezone: Europe/Berlin, rules: [{match: {namespace: x}, team: t, from: 2026-01-01}]}`))
	if err != nil {
		t.Fatal(err)
	}
	r, err := OwnersFromCanonical(o.Canonical())
	if err != nil || r.Hash() != o.Hash() || r.location.String() != "Europe/Berlin" {
		t.Errorf("%v %s", err, r.Canonical())
	}
}
