package main

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"gpuledger/billing/billingtest"
	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/ingest"
	"gpuledger/ingest/openmetrics"
	"gpuledger/internal/fleet"
	"gpuledger/internal/pgtest"
	"gpuledger/internal/promtest"
	"gpuledger/warehouse"
)

// scrapes returns samples of a constant value every 30 s within a span.
func scrapes(s period.Span, v float64) []gpu.Sample {
	var out []gpu.Sample
	for t := s.Start.Add(15 * time.Second); t.Before(s.End); t = t.Add(30 * time.Second) {
		out = append(out, gpu.Sample{UnixMilli: t.UnixMilli(), Value: v})
	}
	return out
}

func series(metric string, samples []gpu.Sample, kv ...string) gpu.Series {
	l := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		l[kv[i]] = kv[i+1]
	}
	return gpu.Series{Metric: metric, Labels: l, Samples: samples}
}

// machine is the telemetry of a node with one exclusive GPU that one pod holds
// around an hour.
func machine(instance, zone, model string, hour time.Time) []gpu.Series {
	s := scrapes(period.Hour(hour).Grow(20*time.Minute), 1)
	node := "ip-" + instance
	pod := []string{"namespace", "ml", "pod", "train-" + instance, "uid", "uid-" + instance, "node", node}
	dev := []string{"UUID", "GPU-" + instance, "modelName", model, "Hostname", node, "gpu", "0"}
	used := scrapes(period.Hour(hour).Grow(20*time.Minute), 6000)
	return []gpu.Series{
		series("kube_node_info", s, "node", node, "provider_id", "aws:///"+zone+"/"+instance),
		series("kube_node_labels", s, "node", node, "label_nvidia_com_gpu_count", "1", "label_nvidia_com_gpu_replicas", "1", "label_nvidia_com_gpu_sharing_strategy", "none"),
		series("kube_pod_info", s, pod...),
		series("kube_pod_container_resource_requests", s, append([]string{"container", "c", "resource", "nvidia_com_gpu", "unit", "integer"}, pod...)...),
		series("DCGM_FI_DEV_FB_USED", used, append([]string{"namespace", "ml", "pod", "train-" + instance, "container", "c"}, dev...)...),
		series("DCGM_FI_DEV_FB_FREE", used, dev...),
	}
}

func writeOpenMetrics(t *testing.T, path string, all []gpu.Series) {
	t.Helper()
	var b bytes.Buffer
	if err := openmetrics.Write(&b, all); err != nil {
		t.Fatal(err)
	}
	write(t, path, b.String())
}

// The public FOCUS 1.0 sample, written by others: ten GPU instance hours, their
// type only in the description, three of them partial, times without a zone, text
// NULL. All else of the file stays in control totals, and it ties out.
func TestFOCUSSample(t *testing.T) {
	file := billingtest.Shared(t, "samples/billing/focus/focus-1.0-sample-1000.csv", "the public FOCUS sample end to end")
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]int{}
	for i, c := range rows[0] {
		at[c] = i
	}
	kind := regexp.MustCompile(`Linux (g[35]\.4xlarge) Instance Hour`)
	models := map[string]string{"g5.4xlarge": "NVIDIA A10G", "g3.4xlarge": "Tesla M60"}
	var all []gpu.Series
	machines := 0
	for _, r := range rows[1:] {
		m := kind.FindStringSubmatch(r[at["ChargeDescription"]])
		if m == nil {
			continue
		}
		hour, err := time.Parse("2006-01-02 15:04:05", r[at["ChargePeriodStart"]])
		if err != nil {
			t.Fatal(err)
		}
		machines++
		all = append(all, machine(r[at["ResourceId"]], r[at["AvailabilityZone"]], models[m[1]], hour)...)
	}
	if machines != 10 {
		t.Fatalf("%d GPU hours", machines)
	}
	dsn, work := pgtest.New(t, migrate), t.TempDir()
	writeOpenMetrics(t, filepath.Join(work, "metrics.om"), all)
	config := filepath.Join(work, "gpuledger.yaml")
	write(t, config, fmt.Sprintf("clusters: [{name: test, metrics: {type: openmetrics, path: ./metrics.om}}]\nbills: [{name: focus, type: focus, location: %q}]\n", file))
	mustCLI(t, dsn, "run", "--config", config)

	got := one(t, dsn, "SELECT trim_scale(sum(billed_cost)) FROM finance.allocation WHERE category = 'pod'")
	if got != "12.126483324" {
		t.Errorf("allocated %s, want 12.126483324", got)
	}
	if got := one(t, dsn, "SELECT sum(lines) FROM finance.reconciliation"); got != "1000" {
		t.Errorf("%s lines reconciled, want 1000", got)
	}
	if got := one(t, dsn, "SELECT count(*) FROM finance.reconciliation WHERE difference_billed <> 0 OR difference_effective <> 0 OR difference_list <> 0"); got != "0" {
		t.Errorf("%s rows differ", got)
	}
	mustCLI(t, dsn, "reconcile", "--period", "2024-09")
	out := mustCLI(t, dsn, "run", "--config", config)
	if got := one(t, dsn, "SELECT count(*) FROM gpuledger.run"); got != "1" {
		t.Errorf("a rerun made a new run: %s\n%s", got, out)
	}
}

