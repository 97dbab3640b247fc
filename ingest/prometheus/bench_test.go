package prometheus_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/ingest"
	"gpuledger/ingest/prometheus"
	"gpuledger/internal/promtest"
)

const benchSeries, benchPoints = 800, 720 // six hours at 30 s

// benchSamples is memory as GPUs have it: MiB that change now and then.
func benchSamples() [][]gpu.Sample {
	rng := rand.New(rand.NewPCG(1, 2))
	out := make([][]gpu.Sample, benchSeries)
	for i := range out {
		value, at := float64(rng.IntN(81920)), hour.Start.UnixMilli()+rng.Int64N(30000)
		for range benchPoints {
			if rng.IntN(20) == 0 {
				value = float64(rng.IntN(81920))
			}
			out[i] = append(out[i], gpu.Sample{UnixMilli: at, Value: value})
			at += 29998 + rng.Int64N(5)
		}
	}
	return out
}

func benchJSON() []byte {
	var b bytes.Buffer
	b.WriteString(`{"status":"success","data":{"resultType":"matrix","result":[`)
	for i, list := range benchSamples() {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"metric":{"__name__":"DCGM_FI_DEV_FB_USED","UUID":"GPU-%d","gpu":"%d","Hostname":"node-%d","pod":"p-%d","namespace":"ml"},"values":[`, i, i%8, i/8, i)
		for j, x := range list {
			if j > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `[%s,"%s"]`, strconv.FormatFloat(float64(x.UnixMilli)/1000, 'f', -1, 64), strconv.FormatFloat(x.Value, 'f', -1, 64))
		}
		b.WriteString("]}")
	}
	b.WriteString("]}}")
	return b.Bytes()
}

func report(b *testing.B, samples int) {
	b.ReportMetric(float64(samples)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Msamples/s")
}

// BenchmarkMatrix reads an answer of the query API.
func BenchmarkMatrix(b *testing.B) {
	body := benchJSON()
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n = 0
		all, _, err := prometheus.DecodeMatrix(bytes.NewReader(body), math.MinInt64, math.MaxInt64)
		if err != nil {
			b.Fatal(err)
		}
		for i := range all {
			n += len(all[i].Samples)
		}
	}
	if n != benchSeries*benchPoints {
		b.Fatal(n)
	}
	report(b, n)
}

// BenchmarkBareScan reads the same stream through a window of the same size and
// looks at every byte for the ends of texts and nothing else: no reader of JSON can
// do less.
func BenchmarkBareScan(b *testing.B) {
	body := benchJSON()
	b.SetBytes(int64(len(body)))
	window := make([]byte, 64<<10)
	quotes := 0
	for b.Loop() {
		quotes = 0
		r, escaped := io.Reader(bytes.NewReader(body)), false
		for {
			n, err := r.Read(window)
			for _, c := range window[:n] {
				switch {
				case escaped:
					escaped = false
				case c == '\\':
					escaped = true
				case c == '"':
					quotes++
				}
			}
			if err != nil {
				break
			}
		}
	}
	if quotes < 2*benchSeries*benchPoints {
		b.Fatal(quotes)
	}
	report(b, benchSeries*benchPoints)
}

func benchChunks(b *testing.B) []byte {
	var body []byte
	for i, list := range benchSamples() {
		var chunks []prompb.Chunk
		for len(list) > 0 { // 120 samples a chunk, as Prometheus has them
			n := min(120, len(list))
			c := chunkenc.NewXORChunk()
			app, err := c.Appender()
			if err != nil {
				b.Fatal(err)
			}
			for _, x := range list[:n] {
				app.Append(0, x.UnixMilli, x.Value)
			}
			chunks = append(chunks, prompb.Chunk{Type: prompb.Chunk_XOR, Data: c.Bytes()})
			list = list[n:]
		}
		raw, err := (&prompb.ChunkedReadResponse{ChunkedSeries: []*prompb.ChunkedSeries{{
			Labels: []prompb.Label{{Name: "UUID", Value: fmt.Sprintf("GPU-%d", i)}, {Name: "__name__", Value: "DCGM_FI_DEV_FB_USED"}}, Chunks: chunks,
		}}}).Marshal()
		if err != nil {
			b.Fatal(err)
		}
		body = append(body, frameOf(raw)...)
	}
	return body
}

// BenchmarkChunks reads an answer of remote read.
func BenchmarkChunks(b *testing.B) {
	body := benchChunks(b)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n = 0
		err := prometheus.DecodeChunks(body, math.MinInt64, math.MaxInt64, func(x gpu.Series) error { n += len(x.Samples); return nil })
		if err != nil {
			b.Fatal(err)
		}
	}
	if n != benchSeries*benchPoints {
		b.Fatal(n)
	}
	report(b, n)
}

// BenchmarkBareChunks decodes the same stream, and throws the samples away.
func BenchmarkBareChunks(b *testing.B) {
	body := benchChunks(b)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n = 0
		var it chunkenc.Iterator
		for rest := body; len(rest) > 0; {
			size, k := binary.Uvarint(rest)
			rest = rest[k+4:]
			var msg prompb.ChunkedReadResponse
			if err := msg.Unmarshal(rest[:size]); err != nil {
				b.Fatal(err)
			}
			rest = rest[size:]
			for _, series := range msg.ChunkedSeries {
				for i := range series.Chunks {
					c, err := chunkenc.FromData(chunkenc.EncXOR, series.Chunks[i].Data)
					if err != nil {
						b.Fatal(err)
					}
					it = c.Iterator(it)
					for it.Next() == chunkenc.ValFloat {
						if at, _ := it.At(); at != 0 {
							n++
						}
					}
				}
			}
		}
	}
	if n != benchSeries*benchPoints {
		b.Fatal(n)
	}
	report(b, n)
}

// BenchmarkSelect reads a day from a real server, by each driver.
func BenchmarkSelect(b *testing.B) {
	url := promtest.Start(b, fleet())
	for _, driver := range []string{prometheus.RemoteRead, prometheus.Query} {
		b.Run(driver, func(b *testing.B) {
			s := newSource(b, prometheus.Config{URL: url, Driver: driver})
			n := 0
			for b.Loop() {
				n = 0
				err := s.Select(b.Context(), ingest.Selector{Metrics: metrics}, period.Span{Start: day, End: day.Add(24 * time.Hour)}, func(x gpu.Series) error {
					n += len(x.Samples)
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			report(b, n)
		})
	}
}
