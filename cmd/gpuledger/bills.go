package main

import (
	"time"

	"github.com/spf13/cobra"

	"gpuledger/billing/period"
)

func (a *app) billsCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bills",
		Short: "Show what of the bills is loaded, and what of it does not match",
		Args:  cobra.ArbitraryArgs,
		RunE:  needsSubcommand,
	}
	cmd.AddCommand(a.billsShowCmd(), a.billsLinesCmd(), a.billsUnmatchedCmd())
	return cmd
}

func (a *app) billsShowCmd() *cobra.Command {
	var month string
	var all bool
	cmd := &cobra.Command{
		Use:     "show",
		Short:   "List the deliveries with their totals",
		Long:    "List the deliveries of bills: format, lines, totals per currency, hash of the content and what they do not tell. With --all also those that newer ones replaced.",
		Example: "  gpuledger bills show --period 2026-10 --all",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := monthOf(month)
			if err != nil {
				return err
			}
			return a.withReader(cmd.Context(), func(db *database) error {
				t, err := db.Deliveries(cmd.Context(), m, all)
				if err != nil {
					return err
				}
				if len(t.Rows) == 0 {
					return incompletef("no bill is loaded; run: gpuledger ingest bills")
				}
				return t.Write(a.stdout, a.output)
			})
		},
	}
	cmd.Flags().StringVar(&month, "period", "", "only this billing period, such as 2026-10")
	cmd.Flags().BoolVar(&all, "all", false, "superseded deliveries too")
	return cmd
}

// monthOf reads an optional month.
func monthOf(text string) (period.Month, error) {
	if text == "" {
		return period.Month{}, nil
	}
	m, err := period.ParseMonth(text)
	if err != nil {
		return m, &exitError{exitUsage, err}
	}
	return m, nil
}

func (a *app) billsLinesCmd() *cobra.Command {
	var node, at, from, to string
	cmd := &cobra.Command{
		Use:     "lines",
		Short:   "List the lines that bill a node at a time",
		Long:    "List the lines of the current deliveries that bill a node, by its name in Kubernetes or its machine's at the provider, in the hour of --at or from --from to --to.",
		Example: "  gpuledger bills lines --node ip-10-0-2-41.ec2.internal --at 2026-10-05T10:00:00Z",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			span, err := spanOfFlags(at, from, to)
			if err != nil {
				return err
			}
			return a.withReader(cmd.Context(), func(db *database) error {
				t, err := db.NodeLines(cmd.Context(), node, span)
				if err != nil {
					return err
				}
				if len(t.Rows) == 0 {
					return incompletef("no line bills %s in %s; gpuledger bills unmatched says why that may be", node, span)
				}
				return t.Write(a.stdout, a.output)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&node, "node", "", "the node, or the provider's name of its machine")
	f.StringVar(&at, "at", "", "an instant, RFC 3339: its hour")
	f.StringVar(&from, "from", "", "start, RFC 3339 or a date")
	f.StringVar(&to, "to", "", "end, exclusive")
	_ = cmd.MarkFlagRequired("node")
	cmd.MarkFlagsMutuallyExclusive("at", "from")
	cmd.MarkFlagsRequiredTogether("from", "to")
	cmd.MarkFlagsOneRequired("at", "from")
	return cmd
}

// spanOfFlags is the hour of an instant, or a span.
func spanOfFlags(at, from, to string) (period.Span, error) {
	if at != "" {
		t, err := parseTime(at)
		if err != nil {
			return period.Span{}, &exitError{exitUsage, err}
		}
		return period.Hour(t.Truncate(time.Hour)), nil
	}
	c := ingestSamples{from: from, to: to}
	return c.span()
}

func (a *app) billsUnmatchedCmd() *cobra.Command {
	var month string
	cmd := &cobra.Command{
		Use:     "unmatched",
		Short:   "List billed machines without a node, and nodes without a line",
		Long:    "List what of a month does not come together: machines that are billed and that no cluster shows, and nodes that clusters show and that nothing bills, each with the likely reason.",
		Example: "  gpuledger bills unmatched --period 2026-10",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := monthOf(month)
			if err != nil {
				return err
			}
			return a.withReader(cmd.Context(), func(db *database) error {
				t, err := db.Unmatched(cmd.Context(), m)
				if err != nil {
					return err
				}
				if len(t.Rows) == 0 && a.output == "table" {
					a.say("every billed machine of %s is a node, and every node is billed", m)
					return nil
				}
				return t.Write(a.stdout, a.output)
			})
		},
	}
	cmd.Flags().StringVar(&month, "period", "", "the month, such as 2026-10")
	_ = cmd.MarkFlagRequired("period")
	return cmd
}
