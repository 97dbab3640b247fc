package policy

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"
)

// Owners is owners.yaml.
type Owners struct {
	Timezone   string              `yaml:"timezone" json:"timezone"`
	Rules      []OwnerRule         `yaml:"rules" json:"rules"`
	Dimensions map[string][]string `yaml:"dimensions" json:"dimensions"`

	location *time.Location
}

// OwnerRule gives what matches to a team, from a date (inclusive) to a date
// (exclusive), each midnight in the document's timezone.
type OwnerRule struct {
	Match      OwnerMatch `yaml:"match" json:"match"`
	Team       string     `yaml:"team" json:"team"`
	CostCenter string     `yaml:"cost_center" json:"cost_center"`
	From       Date       `yaml:"from" json:"from"`
	To         Date       `yaml:"to" json:"to"`
}

// OwnerMatch holds conditions that must all hold; * is a wildcard.
type OwnerMatch struct {
	Cluster        string            `yaml:"cluster" json:"cluster,omitempty"`
	Namespace      string            `yaml:"namespace" json:"namespace,omitempty"`
	Workload       string            `yaml:"workload" json:"workload,omitempty"`
	NodePool       string            `yaml:"node_pool" json:"node_pool,omitempty"`
	Account        string            `yaml:"account" json:"account,omitempty"`
	Label          map[string]string `yaml:"label" json:"label,omitempty"`
	NamespaceLabel map[string]string `yaml:"namespace_label" json:"namespace_label,omitempty"`
	Annotation     map[string]string `yaml:"annotation" json:"annotation,omitempty"`
}

// Subject is what an owner is looked up for. Label and annotation keys may be
// spelled as Kubernetes or as kube-state-metrics does.
type Subject struct {
	Cluster, Namespace, Workload, NodePool, Account string
	Labels, NamespaceLabels, Annotations            map[string]string
}

// Owner is who pays. A zero Owner is nobody: the cost is unowned, and shown so.
type Owner struct {
	Team       string
	CostCenter string
	Dimensions map[string]string // ai_model and others, only those with a value
}

// ParseOwners reads owners.yaml strictly.
func ParseOwners(name string, text []byte) (Owners, error) {
	o := Owners{Timezone: "UTC"}
	if err := DecodeStrict(name, text, &o); err != nil {
		return Owners{}, err
	}
	loc, err := time.LoadLocation(o.Timezone)
	if err != nil {
		return Owners{}, fmt.Errorf("%s: timezone %q is not known", name, o.Timezone)
	}
	o.location = loc
	for i, r := range o.Rules {
		if r.Team == "" {
			return Owners{}, fmt.Errorf("%s: rule %d has no team", name, i+1)
		}
		if !r.From.IsZero() && !r.To.IsZero() && !r.From.Before(r.To.Time) {
			return Owners{}, fmt.Errorf("%s: rule %d ends (%s) before it starts (%s)", name, i+1, r.To.Format("2006-01-02"), r.From.Format("2006-01-02"))
		}
	}
	for dim, from := range o.Dimensions {
		for _, f := range from {
			if kind, key, ok := strings.Cut(f, ":"); !ok || key == "" || kind != "label" && kind != "annotation" && kind != "namespace_label" {
				return Owners{}, fmt.Errorf("%s: dimensions.%s: %q is not label:NAME, annotation:NAME or namespace_label:NAME", name, dim, f)
			}
		}
	}
	return o, nil
}

// NoOwners is the empty document: every pod is unowned.
func NoOwners() Owners { return Owners{Timezone: "UTC", location: time.UTC} }

// Resolve finds the owner of a subject at an instant: the first rule that matches.
func (o *Owners) Resolve(s Subject, at time.Time) Owner {
	out := Owner{Dimensions: map[string]string{}}
	for _, r := range o.Rules {
		if o.valid(r, at) && r.Match.matches(s) {
			out.Team, out.CostCenter = r.Team, r.CostCenter
			break
		}
	}
	for dim, from := range o.Dimensions {
		for _, f := range from {
			kind, key, _ := strings.Cut(f, ":")
			labels := map[string]map[string]string{"label": s.Labels, "annotation": s.Annotations, "namespace_label": s.NamespaceLabels}[kind]
			if v := lookup(labels, key); v != "" {
				out.Dimensions[dim] = v
				break
			}
		}
	}
	return out
}

// Changes returns the instants strictly within a span at which some rule begins or
// ends, in order: an hour may have two owners where midnight is not on a UTC hour.
func (o *Owners) Changes(start, end time.Time) []time.Time {
	var out []time.Time
	for _, r := range o.Rules {
		for _, d := range []Date{r.From, r.To} {
			if d.IsZero() {
				continue
			}
			if t := o.midnight(d); t.After(start) && t.Before(end) && !slices.ContainsFunc(out, t.Equal) {
				out = append(out, t)
			}
		}
	}
	slices.SortFunc(out, time.Time.Compare)
	return out
}

