package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gpuledger/gpu"
	"gpuledger/internal/pgtest"
	"gpuledger/internal/promtest"
)

// A good cluster from a file and from each Prometheus by each driver: nothing to say
// against it, and the same of its nodes. Nodes that are alike are in one line.
func TestDoctorFindsNothing(t *testing.T) {
	dsn := pgtest.New(t, migrate)
	check := func(t *testing.T, metrics, how string) {
		t.Helper()
		w := healthy()
		w.config = strings.Replace(w.config, "{type: openmetrics, path: m.om}", metrics, 1)
		code, found, text := w.examine(t, dsn)
		for _, f := range found {
			if f.result != fine && !strings.Contains(f.what, "holds the last") {
				t.Errorf("%+v", f)
			}
		}
		for _, want := range []string{
			"ok telemetry prod: " + how,
			"looked at 5 of 5 GPU nodes with 8 GPUs, 2026-10-05T12:00:00Z",
			"ok node prod: n1, n2, n3: 1 × L4, exclusive",
			"ok node prod: n4: 4 × L4, exclusive",
			"ok node prod: n5: 1 × A10G, time_slicing of 4",
			"ok exporter prod: n1, n2, n3, n4: dcgm (4.6.0-4.8.3 or newer, memory in MiB, pods by UID, driver 550.54.15)",
			"ok exporter prod: n5: dcgm (4.6.0-4.8.3 or newer, memory in MiB, pods by UID, client slots with each pod's own figure, driver 550.54.15)",
			"ok bytes prod: n1, n2, n3, n4: sole_holder",
			"ok bytes prod: n5: process_uid",
			"ok kube prod: kube-state-metrics has 8 of 8 families",
			"ok owners prod: 6 pods with GPUs, each with an owner",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is not in\n%s", want, text)
			}
		}
		if code != 0 {
			t.Errorf("exit %d\n%s", code, text)
		}
	}
	check(t, "{type: openmetrics, path: m.om}", "openmetrics holds 2026-10-05 10:40 to 2026-10-05 12:39")
	promtest.Each(t, func(t *testing.T, server promtest.Server) {
		u := server.Start(t, healthy().series)
		check(t, fmt.Sprintf("{type: prometheus, url: %q}", u), "remote_read ")
		check(t, fmt.Sprintf("{type: prometheus, url: %q, driver: query}", u), "query ")
	})
}

// By a real Prometheus: how the driver was chosen, a store that has fallen behind, and
// faults of nodes as from a file.
func TestDoctorOfPrometheus(t *testing.T) {
	dsn := pgtest.New(t, migrate)
	w := healthy()
	w.without("DCGM", "UUID", "GPU-n4-2")
	w.unlabel("kube_node_info", "n3", "provider_id")
	server := promtest.Start(t, w.series)
	w.config = strings.Replace(w.config, "{type: openmetrics, path: m.om}", fmt.Sprintf("{type: prometheus, url: %q}", server), 1)
	w.now = doctorNow.Add(50 * time.Minute)
	code, _, text := w.examine(t, dsn)
	for _, want := range []string{
		"(found by asking) holds 2026-10-05 10:40 to 2026-10-05 12:39: remote read at ", "its newest sample is 50m old: hours are read 10m after", "holds the last 2h50m only",
		"n4: 1 GPU of 4 without series: number 2", "n3: no provider id",
	} {
		if code != exitIncomplete || !strings.Contains(text, want) {
			t.Errorf("exit %d, no %q in\n%s", code, want, text)
		}
	}
}

