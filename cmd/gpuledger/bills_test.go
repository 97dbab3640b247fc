package main

import (
	"path/filepath"
	"strings"
	"testing"

	"gpuledger/internal/pgtest"
)

// What is loaded, what bills a node, and what does not come together, each with the
// likely reason.
func TestBills(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "metrics.txt"), `start 2026-10-05T09:45:00Z every 30s
let job = job="ksm",instance="ksm:8080"
kube_node_info{$job,node="n1",provider_id="aws:///us-east-1a/i-1"} 1x180
kube_node_info{$job,node="n2",provider_id="aws:///us-east-1a/i-2"} 1x180
kube_node_info{$job,node="n3"} 1x180
kube_node_labels{$job,node="n1",label_nvidia_com_gpu_count="1",label_node_kubernetes_io_instance_type="g6.xlarge"} 1x180
kube_node_labels{$job,node="n2",label_nvidia_com_gpu_count="1",label_node_kubernetes_io_instance_type="g6.xlarge"} 1x180
kube_node_labels{$job,node="n3",label_nvidia_com_gpu_count="1",label_node_kubernetes_io_instance_type="g6.xlarge"} 1x180
`)
	row := func(resource, hour, cost string) string {
		return "01-AB,USD,2026-10-01T00:00:00Z,2026-11-01T00:00:00Z,2026-10-05T" + hour + ":00:00Z,2026-10-05T" + hour + ":59:59Z,Usage,,g6.xlarge hours,AmazonEC2,AWS," + resource + ",acc,1,Hours,1,Hours," + cost + "," + cost + "," + cost + "," + cost + ",BoxUsage:g6.xlarge\n"
	}
	write(t, filepath.Join(dir, "bill.csv"), "BillingAccountId,BillingCurrency,BillingPeriodStart,BillingPeriodEnd,ChargePeriodStart,ChargePeriodEnd,ChargeCategory,ChargeClass,ChargeDescription,ServiceName,ServiceProviderName,ResourceId,SubAccountId,ConsumedQuantity,ConsumedUnit,PricingQuantity,PricingUnit,BilledCost,EffectiveCost,ListCost,ContractedCost,x_UsageType\n"+
		row("i-1", "10", "0.8")+row("I-1", "11", "0.9")+row("i-9", "10", "0.7")+row("n3", "10", "0.6"))
	work := layOut(t, dir)
	config, dsn := filepath.Join(work, "gpuledger.yaml"), pgtest.New(t, migrate)
	if code, _, errs := cli(t, dsn, "bills", "show", "--config", config); code != exitIncomplete || !strings.Contains(errs, "no bill is loaded") {
		t.Errorf("exit %d: %s", code, errs)
	}
	mustCLI(t, dsn, "ingest", "bills", "--config", config)
	if out := mustCLI(t, dsn, "bills", "unmatched", "--period", "2026-10", "--config", config, "-o", "csv"); strings.Count(out, "no telemetry of the month is loaded") != 4 {
		t.Error(out)
	}
	mustCLI(t, dsn, "ingest", "samples", "--period", "2026-10", "--config", config)
	mustCLI(t, dsn, "ingest", "bills", "--config", config) // i-1 is a known node now
	out := mustCLI(t, dsn, "bills", "show", "--period", "2026-10", "--config", config, "-o", "csv")
	if !strings.Contains(out, "bill,2026-10,FOCUS 1.4,current,4,4,USD,3,3,3,0,") {
		t.Error(out)
	}
	for _, node := range []string{"n1", "i-1", "I-1"} {
		out := mustCLI(t, dsn, "bills", "lines", "--node", node, "--from", "2026-10-05", "--to", "2026-10-06", "--config", config, "-o", "csv")
		if strings.Count(out, "\n") != 3 || !strings.Contains(out, ",0.8,0.8,0.8,1,") || !strings.Contains(out, ",0.9,0.9,0.9,1,") {
			t.Errorf("%s: %s", node, out)
		}
	}
	if out := mustCLI(t, dsn, "bills", "lines", "--node", "n1", "--at", "2026-10-05T10:40:00Z", "--config", config, "-o", "csv"); strings.Count(out, "\n") != 2 {
		t.Error(out)
	}
	if code, _, errs := cli(t, dsn, "bills", "lines", "--node", "n2", "--at", "2026-10-05T10:40:00Z", "--config", config); code != exitIncomplete || !strings.Contains(errs, "no line bills n2") {
		t.Errorf("exit %d: %s", code, errs)
	}
	out = mustCLI(t, dsn, "bills", "unmatched", "--period", "2026-10", "--config", config, "-o", "csv")
	for _, want := range []string{
		`"billed, not seen",i-9,g6.xlarge,2026-10-05 10:00,2026-10-05 10:59,1,USD,0.7,,"no cluster shows it`,
		`"billed, not seen",n3,g6.xlarge,2026-10-05 10:00,2026-10-05 10:59,1,USD,0.6,,a node of that name has no provider id`,
		`"seen, not billed",n2,g6.xlarge,2026-10-05 09:00,2026-10-05 12:00,,,,`,
		`"seen, not billed",n3,g6.xlarge,2026-10-05 09:00,2026-10-05 12:00,,,,`,
		"no line names its machine", "the node has no provider id",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
	if strings.Count(out, "\n") != 5 {
		t.Error(out)
	}
	// Another month has neither.
	if code, out, errs := cli(t, dsn, "bills", "unmatched", "--period", "2026-11", "--config", config); code != 0 || out != "" || !strings.Contains(errs, "every billed machine of 2026-11 is a node") {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
}

// A machine whose time is billed at no cost is a finding, unless the bill gives a reason:
// another line of the same hour, no list price, a correction.
func TestMachineAtNoCost(t *testing.T) {
	dir := t.TempDir()
	const head = "BillingAccountId,BillingCurrency,BillingPeriodStart,BillingPeriodEnd,ChargePeriodStart,ChargePeriodEnd,ChargeCategory,ChargeClass,ChargeDescription,ServiceName,ServiceProviderName,ResourceId,SubAccountId,ConsumedQuantity,ConsumedUnit,BilledCost,EffectiveCost,ListCost,x_UsageType\n"
	row := func(machine, hour, class, cost, list string) string {
		return "01-AB,USD,2026-10-01T00:00:00Z,2026-11-01T00:00:00Z,2026-10-05T" + hour + ":00:00Z,2026-10-05T" + hour + ":59:59Z,Usage," + class + ",g6.xlarge hours,AmazonEC2,AWS," + machine + ",acc,1,Hours," + cost + "," + cost + "," + list + ",BoxUsage:g6.xlarge\n"
	}
	write(t, filepath.Join(dir, "metrics.txt"), "start 2026-10-05T09:45:00Z every 30s\nkube_node_info{job=\"ksm\",node=\"n1\",provider_id=\"aws:///us-east-1a/i-1\"} 1x180\n")
	write(t, filepath.Join(dir, "bill.csv"), head+
		row("i-1", "10", "", "0", "0.8")+row("i-1", "11", "", "0.8", "0.8")+ // the hour of 10 only
		row("i-2", "10", "", "0", "")+
		row("i-3", "10", "", "0", "0.8")+row("i-3", "10", "", "0.3", "0.8")+ // half of it covered elsewhere
		row("i-4", "10", "", "0", "0")+ // free by its price
		row("i-5", "10", "Correction", "0", "0.8"))
	work := layOut(t, dir)
	config, dsn := filepath.Join(work, "gpuledger.yaml"), pgtest.New(t, migrate)
	_, _, log := cli(t, dsn, "run", "--period", "2026-10", "--config", config)
	if !strings.Contains(log, "2 machines of source bill cost nothing for 2 hours (i-1 among them)") {
		t.Error(log)
	}
	out := mustCLI(t, dsn, "bills", "unmatched", "--period", "2026-10", "--config", config, "-o", "csv")
	if strings.Count(out, "billed at nothing") != 2 || !strings.Contains(out, "billed at nothing,i-2,g6.xlarge,2026-10-05 10:00,2026-10-05 10:59,,,0,1.000,") {
		t.Error(out)
	}
}
