package main

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/prompb"

	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/internal/pgtest"
	"gpuledger/internal/promtest"
)

// cliAt runs a command line at a time of the clock.
func cliAt(t *testing.T, dsn string, now time.Time, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	t.Setenv("DATABASE_URL", dsn)
	var out, errs bytes.Buffer
	a := &app{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, now: func() time.Time { return now }}
	code = a.execute(t.Context(), args)
	return code, out.String(), errs.String()
}

// slowFleet is a node with a GPU in a span, sampled every five minutes.
func slowFleet(s period.Span) []gpu.Series {
	var up, used []gpu.Sample
	for at := s.Start.Add(150 * time.Second); at.Before(s.End); at = at.Add(5 * time.Minute) {
		up = append(up, gpu.Sample{UnixMilli: at.UnixMilli(), Value: 1})
		used = append(used, gpu.Sample{UnixMilli: at.UnixMilli(), Value: 1000})
	}
	dev := []string{"UUID", "GPU-1", "modelName", "NVIDIA L4", "Hostname", "n1"}
	return []gpu.Series{
		series("kube_node_info", up, "node", "n1", "provider_id", "aws:///z/i-1"),
		series("kube_node_labels", up, "node", "n1", "label_nvidia_com_gpu_count", "1", "label_nvidia_com_gpu_replicas", "1", "label_nvidia_com_gpu_sharing_strategy", "none"),
		series("DCGM_FI_DEV_FB_USED", used, dev...), series("DCGM_FI_DEV_FB_FREE", used, dev...),
	}
}

// Twenty days down with fifteen days of retention: fifteen are loaded, oldest first, and
// five are named as lost, with exit 3, once. From then on they are in status and in the
// metrics, and runs end well.
func TestTwentyDaysDown(t *testing.T) {
	start := time.Date(2026, 9, 20, 0, 0, 0, 0, time.UTC)
	down, back := start.Add(6*time.Hour), start.Add(6*time.Hour+20*24*time.Hour)
	held := back.Add(-15 * 24 * time.Hour)
	dsn, dir := pgtest.New(t, migrate), t.TempDir()
	config, file := filepath.Join(dir, "gpuledger.yaml"), filepath.Join(dir, "gpuledger.prom")
	source := func(s period.Span) {
		write(t, config, "clusters: [{name: prod, metrics: {type: prometheus, url: \""+promtest.Start(t, slowFleet(s))+"\"}}]\nmetrics_file: gpuledger.prom\n")
	}
	source(period.Span{Start: start, End: down.Add(time.Hour)})
	if code, _, errs := cliAt(t, dsn, down.Add(10*time.Minute), "run", "--config", config); code != 0 {
		t.Fatalf("exit %d, %s", code, errs)
	}
	if text := readFile(t, file); !strings.Contains(text, "gpuledger_hours_lost{cluster=\"prod\"} 0\n") || strings.Contains(text, "seconds_left{") {
		t.Errorf("metrics before: %s", text)
	}

	source(period.Span{Start: held, End: back.Add(time.Hour)})
	now := back.Add(10 * time.Minute)
	code, _, errs := cliAt(t, dsn, now, "run", "--config", config)
	lost := "2026-09-20T06:00:00Z to 2026-09-25T06:00:00Z"
	if code != 3 || !strings.Contains(errs, "120 hours") || !strings.Contains(errs, lost) {
		t.Errorf("exit %d, %s", code, errs)
	}
	if got := one(t, dsn, "SELECT count(*), count(*) FILTER (WHERE covered_us >= 3590000000), min(hour) FILTER (WHERE hour > '2026-09-20 06:00+00') FROM gpuledger.cluster_hour WHERE superseded_by IS NULL"); got != "366|366|2026-09-25 06:00:00+00" {
		t.Errorf("hours: %s", got)
	}
	if got := one(t, dsn, "SELECT count(*) FROM (SELECT lower(span) < lag(lower(span)) OVER (ORDER BY id) AS back FROM gpuledger.sample_load) x WHERE back"); got != "0" {
		t.Errorf("%s loads go back in time", got)
	}
	code, _, errs = cliAt(t, dsn, now, "run", "--config", config)
	if code != 0 || !strings.Contains(errs, "lost, as known before") || !strings.Contains(errs, "hours=120") {
		t.Errorf("a second run: exit %d, %s", code, errs)
	}
	code, out, errs := cliAt(t, dsn, now, "status", "--config", config)
	if code != 0 || !strings.Contains(out, "2026-09-20 06:00 to 2026-09-25 06:00") {
		t.Errorf("status: exit %d, %s%s", code, out, errs)
	}
	checkMetrics(t, file)
	if text := readFile(t, file); !strings.Contains(text, "gpuledger_hours_lost{cluster=\"prod\"} 120\n") || !strings.Contains(text, "gpuledger_hours_uncovered{cluster=\"prod\"} 0\n") ||
		!strings.Contains(text, "gpuledger_last_success_timestamp_seconds ") {
		t.Errorf("metrics: %s", text)
	}
	// Two hours later nothing has run. The source held 15 days and 7.5 minutes when it was
	// asked, and the older of the two hours began 2 h 10 min ago.
	_, out, _ = cliAt(t, dsn, now.Add(2*time.Hour), "status", "--config", config, "--clusters", "--output", "csv")
	if !strings.Contains(out, "prod,366,2,120,2026-10-10T06:00:00Z,1288650,358.0,") {
		t.Errorf("status after two hours: %s", out)
	}
}

