package prometheus_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gpuledger/gpu"
	"gpuledger/ingest"
	"gpuledger/ingest/prometheus"
)

// fake is a server of which each path answers as it is told.
type fake struct {
	paths map[string]func(http.ResponseWriter)
	mu    sync.Mutex
	asked []string
}

func (f *fake) start(t *testing.T) string {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.asked = append(f.asked, r.URL.Path)
		f.mu.Unlock()
		if answer := f.paths[r.URL.Path]; answer != nil {
			answer(w)
			return
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func selects(s *prometheus.Source) (int, error) {
	n := 0
	err := s.Select(context.Background(), ingest.Selector{Metrics: []string{"m"}}, hour, func(gpu.Series) error { n++; return nil })
	return n, err
}

// TestProbe: only a server without remote read is queried, and it is asked once.
func TestProbe(t *testing.T) {
	chunks, chunkBody := goodBody(t, prometheus.RemoteRead)
	json, jsonBody := goodBody(t, prometheus.Query)
	query := write(json, jsonBody)
	for _, c := range []struct {
		name   string
		read   func(http.ResponseWriter)
		query  func(http.ResponseWriter)
		driver string
		want   string // the error's text, "" where it works
	}{
		{"remote read", write(chunks, chunkBody), query, "remote_read", ""},
		{"404", nil, query, "query", ""},
		{"405", status(405, ""), query, "query", ""},
		{"501", status(501, ""), query, "query", ""},
		{"VictoriaMetrics", status(400, `unsupported path requested: "/api/v1/read"`), query, "query", ""},
		{"a user interface for any path", write("text/html", []byte("<html>")), query, "query", ""},
		{"401", status(401, "who"), query, "", "check the credentials"},
		{"403", status(403, "no"), query, "", "check the credentials"},
		{"down", status(503, "starting"), query, "", "starting"},
		{"400", status(400, "bad"), query, "", "400 Bad Request: bad"},
		{"a login page", write("text/html", []byte("<html>")), write("text/html", []byte("<html>")), "", "a proxy asks for a login"},
		{"neither", nil, nil, "", "neither remote read nor the query API answers"},
		{"query refused", nil, status(403, "no"), "", "check the credentials"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fake{paths: map[string]func(http.ResponseWriter){"/api/v1/read": c.read, "/api/v1/query": c.query}}
			s := newSource(t, prometheus.Config{URL: f.start(t), Driver: prometheus.Auto})
			s.SetRetryInterval(time.Millisecond)
			n, err := selects(s)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) || n > 0 {
					t.Errorf("got %v and %d series, want %q", err, n, c.want)
				}
				if c.name == "403" && slices.Contains(f.asked, "/api/v1/query") {
					t.Error("queried a server that refuses remote read")
				}
				return
			}
			if err != nil || n != 2 {
				t.Fatal(n, err)
			}
			before := len(f.asked)
			if n, err := selects(s); err != nil || n != 2 || len(f.asked) != before+1 {
				t.Errorf("again: %d series, %v, asked for %v", n, err, f.asked[before:])
			}
			d, err := s.Describe(t.Context())
			if err != nil || d.Driver != c.driver || !d.Forgets {
				t.Errorf("%+v %v", d, err)
			}
		})
	}
}

func TestForcedDriver(t *testing.T) {
	json, jsonBody := goodBody(t, prometheus.Query)
	f := &fake{paths: map[string]func(http.ResponseWriter){"/api/v1/query": write(json, jsonBody)}}
	url := f.start(t)
	if n, err := selects(newSource(t, prometheus.Config{URL: url, Driver: prometheus.RemoteRead})); !errors.Is(err, prometheus.ErrNoRemoteRead) || n > 0 {
		t.Error(n, err)
	}
	if _, err := newSource(t, prometheus.Config{URL: url, Driver: prometheus.RemoteRead}).Describe(t.Context()); !errors.Is(err, prometheus.ErrNoRemoteRead) {
		t.Error(err)
	}
	f.asked = nil
	if n, err := selects(newSource(t, prometheus.Config{URL: url, Driver: prometheus.Query})); err != nil || n != 2 || slices.Contains(f.asked, "/api/v1/read") {
		t.Error(n, err, f.asked)
	}
}

// TestOldest: what the server says, and what the configuration says, whichever is
// later; unknown where neither says anything.
func TestOldest(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	ago := func(days int) time.Time { return now.AddDate(0, 0, -days) }
	json, jsonBody := goodBody(t, prometheus.Query)
	runtime := func(retention string) func(http.ResponseWriter) {
		return write(json, []byte(`{"status":"success","data":{"storageRetention":"`+retention+`"}}`))
	}
	lowest := func(at time.Time) func(http.ResponseWriter) {
		return write("text/plain", []byte(fmt.Sprintf("# HELP x\nprometheus_tsdb_lowest_timestamp_seconds %d\n", at.Unix())))
	}
	for _, c := range []struct {
		name             string
		runtime, metrics func(http.ResponseWriter)
		config           time.Duration
		want             time.Time
	}{
		{"nothing", nil, nil, 0, time.Time{}},
		{"the server's own metrics", runtime("15d"), lowest(ago(3)), 0, ago(3)},
		{"retention", runtime("15d or 10GiB"), nil, 0, ago(15)},
		{"retention behind a size", runtime("10GiB or 2w"), nil, 0, ago(14)},
		{"only a size", runtime("10GiB"), nil, 0, time.Time{}},
		{"no retention", runtime(""), nil, 0, time.Time{}},
		{"zero", runtime("0s"), nil, 0, time.Time{}},
		{"configuration", nil, nil, 30 * 24 * time.Hour, ago(30)},
		{"a young server", nil, lowest(ago(3)), 30 * 24 * time.Hour, ago(3)},
		{"a shorter configuration", nil, lowest(ago(40)), 30 * 24 * time.Hour, ago(30)},
	} {
		f := &fake{paths: map[string]func(http.ResponseWriter){
			"/api/v1/query": write(json, jsonBody), "/api/v1/status/runtimeinfo": c.runtime, "/metrics": c.metrics,
		}}
		s := newSource(t, prometheus.Config{URL: f.start(t), Retention: c.config})
		s.SetNow(func() time.Time { return now })
		d, err := s.Describe(t.Context())
		if err != nil || !d.Oldest.Equal(c.want) || strings.Contains(d.Detail, "set metrics.retention") != c.want.IsZero() {
			t.Errorf("%s: %+v %v, want %s", c.name, d, err, c.want)
		}
	}
}

