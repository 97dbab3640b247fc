package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func (a *app) statusCmd() *cobra.Command {
	var clusters bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show each month's state, run, coverage and freshness, and each cluster's hours",
		Long: `Show, for each month with bills or samples: its state and current run, the effective cost in
scope, how much of it no pod holds, how much is estimated or without telemetry, and
how far the samples and the bills reach. Then, for each cluster: the hours that are covered,
not covered and lost, and how long the oldest uncovered one is still held by its sources. As
json or csv it is one table: the months, or with --clusters the clusters.`,
		Example: "  gpuledger status\n  gpuledger status --clusters --output json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withReader(cmd.Context(), func(db *database) error {
				t, err := db.Status(cmd.Context())
				if err != nil {
					return err
				}
				c, err := a.clusterStatus(cmd.Context(), db)
				if err != nil {
					return err
				}
				if len(t.Rows) == 0 && len(c.Rows) == 0 {
					return incompletef("the warehouse is empty; run: gpuledger run")
				}
				if clusters {
					return c.Write(a.stdout, a.output)
				}
				if err := t.Write(a.stdout, a.output); err != nil || a.output != "table" || len(c.Rows) == 0 {
					return err
				}
				if _, err := fmt.Fprintln(a.stdout); err != nil {
					return err
				}
				return c.Write(a.stdout, a.output)
			})
		},
	}
	cmd.Flags().BoolVar(&clusters, "clusters", false, "show the clusters only")
	return cmd
}