func (o *Owners) midnight(d Date) time.Time {
	y, m, day := d.Date()
	return time.Date(y, m, day, 0, 0, 0, 0, o.location)
}

func (o *Owners) valid(r OwnerRule, at time.Time) bool {
	return (r.From.IsZero() || !at.Before(o.midnight(r.From))) && (r.To.IsZero() || at.Before(o.midnight(r.To)))
}

func (m *OwnerMatch) matches(s Subject) bool {
	for _, c := range [][2]string{{m.Cluster, s.Cluster}, {m.Namespace, s.Namespace}, {m.Workload, s.Workload}, {m.NodePool, s.NodePool}, {m.Account, s.Account}} {
		if c[0] != "" && !Glob(c[0], c[1]) {
			return false
		}
	}
	for _, c := range []struct{ want, have map[string]string }{{m.Label, s.Labels}, {m.NamespaceLabel, s.NamespaceLabels}, {m.Annotation, s.Annotations}} {
		for k, v := range c.want {
			if have := lookup(c.have, k); have == "" || !Glob(v, have) {
				return false
			}
		}
	}
	return true
}

// lookup reads a label by its Kubernetes name or as kube-state-metrics spells it.
func lookup(labels map[string]string, key string) string {
	if v := labels[key]; v != "" {
		return v
	}
	return labels[strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '_'
	}, key)]
}

// Glob matches text against a pattern in which * stands for any run of characters.
func Glob(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == text
	}
	rest, ok := strings.CutPrefix(text, parts[0])
	if !ok {
		return false
	}
	last := parts[len(parts)-1]
	for _, p := range parts[1 : len(parts)-1] {
		i := strings.Index(rest, p)
		if i < 0 {
			return false
		}
		rest = rest[i+len(p):]
	}
	return strings.HasSuffix(rest, last)
}

// PayerOf returns the payer of a remainder: the first remainder_owner that matches.
func (p *Policy) PayerOf(category, pool, account string) Owner {
	for _, r := range p.RemainderOwner {
		m := r.Match
		if (m.Category == "" || Glob(m.Category, category)) && (m.NodePool == "" || Glob(m.NodePool, pool)) && (m.Account == "" || Glob(m.Account, account)) {
			return Owner{Team: r.Team, CostCenter: r.CostCenter}
		}
	}
	return Owner{}
}

// PlatformTeam is the team that the idle policy platform charges.
const PlatformTeam = "platform"

// TeamOf returns a team as a payer of remainders, with the cost centre of its first
// entry in remainder_owner, or else of its first rule in owners.yaml at the instant.
func (p *Policy) TeamOf(team string, owners *Owners, at time.Time) Owner {
	for _, r := range p.RemainderOwner {
		if r.Team == team {
			return Owner{Team: team, CostCenter: r.CostCenter}
		}
	}
	for _, r := range owners.Rules {
		if r.Team == team && owners.valid(r, at) {
			return Owner{Team: team, CostCenter: r.CostCenter}
		}
	}
	return Owner{Team: team}
}

// Canonical renders the document in one spelling, dimensions in order of name.
func (o Owners) Canonical() []byte {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err) // strings, slices, maps and dates always marshal
	}
	return b
}

// Hash is the SHA-256 of the canonical form.
func (o Owners) Hash() [32]byte { return sha256.Sum256(o.Canonical()) }

// Key renders an owner canonically, for use as a map key and in hashes.
func (o Owner) Key() string {
	names := make([]string, 0, len(o.Dimensions))
	for n := range o.Dimensions {
		names = append(names, n)
	}
	sort.Strings(names)
	var b strings.Builder
	b.WriteString(o.Team + "\x00" + o.CostCenter)
	for _, n := range names {
		b.WriteString("\x00" + n + "=" + o.Dimensions[n])
	}
	return b.String()
}

// WeightOf returns the price weight of a model at an instant in millionths, and
// whether the policy has one: the entry with the latest start not after it.
func (p *Policy) WeightOf(normalise func(string) string, model string, at time.Time) (uint64, bool) {
	var best *ModelWeight
	for i := range p.ModelWeights {
		w := &p.ModelWeights[i]
		if normalise(w.Model) == normalise(model) && !w.From.After(at) && (best == nil || w.From.After(best.From.Time)) {
			best = w
		}
	}
	if best == nil {
		return 0, false
	}
	return millionths(best.Weight), true
}

// millionths reads a validated weight of at most six decimals.
func millionths(weight string) uint64 {
	whole, frac, _ := strings.Cut(weight, ".")
	frac = (frac + "000000")[:6]
	var n uint64
	for _, c := range []byte(whole + frac) {
		if c >= '0' && c <= '9' {
			n = n*10 + uint64(c-'0')
		}
	}
	return n
}

// OwnersFromCanonical is the inverse of Owners.Canonical.
func OwnersFromCanonical(b []byte) (Owners, error) {
	var o Owners
	if err := json.Unmarshal(b, &o); err != nil {
		return Owners{}, err
	}
	loc, err := time.LoadLocation(o.Timezone)
	o.location = loc
	return o, err
}
