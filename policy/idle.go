package policy

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The ways to treat a remainder.
const (
	Keep         = "keep"         // an own row, paid by remainder_owner
	Proportional = "proportional" // to those who hold, by what they are charged
	EvenSplit    = "even"         // to those who hold, in equal parts
	Replica      = "replica"      // slot_held only: to those who hold, by their slots
)

// The scopes of a redistribution: who shares a remainder.
const (
	ScopeDevice = "device" // the holders of the same GPU or MIG instance, in the same hour
	ScopeNode   = "node"   // everyone charged for the same node in the same window
)

// Idle says what becomes of each remainder category.
type Idle struct {
	Default     Rule   `yaml:"default" json:"default"`
	Unallocated *Rule  `yaml:"unallocated" json:"unallocated,omitempty"`
	SlotHeld    *Rule  `yaml:"slot_held" json:"slot_held,omitempty"`
	NotReady    *Rule  `yaml:"not_ready" json:"not_ready,omitempty"`
	MIG         *Rule  `yaml:"mig_unpartitioned" json:"mig_unpartitioned,omitempty"`
	ClaimIdle   *Rule  `yaml:"claim_idle" json:"claim_idle,omitempty"`
	Pools       []Pool `yaml:"pools" json:"pools,omitempty"`
}

// Pool overrides Idle for node pools that match a pattern; the first match wins.
type Pool struct {
	NodePool    string `yaml:"node_pool" json:"node_pool"`
	Unallocated *Rule  `yaml:"unallocated" json:"unallocated,omitempty"`
	SlotHeld    *Rule  `yaml:"slot_held" json:"slot_held,omitempty"`
	NotReady    *Rule  `yaml:"not_ready" json:"not_ready,omitempty"`
	MIG         *Rule  `yaml:"mig_unpartitioned" json:"mig_unpartitioned,omitempty"`
}

// Rule is one treatment: "proportional", or {policy: proportional, scope: device}.
type Rule struct {
	Policy string `json:"policy"`
	Scope  string `json:"scope"` // "" takes the category's own: device for slot_held, node for the rest
}

// UnmarshalYAML reads the short and the long form.
func (r *Rule) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		r.Policy, r.Scope = n.Value, ""
		return nil
	}
	if n.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: expected a policy or {policy: …, scope: …}", n.Line)
	}
	*r = Rule{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		switch k := n.Content[i]; k.Value {
		case "policy":
			r.Policy = n.Content[i+1].Value
		case "scope":
			r.Scope = n.Content[i+1].Value
		case "fixed":
			return fmt.Errorf("line %d: a fixed table is not available in this version", k.Line)
		default:
			return fmt.Errorf("line %d: unknown key %q", k.Line, k.Value)
		}
	}
	return nil
}

var laterPolicies = []string{"fixed", "platform", "owner", "last_tenant", "headroom"}

func (r *Rule) check(key string, replica bool) error {
	if r == nil {
		return nil
	}
	known := []string{Keep, Proportional, EvenSplit}
	if replica {
		known = append(known, Replica)
	}
	switch {
	case slices.Contains(laterPolicies, r.Policy):
		return fmt.Errorf("idle.%s: %s is not available in this version; use %s", key, r.Policy, strings.Join(known, ", "))
	case !slices.Contains(known, r.Policy):
		return fmt.Errorf("idle.%s: %q is not one of %s", key, r.Policy, strings.Join(known, ", "))
	case r.Scope == "pool" || r.Scope == "cluster":
		return fmt.Errorf("idle.%s: scope %s is not available in this version; use device or node", key, r.Scope)
	case r.Scope != "" && r.Scope != ScopeDevice && r.Scope != ScopeNode:
		return fmt.Errorf("idle.%s: scope %q is not one of device, node", key, r.Scope)
	}
	return nil
}

func (i *Idle) validate() error {
	checks := []error{
		i.Default.check("default", false), i.Unallocated.check("unallocated", false), i.SlotHeld.check("slot_held", true),
		i.NotReady.check("not_ready", false), i.MIG.check("mig_unpartitioned", false), i.ClaimIdle.check("claim_idle", false),
	}
	for _, p := range i.Pools {
		if p.NodePool == "" {
			return fmt.Errorf("idle.pools: an entry without node_pool")
		}
		checks = append(checks, p.Unallocated.check("pools.unallocated", false), p.SlotHeld.check("pools.slot_held", true),
			p.NotReady.check("pools.not_ready", false), p.MIG.check("pools.mig_unpartitioned", false))
	}
	for _, err := range checks {
		if err != nil {
			return err
		}
	}
	return nil
}

// normalise writes out the scope that each category's own rules imply.
func (i *Idle) normalise() {
	set := func(scope string, rules ...*Rule) {
		for _, r := range rules {
			if r != nil && r.Scope == "" {
				r.Scope = scope
			}
		}
	}
	set(ScopeDevice, i.SlotHeld, i.ClaimIdle)
	set(ScopeNode, i.Unallocated, i.NotReady, i.MIG)
	for k := range i.Pools {
		p := &i.Pools[k]
		set(ScopeDevice, p.SlotHeld)
		set(ScopeNode, p.Unallocated, p.NotReady, p.MIG)
	}
}

// For returns the treatment of a category on a node pool, with its scope set.
func (i *Idle) For(category, pool string) Rule {
	pick := func(unallocated, slotHeld, notReady, mig *Rule) *Rule {
		switch category {
		case "unallocated":
			return unallocated
		case "slot_held":
			return slotHeld
		case "not_ready":
			return notReady
		case "mig_unpartitioned":
			return mig
		}
		return nil
	}
	r := i.Default
	switch category {
	case "claim_idle":
		if i.ClaimIdle == nil {
			return Rule{Policy: Keep} // it belongs to the claim: only a rule of its own moves it
		}
		return *i.ClaimIdle
	case "unallocated", "slot_held", "not_ready", "mig_unpartitioned":
	default:
		return Rule{Policy: Keep} // what is not idle is not moved by the default
	}
	if own := pick(i.Unallocated, i.SlotHeld, i.NotReady, i.MIG); own != nil {
		r = *own
	}
	for _, p := range i.Pools {
		if Glob(p.NodePool, pool) {
			if own := pick(p.Unallocated, p.SlotHeld, p.NotReady, p.MIG); own != nil {
				r = *own
			}
			break
		}
	}
	if r.Scope == "" {
		r.Scope = ScopeNode
		if category == "slot_held" {
			r.Scope = ScopeDevice
		}
	}
	return r
}
