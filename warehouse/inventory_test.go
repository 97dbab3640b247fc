package warehouse

import (
	"errors"
	"fmt"
	"math/rand"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpuledger/billing"
	"gpuledger/billing/period"
	"gpuledger/gpu"
)

// kube returns a series of an object that was there from minute a to minute b of a day.
func kube(metric string, a, b int, value float64, kv ...string) gpu.Series {
	s := gpu.Series{Metric: metric, Labels: map[string]string{}}
	for i := 0; i < len(kv); i += 2 {
		s.Labels[kv[i]] = kv[i+1]
	}
	for m := a; m < b; m++ {
		s.Samples = append(s.Samples, gpu.Sample{UnixMilli: month.Start().Add(time.Duration(m)*time.Minute + 30*time.Second).UnixMilli(), Value: value})
	}
	return s
}

// fleetDay is a day of two nodes. n1 changes its pool at 06:00 and its sharing mode at
// 10:20; a pod lives from 03:10 to 08:40; n2 is there until 14:30.
func fleetDay() (inventory, devices []gpu.Series) {
	const last = 24*60 + 15
	inventory = []gpu.Series{
		kube("kube_node_info", -15, last, 1, "node", "n1", "provider_id", "aws:///z/i-1"),
		kube("kube_node_labels", -15, 6*60, 1, "node", "n1", "label_nvidia_com_gpu_count", "1", "label_node_pool", "blue", "label_nvidia_com_gpu_replicas", "1", "label_nvidia_com_gpu_sharing_strategy", "none"),
		kube("kube_node_labels", 6*60, 10*60+20, 1, "node", "n1", "label_nvidia_com_gpu_count", "1", "label_node_pool", "green", "label_nvidia_com_gpu_replicas", "1", "label_nvidia_com_gpu_sharing_strategy", "none"),
		kube("kube_node_labels", 10*60+20, last, 1, "node", "n1", "label_nvidia_com_gpu_count", "1", "label_node_pool", "green", "label_nvidia_com_gpu_replicas", "4", "label_nvidia_com_gpu_sharing_strategy", "time-slicing"),
		kube("kube_node_info", -15, 14*60+30, 1, "node", "n2", "provider_id", "aws:///z/i-2"),
		kube("kube_node_labels", -15, 14*60+30, 1, "node", "n2", "label_nvidia_com_gpu_count", "1", "label_node_pool", "blue", "label_nvidia_com_gpu_replicas", "1", "label_nvidia_com_gpu_sharing_strategy", "none"),
		kube("kube_pod_info", 3*60+10, 8*60+40, 1, "namespace", "ml", "pod", "a", "uid", "uid-a", "node", "n1"),
		kube("kube_pod_start_time", 3*60+10, 8*60+40, float64(month.Start().Add(190*time.Minute).Unix()), "namespace", "ml", "pod", "a", "uid", "uid-a"),
		kube("kube_pod_labels", 3*60+10, 8*60+40, 1, "namespace", "ml", "pod", "a", "uid", "uid-a", "label_app", "ranking"),
		kube("kube_pod_container_resource_requests", 3*60+10, 8*60+40, 1, "namespace", "ml", "pod", "a", "uid", "uid-a", "node", "n1", "container", "c", "resource", "nvidia_com_gpu", "unit", "integer"),
	}
	for node, end := range map[string]int{"n1": last, "n2": 14*60 + 30} {
		for _, m := range []string{"DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"} {
			devices = append(devices, kube(m, -15, end, 4000, "UUID", "GPU-"+node, "modelName", "NVIDIA L4", "Hostname", node))
		}
	}
	return inventory, devices
}

func clipped(in []gpu.Series, s period.Span) []gpu.Series {
	var out []gpu.Series
	for _, x := range in {
		y := gpu.Series{Metric: x.Metric, Labels: x.Labels}
		for _, p := range x.Samples {
			if p.UnixMilli >= s.Start.UnixMilli() && p.UnixMilli < s.End.UnixMilli() {
				y.Samples = append(y.Samples, p)
			}
		}
		if len(y.Samples) > 0 {
			y.Prepare()
			out = append(out, y)
		}
	}
	return out
}

