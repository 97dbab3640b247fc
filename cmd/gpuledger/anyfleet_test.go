package main

import (
	"bytes"
	"fmt"
	"math/rand"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpuledger/gpu"
	"gpuledger/ingest/openmetrics"
	"gpuledger/internal/anyfleet"
	"gpuledger/internal/pgtest"
)

// anyMonth is a random fleet of a few nodes and hours with the files that the program
// reads of it: its metrics, a bill, a policy and owners.
type anyMonth struct {
	fleet   *anyfleet.Fleet
	policy  *anyfleet.Policy
	workers string // of allocate, "" for its own idea
	bill    []billRow
	files   [][]gpu.Series // the metrics, by file
}

// billRow is a line of a FOCUS bill. Costs have an even last digit.
type billRow struct {
	node                      string // instance, or "" of a line on no node
	category, description     string
	from, to                  int // seconds from the fleet's start
	hours                     string
	billed, effective, listed string
}

// drawMonth draws a fleet of some nodes and pods, its policy and its bill; the same seed
// is the same month.
func drawMonth(seed int, o anyfleet.Options, po anyfleet.PolicyOptions) *anyMonth {
	months := rapid.Custom(func(t *rapid.T) *anyMonth {
		f := anyfleet.Draw(t, o)
		return &anyMonth{fleet: f, policy: anyfleet.DrawPolicy(t, po)}
	}).Filter(func(m *anyMonth) bool {
		pods := 0
		for _, n := range m.fleet.Nodes {
			pods += len(n.Pods)
		}
		return len(m.fleet.Nodes) > 1 && pods > 4
	})
	m := months.Example(seed)
	r := rand.New(rand.NewSource(int64(seed)))
	cost := func(sign string) string {
		return fmt.Sprintf("%s%d.%09d%d", sign, r.Intn(100), r.Intn(1e9), 2*r.Intn(5))
	}
	hours := m.fleet.Hours
	for _, n := range m.fleet.Nodes {
		row := func(from, to int, quantity string) {
			m.bill = append(m.bill, billRow{n.Instance, "Usage", "node", from * anyfleet.Hour, to * anyfleet.Hour, quantity, cost(""), cost(""), cost("")})
		}
		switch r.Intn(3) {
		case 0: // one line
			row(0, hours, fmt.Sprint(hours))
		case 1: // by the hour, of which something is billed in part
			for hour := range hours {
				row(hour, hour+1, []string{"1", "0.5", "0.296112"}[r.Intn(3)])
			}
		default: // a reservation for half of it
			for hour := range hours {
				row(hour, hour+1, "0.5")
				row(hour, hour+1, "0.5")
			}
		}
		m.bill = append(m.bill, billRow{n.Instance, "Credit", "a credit", 0, anyfleet.Hour, "", cost("-"), cost("-"), ""})
	}
	m.bill = append(m.bill, billRow{"", "Tax", "a tax", 0, anyfleet.Hour, "", cost(""), cost(""), ""})
	inventory, devices := m.fleet.Series(-m.fleet.Past, hours)
	m.files = [][]gpu.Series{append(inventory, devices...)}
	return m
}

const billHeader = "BillingAccountId,BillingCurrency,BillingPeriodStart,BillingPeriodEnd,ChargePeriodStart,ChargePeriodEnd,ChargeCategory,ChargeDescription,ServiceName,ServiceProviderName,ResourceId,SubAccountId,ConsumedQuantity,ConsumedUnit,BilledCost,EffectiveCost,ListCost,ContractedCost\n"

func (r billRow) csv() string {
	unit := ""
	if r.hours != "" {
		unit = "Hours"
	}
	at := func(s int) string { return anyfleet.At(s).Format(time.RFC3339) }
	return strings.Join([]string{
		"111122223333", "USD", "2026-10-01T00:00:00Z", "2026-11-01T00:00:00Z", at(r.from), at(r.to), r.category, r.description,
		"Amazon Elastic Compute Cloud", "AWS", r.node, "111122223333", r.hours, unit, r.billed, r.effective, r.listed, r.billed,
	}, ",") + "\n"
}

// write lays the month out in a folder of its own and returns its configuration.
func (m *anyMonth) write(t *testing.T) (config string) {
	t.Helper()
	dir := t.TempDir()
	mkdir(t, filepath.Join(dir, "metrics"))
	for i, series := range m.files {
		var om bytes.Buffer
		if err := openmetrics.Write(&om, series); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "metrics", fmt.Sprint(i, ".om")), om.String())
	}
	write(t, filepath.Join(dir, "policy.yaml"), m.policy.YAML())
	write(t, filepath.Join(dir, "owners.yaml"), anyfleet.Owners)
	config = filepath.Join(dir, "gpuledger.yaml")
	write(t, config, "clusters: [{name: prod, metrics: {type: openmetrics, path: \"./metrics/*.om\"}}]\nbills: [{name: bill, type: focus, location: ./bill.csv}]\npolicy: policy.yaml\nowners: owners.yaml\n")
	m.writeBill(t, config)
	return config
}

func (m *anyMonth) writeBill(t *testing.T, config string) {
	t.Helper()
	text := billHeader
	for _, r := range m.bill {
		text += r.csv()
	}
	write(t, filepath.Join(filepath.Dir(config), "bill.csv"), text)
}

// run loads and allocates the month on a database of its own.
func (m *anyMonth) run(t *testing.T) (dsn, config string) {
	t.Helper()
	dsn, config = pgtest.New(t, migrate), m.write(t)
	if m.workers != "" {
		runMonth(t, dsn, config, "--workers", m.workers)
	} else {
		runMonth(t, dsn, config)
	}
	return dsn, config
}

func runMonth(t *testing.T, dsn, config string, how ...string) {
	t.Helper()
	mustCLI(t, dsn, "ingest", "samples", "--config", config, "--period", "2026-10", "-q")
	mustCLI(t, dsn, "ingest", "bills", "--config", config, "-q")
	mustCLI(t, dsn, append([]string{"allocate", "--config", config, "--period", "2026-10", "-q"}, how...)...)
	mustCLI(t, dsn, "reconcile", "--period", "2026-10")
}
