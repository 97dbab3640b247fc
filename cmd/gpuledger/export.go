package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"gpuledger/billing/period"
	"gpuledger/chargeback"
)

// exportMonth writes a month's chargeback for finance.
type exportMonth struct {
	period string
	format string
	by     string
	out    string
}

func (a *app) exportCmd() *cobra.Command {
	var c exportMonth
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write a month's chargeback as a file",
		Long: "Write a month's chargeback, grouped as asked; the rows add up to the month's in-scope cost, with every digit. Group by any of:\n  " +
			wrapped(chargeback.Dimensions()) + "\nor dimensions.NAME for a dimension of owners.yaml.",
		Example: "  gpuledger export --period 2026-10 --format csv --by team,ai_model --out chargeback-2026-10.csv",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("output") {
				return usagef("export writes the format of --format; --output is for commands that print rows")
			}
			if c.format != "csv" {
				return usagef("--format %q is not available in this version; use csv", c.format)
			}
			query, err := chargeback.ExportQuery(splitList(c.by))
			if err != nil {
				return &exitError{exitUsage, err}
			}
			return a.withReader(cmd.Context(), func(db *database) error {
				m, err := db.month(cmd.Context(), c.period)
				if err != nil {
					return err
				}
				return c.run(cmd.Context(), a, db, m, query)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.period, "period", "", "month of the charge, such as 2026-10; default: the newest with a run")
	f.StringVar(&c.format, "format", "csv", "csv")
	f.StringVar(&c.by, "by", "team,category", "columns to group by, separated by commas")
	f.StringVar(&c.out, "out", "", "file to write; default: standard output")
	return cmd
}

// wrapped lays names out in lines that fit a terminal.
func wrapped(names []string) string {
	var b strings.Builder
	for i, n := range names {
		switch {
		case i == 0:
		case i%7 == 0:
			b.WriteString(",\n  ")
		default:
			b.WriteString(", ")
		}
		b.WriteString(n)
	}
	return b.String()
}

func splitList(s string) []string {
	var out []string
	for _, p := range strings.Split(s, ",") {
		if p = strings.TrimSpace(p); p != "" {
			out = append(out, p)
		}
	}
	return out
}

func (c *exportMonth) run(ctx context.Context, a *app, db *database, m period.Month, query string) error {
	t, err := db.Query(ctx, query, m.Start())
	if err != nil {
		return err
	}
	if len(t.Rows) == 0 {
		return incompletef("%s has no published run; run: gpuledger allocate --period %s", m, m)
	}
	if c.out == "" {
		return t.WriteCSV(a.stdout)
	}
	if err := chargeback.WriteFile(c.out, t.WriteCSV); err != nil {
		return err
	}
	a.log.Info("exported", "file", c.out, "rows", len(t.Rows))
	return nil
}
