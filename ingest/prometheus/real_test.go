package prometheus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/config"

	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/ingest"
	"gpuledger/ingest/openmetrics"
	"gpuledger/ingest/prometheus"
	"gpuledger/internal/promtest"
)

var (
	day     = time.Date(2026, 10, 16, 0, 0, 0, 0, time.UTC)
	hour    = period.Hour(day.Add(13 * time.Hour))
	metrics = []string{"DCGM_FI_DEV_FB_USED", "gap", "odd:labels"}
)

// fleet is a day of samples with what goes wrong between formats: odd labels,
// gaps, stale markers, samples exactly on the boundaries of an hour.
func fleet() []gpu.Series {
	rng := rand.New(rand.NewPCG(1, 2))
	var all []gpu.Series
	for g := range 16 {
		s := gpu.Series{Metric: "DCGM_FI_DEV_FB_USED", Labels: map[string]string{
			"gpu": fmt.Sprint(g), "UUID": fmt.Sprintf("GPU-%d", g), "Hostname": fmt.Sprintf("node-%d", g/8),
		}}
		for t := day; t.Before(day.Add(24 * time.Hour)); t = t.Add(15 * time.Second) {
			at := t.UnixMilli()
			if g%2 == 1 {
				at += rng.Int64N(400)
			}
			s.Samples = append(s.Samples, gpu.Sample{UnixMilli: at, Value: float64(rng.IntN(81920))})
		}
		all = append(all, s)
	}
	gap := gpu.Series{Metric: "gap", Labels: map[string]string{"a": "1"}}
	for _, at := range []time.Duration{-1, 0, 1, 1799999, 3599998, 3599999, 3600000, 3600001} {
		gap.Samples = append(gap.Samples, gpu.Sample{UnixMilli: hour.Start.UnixMilli() + int64(at), Value: float64(at) / 3})
	}
	all = append(all, gap)
	for i, value := range []string{`quo"te`, `back\slash\n`, "new\nline", "日本 ü", " , } # { =", "~|^$.*"} {
		all = append(all, gpu.Series{Metric: "odd:labels", Labels: map[string]string{"value": value, "n": fmt.Sprint(i)}, Samples: []gpu.Sample{
			{UnixMilli: hour.Start.UnixMilli(), Value: math.Inf(1)},
			{UnixMilli: hour.Start.UnixMilli() + 15000, Value: math.Float64frombits(0x7ff0000000000002)}, // stale marker
			{UnixMilli: hour.Start.UnixMilli() + 30000, Value: math.NaN()},
			{UnixMilli: hour.Start.UnixMilli() + 45000, Value: 5e-324},
		}})
	}
	all = append(all,
		gpu.Series{Metric: "gap", Labels: map[string]string{"a": "only stale"}, Samples: []gpu.Sample{{UnixMilli: hour.Start.UnixMilli(), Value: math.NaN()}}},
		gpu.Series{Metric: "gapped", Labels: map[string]string{"a": "1"}, Samples: []gpu.Sample{{UnixMilli: hour.Start.UnixMilli(), Value: 1}}})
	return all
}

// want is what any source should say.
func want(all []gpu.Series, sel ingest.Selector, span period.Span) []gpu.Series {
	var out []gpu.Series
	for _, s := range all {
		match := slices.Contains(sel.Metrics, s.Metric)
		for name, value := range sel.Equal {
			match = match && s.Labels[name] == value
		}
		for name, values := range sel.OneOf {
			match = match && slices.Contains(values, s.Labels[name])
		}
		if !match {
			continue
		}
		var samples []gpu.Sample
		for _, x := range s.Samples {
			if x.Value == x.Value && span.Contains(time.UnixMilli(x.UnixMilli)) {
				samples = append(samples, x)
			}
		}
		if samples != nil {
			out = append(out, gpu.Series{Metric: s.Metric, Labels: s.Labels, Samples: samples})
		}
	}
	return sorted(out)
}

