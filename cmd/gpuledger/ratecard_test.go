package main

import (
	"path/filepath"
	"strings"
	"testing"

	"gpuledger/internal/pgtest"
)

// A machine of one's own, without a provider id, priced by a card of rates: its pods pay the
// hours that it was ready, and more telemetry is more of the bill.
func TestRateCard(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "metrics.txt"), `start 2026-10-05T09:45:00Z every 30s
let job = job="ksm",instance="ksm:8080"
let gpu = UUID="GPU-1",modelName="NVIDIA H100 80GB HBM3",Hostname="dgx-1",gpu="0"
kube_node_info{$job,node="dgx-1"} 1x180
kube_node_labels{$job,node="dgx-1",label_nvidia_com_gpu_count="1",label_nvidia_com_gpu_replicas="1",label_nvidia_com_gpu_sharing_strategy="none"} 1x180
kube_pod_info{$job,namespace="ml",pod="train",uid="uid-train",node="dgx-1"} 1x180
kube_pod_container_resource_requests{$job,namespace="ml",pod="train",uid="uid-train",node="dgx-1",container="c",resource="nvidia_com_gpu",unit="integer"} 1x180
DCGM_FI_DEV_FB_USED{$gpu,namespace="ml",pod="train",container="c"} 40000x180
DCGM_FI_DEV_FB_FREE{$gpu} 41080x180
`)
	write(t, filepath.Join(dir, "rates.yaml"), "currency: EUR\nrates:\n  - {match: {cluster: test, gpu_model: NVIDIA H100 80GB HBM3}, per: gpu, effective: \"2.40\", list: \"3\"}\n")
	write(t, filepath.Join(dir, "gpuledger.yaml"), "clusters: [{name: test, metrics: {type: openmetrics, path: ./metrics.om}}]\nbills: [{name: onprem, type: ratecard, file: rates.yaml}]\n")
	work := layOut(t, dir)
	config, dsn := filepath.Join(work, "gpuledger.yaml"), pgtest.New(t, migrate)
	code, _, errs := cli(t, dsn, "run", "--config", config, "--period", "2026-10")
	if code != 0 && code != exitIncomplete {
		t.Fatalf("exit %d: %s", code, errs)
	}
	got := one(t, dsn, `SELECT string_agg(format('%s %s %s %s %s', to_char(charge_start AT TIME ZONE 'UTC', 'HH24'), category, coalesce(pod_name, '-'), trim_scale(round(effective_cost, 6)), trim_scale(round(list_cost, 6))), E'\n' ORDER BY charge_start, category)
		FROM finance.allocation WHERE effective_cost <> 0`)
	// 2.40 an hour, and 3, of what the inventory shows. Samples from 09:45:15 to 11:14:45, each
	// holding 75 s, two and a half intervals, either way: 09:44:00 to 11:16:00. So 16 minutes,
	// an hour and 16 minutes: 2.40 × 16 / 60 = 0.64, and 3 × 16 / 60 = 0.8.
	want := "09 pod train 0.64 0.8\n10 pod train 2.4 3\n11 pod train 0.64 0.8"
	if strings.TrimSpace(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if out := mustCLI(t, dsn, "reconcile", "--config", config, "--period", "2026-10"); !strings.Contains(out, "EUR") {
		t.Error(out)
	}
	if out := one(t, dsn, "SELECT DISTINCT charge_type FROM gpuledger.bill_line"); strings.TrimSpace(out) != "Estimated" {
		t.Error(out)
	}
	out := mustCLI(t, dsn, "bills", "show", "--config", config, "-o", "csv")
	if !strings.Contains(out, "rate card") || !strings.Contains(out, "estimated") {
		t.Error(out)
	}
	if _, _, errs := cli(t, dsn, "bills", "unmatched", "--config", config, "--period", "2026-10"); !strings.Contains(errs, "every billed machine") {
		t.Error(errs)
	}
	// Nothing is new: nothing is written.
	_, _, errs = cli(t, dsn, "run", "--config", config, "--period", "2026-10")
	if !strings.Contains(errs, "bill unchanged") {
		t.Error(errs)
	}
	write(t, filepath.Join(work, "rates.yaml"), "currency: EUR\nrates: [{effectiv: 1}]\n")
	if code, _, errs := cli(t, dsn, "ingest", "bills", "--config", config); code != exitUsage || !strings.Contains(errs, "effectiv") {
		t.Errorf("exit %d: %s", code, errs)
	}
}
