package main

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"time"

	"github.com/spf13/cobra"

	"gpuledger/billing/period"
	"gpuledger/policy"
	"gpuledger/warehouse"
)

// allocateMonth splits a month's lines and publishes a run.
type allocateMonth struct {
	period  string
	policy  string
	dryRun  bool
	workers int
}

func (a *app) allocateCmd() *cobra.Command {
	var c allocateMonth
	cmd := &cobra.Command{
		Use:     "allocate",
		Short:   "Split a month's bill lines by pod and publish the result",
		Long:    "Split every in-scope line of a month from what is in the warehouse. The month's pointer moves to the new run only after its sums are verified; the same inputs publish nothing new.",
		Example: "  gpuledger allocate --period 2026-10 --policy policy.yaml --dry-run",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := period.ParseMonth(c.period)
			if err != nil {
				return &exitError{exitUsage, err}
			}
			return a.withDatabase(cmd.Context(), func(cfg *Config, db *database) error {
				_, err := c.run(cmd.Context(), a, cfg, db, m)
				return err
			})
		},
	}
	cmd.Flags().StringVar(&c.period, "period", "", "month of the charge, such as 2026-10")
	cmd.Flags().StringVar(&c.policy, "policy", "", "policy to use instead of the configured one")
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "compute and check, publish nothing")
	cmd.Flags().IntVar(&c.workers, "workers", 0, "days computed at once (default: one for each processor, at most 8)")
	_ = cmd.MarkFlagRequired("period") // the flag exists
	return cmd
}

func (c *allocateMonth) run(ctx context.Context, a *app, cfg *Config, db *database, m period.Month) (warehouse.RunResult, error) {
	if c.workers < 0 {
		return warehouse.RunResult{}, usagef("--workers %d is below 0", c.workers)
	}
	p, err := cfg.policy(c.policy)
	if err != nil {
		return warehouse.RunResult{}, err
	}
	o, err := cfg.owners()
	if err != nil {
		return warehouse.RunResult{}, err
	}
	var res warehouse.RunResult
	opts := a.allocateOptions(m, p, o)
	opts.DryRun, opts.Workers = c.dryRun, c.workers
	err = db.Locked(ctx, a.wait, []string{"allocate/" + m.String()}, func() error {
		for range 3 { // an input may move while a month is allocated
			if res, err = db.Allocate(ctx, opts); !errors.Is(err, warehouse.ErrInputsMoved) {
				return err
			}
		}
		return err
	})
	if err != nil {
		return res, a.skipped(err)
	}
	if res.Unchanged {
		a.log.Info("unchanged", "period", m.String(), "run", res.RunID)
		return res, nil
	}
	a.log.Info("allocated", "period", m.String(), "run", res.RunID, "lines", res.Lines, "units", res.Units, "new_units", res.NewUnits, "rows", res.Rows)
	return res, nil
}

// allocateOptions are those of every computation of a month.
func (a *app) allocateOptions(m period.Month, p policy.Policy, o policy.Owners) warehouse.AllocateOptions {
	lastSaid := time.Now()
	return warehouse.AllocateOptions{
		Period: m, Policy: p, Owners: o, CodeVersion: version(), By: who(),
		Progress: func(day time.Time, of int) {
			if time.Since(lastSaid) > 10*time.Second {
				lastSaid = time.Now()
				a.log.Info("allocating", "period", m.String(), "day", day.Day(), "of", of)
			}
		},
		Warn: func(format string, args ...any) { a.log.Warn(fmt.Sprintf(format, args...), "period", m.String()) },
	}
}

// who is the user a run is recorded under.
func who() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "unknown"
}
