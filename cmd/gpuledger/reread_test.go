package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"gpuledger/internal/pgtest"
)

const (
	currentNodes = `SELECT c.key, n.name, to_char(h.hour AT TIME ZONE 'UTC', 'HH24') FROM gpuledger.node_hour h JOIN gpuledger.node n ON n.id = h.node_id JOIN gpuledger.cluster c ON c.id = n.cluster_id
		WHERE h.superseded_by IS NULL ORDER BY 1, 2, 3`
	nodeSpells = `SELECT c.key, n.name, to_char(lower(t.valid) AT TIME ZONE 'UTC', 'HH24:MI'), to_char(upper(t.valid) AT TIME ZONE 'UTC', 'HH24:MI')
		FROM gpuledger.node_state t JOIN gpuledger.node n ON n.id = t.node_id JOIN gpuledger.cluster c ON c.id = n.cluster_id ORDER BY 1, 2, 3`
	seenOf = `SELECT (SELECT count(*) FROM gpuledger.device_seen t JOIN gpuledger.device d ON d.id = t.device_id JOIN gpuledger.node n ON n.id = d.node_id JOIN gpuledger.cluster c ON c.id = n.cluster_id WHERE c.key = 'prod' AND n.name = 'n2'),
		(SELECT count(*) FROM gpuledger.pod_seen t JOIN gpuledger.node n ON n.id = t.node_id JOIN gpuledger.cluster c ON c.id = n.cluster_id WHERE c.key = 'prod' AND n.name = 'n2')`
)

// Two clusters of one store were read as one. With match set right the re-read shows
// one node less: that is refused, and allowed it goes to the other cluster whole,
// whichever of the two the configuration names first.
func TestRereadGivesANodeToItsCluster(t *testing.T) {
	const (
		prod  = "{name: prod, metrics: {type: openmetrics, path: m.om, match: {cluster: a}}}"
		other = "{name: other, metrics: {type: openmetrics, path: m.om, match: {cluster: b}}}"
	)
	for name, clusters := range map[string][]string{"as read before": {prod, other}, "the new first": {other, prod}} {
		t.Run(name, func(t *testing.T) {
			dsn, dir := pgtest.New(t, migrate), t.TempDir()
			writeOpenMetrics(t, filepath.Join(dir, "m.om"), append(fleetHours("n1", 1000, []int{9, 10}, "cluster", "a"), fleetHours("n2", 1000, []int{9, 10}, "cluster", "b")...))
			config := filepath.Join(dir, "gpuledger.yaml")
			bill := "BillingAccountId,BillingCurrency,BillingPeriodStart,BillingPeriodEnd,ChargePeriodStart,ChargePeriodEnd,ChargeCategory,ChargeDescription,ServiceName,ServiceProviderName,ResourceId,ConsumedQuantity,ConsumedUnit,BilledCost,EffectiveCost,ListCost,ContractedCost\n"
			for _, h := range []int{9, 10, 12} { // at 12 nothing was read
				bill += fmt.Sprintf("1,USD,2026-10-01T00:00:00Z,2026-11-01T00:00:00Z,2026-10-05T%02d:00:00Z,2026-10-05T%02d:00:00Z,Usage,a node,EC2,AWS,i-n2,1,Hours,2,2,2,2\n", h, h+1)
			}
			write(t, filepath.Join(dir, "bill.csv"), bill)
			const bills = "bills: [{name: b, type: focus, location: bill.csv}]\n"
			charged := func() string {
				mustCLI(t, dsn, "ingest", "bills", "--config", config)
				mustCLI(t, dsn, "allocate", "--config", config, "--period", "2026-10")
				return one(t, dsn, "SELECT cluster, category, pod_name, trim_scale(sum(effective_cost)) FROM finance.allocation GROUP BY 1, 2, 3 ORDER BY 1, 2, 3")
			}
			write(t, config, "clusters: [{name: prod, metrics: {type: openmetrics, path: m.om}}]\n"+bills)
			read := []string{"ingest", "samples", "--config", config, "--from", "2026-10-05T09", "--to", "2026-10-05T11"}
			mustCLI(t, dsn, read...)
			const before = "prod|n1|09\nprod|n1|10\nprod|n2|09\nprod|n2|10"
			if got := one(t, dsn, currentNodes); got != before {
				t.Fatalf("first read:\n%s", got)
			}
			if got := charged(); got != "prod|no_telemetry||2\nprod|pod|p-n2|4" {
				t.Errorf("first charged:\n%s", got)
			}
			spells := one(t, dsn, nodeSpells)
			write(t, config, "clusters: ["+strings.Join(clusters, ", ")+"]\n"+bills)
			code, _, errs := cli(t, dsn, read...)
			if code != exitFailed || !strings.Contains(errs, "2 node-hours would lose measured time, the first being n2 at 2026-10-05T09:00:00Z (3600.0 device-seconds stored, 0.0 read now)") {
				t.Errorf("exit %d: %s", code, errs)
			}
			if got := one(t, dsn, currentNodes) + one(t, dsn, nodeSpells); got != before+spells {
				t.Errorf("a refused re-read changed something:\n%s", got)
			}
			code, _, errs = cli(t, dsn, append(read, "--allow-less")...)
			if clusters[0] == other { // it is refused while prod has the machine, and prod gives it up then
				if code != exitFailed || !strings.Contains(errs, "machine i-n2 is a node of cluster") {
					t.Errorf("exit %d: %s", code, errs)
				}
				code, _, errs = cli(t, dsn, read...)
			}
			if code != 0 {
				t.Errorf("exit %d: %s", code, errs)
			}
			if got := one(t, dsn, currentNodes); got != "other|n2|09\nother|n2|10\nprod|n1|09\nprod|n1|10" {
				t.Errorf("after:\n%s", got)
			}
			if got := one(t, dsn, nodeSpells); got != "other|n2|09:00|11:00\nprod|n1|09:00|11:00" {
				t.Errorf("spells before:\n%s\nafter:\n%s", spells, got)
			}
			if got := one(t, dsn, seenOf); got != "0|0" {
				t.Errorf("devices and pods of the node that went: %s", got)
			}
			if got := charged(); got != "other|no_telemetry||2\nother|pod|p-n2|4" {
				t.Errorf("charged after:\n%s", got)
			}
			mustCLI(t, dsn, read...)
			if got := one(t, dsn, "SELECT count(*) FROM gpuledger.sample_load"); got != "3" {
				t.Errorf("%s loads, a rerun wrote something", got)
			}
		})
	}
}

