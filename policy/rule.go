package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"gpuledger/billing/money"
)

// Rule is one treatment: "proportional", {policy: proportional, scope: device}, or
// {fixed: {sales: 45, qa: 30, eng: 25}}.
type Rule struct {
	Policy string       `json:"policy"`
	Scope  string       `json:"scope"` // "" takes the category's own; of no use where a team takes the remainder
	Shares []FixedShare `json:"fixed,omitempty"`

	// Climb takes the next wider scope where nobody is there to receive: device, node,
	// pool, cluster. Of pool scope it goes without saying.
	Climb bool `json:"climb,omitempty"`

	// Lookback is for how long after the last pod left LastTenant charges it: a
	// duration, "10m0s" where the document names none.
	Lookback string `json:"lookback,omitempty"`
	// Headroom is the part of the node that the platform keeps free: "0.2" of 20%.
	Headroom string `json:"headroom,omitempty"`
}

// defaultLookback is the cluster autoscaler's --scale-down-unneeded-time.
const (
	defaultLookback = 10 * time.Minute
	mostLookback    = 24 * time.Hour
)

// LookbackMicros is Lookback in µs; 0 of any other policy.
func (r *Rule) LookbackMicros() int64 {
	if r.Policy != LastTenant {
		return 0
	}
	d, err := time.ParseDuration(r.Lookback)
	if err != nil {
		d = defaultLookback // Parse refuses anything else
	}
	return d.Microseconds()
}

// HeadroomUnits is Headroom as a whole number of 1e-12.
func (r *Rule) HeadroomUnits() uint64 { return FixedShare{Share: r.Headroom}.Weight() }

// Beyond reports whether the rule's own scope is wider than the node.
func (r *Rule) Beyond() bool { return r.Scope == ScopePool || r.Scope == ScopeCluster }

// Wide reports whether the rule can look beyond the node.
func (r *Rule) Wide() bool { return r.Beyond() || r.Climb }

// FixedShare is a team's share under Fixed; only the ratio between shares matters.
type FixedShare struct {
	Team  string `json:"team"`
	Share string `json:"share"`
}

// With at most so many decimals and no more than so much, a share's weight fits 64 bits.
const (
	shareDecimals = 12
	mostShare     = 1_000_000
)

// Weight is the share as a whole number of 1e-12.
func (f FixedShare) Weight() uint64 {
	whole, frac, _ := strings.Cut(f.Share, ".")
	var n uint64
	for _, c := range []byte(whole + (frac + "000000000000")[:shareDecimals]) {
		n = n*10 + uint64(c-'0')
	}
	return n
}

// ToTeam reports whether the rule names who pays, and leaves pods alone.
func (r *Rule) ToTeam() bool {
	return r.Policy == Platform || r.Policy == PoolOwner || r.Policy == Fixed
}

// UnmarshalYAML reads the short and the long form.
func (r *Rule) UnmarshalYAML(n *yaml.Node) error {
	*r = Rule{}
	if n.Kind == yaml.ScalarNode {
		r.Policy = n.Value
		return nil
	}
	if n.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: expected a policy, {policy: …, scope: …} or {fixed: {team: share}}", n.Line)
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if seen[k.Value] {
			return fmt.Errorf("line %d: %s is there twice", k.Line, k.Value)
		}
		seen[k.Value] = true
		switch k.Value {
		case "policy":
			r.Policy = v.Value
		case "scope":
			r.Scope = v.Value
		case "climb":
			if err := v.Decode(&r.Climb); err != nil {
				return fmt.Errorf("line %d: climb: %q is not true or false", v.Line, v.Value)
			}
		case "lookback":
			d, err := time.ParseDuration(v.Value)
			if err != nil || d < time.Second || d > mostLookback {
				return fmt.Errorf("line %d: lookback: %q is not a duration like 10m, of 1s to %s", v.Line, v.Value, mostLookback)
			}
			r.Lookback = d.String()
		case Headroom:
			a, err := ParsePercent(v.Value)
			if err != nil || a.Sign() <= 0 || a.Cmp(money.FromInt(1)) > 0 || len(fraction(a.String())) > shareDecimals {
				return fmt.Errorf("line %d: headroom: %q is not a percentage like 20%%, above 0 and up to 100%%", v.Line, v.Value)
			}
			r.Headroom = a.String()
		case Fixed:
			if err := r.readShares(v); err != nil {
				return err
			}
		default:
			return fmt.Errorf("line %d: unknown key %q", k.Line, k.Value)
		}
	}
	switch {
	case r.Policy == "" && r.Shares != nil:
		r.Policy = Fixed
	case r.Policy == "" && r.Headroom != "":
		r.Policy = Headroom
	}
	return nil
}

