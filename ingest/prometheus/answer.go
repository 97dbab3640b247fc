package prometheus

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"gpuledger/gpu"
)

// answer is what an endpoint of Prometheus' HTTP API says around its data
// (https://prometheus.io/docs/prometheus/latest/querying/api/#format-overview).
type answer struct {
	status, errorType, errorText string
	warnings                     []string
}

// decodeAnswer reads a whole answer; data reads the value of its key data, which it
// has to do also where an answer of failure has some. Nothing that data gathered
// may be used after an error: what follows it may be missing, or say that it failed.
func decodeAnswer(r io.Reader, data func(*scanner) error) (answer, error) {
	var a answer
	s := newScanner(r)
	keys := once{}
	err := s.object(func(key string) error {
		switch key {
		case "status", "errorType", "error", "warnings", "data":
			if err := keys.add(s, key); err != nil {
				return err
			}
		}
		switch key {
		case "status":
			return s.textInto(&a.status)
		case "errorType":
			return s.textInto(&a.errorType)
		case "error":
			return s.textInto(&a.errorText)
		case "data":
			if none, err := s.null(); none || err != nil {
				return err
			}
			return data(s)
		case "warnings":
			if none, err := s.null(); none || err != nil {
				return err
			}
			return s.array(func() error {
				text, err := s.str()
				a.warnings = append(a.warnings, string(text))
				return err
			})
		}
		return s.skip(0) // infos, and what later versions add
	})
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return a, err
	}
	switch a.status {
	case "success":
		if !keys["data"] {
			return a, errors.New("the response is no answer of a query API: it has no data")
		}
		return a, nil
	case "error":
		return a, &apiError{code: 200, kind: a.errorType, text: a.errorText}
	}
	return a, fmt.Errorf("the response is no answer of a query API: status %q", a.status)
}

// once refuses a key that comes twice: which of the two counts is anyone's guess.
type once map[string]bool

func (o once) add(s *scanner, key string) error {
	if o[key] {
		return fmt.Errorf("the response is damaged: %q twice in one object before byte %d", key, s.off+int64(s.pos))
	}
	o[key] = true
	return nil
}

func (s *scanner) textInto(to *string) error {
	text, err := s.str()
	*to = string(text)
	return err
}

// decodeMatrix reads the raw points of a range selector: those of [start, end), in
// milliseconds. Series without any are left out.
func decodeMatrix(r io.Reader, start, end int64) ([]gpu.Series, []string, error) {
	var out []gpu.Series
	kind, got := "", false
	var points, before []gpu.Sample // of a series, and of the one before
	a, err := decodeAnswer(r, func(s *scanner) error {
		keys := once{}
		return s.object(func(key string) error {
			if key != "resultType" && key != "result" {
				return s.skip(0) // stats
			}
			if err := keys.add(s, key); err != nil {
				return err
			}
			if key == "resultType" {
				return s.textInto(&kind)
			}
			got = true
			if none, err := s.null(); none || err != nil {
				return err
			}
			return s.array(func() error {
				var series gpu.Series
				var err error
				if series, points, err = s.series(points[:0], start, end); err != nil || len(points) == 0 {
					return err
				}
				// Many series say the same at the same times, as those of a pod's labels do.
				if points = inOrder(points); sameSamples(points, before) {
					series.Samples = before
				} else {
					series.Samples = slices.Clone(points)
				}
				before = series.Samples
				out = append(out, series)
				return nil
			})
		})
	})
	if err != nil {
		return nil, nil, err
	}
	if kind != "matrix" || !got {
		return nil, nil, fmt.Errorf("the response has a result of type %q, want matrix", kind)
	}
	return out, a.warnings, nil
}

// series reads one series of a matrix. Native histograms hold no plain samples.
func (s *scanner) series(points []gpu.Sample, start, end int64) (series gpu.Series, _ []gpu.Sample, err error) {
	keys := once{}
	err = s.object(func(key string) error {
		if key != "metric" && key != "values" {
			return s.skip(0)
		}
		err := keys.add(s, key)
		switch {
		case err != nil:
		case key == "metric":
			series, err = s.metric()
		default:
			points, err = s.points(points, start, end)
		}
		return err
	})
	if err == nil && !keys["metric"] {
		err = fmt.Errorf("the response is damaged: a series without labels before byte %d", s.off+int64(s.pos))
	}
	return series, points, err
}

// metric reads the labels of a series. An empty value is no label.
func (s *scanner) metric() (gpu.Series, error) {
	series := gpu.Series{Labels: map[string]string{}}
	keys := once{}
	err := s.object(func(name string) error {
		if err := keys.add(s, name); err != nil {
			return err
		}
		text, err := s.str()
		switch value := s.intern(text); {
		case name == "__name__":
			series.Metric = value
		case value != "":
			series.Labels[name] = value
		}
		return err
	})
	return series, err
}

// decodeSeries reads a list of label sets, as /api/v1/series gives it.
func decodeSeries(r io.Reader) ([]gpu.Series, []string, error) {
	var out []gpu.Series
	a, err := decodeAnswer(r, func(s *scanner) error {
		return s.array(func() error {
			series, err := s.metric()
			out = append(out, series)
			return err
		})
	})
	if err != nil {
		return nil, nil, err
	}
	return out, a.warnings, nil
}

// twice finds a series that is there twice: two that became equal can't be told
// apart, and both would count.
func twice(all []gpu.Series) error {
	seen := make(map[string]struct{}, len(all))
	var key strings.Builder
	for i := range all {
		key.Reset()
		writeKey(&key, "__name__", all[i].Metric)
		for _, name := range sortedNames(all[i].Labels) {
			writeKey(&key, name, all[i].Labels[name])
		}
		if _, there := seen[key.String()]; there {
			return fmt.Errorf("the server sent the series %s%v twice: a label that tells two series apart is hidden or dropped", all[i].Metric, all[i].Labels)
		}
		seen[key.String()] = struct{}{}
	}
	return nil
}

func writeKey(key *strings.Builder, name, value string) {
	key.WriteString(name)
	key.WriteByte(0xff) // never in UTF-8
	key.WriteString(value)
	key.WriteByte(0xff)
}
