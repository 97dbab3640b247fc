package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpuledger/allocate"
	"gpuledger/billing/money"
	"gpuledger/warehouse"
)

// explainCharge shows the arithmetic of one charge, recomputed.
type explainCharge struct {
	pod        string
	at         string
	allocation string
}

func (a *app) explainCmd() *cobra.Command {
	var c explainCharge
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Show the arithmetic of one charge, recomputed",
		Long: `Show how one charge came about, recomputed from the inputs its run pinned: the bill line,
the node's devices and their weight, the partition, the share-seconds, the ratio and
the cost. With --pod, every charge of the pod at that instant.`,
		Example: "  gpuledger explain --pod team-a-serving/llama-0 --at 2026-10-05T14:30:00Z\n  gpuledger explain --allocation 0f3c…",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withReader(cmd.Context(), func(db *database) error { return c.run(cmd.Context(), a, db) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.pod, "pod", "", "namespace/name of the pod")
	f.StringVar(&c.at, "at", "", "instant within the charge, such as 2026-10-05T14:30:00Z")
	f.StringVar(&c.allocation, "allocation", "", "allocation_id of finance.allocation")
	cmd.MarkFlagsRequiredTogether("pod", "at")
	cmd.MarkFlagsMutuallyExclusive("pod", "allocation")
	cmd.MarkFlagsOneRequired("pod", "allocation")
	return cmd
}

func (c *explainCharge) run(ctx context.Context, a *app, db *database) error {
	ids := []string{strings.ToLower(c.allocation)}
	if c.pod != "" {
		namespace, name, ok := strings.Cut(c.pod, "/")
		if !ok {
			return usagef("--pod %q is not namespace/name", c.pod)
		}
		at, err := parseTime(c.at)
		if err != nil {
			return &exitError{exitUsage, err}
		}
		if ids, err = db.FindCharges(ctx, namespace, name, at); err != nil {
			return err
		}
		if len(ids) == 0 {
			return fmt.Errorf("no charge of pod %s at %s in the current run", c.pod, at.Format(time.RFC3339))
		}
	}
	for i, id := range ids {
		e, err := db.Explain(ctx, id)
		if err != nil {
			return err
		}
		if a.output == "json" {
			b, err := json.MarshalIndent(e, "", "  ")
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintln(a.stdout, string(b))
			continue
		}
		if i > 0 {
			_, _ = fmt.Fprintln(a.stdout)
		}
		printExplanation(a.stdout, e)
	}
	return nil
}

func printExplanation(w io.Writer, e *warehouse.Explanation) {
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	l := e.Line
	who := "remainder " + e.Share.Category
	if e.Pod != "" {
		who = "pod " + e.Pod
	}
	p("Charge %s of %s, run %s", e.AllocationID, who, e.RunID)
	p("1. Bill line %d from %s, billing period %s: %s %s %s, %s to %s", l.ID, l.Source, l.BillingPeriod, l.Type, l.InstanceType, l.InstanceID, l.Start.UTC().Format(time.RFC3339), l.End.UTC().Format(time.RFC3339))
	p("   %s", l.Description)
	p("   billed %s, effective %s, list %s %s; %s instance-hours", l.Billed, l.Effective, orNone(l.List), l.Currency, orNone(l.Hours))
	if !e.Recomputed {
		p("2. This line is on no node that pods share: all of it is %s.", strings.ReplaceAll(l.Class, "_", " "))
		return
	}
	p("2. Node %s, pool %s: %d GPUs by its instance type, method %s, basis %s", e.NodeName, orNone(e.Node.Pool), e.Window.Devices(), allocate.MethodVersion, e.Policy.Basis)
	for _, h := range e.Window.Hours {
		p("   hour %s: ready %s s, unknown %s s", h.Start.UTC().Format("2006-01-02T15"), seconds(h.ReadyMicros), seconds(h.UncoveredMicros))
	}
	p("3. Weight = price weight × slices/of × share-seconds, for each device and partition")
	mine, all := new(big.Rat), new(big.Rat)
	for _, t := range e.Terms {
		mine.Add(mine, term(t))
		weight := "1"
		if t.PriceWeight != 1 {
			weight = new(big.Rat).SetFrac64(int64(t.PriceWeight), 1_000_000).FloatString(6)
		}
		where := t.Device
		if t.Profile != "" {
			where += " " + t.Profile + " #" + t.GPUInstance
		}
		p("   %s %s: %s × %d/%d × %s s = %s  (%s%s)", t.Hour.UTC().Format("15h"), orNone(where), weight, t.Slices, t.Of, overlapped(t).FloatString(6), term(t).FloatString(6), t.Method, inUse(t))
	}
	for _, t := range e.All {
		all.Add(all, term(t))
	}
	p("   weight of this charge %s of %s in all", mine.FloatString(6), all.FloatString(6))
	if e.Share.MovedBy != "" {
		p("   This is %s, moved here by the policy %q.", strings.ReplaceAll(e.Share.Category, "_", " "), e.Share.MovedBy)
	}
	verdict := "the same as stored"
	if int64(e.Share.Ratio) != e.StoredRatio {
		verdict = "NOT what is stored: " + money.Ratio(e.StoredRatio).String()
	}
	p("4. Ratio, of twelve decimals by largest remainder: %s (%s)", e.Share.Ratio, verdict)
	for _, m := range []struct{ name, cost string }{{"billed", l.Billed}, {"effective", l.Effective}, {"list", l.List}} {
		if amount, err := money.Parse(m.cost); err == nil {
			p("5. %s cost = %s × %s = %s %s", m.name, m.cost, e.Share.Ratio, amount.Mul(e.Share.Ratio), l.Currency)
		}
	}
	owner := e.Share.Owner.Team
	if owner == "" {
		owner = "nobody: no rule of owners.yaml matches"
	}
	p("6. Paid by %s %s; known by %s, %s s measured, %s s without samples", owner, e.Share.Owner.CostCenter, e.Share.Method, seconds(e.Share.MeasuredMicros), seconds(e.Share.GapMicros))
}

// inUse says how much memory a term's pod used on average while it was measured.
func inUse(t allocate.Contribution) string {
	if t.MeasuredMicros <= 0 || t.UsableBytes == 0 {
		return ""
	}
	gib := func(num, den int64) string { return new(big.Rat).SetFrac64(num, den).FloatString(3) }
	mean := new(big.Rat).SetFrac64(t.UsedByteSeconds, t.MeasuredMicros)
	mean.Mul(mean, new(big.Rat).SetFrac64(1_000_000, 1<<30))
	return fmt.Sprintf("; %s GiB in use on average of %s usable", mean.FloatString(3), gib(int64(t.UsableBytes), 1<<30))
}

func orNone(s string) string {
	if s == "" {
		return "(none)"
	}
	return s
}

func seconds(us int64) string {
	return strings.TrimRight(strings.TrimRight(new(big.Rat).SetFrac64(us, 1_000_000).FloatString(6), "0"), ".")
}

// overlapped is the share-seconds of a term within the window.
func overlapped(t allocate.Contribution) *big.Rat {
	r := new(big.Rat).SetFrac64(int64(t.ShareMicros), 1_000_000)
	if t.OverlapSeconds < 3600 && t.Device != "" {
		r.Mul(r, new(big.Rat).SetFrac64(int64(t.OverlapSeconds), 3600))
	}
	return r
}

func term(t allocate.Contribution) *big.Rat {
	r := overlapped(t)
	r.Mul(r, new(big.Rat).SetFrac64(int64(t.Slices), int64(t.Of)))
	if t.PriceWeight != 1 {
		r.Mul(r, new(big.Rat).SetFrac64(int64(t.PriceWeight), 1_000_000))
	}
	return r
}