func foldedDay() []gpu.ClusterHour {
	inventory, devices := fleetDay()
	var out []gpu.ClusterHour
	for h := range 24 {
		hour := month.Start().Add(time.Duration(h) * time.Hour)
		around := period.Hour(hour).Grow(gpu.Neighbourhood)
		out = append(out, gpu.FoldHour(clipped(inventory, around), clipped(devices, around), hour, gpu.Settings{}))
	}
	return out
}

func saveInTest(t *testing.T, db *DB, cluster, name string, hours []gpu.ClusterHour) {
	t.Helper()
	load := SampleLoad{Cluster: cluster, ClusterName: name, Span: period.Span{Start: hours[0].Hour, End: hours[len(hours)-1].Hour.Add(time.Hour)}, Driver: "test", Started: month.Start()}
	if _, err := db.SaveHours(t.Context(), load, hours); err != nil {
		t.Fatal(err)
	}
}

const everyRange = `SELECT 'node', n.name, t.valid::text, t.pool || t.labels::text || t.gpu_capacity::text FROM gpuledger.node_state t JOIN gpuledger.node n ON n.id = t.node_id
	UNION ALL SELECT 'device', d.uuid, t.valid::text, '' FROM gpuledger.device_seen t JOIN gpuledger.device d ON d.id = t.device_id
	UNION ALL SELECT 'part', d.uuid || p.profile, t.valid::text, t.mode || t.slots FROM gpuledger.partition_mode t JOIN gpuledger.gpu_partition p ON p.id = t.partition_id JOIN gpuledger.device d ON d.id = p.device_id
	UNION ALL SELECT 'pod', p.uid, t.valid::text, n.name || coalesce(p.started_at::text, '') FROM gpuledger.pod_seen t JOIN gpuledger.pod p ON p.id = t.pod_id JOIN gpuledger.node n ON n.id = t.node_id
	UNION ALL SELECT 'name', name, valid::text, '' FROM gpuledger.cluster_name
	ORDER BY 1, 2, 3`

