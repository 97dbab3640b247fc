package prometheus

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"gpuledger/ingest"
)

// Describe implements ingest.Source. It asks for nothing by the driver, which shows
// that the server speaks it, and then for what the server tells of itself; what it
// does not tell stays zero.
func (s *Source) Describe(ctx context.Context) (ingest.Description, error) {
	driver, err := s.driver(ctx)
	d := ingest.Description{Driver: driver, Forgets: true}
	if err == nil {
		err = s.try(ctx, driver)
	}
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
	keeps := parseRetention(run.StorageRetention)
	d.Oldest = s.lowest(ctx)
	if d.Oldest.IsZero() && keeps > 0 {
		d.Oldest = s.now().Add(-keeps).UTC()
	}
	if s.cfg.Retention > 0 {
		if t := s.now().Add(-s.cfg.Retention).UTC(); t.After(d.Oldest) {
			d.Oldest = t
		}
	}
	d.Detail = map[string]string{RemoteRead: "remote read at ", Query: "queries at "}[driver] + s.shown
	if run.StorageRetention != "" {
		d.Detail += ", keeps " + run.StorageRetention
	}
	if driver == Query && d.Oldest.IsZero() {
		d.Detail += ", does not say for how long it keeps samples (set metrics.retention)"
	}
	return d, nil
}

// parseRetention reads the time of a retention such as "15d or 10GiB"; 0 where it
// has none.
func parseRetention(text string) time.Duration {
	for part := range strings.SplitSeq(text, " or ") {
		if d, err := model.ParseDuration(strings.TrimSpace(part)); err == nil {
			return time.Duration(d)
		}
	}
	return 0
}

// status reads one of the status endpoints; false where the server has none.
func (s *Source) status(ctx context.Context, path string, data any) bool {
	body, err := s.get(ctx, path)
	if err != nil {
		return false
	}
	envelope := struct{ Data any }{data}
	return json.Unmarshal(body, &envelope) == nil
}

func (s *Source) get(ctx context.Context, path string) (body []byte, err error) {
	err = s.retry(ctx, request{path: path, probe: true, build: func(ctx context.Context) (*http.Request, error) {
		return http.NewRequestWithContext(ctx, http.MethodGet, s.endpoint(path).String(), nil)
	}, read: func(_ string, r io.Reader) (err error) {
		body, err = readAll(r)
		return err
	}})
	return body, err
}

// lowest is the oldest time in the server's storage, zero if it doesn't say. It
// is in the server's own metrics, whether or not it scrapes itself.
func (s *Source) lowest(ctx context.Context) time.Time {
	const name = "prometheus_tsdb_lowest_timestamp_seconds "
	body, err := s.get(ctx, "metrics")
	if err != nil {
		return time.Time{}
	}
	lines := bufio.NewScanner(bytes.NewReader(body))
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
