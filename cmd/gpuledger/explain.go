package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpuledger/allocate"
	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/gpu"
	"gpuledger/policy"
	"gpuledger/warehouse"
)

// explainCharge shows the arithmetic of one charge, recomputed.
type explainCharge struct {
	pod        string
	at         string
	allocation string
}

var allocationID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

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
	if a.output == "csv" {
		return usagef("explain prints text or --output json")
	}
	ids := []string{strings.ToLower(c.allocation)}
	if c.pod == "" && !allocationID.MatchString(ids[0]) {
		return usagef("%q is not an allocation_id; they look like 0f3c1a2b-…, 36 characters, in finance.allocation", c.allocation)
	}
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
			if _, err := db.month(ctx, ""); err != nil {
				return err
			}
			return fmt.Errorf("no charge of pod %s at %s in the current run of any month", c.pod, at.Format(time.RFC3339))
		}
	}
	var all []map[string]any
	for i, id := range ids {
		e, err := db.Explain(ctx, id)
		if err != nil {
			return err
		}
		if a.output == "json" {
			all = append(all, explanationJSON(e))
			continue
		}
		if i > 0 {
			_, _ = fmt.Fprintln(a.stdout)
		}
		printExplanation(a.stdout, e)
	}
	if a.output != "json" {
		return nil
	}
	b, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(a.stdout, string(b))
	return err
}

// explanationJSON is one charge for a program, amounts as text with every digit.
func explanationJSON(e *warehouse.Explanation) map[string]any {
	l := e.Line
	out := map[string]any{
		"allocation_id": e.AllocationID, "run_id": e.RunID, "category": e.Category, "pod": e.Pod, "team": e.Owner.Team, "cost_center": e.Owner.CostCenter,
		"bill_line": map[string]any{
			"id": l.ID, "source": l.Source, "billing_period": l.BillingPeriod, "charge_start": l.Start.UTC(), "charge_end": l.End.UTC(), "instance_id": l.InstanceID, "instance_type": l.InstanceType,
			"class": l.Class, "currency": l.Currency, "billed_cost": l.Billed, "effective_cost": l.Effective, "list_cost": l.List, "instance_hours": l.Hours,
		},
		"stored_ratio": money.Ratio(e.StoredRatio).String(), "recomputed": e.Recomputed,
	}
	if !e.Recomputed {
		return out
	}
	terms := []map[string]any{}
	for _, t := range e.Terms {
		terms = append(terms, map[string]any{
			"hour": t.Hour.UTC(), "device": t.Device, "profile": t.Profile, "gpu_instance": t.GPUInstance, "slices": t.Slices, "of": t.Of, "price_weight_millionths": t.PriceWeight,
			"share_us": t.ShareMicros, "overlap_seconds": t.OverlapSeconds, "method": t.Method.String(), "usable_bytes": t.UsableBytes, "used_byte_seconds": t.UsedByteSeconds,
		})
	}
	out["node"], out["node_pool"], out["devices"], out["moved_by"] = e.NodeName, e.Node.Pool, e.Window.Devices(), e.Share.MovedBy
	out["ratio"], out["terms"], out["method"] = e.Share.Ratio.String(), terms, e.Share.Method.String()
	if amount, err := money.Parse(l.Effective); err == nil {
		out["effective_cost"] = amount.Mul(e.Share.Ratio)
	}
	return out
}

func printExplanation(w io.Writer, e *warehouse.Explanation) {
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	l := e.Line
	who := "the remainder " + e.Category
	if e.Pod != "" {
		who = "pod " + e.Pod
	}
	p("Charge %s of %s, run %s", e.AllocationID, who, e.RunID)
	p("1. Bill line %d from %s, billing period %s: %s", l.ID, l.Source, l.BillingPeriod, strings.Join(nonEmpty(l.Type, l.InstanceType, l.InstanceID), " "))
	p("   %s to %s%s", l.Start.UTC().Format(time.RFC3339), l.End.UTC().Format(time.RFC3339), prefixed(": ", l.Description))
	p("   billed %s, effective %s, list %s %s; instance-hours %s", l.Billed, l.Effective, orNone(l.List), l.Currency, orNone(l.Hours))
	switch {
	case e.Recomputed:
		explainSplit(p, e)
	case e.Category == "no_telemetry":
		p("2. Instance %s is a GPU machine that no telemetry of any cluster mentions: all of it is no_telemetry.", l.InstanceID)
		p("3. Paid by %s", payer(e.Owner))
	default:
		p("2. A line of the class %s is on no node that pods share: all of it is %s, divided only where policy.yaml says fixed.", l.Class, e.Category)
		p("3. Paid by %s", payer(e.Owner))
	}
}