func TestRough(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 42400 * time.Millisecond: "42s", time.Minute: "1m", 20*time.Minute + time.Second: "20m", 3 * time.Hour: "3h",
		47*time.Hour + 10*time.Minute: "47h10m", 48 * time.Hour: "2 days", 1343*time.Hour + 51*time.Minute: "56 days",
	} {
		if got := rough(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

// Odd nodes are named with what is odd: an exporter in the middle of an upgrade, another
// exporter, another driver.
func TestDoctorTellsExporters(t *testing.T) {
	w := healthy()
	w.edit(func(s *gpu.Series) bool {
		if !strings.HasPrefix(s.Metric, "DCGM") {
			return true
		}
		switch s.Labels["node"] {
		case "n1":
			delete(s.Labels, "DCGM_FI_DRIVER_VERSION")
			s.Labels["DCGM_FI_SYSTEM_DRIVER_VERSION"] = "580.1"
			if strings.Contains(s.Metric, "_FB_") {
				s.Metric += "_BYTES"
				for k := range s.Samples {
					s.Samples[k].Value *= 1 << 20
				}
			}
		case "n2":
			delete(s.Labels, "hostname")
			delete(s.Labels, "pod_uid")
			delete(s.Labels, "pci_bus_id")
			s.Labels["Hostname"] = "n2"
		case "n3":
			return false
		}
		return true
	})
	for metric, v := range map[string]float64{"nvidia_smi_memory_used_bytes": 1 << 30, "nvidia_smi_memory_total_bytes": 24 << 30} {
		w.add(metric, v, "uuid", "11111111-2222-3333-4444-555555555555", "node", "n3")
	}
	w.add("nvidia_smi_gpu_info", 1, "uuid", "11111111-2222-3333-4444-555555555555", "name", "NVIDIA L4", "driver_version", "535.1", "node", "n3")
	_, _, text := w.examine(t, pgtest.New(t, migrate))
	for _, want := range []string{
		"n1: dcgm (4.9 or newer, memory in bytes, pods by UID, driver 580.1)",
		"n2: dcgm (older than June 2024 by its labels, memory in MiB, pods by name, driver 550.54.15)",
		"n3: nvidia-smi (memory in bytes, no pod named, driver 535.1)",
		"n4: dcgm (4.6.0-4.8.3 or newer, memory in MiB",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// Of a fleet that is too large for a look, some nodes of each kind are looked at, and the
// line says how many.
func TestDoctorLooksAtSome(t *testing.T) {
	w := healthy()
	for i := range 30 {
		n := fmt.Sprintf("many-%02d", i)
		w.node(n, "g6.xlarge", "NVIDIA-L4", 1, 1, "none")
		w.gpu(n, 0, "NVIDIA L4", "p-"+n, 6000)
		w.pod("p-"+n, n, 1)
	}
	t.Setenv("DATABASE_URL", pgtest.New(t, migrate))
	code, text := lookWith(t, &doctor{limit: time.Minute, most: 6}, w.admit(t))
	for _, want := range []string{"looked at 6 of 35 GPU nodes", "more than 6 are not looked at in one go", "n4: 4 × L4", "n5: 1 × A10G", "many-01"} {
		if code != 0 || !strings.Contains(text, want) {
			t.Errorf("exit %d, no %q in\n%s", code, want, text)
		}
	}
	if strings.Contains(text, "many-29") {
		t.Errorf("more than 6 nodes in\n%s", text)
	}
}

// lookWith runs a doctor with limits of its own.
func lookWith(t *testing.T, c *doctor, config string) (code int, text string) {
	t.Helper()
	var out, errs bytes.Buffer
	a := &app{configPath: config, logFormat: "text", output: "table", stdin: strings.NewReader(""), stdout: &out, stderr: &errs, now: func() time.Time { return doctorNow }}
	if err := a.setup(); err != nil {
		t.Fatal(err)
	}
	cfg, err := a.loadConfig()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.run(t.Context(), a, cfg); err != nil {
		code = exitCodeOf(err)
	}
	return code, out.String() + errs.String()
}

// A store that never answers, one that is too slow for its samples, and one that is well:
// doctor ends within its limit, says what was cut short, and looks at the other all the same.
func TestDoctorIsCutShort(t *testing.T) {
	w := healthy()
	server := promtest.Start(t, w.series)
	to, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	var reads atomic.Int32
	hang := func(r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then the server sees that the client is gone
		<-r.Context().Done()
	}
	slow := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/read") && reads.Add(1) > 3 { // after the probe, the newest sample and the machines
			hang(r)
			return
		}
		proxy.ServeHTTP(rw, r)
	}))
	dead := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { hang(r) }))
	t.Cleanup(slow.Close)
	t.Cleanup(dead.Close)
	w.config = strings.Replace(w.config, "clusters: [", fmt.Sprintf("clusters: [{name: slow, metrics: {type: prometheus, url: %q}}, {name: dead, metrics: {type: prometheus, url: %q}}, ", slow.URL, dead.URL), 1)
	t.Setenv("DATABASE_URL", pgtest.New(t, migrate))
	config := w.admit(t)
	code, text := lookWith(t, &doctor{limit: 15 * time.Second, most: doctorNodes}, config)
	for _, want := range []string{
		"FAILED   telemetry  slow: cut short after 15s, with 0 of 5 GPU nodes looked at",
		"FAILED   telemetry  dead: cut short after 15s, before the store had said what it is",
		"ok       bytes      prod: n5: process_uid",
	} {
		if code != exitIncomplete || !strings.Contains(text, want) {
			t.Errorf("exit %d, no %q in\n%s", code, want, text)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a := &app{stdin: strings.NewReader(""), stdout: &bytes.Buffer{}, stderr: &bytes.Buffer{}, now: func() time.Time { return doctorNow }}
	if code := a.execute(ctx, []string{"doctor", "--config", config}); code != exitFailed {
		t.Errorf("interrupted: exit %d", code)
	}
}

// Nothing is written, by a look at a full warehouse or an empty one; and of telemetry a
// database is not needed.
func TestDoctorWritesNothing(t *testing.T) {
	dsn, w := pgtest.New(t, migrate), healthy()
	config := w.admit(t)
	mustCLI(t, dsn, "ingest", "samples", "--config", config, "--period", "2026-10")
	mustCLI(t, dsn, "ingest", "bills", "--config", config)
	counts := func(dsn string) string {
		tables := one(t, dsn, "SELECT schemaname, relname FROM pg_stat_user_tables ORDER BY 1, 2")
		var out []string
		for _, line := range strings.Fields(tables) {
			schema, name, _ := strings.Cut(line, "|")
			out = append(out, line+" "+one(t, dsn, fmt.Sprintf(`SELECT count(*) FROM %q.%q`, schema, name)))
		}
		return strings.Join(out, "\n")
	}
	before := counts(dsn)
	if !strings.Contains(before, "node_hour") {
		t.Fatalf("tables: %s", before)
	}
	if code, _, text := w.examine(t, dsn); code != 0 || counts(dsn) != before {
		t.Errorf("exit %d, tables after:\n%s\nbefore:\n%s\n%s", code, counts(dsn), before, text)
	}
	empty := pgtest.New(t, migrate)
	execSQL(t, empty, "DROP SCHEMA finance CASCADE; DROP SCHEMA gpuledger CASCADE; DROP TABLE gpuledger_migration")
	code, found, text := w.examine(t, empty)
	if tables := counts(empty); code != exitIncomplete || tables != "" || !strings.Contains(text, "the database is empty: it has no schema yet") || !strings.Contains(text, "gpuledger migrate up") {
		t.Errorf("exit %d, tables %q\n%s", code, tables, text)
	}
	code, without, text := w.examine(t, "postgres://nobody@127.0.0.1:1/none?connect_timeout=2")
	if code != exitIncomplete || len(without) != len(found) || !strings.Contains(text, "ok bytes prod: n5: process_uid") || !strings.Contains(text, "FAILED database") {
		t.Errorf("exit %d\n%s", code, text)
	}
}

// Rows as csv are those of json, and the table has a line each, with its fix beneath.
func TestDoctorOutputs(t *testing.T) {
	w := healthy()
	w.without("DCGM", "node", "n2")
	dsn := pgtest.New(t, migrate)
	_, found, _ := w.examine(t, dsn)
	config := w.admit(t)
	code, out, _ := cliAt(t, dsn, w.now, "doctor", "--config", config, "--output", "csv")
	rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	if err != nil || code != exitIncomplete || len(rows) != len(found)+1 || strings.Join(rows[0], ",") != "check,subject,result,what,fix" {
		t.Errorf("exit %d, %v: %s", code, err, out)
	}
	code, out, errs := cliAt(t, dsn, w.now, "doctor", "--config", config, "--cluster", "prod")
	if code != exitIncomplete || !strings.Contains(out, "MISSING  node       prod: n2: no series of any of its 1 GPU\n         fix: see that dcgm-exporter") || !strings.Contains(errs, "1 checks need attention") {
		t.Errorf("exit %d, %s%s", code, out, errs)
	}
	if code, _, errs := cliAt(t, dsn, w.now, "doctor", "--config", config, "--cluster", "elsewhere"); code != exitUsage || !strings.Contains(errs, "elsewhere") {
		t.Errorf("exit %d, %s", code, errs)
	}
	if err := os.WriteFile(config, []byte("clusters: 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, _ := cliAt(t, dsn, w.now, "doctor", "--config", config); code != exitUsage {
		t.Errorf("a bad configuration: exit %d", code)
	}
	if code, _, _ := cliAt(t, dsn, w.now, "doctor", "--config", filepath.Join(t.TempDir(), "none.yaml")); code != exitUsage {
		t.Errorf("no configuration: exit %d", code)
	}
}
