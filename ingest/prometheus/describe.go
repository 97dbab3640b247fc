package prometheus

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/prometheus/prompb"

	"gpuledger/ingest"
)

// Describe implements ingest.Source. It asks for nothing by remote read, which
// shows that the server speaks it, and then for what the server tells of itself;
// what it does not tell stays zero.
func (s *Source) Describe(ctx context.Context) (ingest.Description, error) {
	d := ingest.Description{Driver: "remote_read"}
	_, _, err := s.remoteRead(ctx, &prompb.Query{
		StartTimestampMs: 0, EndTimestampMs: 0,
		Matchers: []*prompb.LabelMatcher{{Type: prompb.LabelMatcher_EQ, Name: "__name__", Value: "gpuledger_probe"}},
	})
	if err != nil {
		return d, err
	}
	var build struct{ Version string }
	if s.status(ctx, "api/v1/status/buildinfo", &build) {
		d.Version = build.Version
	}
	var run struct {
		StorageRetention string `json:"storageRetention"`
	}
	s.status(ctx, "api/v1/status/runtimeinfo", &run)
	var head struct {
		HeadStats struct {
			MinTime int64 `json:"minTime"`
			MaxTime int64 `json:"maxTime"`
		} `json:"headStats"`
	}
	if s.status(ctx, "api/v1/status/tsdb", &head) {
		// An empty head says the largest and smallest number instead.
		if head.HeadStats.MaxTime > 0 && head.HeadStats.MaxTime < math.MaxInt64 {
			d.Newest = time.UnixMilli(head.HeadStats.MaxTime).UTC()
		}
	}
	d.Oldest = s.lowest(ctx)
	d.Detail = "remote read at " + s.shown
	if run.StorageRetention != "" {
		d.Detail += ", keeps " + run.StorageRetention
	}
	return d, nil
}

// status reads one of the status endpoints; false where the server has none.
func (s *Source) status(ctx context.Context, path string, data any) bool {
	resp, err := s.get(ctx, path)
	if err != nil {
		return false
	}
	envelope := struct{ Data any }{data}
	return json.Unmarshal(resp.body, &envelope) == nil
}

func (s *Source) get(ctx context.Context, path string) (*response, error) {
	return s.retry(ctx, path, func(ctx context.Context) (*http.Request, error) {
		return http.NewRequestWithContext(ctx, http.MethodGet, s.endpoint(path).String(), nil)
	}, nil)
}

// lowest is the oldest time in the server's storage, zero if it doesn't say. It
// is in the server's own metrics, whether or not it scrapes itself.
func (s *Source) lowest(ctx context.Context) time.Time {
	const name = "prometheus_tsdb_lowest_timestamp_seconds "
	resp, err := s.get(ctx, "metrics")
	if err != nil {
		return time.Time{}
	}
	lines := bufio.NewScanner(bytes.NewReader(resp.body))
	for lines.Scan() {
		text, ok := strings.CutPrefix(lines.Text(), name)
		if !ok {
			continue
		}
		seconds, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		// An empty storage says the largest number.
		if err != nil || seconds <= 0 || seconds > 1e11 {
			return time.Time{}
		}
		return time.UnixMilli(int64(math.Round(seconds * 1000))).UTC()
	}
	return time.Time{}
}