// one runs a query for a single value.
func one(t *testing.T, dsn, query string) string {
	t.Helper()
	db, err := warehouse.Open(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	got, err := db.Query(t.Context(), query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	var b strings.Builder
	for i, r := range got.Rows {
		if i > 0 {
			b.WriteString("\n")
		}
		for k, c := range r {
			if k > 0 {
				b.WriteString("|")
			}
			b.WriteString(c.Text)
		}
	}
	return b.String()
}

const everyOccupancy = `SELECT n.name, h.hour, h.ready_us, h.uncovered_us, encode(h.sha256, 'hex'), d.uuid, m.name, p.geometry, p.gpu_instance, p.profile, p.memory_slices, p.device_slices,
	o.mode, o.slots, o.usable_bytes, o.present_us, pod.uid, o.category, o.method, o.replicas, o.used_us, o.request_none_us, o.request_replica_us, o.max_none_us, o.max_replica_us,
	o.spread_us, o.used_byte_seconds, o.held_byte_seconds, o.measured_us, o.gap_us, o.samples, o.first_at, o.last_at, o.peak_bytes, o.histogram, o.flags
	FROM gpuledger.occupancy o JOIN gpuledger.node_hour h ON h.id = o.node_hour_id AND h.superseded_by IS NULL JOIN gpuledger.node n ON n.id = h.node_id
	JOIN gpuledger.gpu_partition p ON p.id = o.partition_id JOIN gpuledger.device d ON d.id = p.device_id JOIN gpuledger.gpu_model m ON m.id = d.model_id
	LEFT JOIN gpuledger.pod pod ON pod.id = o.pod_id ORDER BY 1, 2, 6, 8, 9, 17, 18, 19`

// The same day of a fleet from real Prometheus servers by each driver and from an
// OpenMetrics file gives the same occupancy, row by row.
func TestPrometheusAndFileAgree(t *testing.T) {
	day := time.Date(2026, 10, 5, 0, 0, 0, 0, time.UTC)
	all := fleetDay(t, day)
	sources := []string{"{type: openmetrics, path: ./metrics.om}"}
	promtest.Each(t, func(_ *testing.T, server promtest.Server) {
		url := server.Start(t, all)
		for _, driver := range []string{"auto", "query"} {
			sources = append(sources, fmt.Sprintf("{type: prometheus, url: %q, driver: %s}", url, driver))
		}
	})
	var got []string
	for _, metrics := range sources {
		dsn, work := pgtest.New(t, migrate), t.TempDir()
		writeOpenMetrics(t, filepath.Join(work, "metrics.om"), all)
		config := filepath.Join(work, "gpuledger.yaml")
		write(t, config, "clusters: [{name: demo, metrics: "+metrics+"}]\n")
		mustCLI(t, dsn, "ingest", "samples", "--config", config, "--from", "2026-10-05T01:00:00Z", "--to", "2026-10-05T23:00:00Z")
		got = append(got, one(t, dsn, everyOccupancy))
		if doctor, out, errs := cli(t, dsn, "doctor", "--config", config); doctor != 3 || !strings.Contains(out, "telemetry") {
			t.Errorf("doctor: exit %d, want 3 (no bill, no owners)\n%s%s", doctor, out, errs)
		}
	}
	if n := strings.Count(got[0], "\n"); n < 300 {
		t.Errorf("only %d rows", n)
	}
	for i := range got {
		if got[i] != got[0] {
			t.Errorf("occupancy differs between the file and %s", sources[i])
		}
	}
}

// fleetDay is the demo fleet's telemetry of one day.
func fleetDay(t *testing.T, day time.Time) []gpu.Series {
	t.Helper()
	dir := t.TempDir()
	if _, err := fleet.Demo(period.MonthOf(day)).Write(dir); err != nil {
		t.Fatal(err)
	}
	src, err := openmetrics.New(openmetrics.Config{Paths: []string{filepath.Join(dir, "metrics", day.Format("2006-01-02")+".om.gz")}})
	if err != nil {
		t.Fatal(err)
	}
	var all []gpu.Series
	sel := ingest.Selector{Metrics: append(append([]string(nil), gpu.InventoryMetrics...), gpu.DeviceMetrics...)}
	err = src.Select(t.Context(), sel, period.Span{Start: day, End: day.AddDate(0, 0, 1)}, func(s gpu.Series) error {
		all = append(all, s)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
