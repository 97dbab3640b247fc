package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpuledger/internal/blobtest"
	"gpuledger/internal/pgtest"
)

const azureHead = "Date,BillingPeriodStartDate,ChargeType,PricingModel,Cost,BillingCurrency,Quantity,UnitOfMeasure,UnitPrice,PayGPrice,MeterCategory,ResourceId,AdditionalInfo,Tags,BenefitId\n"

// azureUsage is a day of a machine of a scale set.
func azureUsage(model, cost string, n int) string {
	return fmt.Sprintf(`10/05/2026,10/01/2026,Usage,%s,%s,USD,24,1 Hour,3.673,3.673,Virtual Machines,/subscriptions/1/resourceGroups/MC_x/providers/Microsoft.Compute/virtualMachineScaleSets/aks-gpu-1-vmss,"""ServiceType"":""Standard_NC24ads_A100_v4"",""VMName"":""aks-gpu-1-vmss_%d""","""team"": ""search""",`+"\n", model, cost, n)
}

// azureExports are an actual and an amortized export of one month as they lie in a
// container, by their names in it.
func azureExports() map[string]string {
	files := map[string]string{}
	for kind, rows := range map[string]string{
		"ActualCost": azureUsage("OnDemand", "88.152", 1) + azureUsage("Reservation", "0", 2) +
			"10/01/2026,10/01/2026,Purchase,Reservation,1000,USD,1,1 Hour,1000,0,Virtual Machines,/providers/Microsoft.Capacity/reservationOrders/r,,,r\n",
		"AmortizedCost": azureUsage("OnDemand", "88.152", 1) + azureUsage("Reservation", "40.5", 2) +
			"10/05/2026,10/01/2026,UnusedReservation,Reservation,7.5,USD,4,1 Hour,0,0,Virtual Machines,,,,r\n",
	} {
		part, n := azureHead+rows, strings.Count(rows, "\n")
		at := "exports/" + kind + "/20261001-20261031/run-1/"
		files[at+"part_0_0001.csv"] = part
		files[at+"manifest.json"] = fmt.Sprintf(`{"manifestVersion":"2024-04-01","blobCount":1,"dataRowCount":%d,
			"exportConfig":{"exportName":%q,"type":%q,"dataVersion":"2023-12-01"},
			"runInfo":{"runId":"run-1","submittedTime":"2026-10-06T00:00:00Z","startDate":"2026-10-01T00:00:00","endDate":"2026-10-31T00:00:00"},
			"blobs":[{"blobName":%q,"byteCount":%d,"dataRowCount":%d}]}`, n, kind, kind, at+"part_0_0001.csv", len(part), n)
	}
	return files
}

// azureConfig lays out a configuration with one bill at a location, and returns it.
func azureConfig(t *testing.T, location string) string {
	t.Helper()
	config := filepath.Join(t.TempDir(), "gpuledger.yaml")
	write(t, config, `clusters: [{name: test, metrics: {type: openmetrics, path: "./none/*.om"}}]
bills: [{name: azure, type: azure, location: "`+location+`"}]
`)
	return config
}

// Azure's exports in a container, by key and by SAS token, give what a copy of them in a
// folder gives; read again, nothing is new.
func TestBlobAndFolderAgree(t *testing.T) {
	srv := blobtest.New(t, "costs")
	srv.PageSize = 3 // of four blobs and a folder
	dir := t.TempDir()
	for name, content := range azureExports() {
		srv.Add("costs", name, blobtest.Blob{Content: []byte(content), Type: "file"})
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, path, content)
	}
	srv.Add("costs", "exports", blobtest.Blob{Type: "directory"})
	t.Setenv("COSTS_SAS", blobtest.SAS)
	var bills []string
	for _, location := range []string{
		dir, "https://billing.blob.core.windows.net/costs/exports", "abfss://costs@billing.dfs.core.windows.net/",
		"https://billing.blob.core.windows.net/costs?${COSTS_SAS}",
	} {
		config, dsn := azureConfig(t, location), pgtest.New(t, migrate)
		code, _, log := cli(t, dsn, "ingest", "bills", "--config", config)
		if code != 0 {
			t.Fatalf("%s: exit %d: %s", location, code, log)
		}
		noSecret(t, log)
		bills = append(bills, one(t, dsn, `SELECT class, instance_id, trim_scale(billed_cost), trim_scale(effective_cost), trim_scale(list_cost)
			FROM gpuledger.bill_line JOIN gpuledger.bill_resource r ON r.id = bill_resource_id ORDER BY 1, 2`))
		if _, _, log := cli(t, dsn, "ingest", "bills", "--config", config); !strings.Contains(log, "bill unchanged") {
			t.Errorf("%s again: %s", location, log)
		}
		code, out, log := cli(t, dsn, "doctor", "--config", config)
		if !strings.Contains(out, "Azure actual and amortized: 2 files") {
			t.Errorf("%s: doctor, exit %d: %s%s", location, code, out, log)
		}
		noSecret(t, out+log)
	}
	// The purchase and the unused rest of the reservation are out of scope.
	const want = "node_usage|aks-gpu-1-vmss/1|88.152|88.152|88.152\nnode_usage|aks-gpu-1-vmss/2|0|40.5|88.152"
	for i, got := range bills {
		if strings.TrimSpace(got) != want {
			t.Errorf("%d: got\n%s\nwant\n%s", i, got, want)
		}
	}
	if srv.Count("key") == 0 || srv.Count("sas") == 0 || srv.Count("list") < 12 {
		t.Errorf("%d requests by key, %d by token, %d pages", srv.Count("key"), srv.Count("sas"), srv.Count("list"))
	}
}

// What goes wrong is said without the token in the location.
func TestBlobFaults(t *testing.T) {
	blobtest.New(t, "costs", "empty")
	dsn := pgtest.New(t, migrate)
	expired := strings.Replace(blobtest.SAS, "2999", "2021", 1)
	for location, says := range map[string]string{
		"https://billing.blob.core.windows.net/costs?" + expired:       "the SAS token has expired or is not valid",
		"https://billing.blob.core.windows.net/empty?" + blobtest.SAS:  "https://billing.blob.core.windows.net/empty",
		"https://billing.blob.core.windows.net/absent?" + blobtest.SAS: `no container "absent"`,
		"https://billing.example.com/costs?" + blobtest.SAS:            "is not Azure Blob Storage",
	} {
		config := azureConfig(t, location)
		for _, args := range [][]string{{"ingest", "bills"}, {"doctor"}} {
			code, out, log := cli(t, dsn, append(args, "--config", config)...)
			if code == 0 || !strings.Contains(out+log, says) {
				t.Errorf("%v, exit %d: %s%s", args, code, out, log)
			}
			noSecret(t, out+log)
		}
	}
}

func noSecret(t *testing.T, text string) {
	t.Helper()
	for _, secret := range blobtest.Secrets {
		if strings.Contains(text, secret) {
			t.Errorf("the secret %q is in %s", secret, text)
		}
	}
}
