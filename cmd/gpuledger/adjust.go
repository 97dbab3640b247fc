package main

import (
	"errors"

	"github.com/spf13/cobra"

	"gpuledger/billing/period"
	"gpuledger/chargeback"
	"gpuledger/warehouse"
)

func (a *app) adjustCmd() *cobra.Command {
	var s signed
	var post, policyFile string
	var dryRun bool
	var workers int
	cmd := &cobra.Command{
		Use:   "adjust",
		Short: "Post what has changed in a closed month in an open one",
		Long: `Recompute a closed month from the bills, the telemetry and the owners as they are now, and
post the difference of each target (new − old) in an open month, with charge_class Correction
and the day of the charge. The closed month stays as it was. Style and materiality are the
policy's (adjustment); what a target changes by less is carried forward. The split is that of
the policy the month was closed with; --policy takes another.`,
		Example: "  gpuledger adjust --period 2026-10 --dry-run\n  gpuledger adjust --period 2026-10 --by \"A. Controller\" --reason \"AWS restated October\"",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := s.check(false)
			if err != nil {
				return err
			}
			if s.reason == "" && !dryRun {
				return usagef("this needs --reason")
			}
			if workers < 0 {
				return usagef("--workers %d is below 0", workers)
			}
			var in period.Month
			if post != "" {
				if in, err = period.ParseMonth(post); err != nil {
					return &exitError{exitUsage, err}
				}
			}
			return a.withDatabase(cmd.Context(), func(cfg *Config, db *database) error {
				p, err := cfg.policy(policyFile)
				if err != nil {
					return err
				}
				owners, err := cfg.owners()
				if err != nil {
					return err
				}
				o := warehouse.AdjustOptions{AllocateOptions: a.allocateOptions(m, p, owners), Post: in, Second: s.second, Reason: s.reason, NewPolicy: policyFile != ""}
				o.By, o.DryRun, o.Workers = s.by, dryRun, workers
				var res warehouse.AdjustResult
				err = db.Locked(cmd.Context(), a.wait, []string{"allocate/" + m.String()}, func() error {
					for range 3 { // an input may move meanwhile
						if res, err = db.Adjust(cmd.Context(), o); !errors.Is(err, warehouse.ErrInputsMoved) {
							return err
						}
					}
					return err
				})
				if err != nil {
					return a.skipped(err)
				}
				switch {
				case dryRun:
					a.log.Info("dry run: nothing is posted", "period", m.String(), "posting_period", res.Post.String())
				case res.RunID == "":
					a.log.Info("unchanged", "period", m.String())
				default:
					a.log.Info("posted", "period", m.String(), "posting_period", res.Post.String(), "run", res.RunID, "entries", res.Posted, "carried_forward", res.Carried)
				}
				return adjustTable(res).Write(a.stdout, a.output)
			})
		},
	}
	s.flags(cmd, "who agrees, for the record")
	f := cmd.Flags()
	f.StringVar(&post, "post-in", "", "the open month that gets it; default: the first after --period that is not closed")
	f.StringVar(&policyFile, "policy", "", "split by this policy, not by the one that the month was closed with")
	f.BoolVar(&dryRun, "dry-run", false, "say what would be posted, post nothing")
	f.IntVar(&workers, "workers", 0, "days computed at once (default: one for each processor, at most 8)")
	return cmd
}

func adjustTable(res warehouse.AdjustResult) *chargeback.Table {
	t := chargeback.NewTable("posting_period", "currency", "billed_cost#", "effective_cost#", "list_cost#")
	for _, x := range res.Totals {
		t.Add(res.Post.String(), x.Currency, x.Billed, x.Effective, x.List)
	}
	return t
}
