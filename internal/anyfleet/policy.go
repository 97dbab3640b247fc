package anyfleet

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"pgregory.net/rapid"
)

// Policy is a policy as its document says it.
type Policy struct {
	Basis, Reservation string // of a time-slicing replica
	Weight, Normaliser string // of a partition
	Unattributed       string
	Driver             string
	Split              string
	Idle               map[string]Rule            // by category, or default
	Pools              map[string]map[string]Rule // the same by node pool
}

// Rule is the treatment of a category.
type Rule struct {
	Policy, Scope string
	Climb         bool
	Lookback      int // seconds, of last_tenant
	Headroom      int // percent
	Shares        map[string]int
}

// PolicyOptions narrow what is drawn.
type PolicyOptions struct {
	Splits      []string // component_split; nil: gpu_all
	Rules       []string // nil: any; else of these policies
	OnNode      bool     // no rule looks beyond the node
	WholeBasis  bool     // basis max or used
	NoLast      bool     // no last_tenant
	NoHeadroom  bool
	NoReplicaOf bool // no replica of time-slicing is a reservation
}

// What a category's rule is where the policy is silent about it.
var defaults = map[string]string{"unallocated": "default", "slot_held": "default", "not_ready": "default", "mig_unpartitioned": "default"}

// For is the rule of a category in a pool, with its scope.
func (p *Policy) For(category, pool string) Rule {
	r := Rule{Policy: "keep"}
	if d, ok := p.Idle[defaults[category]]; ok {
		r = d
	}
	if category == "slot_held" { // the program's own, whatever the default
		r = Rule{Policy: "proportional"}
	}
	if own, ok := p.Idle[category]; ok {
		r = own
	}
	if own, ok := p.Pools[pool][category]; ok {
		r = own
	}
	if r.Scope == "" {
		r.Scope = "node"
		if ofDevice(category) {
			r.Scope = "device"
		}
	}
	switch {
	case category == "unattributed" && p.Unattributed == "spread":
		return Rule{Policy: "proportional", Scope: "device"}
	case p.Split == "scad" && r.Policy == "keep" && (category == "unallocated" || category == "mig_unpartitioned"):
		return Rule{Policy: "scad", Scope: "node"}
	case r.Policy == "headroom" || r.Policy == "last_tenant":
		r.Scope = "node"
	}
	return r
}

func ofDevice(category string) bool {
	return category == "slot_held" || category == "claim_idle" || category == "unattributed"
}

// Has reports whether any rule has a policy of these.
func (p *Policy) Has(policies ...string) bool {
	all := []map[string]Rule{p.Idle}
	for _, rules := range p.Pools {
		all = append(all, rules)
	}
	for _, rules := range all {
		for _, r := range rules {
			if slices.Contains(policies, r.Policy) {
				return true
			}
		}
	}
	return false
}

