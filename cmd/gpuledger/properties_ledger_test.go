package main

import (
	"fmt"
	"maps"
	"math/big"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"gpuledger/gpu"
	"gpuledger/internal/anyfleet"
)

// P13 to P15, P18 and P19, about the ledger as a whole.

// P13 aggregation: whatever the charges are added up by, they are the month's, and a
// team's pods are the team's: rows, days, months and the export.
func TestP13Aggregation(t *testing.T) {
	for seed := range seeds {
		m := drawMonth(20+seed, anyFleets, anyPolicy)
		dsn, _ := m.run(t)
		costs := func(from, by string) map[string][]*big.Rat {
			return ledger(t, dsn, fmt.Sprintf("SELECT %s, sum(billed_cost), sum(effective_cost), sum(list_cost), sum(gpu_hours) FROM %s GROUP BY %s", by, from, by), 4)
		}
		total := costs("finance.allocation", "period")
		if len(total) != 1 {
			t.Fatalf("%v", total)
		}
		for _, by := range []string{"team", "team, cost_center", "namespace", "category", "gpu_model", "team, category, namespace, gpu_model"} {
			rows := costs("finance.allocation", by)
			for _, view := range []string{"finance.chargeback_day", "finance.chargeback_month", fmt.Sprintf("(SELECT %s, pod_uid, sum(billed_cost) AS billed_cost, sum(effective_cost) AS effective_cost, sum(list_cost) AS list_cost, sum(gpu_hours) AS gpu_hours FROM finance.allocation GROUP BY %s, pod_uid) x", by, by)} {
				compareCharges(t, rows, costs(view, by), new(big.Rat), fmt.Sprintf("seed %d, %s by %s", 20+seed, view, by))
			}
			compareCharges(t, total, addUp(rows, slices.Collect(maps.Keys(total))[0]), new(big.Rat), "in all by "+by)
			exported := map[string][]*big.Rat{}
			names := strings.Split(strings.ReplaceAll(by, " ", ""), ",")
			records := strings.Split(strings.TrimSpace(mustCLI(t, dsn, "export", "--period", "2026-10", "--by", strings.Join(names, ","))), "\n")
			header := strings.Split(records[0], ",")
			for _, record := range records[1:] {
				cell := map[string]string{}
				for i, v := range strings.Split(record, ",") {
					cell[header[i]] = v
				}
				var k []string
				for _, n := range names {
					k = append(k, cell[n])
				}
				var values []*big.Rat
				for _, c := range []string{"billed_cost", "effective_cost", "list_cost", "gpu_hours"} {
					v, ok := new(big.Rat).SetString(cell[c])
					if !ok {
						v = new(big.Rat)
					}
					values = append(values, v)
				}
				exported[strings.Join(k, "|")] = values
			}
			compareCharges(t, rows, exported, new(big.Rat), fmt.Sprintf("seed %d, exported by %s", 20+seed, by))
		}
	}
}

func addUp(rows map[string][]*big.Rat, as string) map[string][]*big.Rat {
	var sum []*big.Rat
	for _, r := range rows {
		for i, v := range r {
			if i == len(sum) {
				sum = append(sum, new(big.Rat))
			}
			sum[i].Add(sum[i], v)
		}
	}
	return map[string][]*big.Rat{as: sum}
}

// P14 determinism: the same inputs are the same ledger, to the byte, whatever the order
// in which they are told and however many days are computed at once.
func TestP14Determinism(t *testing.T) {
	for seed := range seeds {
		m := drawMonth(30+seed, anyFleets, anyPolicy)
		dsn, _ := m.run(t)
		want := one(t, dsn, everyCharge)
		for _, c := range []struct {
			name    string
			shuffle func(*rand.Rand, *anyMonth)
		}{
			{"rows of the bill", func(r *rand.Rand, m *anyMonth) {
				m.bill = slices.Clone(m.bill)
				r.Shuffle(len(m.bill), func(i, j int) { m.bill[i], m.bill[j] = m.bill[j], m.bill[i] })
			}},
			{"metric files", scatter},
			{"worker count", func(_ *rand.Rand, m *anyMonth) { m.workers = "1" }},
		} {
			t.Run(fmt.Sprint(c.name, " ", seed), func(t *testing.T) {
				other := *m
				c.shuffle(rand.New(rand.NewSource(int64(seed))), &other)
				dsn, _ := other.run(t)
				if got := one(t, dsn, everyCharge); got != want {
					t.Errorf("got\n%s\nwant\n%s\n%s\n%s", got, want, m.fleet, m.policy.YAML())
				}
			})
		}
	}
}

// scatter puts each series' samples into several files, cut at any time, and the series
// of a file in any order.
func scatter(r *rand.Rand, m *anyMonth) {
	files := make([][]gpu.Series, 4)
	for _, s := range m.files[0] {
		for from := 0; from < len(s.Samples); {
			to := from + 1 + r.Intn(len(s.Samples)-from)
			piece := s
			piece.Samples = s.Samples[from:to]
			k := r.Intn(len(files))
			files[k] = append(files[k], piece)
			from = to
		}
	}
	m.files = nil
	for _, f := range files {
		r.Shuffle(len(f), func(i, j int) { f[i], f[j] = f[j], f[i] })
		if len(f) > 0 {
			m.files = append(m.files, f)
		}
	}
}

