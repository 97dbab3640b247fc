package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/spf13/cobra"

	"gpuledger/billing/period"
	"gpuledger/warehouse"
)

// runAll is what cron or the CronJob calls.
type runAll struct {
	period      string
	metricsFile string
	partial     bool
}

func (a *app) runCmd() *cobra.Command {
	var c runAll
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Load what is new, allocate, reconcile: what the CronJob calls",
		Long: `Read every hour of every open month that is not yet covered and that the source still
holds, oldest first; load every bill whose content changed; allocate the months
that have bills and reconcile them. Hours that no source holds any more are named and
recorded as lost. Exit 3 where data is incomplete, 1 where
something failed or does not tie out.`,
		Example: "  gpuledger run\n  gpuledger run --period 2026-10",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var only period.Month
			if c.period != "" {
				var err error
				if only, err = period.ParseMonth(c.period); err != nil {
					return &exitError{exitUsage, err}
				}
			}
			return a.withDatabase(cmd.Context(), func(cfg *Config, db *database) error {
				cfg.allowPartial(c.partial)
				err := a.runAll(cmd.Context(), cfg, db, only)
				return a.afterRun(cmd.Context(), cfg, db, c.metricsFile, err)
			})
		},
	}
	cmd.Flags().StringVar(&c.period, "period", "", "only this month")
	allowPartialFlag(cmd, &c.partial)
	cmd.Flags().StringVar(&c.metricsFile, "metrics-file", "", "write the run's own metrics there, for node_exporter's textfile collector (default: metrics_file of the configuration)")
	return cmd
}

// maxBacklog is how far back run looks for uncovered hours without --period.
const maxBacklog = 400 * 24 * time.Hour

