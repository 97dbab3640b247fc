package prometheus

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/prometheus/prompb"

	"gpuledger/gpu"
	"gpuledger/ingest"
)

const (
	queryPath  = "api/v1/query"
	seriesPath = "api/v1/series"
)

// query reads the raw points of [start, end), in milliseconds, by a range selector.
//
// Prometheus 2 takes a range closed on both ends, 3 and VictoriaMetrics without its
// start, and not every server knows milliseconds in a selector: it asks for whole
// seconds that hold the span and one more before, and clips by timestamp, so that
// all of them say the same.
func (s *Source) query(ctx context.Context, sel ingest.Selector, start, end int64, probe bool) ([]gpu.Series, error) {
	until := floorDiv(end+999, 1000)
	form := url.Values{
		"query": {selector(sel) + "[" + strconv.FormatInt(until-floorDiv(start, 1000)+1, 10) + "s]"},
		"time":  {strconv.FormatInt(until, 10)},
		// Thanos: the samples as they were scraped. Others don't know it.
		"max_source_resolution": {"0s"},
	}
	var all []gpu.Series
	var warnings []string
	err := s.retry(ctx, s.post(queryPath, form, probe, func(body io.Reader) (err error) {
		all, warnings, err = decodeMatrix(body, start, end)
		return err
	}))
	if err == nil {
		err = s.warned(queryPath, warnings)
	}
	if err == nil {
		if err = twice(all); err != nil {
			err = s.at(queryPath, err)
		}
	}
	return all, err
}

// post is a request of the query API with its parameters in the body, where they
// may be long. Its answer is JSON, which read takes apart.
func (s *Source) post(path string, form url.Values, probe bool, read func(io.Reader) error) request {
	text := form.Encode()
	return request{path: path, probe: probe, build: func(ctx context.Context) (*http.Request, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.endpoint(path).String(), strings.NewReader(text))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Accept", "application/json")
		return req, nil
	}, read: func(mediaType string, body io.Reader) error {
		if mediaType != "application/json" {
			return backoff.Permanent(notThe("the query API", mediaType))
		}
		return read(body)
	}}
}

// warned turns the warnings of an answer into an error, or keeps them if partial
// data is allowed.
func (s *Source) warned(path string, warnings []string) error {
	if len(warnings) == 0 {
		return nil
	}
	for i := range warnings {
		warnings[i] = s.secrets.hide(shorten(warnings[i]))
	}
	if !s.cfg.AllowPartial {
		return s.at(path, fmt.Errorf("%w: %s", ErrPartial, strings.Join(warnings, "; ")))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range warnings {
		if !slices.Contains(s.warnings, w) && len(s.warnings) < maxWarnings {
			s.warnings = append(s.warnings, w)
		}
	}
	return nil
}

// maxWarnings bounds how many different warnings are kept.
const maxWarnings = 100

// Warnings implements ingest.Partial: the different warnings so far.
func (s *Source) Warnings() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.warnings)
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

var plainName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// selector renders the matchers in PromQL, whose texts are those of Go
// (https://prometheus.io/docs/prometheus/latest/querying/basics/#string-literals).
func selector(sel ingest.Selector) string {
	var out strings.Builder
	for i, m := range matchers(sel) {
		out.WriteByte("{,"[min(i, 1)])
		if name := m.Name; plainName.MatchString(name) {
			out.WriteString(name)
		} else {
			out.WriteString(strconv.Quote(name)) // Prometheus 3
		}
		if m.Type == prompb.LabelMatcher_RE {
			out.WriteString("=~")
		} else {
			out.WriteByte('=')
		}
		out.WriteString(strconv.Quote(m.Value))
	}
	return out.String() + "}"
}

func sortedNames(labels map[string]string) []string { return slices.Sorted(maps.Keys(labels)) }
