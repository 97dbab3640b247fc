package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// The ways to treat a remainder.
const (
	Keep         = "keep"         // an own row, paid by remainder_owner
	Proportional = "proportional" // to those who hold, by what they are charged
	EvenSplit    = "even"         // to those who hold, in equal parts
	Replica      = "replica"      // slot_held only: to those who hold, by their slots
	Platform     = "platform"     // to the team platform
	PoolOwner    = "owner"        // to whom owners.yaml gives the node pool
	Fixed        = "fixed"        // to teams, by a table of shares
	LastTenant   = "last_tenant"  // unallocated only: an empty node to who held it last, for a while
	Headroom     = "headroom"     // the first so many percent of the node to the platform, the rest proportional
)

// The scopes of a redistribution: who shares a remainder.
const (
	ScopeDevice = "device" // the holders of the same GPU or MIG instance, in the same hour
	ScopeNode   = "node"   // everyone charged for the same node in the same window
	// Everyone charged in the same node pool or cluster in a window of the same span.
	ScopePool    = "pool"
	ScopeCluster = "cluster"
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

	// The other categories, which Default does not reach.
	Others map[string]*Rule `yaml:",inline" json:"others,omitempty"`
}

// Pool overrides Idle for node pools that match a pattern; the first match wins.
type Pool struct {
	NodePool    string `yaml:"node_pool" json:"node_pool"`
	Unallocated *Rule  `yaml:"unallocated" json:"unallocated,omitempty"`
	SlotHeld    *Rule  `yaml:"slot_held" json:"slot_held,omitempty"`
	NotReady    *Rule  `yaml:"not_ready" json:"not_ready,omitempty"`
	MIG         *Rule  `yaml:"mig_unpartitioned" json:"mig_unpartitioned,omitempty"`

	Others map[string]*Rule `yaml:",inline" json:"others,omitempty"`
}

// own returns the rule that is written down for a category, or nil.
func (i *Idle) own(category string) *Rule {
	switch category {
	case "unallocated":
		return i.Unallocated
	case "slot_held":
		return i.SlotHeld
	case "not_ready":
		return i.NotReady
	case "mig_unpartitioned":
		return i.MIG
	case "claim_idle":
		return i.ClaimIdle
	}
	return i.Others[category]
}

func (p *Pool) own(category string) *Rule {
	switch category {
	case "unallocated":
		return p.Unallocated
	case "slot_held":
		return p.SlotHeld
	case "not_ready":
		return p.NotReady
	case "mig_unpartitioned":
		return p.MIG
	}
	return p.Others[category]
}

func (i *Idle) validate() error {
	if err := i.Default.check("default", ""); err != nil {
		return err
	}
	if err := checkOwn("", i.own, i.Others); err != nil {
		return err
	}
	for k := range i.Pools {
		p := &i.Pools[k]
		if p.NodePool == "" {
			return fmt.Errorf("idle.pools: an entry without node_pool")
		}
		if err := checkOwn("pools.", p.own, p.Others); err != nil {
			return err
		}
	}
	return nil
}

// Wide reports whether any rule can look beyond the node, so that a node's shares
// depend on the whole cluster.
func (i *Idle) Wide() bool {
	wide := false
	i.each(func(_ string, r *Rule) { wide = wide || r.Wide() })
	return wide
}

// OnNode reports whether any rule shares a remainder out over those charged for the
// node; parts says that CPU and memory are divided, which have no device.
func (i *Idle) OnNode(parts bool) bool {
	on := false
	i.each(func(category string, r *Rule) {
		scope := r.Scope
		if scope == "" {
			scope = scopeOf(category)
		}
		shares := r.Policy == Proportional || r.Policy == EvenSplit || r.Policy == Replica || r.Policy == Headroom
		on = on || shares && !r.Beyond() && (parts || r.Climb || scope == ScopeNode)
	})
	return on
}

// Lookback is the longest that any rule looks back for a node's last tenants; 0 where
// none does.
func (i *Idle) Lookback() time.Duration {
	most := int64(0)
	i.each(func(_ string, r *Rule) { most = max(most, r.LookbackMicros()) })
	return time.Duration(most) * time.Microsecond
}

// each calls fn for every rule that is written down, the default for a category that
// goes by it.
func (i *Idle) each(fn func(category string, r *Rule)) {
	fn("unallocated", &i.Default)
	for _, category := range Categories {
		if r := i.own(category); r != nil {
			fn(category, r)
		}
		for k := range i.Pools {
			if r := i.Pools[k].own(category); r != nil {
				fn(category, r)
			}
		}
	}
}

// checkOwn checks the rules of single categories in the order of Categories, after
// keys that name none.
func checkOwn(at string, own func(string) *Rule, others map[string]*Rule) error {
	for _, key := range slices.Sorted(maps.Keys(others)) {
		if !slices.Contains(Categories, key) {
			return fmt.Errorf("idle.%s%s: unknown key %q: it is none of %s", at, key, key, strings.Join(Categories, ", "))
		}
		if others[key] == nil {
			return fmt.Errorf("idle.%s%s: no policy is named", at, key)
		}
	}
	for _, category := range Categories {
		if err := own(category).check(at+category, category); err != nil {
			return err
		}
	}
	return nil
}

// normalise writes out the scope that each category's own rules imply.
func (i *Idle) normalise() {
	set := func(category string, r *Rule) {
		if r != nil && r.Scope == "" && !r.ToTeam() {
			r.Scope = scopeOf(category)
		}
		if r != nil && r.Policy == LastTenant {
			r.Scope = ScopeNode
			if r.Lookback == "" {
				r.Lookback = defaultLookback.String()
			}
		}
		if r != nil && r.Policy == Headroom {
			r.Scope = ScopeNode
		}
	}
	for _, category := range Categories {
		set(category, i.own(category))
		for k := range i.Pools {
			set(category, i.Pools[k].own(category))
		}
	}
}

// scopeOf is the scope of a category's rule where it names none: memory of a device
// that somebody holds belongs to its holders.
func scopeOf(category string) string {
	switch category {
	case "slot_held", "claim_idle", "unattributed":
		return ScopeDevice
	}
	return ScopeNode
}

// For returns the treatment of a category on a node pool, with its scope set.
func (i *Idle) For(category, pool string) Rule {
	r := Rule{Policy: Keep} // what is not idle is not moved by the default
	switch category {
	case "unallocated", "slot_held", "not_ready", "mig_unpartitioned":
		r = i.Default
	}
	if own := i.own(category); own != nil {
		r = *own
	}
	for k := range i.Pools {
		if p := &i.Pools[k]; Glob(p.NodePool, pool) {
			if own := p.own(category); own != nil {
				r = *own
			}
			break
		}
	}
	if r.Policy == Headroom {
		r.Scope = ScopeNode
	} else if r.Scope == "" && !r.ToTeam() {
		r.Scope = scopeOf(category)
	}
	return r
}
