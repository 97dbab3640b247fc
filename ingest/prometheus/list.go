package prometheus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"

	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/ingest"
)

// List implements ingest.Source, by /api/v1/series where the server has it, and else
// by reading the samples. fn is called only once the whole answer has arrived.
func (s *Source) List(ctx context.Context, sel ingest.Selector, span period.Span, fn func(gpu.Series) error) error {
	start, end := ceilMilli(span.Start), ceilMilli(span.End)
	if empty(sel) || start >= end {
		return nil
	}
	driver, err := s.driver(ctx)
	if err != nil {
		return err
	}
	var outside map[string]string
	if driver == RemoteRead {
		var known bool
		if outside, known = s.externalLabels(ctx); !known {
			return s.listBySamples(ctx, sel, span, fn)
		}
	}
	form := url.Values{
		"match[]": {selector(within(sel, outside))},
		"start":   {seconds(start)}, "end": {seconds(end - 1)},
	}
	var all []gpu.Series
	var warnings []string
	err = s.retry(ctx, s.post(seriesPath, form, false, func(body io.Reader) (err error) {
		all, warnings, err = decodeSeries(body)
		return err
	}))
	if errors.Is(err, errNoEndpoint) {
		return s.listBySamples(ctx, sel, span, fn)
	}
	if err == nil {
		err = s.warned(seriesPath, warnings)
	}
	if err != nil {
		return err
	}
	for i := range all {
		for name, value := range outside {
			if all[i].Labels[name] == "" {
				all[i].Labels[name] = value
			}
		}
	}
	if err := twice(all); err != nil {
		return s.at(seriesPath, err)
	}
	return deliver(ctx, all, fn)
}

// listBySamples drops the samples of what Select reads.
func (s *Source) listBySamples(ctx context.Context, sel ingest.Selector, span period.Span, fn func(gpu.Series) error) error {
	return s.Select(ctx, sel, span, func(x gpu.Series) error {
		x.Samples = nil
		return fn(x)
	})
}

// deliver hands series on. An error of fn is the caller's own and comes back as it is.
func deliver(ctx context.Context, all []gpu.Series, fn func(gpu.Series) error) error {
	for i := range all {
		if err := ctx.Err(); err != nil {
			return err
		}
		x := all[i]
		all[i] = gpu.Series{} // it is fn's: once fn is through with it, its memory is free
		if err := fn(x); err != nil {
			return err
		}
	}
	return nil
}

// seconds renders milliseconds as the API takes a time.
func seconds(ms int64) string {
	whole := floorDiv(ms, 1000)
	return fmt.Sprintf("%s.%03d", strconv.FormatInt(whole, 10), ms-whole*1000)
}
