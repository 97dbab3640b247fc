package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"sort"
	"strings"
	"time"

	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/ingest"
	"gpuledger/warehouse"
)

// source is one of a cluster's telemetry stores, open.
type source struct {
	ingest.Source
	cl      ClusterConfig // with this store as its metrics
	about   ingest.Description
	watch   *watched
	ordinal int    // 0 is the cluster's metrics, then its fallbacks
	name    string // "metrics", "fallback 1"
}

// forgets reports whether the store drops what is old: files hold what they hold.
func (s *source) forgets() bool { return s.about.Forgets }

// warnings are what the store said of answers that may be partial, where it is allowed
// to give them.
func (s *source) warnings() []string {
	if p, ok := s.watch.Source.(ingest.Partial); ok {
		return p.Warnings()
	}
	return nil
}

// holds reports whether the store may have samples of an hour.
func (s *source) holds(hour time.Time) bool {
	if o := s.about.Oldest; !o.IsZero() && hour.Before(o.UTC().Truncate(time.Hour)) {
		return false
	}
	if n := s.about.Newest; !n.IsZero() && !hour.Before(n.UTC().Truncate(time.Hour).Add(time.Hour)) {
		return false
	}
	return true
}

// described says which source it is, for the record of a load.
func (s *source) described() string { return s.name + ": " + s.about.Detail }

// nameAt is the cluster's name in an hour: the value of the label that it was
// discovered by, else the configured one.
func (s *source) nameAt(hour time.Time) string {
	return s.watch.nameAt(hour, s.cl.Name)
}

var errFound = errors.New("found")

// hasAny reports whether the store names any series of a GPU cluster in a span. It reads
// no sample.
func (s *source) hasAny(ctx context.Context, span period.Span) (bool, error) {
	err := s.List(ctx, ingest.Selector{Metrics: append([]string{"kube_node_info"}, s.cl.settings().DeviceMetrics()...), Equal: s.cl.Metrics.Match}, span, func(gpu.Series) error { return errFound })
	if errors.Is(err, errFound) {
		return true, nil
	}
	return false, err
}

// clusterSources are a cluster's stores in the order in which they are asked.
type clusterSources struct {
	open     []*source
	failures []error // of those that do not answer
}

// openSources opens a cluster's stores and asks what they hold. One that does not
// answer leaves the work to the others.
func (a *app) openSources(ctx context.Context, cfg *Config, cl ClusterConfig) (*clusterSources, error) {
	out := &clusterSources{}
	for i, m := range append([]MetricsConfig{cl.Metrics}, cl.Fallback...) {
		s := &source{cl: cl, ordinal: i, name: "metrics"}
		if i > 0 {
			s.name = fmt.Sprintf("fallback %d", i)
		}
		s.cl.Metrics, s.cl.Fallback = m, nil
		err := s.connect(ctx, cfg)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			out.failures = append(out.failures, &sourceError{s.name, err})
			if len(cl.Fallback) > 0 {
				a.log.Warn("a source does not answer", "cluster", cl.Name, "source", s.name, "error", err.Error())
			}
			continue
		}
		out.open = append(out.open, s)
	}
	if len(out.open) == 0 {
		return nil, errors.Join(out.failures...)
	}
	return out, nil
}

func (s *source) connect(ctx context.Context, cfg *Config) (err error) {
	if s.Source, err = cfg.source(s.cl); err != nil {
		return err
	}
	if s.about, err = s.Describe(ctx); err != nil {
		return err
	}
	s.watch = watch(s.Source, s.cl)
	s.Source = s.watch
	return nil
}

// record keeps what the stores hold.
func (c *clusterSources) record(ctx context.Context, db *database, cl ClusterConfig, now time.Time) error {
	var probes []warehouse.SourceProbe
	for _, s := range c.open {
		p := warehouse.SourceProbe{Ordinal: s.ordinal, Driver: s.about.Driver, Source: s.described(), Newest: s.about.Newest, At: now}
		if s.forgets() {
			p.Oldest = s.about.Oldest
		}
		probes = append(probes, p)
	}
	return db.RecordProbes(ctx, cl.ID, probes)
}

func (c *clusterSources) drivers() string {
	var out []string
	for _, s := range c.open {
		out = append(out, s.about.Driver)
	}
	return strings.Join(out, "+")
}

