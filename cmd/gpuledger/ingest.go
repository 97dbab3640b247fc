package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sort"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpuledger/billing"
	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/ingest"
	"gpuledger/warehouse"
)

func (a *app) ingestCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ingest",
		Short: "Load bills or samples into the warehouse, once",
		Args:  cobra.ArbitraryArgs, RunE: needsSubcommand,
	}
	cmd.AddCommand(a.ingestBillsCmd(), a.ingestSamplesCmd())
	return cmd
}

// ingestBills loads the deliveries of the configured sources.
type ingestBills struct {
	period string
	source string
}

func (a *app) ingestBillsCmd() *cobra.Command {
	var c ingestBills
	cmd := &cobra.Command{
		Use:     "bills",
		Short:   "Load every delivery whose content changed",
		Long:    "Load every delivery whose content changed, each whole or not at all. A delivery replaces the one before it of the same source and billing period.",
		Example: "  gpuledger ingest bills --period 2026-10 --source aws",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withDatabase(cmd.Context(), func(cfg *Config, db *database) error { return c.run(cmd.Context(), a, cfg, db) })
		},
	}
	cmd.Flags().StringVar(&c.period, "period", "", "only the delivery of this billing period, such as 2026-10")
	cmd.Flags().StringVar(&c.source, "source", "", "only this source of the configuration")
	return cmd
}

func (c *ingestBills) run(ctx context.Context, a *app, cfg *Config, db *database) error {
	var only period.Month
	if c.period != "" {
		var err error
		if only, err = period.ParseMonth(c.period); err != nil {
			return &exitError{exitUsage, err}
		}
	}
	found := false
	var problems []error
	for _, b := range cfg.Bills {
		if c.source != "" && b.Name != c.source {
			continue
		}
		found = true
		_, err := a.loadBills(ctx, cfg, db, b, only)
		if err = a.skipped(err); err != nil {
			problems = append(problems, fmt.Errorf("source %s: %w", b.Name, err))
		}
	}
	if !found {
		return usagef("no bill source %q in %s", c.source, a.configPath)
	}
	return worst(problems)
}

// loadBills loads a source's deliveries and returns the months whose lines changed.
// A broken delivery does not keep the whole ones of other months out.
func (a *app) loadBills(ctx context.Context, cfg *Config, db *database, b BillConfig, only period.Month) ([]period.Month, error) {
	r, err := cfg.reader(ctx, b)
	if err != nil {
		return nil, err
	}
	deliveries, broken := r.Deliveries(ctx)
	if broken != nil && len(deliveries) == 0 {
		return nil, broken
	}
	scope, err := cfg.scope(ctx, db)
	if err != nil {
		return nil, err
	}
	var changed []period.Month
	matched := false
	for _, d := range deliveries {
		if !only.IsZero() && d.BillingPeriod != only {
			continue
		}
		matched = true
		var res warehouse.BillResult
		err := db.Locked(ctx, a.wait, []string{"bills/" + b.Name + "/" + d.BillingPeriod.String()}, func() error {
			stop := a.progress(fmt.Sprintf("bill %s %s", b.Name, d.BillingPeriod))
			defer stop()
			var err error
			res, err = db.LoadDelivery(ctx, b.Name, b.Type, d, r, scope)
			return err
		})
		if err != nil {
			return changed, err
		}
		if !res.Changed {
			a.log.Info("bill unchanged", "source", b.Name, "billing_period", d.BillingPeriod.String(), "lines", res.Lines)
			continue
		}
		changed = append(changed, res.Months...)
		a.log.Info("bill loaded", "source", b.Name, "billing_period", d.BillingPeriod.String(), "format", d.Format, "lines", res.Lines, "in_scope", res.KeptLines, "new", res.New, "gone", res.Gone)
		for _, n := range res.Notes {
			a.log.Info("bill note", "source", b.Name, "note", n)
		}
	}
	if broken != nil {
		return changed, broken
	}
	if len(deliveries) == 0 {
		return changed, incompletef("%w: there is no delivery, or none with a line, at %s", billing.ErrIncomplete, b.Location)
	}
	if !matched {
		var have []string
		for _, d := range deliveries {
			have = append(have, d.BillingPeriod.String())
		}
		return changed, incompletef("%w: no delivery of %s; there are: %s", billing.ErrIncomplete, only, orNone(strings.Join(have, ", ")))
	}
	return changed, nil
}

// scope decides which lines are kept whole: those of known GPU nodes, of GPU
// instance types, and of the configured filters.
func (c *Config) scope(ctx context.Context, db *database) (*billing.Scope, error) {
	known, err := db.KnownInstances(ctx)
	if err != nil {
		return nil, err
	}
	s := &billing.Scope{Instances: known, GPUType: gpu.IsGPUInstanceType, GPUFamily: gpu.IsGPUFamily, Catalogue: fmt.Sprintf("%x", sha256.Sum256([]byte(gpu.CatalogVersion())))}
	for _, f := range c.Scope.Filters {
		s.Filters = append(s.Filters, billing.Filter{Accounts: f.Accounts, Tags: f.Tags})
	}
	return s, nil
}

