package main

import (
	"time"

	"github.com/spf13/cobra"

	"gpuledger/warehouse"
)

func (a *app) inventoryCmd() *cobra.Command {
	var at, cluster string
	var pods bool
	cmd := &cobra.Command{
		Use:   "inventory",
		Short: "Show the nodes, GPUs and pods that were there, now or at a time",
		Long: `Show the GPU nodes with their devices, as the loaded hours have them: where each is, how it is
shared, how many pods its node had. By default as of the newest hour of each cluster;
with --at as of that time. Exit 3 where nothing is known of it.`,
		Example: "  gpuledger inventory --cluster prod\n  gpuledger inventory --at 2026-10-05T10:40:00Z --pods --output json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o := warehouse.InventoryAt{Cluster: cluster}
			if at != "" {
				var err error
				if o.At, err = parseTime(at); err != nil {
					return &exitError{exitUsage, err}
				}
			}
			return a.withReader(cmd.Context(), func(db *database) error {
				show := db.Inventory
				if pods {
					show = db.InventoryPods
				}
				t, err := show(cmd.Context(), o)
				if err != nil {
					return err
				}
				if len(t.Rows) == 0 {
					return incompletef("nothing is known of %s %s; gpuledger status says which hours are loaded", clusterOr(cluster), instantOr(o.At))
				}
				return t.Write(a.stdout, a.output)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&at, "at", "", "as of this time, RFC 3339 or a date (default: the newest hour)")
	f.StringVar(&cluster, "cluster", "", "only this cluster, by name or id")
	f.BoolVar(&pods, "pods", false, "list the pods instead")
	return cmd
}

func clusterOr(name string) string {
	if name == "" {
		return "any cluster"
	}
	return "cluster " + name
}

func instantOr(t time.Time) string {
	if t.IsZero() {
		return "yet"
	}
	return "at " + t.Format(time.RFC3339)
}
