// Package golden is test support for the scenario folders: it reads the small
// language their telemetry is written in, and compares tables with want files.
package golden

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"

	"gpuledger/gpu"
)

// ParseMetrics reads telemetry written as runs of samples:
//
//	start 2026-10-05T09:45:00Z every 30s
//	kube_node_info{node="n1",provider_id="aws:///z/i-1"} 1x180
//	DCGM_FI_DEV_FB_USED{UUID="GPU-1",Hostname="n1"} 0x30 20480x120 _x30
//
// Each run is VALUExCOUNT, or START+STEPxCOUNT for a counter; "_" is no sample. The first sample of a line is at
// start + every/2, so that the hour's edges lie half-way between samples.
// "let NAME = text" makes $NAME stand for text in later lines.
func ParseMetrics(r io.Reader) ([]gpu.Series, error) {
	var out []gpu.Series
	var start time.Time
	var every time.Duration
	lets := strings.NewReplacer()
	var pairs []string
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 1<<20)
	for n := 1; sc.Scan(); n++ {
		line := strings.TrimSpace(sc.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		var err error
		switch {
		case strings.HasPrefix(line, "let "):
			name, text, ok := strings.Cut(strings.TrimPrefix(line, "let "), "=")
			if !ok {
				return nil, fmt.Errorf("line %d: let without =", n)
			}
			pairs = append([]string{"$" + strings.TrimSpace(name), lets.Replace(strings.TrimSpace(text))}, pairs...)
			lets = strings.NewReplacer(pairs...)
		case strings.HasPrefix(line, "start "):
			start, every, err = parseStart(line)
		default:
			var s gpu.Series
			if s, err = parseRuns(lets.Replace(line), start, every); err == nil {
				out = append(out, s)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	return out, sc.Err()
}

func parseStart(line string) (time.Time, time.Duration, error) {
	f := strings.Fields(line)
	if len(f) != 4 || f[2] != "every" {
		return time.Time{}, 0, fmt.Errorf("want: start TIME every DURATION")
	}
	start, err := time.Parse(time.RFC3339, f[1])
	if err != nil {
		return time.Time{}, 0, err
	}
	every, err := time.ParseDuration(f[3])
	return start, every, err
}

var (
	seriesPattern = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^}]*)\}\s+(.*)$`)
	labelPattern  = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="([^"]*)"`)
)

func parseRuns(line string, start time.Time, every time.Duration) (gpu.Series, error) {
	m := seriesPattern.FindStringSubmatch(line)
	if m == nil || every == 0 {
		return gpu.Series{}, fmt.Errorf("not a series, or no start line before it: %q", line)
	}
	s := gpu.Series{Metric: m[1], Labels: map[string]string{}}
	for _, l := range labelPattern.FindAllStringSubmatch(m[2], -1) {
		s.Labels[l[1]] = l[2]
	}
	at := start.Add(every / 2)
	for _, run := range strings.Fields(m[3]) {
		value, count, ok := strings.Cut(run, "x")
		if !ok {
			return s, fmt.Errorf("%q is not VALUExCOUNT", run)
		}
		n, err := strconv.Atoi(count)
		if err != nil {
			return s, err
		}
		value, step, rising := strings.Cut(value, "+")
		by := 0.0
		if rising {
			if by, err = strconv.ParseFloat(step, 64); err != nil {
				return s, err
			}
		}
		for k := range n {
			if value != "_" {
				v, err := strconv.ParseFloat(value, 64)
				if err != nil {
					return s, err
				}
				v += by * float64(k)
				s.Samples = append(s.Samples, gpu.Sample{UnixMilli: at.UnixMilli(), Value: v})
			}
			at = at.Add(every)
		}
	}
	return s, nil
}
