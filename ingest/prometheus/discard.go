package prometheus

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"gpuledger/billing/period"
	"gpuledger/ingest"
)

// Discard asks for what Select asks for and throws it away once it is decoded: what the
// reading of samples is measured against. It returns how many series and samples came,
// those beyond the span among them, which share a chunk with some of it.
func (s *Source) Discard(ctx context.Context, sel ingest.Selector, span period.Span) (series, samples int64, err error) {
	start, end := ceilMilli(span.Start), ceilMilli(span.End)
	if empty(sel) || start >= end {
		return 0, 0, nil
	}
	driver, err := s.driver(ctx)
	if err != nil {
		return 0, 0, err
	}
	if driver == Query {
		all, err := s.query(ctx, sel, start, end, false)
		for _, x := range all {
			samples += int64(len(x.Samples))
		}
		return int64(len(all)), samples, err
	}
	body, streamed, err := s.remoteRead(ctx, &prompb.Query{StartTimestampMs: start, EndTimestampMs: end - 1, Matchers: matchers(sel)}, false)
	if err != nil {
		return 0, 0, err
	}
	if !streamed {
		return 0, 0, errors.New("prometheus: the server does not stream chunks")
	}
	var it chunkenc.Iterator
	for {
		frame, rest, err := nextFrame(body)
		if errors.Is(err, io.EOF) {
			return series, samples, nil
		}
		if err != nil {
			return series, samples, err
		}
		body = rest
		var msg prompb.ChunkedReadResponse
		if err := msg.Unmarshal(frame); err != nil {
			return series, samples, fmt.Errorf("decode a frame: %w", err)
		}
		for _, one := range msg.ChunkedSeries {
			series++
			for _, c := range one.Chunks {
				ch, err := chunkenc.FromData(chunkenc.Encoding(c.Type), c.Data)
				if err != nil {
					return series, samples, err
				}
				for it = ch.Iterator(it); it.Next() == chunkenc.ValFloat; samples++ {
					_, _ = it.At()
				}
				if err := it.Err(); err != nil {
					return series, samples, err
				}
			}
		}
	}
}
