package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gpuledger/warehouse"
	"gpuledger/warehouse/localpg"
)

func (a *app) dbCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "db", Short: "Open, start or stop the private Postgres", Example: "  gpuledger db shell", Args: cobra.ArbitraryArgs, RunE: needsSubcommand}
	var name string
	shell := &cobra.Command{
		Use: "shell", Short: "Open psql on the database that the other commands use", Args: cobra.ArbitraryArgs,
		Long: `Open psql on the database that the other commands use: --database-url, DATABASE_URL,
warehouse.url of the configuration, else the private Postgres, which is started for as
long as psql runs. --database names another database of the private one. Arguments
after -- go to psql.`,
		Example: "  gpuledger db shell\n  gpuledger db shell --database demo -- -f sql/finance/who_pays.sql",
		RunE:    func(c *cobra.Command, args []string) error { return a.shell(c.Context(), name, args) },
	}
	shell.Flags().StringVar(&name, "database", "", "database of the private Postgres; the demo's is called demo")
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
			if pid == 0 {
				a.say("no private Postgres is running")
				return nil
			}
			a.say("stopped (process %d)", pid)
			return nil
		},
	}
	cmd.AddCommand(shell, start, stop)
	return cmd
}

// shell runs psql on the database that the other commands use.
func (a *app) shell(ctx context.Context, name string, args []string) (err error) {
	cfg, cfgErr := a.loadConfig()
	if cfgErr != nil {
		if _, statErr := os.Stat(a.configPath); statErr == nil {
			return cfgErr
		}
		cfg = nil
	}
	url := a.url(cfg)
	ours, isPrivate := private(url)
	if name == "" {
		name = ours
	} else {
		isPrivate = true
	}
	if !isPrivate {
		return a.psql(exec.CommandContext(ctx, "psql", url), args)
	}
	server, err := localpg.Attach(ctx, "")
	if errors.Is(err, os.ErrNotExist) {
		server, err = a.startPrivate(ctx)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	if name == privateDatabase {
		if err := server.EnsureDatabase(ctx, name); err != nil {
			return err
		}
	}
	names, err := warehouse.Databases(ctx, server.URL("postgres"))
	if err != nil {
		return err
	}
	if !slices.Contains(names, name) {
		return usagef("no database %q in the private Postgres; there are: %s", name, strings.Join(names, ", "))
	}
	return a.psql(server.PsqlCommand(name), args)
}

func (a *app) psql(cmd *exec.Cmd, args []string) error {
	cmd.Args = append(cmd.Args, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.stdin, a.stdout, a.stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("psql: %w", err)
	}
	return nil
}
