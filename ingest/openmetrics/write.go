package openmetrics

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"gpuledger/gpu"
)

// Write writes series as OpenMetrics text: metrics grouped and sorted by name,
// each of type unknown (the name says all that the reader needs, and the type
// demands no suffix), timestamps in seconds, "# EOF" at the end. A name or value
// that the format can't hold is an error.
func Write(w io.Writer, all []gpu.Series) error {
	type line struct {
		text string
		s    gpu.Series
	}
	lines := make([]line, 0, len(all))
	for _, s := range all {
		text, err := seriesText(s)
		if err != nil {
			return err
		}
		lines = append(lines, line{text, s})
	}
	slices.SortStableFunc(lines, func(a, b line) int {
		return cmp.Or(cmp.Compare(a.s.Metric, b.s.Metric), cmp.Compare(a.text, b.text))
	})
	bw := bufio.NewWriterSize(w, 1<<16)
	var buf []byte
	for i, l := range lines {
		if i == 0 || lines[i-1].s.Metric != l.s.Metric {
			name := l.s.Metric
			if !validName([]byte(name)) {
				name = `"` + escaper.Replace(name) + `"`
			}
			fmt.Fprintf(bw, "# TYPE %s unknown\n", name)
		}
		for _, x := range l.s.Samples {
			if x.UnixMilli < 0 || x.UnixMilli >= 1000*millisFrom {
				return fmt.Errorf("%s: time %d ms is out of range", l.text, x.UnixMilli)
			}
			buf = append(append(buf[:0], l.text...), ' ')
			buf = strconv.AppendFloat(buf, x.Value, 'g', -1, 64)
			buf = append(buf, ' ')
			buf = strconv.AppendInt(buf, x.UnixMilli/1000, 10)
			if ms := x.UnixMilli % 1000; ms != 0 {
				buf = fmt.Appendf(buf, ".%03d", ms)
			}
			bw.Write(append(buf, '\n')) // bufio keeps the first error for Flush
		}
	}
	bw.WriteString("# EOF\n")
	return bw.Flush()
}

var escaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func seriesText(s gpu.Series) (string, error) {
	if !utf8.ValidString(s.Metric) || s.Metric == "" {
		return "", fmt.Errorf("%q can't be a metric name", s.Metric)
	}
	var parts []string
	plain := validName([]byte(s.Metric))
	if !plain {
		parts = append(parts, `"`+escaper.Replace(s.Metric)+`"`)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Labels)) {
		value := s.Labels[name]
		if value == "" {
			continue
		}
		if !utf8.ValidString(name) || !utf8.ValidString(value) || name == "" || name == "__name__" {
			return "", fmt.Errorf("%s: label %q=%q can't be written", s.Metric, name, value)
		}
		if !validName([]byte(name)) || strings.Contains(name, ":") {
			name = `"` + escaper.Replace(name) + `"`
		}
		parts = append(parts, name+`="`+escaper.Replace(value)+`"`)
	}
	switch {
	case !plain:
		return "{" + strings.Join(parts, ",") + "}", nil
	case len(parts) == 0:
		return s.Metric, nil
	}
	return s.Metric + "{" + strings.Join(parts, ",") + "}", nil
}

// seriesKey is equal exactly for equal label sets.
func seriesKey(metric string, labels map[string]string) string {
	var b strings.Builder
	b.WriteString(metric)
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		// Valid UTF-8 never holds these bytes.
		b.WriteByte(0xff)
		b.WriteString(name)
		b.WriteByte(0xfe)
		b.WriteString(labels[name])
	}
	return b.String()
}
