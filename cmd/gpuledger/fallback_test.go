package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/internal/pgtest"
)

var storyDay = time.Date(2026, 10, 5, 0, 0, 0, 0, time.UTC)

// fleetHours is a node with one GPU that one pod holds, in some hours of the story's
// day only; used is what it uses. Further labels are on every series.
func fleetHours(node string, used float64, hours []int, kv ...string) []gpu.Series {
	var up, bytes []gpu.Sample
	for _, h := range hours {
		s := period.Hour(storyDay.Add(time.Duration(h) * time.Hour))
		up = append(up, scrapes(s, 1)...)
		bytes = append(bytes, scrapes(s, used)...)
	}
	with := func(metric string, samples []gpu.Sample, more ...string) gpu.Series {
		return series(metric, samples, append(append([]string(nil), kv...), more...)...)
	}
	pod := []string{"namespace", "ml", "pod", "p-" + node, "uid", "uid-" + node, "node", node}
	dev := []string{"UUID", "GPU-" + node, "modelName", "NVIDIA L4", "Hostname", node, "gpu", "0"}
	return []gpu.Series{
		with("kube_node_info", up, "node", node, "provider_id", "aws:///us-east-1a/i-"+node),
		with("kube_node_labels", up, "node", node, "label_nvidia_com_gpu_count", "1", "label_nvidia_com_gpu_replicas", "1", "label_nvidia_com_gpu_sharing_strategy", "none"),
		with("kube_pod_info", up, pod...),
		with("kube_pod_container_resource_requests", up, append([]string{"container", "c", "resource", "nvidia_com_gpu", "unit", "integer"}, pod...)...),
		with("DCGM_FI_DEV_FB_USED", bytes, append([]string{"exported_namespace", "ml", "exported_pod", "p-" + node}, dev...)...),
		with("DCGM_FI_DEV_FB_FREE", bytes, dev...),
	}
}

const byHour = `SELECT extract(hour FROM h.hour)::int, h.covered_us > 3500000000, coalesce(max(o.peak_bytes) FILTER (WHERE o.measured_us > 300000000) >> 20, 0), split_part(l.source, ':', 1)
	FROM gpuledger.cluster_hour h JOIN gpuledger.sample_load l ON l.id = h.load_id LEFT JOIN gpuledger.node_hour n ON n.hour = h.hour AND n.superseded_by IS NULL LEFT JOIN gpuledger.occupancy o ON o.node_hour_id = n.id
	WHERE h.superseded_by IS NULL GROUP BY 1, 2, 4 ORDER BY 1`

// The first source holds 10, 12 and 13 o'clock and has a hole at 11; the second has all,
// with other bytes. Each hour is of one source, the first that has it, and says which.
func TestFallbackSources(t *testing.T) {
	dsn, dir := pgtest.New(t, migrate), t.TempDir()
	writeOpenMetrics(t, filepath.Join(dir, "first.om"), fleetHours("n1", 1000, []int{10, 12, 13}))
	writeOpenMetrics(t, filepath.Join(dir, "second.om"), fleetHours("n1", 2000, []int{8, 9, 10, 11, 12, 13, 14}))
	config := filepath.Join(dir, "gpuledger.yaml")
	write(t, config, "clusters: [{name: prod, metrics: {type: openmetrics, path: first.om}, fallback: [{type: openmetrics, path: second.om}]}]\n")
	mustCLI(t, dsn, "run", "--config", config)
	want := "8|t|2000|fallback 1\n9|t|2000|fallback 1\n10|t|1000|metrics\n11|t|2000|fallback 1\n12|t|1000|metrics\n13|t|1000|metrics\n14|t|2000|fallback 1"
	if got := one(t, dsn, byHour); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	loads := one(t, dsn, "SELECT count(*) FROM gpuledger.sample_load")
	mustCLI(t, dsn, "ingest", "samples", "--config", config, "--period", "2026-10")
	if got := one(t, dsn, byHour); got != want {
		t.Errorf("read again: got\n%s\nwant\n%s", got, want)
	}
	if again := one(t, dsn, "SELECT count(*) FROM gpuledger.sample_load"); again != loads {
		t.Errorf("%s loads after reading again, %s before", again, loads)
	}

	// The first is down: the second does it all, and the log says so.
	dsn = pgtest.New(t, migrate)
	write(t, config, "clusters: [{name: prod, metrics: {type: openmetrics, path: gone.om}, fallback: [{type: openmetrics, path: second.om}]}]\n")
	code, _, errs := cli(t, dsn, "ingest", "samples", "--config", config, "--from", "2026-10-05T08", "--to", "2026-10-05T15")
	if code != 0 || !strings.Contains(errs, "does not answer") || !strings.Contains(errs, "gone.om") {
		t.Errorf("exit %d, %s", code, errs)
	}
	if got := one(t, dsn, "SELECT count(*) FROM gpuledger.cluster_hour WHERE covered_us > 3500000000"); got != "7" {
		t.Errorf("%s hours", got)
	}
	// What the one that is down may hold is not known to be lost.
	code, _, errs = cli(t, dsn, "ingest", "samples", "--config", config, "--from", "2026-10-05T06", "--to", "2026-10-05T15")
	if code != 1 || !strings.Contains(errs, "gone.om") {
		t.Errorf("exit %d, %s", code, errs)
	}
}