func explainSplit(p func(string, ...any), e *warehouse.Explanation) {
	l := e.Line
	p("2. Node %s, pool %s: %d GPU(s); method %s, basis %s", e.NodeName, orNone(e.Node.Pool), e.Window.Devices(), allocate.MethodVersion, e.Policy.Basis)
	for _, h := range e.Window.Hours {
		p("   hour %s: ready %s s, unknown %s s", h.Start.UTC().Format("2006-01-02T15"), seconds(h.ReadyMicros), seconds(h.UncoveredMicros))
	}
	if e.Share.MovedBy != "" && len(e.Terms) == 0 {
		explainMove(p, e)
	} else if c := e.Share.Component; c == billing.CPU || c == billing.Memory {
		explainRequests(p, e)
	} else {
		explainTerms(p, e)
	}
	explainParts(p, e)
	verdict := "the same as stored"
	if int64(e.Share.Ratio) != e.StoredRatio {
		verdict = "NOT what is stored: " + money.Ratio(e.StoredRatio).String()
	}
	p("4. Ratio, of twelve decimals by largest remainder: %s (%s)", e.Share.Ratio, verdict)
	p("5. Cost = line × ratio")
	for _, m := range []struct{ name, cost string }{{"billed", l.Billed}, {"effective", l.Effective}, {"list", l.List}} {
		if amount, err := money.Parse(m.cost); err == nil {
			p("   %-9s %s × %s = %s %s", m.name, m.cost, e.Share.Ratio, amount.Mul(e.Share.Ratio), l.Currency)
		}
	}
	known := "known by " + e.Share.Method.String()
	if e.Share.MeasuredMicros+e.Share.GapMicros > 0 {
		known += fmt.Sprintf(", %s s measured, %s s without samples", seconds(e.Share.MeasuredMicros), seconds(e.Share.GapMicros))
	}
	p("6. Paid by %s; %s", payer(e.Share.Owner), known)
}

func explainTerms(p func(string, ...any), e *warehouse.Explanation) {
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
		if t.Move != nil {
			p("   %s: %s × %s = %s", t.Hour.UTC().Format("15h"), t.Move.Of, partOf(t.Move), term(t).FloatString(6))
			continue
		}
		p("   %s %s: %s × %d/%d × %s s = %s  (%s%s%s)", t.Hour.UTC().Format("15h"), orNone(where), weight, t.Slices, t.Of, overlapped(t).FloatString(6), term(t).FloatString(6), t.Method, inUse(t), reserved(t, e.Policy.Basis, e.Policy.Reservation.TimeSlicing))
	}
	for _, t := range e.All {
		all.Add(all, term(t))
	}
	p("   weight of this charge %s of %s in all", mine.FloatString(6), all.FloatString(6))
	explainMoved(p, e)
}

// reserved says why a share is not just the memory in use.
func reserved(t allocate.Contribution, basis, timeSlicing string) string {
	if t.PodUID == "" || t.MovedBy != "" {
		return ""
	}
	switch {
	case t.PartitionMode == gpu.ModeExclusive || t.PartitionMode == gpu.ModeMIG && t.Slots <= 1:
		return "; all of it is reserved for its holder"
	case t.PartitionMode == gpu.ModeMPS && t.Slots > 0, t.Slots > 1 && (basis == "request" || timeSlicing == "replica"):
		gib := new(big.Rat).SetFrac64(int64(t.UsableBytes)/int64(t.Slots)*int64(t.Replicas), 1<<30)
		return fmt.Sprintf("; %d of %d slots reserve %s GiB", t.Replicas, t.Slots, gib.FloatString(3))
	case t.PartitionMode == gpu.ModeDRA:
		return "; its claim reserves the device, or the capacity that it consumes"
	case t.PartitionMode == gpu.ModeFraction:
		return "; its limit is reserved"
	case t.Replicas == 0:
		return "; in use without a request"
	}
	return ""
}

func payer(o policy.Owner) string {
	if o.Team == "" {
		return "nobody: no rule of owners.yaml matches"
	}
	return "team " + o.Team + prefixed(", cost centre ", o.CostCenter)
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

func nonEmpty(all ...string) []string {
	var out []string
	for _, s := range all {
		if s != "" {
			out = append(out, s)
		}
	}
	return out
}

// inUse says how much memory a term's pod used on average while it was measured.
func inUse(t allocate.Contribution) string {
	if t.MeasuredMicros <= 0 || t.UsableBytes == 0 {
		return ""
	}
	gib := func(num, den int64) string { return new(big.Rat).SetFrac64(num, den).FloatString(3) }
	mean := new(big.Rat).SetFrac64(t.UsedByteSeconds, t.MeasuredMicros)
	mean.Mul(mean, new(big.Rat).SetFrac64(1_000_000, 1<<30))
	how := "in use on average"
	if t.Method == gpu.Limit {
		how = "in use by the GPU's own figure, per slot,"
	}
	return fmt.Sprintf("; %s GiB %s of %s usable", mean.FloatString(3), how, gib(int64(t.UsableBytes), 1<<30))
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
	if t.OverlapSeconds < 3600 {
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
