package prometheus_test

import (
	"encoding/binary"
	"hash/crc32"
	"net/http"
	"strings"
	"testing"

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
	return frameOf(raw)
}

// frameOf puts a length and a checksum before a message.
func frameOf(raw []byte) []byte {
	out := binary.AppendUvarint(nil, uint64(len(raw)))
	out = binary.BigEndian.AppendUint32(out, crc32.Checksum(raw, crc32.MakeTable(crc32.Castagnoli)))
	return append(out, raw...)
}

func at(ms int64, value float64) gpu.Sample {
	return gpu.Sample{UnixMilli: hour.Start.UnixMilli() + ms, Value: value}
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
	s, _ := serve(t, prometheus.RemoteRead, func(_ int32, w http.ResponseWriter) {
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