// TestPartial: warnings fail a read, or are kept where they are allowed.
func TestPartial(t *testing.T) {
	json, body := goodBody(t, prometheus.Query)
	warned := func(text string) func(http.ResponseWriter) {
		return write(json, []byte(strings.Replace(text, `"status":`, `"warnings":["store\n10.0.0.7 is away","key header-key"],"status":`, 1)))
	}
	f := &fake{paths: map[string]func(http.ResponseWriter){
		"/api/v1/query":  warned(string(body)),
		"/api/v1/series": warned(`{"status":"success","data":[{"__name__":"m"}]}`),
	}}
	cfg := prometheus.Config{URL: f.start(t), Driver: prometheus.Query, Headers: map[string]string{"X-Key": "header-key"}}
	s := newSource(t, cfg)
	n := 0
	count := func(gpu.Series) error { n++; return nil }
	for _, read := range []func(context.Context, ingest.Selector) error{
		func(ctx context.Context, sel ingest.Selector) error { return s.Select(ctx, sel, hour, count) },
		func(ctx context.Context, sel ingest.Selector) error { return s.List(ctx, sel, hour, count) },
	} {
		err := read(t.Context(), ingest.Selector{Metrics: []string{"m"}})
		if !errors.Is(err, prometheus.ErrPartial) || !strings.Contains(err.Error(), "store 10.0.0.7 is away") || strings.Contains(err.Error(), "header-key") || n > 0 {
			t.Errorf("got %v and %d series", err, n)
		}
	}
	if len(s.Warnings()) > 0 {
		t.Errorf("keeps %v", s.Warnings())
	}
	cfg.AllowPartial = true
	s = newSource(t, cfg)
	for range 2 {
		if n, err := selects(s); err != nil || n != 2 {
			t.Error(n, err)
		}
	}
	if err := s.List(t.Context(), ingest.Selector{Metrics: []string{"m"}}, hour, count); err != nil || n != 1 {
		t.Error(err, n)
	}
	if got := s.Warnings(); !slices.Equal(got, []string{"store 10.0.0.7 is away", "key (secret)"}) {
		t.Errorf("keeps %q", got)
	}
}

// TestListFallsBack: a server without the series endpoint is asked for the samples.
func TestListFallsBack(t *testing.T) {
	json, body := goodBody(t, prometheus.Query)
	list := func(series func(http.ResponseWriter)) ([]string, error) {
		f := &fake{paths: map[string]func(http.ResponseWriter){"/api/v1/query": write(json, body), "/api/v1/series": series}}
		s := newSource(t, prometheus.Config{URL: f.start(t)})
		s.SetRetryInterval(time.Millisecond)
		var got []string
		err := s.List(t.Context(), ingest.Selector{Metrics: []string{"m"}}, hour, func(x gpu.Series) error {
			got = append(got, fmt.Sprintf("%s %v", x.Metric, x.Labels))
			if len(x.Samples) > 0 {
				t.Errorf("%d samples with it", len(x.Samples))
			}
			return nil
		})
		return got, err
	}
	for _, none := range []func(http.ResponseWriter){nil, status(405, ""), status(501, "")} {
		if got, err := list(none); err != nil || !slices.Equal(got, []string{"m map[a:1]", "m map[a:2]"}) {
			t.Error(got, err)
		}
	}
	for want, answer := range map[string]func(http.ResponseWriter){
		"check the credentials": status(403, "no"),
		"cut short":             write(json, []byte(`{"status":"success","data":[{"__name__":"m"}`)),
		"shorter span":          api(422, "execution", "exceeded series limit"),
		"twice":                 write(json, []byte(`{"status":"success","data":[{"__name__":"m"},{"__name__":"m"}]}`)),
		"a proxy asks":          write("text/html", []byte("<html>")),
	} {
		if got, err := list(answer); err == nil || !strings.Contains(err.Error(), want) || len(got) > 0 {
			t.Errorf("%v and %v, want %q", got, err, want)
		}
	}
}

// TestPushRefused: what a refused remote write says to do depends on why it was refused.
func TestPushRefused(t *testing.T) {
	series := []gpu.Series{{Metric: "m", Labels: map[string]string{"a": "b"}, Samples: []gpu.Sample{{UnixMilli: 1, Value: 1}}}}
	for _, c := range []struct {
		code       int
		text, want string
	}{
		{404, "remote write receiver needs to be enabled", ": start it with --web.enable-remote-write-receiver"},
		{400, "out of bounds", ": it must not hold these series yet: take an empty one"},
		{503, "starting", "starting"},
	} {
		f := &fake{paths: map[string]func(http.ResponseWriter){"/api/v1/write": status(c.code, c.text)}}
		err := newSource(t, prometheus.Config{URL: f.start(t)}).Push(context.Background(), series)
		if err == nil || !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%d: %v, want %q", c.code, err, c.want)
		}
	}
}
