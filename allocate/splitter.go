package allocate

import (
	"slices"
	"sort"
	"strings"
	"time"

	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/gpu"
	"gpuledger/policy"
)

// Splitter splits windows one after another under one policy and its owners. What it
// finds out about a pod's owner, a remainder's payer or a MIG profile it keeps for the
// next window: a node's hours look alike. The shares do not depend on what was split
// before, and they are the Splitter's own: not to be changed, and good until the next
// window. A pod's UID stands for one Pod as long as the Splitter is used. It is not for
// concurrent use.
type Splitter struct {
	p       *policy.Policy
	owners  *policy.Owners
	basis   basis
	changes []time.Time // when some rule of owners begins or ends

	targets    map[string]*target // by key
	frames     map[place]*frame
	latest     *frame
	pods       map[string]*podTargets
	geometries map[geometryKey][2]uint64
	movedTo    map[movedKey]*target

	current split  // the window under way
	window  uint64 // counts the windows: a target's entry is of one of them
	touched []*target
	before  struct{ touched, ordered []*target } // the window before, whose order is often the same

	buffers []*buffer // of the window under way, as many as are lent
	lent    int
	divider money.Divider // for one result at a time
	known   []*podTargets
	answers []*podTargets // of podOf, in order
	asked   int
	shares  []uint64
	weights []money.Weight
	times   []money.Weight
}

// NewSplitter returns a Splitter. The policy and the owners must not change under it.
func NewSplitter(p *policy.Policy, owners *policy.Owners) *Splitter {
	x := &Splitter{p: p, owners: owners, basis: basisOf(p), changes: owners.Changes(time.Time{}, time.Unix(1<<40, 0))}
	x.forget()
	return x
}

// mostTargets bounds what a Splitter remembers.
const mostTargets = 1 << 13

func (x *Splitter) forget() {
	x.targets = map[string]*target{}
	x.frames = map[place]*frame{}
	x.pods = map[string]*podTargets{}
	x.geometries = map[geometryKey][2]uint64{}
	x.movedTo = map[movedKey]*target{}
	x.before.touched, x.before.ordered, x.latest, x.answers, x.buffers = nil, nil, nil, nil, nil
}

// begin starts the next window.
func (x *Splitter) begin() {
	x.window++
	if len(x.targets) > mostTargets || len(x.pods) > mostTargets || len(x.geometries) > mostTargets {
		x.forget()
	}
	x.touched, x.lent, x.asked = x.touched[:0], 0, 0
}

// buffer is room for the shares of a line, with whose they were last.
type buffer struct {
	shares    []Share
	of        []*target
	component billing.Component
}

// lend returns room for n shares of a component, until the next window begins.
func (x *Splitter) lend(n int, c billing.Component) *buffer {
	if x.lent == len(x.buffers) {
		x.buffers = append(x.buffers, &buffer{})
	}
	b := x.buffers[x.lent]
	x.lent++
	if len(b.shares) < n || b.component != c {
		*b = buffer{make([]Share, n), make([]*target, n), c}
	}
	return b
}

// place is what the targets of a partition have in common.
type place struct {
	model                        string
	mode                         gpu.Mode
	pool, node, cluster, account string
}

// frame is a place with the targets of its remainders.
type frame struct {
	place
	remainders []remainderOf
}

// frame returns the frame of a model and mode where the walk is.
func (s *split) frame(model string, mode gpu.Mode) *frame {
	x, at := s.Splitter, place{model, mode, s.pool, s.node, s.w.Node.Cluster, s.w.Node.Account}
	if x.latest != nil && x.latest.place == at {
		return x.latest
	}
	if x.latest = x.frames[at]; x.latest == nil {
		x.latest = &frame{place: at}
		x.frames[at] = x.latest
	}
	return x.latest
}

// target is a Target with what the window under way gives it.
type target struct {
	Target
	key    string
	rule   *policy.Rule // of a remainder
	window uint64       // that entry is of
	entry
}

// methodWeights divide a weight by the rung behind it.
type methodWeights [gpu.NoMethod + 1]money.Weight

// gain adds to the weight what rests on a rung.
func (e *entry) gain(m gpu.Method, w money.Weight) {
	switch {
	case e.method == 0:
		e.method = m
	case e.method != m && e.byMethod == nil:
		e.byMethod = &methodWeights{}
		e.byMethod[e.method] = e.weight
	}
	if e.byMethod != nil {
		e.byMethod[m], _ = e.byMethod[m].Add(w)
	}
	e.weight, _ = e.weight.Add(w)
}

// intern returns the one target of a meaning.
func (x *Splitter) intern(t Target, rule *policy.Rule) *target {
	t.ownerKey = t.Owner.Key()
	key := t.key()
	known := x.targets[key]
	if known == nil {
		known = &target{Target: t, key: key, rule: rule}
		x.targets[key] = known
	}
	return known
}