// What was where, to the minute where the inventory says it; the mode is that of the
// hour's longest part.
func TestInventoryRanges(t *testing.T) {
	db := testDB(t)
	saveInTest(t, db, "c", "c", foldedDay())
	day := month.Start().Format("2006-01-02")
	next := month.Start().AddDate(0, 0, 1).Format("2006-01-02")
	got := db.text(t, `SELECT 'node', n.name, t.valid::text, t.pool, t.labels ->> 'nvidia_com_gpu_replicas' FROM gpuledger.node_state t JOIN gpuledger.node n ON n.id = t.node_id
		UNION ALL SELECT 'part', d.uuid, t.valid::text, t.mode, t.slots::text FROM gpuledger.partition_mode t JOIN gpuledger.gpu_partition p ON p.id = t.partition_id JOIN gpuledger.device d ON d.id = p.device_id
		UNION ALL SELECT 'pod', p.uid, t.valid::text, n.name, p.labels::text FROM gpuledger.pod_seen t JOIN gpuledger.pod p ON p.id = t.pod_id JOIN gpuledger.node n ON n.id = t.node_id ORDER BY 1, 2, 3`)
	want := strings.NewReplacer("D", day, "N", next).Replace(`node|n1|["D 00:00:00+00","D 06:00:00+00")|blue|1
node|n1|["D 06:00:00+00","D 10:00:00+00")|green|1
node|n1|["D 10:00:00+00","N 00:00:00+00")|green|4
node|n2|["D 00:00:00+00","D 14:30:00+00")|blue|1
part|GPU-n1|["D 00:00:00+00","D 10:00:00+00")|exclusive|1
part|GPU-n1|["D 10:00:00+00","N 00:00:00+00")|time_slicing|4
part|GPU-n2|["D 00:00:00+00","D 15:00:00+00")|exclusive|1
pod|uid-a|["D 03:10:00+00","D 08:40:00+00")|n1|{"app": "ranking"}`)
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Hours in any order, in pieces of any size and some of them twice give the ranges that
// the whole day in order gives; and the day again writes nothing.
func TestInventoryDoesNotDependOnOrder(t *testing.T) {
	hours := foldedDay()
	whole := testDB(t)
	saveInTest(t, whole, "c", "c", hours)
	want := whole.text(t, everyRange)
	const written = `SELECT (SELECT array_agg(xmin::text || ctid::text) FROM gpuledger.node_state), (SELECT array_agg(xmin::text || ctid::text) FROM gpuledger.device_seen),
		(SELECT array_agg(xmin::text || ctid::text) FROM gpuledger.partition_mode), (SELECT array_agg(xmin::text || ctid::text) FROM gpuledger.pod_seen),
		(SELECT array_agg(xmin::text || ctid::text) FROM gpuledger.pod), (SELECT array_agg(xmin::text || ctid::text) FROM gpuledger.cluster_named), (SELECT array_agg(xmin::text || ctid::text) FROM gpuledger.cluster_name)`
	before := whole.text(t, written)
	saveInTest(t, whole, "c", "c", hours)
	if after := whole.text(t, written); after != before {
		t.Error("the same day again wrote something")
	}
	db := testDB(t)
	for seed := range int64(15) {
		r := rand.New(rand.NewSource(seed))
		emptyInputs(t, db)
		var pieces [][2]int
		for at := 0; at < len(hours); {
			n := min(1+r.Intn(9), len(hours)-at)
			pieces = append(pieces, [2]int{at, at + n})
			at += n
		}
		pieces = append(pieces, pieces[r.Intn(len(pieces))])
		r.Shuffle(len(pieces), func(i, j int) { pieces[i], pieces[j] = pieces[j], pieces[i] })
		for _, p := range pieces {
			saveInTest(t, db, "c", "c", hours[p[0]:p[1]])
		}
		if got := db.text(t, everyRange); got != want {
			t.Fatalf("seed %d, pieces %v: got\n%s\nwant\n%s", seed, pieces, got, want)
		}
	}
}

// emptyInputs forgets what was loaded of samples.
func emptyInputs(t *testing.T, db *DB) {
	t.Helper()
	db.exec(t, `TRUNCATE gpuledger.node_state, gpuledger.device_seen, gpuledger.partition_mode, gpuledger.pod_seen, gpuledger.cluster_named, gpuledger.cluster_name,
		gpuledger.node_hour, gpuledger.cluster_hour, gpuledger.pod, gpuledger.node, gpuledger.device, gpuledger.gpu_partition CASCADE`)
}

// Spells against a plain array of instants.
func TestSpells(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		var plain [40]string
		s := spells{}
		at := func(i int) time.Time { return month.Start().Add(time.Duration(i) * time.Minute) }
		for range rapid.IntRange(0, 15).Draw(r, "steps") {
			a := rapid.IntRange(0, 39).Draw(r, "from")
			b := rapid.IntRange(a, 40).Draw(r, "to")
			st := rapid.SampledFrom([]string{"", "x", "y"}).Draw(r, "state")
			if st == "" {
				s.cut(1, at(a), at(b))
			} else {
				s.put(1, spell{at(a), at(b), st})
			}
			for i := a; i < b; i++ {
				plain[i] = st
			}
		}
		var want []spell
		for i, st := range plain {
			switch n := len(want); {
			case st == "":
			case n > 0 && want[n-1].state == st && want[n-1].end.Equal(at(i)):
				want[n-1].end = at(i + 1)
			default:
				want = append(want, spell{at(i), at(i + 1), st})
			}
		}
		if got := join(s[1]); fmt.Sprint(got) != fmt.Sprint(want) {
			r.Fatalf("got %v, want %v", got, want)
		}
	})
}

