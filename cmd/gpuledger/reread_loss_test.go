package main

import (
	"path/filepath"
	"strings"
	"testing"

	"gpuledger/gpu"
	"gpuledger/internal/pgtest"
	"gpuledger/warehouse"
)

// inventoryOf is a fleet's series without those of its devices, and devicesOf the others.
func inventoryOf(all []gpu.Series) []gpu.Series {
	return keepSeries(all, func(name string) bool { return strings.HasPrefix(name, "kube_") })
}

func devicesOf(all []gpu.Series) []gpu.Series {
	return keepSeries(all, func(name string) bool { return !strings.HasPrefix(name, "kube_") })
}

func keepSeries(all []gpu.Series, keep func(string) bool) (out []gpu.Series) {
	for _, s := range all {
		if keep(s.Metric) {
			out = append(out, s)
		}
	}
	return out
}

func together(lists ...[]gpu.Series) (out []gpu.Series) {
	for _, l := range lists {
		out = append(out, l...)
	}
	return out
}

// What a second read would take away of an hour leaves the hour as it is, whatever is
// missing; who asks for the hours is told with the figure, and the other hours are stored.
func TestRereadThatWouldLose(t *testing.T) {
	two := together(fleetHours("n1", 1000, []int{9, 10}), fleetHours("n2", 1000, []int{9, 10}))
	otherMachine := fleetHours("n2", 1000, []int{9, 10})
	for i := range otherMachine {
		if id := otherMachine[i].Labels["provider_id"]; id != "" {
			otherMachine[i].Labels["provider_id"] = "aws:///us-east-1a/i-9"
		}
	}
	noInfo := keepSeries(fleetHours("n2", 1000, []int{9, 10}), func(name string) bool { return name != "kube_node_info" })
	for name, c := range map[string]struct {
		first, second []gpu.Series
		says          string // "": kept without a word
	}{
		"a node without any measured time": {inventoryOf(two), inventoryOf(fleetHours("n1", 1000, []int{9, 10})), "2 node-hours would lose measured time, the first being n2 at 2026-10-05T09:00:00Z (0.0 device-seconds stored, 0.0 read now), which is not there now; their 2 hours stay as they are"},
		"another machine of the name":      {two, together(fleetHours("n1", 1000, []int{9, 10}), otherMachine), "2 node-hours would lose measured time, the first being n2"},
		"the machine's id":                 {two, together(fleetHours("n1", 1000, []int{9, 10}), noInfo), "2 node-hours would lose measured time, the first being n2"},
		"the inventory":                    {two, devicesOf(two), ""},
		"everything":                       {two, fleetHours("n1", 1000, []int{20}), ""},
	} {
		t.Run(name, func(t *testing.T) {
			dsn, dir := pgtest.New(t, migrate), t.TempDir()
			metrics, config := filepath.Join(dir, "m.om"), filepath.Join(dir, "gpuledger.yaml")
			write(t, config, "clusters: [{name: prod, metrics: {type: openmetrics, path: m.om}}]\n")
			read := []string{"ingest", "samples", "--config", config, "--from", "2026-10-05T09", "--to", "2026-10-05T11"}
			const state = "SELECT n.name, n.instance_id, h.hour, h.measured_us, h.sha256 FROM gpuledger.node_hour h JOIN gpuledger.node n ON n.id = h.node_id WHERE h.superseded_by IS NULL AND h.hour < '2026-10-05T11:00:00Z' ORDER BY 1, 2, 3"
			writeOpenMetrics(t, metrics, c.first)
			mustCLI(t, dsn, read...)
			before, spells := one(t, dsn, state), one(t, dsn, nodeSpells)
			writeOpenMetrics(t, metrics, c.second)
			code, _, errs := cli(t, dsn, read...)
			if c.says == "" && code != 0 || c.says != "" && (code != exitFailed || !strings.Contains(errs, c.says)) {
				t.Errorf("exit %d: %s", code, errs)
			}
			if after := one(t, dsn, state) + one(t, dsn, nodeSpells); after != before+spells {
				t.Errorf("before\n%s\nafter\n%s", before, after)
			}
			// A night's run looks at hours that are measured in part again, and goes on.
			writeOpenMetrics(t, metrics, together(c.second, fleetHours("n1", 1000, []int{11})))
			mustCLI(t, dsn, "run", "--config", config)
			if after := one(t, dsn, state); after != before {
				t.Errorf("after the night's run\n%s\nbefore\n%s", after, before)
			}
			if got := one(t, dsn, "SELECT count(*) FROM gpuledger.node_hour WHERE hour = '2026-10-05T11:00:00Z'"); got == "0" {
				t.Error("the hour after was not read")
			}
		})
	}
}

