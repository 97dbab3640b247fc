package billing

import (
	"crypto/sha256"
	"slices"
	"sort"
	"strings"
)

// Scope decides which lines are kept whole. A line is in scope if it is bound to
// a GPU node that is known, to an instance type or family with GPUs, or to a
// configured filter. Lines for a whole account (a tax that names no usage type, a
// compute savings plan's fee) are not: they stay in the control totals.
type Scope struct {
	// Instances are the ids of known GPU nodes, compared without case: the last
	// segment of each node's provider id.
	Instances map[string]bool
	// GPUType and GPUFamily report whether an instance type (p5.48xlarge) or
	// family (p5) has GPUs; nil is never.
	GPUType   func(instanceType string) bool
	GPUFamily func(family string) bool
	// Catalogue names the version of what GPUType and GPUFamily answer from, as
	// functions can't be hashed: change it when an answer may change.
	Catalogue string
	// Filters bring in further lines; a line has to match one of them whole.
	Filters []Filter

	lower map[string]bool
}

// Filter matches lines of any of the accounts (empty: all) that carry every tag
// with one of its values ("*": any value). A filter that says nothing matches
// nothing.
type Filter struct {
	Accounts []string
	Tags     map[string][]string
}

// Keep reports whether the line is in scope. It is not safe for concurrent use
// before its first return.
func (s *Scope) Keep(l *Line) bool {
	if l.InstanceID != "" && s.instances()[strings.ToLower(l.InstanceID)] {
		return true
	}
	if l.InstanceType != "" && s.GPUType != nil && s.GPUType(l.InstanceType) {
		return true
	}
	if l.InstanceFamily != "" && s.GPUFamily != nil && s.GPUFamily(l.InstanceFamily) {
		return true
	}
	return slices.ContainsFunc(s.Filters, func(f Filter) bool { return f.matches(l) })
}

func (s *Scope) instances() map[string]bool {
	if s.lower == nil {
		s.lower = make(map[string]bool, len(s.Instances))
		for id, ok := range s.Instances {
			if ok {
				s.lower[strings.ToLower(id)] = true
			}
		}
	}
	return s.lower
}

func (f *Filter) matches(l *Line) bool {
	if len(f.Accounts) == 0 && len(f.Tags) == 0 {
		return false
	}
	if len(f.Accounts) > 0 && !slices.Contains(f.Accounts, l.UsageAccount) && !slices.Contains(f.Accounts, l.PayerAccount) {
		return false
	}
	if len(f.Tags) == 0 {
		return true
	}
	if l.LoadTags != nil {
		l.LoadTags()
	}
	for key, values := range f.Tags {
		v, ok := l.Tags[key]
		if !ok || !slices.Contains(values, v) && !slices.Contains(values, "*") {
			return false
		}
	}
	return true
}

// Hash identifies what the scope keeps: equal hashes keep the same lines of any
// delivery. It does not depend on the order in which anything was given.
func (s *Scope) Hash() [32]byte {
	c := newCanon("gpuledger scope 1")
	c.text(s.Catalogue)
	c.list(sortedSet(s.instances()))
	filters := make([]string, 0, len(s.Filters))
	for _, f := range s.Filters {
		one := newCanon("filter")
		one.list(sorted(f.Accounts))
		for _, k := range sortedNames(f.Tags) {
			one.text(k)
			one.list(sorted(f.Tags[k]))
		}
		sum := one.sum()
		filters = append(filters, string(sum[:]))
	}
	c.list(sorted(filters))
	return c.sum()
}

func sorted(in []string) []string {
	out := slices.Clone(in)
	sort.Strings(out)
	return slices.Compact(out)
}

func sortedSet(m map[string]bool) []string { return sortedNames(m) }

func sortedNames[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

// canon hashes fields so that no two different sequences of them hash alike:
// each is preceded by its length.
type canon struct{ buf []byte }

func newCanon(domain string) *canon {
	c := &canon{buf: make([]byte, 0, 1024)}
	c.text(domain)
	return c
}

func (c *canon) text(s string) {
	c.number(int64(len(s)))
	c.buf = append(c.buf, s...)
}

func (c *canon) number(n int64) {
	for shift := 56; shift >= 0; shift -= 8 {
		c.buf = append(c.buf, byte(n>>shift))
	}
}

func (c *canon) list(items []string) {
	c.number(int64(len(items)))
	for _, s := range items {
		c.text(s)
	}
}

func (c *canon) sum() [32]byte { return sha256.Sum256(c.buf) }