// readShares reads the table of Fixed, in the order of the teams.
func (r *Rule) readShares(n *yaml.Node) error {
	if n.Kind != yaml.MappingNode || len(n.Content) == 0 {
		return fmt.Errorf("line %d: fixed: expected {team: share, …}", n.Line)
	}
	r.Shares = []FixedShare{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Value == "" || slices.ContainsFunc(r.Shares, func(f FixedShare) bool { return f.Team == k.Value }) {
			return fmt.Errorf("line %d: fixed: team %q is empty or there twice", k.Line, k.Value)
		}
		a, err := money.Parse(v.Value)
		if err != nil || a.Sign() <= 0 || a.Cmp(money.FromInt(mostShare)) > 0 || len(fraction(a.String())) > shareDecimals {
			return fmt.Errorf("line %d: fixed.%s: %q is not a number above 0 and up to %d with at most %d decimals", v.Line, k.Value, v.Value, mostShare, shareDecimals)
		}
		r.Shares = append(r.Shares, FixedShare{Team: k.Value, Share: a.String()})
	}
	slices.SortFunc(r.Shares, func(a, b FixedShare) int { return cmp.Compare(a.Team, b.Team) })
	return nil
}

// offNode are the categories of lines that are on no node: no pod can take them.
var offNode = []string{"commitment_unused", "capacity_unused", "discount", "credit", "refund", "tax", "fee", "other"}

// check looks at the rule of a category, or of the default, "".
func (r *Rule) check(key, category string) error {
	if r == nil {
		return nil
	}
	known := []string{Keep, Proportional, EvenSplit, Headroom}
	switch {
	case category == "slot_held":
		known = append(known, Replica)
	case category == "unallocated":
		known = append(known, LastTenant)
	case slices.Contains(offNode, category):
		known = []string{Keep}
	}
	known = append(known, Platform, PoolOwner, Fixed)
	switch {
	case r.Policy == LastTenant && category != "unallocated":
		return fmt.Errorf("idle.%s: last_tenant goes with unallocated only: of nothing else is there a last tenant", key)
	case !slices.Contains(known, r.Policy):
		return fmt.Errorf("idle.%s: %q is not one of %s", key, r.Policy, strings.Join(known, ", "))
	case r.Policy == Fixed && len(r.Shares) == 0:
		return fmt.Errorf("idle.%s: fixed needs its shares: {fixed: {sales: 45, qa: 30, eng: 25}}", key)
	case r.Policy == Headroom && r.Headroom == "":
		return fmt.Errorf("idle.%s: headroom needs its size: {headroom: 20%%}", key)
	case r.Policy != Headroom && r.Headroom != "":
		return fmt.Errorf("idle.%s: a headroom goes with the policy headroom, not %s", key, r.Policy)
	case r.Policy != LastTenant && r.Lookback != "":
		return fmt.Errorf("idle.%s: a lookback goes with the policy last_tenant, not %s", key, r.Policy)
	case r.Policy != Fixed && r.Shares != nil:
		return fmt.Errorf("idle.%s: shares go with the policy fixed, not %s", key, r.Policy)
	case r.Scope != "" && (r.Policy == LastTenant || r.Policy == Headroom):
		return fmt.Errorf("idle.%s: %s has no scope: it is about the node", key, r.Policy)
	case (r.Climb || r.Beyond()) && r.Policy != Proportional && r.Policy != EvenSplit:
		return fmt.Errorf("idle.%s: %s does not look beyond the node: scopes pool and cluster and climb go with proportional and even", key, r.Policy)
	case r.Scope == "":
		return nil
	case r.ToTeam():
		return fmt.Errorf("idle.%s: %s has no scope: it moves the remainder to a team", key, r.Policy)
	case !slices.Contains([]string{ScopeDevice, ScopeNode, ScopePool, ScopeCluster}, r.Scope):
		return fmt.Errorf("idle.%s: scope %q is not one of device, node, pool, cluster", key, r.Scope)
	}
	return nil
}