// A hole is stored as uncovered, and not read again while nothing is listed there.
func TestHourWithoutSeriesIsUncovered(t *testing.T) {
	dsn, dir := pgtest.New(t, migrate), t.TempDir()
	metrics := filepath.Join(dir, "m.om")
	writeOpenMetrics(t, metrics, fleetHours("n1", 1000, []int{9, 12}))
	config := filepath.Join(dir, "gpuledger.yaml")
	write(t, config, "clusters: [{name: prod, metrics: {type: openmetrics, path: m.om}}]\n")
	mustCLI(t, dsn, "run", "--config", config)
	want := "9|t|1000|metrics\n10|f|0|metrics\n11|f|0|metrics\n12|t|1000|metrics"
	if got := one(t, dsn, byHour); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := mustCLI(t, dsn, "status", "--config", config, "--clusters", "--output", "csv"); !strings.Contains(got, "prod,2,") {
		t.Errorf("status: %s", got)
	}
	// The samples come after all: they are found.
	writeOpenMetrics(t, metrics, fleetHours("n1", 1000, []int{9, 10, 11, 12}))
	mustCLI(t, dsn, "run", "--config", config)
	if got := one(t, dsn, "SELECT count(*) FROM gpuledger.cluster_hour WHERE superseded_by IS NULL AND covered_us > 3500000000"); got != "4" {
		t.Errorf("%s hours covered", got)
	}
}

