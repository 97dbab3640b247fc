package prometheus_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"gpuledger/gpu"
	"gpuledger/ingest"
	"gpuledger/ingest/prometheus"
)

func chunk(t *testing.T, samples ...gpu.Sample) prompb.Chunk {
	t.Helper()
	c := chunkenc.NewXORChunk()
	app, err := c.Appender()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range samples {
		app.Append(0, x.UnixMilli, x.Value)
	}
	return prompb.Chunk{Type: prompb.Chunk_XOR, Data: c.Bytes()}
}

func series(labels string, chunks ...prompb.Chunk) *prompb.ChunkedSeries {
	s := &prompb.ChunkedSeries{Labels: []prompb.Label{{Name: "__name__", Value: "m"}}, Chunks: chunks}
	for _, kv := range strings.Fields(labels) {
		name, value, _ := strings.Cut(kv, "=")
		s.Labels = append(s.Labels, prompb.Label{Name: name, Value: value})
	}
	return s
}

func frame(t *testing.T, all ...*prompb.ChunkedSeries) []byte {
	t.Helper()
	raw, err := (&prompb.ChunkedReadResponse{ChunkedSeries: all}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	out := binary.AppendUvarint(nil, uint64(len(raw)))
	out = binary.BigEndian.AppendUint32(out, crc32.Checksum(raw, crc32.MakeTable(crc32.Castagnoli)))
	return append(out, raw...)
}

func at(ms int64, value float64) gpu.Sample {
	return gpu.Sample{UnixMilli: hour.Start.UnixMilli() + ms, Value: value}
}

const streamed = "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse"

// serve answers the n-th request (from 1) by handler.
func serve(t *testing.T, handler func(n int32, w http.ResponseWriter)) (*prometheus.Source, *atomic.Int32) {
	t.Helper()
	var n atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler(n.Add(1), w) }))
	t.Cleanup(srv.Close)
	s := newSource(t, prometheus.Config{URL: strings.Replace(srv.URL, "http://", "http://me:hush@", 1) + "/p?token=secret", Timeout: 5 * time.Second})
	s.SetRetryInterval(time.Millisecond)
	return s, &n
}

