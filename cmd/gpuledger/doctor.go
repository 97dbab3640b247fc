package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpuledger/billing/period"
	"gpuledger/chargeback"
	"gpuledger/gpu"
	"gpuledger/ingest"
)

// doctor checks every source without changing anything.
type doctor struct {
	cluster  string
	table    *chargeback.Table
	problems int
}

func (a *app) doctorCmd() *cobra.Command {
	var c doctor
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check every source: reachable, what it holds, what is missing",
		Long: `Check the database, each telemetry store and each bill source without changing them
(a private Postgres is started, and made on first use): whether it answers, by which driver, what it holds, what is missing, and the line that fixes it.
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

func (c *doctor) run(ctx context.Context, a *app, cfg *Config) error {
	c.table = chargeback.NewTable("check", "subject", "result", "what", "fix")
	c.documents(cfg)
	c.database(ctx, a, cfg)
	matched := false
	clusters, problems := a.clusters(ctx, cfg, period.Span{Start: a.now().Add(-24 * time.Hour), End: a.now()})
	for _, err := range problems {
		c.fail("telemetry", "clusters", err, "check discover: of the cluster, and that its store answers")
	}
	for _, cl := range clusters {
		if c.cluster == "" || cl.Name == c.cluster {
			matched = true
			for i, m := range append([]MetricsConfig{cl.Metrics}, cl.Fallback...) {
				one := cl
				one.Metrics, one.Fallback = m, nil
				if i > 0 {
					one.Name = fmt.Sprintf("%s, fallback %d", cl.Name, i)
				}
				c.telemetry(ctx, cfg, one)
			}
		}
	}
	if c.cluster != "" && !matched {
		return usagef("no cluster %q in %s", c.cluster, a.configPath)
	}
	for _, b := range cfg.Bills {
		c.bills(ctx, cfg, b)
	}
	if len(cfg.Clusters) == 0 {
		c.bad("telemetry", "-", "no cluster is configured", "add one under clusters: in "+a.configPath)
	}
	if len(cfg.Bills) == 0 {
		c.bad("bill", "-", "no bill source is configured", "add one under bills: in "+a.configPath)
	}
	if err := c.write(a); err != nil {
		return err
	}
	if c.problems > 0 {
		return incompletef("%d checks need attention", c.problems)
	}
	return nil
}

// write prints one line a check, with the fix beneath it where there is one: a table
// would push the fixes off the screen.
func (c *doctor) write(a *app) error {
	if a.output != "table" {
		return c.table.Write(a.stdout, a.output)
	}
	for _, r := range c.table.Rows {
		if _, err := fmt.Fprintf(a.stdout, "%-8s %-10s %s: %s\n", r[2].Text, r[0].Text, r[1].Text, r[3].Text); err != nil {
			return err
		}
		if r[4].Text != "" {
			_, _ = fmt.Fprintf(a.stdout, "         fix: %s\n", r[4].Text)
		}
	}
	return nil
}

func (c *doctor) good(check, subject, format string, args ...any) {
	c.table.Add(check, subject, "ok", fmt.Sprintf(format, args...), "")
}

func (c *doctor) bad(check, subject, what, fix string) {
	c.problems++
	c.table.Add(check, subject, "MISSING", what, fix)
}

func (c *doctor) fail(check, subject string, err error, fix string) {
	c.problems++
	c.table.Add(check, subject, "FAILED", strings.ReplaceAll(err.Error(), "\n", "; "), fix)
}

func (c *doctor) documents(cfg *Config) {
	if p, err := cfg.policy(""); err != nil {
		c.fail("policy", orNone(cfg.Policy), err, "mend the line it names")
	} else {
		c.good("policy", orNone(cfg.Policy), "basis %s, idle %s, hash %x", p.Basis, p.Idle.Default.Policy, shortHash(p.Hash()))
	}
	if o, err := cfg.owners(); err != nil {
		c.fail("owners", orNone(cfg.Owners), err, "mend the line it names")
	} else if len(o.Rules) == 0 {
		c.bad("owners", orNone(cfg.Owners), "no rules: every pod will be without an owner", "write owners.yaml and name it in the configuration as owners:")
	} else {
		c.good("owners", cfg.Owners, "%d rules, timezone %s", len(o.Rules), o.Timezone)
	}
}

func shortHash(h [32]byte) []byte { return h[:6] }

func (c *doctor) database(ctx context.Context, a *app, cfg *Config) {
	db, err := a.openDatabase(ctx, cfg)
	if err != nil {
		fix := "start it, or check DATABASE_URL"
		if strings.Contains(err.Error(), "migrate up") {
			fix = "gpuledger migrate up"
		}
		c.fail("database", "warehouse", err, fix)
		return
	}
	v, err := db.ServerVersion(ctx)
	where := "Postgres of the configuration"
	if db.server != nil {
		where = "private Postgres in " + db.server.Dir()
	}
	if err = errors.Join(err, db.Close()); err != nil {
		c.fail("database", "warehouse", err, "check the server's log")
		return
	}
	c.good("database", "warehouse", "%s, version %s, schema up to date", where, v)
}

// telemetryNeeds are the families a charge needs, with the line that brings them.
var telemetryNeeds = []struct {
	what    string
	metrics []string // any of them
	fix     string
}{
	{"GPU memory in use", []string{"DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_USED_BYTES"}, "scrape dcgm-exporter (its default counters have DCGM_FI_DEV_FB_USED)"},
	{"GPU memory free", []string{"DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_FREE_BYTES", "DCGM_FI_DEV_FB_TOTAL"}, "add DCGM_FI_DEV_FB_FREE to the exporter's counters"},
	{"nodes and their provider ids", []string{"kube_node_info"}, "scrape kube-state-metrics"},
	{"node labels", []string{"kube_node_labels"}, "kube-state-metrics --metric-labels-allowlist=nodes=[node.kubernetes.io/instance-type,nvidia.com/gpu.product,nvidia.com/gpu.count,nvidia.com/gpu.replicas,nvidia.com/gpu.sharing-strategy,nvidia.com/mig.strategy]"},
	{"node capacity", []string{"kube_node_status_capacity"}, "let kube-state-metrics export nodes"},
	{"pods and their nodes", []string{"kube_pod_info"}, "let kube-state-metrics export pods"},
	{"pod labels, which owners are found by", []string{"kube_pod_labels"}, "kube-state-metrics --metric-labels-allowlist=pods=[*]"},
	{"GPU requests", []string{"kube_pod_container_resource_requests"}, "let kube-state-metrics export pods' resource requests"},
	{"start times", []string{"kube_pod_start_time"}, "let kube-state-metrics export kube_pod_start_time"},
	{"workloads", []string{"kube_pod_owner"}, "let kube-state-metrics export kube_pod_owner"},
}

func (c *doctor) telemetry(ctx context.Context, cfg *Config, cl ClusterConfig) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	src, err := cfg.source(cl)
	if err != nil {
		c.fail("telemetry", cl.Name, err, "mend the cluster's metrics: entry")
		return
	}
	src = watch(src, cl)
	about, err := src.Describe(ctx)
	if err != nil {
		c.fail("telemetry", cl.Name, err, "check metrics.url and that the store answers")
		return
	}
	c.good("telemetry", cl.Name, "%s holds %s to %s: %s", strings.Join(nonEmpty(about.Driver, about.Version), " "), stamp(about.Oldest), stamp(about.Newest), about.Detail)
	end := about.Newest
	if end.IsZero() {
		end = time.Now()
	}
	span := period.Span{Start: end.Add(-time.Hour), End: end.Add(time.Millisecond)}
	seen := map[string]int{}
	var inventory, devices []gpu.Series
	for _, q := range []struct {
		metrics []string
		into    *[]gpu.Series
	}{{gpu.InventoryMetrics, &inventory}, {gpu.DeviceMetrics, &devices}} {
		err := src.Select(ctx, ingest.Selector{Metrics: q.metrics, Equal: cl.Metrics.Match}, span, func(s gpu.Series) error {
			seen[s.Metric]++
			*q.into = append(*q.into, s)
			return nil
		})
		if err != nil {
			c.fail("telemetry", cl.Name, err, "check the store's limits and its log")
			return
		}
	}
	for _, n := range telemetryNeeds {
		if countOf(seen, n.metrics) > 0 {
			continue
		}
		// Nothing may have been running in the newest hour: look further back.
		day := period.Span{Start: end.Add(-24 * time.Hour), End: end}
		err := src.Select(ctx, ingest.Selector{Metrics: n.metrics, Equal: cl.Metrics.Match}, day, func(s gpu.Series) error { seen[s.Metric]++; return nil })
		switch {
		case err != nil:
			c.fail("telemetry", cl.Name, err, "check the store's limits and its log")
			return
		case countOf(seen, n.metrics) > 0:
			c.good("telemetry", cl.Name, "%s: none in the newest hour, but within a day", n.what)
		default:
			c.bad("telemetry", cl.Name, "not within a day: "+n.what+" ("+strings.Join(n.metrics, " or ")+")", n.fix)
		}
	}
	c.nodes(cl, inventory, devices, span)
}

func countOf(seen map[string]int, metrics []string) int {
	n := 0
	for _, m := range metrics {
		n += seen[m]
	}
	return n
}

// nodes compares what each GPU node shows with what it should have.
func (c *doctor) nodes(cl ClusterConfig, inventory, devices []gpu.Series, span period.Span) {
	folded := gpu.FoldHour(inventory, devices, span.Start.UTC().Truncate(time.Hour), cl.settings())
	if len(folded.Nodes) == 0 {
		c.bad("telemetry", cl.Name, "no GPU node in the newest hour", "check that metrics.match names the right cluster")
	}
	for _, clash := range folded.Clashes {
		c.bad("node", clash.Node, fmt.Sprintf("two machines at once: %s and %s", clash.Instances[0], clash.Instances[1]), "the series are of more than one cluster; set metrics.match")
	}
	for _, nh := range folded.Nodes {
		missing, model := 0, ""
		modes, methods := map[gpu.Mode]bool{}, map[gpu.Method]bool{}
		for _, d := range nh.Devices {
			model = d.Model
			if strings.HasPrefix(d.UUID, "missing-") {
				missing++
			}
			for _, p := range d.Partitions {
				modes[p.Mode] = true
				for _, r := range p.Rows {
					if r.PodUID != "" {
						methods[r.Method] = true
					}
				}
			}
		}
		pods := "no pod on it"
		if len(methods) > 0 {
			pods = "bytes known by " + keysOf(methods)
		}
		what := fmt.Sprintf("%d × %s, %s, %s", len(nh.Devices), orNone(model), keysOf(modes), pods)
		switch n := folded.Inventory.Nodes[nh.Node]; {
		case n == nil || n.ProviderID == "":
			c.bad("node", nh.Node, what+"; no provider id, so no bill line can be matched", "scrape kube-state-metrics' kube_node_info")
		case missing > 0:
			c.bad("node", nh.Node, fmt.Sprintf("%s; %d GPUs have no series", what, missing), "check dcgm-exporter on the node")
		case modes[gpu.ModeUnknown]:
			c.bad("node", nh.Node, what+"; the sharing mode cannot be told", "run GPU feature discovery and allow its labels in kube-state-metrics")
		default:
			c.good("node", nh.Node, "%s, %s", what, n.InstanceID)
		}
	}
}

func keysOf[K interface {
	comparable
}](m map[K]bool) string {
	var out []string
	for k := range m {
		out = append(out, fmt.Sprint(k))
	}
	slices.Sort(out)
	if len(out) == 0 {
		return "(none)"
	}
	return strings.Join(out, "+")
}

func (c *doctor) bills(ctx context.Context, cfg *Config, b BillConfig) {
	r, err := cfg.reader(ctx, b)
	if err != nil {
		c.fail("bill", b.Name, err, "check location: and the credentials")
		return
	}
	ds, err := r.Deliveries(ctx)
	if err != nil {
		c.fail("bill", b.Name, err, "wait for the delivery to be whole, or check location:")
	}
	for _, d := range ds {
		var size int64
		for _, f := range d.Files {
			size += f.Size
		}
		what := fmt.Sprintf("%s, %s: %d files, %.1f MB", d.BillingPeriod, d.Format, len(d.Files), float64(size)/1e6)
		if len(d.Notes) > 0 {
			what += "; " + strings.Join(d.Notes, "; ")
		}
		c.good("bill", b.Name, "%s", what)
	}
	if err == nil && len(ds) == 0 {
		c.bad("bill", b.Name, "no delivery at "+b.Location, "check location:")
	}
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "(unknown)"
	}
	return t.UTC().Format("2006-01-02 15:04")
}