// One store of several clusters: those that the label names, with ids of the
// configuration where there are any. One that is gone is found in the asked span, and
// one that got another value of the label is one cluster under two names.
func TestDiscoveredClusters(t *testing.T) {
	dsn, dir := pgtest.New(t, migrate), t.TempDir()
	var all []gpu.Series
	all = append(all, fleetHours("n1", 1000, []int{8, 9, 10, 20, 21, 22}, "cluster", "prod-eu")...)
	all = append(all, fleetHours("n2", 1000, []int{8, 9}, "cluster", "prod-gone")...)
	all = append(all, fleetHours("n3", 1000, []int{8, 9, 10}, "cluster", "prod-old")...)
	all = append(all, fleetHours("n3", 1000, []int{11, 12, 21, 22}, "cluster", "prod-new")...)
	all = append(all, fleetHours("n4", 1000, []int{8, 22}, "cluster", "stage")...)
	all = append(all, fleetHours("n5", 1000, []int{8, 22}, "cluster", "prod-test")...)
	writeOpenMetrics(t, filepath.Join(dir, "m.om"), all)
	config := filepath.Join(dir, "gpuledger.yaml")
	write(t, config, `clusters:
  - discover: {label: cluster, include: ["prod-*"], exclude: [prod-test], ids: {prod-eu: "1234", prod-old: "77", prod-new: "77"}}
    metrics: {type: openmetrics, path: m.om}
`)
	mustCLI(t, dsn, "ingest", "samples", "--config", config, "--period", "2026-10")
	got := one(t, dsn, `SELECT c.key, n.name, n.valid, (SELECT count(*) FROM gpuledger.cluster_hour h WHERE h.cluster_id = c.id AND h.superseded_by IS NULL AND h.covered_us > 3500000000)
		FROM gpuledger.cluster c LEFT JOIN gpuledger.cluster_name n ON n.cluster_id = c.id ORDER BY 1, 3`)
	want := `1234|prod-eu|(,)|6
77|prod-old|(,"2026-10-05 11:00:00+00")|7
77|prod-new|["2026-10-05 11:00:00+00",)|7
prod-gone|prod-gone|(,)|2`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	// Each has its own nodes only, and the one renamed has one.
	if got := one(t, dsn, "SELECT c.key, string_agg(n.name, ',' ORDER BY n.name) FROM gpuledger.node n JOIN gpuledger.cluster c ON c.id = n.cluster_id GROUP BY 1 ORDER BY 1"); got != "1234|n1\n77|n3\nprod-gone|n2" {
		t.Errorf("nodes: %s", got)
	}
	// doctor looks at each by itself.
	if _, out, errs := cli(t, dsn, "doctor", "--config", config); !strings.Contains(out, "prod-eu") || !strings.Contains(out, "n1") || strings.Contains(out, "n4") || strings.Contains(out, "stage") {
		t.Errorf("doctor: %s%s", out, errs)
	}
	if code, _, errs := cli(t, dsn, "ingest", "samples", "--config", config, "--period", "2026-10", "--cluster", "prod-xx"); code != 64 {
		t.Errorf("exit %d, %s", code, errs)
	}
	write(t, config, "clusters: [{discover: {label: cluster, include: [\"nowhere-*\"]}, metrics: {type: openmetrics, path: m.om}}]\n")
	if code, _, errs := cli(t, dsn, "run", "--config", config); code != 3 || !strings.Contains(errs, "discover.label") {
		t.Errorf("exit %d, %s", code, errs)
	}
	for _, bad := range []string{"{name: x, discover: {label: c}, metrics: {type: openmetrics, path: m.om}}", "{discover: {}, metrics: {type: openmetrics, path: m.om}}", "{discover: {label: c, include: [\"[\"]}, metrics: {type: openmetrics, path: m.om}}", "{name: x, metrics: {type: openmetrics, path: m.om}, fallback: [{type: prometheus}]}"} {
		write(t, config, "clusters: ["+bad+"]\n")
		if code, _, errs := cli(t, dsn, "run", "--config", config); code != 64 {
			t.Errorf("%s: exit %d, %s", bad, code, errs)
		}
	}
}

// A cluster renamed within a month is one cluster: one key, the totals once, each
// charge under the name of its time; a backfill under the old name does not swap them.
func TestClusterRenamed(t *testing.T) {
	dsn, dir := pgtest.New(t, migrate), t.TempDir()
	writeOpenMetrics(t, filepath.Join(dir, "m.om"), fleetHours("n1", 1000, []int{8, 9, 10, 11, 12, 13}))
	bill := "BillingAccountId,BillingCurrency,BillingPeriodStart,BillingPeriodEnd,ChargePeriodStart,ChargePeriodEnd,ChargeCategory,ChargeClass,ChargeDescription,ServiceName,ServiceProviderName,ResourceId,SubAccountId,ConsumedQuantity,ConsumedUnit,PricingQuantity,PricingUnit,BilledCost,EffectiveCost,ListCost,ContractedCost,SkuMeter\n"
	for h := 8; h < 14; h++ {
		bill += fmt.Sprintf("1,USD,2026-10-01T00:00:00Z,2026-11-01T00:00:00Z,2026-10-05T%02d:00:00Z,2026-10-05T%02d:00:00Z,Usage,,\"On Demand Linux g6.xlarge Instance Hour\",Amazon Elastic Compute Cloud,AWS,i-n1,1,1,Hours,1,Hours,2,2,2,2,BoxUsage:g6.xlarge\n", h, h+1)
	}
	write(t, filepath.Join(dir, "bill.csv"), bill)
	config := filepath.Join(dir, "gpuledger.yaml")
	ingest := func(name string, from, to int) {
		write(t, config, fmt.Sprintf("clusters: [{name: %s, id: \"42\", metrics: {type: openmetrics, path: m.om}}]\nbills: [{name: b, type: focus, location: bill.csv}]\n", name))
		mustCLI(t, dsn, "ingest", "samples", "--config", config, "--from", fmt.Sprintf("2026-10-05T%02d", from), "--to", fmt.Sprintf("2026-10-05T%02d", to))
	}
	ingest("blue", 9, 10)
	ingest("green", 11, 14)
	ingest("blue", 8, 9)   // older than all
	ingest("blue", 10, 11) // between the two
	ingest("blue", 12, 13) // read again: it was green
	mustCLI(t, dsn, "ingest", "bills", "--config", config)
	mustCLI(t, dsn, "allocate", "--config", config, "--period", "2026-10")
	if got := one(t, dsn, "SELECT cluster, pod_name, trim_scale(sum(effective_cost)), min(extract(hour FROM charge_start))::int, count(DISTINCT charge_start) FROM finance.allocation GROUP BY 1, 2 ORDER BY 4"); got != "blue|p-n1|6|8|3\ngreen|p-n1|6|11|3" {
		t.Errorf("got\n%s", got)
	}
	if got := one(t, dsn, "SELECT (SELECT count(*) FROM gpuledger.cluster), (SELECT trim_scale(sum(effective_cost)) FROM finance.chargeback_month), (SELECT count(*) FROM gpuledger.node)"); got != "1|12|1" {
		t.Errorf("clusters, total, nodes: %s", got)
	}
}