// runAll loads samples before bills: the nodes that samples show decide which bill
// lines are in scope.
func (a *app) runAll(ctx context.Context, cfg *Config, db *database, only period.Month) error {
	if err := cfg.needSources(a.configPath); err != nil {
		return err
	}
	// A broken policy should not cost a night of loading.
	if _, err := cfg.policy(""); err != nil {
		return err
	}
	if _, err := cfg.owners(); err != nil {
		return err
	}
	var problems []error
	busy, dark := false, false
	note := func(what string, err error) {
		if errors.Is(err, warehouse.ErrLocked) {
			busy = a.skipped(err) == nil
		} else if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", what, err))
		}
	}
	span := only.Span()
	if only.IsZero() {
		span = period.Span{Start: a.now().Add(-maxBacklog), End: a.now()}
	}
	clusters, unknown := a.clusters(ctx, cfg, span)
	for _, err := range unknown {
		note("telemetry", err)
		dark = dark || exitCodeOf(err) == exitFailed
	}
	for _, cl := range clusters {
		err := a.runSamples(ctx, cfg, db, cl, only)
		note("cluster "+cl.Name, err)
		dark = dark || err != nil && exitCodeOf(err) == exitFailed && !errors.Is(err, warehouse.ErrLocked)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	for _, b := range cfg.Bills {
		// A month's corrections come with later billing periods: all are looked at.
		_, err := a.loadBills(ctx, cfg, db, b, period.Month{}, false)
		note("source "+b.Name, err)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	switch {
	case busy: // the other job allocates what it loads; half of it is no month
		a.log.Warn("months are left to the job that is loading them")
		return worst(problems)
	case dark: // what could not be read is not "no telemetry"
		a.log.Warn("no month is allocated, as samples could not be read; gpuledger doctor says what is wrong, gpuledger allocate --period M goes on without them")
		return worst(problems)
	}
	months, err := db.BillMonths(ctx)
	if err != nil {
		return errors.Join(append(problems, err)...)
	}
	if !only.IsZero() {
		months = []period.Month{only}
	}
	for _, m := range months {
		if err := a.runMonth(ctx, cfg, db, m); err != nil {
			problems = append(problems, err)
		}
	}
	return worst(problems)
}

func (a *app) runMonth(ctx context.Context, cfg *Config, db *database, m period.Month) error {
	state, err := db.PeriodState(ctx, m)
	if err != nil {
		return err
	}
	if state == "closed" {
		moved, err := db.MovedInputs(ctx, m)
		if len(moved) > 0 {
			a.log.Warn("a closed month has new input; gpuledger adjust posts what it changes", "period", m.String(), "input", moved)
		}
		return err
	}
	res, err := (&allocateMonth{}).run(ctx, a, cfg, db, m)
	if err != nil {
		return fmt.Errorf("%s: %w", m, err)
	}
	_, wrong, err := db.Reconcile(ctx, m)
	if err != nil {
		return err
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%s does not tie out: %s; see: gpuledger reconcile --period %s", m, wrong[0], m)
	}
	a.log.Info("reconciled", "period", m.String(), "difference", 0)
	p, err := cfg.policy("")
	if err != nil {
		return err
	}
	above, err := db.ExceededGates(ctx, m, p.Gates, a.now())
	for _, g := range above {
		a.log.Warn("above a limit of the policy: "+g, "period", m.String())
	}
	if err != nil || res.Unchanged || res.RunID == "" {
		return err
	}
	o, err := cfg.owners()
	if err != nil {
		return err
	}
	riders, err := db.FreeRiders(ctx, m, p, o)
	for _, r := range riders {
		if r.Material() {
			a.log.Warn(r.String(), "period", m.String())
		}
	}
	return err
}

// runSamples loads the uncovered hours of the open months, oldest first. Hours that no
// source holds any more end the run with 3 once, when they are found to be lost; from
// then on they are in status, and a warning.
func (a *app) runSamples(ctx context.Context, cfg *Config, db *database, cl ClusterConfig, only period.Month) error {
	sources, err := a.openSources(ctx, cfg, cl)
	if err != nil {
		return err
	}
	if err := sources.record(ctx, db, cl, a.now()); err != nil {
		return err
	}
	span := only.Span()
	if only.IsZero() {
		if span, err = a.backlog(ctx, db, cl, sources); err != nil {
			return err
		}
	}
	var lost []time.Time
	for m := period.MonthOf(span.Start); m.Start().Before(span.End); m = m.Next() {
		state, err := db.PeriodState(ctx, m)
		if err != nil {
			return err
		}
		if state == "closed" {
			continue
		}
		gone, err := a.loadSamples(ctx, db, cl, sources, span.Intersect(m.Span()), true, lessAllowed{})
		if err != nil {
			return err
		}
		lost = append(lost, gone...)
	}
	fresh, err := db.MarkLost(ctx, cl.ID, lost, a.now())
	if err != nil {
		return err
	}
	if known := len(lost) - len(fresh); known > 0 {
		a.log.Warn("hours are lost, as known before: no source holds them; gpuledger status lists them", "cluster", cl.Name, "hours", known)
	}
	if len(fresh) > 0 {
		return incompletef("%d hours were never read and are older than what its sources hold (from %s): %s; they are lost, unless a fallback source has them; their cost stays no_telemetry", len(fresh), sources.oldest().Format(time.RFC3339), spansOf(fresh))
	}
	return nil
}

// backlog is the span that a run without a month looks at: from the first hour that was
// seen of the cluster, or the first that a source holds, up to now or the end of the files.
func (a *app) backlog(ctx context.Context, db *database, cl ClusterConfig, sources *clusterSources) (period.Span, error) {
	first, err := db.FirstHour(ctx, cl.ID)
	if err != nil {
		return period.Span{}, err
	}
	from := sources.oldest()
	if !first.IsZero() && first.Before(from) {
		from = first
	}
	forgets := slices.ContainsFunc(sources.open, (*source).forgets)
	if oldest := a.now().Add(-maxBacklog); from.Before(oldest) && forgets {
		from = oldest
	}
	span := period.Span{Start: from, End: a.now()}
	if n := sources.newest(); !n.IsZero() {
		span = span.Intersect(period.Span{Start: from, End: n.Add(time.Hour)})
	}
	return span, nil
}

// worst joins problems under the exit code of the worst: a failure before
// incomplete data.
func worst(problems []error) error {
	if len(problems) == 0 {
		return nil
	}
	sort.SliceStable(problems, func(i, j int) bool { return exitCodeOf(problems[i]) < exitCodeOf(problems[j]) })
	return &exitError{exitCodeOf(problems[0]), errors.Join(problems...)}
}