// A hole of ten minutes in one of two replicas, twelve in the other: the better read stays,
// and the night goes on to the next hour.
func TestNightGoesOnAfterALoss(t *testing.T) {
	dsn, dir := pgtest.New(t, migrate), t.TempDir()
	metrics, config := filepath.Join(dir, "m.om"), filepath.Join(dir, "gpuledger.yaml")
	write(t, config, "clusters: [{name: prod, metrics: {type: openmetrics, path: m.om}}]\n")
	holed := func(minutes int, hours ...int) []gpu.Series {
		all := fleetHours("n1", 1000, hours)
		for i, s := range all {
			if strings.HasPrefix(s.Metric, "kube_") {
				continue
			}
			var left []gpu.Sample
			from := storyDay.UnixMilli() + 9*3_600_000 + 1_200_000
			for _, x := range s.Samples {
				if x.UnixMilli < from || x.UnixMilli >= from+int64(minutes)*60_000 {
					left = append(left, x)
				}
			}
			all[i].Samples = left
		}
		return all
	}
	const measured = "SELECT to_char(h.hour AT TIME ZONE 'UTC', 'HH24'), h.measured_us / 60000000 FROM gpuledger.node_hour h WHERE superseded_by IS NULL ORDER BY 1"
	writeOpenMetrics(t, metrics, holed(10, 9, 10))
	mustCLI(t, dsn, "run", "--config", config)
	before := one(t, dsn, measured)
	writeOpenMetrics(t, metrics, holed(12, 9, 10, 11))
	code, _, log := cli(t, dsn, "run", "--config", config)
	if code != 0 || !strings.Contains(log, "hours have less now than when they were read, and stay as they were") {
		t.Errorf("exit %d: %s", code, log)
	}
	if after := one(t, dsn, measured); after != before+"\n11|60" {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
}

// Hours of which nothing is read stay with --allow-less too, and so does all while a source
// is away; --allow-empty is for who means it.
func TestAllowLessIsNotAllowNothing(t *testing.T) {
	dsn, dir := pgtest.New(t, migrate), t.TempDir()
	config := filepath.Join(dir, "gpuledger.yaml")
	writeOpenMetrics(t, filepath.Join(dir, "m.om"), fleetHours("n1", 1000, []int{9, 12}))
	writeOpenMetrics(t, filepath.Join(dir, "less.om"), fleetHours("n2", 1000, []int{6, 12, 16}))
	writeOpenMetrics(t, filepath.Join(dir, "hole.om"), fleetHours("n2", 1000, []int{6, 16}))
	current := func() string { // edges of the others' samples reach into the hours beside them
		return one(t, dsn, strings.Replace(currentNodes, "ORDER", "AND extract(hour FROM h.hour AT TIME ZONE 'UTC') IN (9, 12) ORDER", 1))
	}
	read := func(match, fallback string, more ...string) (int, string) {
		write(t, config, "clusters: [{name: prod, metrics: {type: openmetrics, path: "+match+"}"+fallback+"}]\n")
		code, _, errs := cli(t, dsn, append([]string{"ingest", "samples", "--config", config, "--from", "2026-10-05T09", "--to", "2026-10-05T13"}, more...)...)
		return code, errs
	}
	if code, errs := read("m.om", ""); code != 0 {
		t.Fatal(errs)
	}
	const all = "prod|n1|09\nprod|n1|12"
	if _, errs := read("m.om, match: {cluster: typo}", "", "--allow-less"); current() != all || !strings.Contains(errs, "no source has anything of the span") {
		t.Errorf("nothing was read: %s\n%s", current(), errs)
	}
	dead := ", fallback: [{type: prometheus, url: \"http://127.0.0.1:1\"}]"
	if _, errs := read("less.om", dead, "--allow-less"); current() != all {
		t.Errorf("a source was away: %s\n%s", current(), errs)
	}
	if code, errs := read("less.om", "", "--allow-less"); code != 0 || current() != "prod|n1|09\nprod|n2|12" {
		t.Errorf("exit %d, %s: %s", code, current(), errs)
	}
	if !knows(t, dsn, "i-n1") || !knows(t, dsn, "i-n2") {
		t.Error("a machine is not known")
	}
	if code, errs := read("hole.om", "", "--allow-less"); code != 0 || current() != "prod|n1|09\nprod|n2|12" {
		t.Errorf("exit %d, %s: %s", code, current(), errs)
	}
	if code, errs := read("hole.om", "", "--allow-less", "--allow-empty"); code != 0 || current() != "" {
		t.Errorf("exit %d, %s: %s", code, current(), errs)
	}
	if knows(t, dsn, "i-n1") {
		t.Error("a machine that no hour shows any more is known")
	}
}

// knows reports whether bill lines of a machine are kept because a cluster shows it.
func knows(t *testing.T, dsn, machine string) bool {
	t.Helper()
	db, err := warehouse.Open(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	known, err := db.KnownInstances(t.Context(), storyDay.AddDate(1, 0, 0))
	if err != nil {
		t.Fatal(err)
	}
	return known[machine]
}

// A hole in the main store, and the fallback that may have it does not answer: that is no
// night well done, and the hour is read once it does.
func TestHoleWhileTheFallbackIsAway(t *testing.T) {
	dsn, dir := pgtest.New(t, migrate), t.TempDir()
	config := filepath.Join(dir, "gpuledger.yaml")
	writeOpenMetrics(t, filepath.Join(dir, "m.om"), fleetHours("n1", 1000, []int{9, 11}))
	writeOpenMetrics(t, filepath.Join(dir, "f.om"), fleetHours("n1", 1000, []int{9, 10, 11}))
	const main = "clusters: [{name: prod, metrics: {type: openmetrics, path: m.om}, fallback: ["
	write(t, config, main+"{type: prometheus, url: \"http://127.0.0.1:1\"}]}]\n")
	code, _, log := cli(t, dsn, "run", "--config", config)
	if code != exitFailed || !strings.Contains(log, "no month is allocated") || one(t, dsn, currentNodes) != "prod|n1|09\nprod|n1|11" {
		t.Errorf("exit %d, %s: %s", code, one(t, dsn, currentNodes), log)
	}
	write(t, config, main+"{type: openmetrics, path: f.om}]}]\n")
	mustCLI(t, dsn, "run", "--config", config)
	if got := one(t, dsn, currentNodes); got != "prod|n1|09\nprod|n1|10\nprod|n1|11" {
		t.Errorf("%s", got)
	}
}
