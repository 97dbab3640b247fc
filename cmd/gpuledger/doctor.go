package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"gpuledger/billing/period"
	"gpuledger/chargeback"
	"gpuledger/policy"
)

// doctor checks every source without changing anything.
type doctor struct {
	cluster string
	limit   time.Duration // of the checks of one source
	most    int           // GPU nodes of a cluster that are looked at

	now    func() time.Time
	owners *policy.Owners // nil where they cannot be read
	policy *policy.Policy
}

// The limits of a look: a doctor who takes longer is not asked.
const (
	doctorLimit = time.Minute
	doctorNodes = 400
	atOnce      = 8 // sources
)

func (a *app) doctorCmd() *cobra.Command {
	c := doctor{limit: doctorLimit, most: doctorNodes}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check every source: reachable, what it holds, what is missing",
		Long: `Check the database, each telemetry store and each bill source, at most a minute each:
whether it answers, by which driver, what it holds, which exporters and sharing modes
there are and how well bytes are known by node, what is missing, and the line that
fixes it. Nothing is written. NOTE is worth knowing and no fault.
Exit 0 when all is well, 3 when something is missing.`,
		Example: "  gpuledger doctor --cluster prod",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.loadConfig()
			if err != nil {
				return err
			}
			return c.run(cmd.Context(), a, cfg)
		},
	}
	cmd.Flags().StringVar(&c.cluster, "cluster", "", "only this cluster")
	return cmd
}

// What a finding is. Only the last two are faults.
const (
	fine    = "ok"
	note    = "NOTE"
	missing = "MISSING"
	failed  = "FAILED"
)

// finding is one line of the report, with the line that fixes it.
type finding struct {
	check, subject, result, what, fix string
}

// report gathers what one check found, in order.
type report struct {
	findings []finding
}

var oneLine = strings.NewReplacer(":\n\t", ": ", "\n\t", "; ", "\n", "; ", "\t", " ")

func (r *report) add(result, check, subject, what, fix string) {
	r.findings = append(r.findings, finding{check, subject, result, oneLine.Replace(what), fix})
}

func (r *report) good(check, subject, format string, args ...any) {
	r.add(fine, check, subject, fmt.Sprintf(format, args...), "")
}

func (r *report) note(check, subject, what, fix string) { r.add(note, check, subject, what, fix) }

func (r *report) bad(check, subject, what, fix string) { r.add(missing, check, subject, what, fix) }

func (r *report) fail(check, subject string, err error, fix string) {
	r.add(failed, check, subject, err.Error(), fix)
}

func (c *doctor) run(ctx context.Context, a *app, cfg *Config) error {
	c.now = a.now
	var reports []*report
	var tasks errgroup.Group
	tasks.SetLimit(atOnce)
	each := func(check func(context.Context, *report)) {
		r := &report{}
		reports = append(reports, r)
		tasks.Go(func() error {
			ctx, cancel := context.WithTimeoutCause(ctx, c.limit, errCutShort)
			defer cancel()
			check(ctx, r)
			return nil
		})
	}
	c.documents(cfg, &reports)
	each(func(ctx context.Context, r *report) { c.database(ctx, a, cfg, r) })
	all, sources, err := c.sources(ctx, a, cfg)
	if err != nil {
		_ = tasks.Wait() // it returns no error
		return err
	}
	reports = append(reports, all)
	for _, s := range sources {
		each(s.run)
	}
	for _, b := range cfg.Bills {
		each(func(ctx context.Context, r *report) { c.bills(ctx, cfg, b, r) })
	}
	_ = tasks.Wait() // it returns no error
	if err := ctx.Err(); err != nil {
		return err
	}
	last := &report{}
	across(sources, c.owners, last)
	if len(cfg.Clusters) == 0 {
		last.bad("telemetry", "-", "no cluster is configured", "add one under clusters: in "+a.configPath)
	}
	if len(cfg.Bills) == 0 {
		last.bad("bill", "-", "no bill source is configured", "add one under bills: in "+a.configPath)
	}
	return c.write(a, append(reports, last))
}

// sources are the telemetry stores to look at: each cluster's, and its fallbacks'.
func (c *doctor) sources(ctx context.Context, a *app, cfg *Config) (*report, []*look, error) {
	r := &report{}
	ctx, cancel := context.WithTimeoutCause(ctx, c.limit, errCutShort)
	defer cancel()
	clusters, problems := a.clusters(ctx, cfg, period.Span{Start: c.now().Add(-24 * time.Hour), End: c.now()})
	for _, err := range problems {
		r.fail("telemetry", "clusters", err, "check discover: of the cluster, and that its store answers")
	}
	var out []*look
	for _, cl := range clusters {
		if c.cluster != "" && cl.Name != c.cluster {
			continue
		}
		for i, m := range append([]MetricsConfig{cl.Metrics}, cl.Fallback...) {
			one := &look{doctor: c, cfg: cfg, cl: cl, ordinal: i, name: cl.Name}
			one.cl.Metrics, one.cl.Fallback = m, nil
			if i > 0 {
				one.name = fmt.Sprintf("%s, fallback %d", cl.Name, i)
			}
			out = append(out, one)
		}
	}
	if c.cluster != "" && len(out) == 0 && len(problems) == 0 {
		return nil, nil, usagef("no cluster %q in %s", c.cluster, a.configPath)
	}
	return r, out, nil
}

// write prints one line a finding, with the fix beneath it where there is one: a table
// would push the fixes off the screen.
func (c *doctor) write(a *app, reports []*report) error {
	table := chargeback.NewTable("check", "subject", "result", "what", "fix")
	problems := 0
	for _, r := range reports {
		for _, f := range r.findings {
			table.Add(f.check, f.subject, f.result, f.what, f.fix)
			if f.result == missing || f.result == failed {
				problems++
			}
			if a.output != "table" {
				continue
			}
			if _, err := fmt.Fprintf(a.stdout, "%-8s %-10s %s: %s\n", f.result, f.check, f.subject, f.what); err != nil {
				return err
			}
			if f.fix != "" {
				_, _ = fmt.Fprintf(a.stdout, "         fix: %s\n", f.fix)
			}
		}
	}
	if a.output != "table" {
		if err := table.Write(a.stdout, a.output); err != nil {
			return err
		}
	}
	if problems > 0 {
		return incompletef("%d checks need attention", problems)
	}
	return nil
}
