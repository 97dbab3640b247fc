package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpuledger/billing/period"
	"gpuledger/internal/fleet"
	"gpuledger/warehouse"
	"gpuledger/warehouse/localpg"
)

// demoDatabase is the demo's own database in the private Postgres.
const demoDatabase = "demo"

// demoMonth is the month the demo's fleet runs in.
const demoMonth = "2026-10"

// demo runs the pipeline on a made-up fleet.
type demo struct {
	dir       string
	keep      bool
	filesOnly bool
}

func (a *app) demoCmd() *cobra.Command {
	var c demo
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run the whole pipeline on a made-up fleet, with nothing to install",
		Long: `Write the files that a user has (a CUR 2.0 delivery and OpenMetrics telemetry of a small
GPU fleet, one month), run the real pipeline on them in a private Postgres, and print
the chargeback. It never touches DATABASE_URL. Without --keep it starts afresh.`,
		Example: "  gpuledger demo\n  gpuledger demo --dir ./demo --keep",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context(), a) },
	}
	f := cmd.Flags()
	f.StringVar(&c.dir, "dir", "", "where to write the files; default: beside the private Postgres")
	f.BoolVar(&c.keep, "keep", false, "keep the files and the database of the demo before, and show what a rerun changes: nothing")
	f.BoolVar(&c.filesOnly, "files-only", false, "write the files and stop")
	return cmd
}

func (c *demo) run(ctx context.Context, a *app) (err error) {
	month, err := period.ParseMonth(demoMonth)
	if err != nil {
		return err
	}
	if c.dir == "" {
		pg, err := localpg.DefaultDir()
		if err != nil {
			return err
		}
		c.dir = filepath.Join(filepath.Dir(pg), "demo")
	}
	started := time.Now()
	if err := c.write(a, month); err != nil || c.filesOnly {
		return err
	}
	a.configPath = filepath.Join(c.dir, "gpuledger.yaml")
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	server, err := a.startPrivate(ctx)
	if err != nil {
		return err
	}
	db, err := c.open(ctx, a, server)
	if err != nil {
		return errors.Join(err, server.Stop())
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := a.runAll(ctx, cfg, db, month); err != nil {
		return err
	}
	return c.show(ctx, a, db, month, time.Since(started))
}

func (c *demo) write(a *app, month period.Month) error {
	if c.keep {
		if _, err := os.Stat(filepath.Join(c.dir, "gpuledger.yaml")); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return err
	}
	w, err := fleet.Demo(month).Write(c.dir)
	if err != nil {
		return fmt.Errorf("write the demo's files: %w", err)
	}
	a.log.Info("files written", "dir", c.dir, "bill_lines", w.Lines, "samples", w.Samples)
	return nil
}

// open prepares the demo's database, empty unless kept: emptied before it is migrated,
// as any version of the program may have made it.
func (c *demo) open(ctx context.Context, a *app, server *localpg.Server) (*database, error) {
	if c.keep {
		return a.connectPrivate(ctx, server, demoDatabase)
	}
	return a.preparePrivate(ctx, server, demoDatabase, func(db *warehouse.DB) error { return db.Reset(ctx) })
}

func (c *demo) show(ctx context.Context, a *app, db *database, month period.Month, took time.Duration) error {
	section := func(title, query string) error {
		t, err := db.Query(ctx, query, month.Start())
		if err != nil {
			return err
		}
		if a.output == "table" {
			_, _ = fmt.Fprintf(a.stdout, "\n%s\n", title)
		}
		return t.Write(a.stdout, a.output)
	}
	if err := section("Who pays what, "+month.String()+" (amortised cost)", demoByTeam); err != nil {
		return err
	}
	if err := section("Of this, what no pod used: the remainder, by category and payer", demoRemainder); err != nil {
		return err
	}
	t, problems, err := db.Reconcile(ctx, month)
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		return fmt.Errorf("the demo does not tie out: %s", problems[0])
	}
	if a.output == "table" {
		_, _ = fmt.Fprintf(a.stdout, "\nFrom the bill to the pods\n")
		t = reconciliationByMetric(t)
	}
	if err := t.Write(a.stdout, a.output); err != nil {
		return err
	}
	if a.output == "table" {
		return c.next(ctx, a, db, took)
	}
	return nil
}

const demoByTeam = `WITH teams AS (
		SELECT coalesce(team, '(no owner)') AS team, currency, sum(effective_cost) AS cost, sum(gpu_hours) AS hours, sum(used_gib_hours) AS used, 0 AS total
		FROM finance.chargeback_month WHERE posting_period = $1 GROUP BY 1, 2
		UNION ALL
		SELECT 'in all', currency, sum(effective_cost), sum(gpu_hours), sum(used_gib_hours), 1 FROM finance.chargeback_month WHERE posting_period = $1 GROUP BY currency
	) SELECT team, currency, round(cost, 2) AS effective_cost, round(100 * cost / max(cost) FILTER (WHERE total = 1) OVER (PARTITION BY currency), 1) AS percent,
		round(hours, 1) AS gpu_hours, round(used) AS used_gib_hours
	FROM teams ORDER BY currency, total, cost DESC`

const demoRemainder = `SELECT category, coalesce(team, '(no owner)') AS payer, currency, round(sum(effective_cost), 2) AS effective_cost, round(sum(gpu_hours), 1) AS gpu_hours
	FROM finance.chargeback_month WHERE posting_period = $1 AND category <> 'pod' GROUP BY category, team, currency ORDER BY sum(effective_cost) DESC`

// next says where everything is and what to try, as commands that run when copied.
func (c *demo) next(ctx context.Context, a *app, db *database, took time.Duration) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	self = shellQuote(self)
	example, err := db.Query(ctx, `SELECT namespace || '/' || pod_name, to_char(charge_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
		FROM finance.allocation WHERE category = 'pod' AND method = 'process_uid' ORDER BY charge_start, pod_name LIMIT 1`)
	if err != nil {
		return err
	}
	pod, at := "NAMESPACE/POD", "TIME"
	if len(example.Rows) > 0 {
		pod, at = example.Rows[0][0].Text, example.Rows[0][1].Text
	}
	shell := self + " db shell --database " + demoDatabase
	_, err = fmt.Fprintf(a.stdout, `
The difference is 0: every line of the bill is given away exactly once. (%.0f s)

Files      %s
Database   %s, database %s (Postgres %s)
Open it    %s
           psql, while "%s db start" runs:
           %s
Explain    %s --config %s explain --pod %s --at %s

Three questions to try
  %s -- -c "SELECT team, ai_model, round(sum(effective_cost), 2) AS cost FROM finance.chargeback_month WHERE category = 'pod' GROUP BY 1, 2 ORDER BY 3 DESC"
  %s -- -c "SELECT workload_name, used_share, round(held_unused_cost, 2) AS held_not_used FROM finance.efficiency ORDER BY 3 DESC LIMIT 5"
  %s -- -c "SELECT method, round(effective_cost, 2) AS cost, share FROM finance.coverage ORDER BY 2 DESC"
`, took.Seconds(), c.dir, db.server.Dir(), demoDatabase, db.server.Version(), shell, self, db.server.PsqlLine(demoDatabase), self, shellQuote(a.configPath), pod, at, shell, shell, shell)
	return err
}

// shellQuote makes a path one word of a shell.
func shellQuote(s string) string {
	if strings.ContainsAny(s, " \t'\"$`\\&;()<>|*?[]#~") {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return s
}