// A node whose provider id becomes known only by a later read is the same node: nothing
// is lost by it, and its hours are there once.
func TestRereadLearnsTheProviderID(t *testing.T) {
	dsn, dir := pgtest.New(t, migrate), t.TempDir()
	whole := fleetHours("n1", 1000, []int{9, 10})
	metrics, config := filepath.Join(dir, "m.om"), filepath.Join(dir, "gpuledger.yaml")
	writeOpenMetrics(t, metrics, whole[1:]) // without kube_node_info
	write(t, config, "clusters: [{name: prod, metrics: {type: openmetrics, path: m.om}}]\n")
	read := []string{"ingest", "samples", "--config", config, "--from", "2026-10-05T09", "--to", "2026-10-05T11"}
	const machines = "SELECT n.instance_id, to_char(h.hour AT TIME ZONE 'UTC', 'HH24'), h.measured_us FROM gpuledger.node_hour h JOIN gpuledger.node n ON n.id = h.node_id WHERE h.superseded_by IS NULL ORDER BY 1, 2"
	mustCLI(t, dsn, read...)
	if got := one(t, dsn, machines); got != "|09|3600000000\n|10|3600000000" {
		t.Fatalf("first read:\n%s", got)
	}
	writeOpenMetrics(t, metrics, whole)
	mustCLI(t, dsn, read...)
	if got := one(t, dsn, machines); got != "i-n1|09|3600000000\ni-n1|10|3600000000" {
		t.Errorf("read again:\n%s", got)
	}
	if got := one(t, dsn, nodeSpells); got != "prod|n1|09:00|11:00" {
		t.Errorf("spells:\n%s", got)
	}
}

// An hour of which a source has nothing says nothing of its nodes: what it forgot stays.
func TestRereadOfAForgottenHour(t *testing.T) {
	dsn, dir := pgtest.New(t, migrate), t.TempDir()
	metrics, config := filepath.Join(dir, "m.om"), filepath.Join(dir, "gpuledger.yaml")
	writeOpenMetrics(t, metrics, fleetHours("n1", 1000, []int{6, 12}))
	write(t, config, "clusters: [{name: prod, metrics: {type: openmetrics, path: m.om}}]\n")
	read := []string{"ingest", "samples", "--config", config, "--from", "2026-10-05T06", "--to", "2026-10-05T13"}
	mustCLI(t, dsn, read...)
	before := one(t, dsn, currentNodes) + "\n" + one(t, dsn, nodeSpells)
	if !strings.HasPrefix(before, "prod|n1|06\n") {
		t.Fatalf("first read:\n%s", before)
	}
	writeOpenMetrics(t, metrics, fleetHours("n1", 1000, []int{12}))
	mustCLI(t, dsn, read...)
	if after := one(t, dsn, currentNodes) + "\n" + one(t, dsn, nodeSpells); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}
