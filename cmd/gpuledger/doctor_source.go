package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/ingest"
)

// errCutShort ends a look that takes too long.
var errCutShort = errors.New("the time for the look is up")

// look is the look at one telemetry store of a cluster.
type look struct {
	*doctor
	cfg     *Config
	cl      ClusterConfig // with this store as its metrics
	ordinal int           // 0: the cluster's own, else a fallback
	name    string
	r       *report

	about ingest.Description
	seen  *observed
	hour  time.Time
	span  period.Span // of it

	planned  bool        // the two below are known
	groups   []gpu.Group // all of the cluster's
	chosen   []gpu.Group
	ksm      string // the version of kube-state-metrics, with a blank before it; "" where nobody scrapes it
	complete bool   // nothing of the look is missing

	fleet nodesFound
	pods  podsFound
}

// skew is how far a sample may be ahead of our clock before one of the two is called wrong.
const skew = 5 * time.Second

// run looks at the store. Everything is read within the limit; what the time does not
// suffice for is said, and what was found until then is kept.
func (l *look) run(ctx context.Context, r *report) {
	l.r = r
	err := l.read(ctx)
	l.complete = err == nil
	if err != nil {
		var clash gpu.Clash
		switch {
		case context.Cause(ctx) == errCutShort:
			r.fail("telemetry", l.name, fmt.Errorf("cut short after %s, %s", l.limit, l.progress()), "the store is slow or large: see its load and its log, narrow metrics.match, or give it more time between the runs of others")
		case ctx.Err() != nil:
			return // interrupted
		case errors.As(err, &clash):
			r.fail("node", clash.Node, err, "set metrics.match to the labels of one cluster")
		case strings.Contains(err.Error(), "--allow-partial"):
			r.fail("telemetry", l.name, err, "bring back the store that is away; metrics.allow_partial takes what there is")
		default:
			r.fail("telemetry", l.name, err, "check metrics.url, its credentials, and the store's limits and log")
		}
	}
	if l.planned {
		l.judge()
	}
}

func (l *look) progress() string {
	switch {
	case l.about.Driver == "":
		return "before the store had said what it is"
	case !l.planned:
		return "before its nodes and GPUs were listed"
	}
	return fmt.Sprintf("with %d of %s looked at", len(l.fleet.nodes), count(l.nodesIn(l.groups), "GPU node"))
}

func (l *look) read(ctx context.Context) error {
	src, err := l.cfg.source(l.cl)
	if err != nil {
		return err
	}
	if l.about, err = src.Describe(ctx); err != nil {
		return err
	}
	l.seen = observe(watch(src, l.cl), l.cl.settings())
	newest, err := l.newest(ctx)
	if err != nil {
		return err
	}
	l.describe(newest)
	if newest.IsZero() {
		return nil
	}
	// The UTC hour of half an hour ago: it has half an hour of samples, or all of its own.
	l.hour = newest.Add(-30 * time.Minute).UTC().Truncate(time.Hour)
	l.span = period.Hour(l.hour)
	if err := l.plan(ctx); err != nil {
		return err
	}
	if len(l.chosen) == 0 {
		return nil
	}
	err = ingest.Fold(ctx, l.seen, l.cl.Metrics.Match, l.cl.settings(), l.span, func(c ingest.Chunk) error {
		for _, h := range c.Hours {
			l.fleet.add(l.seen, h)
			l.pods.add(l, h)
		}
		return nil
	})
	if p, ok := src.(ingest.Partial); ok && len(p.Warnings()) > 0 {
		l.r.note("telemetry", l.name, "its answers may lack data: "+strings.Join(p.Warnings(), "; "), "bring back the store that is away")
	}
	return err
}

// newest is the last instant that the store has of the cluster, no later than now. Not
// every server tells: then it is looked for.
func (l *look) newest(ctx context.Context) (time.Time, error) {
	now := l.now().UTC()
	if n := l.about.Newest.UTC(); !l.about.Newest.IsZero() {
		if n.After(now) {
			return now, nil
		}
		return n, nil
	}
	for _, back := range []time.Duration{2 * time.Hour, 24 * time.Hour} {
		span := period.Span{Start: now.Add(-back), End: now.Add(skew)}
		var last int64
		err := l.seen.Source.Select(ctx, ingest.Selector{Metrics: []string{"kube_node_info"}, Equal: l.cl.Metrics.Match}, span, func(s gpu.Series) error {
			if n := len(s.Samples); n > 0 {
				last = max(last, s.Samples[n-1].UnixMilli)
			}
			return nil
		})
		if err != nil || last > 0 {
			return time.UnixMilli(last).UTC(), err
		}
	}
	return time.Time{}, nil
}

