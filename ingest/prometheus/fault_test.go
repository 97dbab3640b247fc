package prometheus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/common/config"

	"gpuledger/gpu"
	"gpuledger/ingest"
	"gpuledger/ingest/prometheus"
)

const streamed = "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse"

// hushed are the secrets of serve's source; no error or log line may hold one.
var hushed = []string{"hush", "secret-token", "bWU6aHVzaA", "header-key"}

// serve answers the n-th request (from 1) by handler.
func serve(t *testing.T, driver string, handler func(n int32, w http.ResponseWriter)) (*prometheus.Source, *atomic.Int32) {
	t.Helper()
	var n atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { handler(n.Add(1), w) }))
	t.Cleanup(srv.Close)
	s := newSource(t, prometheus.Config{
		URL:    strings.Replace(srv.URL, "http://", "http://me:hush@", 1) + "/p?token=secret-token",
		Driver: driver, Timeout: 5 * time.Second, Headers: map[string]string{"X-Key": "header-key"},
	})
	s.SetRetryInterval(time.Millisecond)
	return s, &n
}

// goodBody is two series with a sample each, as a driver gets them.
func goodBody(t *testing.T, driver string) (contentType string, body []byte) {
	if driver == prometheus.RemoteRead {
		return streamed, slicesConcat(frame(t, series("a=1", chunk(t, at(0, 1)))), frame(t, series("a=2", chunk(t, at(0, 1)))))
	}
	point := fmt.Sprintf(`[[%d,"1"]]`, hour.Start.Unix())
	return "application/json", []byte(`{"status":"success","data":{"resultType":"matrix","result":[` +
		`{"metric":{"__name__":"m","a":"1"},"values":` + point + `},{"metric":{"__name__":"m","a":"2"},"values":` + point + `}]}}`)
}

func write(contentType string, body []byte) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", contentType)
		w.Write(body)
	}
}

func status(code int, text string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) { http.Error(w, text, code) }
}