// DrawPolicy draws a policy.
func DrawPolicy(t *rapid.T, o PolicyOptions) *Policy {
	of := func(what string, values ...string) string { return rapid.SampledFrom(values).Draw(t, what) }
	p := &Policy{
		Basis: of("basis", "max", "used", "request"), Reservation: of("reservation", "none", "replica"),
		Weight: of("weight", "memory", "compute", "dominant"), Normaliser: of("normaliser", "configured", "physical"),
		Unattributed: of("unattributed", "own_line", "spread"), Driver: of("driver", "exclude", "own_line"),
		Split: "gpu_all", Idle: map[string]Rule{}, Pools: map[string]map[string]Rule{},
	}
	if o.Splits != nil {
		p.Split = of("split", o.Splits...)
	}
	if o.WholeBasis && p.Basis == "request" {
		p.Basis = "max"
	}
	if o.NoReplicaOf {
		p.Reservation = "none"
	}
	for _, category := range []string{"default", "unallocated", "slot_held", "claim_idle", "unattributed", "mig_unpartitioned", "not_ready", "no_telemetry", "driver_reserved"} {
		if rapid.IntRange(0, 2).Draw(t, category) > 0 {
			p.Idle[category] = drawRule(t, category, o)
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "by pool") == 0 {
		category := of("pool's category", "unallocated", "slot_held", "no_telemetry")
		p.Pools["a"] = map[string]Rule{category: drawRule(t, category, o)}
	}
	return p
}

func drawRule(t *rapid.T, category string, o PolicyOptions) Rule {
	policies := []string{"keep", "proportional", "even", "proportional", "even", "platform", "owner", "fixed"}
	switch category {
	case "slot_held":
		policies = append(policies, "replica")
	case "unallocated":
		policies = append(policies, "last_tenant", "last_tenant", "last_tenant", "headroom", "headroom")
	}
	policies = slices.DeleteFunc(policies, func(p string) bool {
		return o.NoLast && p == "last_tenant" || o.NoHeadroom && p == "headroom" || o.Rules != nil && !slices.Contains(o.Rules, p)
	})
	r := Rule{Policy: rapid.SampledFrom(policies).Draw(t, category+"'s policy")}
	switch r.Policy {
	case "proportional", "even":
		scopes := []string{"", "node"}
		if category != "default" && (ofDevice(category) || category == "unallocated") {
			scopes = append(scopes, "device")
		}
		if !o.OnNode {
			scopes = append(scopes, "pool", "cluster")
			r.Climb = rapid.IntRange(0, 3).Draw(t, "climb") == 0
		}
		r.Scope = rapid.SampledFrom(scopes).Draw(t, "scope")
	case "fixed":
		r.Shares = map[string]int{"sales": rapid.IntRange(1, 60).Draw(t, "sales"), "qa": rapid.IntRange(1, 60).Draw(t, "qa")}
	case "last_tenant":
		r.Lookback = 60 * rapid.IntRange(1, 120).Draw(t, "lookback")
	case "headroom":
		r.Headroom = rapid.IntRange(1, 100).Draw(t, "headroom")
	}
	return r
}

// Weights and prices of every policy.
var (
	ModelWeights = []string{"1", "0.75", "0.5", "4"} // of Models
	VCPU, GiB    = "0.05", "0.005"
)

// YAML is the policy's document.
func (p *Policy) YAML() string {
	var b strings.Builder
	fmt.Fprintf(&b, "basis: %s\nreservation: {time_slicing: %s}\npartition: {weight: %s, normaliser: %s}\nunattributed: {mode: %s}\ndriver_reserved: %s\ncomponent_split: %s\n",
		p.Basis, p.Reservation, p.Weight, p.Normaliser, p.Unattributed, p.Driver, p.Split)
	fmt.Fprintf(&b, "component_prices: {vcpu: \"%s\", gib: \"%s\"}\nmodel_weights:\n", VCPU, GiB)
	for i, m := range Models() {
		fmt.Fprintf(&b, "  - {model: %s, weight: \"%s\"}\n", m, ModelWeights[i])
	}
	b.WriteString("idle:\n")
	write := func(indent string, rules map[string]Rule) {
		for _, category := range slices.Sorted(maps.Keys(rules)) {
			fmt.Fprintf(&b, "%s%s: %s\n", indent, category, rules[category])
		}
	}
	write("  ", p.Idle)
	if len(p.Pools) > 0 {
		b.WriteString("  pools:\n")
	}
	for _, pool := range slices.Sorted(maps.Keys(p.Pools)) {
		fmt.Fprintf(&b, "    - node_pool: %s\n", pool)
		write("      ", p.Pools[pool])
	}
	if len(p.Idle)+len(p.Pools) == 0 {
		return strings.TrimSuffix(b.String(), "idle:\n")
	}
	return b.String()
}

func (r Rule) String() string {
	switch {
	case r.Policy == "fixed":
		return fmt.Sprintf("{fixed: {sales: %d, qa: %d}}", r.Shares["sales"], r.Shares["qa"])
	case r.Policy == "headroom":
		return fmt.Sprintf("{headroom: %d%%}", r.Headroom)
	case r.Policy == "last_tenant":
		return fmt.Sprintf("{policy: last_tenant, lookback: %ds}", r.Lookback)
	}
	s := "{policy: " + r.Policy
	if r.Scope != "" {
		s += ", scope: " + r.Scope
	}
	if r.Climb {
		s += ", climb: true"
	}
	return s + "}"
}

// Owners is an owners.yaml: the team of namespace ml changes half an hour after Start.
const Owners = `timezone: Asia/Kolkata
rules:
  - {match: {namespace: ml}, team: old, cost_center: "1", to: 2026-10-06}
  - {match: {namespace: ml}, team: new, cost_center: "2"}
  - {match: {namespace: web}, team: web, cost_center: "3"}
  - {match: {node_pool: a}, team: pool-a, cost_center: "4"}
`

// Changes is when the team of namespace ml does, after Start.
const Changes = Hour / 2

// Team is a pod's team at some time.
func (p *Pod) Team(at int) string {
	switch {
	case p.Namespace == "web":
		return "web"
	case at < Changes:
		return "old"
	}
	return "new"
}