// everyTable is what is in the tables: how many rows, and a hash of them. All of them but
// two, which say when a source was last asked and when a job last ended well.
const everyTable = `SELECT table_name, query_to_xml(format('SELECT count(*) AS n, sum(hashtext(x::text)::bigint) AS h FROM gpuledger.%I x', table_name), true, true, '')
	FROM information_schema.tables WHERE table_schema = 'gpuledger' AND table_type = 'BASE TABLE' AND table_name NOT IN ('source_probe', 'job_success') ORDER BY 1`

// P15 idempotence: the same again writes nothing, in any table.
func TestP15Idempotence(t *testing.T) {
	for seed := range seeds {
		m := drawMonth(40+seed, anyFleets, anyPolicy)
		dsn, config := m.run(t)
		before := one(t, dsn, everyTable)
		runMonth(t, dsn, config)
		mustCLI(t, dsn, "run", "--config", config, "--period", "2026-10", "-q")
		if after := one(t, dsn, everyTable); after != before {
			t.Errorf("seed %d: after\n%s\nbefore\n%s", 40+seed, after, before)
		}
	}
}

// P18 correction neutrality: of a restated bill, Σ (new − old) over all who are charged
// is what the bill changed by, in every metric; and who has no part of a changed line is
// charged as before.
func TestP18CorrectionNeutrality(t *testing.T) {
	for seed := range seeds {
		m := drawMonth(50+seed, anyFleets, anyfleet.PolicyOptions{Splits: splits, OnNode: true})
		m.policy.Split = strings.Replace(m.policy.Split, "price_difference", "gpu_all", 1) // which goes by the list price
		dsn, config := m.run(t)
		was, old := ledger(t, dsn, byTarget, 3), m.totals()
		r := rand.New(rand.NewSource(int64(seed)))
		changed := map[string]bool{}
		var bill []billRow
		for _, row := range m.bill {
			before := row
			switch r.Intn(4) {
			case 0:
				row.billed, row.effective = "12.3456789012", "-0.5"
			case 1:
				row.listed = "77.000000000001"
			}
			if gone := row.hours == "" && r.Intn(2) == 0; !gone { // what a node's window bills is more than a cost
				bill = append(bill, row)
			} else {
				row = billRow{}
			}
			changed[before.node] = changed[before.node] || row != before
		}
		m.bill = bill
		m.writeBill(t, config)
		runMonth(t, dsn, config)
		is, now := ledger(t, dsn, byTarget, 3), m.totals()
		var diff [3]*big.Rat
		for i := range diff {
			diff[i] = new(big.Rat)
			for _, v := range is {
				diff[i].Add(diff[i], v[i])
			}
			for _, v := range was {
				diff[i].Sub(diff[i], v[i])
			}
			if want := new(big.Rat).Sub(now[i], old[i]); diff[i].Cmp(want) != 0 {
				t.Errorf("seed %d, metric %d: Σ (new − old) is %s, and the bill changed by %s", 50+seed, i, diff[i].FloatString(24), want.FloatString(24))
			}
		}
		for _, n := range m.fleet.Nodes {
			if !changed[n.Instance] {
				of := func(all map[string][]*big.Rat) map[string][]*big.Rat {
					return selectBy(all, func(k string) bool { return strings.Split(k, "|")[2] == n.Name })
				}
				compareCharges(t, of(was), of(is), new(big.Rat), fmt.Sprintf("seed %d, node %s", 50+seed, n.Name))
			}
		}
	}
}

func selectBy(all map[string][]*big.Rat, will func(string) bool) map[string][]*big.Rat {
	out := map[string][]*big.Rat{}
	for k, v := range all {
		if will(k) {
			out[k] = v
		}
	}
	return out
}

// totals are what the bill's lines of nodes cost: billed, effective and list.
func (m *anyMonth) totals() [3]*big.Rat {
	out := [3]*big.Rat{new(big.Rat), new(big.Rat), new(big.Rat)}
	for _, r := range m.bill {
		if r.node == "" {
			continue // out of scope
		}
		for i, text := range []string{r.billed, r.effective, r.listed} {
			if v, ok := new(big.Rat).SetString(text); ok {
				out[i].Add(out[i], v)
			}
		}
	}
	return out
}

// P19 ratio sum: the ratios of what one line was split into sum to exactly one, and no
// line in scope is without any.
func TestP19RatioSum(t *testing.T) {
	for seed := range seeds {
		m := drawMonth(60+seed, anyFleets, anyPolicy)
		dsn, _ := m.run(t)
		if got := one(t, dsn, "SELECT bill_line_id, sum(ratio) FROM finance.allocation GROUP BY 1 HAVING sum(ratio) <> 1 OR min(ratio) < 0"); got != "" {
			t.Errorf("seed %d: %s", 60+seed, got)
		}
		lines := 0
		for _, r := range m.bill {
			if r.node != "" {
				lines++
			}
		}
		if got := one(t, dsn, "SELECT count(DISTINCT bill_line_id) FROM finance.allocation"); got != fmt.Sprint(lines) {
			t.Errorf("seed %d: %s lines of %d are split", 60+seed, got, lines)
		}
		for _, metric := range []string{"billed", "effective", "list"} { // and so the costs of each line
			if got := one(t, dsn, fmt.Sprintf("SELECT a.bill_line_id, sum(a.%[1]s_cost), l.%[1]s_cost FROM finance.allocation a JOIN gpuledger.bill_line l ON l.id = a.bill_line_id GROUP BY 1, 3 HAVING sum(a.%[1]s_cost) IS DISTINCT FROM l.%[1]s_cost", metric)); got != "" {
				t.Errorf("seed %d: %s", 60+seed, got)
			}
		}
	}
}
