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
		{"component_split: scad\n", "not available in this version"},
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