// One machine in two clusters at once is refused with both names, and nothing of it is
// stored; a machine may go from one to the other within an hour.
func TestMachineInTwoClusters(t *testing.T) {
	db := testDB(t)
	hours := func(node string, a, b int) []gpu.ClusterHour {
		inventory := []gpu.Series{
			kube("kube_node_info", a, b, 1, "node", node, "provider_id", "aws:///z/i-77"), kube("kube_node_labels", a, b, 1, "node", node, "label_nvidia_com_gpu_count", "1"),
			kube("kube_node_info", -15, 200, 1, "node", "cpu-"+node, "provider_id", "aws:///z/i-cpu-"+node),
		}
		var out []gpu.ClusterHour
		for h := a / 60; h*60 < b; h++ {
			hour := month.Start().Add(time.Duration(h) * time.Hour)
			out = append(out, gpu.FoldHour(clipped(inventory, period.Hour(hour).Grow(gpu.Neighbourhood)), nil, hour, gpu.Settings{}))
		}
		return out
	}
	saveInTest(t, db, "east", "prod-east", hours("a", 0, 80))
	counts := "SELECT (SELECT count(*) FROM gpuledger.node_hour), (SELECT count(*) FROM gpuledger.node), (SELECT count(*) FROM gpuledger.node_state), (SELECT count(*) FROM gpuledger.cluster), (SELECT count(*) FROM gpuledger.sample_load)"
	before := db.text(t, counts)
	late := hours("b", 60, 120)
	_, err := db.SaveHours(t.Context(), SampleLoad{Cluster: "west", ClusterName: "prod-west", Span: period.Hour(late[0].Hour), Started: month.Start()}, late)
	var two *TwoClustersError
	if !errors.As(err, &two) {
		t.Fatalf("%v", err)
	}
	for _, s := range []string{"prod-east", "prod-west", "i-77", "nothing was loaded"} {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q is not in %v", s, err)
		}
	}
	if after := db.text(t, counts); after != before {
		t.Errorf("stored %s, before %s", after, before)
	}
	saveInTest(t, db, "west", "prod-west", hours("b", 84, 120)) // from 01:24, after 01:20
	// Each of the two hours' lines is of the cluster that had the machine longer.
	got := db.text(t, "SELECT n.name, t.valid FROM gpuledger.node n JOIN gpuledger.node_state t ON t.node_id = n.id ORDER BY 1")
	if !strings.Contains(got, "a|") || !strings.Contains(got, "b|") {
		t.Errorf("%s", got)
	}
}

// Half a month under one name and half under another, loaded in any order, with holes:
// each name from its first hour on, whatever is loaded after it.
func TestClusterNames(t *testing.T) {
	hour := func(day int) []gpu.ClusterHour {
		at := month.Start().AddDate(0, 0, day)
		return []gpu.ClusterHour{{Hour: at, CoveredMicros: 3_600_000_000, Inventory: gpu.NewInventory(nil, gpu.Settings{}, period.Hour(at))}}
	}
	loads := []struct {
		day  int
		name string
	}{{1, "old"}, {5, "old"}, {16, "new"}, {20, "new"}, {12, "old"}}
	from := month.Start().AddDate(0, 0, 16).Format("2006-01-02 15:04:05+00")
	want := fmt.Sprintf("old|(,%q)\nnew|[%q,)", from, from)
	db := testDB(t)
	for seed := range int64(20) {
		emptyInputs(t, db)
		r := rand.New(rand.NewSource(seed))
		r.Shuffle(len(loads), func(i, j int) { loads[i], loads[j] = loads[j], loads[i] })
		for _, l := range loads {
			saveInTest(t, db, "c", l.name, hour(l.day))
		}
		saveInTest(t, db, "c", "new", hour(5)) // the hour was read under its name
		if got := db.text(t, "SELECT name, valid FROM gpuledger.cluster_name ORDER BY upper(valid) NULLS LAST"); got != want {
			t.Fatalf("order %v: got\n%s\nwant\n%s", loads, got, want)
		}
	}
}

