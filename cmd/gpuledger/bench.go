package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpuledger/billing/period"
	"gpuledger/chargeback"
	"gpuledger/gpu"
	"gpuledger/ingest"
	"gpuledger/ingest/prometheus"
)

func (a *app) benchCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Time a stage of the pipeline on a made-up fleet",
		Args:  cobra.ArbitraryArgs,
		RunE:  needsSubcommand,
	}
	cmd.AddCommand(a.benchSamplesCmd())
	return cmd
}

// benchSamples times the reading and folding of samples against the bare decoding of
// the same responses.
type benchSamples struct {
	nodes, gpus, pods, days int
	interval                time.Duration
	url, driver             string
	rounds                  int
	stage, requests         string // of a child
}

func (a *app) benchSamplesCmd() *cobra.Command {
	var c benchSamples
	cmd := &cobra.Command{
		Use:   "samples",
		Short: "Time the reading of samples from a real Prometheus",
		Long: `Write a fleet of time-sliced GPUs, with a per-process exporter and kube-state-metrics, to
a Prometheus by remote write; then read it as ingest samples does, up to folded hours,
and decode the same responses again to throw them away. Each stage is a process of its
own, of which the processor time and the peak memory are shown. Without --url a
Prometheus is started (GPULEDGER_PROMETHEUS, or prometheus on PATH) and removed at the end.`,
		Example: "  gpuledger bench samples --nodes 200 --days 1",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.stage != "" {
				return c.child(cmd.Context(), a)
			}
			return c.run(cmd.Context(), a)
		},
	}
	f := cmd.Flags()
	f.IntVar(&c.nodes, "nodes", 20, "GPU nodes")
	f.IntVar(&c.gpus, "gpus", 8, "GPUs a node")
	f.IntVar(&c.pods, "pods", 4, "pods a GPU")
	f.IntVar(&c.days, "days", 1, "days of samples")
	f.DurationVar(&c.interval, "interval", 30*time.Second, "time between samples of a device; the inventory's is twice that")
	f.IntVar(&c.rounds, "rounds", 3, "how often each stage is run; the median counts")
	f.StringVar(&c.url, "url", "", "a Prometheus that takes remote write; it must not hold the fleet yet")
	f.StringVar(&c.driver, "driver", prometheus.RemoteRead, "how it is read: remote_read or query")
	f.StringVar(&c.stage, "stage", "", "")
	f.StringVar(&c.requests, "requests", "", "")
	_ = f.MarkHidden("stage")
	_ = f.MarkHidden("requests")
	return cmd
}

func (c *benchSamples) fleet() benchFleet {
	return benchFleet{nodes: c.nodes, gpus: c.gpus, pods: c.pods, every: c.interval, inventoryEvery: 2 * c.interval}
}

func (c *benchSamples) span() period.Span {
	// An hour at either end is there for the neighbourhoods.
	return period.Span{Start: benchEpoch.Add(time.Hour), End: benchEpoch.Add(time.Hour + time.Duration(c.days)*24*time.Hour)}
}

