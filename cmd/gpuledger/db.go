package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"gpuledger/warehouse/localpg"
)

func (a *app) dbCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "db", Short: "Open, start or stop the private Postgres", Example: "  gpuledger db shell"}
	var name string
	shell := &cobra.Command{
		Use: "shell", Short: "Open psql on the private Postgres", Args: cobra.ArbitraryArgs,
		Long:    "Open psql on the private Postgres, starting it for as long as psql runs. Arguments after -- go to psql.",
		Example: "  gpuledger db shell\n  gpuledger db shell --database demo -- -c 'SELECT * FROM finance.chargeback_month'",
		RunE: func(c *cobra.Command, args []string) (err error) {
			ctx := c.Context()
			server, err := localpg.Attach(ctx, "")
			if errors.Is(err, os.ErrNotExist) {
				server, err = a.startPrivate(ctx)
			}
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, server.Stop()) }()
			if err := server.EnsureDatabase(ctx, name); err != nil {
				return err
			}
			psql := server.PsqlCommand(name)
			psql.Args = append(psql.Args, args...)
			psql.Stdin, psql.Stdout, psql.Stderr = a.stdin, a.stdout, a.stderr
			if err := psql.Run(); err != nil {
				return fmt.Errorf("psql: %w", err)
			}
			return nil
		},
	}
	shell.Flags().StringVar(&name, "database", privateDatabase, "database to open; the demo's is called demo")
	start := &cobra.Command{
		Use: "start", Short: "Run the private Postgres until interrupted", Args: cobra.NoArgs, Example: "  gpuledger db start",
		RunE: func(c *cobra.Command, _ []string) error {
			ctx := c.Context()
			server, err := localpg.Start(ctx, localpg.Options{Wait: a.wait > 0, Serving: true, Report: func(l string) { a.log.Info(l) }})
			if err != nil {
				return err
			}
			if err := server.EnsureDatabase(ctx, privateDatabase); err != nil {
				return errors.Join(err, server.Stop())
			}
			a.say("Postgres %s runs in %s until Ctrl-C. Open it with:\n  %s", server.Version(), server.Dir(), server.PsqlLine(privateDatabase))
			select {
			case <-ctx.Done():
			case <-server.Exited():
			}
			return server.Stop()
		},
	}
	stop := &cobra.Command{
		Use: "stop", Short: "Stop the private Postgres, whoever started it", Args: cobra.NoArgs, Example: "  gpuledger db stop",
		RunE: func(c *cobra.Command, _ []string) error {
			pid, err := localpg.StopRunning(c.Context(), "")
			if errors.Is(err, os.ErrNotExist) {
				a.say("no private Postgres is running")
				return nil
			}
			if err != nil {
				return err
			}
			a.say("stopped (process %d)", pid)
			return nil
		},
	}
	cmd.AddCommand(shell, start, stop)
	return cmd
}