// entry gathers a target's part while its window is walked.
type entry struct {
	weight   money.Weight // with the model's price weight: decides the ratio
	time     money.Weight // without, where models differ: device time
	method   gpu.Method   // the rung behind weight, where it is one
	byMethod *methodWeights
	hourly   money.Weight // of the hour under way, where that matters
	from     *target      // whose own share decided what it received at an hour's end
	used     int64
	held     int64
	measured int64
	gap      int64
}

// of returns the target with an entry in the window under way.
func (x *Splitter) of(t *target) *target {
	if t.window != x.window {
		t.window, t.entry = x.window, entry{}
		x.touched = append(x.touched, t)
	}
	return t
}

// ordered returns the window's targets in the order of their keys.
func (x *Splitter) ordered() []*target {
	if !slices.Equal(x.touched, x.before.touched) {
		x.before.touched = append(x.before.touched[:0], x.touched...)
		x.before.ordered = append(x.before.ordered[:0], x.touched...)
		sort.Slice(x.before.ordered, func(i, j int) bool { return x.before.ordered[i].key < x.before.ordered[j].key })
	}
	return x.before.ordered
}

// podTargets are the owners and targets of one pod.
type podTargets struct {
	uid    string
	pod    Pod
	owners []podOwner
	list   []podTarget
}

// podOwner is whose the pod is on nodes of a frame, after some change of the rules.
type podOwner struct {
	frame  *frame
	change int
	owner  policy.Owner
}

// podTarget is what of a pod a target is about. Two of them may have one target: a
// change of the rules may leave the owner as it was.
type podTarget struct {
	frame             *frame
	change            int
	component         billing.Component
	category, movedBy string
	*target
}

// change counts the instants up to at when some owner's rule began or ended: between
// two of them nobody's owner changes.
func (x *Splitter) change(at time.Time) int {
	return sort.Search(len(x.changes), func(i int) bool { return x.changes[i].After(at) })
}

// podOf returns what is known of a pod.
func (s *split) podOf(uid string) *podTargets {
	k := s.asked // the window before asked for the same pods in the same order, as a rule
	if s.asked++; k < len(s.answers) && s.answers[k].uid == uid {
		return s.answers[k]
	}
	known := s.findPod(uid)
	if k < len(s.answers) {
		s.answers[k] = known
	} else {
		s.answers = append(s.answers, known)
	}
	return known
}

func (s *split) findPod(uid string) *podTargets {
	known := s.pods[uid]
	if known == nil {
		known = &podTargets{uid: strings.Clone(uid), pod: s.w.Pods[uid]}
		s.pods[known.uid] = known
	}
	return known
}

// pod returns the target of a pod's share under its owner at an instant, change being
// that of the instant.
func (s *split) pod(known *podTargets, at time.Time, change int, f *frame, c billing.Component, category, movedBy string) *target {
	for i := range known.list {
		if t := &known.list[i]; t.frame == f && t.change == change && t.category == category && t.movedBy == movedBy && t.component == c {
			return t.target
		}
	}
	t := s.intern(Target{
		Component: c, PodUID: known.uid, Category: category, MovedBy: movedBy, Model: f.model, Mode: f.mode, Pool: f.pool, Node: f.node, Owner: s.ownerOf(known, at, change, f),
	}, nil)
	known.list = append(known.list, podTarget{f, change, c, category, movedBy, t})
	return t
}

func (s *split) ownerOf(known *podTargets, at time.Time, change int, f *frame) policy.Owner {
	for i := range known.owners {
		if o := &known.owners[i]; o.change == change && o.frame == f {
			return o.owner
		}
	}
	pod := &known.pod
	owner := s.owners.Resolve(policy.Subject{
		Cluster: f.cluster, Namespace: pod.Namespace, Workload: pod.Workload, NodePool: f.pool, Account: f.account,
		Labels: pod.Labels, NamespaceLabels: pod.NSLabels, Annotations: pod.Notes,
	}, at)
	known.owners = append(known.owners, podOwner{f, change, owner})
	return owner
}

// remainderOf is what of a frame a remainder's target is about.
type remainderOf struct {
	component billing.Component
	category  string
	change    int
	*target
}

// remainder returns the target of a category with its rule: its payer, or the team that
// the rule names.
func (s *split) remainder(category string, f *frame, c billing.Component) *target {
	for i := range f.remainders {
		if r := &f.remainders[i]; r.category == category && r.change == s.changed && r.component == c {
			return r.target
		}
	}
	rule := s.ruleFor(category, f.pool)
	t := Target{Component: c, Category: category, Model: f.model, Mode: f.mode, Pool: f.pool, Node: f.node, Owner: s.p.PayerOf(category, f.pool, f.account)}
	t = payers{s.p, s.owners}.target(t, rule, f.cluster, f.account, s.at)
	known := s.intern(t, &rule)
	f.remainders = append(f.remainders, remainderOf{c, category, s.changed, known})
	return known
}

type geometryKey struct {
	model, geometry, profile string
	memory, of               int
	dominant, compute        int
}