func (c *benchSamples) run(ctx context.Context, a *app) error {
	if c.nodes < 1 || c.gpus < 1 || c.pods < 1 || c.days < 1 || c.rounds < 1 || c.interval < time.Second || time.Hour%(2*c.interval) != 0 {
		return usagef("--nodes, --gpus, --pods, --days and --rounds are at least 1, and an hour is a whole number of two --intervals")
	}
	dir, err := os.MkdirTemp("", "gpuledger-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	server := &benchServer{dir: dir, url: c.url}
	if c.url == "" {
		if err := server.start(ctx); err != nil {
			return err
		}
		defer server.stop()
	}
	if err := c.write(ctx, a, server.url); err != nil {
		return err
	}
	if c.url == "" { // without what writing took
		server.stop()
		if err := server.start(ctx); err != nil {
			return err
		}
	}
	c.requests = filepath.Join(dir, "requests.jsonl")
	t := chargeback.NewTable("stage", "samples", "series", "wall_seconds", "cpu_seconds", "samples_per_cpu_second", "peak_mb", "server_growth_mb", "ratio")
	var bare, fold []benchResult
	for range c.rounds { // one after the other, so that both have the same noise
		for _, stage := range []struct {
			name string
			into *[]benchResult
		}{{"fold", &fold}, {"bare", &bare}} {
			r, err := c.measure(ctx, server, stage.name)
			if err != nil {
				return err
			}
			*stage.into = append(*stage.into, r)
			a.log.Info("measured", "stage", stage.name, "cpu_seconds", fmt.Sprintf("%.2f", r.CPUSeconds), "peak_mb", fmt.Sprintf("%.0f", r.PeakMB))
		}
	}
	b, f := median(bare), median(fold)
	for _, r := range []struct {
		name string
		benchResult
	}{{"decode and throw away", b}, {"read, fold", f}} {
		t.Add(r.name, fmt.Sprint(r.Samples), fmt.Sprint(r.Series), fmt.Sprintf("%.2f", r.WallSeconds), fmt.Sprintf("%.2f", r.CPUSeconds), fmt.Sprintf("%.0f", float64(r.Samples)/r.CPUSeconds),
			fmt.Sprintf("%.0f", r.PeakMB), fmt.Sprintf("%.0f", r.ServerGrowthMB), fmt.Sprintf("%.2f", r.CPUSeconds/b.CPUSeconds))
	}
	return t.Write(a.stdout, a.output)
}

// write pushes the fleet, hour by hour.
func (c *benchSamples) write(ctx context.Context, a *app, url string) error {
	src, err := prometheus.New(prometheus.Config{URL: url})
	if err != nil {
		return err
	}
	span, fleet := c.span(), c.fleet()
	a.log.Info("writing", "device_samples", fleet.deviceSamples(span.Duration()), "nodes", c.nodes, "days", c.days)
	stop := a.progress("writing the fleet")
	defer stop()
	for _, h := range (period.Span{Start: span.Start.Add(-time.Hour), End: span.End.Add(time.Hour)}).Hours() {
		for n := range c.nodes {
			if err := src.Push(ctx, fleet.hour(n, h)); err != nil {
				return err
			}
		}
	}
	return nil
}

// benchResult is what a stage took.
type benchResult struct {
	Samples        int64   `json:"samples"`
	Series         int64   `json:"series"`
	WallSeconds    float64 `json:"wall_seconds"`
	CPUSeconds     float64 `json:"cpu_seconds"`
	PeakMB         float64 `json:"peak_mb"`
	ServerGrowthMB float64 `json:"-"`
}

// measure runs a stage as a child.
func (c *benchSamples) measure(ctx context.Context, server *benchServer, stage string) (r benchResult, err error) {
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	cmd := exec.CommandContext(ctx, self, "bench", "samples", "--stage", stage, "--url", server.url, "--driver", c.driver, "--requests", c.requests,
		"--nodes", fmt.Sprint(c.nodes), "--gpus", fmt.Sprint(c.gpus), "--pods", fmt.Sprint(c.pods), "--days", fmt.Sprint(c.days), "--interval", c.interval.String())
	cmd.Stderr = os.Stderr
	watch := server.watch()
	out, err := cmd.Output()
	r.ServerGrowthMB = watch()
	if err != nil {
		return r, fmt.Errorf("stage %s: %w", stage, err)
	}
	return r, json.Unmarshal(out, &r)
}

// child is one stage in a process of its own.
func (c *benchSamples) child(ctx context.Context, a *app) error {
	src, err := prometheus.New(prometheus.Config{URL: c.url, Driver: c.driver})
	if err != nil {
		return err
	}
	start := time.Now()
	var r benchResult
	switch c.stage {
	case "fold":
		r, err = c.foldAll(ctx, src)
	case "bare":
		r, err = c.throwAway(ctx, src)
	default:
		err = usagef("no stage %q", c.stage)
	}
	if err != nil {
		return err
	}
	r.WallSeconds = time.Since(start).Seconds()
	r.CPUSeconds, r.PeakMB = processUse()
	return json.NewEncoder(a.stdout).Encode(r)
}

func (c *benchSamples) foldAll(ctx context.Context, src ingest.Source) (r benchResult, err error) {
	f, err := os.Create(c.requests)
	if err != nil {
		return r, err
	}
	defer collectLess()()
	rec := &recorder{Source: src, log: json.NewEncoder(f)}
	nodeHours := 0
	err = ingest.Fold(ctx, rec, nil, gpu.Settings{}, c.span(), func(ch ingest.Chunk) error {
		for _, h := range ch.Hours {
			nodeHours += len(h.Nodes)
		}
		r.Series, r.Samples = r.Series+ch.Series, r.Samples+ch.Samples
		return nil
	})
	if want := c.nodes * c.days * 24; err == nil && nodeHours != want {
		err = fmt.Errorf("%d node-hours came out, not %d", nodeHours, want)
	}
	return r, errors.Join(err, f.Close())
}

func (c *benchSamples) throwAway(ctx context.Context, src *prometheus.Source) (r benchResult, err error) {
	text, err := os.ReadFile(c.requests)
	if err != nil {
		return r, err
	}
	for line := range strings.Lines(string(text)) {
		var req benchRequest
		if err := json.Unmarshal([]byte(line), &req); err != nil {
			return r, err
		}
		series, samples, err := src.Discard(ctx, req.Selector, req.Span)
		if err != nil {
			return r, err
		}
		r.Series, r.Samples = r.Series+series, r.Samples+samples
	}
	return r, nil
}
