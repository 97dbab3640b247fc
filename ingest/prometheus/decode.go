package prometheus

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strings"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"gpuledger/gpu"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// nextFrame cuts a frame off a streamed response: its length as a varint, its
// checksum, its bytes. At the end it returns io.EOF.
func nextFrame(body []byte) (frame, rest []byte, err error) {
	if len(body) == 0 {
		return nil, nil, io.EOF
	}
	size, n := binary.Uvarint(body)
	if n <= 0 || len(body)-n < 4 || uint64(len(body)-n-4) < size {
		return nil, nil, fmt.Errorf("the response is cut short or no remote read: %w", io.ErrUnexpectedEOF)
	}
	sum, body := binary.BigEndian.Uint32(body[n:]), body[n+4:]
	frame, rest = body[:size], body[size:]
	if crc32.Checksum(frame, castagnoli) != sum {
		return nil, nil, errors.New("a frame of the response is damaged: its checksum differs")
	}
	return frame, rest, nil
}

// checkFrames makes sure that the response is whole before any of it is used.
func checkFrames(body []byte) error {
	for {
		_, rest, err := nextFrame(body)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		body = rest
	}
}

// collector gathers the parts of one series, which may come in several frames.
type collector struct {
	start, end int64
	fn         func(gpu.Series) error
	labels     []prompb.Label
	samples    []gpu.Sample        // of this series; the memory is used for the next
	before     []gpu.Sample        // of the series delivered last
	seen       map[string]struct{} // label sets that were delivered
	it         chunkenc.Iterator
}

func (c *collector) begin(labels []prompb.Label) error {
	if c.labels != nil && slices.EqualFunc(c.labels, labels, func(a, b prompb.Label) bool { return a.Name == b.Name && a.Value == b.Value }) {
		return nil
	}
	if err := c.flush(); err != nil {
		return err
	}
	c.labels = labels
	return nil
}

func (c *collector) add(unixMilli int64, value float64) {
	if unixMilli >= c.start && unixMilli < c.end && value == value { // not NaN, so no stale marker
		c.samples = append(c.samples, gpu.Sample{UnixMilli: unixMilli, Value: value})
	}
}

func (c *collector) flush() error {
	if c.labels == nil {
		return nil
	}
	labels, samples := c.labels, c.samples
	c.labels, c.samples = nil, c.samples[:0]
	var key strings.Builder
	series := gpu.Series{Labels: make(map[string]string, len(labels)), Samples: samples}
	for _, l := range labels {
		writeKey(&key, l.Name, l.Value)
		switch {
		case l.Name == "__name__":
			series.Metric = l.Value
		case l.Value != "":
			series.Labels[l.Name] = l.Value
		}
	}
	// A series is promised once. Two that become equal by the server's external
	// labels can't be told apart.
	if _, twice := c.seen[key.String()]; twice {
		return fmt.Errorf("the server sent the series %s%v twice: an external label of it hides a label that tells two series apart", series.Metric, series.Labels)
	}
	c.seen[key.String()] = struct{}{}
	if len(samples) == 0 {
		return nil
	}
	// Many series say the same at the same times, as those of a pod's labels do.
	if samples = inOrder(samples); sameSamples(samples, c.before) {
		series.Samples = c.before
	} else {
		series.Samples = slices.Clone(samples) // of its own size
	}
	c.before = series.Samples
	return c.fn(series)
}

func sameSamples(a, b []gpu.Sample) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// inOrder sorts where overlapping chunks (replicas, backfilled blocks) need it,
// and keeps the first sample of an instant.
func inOrder(samples []gpu.Sample) []gpu.Sample {
	sorted := true
	for i := 1; i < len(samples) && sorted; i++ {
		sorted = samples[i-1].UnixMilli < samples[i].UnixMilli
	}
	if sorted {
		return samples
	}
	slices.SortStableFunc(samples, func(a, b gpu.Sample) int { return cmp.Compare(a.UnixMilli, b.UnixMilli) })
	return slices.CompactFunc(samples, func(a, b gpu.Sample) bool { return a.UnixMilli == b.UnixMilli })
}

