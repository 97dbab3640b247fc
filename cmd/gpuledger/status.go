package main

import (
	"github.com/spf13/cobra"
)

func (a *app) statusCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show each month's state, run, coverage and freshness",
		Long: `Show, for each month with bills or samples: its state and current run, the effective cost in
scope, how much of it no pod holds, how much is estimated or without telemetry, and
how far the samples and the bills reach.`,
		Example: "  gpuledger status --output json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withReader(cmd.Context(), func(db *database) error {
				t, err := db.Status(cmd.Context())
				if err != nil {
					return err
				}
				if len(t.Rows) == 0 {
					return incompletef("the warehouse is empty; run: gpuledger run")
				}
				return t.Write(a.stdout, a.output)
			})
		},
	}
}