func TestSeriesOverFrames(t *testing.T) {
	histogram := prompb.Chunk{Type: prompb.Chunk_HISTOGRAM, Data: []byte{0, 0, 1}}
	body := slicesConcat(
		frame(t, series("a=1", chunk(t, at(0, 1), at(10, 2)))),
		frame(t, series("a=1", chunk(t, at(20, 3)), histogram), series("a=2 e=", chunk(t, at(-1, 9), at(5, 4)))),
		// Overlapping chunks: out of order, one instant twice.
		frame(t, series("a=2 e=", chunk(t, at(3, 7), at(5, 8), at(3600000, 9)))),
		frame(t, series("a=3", histogram)),
	)
	s, _ := serve(t, func(_ int32, w http.ResponseWriter) {
		w.Header().Set("Content-Type", streamed)
		w.Write(body)
	})
	got := selectAll(t, s, ingest.Selector{Metrics: []string{"m"}}, hour)
	want := []gpu.Series{
		{Metric: "m", Labels: map[string]string{"a": "1"}, Samples: []gpu.Sample{at(0, 1), at(10, 2), at(20, 3)}},
		{Metric: "m", Labels: map[string]string{"a": "2"}, Samples: []gpu.Sample{at(3, 7), at(5, 4)}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func slicesConcat(parts ...[]byte) []byte {
	var out []byte
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func TestFaults(t *testing.T) {
	good := slicesConcat(frame(t, series("a=1", chunk(t, at(0, 1)))), frame(t, series("a=2", chunk(t, at(0, 1)))))
	damaged := slicesConcat(good)
	damaged[len(damaged)-1] ^= 1
	write := func(contentType string, body []byte) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", contentType)
			w.Write(body)
		}
	}
	status := func(code int, text string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { http.Error(w, text, code) }
	}
	abort := func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", streamed)
		w.Header().Set("Content-Length", fmt.Sprint(len(good)))
		w.Write(good[:len(good)-2])
	}
	for _, c := range []struct {
		name  string
		fault func(http.ResponseWriter)
		again bool // another try may help
		want  string
		is    error
	}{
		{"cut short in a frame", write(streamed, good[:len(good)-3]), true, "cut short", nil},
		{"connection cut", abort, true, "cut short", nil},
		{"damaged", write(streamed, damaged), true, "checksum", nil},
		{"old kind cut short", write("application/x-protobuf", []byte{0xff}), true, "no remote read", nil},
		{"web page", write("text/html", []byte("<html>")), false, "a proxy asks for a login", nil},
		{"twice", write(streamed, slicesConcat(good, good)), false, "twice", nil},
		{"404", status(404, "not here"), false, "no remote read here", prometheus.ErrNoRemoteRead},
		{"400", status(400, "bad matcher"), false, "bad matcher", nil},
		{"limit", status(400, "exceeded sample limit (5)"), false, "shorter span", prometheus.ErrTooLarge},
		{"413", status(413, ""), false, "shorter span", prometheus.ErrTooLarge},
		{"403", status(403, "no"), false, "check the credentials", nil},
		{"500", status(500, "out of\nmemory"), true, "500 Internal Server Error: out of memory", nil},
		{"501", status(501, ""), false, "no remote read here", prometheus.ErrNoRemoteRead},
		{"503", status(503, "<html>"), true, "a web page", nil},
		{"429", func(w http.ResponseWriter) { w.Header().Set("Retry-After", "0"); w.WriteHeader(429) }, true, "429 Too Many Requests", nil},
		{"redirect", func(w http.ResponseWriter) {
			w.Header().Set("Location", "http://elsewhere.invalid/?token=secret")
			w.WriteHeader(307)
		}, false, "redirects to another host, elsewhere.invalid", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			// Always faulty: an error, no partial result, no secret.
			s, n := serve(t, func(_ int32, w http.ResponseWriter) { c.fault(w) })
			delivered := 0
			count := func(gpu.Series) error { delivered++; return nil }
			err := s.Select(context.Background(), ingest.Selector{Metrics: []string{"m"}}, hour, count)
			if err == nil || !strings.Contains(err.Error(), c.want) || (c.is != nil && !errors.Is(err, c.is)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			for _, secret := range []string{"hush", "secret", "me:"} {
				if err != nil && strings.Contains(err.Error(), secret) {
					t.Errorf("%v holds %q", err, secret)
				}
			}
			if err != nil && !strings.Contains(err.Error(), "/p") {
				t.Errorf("%v does not name the URL", err)
			}
			tries := int32(1)
			if c.again {
				tries = 4
			}
			if n.Load() != tries {
				t.Errorf("%d tries, want %d", n.Load(), tries)
			}
			if delivered > 0 && c.name != "twice" {
				t.Errorf("%d series of a faulty response were delivered", delivered)
			}
			if !c.again {
				return
			}
			// Faulty twice, then good: everything once.
			s, _ = serve(t, func(n int32, w http.ResponseWriter) {
				if n <= 2 {
					c.fault(w)
					return
				}
				write(streamed, good)(w)
			})
			delivered = 0
			if err := s.Select(context.Background(), ingest.Selector{Metrics: []string{"m"}}, hour, count); err != nil || delivered != 2 {
				t.Errorf("after two faults: %v, %d series", err, delivered)
			}
		})
	}
}

func TestRefusedAndCanceled(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	s := newSource(t, prometheus.Config{URL: "http://me:hush@" + addr})
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
	small := newSource(t, prometheus.Config{URL: bigServer(t), MaxResponseBytes: 100})
	if err := small.Select(context.Background(), ingest.Selector{Metrics: []string{"m"}}, hour, nil); !errors.Is(err, prometheus.ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	if _, err := prometheus.New(prometheus.Config{URL: "ftp://me:hush@x\x7f"}); err == nil || strings.Contains(err.Error(), "hush") {
		t.Errorf("got %v", err)
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