// ingestSamples loads the hours of a span from the clusters' telemetry stores.
type ingestSamples struct {
	period    string
	from, to  string
	cluster   string
	allowLess bool
	partial   bool
}

func (a *app) ingestSamplesCmd() *cobra.Command {
	var c ingestSamples
	cmd := &cobra.Command{
		Use:     "samples",
		Short:   "Read telemetry and store hourly occupancy",
		Long:    "Read the true samples of a span and store, for each hour, who held which part of which GPU. Reading a span again writes only hours that say something new.",
		Example: "  gpuledger ingest samples --period 2026-10\n  gpuledger ingest samples --from 2026-10-05T00:00:00Z --to 2026-10-06T00:00:00Z --cluster prod",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			span, err := c.span()
			if err != nil {
				return err
			}
			return a.withDatabase(cmd.Context(), func(cfg *Config, db *database) error { return c.run(cmd.Context(), a, cfg, db, span) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.period, "period", "", "month to read, such as 2026-10")
	f.StringVar(&c.from, "from", "", "start of the span, RFC 3339 or a date")
	f.StringVar(&c.to, "to", "", "end of the span, exclusive")
	f.StringVar(&c.cluster, "cluster", "", "only this cluster of the configuration")
	f.BoolVar(&c.allowLess, "allow-less", false, "accept hours with less measured time than is stored")
	allowPartialFlag(cmd, &c.partial)
	cmd.MarkFlagsMutuallyExclusive("period", "from")
	cmd.MarkFlagsRequiredTogether("from", "to")
	cmd.MarkFlagsOneRequired("period", "from")
	return cmd
}

func (c *ingestSamples) span() (period.Span, error) {
	if c.period != "" {
		m, err := period.ParseMonth(c.period)
		if err != nil {
			return period.Span{}, &exitError{exitUsage, err}
		}
		return m.Span(), nil
	}
	from, err1 := parseTime(c.from)
	to, err2 := parseTime(c.to)
	if err := errors.Join(err1, err2); err != nil {
		return period.Span{}, &exitError{exitUsage, err}
	}
	s := period.Span{Start: from, End: to}
	if s.Empty() {
		return s, usagef("--from %s is not before --to %s", c.from, c.to)
	}
	return s, nil
}

// parseTime reads RFC 3339, or a date as its midnight in UTC.
func parseTime(s string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04", "2006-01-02T15", "2006-01-02"} {
		if t, err := time.Parse(layout, s); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time like 2026-10-05T14:00:00Z or a date", s)
}

func (c *ingestSamples) run(ctx context.Context, a *app, cfg *Config, db *database, span period.Span) error {
	cfg.allowPartial(c.partial)
	found := false
	var problems []error
	for _, cl := range cfg.Clusters {
		if c.cluster != "" && cl.Name != c.cluster && cl.ID != c.cluster {
			continue
		}
		found = true
		src, about, err := openSource(ctx, cfg, cl)
		if err == nil {
			err = a.loadSamples(ctx, db, cl, src, about, span, false, c.allowLess)
		}
		if err = a.skipped(err); err != nil {
			problems = append(problems, fmt.Errorf("cluster %s: %w", cl.Name, err))
		}
	}
	if !found {
		return usagef("no cluster %q in %s", c.cluster, a.configPath)
	}
	return worst(problems)
}

// openSource opens a cluster's telemetry store and asks what it holds.
func openSource(ctx context.Context, cfg *Config, cl ClusterConfig) (ingest.Source, ingest.Description, error) {
	src, err := cfg.source(cl)
	if err != nil {
		return nil, ingest.Description{}, err
	}
	about, err := src.Describe(ctx)
	return src, about, err
}

// loadSamples reads the complete hours of a span that the source still holds: all
// of them, or with missing only those not yet covered. Hours before the source's
// oldest sample are lost; they are named, never stored as uncovered.
func (a *app) loadSamples(ctx context.Context, db *database, cl ClusterConfig, src ingest.Source, about ingest.Description, span period.Span, missing, allowLess bool) error {
	asked := ingest.Complete(span, a.now())
	held := asked
	if !about.Oldest.IsZero() {
		held = held.Intersect(period.Span{Start: about.Oldest.UTC().Truncate(time.Hour), End: held.End})
	}
	if !about.Newest.IsZero() {
		held = held.Intersect(period.Span{Start: held.Start, End: about.Newest.UTC().Truncate(time.Hour).Add(time.Hour)})
	}
	covered, err := db.CoveredHours(ctx, cl.ID, asked)
	if err != nil {
		return err
	}
	var todo []time.Time
	for _, h := range held.Hours() {
		if !missing || !covered[h.Unix()] {
			todo = append(todo, h)
		}
	}
	var total warehouse.SampleResult
	for _, s := range runs(todo) {
		err := db.Locked(ctx, a.wait, a.sampleLocks(cl, s), func() error {
			return a.foldInto(ctx, db, cl, src, about, s, allowLess, &total)
		})
		if err != nil {
			return err
		}
	}
	a.sayPartial(cl, src)
	a.log.Info("samples loaded", "cluster", cl.Name, "span", asked.String(), "driver", about.Driver, "hours", len(todo), "node_hours", total.NodeHours, "changed", total.Changed)
	lost := 0
	for _, h := range asked.Hours() { // a server forgets; files hold what they hold
		if about.Forgets && h.Before(held.Start) && !covered[h.Unix()] {
			lost++
		}
	}
	if lost > 0 {
		return incompletef("%d hours from %s are older than what %s holds (from %s); they are lost to this source", lost, asked.Start.Format(time.RFC3339), cl.Name, about.Oldest.UTC().Format(time.RFC3339))
	}
	return nil
}

// sayPartial logs what a source that may answer in part warned of.
func (a *app) sayPartial(cl ClusterConfig, src ingest.Source) {
	if p, ok := src.(ingest.Partial); ok {
		for _, w := range p.Warnings() {
			a.log.Warn("samples may be missing: "+w, "cluster", cl.Name)
		}
	}
}

// allowPartialFlag is for the commands that read samples.
func allowPartialFlag(cmd *cobra.Command, to *bool) {
	cmd.Flags().BoolVar(to, "allow-partial", false, "take samples from a store that warns of partial data (as metrics.allow_partial)")
}

// allowPartial does for every cluster what its allow_partial would.
func (c *Config) allowPartial(yes bool) {
	for i := range c.Clusters {
		c.Clusters[i].Metrics.AllowPartial = c.Clusters[i].Metrics.AllowPartial || yes
	}
}

func (a *app) sampleLocks(cl ClusterConfig, s period.Span) []string {
	set := map[string]bool{}
	for _, h := range s.Hours() {
		set["samples/"+cl.ID+"/"+period.MonthOf(h).String()] = true
	}
	var out []string
	for k := range set {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

// runs joins consecutive hours into spans.
func runs(hours []time.Time) []period.Span {
	var out []period.Span
	for _, h := range hours {
		if n := len(out); n > 0 && out[n-1].End.Equal(h) {
			out[n-1].End = h.Add(time.Hour)
			continue
		}
		out = append(out, period.Span{Start: h, End: h.Add(time.Hour)})
	}
	return out
}

func (a *app) foldInto(ctx context.Context, db *database, cl ClusterConfig, src ingest.Source, about ingest.Description, span period.Span, allowLess bool, total *warehouse.SampleResult) error {
	started := a.now()
	stop := a.progress(fmt.Sprintf("samples of %s, %s", cl.Name, span))
	defer stop()
	defer collectLess()()
	return ingest.Fold(ctx, src, cl.Metrics.Match, cl.settings(), span, ingest.Whole(func(c ingest.Chunk) error {
		res, err := db.SaveHours(ctx, warehouse.SampleLoad{
			Cluster: cl.ID, ClusterName: cl.Name, Span: c.Span, Driver: about.Driver, ServerVersion: about.Version, Settings: settingsHash(cl),
			Series: c.Series, Samples: c.Samples, Started: started, AllowLess: allowLess,
		}, c.Hours)
		if err != nil {
			return err
		}
		total.NodeHours += res.NodeHours
		total.Changed += res.Changed
		for _, h := range c.Hours {
			if seen := h.CoveredMicros; seen > 0 && seen < partlySeen {
				a.log.Warn("the inventory was seen for a part of the hour only; the next run reads it again while the source holds it", "cluster", cl.Name, "hour", h.Hour.Format(time.RFC3339), "seconds", seen/1_000_000)
			}
			if len(h.Unplaced) > 0 {
				a.log.Warn("devices of no known node are left out", "cluster", cl.Name, "hour", h.Hour.Format(time.RFC3339), "uuids", h.Unplaced)
			}
		}
		return nil
	}))
}

// partlySeen is the inventory time, in microseconds, below which an hour is worth a
// word.
const partlySeen = 3_300_000_000

// settingsHash identifies what samples were read with, apart from where they came from.
func settingsHash(cl ClusterConfig) [32]byte {
	b, err := json.Marshal(map[string]any{"metrics": gpu.DeviceMetrics, "inventory": gpu.InventoryMetrics, "match": cl.Metrics.Match, "settings": cl.settings()})
	if err != nil {
		panic(err) // strings and maps of them always marshal
	}
	return sha256.Sum256(b)
}

// collectLess lets garbage grow to more than what is live while samples are read: they
// are many and short-lived, and what is live of them is small. It returns the way back.
func collectLess() (back func()) {
	if os.Getenv("GOGC") != "" { // somebody knows better
		return func() {}
	}
	before := debug.SetGCPercent(250)
	return func() { debug.SetGCPercent(before) }
}

// progress logs a line every ten seconds until stopped.
func (a *app) progress(what string) (stop func()) {
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(10 * time.Second)
		defer tick.Stop()
		start := time.Now()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				a.log.Info("working", "on", what, "seconds", int(time.Since(start).Seconds()))
			}
		}
	}()
	return func() { close(done) }
}
