package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"gpuledger/billing/period"
	"gpuledger/gpu"
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
	period     string
	source     string
	allowEmpty bool
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
	cmd.Flags().BoolVar(&c.allowEmpty, "allow-empty", false, "let a delivery without a line take the place of one with some")
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
		_, err := a.loadBills(ctx, cfg, db, b, only, c.allowEmpty)
		if err = a.skipped(err); err != nil {
			problems = append(problems, fmt.Errorf("source %s: %w", b.Name, err))
		}
	}
	if !found {
		return usagef("no bill source %q in %s", c.source, a.configPath)
	}
	return worst(problems)
}

// ingestSamples loads the hours of a span from the clusters' telemetry stores.
type ingestSamples struct {
	period   string
	from, to string
	cluster  string
	allow    lessAllowed
	partial  bool
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
	f.BoolVar(&c.allow.less, "allow-less", false, "accept hours with less than is stored: measured time, or nodes that are not there now")
	f.BoolVar(&c.allow.empty, "allow-empty", false, "accept that hours have nothing of which something is stored, too")
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
	clusters, problems := a.clusters(ctx, cfg, span)
	for _, cl := range clusters {
		if c.cluster != "" && cl.Name != c.cluster && cl.ID != c.cluster {
			continue
		}
		found = true
		sources, err := a.openSources(ctx, cfg, cl)
		if err == nil {
			err = a.ingestCluster(ctx, db, cl, sources, span, c.allow)
		}
		if err = a.skipped(err); err != nil {
			problems = append(problems, fmt.Errorf("cluster %s: %w", cl.Name, err))
		}
	}
	if !found && len(problems) == 0 {
		return usagef("no cluster %q in %s", c.cluster, a.configPath)
	}
	return worst(problems)
}

// ingestCluster reads all hours of a span that the sources hold. Who asks for hours that
// are lost is told so every time.
func (a *app) ingestCluster(ctx context.Context, db *database, cl ClusterConfig, sources *clusterSources, span period.Span, allow lessAllowed) error {
	if err := sources.record(ctx, db, cl, a.now()); err != nil {
		return err
	}
	lost, err := a.loadSamples(ctx, db, cl, sources, span, false, allow)
	if err == nil && len(lost) > 0 {
		err = incompletef("%d hours are older than what its sources hold (from %s); they are lost: %s", len(lost), sources.oldest().Format(time.RFC3339), spansOf(lost))
	}
	return err
}

// sayPartial logs what sources that may answer in part warned of.
func (a *app) sayPartial(cl ClusterConfig, sources *clusterSources) {
	for _, s := range sources.open {
		for _, w := range s.warnings() {
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
		cl := &c.Clusters[i]
		cl.Metrics.AllowPartial = cl.Metrics.AllowPartial || yes
		for j := range cl.Fallback {
			cl.Fallback[j].AllowPartial = cl.Fallback[j].AllowPartial || yes
		}
	}
}

// partlySeen is the inventory time, in microseconds, below which an hour is worth a
// word.
const partlySeen = 3_300_000_000

// settingsHash identifies what samples were read with, apart from where they came from.
func settingsHash(cl ClusterConfig) [32]byte {
	b, err := json.Marshal(map[string]any{"metrics": cl.settings().DeviceMetrics(), "inventory": gpu.InventoryMetrics, "match": cl.Metrics.Match, "settings": cl.settings()})
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
	before := debug.SetGCPercent(150)
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
