package prometheus

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/prompb"

	"gpuledger/gpu"
)

// Push writes series to a server that takes remote write (Prometheus with
// --web.enable-remote-write-receiver): for benches and tests, never part of a load.
// The samples of a series must be later than those pushed before.
func (s *Source) Push(ctx context.Context, series []gpu.Series) error {
	msg := prompb.WriteRequest{Timeseries: make([]prompb.TimeSeries, len(series))}
	for i, x := range series {
		ts := &msg.Timeseries[i]
		ts.Labels = append(ts.Labels, prompb.Label{Name: "__name__", Value: x.Metric})
		for name, value := range x.Labels {
			ts.Labels = append(ts.Labels, prompb.Label{Name: name, Value: value})
		}
		slices.SortFunc(ts.Labels, func(a, b prompb.Label) int { return strings.Compare(a.Name, b.Name) })
		ts.Samples = make([]prompb.Sample, len(x.Samples))
		for k, sample := range x.Samples {
			ts.Samples[k] = prompb.Sample{Timestamp: sample.UnixMilli, Value: sample.Value}
		}
	}
	raw, err := msg.Marshal()
	if err != nil {
		return fmt.Errorf("prometheus: encode: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.endpoint("api/v1/write").String(), bytes.NewReader(snappy.Encode(nil, raw)))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Encoding", "snappy")
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("X-Prometheus-Remote-Write-Version", "0.1.0")
	resp, err := s.client.Do(req)
	if err != nil {
		return fmt.Errorf("prometheus: %s: remote write: %w", s.shown, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		hint := ""
		switch resp.StatusCode {
		case http.StatusNotFound:
			hint = ": start it with --web.enable-remote-write-receiver"
		case http.StatusBadRequest: // out of order, out of bounds, or another value at a time
			hint = ": it must not hold these series yet: take an empty one"
		}
		return fmt.Errorf("prometheus: %s: remote write: %w%s", s.shown, statusError(resp), hint)
	}
	return nil
}