// checkMetrics has promtool read a file of metrics. It would have hours be seconds; these
// are counted.
func checkMetrics(t *testing.T, file string) {
	t.Helper()
	cmd := exec.Command("promtool", "check", "metrics")
	cmd.Stdin = strings.NewReader(readFile(t, file))
	out, err := cmd.CombinedOutput()
	var left []string
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		if line != "" && !strings.Contains(line, `use base unit "seconds" instead of "hours"`) {
			left = append(left, line)
		}
	}
	var lint *exec.ExitError
	if len(left) > 0 || err != nil && (!errors.As(err, &lint) || lint.ExitCode() != 3) { // 3: it can be read, but the names could be better
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

// dying is a store that stops answering reads after some of them, and notes their spans.
type dying struct {
	proxy *httputil.ReverseProxy
	mu    sync.Mutex
	left  int // reads until it dies; -1: never
	asked []period.Span
}

func (d *dying) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/api/v1/read") {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if s, ok := spanRead(body); ok {
			d.mu.Lock()
			dead := d.left == 0
			if d.left > 0 {
				d.left--
			}
			if !dead {
				d.asked = append(d.asked, s)
			}
			d.mu.Unlock()
			if dead {
				http.Error(w, "the store is gone", http.StatusBadRequest) // not worth another try
				return
			}
		}
	}
	d.proxy.ServeHTTP(w, r)
}

// spanRead is the span of a remote read that is no probe.
func spanRead(body []byte) (period.Span, bool) {
	raw, err := snappy.Decode(nil, body)
	if err != nil {
		return period.Span{}, false
	}
	var msg prompb.ReadRequest
	if err := msg.Unmarshal(raw); err != nil || len(msg.Queries) == 0 || msg.Queries[0].EndTimestampMs == 0 {
		return period.Span{}, false
	}
	q := msg.Queries[0]
	return period.Span{Start: time.UnixMilli(q.StartTimestampMs).UTC(), End: time.UnixMilli(q.EndTimestampMs + 1).UTC()}, true
}

// A store that dies in the middle of a month: what was stored stays, whole, and the next
// run reads none of it again.
func TestSourceDiesInTheMiddle(t *testing.T) {
	month := period.Span{Start: time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC), End: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)}
	target, err := url.Parse(promtest.Start(t, slowFleet(month)))
	if err != nil {
		t.Fatal(err)
	}
	store := &dying{proxy: httputil.NewSingleHostReverseProxy(target), left: 150}
	srv := httptest.NewServer(store)
	t.Cleanup(srv.Close)
	dsn, dir := pgtest.New(t, migrate), t.TempDir()
	config := filepath.Join(dir, "gpuledger.yaml")
	write(t, config, "clusters: [{name: prod, metrics: {type: prometheus, url: \""+srv.URL+"\"}}]\n")
	run := func() (int, string) {
		code, _, errs := cliAt(t, dsn, month.End.Add(15*time.Minute), "run", "--config", config)
		return code, errs
	}
	if code, errs := run(); code != 1 || !strings.Contains(errs, "the store is gone") || !strings.Contains(errs, "prod") {
		t.Fatalf("exit %d, %s", code, errs)
	}
	const finished = "SELECT count(*), coalesce(max(hour), 'epoch') FROM gpuledger.cluster_hour WHERE covered_us > 3500000000"
	const consistent = `SELECT (SELECT count(*) FROM gpuledger.cluster_hour h WHERE NOT EXISTS (SELECT FROM gpuledger.node_hour n WHERE n.hour = h.hour)),
		(SELECT count(*) FROM gpuledger.node_hour n WHERE NOT EXISTS (SELECT FROM gpuledger.occupancy o WHERE o.node_hour_id = n.id)), (SELECT count(*) FROM gpuledger.node_hour WHERE measured_us < present_us)`
	first := one(t, dsn, "SELECT count(*) FROM gpuledger.cluster_hour")
	if first == "0" || first == "744" {
		t.Fatalf("the store died too early or too late: %s, %s hours", one(t, dsn, finished), first)
	}
	if got := one(t, dsn, consistent); got != "0|0|0" {
		t.Errorf("half-loaded: %s", got)
	}
	var until time.Time
	if until, err = time.Parse("2006-01-02 15:04:05-07", one(t, dsn, "SELECT max(hour) + interval '1 hour' FROM gpuledger.cluster_hour")); err != nil {
		t.Fatal(err)
	}
	rows := one(t, dsn, everyOccupancy)
	store.mu.Lock()
	store.left, store.asked = -1, nil
	store.mu.Unlock()
	if code, errs := run(); code != 0 {
		t.Fatalf("the resume: exit %d, %s", code, errs)
	}
	if len(store.asked) == 0 {
		t.Error("nothing was asked for")
	}
	for _, s := range store.asked {
		if s.Start.Before(until.Add(-gpu.Neighbourhood)) {
			t.Errorf("read again: %s, though all before %s was there", s, until)
		}
	}
	if got := one(t, dsn, "SELECT count(*), count(DISTINCT hour) FROM gpuledger.cluster_hour"); got != "744|744" {
		t.Errorf("hours %s", got)
	}
	if got := one(t, dsn, everyOccupancy); !strings.HasPrefix(got, rows) {
		t.Error("what was stored has changed")
	}
	store.asked = nil
	if code, errs := run(); code != 0 || len(store.asked) > 0 {
		t.Errorf("a third run: exit %d, read %v, %s", code, store.asked, errs)
	}
}
