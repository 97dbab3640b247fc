package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"gpuledger/billing/period"
	"gpuledger/chargeback"
)

func (a *app) reconcileCmd() *cobra.Command {
	var month string
	cmd := &cobra.Command{
		Use:   "reconcile",
		Short: "Show that a month ties out, or where it does not",
		Long: `Show, for each source, account, billing period and currency, that the bill is what is in
scope and what is not, and that what is in scope went to pods and to remainder
categories. The facts are added up again, line by line. Exit 1 on any difference.`,
		Example: "  gpuledger reconcile --period 2026-10",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withReader(cmd.Context(), func(db *database) error {
				m, err := db.month(cmd.Context(), month)
				if err != nil {
					return err
				}
				return a.reconcile(cmd.Context(), db, m)
			})
		},
	}
	cmd.Flags().StringVar(&month, "period", "", "month of the charge, such as 2026-10; default: the newest with a run")
	return cmd
}

func (a *app) reconcile(ctx context.Context, db *database, m period.Month) error {
	t, problems, err := db.Reconcile(ctx, m)
	if err != nil {
		return err
	}
	if len(t.Rows) == 0 {
		return incompletef("no bill of %s is in the warehouse; run: gpuledger ingest bills --period %s", m, m)
	}
	if a.output == "table" {
		t = reconciliationByMetric(t)
	}
	if err := t.Write(a.stdout, a.output); err != nil {
		return err
	}
	if len(problems) > 0 {
		return fmt.Errorf("%s does not tie out:\n  %s", m, strings.Join(problems, "\n  "))
	}
	return nil
}

// reconciliationByMetric turns the view's wide rows into one row a cost metric, for
// reading.
func reconciliationByMetric(t *chargeback.Table) *chargeback.Table {
	at := map[string]int{}
	for i, c := range t.Columns {
		at[c.Name] = i
	}
	out := chargeback.NewTable("source", "account", "billing_period", "currency", "lines#", "cost", "bill#", "out_of_scope#", "pods#", "remainder#", "adjustments#", "difference#")
	for _, r := range t.Rows {
		for _, m := range []string{"billed", "effective", "list"} {
			name := m
			if n := r[at["lines_without_list"]].Text; m == "list" && n != "0" {
				name = "list (" + n + " lines have none)"
			}
			out.Rows = append(out.Rows, []chargeback.Cell{
				r[at["source"]], r[at["account"]], chargeback.Text(r[at["billing_period"]].Text[:7]), r[at["currency"]], r[at["lines"]], chargeback.Text(name),
				trim(r[at["bill_"+m]]), trim(r[at["out_of_scope_"+m]]), trim(r[at["allocated_"+m]]), trim(r[at["remainder_"+m]]), trim(r[at["adjustments_"+m]]), trim(r[at["difference_"+m]]),
			})
		}
	}
	return out
}

// trim removes the zeros that exact arithmetic leaves after the last digit.
func trim(c chargeback.Cell) chargeback.Cell {
	if strings.Contains(c.Text, ".") {
		c.Text = strings.TrimRight(strings.TrimRight(c.Text, "0"), ".")
	}
	return c
}
