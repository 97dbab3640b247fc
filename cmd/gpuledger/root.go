package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpuledger/billing"
	"gpuledger/warehouse"
)

// The exit codes. A Go panic exits with 2, so 2 means a bug.
const (
	exitFailed     = 1  // failed, or a difference
	exitIncomplete = 3  // data incomplete
	exitUsage      = 64 // usage or configuration
)

// exitError carries the exit code an error asks for.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

func incompletef(format string, args ...any) error {
	return &exitError{exitIncomplete, fmt.Errorf(format, args...)}
}

// app is what every command has.
type app struct {
	configPath  string
	databaseURL string
	logFormat   string
	output      string
	verbose     bool
	quiet       bool
	wait        time.Duration

	stdin          io.Reader
	stdout, stderr io.Writer
	log            *slog.Logger
	now            func() time.Time
}

// run executes a command line and returns its exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return (&app{stdin: stdin, stdout: stdout, stderr: stderr, now: time.Now}).execute(ctx, args)
}

func (a *app) execute(ctx context.Context, args []string) int {
	stdin, stdout, stderr := a.stdin, a.stdout, a.stderr
	root := a.root()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errors.New("interrupted; nothing is left half-done, run the same command again")
	}
	_, _ = fmt.Fprintln(stderr, "gpuledger: "+err.Error())
	if isUsage(err) {
		_, _ = fmt.Fprintf(stderr, "Run '%s --help' for usage.\n", cmd.CommandPath())
	}
	return exitCodeOf(err)
}

// exitCodeOf is the code an error ends the program with.
func exitCodeOf(err error) int {
	var exit *exitError
	switch {
	case errors.As(err, &exit):
		return exit.code
	case errors.Is(err, billing.ErrIncomplete):
		return exitIncomplete
	case isUsage(err):
		return exitUsage
	}
	return exitFailed
}

// isUsage recognises cobra's own complaints, which have no type.
func isUsage(err error) bool {
	for _, p := range []string{"unknown command", "unknown flag", "unknown shorthand", "flag needs an argument", "invalid argument", "required flag", "accepts ", "requires at least", "if any flags in the group", "at least one of the flags"} {
		if strings.HasPrefix(err.Error(), p) {
			return true
		}
	}
	return false
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "gpuledger",
		Short: "Who owes what for shared GPUs, to the last digit of the cloud bill",
		Long: `gpuledger turns a cloud bill and GPU telemetry into a chargeback in Postgres.

  gpuledger demo                  the whole pipeline on a made-up fleet, nothing to install
  gpuledger init                  write a commented gpuledger.yaml, policy.yaml and owners.yaml
  gpuledger doctor                check every source before the first run
  gpuledger run                   what cron or the CronJob calls`,
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(*cobra.Command, []string) error { return a.setup() },
	}
	f := root.PersistentFlags()
	f.StringVar(&a.configPath, "config", envOr("GPULEDGER_CONFIG", "gpuledger.yaml"), "configuration file (or GPULEDGER_CONFIG)")
	f.StringVar(&a.databaseURL, "database-url", "", "Postgres to use (or DATABASE_URL); empty: warehouse.url of the configuration, else a private Postgres (private:NAME: that database of it)")
	f.StringVar(&a.logFormat, "log-format", "text", "log format: text or json")
	f.StringVarP(&a.output, "output", "o", "table", "rows as table, json or csv")
	f.BoolVarP(&a.verbose, "verbose", "v", false, "say more")
	f.BoolVarP(&a.quiet, "quiet", "q", false, "say only what went wrong")
	f.DurationVar(&a.wait, "wait", 0, "wait this long for another job's lock instead of skipping")
	root.AddCommand(a.demoCmd(), a.initCmd(), a.migrateCmd(), a.ingestCmd(), a.allocateCmd(), a.runCmd(), a.reconcileCmd(), a.closeCmd(), a.adjustCmd(), a.reopenCmd(), a.logCmd(), a.doctorCmd(),
		a.dbCmd(), a.explainCmd(), a.exportCmd(), a.statusCmd(), a.inventoryCmd(), a.billsCmd(), a.exportersCmd(), a.benchCmd(), a.versionCmd())
	return root
}

func envOr(name, def string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return def
}

func (a *app) setup() error {
	level := slog.LevelInfo
	switch {
	case a.verbose:
		level = slog.LevelDebug
	case a.quiet:
		level = slog.LevelWarn
	}
	opts := &slog.HandlerOptions{Level: level}
	switch a.logFormat {
	case "text":
		a.log = slog.New(slog.NewTextHandler(a.stderr, opts))
	case "json":
		a.log = slog.New(slog.NewJSONHandler(a.stderr, opts))
	default:
		return usagef("--log-format %q is not text or json", a.logFormat)
	}
	switch a.output {
	case "table", "json", "csv":
	default:
		return usagef("--output %q is not table, json or csv", a.output)
	}
	return nil
}

// needsSubcommand ends a command that only groups others: help and a good end would
// let cron believe that something was done.
func needsSubcommand(cmd *cobra.Command, args []string) error {
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	if len(args) > 0 {
		return usagef("unknown command %q for %q; there are: %s", args[0], cmd.CommandPath(), strings.Join(names, ", "))
	}
	return usagef("%s needs one of: %s", cmd.CommandPath(), strings.Join(names, ", "))
}

// skipped turns a taken lock into a word and a good end: the other job does it.
func (a *app) skipped(err error) error {
	if errors.Is(err, warehouse.ErrLocked) {
		a.log.Warn("skipped: " + err.Error())
		return nil
	}
	return err
}