// One machine in two clusters of one configuration at the same time: an error that names
// both, and nothing of the second is there.
func TestMachineInTwoClustersByCommand(t *testing.T) {
	dsn, dir := pgtest.New(t, migrate), t.TempDir()
	writeOpenMetrics(t, filepath.Join(dir, "m.om"), fleetHours("n1", 1000, []int{8, 9}))
	config := filepath.Join(dir, "gpuledger.yaml")
	write(t, config, "clusters: [{name: east, metrics: {type: openmetrics, path: m.om}}, {name: west, metrics: {type: openmetrics, path: m.om}}]\n")
	code, _, errs := cli(t, dsn, "run", "--config", config)
	for _, s := range []string{"east", "west", "i-n1", "nothing was loaded"} {
		if code != 1 || !strings.Contains(errs, s) {
			t.Errorf("exit %d, %q not in %s", code, s, errs)
		}
	}
	if got := one(t, dsn, "SELECT c.key, count(*) FROM gpuledger.node n JOIN gpuledger.cluster c ON c.id = n.cluster_id GROUP BY 1"); got != "east|1" {
		t.Errorf("nodes: %s", got)
	}
}

// A re-read that would lose measured time is refused with the figure, and nothing
// changes, unless it is allowed.
func TestRereadMayNotLoseByCommand(t *testing.T) {
	dsn, dir := pgtest.New(t, migrate), t.TempDir()
	metrics, config := filepath.Join(dir, "m.om"), filepath.Join(dir, "gpuledger.yaml")
	whole := fleetHours("n1", 1000, []int{8, 9})
	writeOpenMetrics(t, metrics, whole)
	write(t, config, "clusters: [{name: prod, metrics: {type: openmetrics, path: m.om}}]\n")
	read := []string{"ingest", "samples", "--config", config, "--period", "2026-10"}
	mustCLI(t, dsn, read...)
	before := one(t, dsn, everyOccupancy)
	for i := range whole {
		if strings.HasPrefix(whole[i].Metric, "DCGM") { // the exporter's last 20 minutes are gone
			whole[i].Samples = whole[i].Samples[:200]
		}
	}
	writeOpenMetrics(t, metrics, whole)
	code, _, errs := cli(t, dsn, read...)
	if code != 1 || !strings.Contains(errs, "3600.0 device-seconds stored, ") || !strings.Contains(errs, "n1 at 2026-10-05T09:00:00Z") || !strings.Contains(errs, "--allow-less") {
		t.Errorf("exit %d, %s", code, errs)
	}
	if after := one(t, dsn, everyOccupancy); after != before {
		t.Error("a refused re-read changed something")
	}
	mustCLI(t, dsn, append(read, "--allow-less")...)
	if after := one(t, dsn, everyOccupancy); after == before {
		t.Error("an allowed re-read changed nothing")
	}
}