// An hour without telemetry has the pool that the node had then, not the one it has
// now; a backfill of older hours does not bring the old pool back.
func TestHourWithoutTelemetryHasItsPool(t *testing.T) {
	db := testDB(t)
	day := foldedDay()
	saveInTest(t, db, "c", "c", day[4:12])
	saveInTest(t, db, "c", "c", day[13:24])
	saveInTest(t, db, "c", "c", day[0:3]) // older, and last
	if _, err := load(t, db, 1, &memoryReader{lines: []billing.Line{gpuLine("i-1", 3, "1"), gpuLine("i-1", 12, "1"), gpuLine("i-1", 30, "1")}}); err != nil {
		t.Fatal(err)
	}
	allocateTest(t, db)
	got := db.text(t, "SELECT extract(hour FROM charge_start)::int + 24 * (extract(day FROM charge_start)::int - 1), category, node_pool FROM finance.allocation ORDER BY 1")
	if want := "3|no_telemetry|blue\n12|no_telemetry|green\n30|no_telemetry|green"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := db.text(t, "SELECT pool FROM gpuledger.node WHERE name = 'n1'"); got != "green" {
		t.Errorf("the node is now in pool %q", got)
	}
}

// A warehouse of the version before gets ranges from the hours it has, by whole hours and
// without labels; the hours read again bring the rest, and are no new versions.
func TestInventoryOfOlderWarehouse(t *testing.T) {
	db := testDB(t)
	hours := foldedDay()
	saveInTest(t, db, "c", "c", hours)
	want := db.text(t, everyRange)
	versions := db.text(t, "SELECT count(*), count(superseded_by) FROM gpuledger.node_hour")
	for undone := ""; !strings.Contains(undone, "00004"); { // to before the inventory
		var err error
		if undone, err = db.MigrateDown(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	day, next := month.Start().Format("2006-01-02"), month.Start().AddDate(0, 0, 1).Format("2006-01-02")
	got := db.text(t, `SELECT 'node', n.name, t.valid::text, t.pool FROM gpuledger.node_state t JOIN gpuledger.node n ON n.id = t.node_id
		UNION ALL SELECT 'part', d.uuid, t.valid::text, t.mode FROM gpuledger.partition_mode t JOIN gpuledger.gpu_partition p ON p.id = t.partition_id JOIN gpuledger.device d ON d.id = p.device_id
		UNION ALL SELECT 'device', d.uuid, t.valid::text, '' FROM gpuledger.device_seen t JOIN gpuledger.device d ON d.id = t.device_id
		UNION ALL SELECT 'pod', p.uid, t.valid::text, n.name FROM gpuledger.pod_seen t JOIN gpuledger.pod p ON p.id = t.pod_id JOIN gpuledger.node n ON n.id = t.node_id
		UNION ALL SELECT 'name', name, valid::text, '' FROM gpuledger.cluster_named ORDER BY 1, 2, 3`)
	older := strings.NewReplacer("D", day, "N", next).Replace(`device|GPU-n1|["D 00:00:00+00","N 00:00:00+00")|
device|GPU-n2|["D 00:00:00+00","D 15:00:00+00")|
name|c|["D 00:00:00+00","N 00:00:00+00")|
node|n1|["D 00:00:00+00","D 06:00:00+00")|blue
node|n1|["D 06:00:00+00","N 00:00:00+00")|green
node|n2|["D 00:00:00+00","D 15:00:00+00")|blue
part|GPU-n1|["D 00:00:00+00","D 10:00:00+00")|exclusive
part|GPU-n1|["D 10:00:00+00","N 00:00:00+00")|time_slicing
part|GPU-n2|["D 00:00:00+00","D 15:00:00+00")|exclusive
pod|uid-a|["D 03:10:00+00","D 08:40:00+00")|n1`)
	if got != older {
		t.Errorf("from the hours: got\n%s\nwant\n%s", got, older)
	}
	saveInTest(t, db, "c", "c", hours)
	if got := db.text(t, everyRange); got != want {
		t.Errorf("read again: got\n%s\nwant\n%s", got, want)
	}
	if got := db.text(t, "SELECT count(*), count(superseded_by) FROM gpuledger.node_hour"); got != versions {
		t.Errorf("versions %s, before %s", got, versions)
	}
}
