package main

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"gpuledger/billing/period"
	"gpuledger/chargeback"
	"gpuledger/warehouse"
)

// signed says who does something to a month, and why.
type signed struct{ period, by, second, reason string }

func (s *signed) flags(cmd *cobra.Command, second string) {
	f := cmd.Flags()
	f.StringVar(&s.period, "period", "", "the month, such as 2026-10")
	f.StringVar(&s.by, "by", who(), "who does it")
	f.StringVar(&s.second, "second", "", second)
	f.StringVar(&s.reason, "reason", "", "why, for the record")
	_ = cmd.MarkFlagRequired("period") // the flag exists
}

// check cleans the names up. Two are two people's.
func (s *signed) check(needsTwo bool) (period.Month, error) {
	m, err := period.ParseMonth(s.period)
	if err != nil {
		return m, &exitError{exitUsage, err}
	}
	for _, text := range []*string{&s.by, &s.second, &s.reason} {
		*text = strings.Join(strings.Fields(*text), " ")
	}
	switch {
	case s.by == "":
		return m, usagef("--by is empty: say who does it")
	case needsTwo && (s.second == "" || s.reason == ""):
		return m, usagef("this needs --reason and, by another person, --second")
	case s.second != "" && strings.EqualFold(s.second, s.by):
		return m, usagef("--second %s is --by: two people have to agree", s.second)
	}
	return m, nil
}

func (a *app) closeCmd() *cobra.Command {
	var s signed
	var force bool
	cmd := &cobra.Command{
		Use:   "close",
		Short: "Close a month: what it says can't change any more",
		Long: `Measure a month by the gates of the policy and close it with its current run. From then
on the database refuses to change its allocations; later bills and telemetry become
adjustments (gpuledger adjust). Exit 1 while a gate fails, with the figure, the limit and the
rows behind it; --force closes all the same, and stays on the record.`,
		Example: "  gpuledger close --period 2026-10 --by \"A. Controller\"",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := s.check(force)
			if err != nil {
				return err
			}
			return a.withDatabase(cmd.Context(), func(cfg *Config, db *database) error {
				p, err := cfg.policy("")
				if err != nil {
					return err
				}
				var gates []warehouse.Gate
				err = db.Locked(cmd.Context(), a.wait, []string{"allocate/" + m.String()}, func() (err error) {
					gates, err = db.ClosePeriod(cmd.Context(), warehouse.CloseOptions{Period: m, Gates: p.Gates, By: s.by, Second: s.second, Reason: s.reason, Force: force, Now: a.now()})
					return err
				})
				if len(gates) > 0 {
					if werr := gateTable(gates).Write(a.stdout, a.output); werr != nil {
						return errors.Join(err, werr)
					}
				}
				if err == nil {
					a.log.Info("closed", "period", m.String(), "by", s.by, "forced", force)
				}
				return err
			})
		},
	}
	s.flags(cmd, "who agrees, for --force")
	cmd.Flags().BoolVar(&force, "force", false, "close although gates fail; needs --reason and --second")
	return cmd
}

func gateTable(gates []warehouse.Gate) *chargeback.Table {
	t := chargeback.NewTable("gate", "figure", "limit", "result", "largest")
	for _, g := range gates {
		result := "ok"
		if g.Failed {
			result = "FAILS"
		}
		t.Add(g.Name, g.Figure, g.Limit, result, strings.Join(g.Rows, "; "))
	}
	return t
}

func (a *app) reopenCmd() *cobra.Command {
	var s signed
	cmd := &cobra.Command{
		Use:     "reopen",
		Short:   "Open a closed month again, by two people",
		Long:    "Open a closed month again. It needs a reason and a second name, which stay on the record, as does the run that was closed.",
		Example: "  gpuledger reopen --period 2026-10 --by \"A. Controller\" --second \"B. Auditor\" --reason \"restated by AWS\"",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := s.check(true)
			if err != nil {
				return err
			}
			return a.withDatabase(cmd.Context(), func(_ *Config, db *database) error {
				err := db.Locked(cmd.Context(), a.wait, []string{"allocate/" + m.String()}, func() error {
					return db.ReopenPeriod(cmd.Context(), m, s.by, s.second, s.reason)
				})
				if err == nil {
					a.log.Info("reopened", "period", m.String(), "by", s.by, "second", s.second)
				}
				return err
			})
		},
	}
	s.flags(cmd, "who agrees")
	return cmd
}

func (a *app) logCmd() *cobra.Command {
	var month string
	cmd := &cobra.Command{
		Use:     "log",
		Short:   "Show who ran, closed, reopened or forced what",
		Long:    "List the audit log, the oldest entry first. Entries can't be changed; each holds the hash of the one before it.",
		Example: "  gpuledger log --period 2026-10\n  gpuledger log verify",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := monthOf(month)
			if err != nil {
				return err
			}
			return a.withReader(cmd.Context(), func(db *database) error {
				t, err := db.AuditLog(cmd.Context(), m)
				if err != nil {
					return err
				}
				return t.Write(a.stdout, a.output)
			})
		},
	}
	cmd.Flags().StringVar(&month, "period", "", "only this month")
	var head string
	verify := &cobra.Command{
		Use:     "verify",
		Short:   "Recompute the chain of the audit log",
		Long:    "Recompute every hash of the audit log. Keep the last one elsewhere: with --head it shows that none of the newest entries was cut off since. Exit 1 where the chain is broken.",
		Example: "  gpuledger log verify --head 3f5a…",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withReader(cmd.Context(), func(db *database) error {
				n, last, seen, err := db.VerifyLog(cmd.Context(), strings.ToLower(head))
				if err != nil {
					return err
				}
				if head != "" && !seen {
					return errors.New("no entry has the hash " + head + ": entries were cut off, or it is another database")
				}
				t := chargeback.NewTable("entries#", "head")
				t.Add(n, last)
				return t.Write(a.stdout, a.output)
			})
		},
	}
	verify.Flags().StringVar(&head, "head", "", "a hash that the log must hold: the last one of an earlier time")
	cmd.AddCommand(verify)
	return cmd
}