func sorted(all []gpu.Series) []gpu.Series {
	slices.SortFunc(all, func(a, b gpu.Series) int {
		return strings.Compare(a.Metric+fmt.Sprint(a.Labels), b.Metric+fmt.Sprint(b.Labels))
	})
	return all
}

func selectAll(t *testing.T, s ingest.Source, sel ingest.Selector, span period.Span) []gpu.Series {
	t.Helper()
	var out []gpu.Series
	if err := s.Select(context.Background(), sel, span, func(x gpu.Series) error {
		out = append(out, x)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return sorted(out)
}

func newSource(t testing.TB, cfg prometheus.Config) *prometheus.Source {
	t.Helper()
	s, err := prometheus.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSameFromServerAndFile reads the same series through every real Prometheus by
// every driver, and through an OpenMetrics file.
func TestSameFromServerAndFile(t *testing.T) {
	promtest.Each(t, testSame)
}

func testSame(t *testing.T, which promtest.Server) {
	all := fleet()
	server := which.Start(t, all)
	var text bytes.Buffer
	if err := openmetrics.Write(&text, all); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "m.om")
	if err := os.WriteFile(path, text.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	file, err := openmetrics.New(openmetrics.Config{Paths: []string{path}})
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string]ingest.Source{
		"chunks": newSource(t, prometheus.Config{URL: server}),
		"file":   file,
		// Only answers the older kind: a proxy takes the newer one off the request.
		"samples":  newSource(t, prometheus.Config{URL: samplesOnly(t, server)}),
		"query":    newSource(t, prometheus.Config{URL: server, Driver: prometheus.Query}),
		"fallback": newSource(t, prometheus.Config{URL: without(t, server, 404, "/api/v1/read")}),
	}
	milli := func(from, to time.Duration) period.Span {
		return period.Span{Start: hour.Start.Add(from), End: hour.Start.Add(to)}
	}
	for _, c := range []struct {
		name string
		sel  ingest.Selector
		span period.Span
	}{
		{"hour", ingest.Selector{Metrics: metrics}, hour},
		{"day", ingest.Selector{Metrics: metrics}, period.Span{Start: day, End: day.Add(24 * time.Hour)}},
		{"one metric", ingest.Selector{Metrics: metrics[:1]}, hour},
		{"label", ingest.Selector{Metrics: metrics, Equal: map[string]string{"Hostname": "node-1", "gpu": "9"}}, hour},
		{"absent label", ingest.Selector{Metrics: metrics, Equal: map[string]string{"gpu": "", "a": ""}}, hour},
		{"odd label", ingest.Selector{Metrics: metrics, Equal: map[string]string{"value": "new\nline"}}, hour},
		{"name is no pattern", ingest.Selector{Metrics: []string{"ga.", "gap|odd"}}, hour},
		{"first millisecond", ingest.Selector{Metrics: []string{"gap"}}, milli(0, time.Millisecond)},
		{"from between", ingest.Selector{Metrics: []string{"gap"}}, milli(time.Microsecond, time.Millisecond+time.Microsecond)},
		{"empty", ingest.Selector{Metrics: metrics}, milli(0, 0)},
		{"before", ingest.Selector{Metrics: metrics}, milli(-1000*time.Hour, -999*time.Hour)},
		{"nothing asked", ingest.Selector{}, hour},
		{"one of", ingest.Selector{Metrics: metrics, OneOf: map[string][]string{"gpu": {"3", "11", "99"}}}, hour},
		{"one of odd", ingest.Selector{Metrics: metrics, OneOf: map[string][]string{"value": {"~|^$.*", `back\slash\n`}}}, hour},
		{"one of none", ingest.Selector{Metrics: metrics, OneOf: map[string][]string{"gpu": {}}}, hour},
		{"one millisecond of one", ingest.Selector{Metrics: metrics}, milli(3599999*time.Millisecond, time.Hour)},
	} {
		expect := want(all, c.sel, c.span)
		for name, s := range sources {
			if d := cmp.Diff(expect, selectAll(t, s, c.sel, c.span)); d != "" {
				t.Errorf("%s from %s: (-want +got)\n%.2000s", c.name, name, d)
			}
			checkList(t, c.name+" from "+name, s, c.sel, c.span, expect)
		}
	}
	for name, driver := range map[string]string{"chunks": "remote_read", "query": "query", "fallback": "query", "file": "openmetrics"} {
		d, err := sources[name].Describe(context.Background())
		if err != nil || d.Driver != driver || d.Forgets != (name != "file") {
			t.Errorf("%s: %+v %v", name, d, err)
		}
		// A server built from source without a release's flags has an empty version.
		if name != "file" && (!strings.Contains(body(t, server+"/api/v1/status/buildinfo"), `"version":"`+d.Version+`"`) || !d.Oldest.Equal(day)) {
			t.Errorf("%s: %+v, want a version and oldest %v", name, d, day)
		}
	}
	stop := errors.New("enough")
	for name, s := range sources {
		n := 0
		if err := s.Select(context.Background(), ingest.Selector{Metrics: metrics}, hour, func(gpu.Series) error { n++; return stop }); err != stop || n != 1 {
			t.Errorf("%s: got %v after %d, want the callback's own error", name, err, n)
		}
		if err := s.List(context.Background(), ingest.Selector{Metrics: metrics}, hour, func(gpu.Series) error { return stop }); err != stop {
			t.Errorf("%s: got %v, want the callback's own error", name, err)
		}
	}
}

// checkList: every series with samples in the span is listed, once, and with all its
// labels. Others may be: a server lists what its blocks hold.
func checkList(t *testing.T, what string, s ingest.Source, sel ingest.Selector, span period.Span, selected []gpu.Series) {
	t.Helper()
	listed := map[string]bool{}
	if err := s.List(context.Background(), sel, span, func(x gpu.Series) error {
		key := x.Metric + fmt.Sprint(x.Labels)
		if listed[key] || len(x.Samples) > 0 || !slices.Contains(sel.Metrics, x.Metric) {
			t.Errorf("%s: lists %s %v with %d samples", what, x.Metric, x.Labels, len(x.Samples))
		}
		listed[key] = true
		return nil
	}); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	for _, x := range selected {
		if !listed[x.Metric+fmt.Sprint(x.Labels)] {
			t.Errorf("%s: does not list %s %v", what, x.Metric, x.Labels)
		}
	}
}

// without forwards to server, which seems to have none of the endpoints.
func without(t *testing.T, server string, code int, endpoints ...string) string {
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(u)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(endpoints, r.URL.Path) {
			http.Error(w, "not here", code)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	return front.URL
}

func body(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// samplesOnly forwards to server, asking for the response kind SAMPLES only.
func samplesOnly(t *testing.T, server string) string {
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(u)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		prometheus.StripStreaming(t, r)
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	return front.URL
}

// TestPrefixAndLogin reaches a server below a path, with a password and a tenant.
func TestPrefixAndLogin(t *testing.T) {
	all := fleet()
	server, err := url.Parse(promtest.Start(t, all))
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(http.StripPrefix("/team/prom", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, pass, _ := r.BasicAuth()
		if user != "me" || pass != "hush" || r.Header.Get("X-Scope-OrgID") != "tenant" {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		httputil.NewSingleHostReverseProxy(server).ServeHTTP(w, r)
	})))
	defer front.Close()
	cfg := prometheus.Config{URL: front.URL + "/team/prom/", Headers: map[string]string{"X-Scope-OrgID": "tenant"}, HTTP: config.HTTPClientConfig{
		BasicAuth: &config.BasicAuth{Username: "me", Password: "hush"},
	}}
	sel := ingest.Selector{Metrics: []string{"gap"}}
	if d := cmp.Diff(want(all, sel, hour), selectAll(t, newSource(t, cfg), sel, hour)); d != "" {
		t.Error(d)
	}
	cfg.Headers = nil
	err = newSource(t, cfg).Select(context.Background(), sel, hour, nil)
	if err == nil || !strings.Contains(err.Error(), "check the credentials") || strings.Contains(err.Error(), "hush") {
		t.Errorf("got %v", err)
	}
}