// decodeChunks reads a streamed response.
func decodeChunks(body []byte, start, end int64, fn func(gpu.Series) error) error {
	c := &collector{start: start, end: end, fn: fn, seen: map[string]struct{}{}}
	for {
		frame, rest, err := nextFrame(body)
		if errors.Is(err, io.EOF) {
			return c.flush()
		}
		if err != nil {
			return err
		}
		body = rest
		// A fresh message: unmarshalling into a used one would overwrite the labels
		// of a series that is still being gathered.
		var msg prompb.ChunkedReadResponse
		if err := msg.Unmarshal(frame); err != nil {
			return fmt.Errorf("decode a frame: %w", err)
		}
		for _, s := range msg.ChunkedSeries {
			if err := c.begin(s.Labels); err != nil {
				return err
			}
			for i := range s.Chunks {
				if err := c.addChunk(&s.Chunks[i]); err != nil {
					return err
				}
			}
		}
	}
}

func (c *collector) addChunk(chunk *prompb.Chunk) error {
	switch chunk.Type {
	case prompb.Chunk_HISTOGRAM, prompb.Chunk_FLOAT_HISTOGRAM, prompb.Chunk_HISTOGRAM_ST, prompb.Chunk_FLOAT_HISTOGRAM_ST:
		return nil // native histograms hold no plain samples
	}
	if len(chunk.Data) < 2 {
		return errors.New("a chunk without a header")
	}
	ch, err := chunkenc.FromData(chunkenc.Encoding(chunk.Type), chunk.Data)
	if err != nil {
		return fmt.Errorf("a chunk of unknown kind %d: %w", chunk.Type, err)
	}
	// A sample takes two bits at least: a chunk may say that it holds more than it can.
	c.samples = slices.Grow(c.samples, min(ch.NumSamples(), 4*len(chunk.Data)))
	c.it = ch.Iterator(c.it)
	for c.it.Next() == chunkenc.ValFloat {
		c.add(c.it.At())
	}
	if err := c.it.Err(); err != nil {
		return fmt.Errorf("a damaged chunk: %w", err)
	}
	return nil
}

// decodeSamples reads a response of the older kind, which servers may answer
// with that know no other.
func decodeSamples(body []byte, start, end int64, fn func(gpu.Series) error) error {
	if err := checkSamples(body); err != nil {
		return err
	}
	raw, err := snappy.Decode(nil, body)
	if err != nil {
		return fmt.Errorf("the response is cut short or no remote read: %w", err)
	}
	var msg prompb.ReadResponse
	if err := msg.Unmarshal(raw); err != nil {
		return fmt.Errorf("decode the response: %w", err)
	}
	c := &collector{start: start, end: end, fn: fn, seen: map[string]struct{}{}}
	for _, result := range msg.Results {
		for _, ts := range result.Timeseries {
			if err := c.begin(ts.Labels); err != nil {
				return err
			}
			for _, x := range ts.Samples {
				c.add(x.Timestamp, x.Value)
			}
		}
	}
	return c.flush()
}

// checkSamples makes sure that a response of the older kind is whole, as far as
// that can be told without decoding it.
func checkSamples(body []byte) error {
	// The length after decompression comes first, so a response that is cut short
	// cannot decompress.
	size, err := snappy.DecodedLen(body)
	if err != nil {
		return fmt.Errorf("the response is no remote read: %w", err)
	}
	// Three bytes become 64 at most, so a greater length is a lie: it would be
	// allocated before anything is read.
	if size > 22*len(body) {
		return fmt.Errorf("the response is cut short or no remote read: %d bytes can't hold %d", len(body), size)
	}
	if bytes.HasPrefix(body, []byte("<")) {
		return errors.New("the response is a web page")
	}
	return nil
}