// oldest is the first instant that any of the stores holds, zero where one does not say.
func (c *clusterSources) oldest() time.Time {
	var out time.Time
	for _, s := range c.open {
		o := s.about.Oldest.UTC()
		if s.about.Oldest.IsZero() {
			return time.Time{}
		}
		if out.IsZero() || o.Before(out) {
			out = o
		}
	}
	return out
}

// newest is the last instant that any of them holds, zero where one does not say.
func (c *clusterSources) newest() time.Time {
	var out time.Time
	for _, s := range c.open {
		if s.about.Newest.IsZero() {
			return time.Time{}
		}
		if s.about.Newest.After(out) {
			out = s.about.Newest.UTC()
		}
	}
	return out
}

// hold reports whether any open store may have samples of an hour.
func (c *clusterSources) hold(h time.Time) bool {
	return slices.ContainsFunc(c.open, func(s *source) bool { return s.holds(h) })
}

// lost are the hours that are older than all that the stores hold, where at least one of
// them forgets.
func (c *clusterSources) lost(hours []time.Time) []time.Time {
	oldest := c.oldest()
	if oldest.IsZero() || !slices.ContainsFunc(c.open, (*source).forgets) {
		return nil
	}
	var out []time.Time
	for _, h := range hours {
		if h.Before(oldest.Truncate(time.Hour)) {
			out = append(out, h)
		}
	}
	return out
}

// clusters are the configured clusters, and those that a label of a shared store names:
// in the newest hours, and in the asked span, so that one that is gone is found too.
func (a *app) clusters(ctx context.Context, cfg *Config, span period.Span) ([]ClusterConfig, []error) {
	var out []ClusterConfig
	var problems []error
	for _, cl := range cfg.Clusters {
		if cl.Discover == nil {
			out = append(out, cl)
			continue
		}
		found, err := a.discover(ctx, cfg, cl, span)
		if err != nil {
			problems = append(problems, fmt.Errorf("clusters by label %s: %w", cl.Discover.Label, err))
		}
		out = append(out, found...)
	}
	ids := map[string]string{}
	kept := out[:0]
	for _, cl := range out {
		if other, twice := ids[cl.ID]; twice {
			problems = append(problems, usagef("clusters: %s and %s have the id %s; give each its own, or leave one out of discover", other, cl.Name, cl.ID))
			continue
		}
		ids[cl.ID] = cl.Name
		kept = append(kept, cl)
	}
	return kept, problems
}

func (a *app) discover(ctx context.Context, cfg *Config, cl ClusterConfig, span period.Span) ([]ClusterConfig, error) {
	d := cl.Discover
	sources, err := a.openSources(ctx, cfg, cl)
	if err != nil {
		return nil, err
	}
	values := map[string]bool{}
	for _, s := range sources.open {
		recent := period.Span{Start: a.now().Add(-2 * time.Hour), End: a.now()}
		if n := s.about.Newest; !n.IsZero() {
			recent = period.Span{Start: n.Add(-2 * time.Hour), End: n.Add(time.Millisecond)}
		}
		asked := span
		if o := s.about.Oldest; asked.Start.Before(o) {
			asked.Start = o
		}
		for _, w := range []period.Span{recent, asked} {
			if w.Empty() {
				continue
			}
			err := s.List(ctx, ingest.Selector{Metrics: []string{"kube_node_info"}, Equal: s.cl.Metrics.Match}, w, func(x gpu.Series) error {
				if v := x.Labels[d.Label]; v != "" && d.wants(v) {
					values[v] = true
				}
				return nil
			})
			if err != nil {
				return nil, &sourceError{s.name, err}
			}
		}
	}
	byID := map[string][]string{}
	for v := range values {
		id := d.IDs[v]
		if id == "" {
			id = v
		}
		byID[id] = append(byID[id], v)
	}
	if len(byID) == 0 {
		return nil, incompletef("no series of kube_node_info has a wanted value of the label; check discover.label, include and exclude")
	}
	var out []ClusterConfig
	for id, vs := range byID {
		sort.Strings(vs)
		one := cl
		one.Discover, one.ID, one.Name, one.label, one.values = nil, id, vs[0], d.Label, vs
		out = append(out, one)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out, nil
}

// wants reports whether a value of the label is a cluster to read.
func (d *DiscoverConfig) wants(value string) bool {
	matches := func(pattern string) bool { ok, _ := path.Match(pattern, value); return ok } // patterns were checked with the configuration
	return (len(d.Include) == 0 || slices.ContainsFunc(d.Include, matches)) && !slices.ContainsFunc(d.Exclude, matches)
}