// api answers as the query API does when it fails.
func api(code int, kind, text string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"status":"error","errorType":%q,"error":%q}`, kind, text)
	}
}

type fault struct {
	name  string
	fault func(http.ResponseWriter)
	tries int32 // 4 is all of them; 1 where another try is in vain
	want  string
	is    error
}

// faults are what goes wrong with every driver.
func faults(contentType string, good []byte) []fault {
	tooLarge := prometheus.ErrTooLarge
	all := []fault{
		{"cut short", write(contentType, good[:len(good)-3]), 4, "cut short", nil},
		{"cut at once", write(contentType, good[:1]), 4, "cut short", nil},
		{"connection cut", func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", contentType)
			w.Header().Set("Content-Length", fmt.Sprint(len(good)))
			w.Write(good[:len(good)-2])
		}, 4, "cut short", nil},
		{"dies in the middle", func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", contentType)
			w.Write(good[:len(good)/2])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, 4, "cut short", nil},
		{"no answer", func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, 4, "EOF", nil},
		{"garbage", write(contentType, []byte("\x00\xff\x03garbage")), 4, "the response is", nil},
		{"web page", write("text/html", []byte("<html>Log in")), 1, "a proxy asks for a login", nil},
		{"no content type", write("", good), 1, `answers with ""`, nil},
		{"text", write("text/plain", good), 1, "text/plain", nil},
		{"403", status(403, "no"), 1, "check the credentials", nil},
		{"401 repeats the header", status(401, "Authorization: Basic bWU6aHVzaA== and Bearer abcdefgh12 are no good, X-Key header-key, ?token=secret-token"), 1, "Bearer (secret)", nil},
		{"400", api(400, "bad_data", "bad matcher"), 1, "400 Bad Request: bad_data: bad matcher", nil},
		{"500", status(500, "out of\nmemory"), 4, "500 Internal Server Error: out of memory", nil},
		{"502", status(502, "<html>bad gateway"), 4, "a web page", nil},
		{"503", api(503, "unavailable", "starting up"), 4, "starting up", nil},
		{"429", func(w http.ResponseWriter) { w.Header().Set("Retry-After", "0"); w.WriteHeader(429) }, 4, "429 Too Many Requests", nil},
		{"busy", status(503, "couldn't start executing the request in 10 seconds, since -search.maxConcurrentRequests=16 concurrent requests are executed"), 4, "concurrent", nil},
		{"redirect", func(w http.ResponseWriter) {
			w.Header().Set("Location", "http://elsewhere.invalid/?token=secret-token")
			w.WriteHeader(307)
		}, 1, "redirects to another host, elsewhere.invalid", nil},
		{"redirect to GET", func(w http.ResponseWriter) { w.Header().Set("Location", "/other?x=hush"); w.WriteHeader(302) }, 1, "redirects to http://127.0.0.1:", nil},
		{"413", status(413, ""), 1, "shorter span", tooLarge},
		{"422", api(422, "execution", "some limit"), 1, "shorter span", tooLarge},
		{"server too slow", api(503, "timeout", "query timed out in expression evaluation"), 2, "query timed out", tooLarge},
		{"504", status(504, "upstream"), 2, "504 Gateway Timeout", tooLarge},
	}
	// In the words of each server.
	for _, limit := range []struct {
		code int
		text string
	}{
		{422, "query processing would load too many samples into memory in query execution"},
		{503, "query processing would load too many samples into memory in query execution"},
		{400, "exceeded maximum resolution of 11,000 points per timeseries. Try decreasing the query resolution (?step=XX)"},
		{400, "exceeded sample limit (5)"},
		{422, "the query exceeded the maximum number of chunks (limit: 30 chunks) (err-mimir-max-chunks-per-query)"},
		{422, "the query hit the max number of series limit (limit: 100 series)"},
		{400, "the query time range exceeds the limit (query length: 800h, limit: 721h)"},
		{500, "expanding series: rpc error: code = ResourceExhausted desc = exceeded series limit: rpc error: code = Code(422) desc = limit 12000 violated (got 12704)"},
		{422, "cannot process MetricBlock #1: cannot select more than -search.maxSamplesPerQuery=1000000000 samples; possible solutions: to increase it"},
		{503, "the number of matching timeseries exceeds 300000; either narrow down the search or increase -search.max* command-line flag values at vmselect"},
	} {
		all = append(all, fault{fmt.Sprintf("limit %.40s %d", limit.text, limit.code), api(limit.code, "execution", limit.text), 1, limit.text[:20], tooLarge})
	}
	return all
}

func faultsOfRemoteRead(t *testing.T, good []byte) []fault {
	damaged := slicesConcat(good)
	damaged[len(damaged)-1] ^= 1
	return []fault{
		{"damaged", write(streamed, damaged), 4, "checksum", nil},
		{"old kind cut short", write("application/x-protobuf", []byte{0xff}), 4, "no remote read", nil},
		{"twice", write(streamed, slicesConcat(good, good)), 1, "twice", nil},
		{"404", status(404, "not here"), 1, "no remote read here", prometheus.ErrNoRemoteRead},
		{"501", status(501, ""), 1, "no remote read here", prometheus.ErrNoRemoteRead},
		{"VictoriaMetrics", status(400, `unsupported path requested: "/p/api/v1/read"`), 1, "no remote read here", prometheus.ErrNoRemoteRead},
	}
}

func faultsOfQuery(good []byte) []fault {
	json := func(text string) func(http.ResponseWriter) { return write("application/json", []byte(text)) }
	with := func(old, replacement string) func(http.ResponseWriter) {
		return json(strings.Replace(string(good), old, replacement, 1))
	}
	return []fault{
		{"empty", json(""), 4, "cut short after 0 bytes", nil},
		{"more after the end", json(string(good) + "x"), 4, "want its end", nil},
		{"null", json("null"), 4, "want '{'", nil},
		{"no status", json("{}"), 4, `status ""`, nil},
		{"no data", json(`{"status":"success"}`), 4, "no data", nil},
		{"a vector", with("matrix", "vector"), 4, `type "vector", want matrix`, nil},
		{"a value that is no number", with(`"1"]]`, `"one"]]`), 4, "a number", nil},
		{"a series twice", with(`"a":"2"`, `"a":"1"`), 1, "twice", nil},
		{"error of status 200", api(200, "bad_data", "parse error"), 1, "bad_data: parse error", nil},
		{"too slow of status 200", api(200, "timeout", "gave up"), 2, "timeout: gave up", prometheus.ErrTooLarge},
		{"warnings before", with(`{"status"`, `{"warnings":["store 10.0.0.7 is away"],"status"`), 1, "store 10.0.0.7 is away", prometheus.ErrPartial},
		{"warnings behind", with(`]}}`, `]},"infos":["fine"],"warnings":["No StoreAPIs matched for this query","hush"]}`), 1, "No StoreAPIs matched for this query; (secret)", prometheus.ErrPartial},
		{"404", status(404, "not here"), 1, "no such endpoint", nil},
	}
}

// TestFaults lets each thing go wrong: nothing is delivered, no secret is shown, and
// where another try helps everything is delivered once.
func TestFaults(t *testing.T) {
	for _, driver := range []string{prometheus.RemoteRead, prometheus.Query} {
		contentType, good := goodBody(t, driver)
		table := faults(contentType, good)
		if driver == prometheus.RemoteRead {
			table = append(table, faultsOfRemoteRead(t, good)...)
		} else {
			table = append(table, faultsOfQuery(good)...)
		}
		for _, c := range table {
			t.Run(driver+"/"+c.name, func(t *testing.T) { testFault(t, driver, c) })
		}
	}
}

func testFault(t *testing.T, driver string, c fault) {
	contentType, good := goodBody(t, driver)
	s, n := serve(t, driver, func(_ int32, w http.ResponseWriter) { c.fault(w) })
	delivered := 0
	count := func(gpu.Series) error { delivered++; return nil }
	err := s.Select(context.Background(), ingest.Selector{Metrics: []string{"m"}}, hour, count)
	if err == nil || !strings.Contains(err.Error(), c.want) || (c.is != nil && !errors.Is(err, c.is)) {
		t.Fatalf("got %v, want %q", err, c.want)
	}
	for _, e := range []error{prometheus.ErrTooLarge, prometheus.ErrNoRemoteRead, prometheus.ErrPartial} {
		if errors.Is(err, e) && c.is != e {
			t.Errorf("%v is %v", err, e)
		}
	}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Error("failed", "error", err)
	slog.New(slog.NewJSONHandler(&log, nil)).Error("failed", "error", err)
	fmt.Fprintf(&log, "%v %+v %q", err, err, err)
	for _, secret := range hushed {
		if strings.Contains(log.String(), secret) {
			t.Errorf("%s holds %q", &log, secret)
		}
	}
	if !strings.Contains(err.Error(), "/p/api/v1/") {
		t.Errorf("%v does not name the URL", err)
	}
	if n.Load() != c.tries {
		t.Errorf("%d tries, want %d", n.Load(), c.tries)
	}
	// By remote read, what the series hold is seen only as they are handed on.
	if delivered > 0 && c.name != "twice" {
		t.Errorf("%d series of a faulty response were delivered", delivered)
	}
	if c.tries == 1 {
		return
	}
	// Faulty, then good: everything once.
	s, _ = serve(t, driver, func(n int32, w http.ResponseWriter) {
		if n < c.tries {
			c.fault(w)
			return
		}
		write(contentType, good)(w)
	})
	delivered = 0
	if err := s.Select(context.Background(), ingest.Selector{Metrics: []string{"m"}}, hour, count); err != nil || delivered != 2 {
		t.Errorf("after %d faults: %v, %d series", c.tries-1, err, delivered)
	}
}

// TestSlow: a server that does not answer in time is asked once more, then less may
// be asked for.
func TestSlow(t *testing.T) {
	for _, driver := range []string{prometheus.RemoteRead, prometheus.Query} {
		var n atomic.Int32
		ended := make(chan struct{})
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if n.Add(1)%2 == 0 { // half of the time after the head
				contentType, body := goodBody(t, driver)
				write(contentType, body[:5])(w)
				w.(http.Flusher).Flush()
			}
			<-ended
		}))
		s := newSource(t, prometheus.Config{URL: srv.URL, Driver: driver, Timeout: 50 * time.Millisecond})
		s.SetRetryInterval(time.Millisecond)
		err := s.Select(context.Background(), ingest.Selector{Metrics: []string{"m"}}, hour, nil)
		if !errors.Is(err, prometheus.ErrTooLarge) || !strings.Contains(err.Error(), "no complete answer within 50ms") || n.Load() != 2 {
			t.Errorf("%s: %v after %d requests", driver, err, n.Load())
		}
		close(ended)
		srv.Close()
	}
}

func TestRetryAfter(t *testing.T) {
	s, n := serve(t, prometheus.Query, func(_ int32, w http.ResponseWriter) {
		w.Header().Set("Retry-After", "3600") // longer than all tries may take
		w.WriteHeader(http.StatusTooManyRequests)
	})
	err := s.Select(context.Background(), ingest.Selector{Metrics: []string{"m"}}, hour, nil)
	if err == nil || !strings.Contains(err.Error(), "429") || n.Load() != 1 {
		t.Errorf("%v after %d tries", err, n.Load())
	}
}

func TestRefusedAndCanceled(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	s := newSource(t, prometheus.Config{URL: "http://me:hush@" + addr, HTTP: config.DefaultHTTPClientConfig})
	s.SetRetryInterval(time.Millisecond)
	err = s.Select(context.Background(), ingest.Selector{Metrics: []string{"m"}}, hour, nil)
	if err == nil || !strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), "after 4 tries") || strings.Contains(err.Error(), "hush") {
		t.Errorf("got %v", err)
	}
	s.SetRetryInterval(time.Minute)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := s.Select(ctx, ingest.Selector{Metrics: []string{"m"}}, hour, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	small := newSource(t, prometheus.Config{URL: bigServer(t), Driver: prometheus.RemoteRead, MaxResponseBytes: 100})
	if err := small.Select(context.Background(), ingest.Selector{Metrics: []string{"m"}}, hour, nil); !errors.Is(err, prometheus.ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	if _, err := prometheus.New(prometheus.Config{URL: "ftp://me:hush@x\x7f"}); err == nil || strings.Contains(err.Error(), "hush") {
		t.Errorf("got %v", err)
	}
}

// TestTooLargeAnswer: what is over the limit of a response is not read on.
func TestTooLargeAnswer(t *testing.T) {
	contentType, body := goodBody(t, prometheus.Query)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { write(contentType, body)(w) }))
	defer srv.Close()
	for limit, want := range map[int64]error{int64(len(body)) - 1: prometheus.ErrTooLarge, int64(len(body)): nil} {
		s := newSource(t, prometheus.Config{URL: srv.URL, Driver: prometheus.Query, MaxResponseBytes: limit})
		err := s.Select(context.Background(), ingest.Selector{Metrics: []string{"m"}}, hour, func(gpu.Series) error { return nil })
		if !errors.Is(err, want) {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
}

func bigServer(t *testing.T) string {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", streamed)
		w.Write(make([]byte, 1000))
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}