// describe says what the store is and which time it holds.
func (l *look) describe(newest time.Time) {
	d := l.about
	how := ""
	if l.cl.Metrics.Type == "prometheus" {
		how = " (set by metrics.driver)"
		if m := l.cl.Metrics.Driver; m == "" || m == "auto" {
			how = " (found by asking)"
		}
	}
	to := newest
	if !d.Newest.IsZero() {
		to = d.Newest
	}
	l.r.good("telemetry", l.name, "%s%s holds %s to %s: %s", strings.Join(nonEmpty(d.Driver, d.Version), " "), how, stamp(d.Oldest), stamp(to), d.Detail)
	now := l.now()
	switch age := now.Sub(newest); {
	case newest.IsZero():
		l.r.bad("telemetry", l.name, "no sample of kube_node_info within a day", "scrape kube-state-metrics, and check that metrics.match names the right cluster")
		return
	case d.Forgets && age > ingest.Lag:
		l.r.bad("telemetry", l.name, fmt.Sprintf("its newest sample is %s old: hours are read %s after their end, and would be read without it", rough(age), rough(ingest.Lag)), "see that the server still scrapes, and how far remote write is behind")
	}
	if ahead := d.Newest.Sub(now); !d.Newest.IsZero() && ahead > skew {
		l.r.bad("telemetry", l.name, fmt.Sprintf("its newest sample, of %s, is later than now by %s", d.Newest.UTC().Format(time.RFC3339), ahead.Round(time.Second)), "set the clocks by NTP, here and on the nodes whose exporters give timestamps of their own")
	}
	switch {
	case d.Forgets && d.Oldest.IsZero():
		l.r.note("telemetry", l.name, "it does not say for how long it keeps samples, so hours that are lost are found only by asking", "set metrics.retention, such as 15d")
	case d.Forgets && now.Sub(d.Oldest) < 72*time.Hour:
		l.r.note("telemetry", l.name, fmt.Sprintf("it holds the last %s only: after a longer break hours are lost", rough(now.Sub(d.Oldest))), "keep samples for 15 days or more (Prometheus: --storage.tsdb.retention.time=15d)")
	}
}

// rough is a time as one says it: in days from two days on, else to the minute, and to
// the second below one.
func rough(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", int(d.Round(24*time.Hour).Hours()/24))
	case d < time.Minute:
		return d.Round(time.Second).String()
	}
	s := strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// plan lists the cluster's nodes and devices, and chooses which to look at.
func (l *look) plan(ctx context.Context) error {
	settings, around := l.cl.settings(), l.span.Grow(gpu.Neighbourhood)
	list := func(into *[]gpu.Series, sel ingest.Selector) error {
		sel.Equal = l.cl.Metrics.Match
		return l.seen.Source.List(ctx, sel, around, func(s gpu.Series) error {
			*into = append(*into, s)
			return nil
		})
	}
	var nodes, devices, exporters, info, builds []gpu.Series
	if err := list(&nodes, ingest.Selector{Metrics: gpu.NodeMetrics}); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	if err := list(&builds, ingest.Selector{Metrics: []string{"kube_state_metrics_build_info"}}); err != nil {
		return fmt.Errorf("list kube-state-metrics: %w", err)
	}
	for _, s := range builds {
		l.ksm = " " + strings.TrimPrefix(s.Labels["version"], "v")
	}
	if err := list(&devices, ingest.Selector{Metrics: settings.DeviceMetrics()}); err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	names := gpu.NamesOfPods(gpu.NewInventory(slices.Clone(nodes), settings, l.span), devices, settings)
	for some := range slices.Chunk(names, 500) {
		for _, label := range []string{"pod", "exported_pod"} {
			if err := list(&exporters, ingest.Selector{Metrics: []string{gpu.PodMetric}, OneOf: map[string][]string{label: some}}); err != nil {
				return fmt.Errorf("list exporters' pods: %w", err)
			}
		}
	}
	inv := gpu.NewInventory(slices.Concat(nodes, exporters), settings, l.span)
	l.groups = gpu.Groups(inv, devices, settings)
	// Two machines of one name are found before anything of them is read: it would be refused.
	err := l.seen.Source.Select(ctx, ingest.Selector{Metrics: []string{"kube_node_info"}, Equal: l.cl.Metrics.Match}, around, func(s gpu.Series) error {
		info = append(info, s)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read nodes: %w", err)
	}
	clashing := map[string]bool{}
	for _, c := range gpu.NewInventory(info, settings, l.span).Clashes(l.span) {
		clashing[c.Node] = true
		l.r.fail("node", l.name, c, "the series are of more than one cluster: set metrics.match to the labels of one")
	}
	whole := slices.DeleteFunc(slices.Clone(l.groups), func(g gpu.Group) bool {
		return slices.ContainsFunc(g.Nodes, func(n string) bool { return clashing[n] })
	})
	l.chosen = spreadOut(whole, inv, l.most)
	l.seen.only(l.chosen, nodes, devices)
	l.planned = true
	return nil
}

func (l *look) nodesIn(groups []gpu.Group) int {
	n := 0
	for _, g := range groups {
		n += len(g.Nodes)
	}
	return n
}

// spreadOut chooses groups with about so many nodes in all, of every kind of node.
func spreadOut(groups []gpu.Group, inv *gpu.Inventory, most int) []gpu.Group {
	kinds := map[string][]gpu.Group{}
	var order []string
	nodes := 0
	for _, g := range groups {
		kind := fmt.Sprint(g.Series > 0)
		if len(g.Nodes) > 0 {
			if n := inv.Nodes[g.Nodes[0]]; n != nil {
				kind += "\x00" + n.Pool + "\x00" + n.InstanceType
			}
		}
		if kinds[kind] == nil {
			order = append(order, kind)
		}
		kinds[kind] = append(kinds[kind], g)
		nodes += len(g.Nodes)
	}
	if nodes <= most {
		return groups
	}
	var out []gpu.Group
	for left, turn := most, 0; left > 0; turn++ {
		for _, k := range order {
			if turn < len(kinds[k]) && left > 0 {
				out = append(out, kinds[k][turn])
				left -= max(1, len(kinds[k][turn].Nodes))
			}
		}
	}
	return out
}

// count says how many of something there are.
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
