package openmetrics

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// seriesEnd finds where the series' text ends, and its name (0 if the name is
// quoted inside the braces).
func seriesEnd(line []byte) (end, nameEnd int, err error) {
	i := 0
	for i < len(line) && line[i] != '{' && !isBlank(line[i]) {
		i++
	}
	nameEnd = i
	brace := i + len(line[i:]) - len(skipBlanks(line[i:]))
	if brace == len(line) {
		return 0, 0, errors.New("a name without a value")
	}
	if line[brace] != '{' {
		return nameEnd, nameEnd, nil
	}
	quoted := false
	for i = brace + 1; i < len(line); i++ {
		switch line[i] {
		case '\\':
			if quoted {
				i++
			}
		case '"':
			quoted = !quoted
		case '}':
			if !quoted {
				return i + 1, nameEnd, nil
			}
		}
	}
	return 0, 0, errors.New("labels without a closing brace")
}

// parseSeries decodes name{a="b",...} or {"name",a="b",...}. Labels with an
// empty value are left out: absent and empty are the same.
func parseSeries(text []byte, nameEnd int) (string, map[string]string, error) {
	metric := string(text[:nameEnd])
	if nameEnd > 0 && !validName(text[:nameEnd]) {
		return "", nil, fmt.Errorf("%q is not a metric name", clip(text[:nameEnd]))
	}
	labels := map[string]string{}
	seen := map[string]bool{}
	rest := skipBlanks(text[nameEnd:])
	if len(rest) == 0 {
		return metric, labels, nil
	}
	rest = skipBlanks(rest[1 : len(rest)-1]) // inside the braces
	for len(rest) > 0 {
		var name string
		var err error
		if rest[0] == '"' {
			if name, rest, err = quotedText(rest); err != nil {
				return "", nil, err
			}
			rest = skipBlanks(rest)
			if len(rest) == 0 || rest[0] != '=' {
				if metric != "" || name == "" {
					return "", nil, fmt.Errorf("a metric name %q among the labels", name)
				}
				metric = name
				if rest, err = comma(rest); err != nil {
					return "", nil, err
				}
				continue
			}
		} else {
			i := 0
			for i < len(rest) && rest[i] != '=' && !isBlank(rest[i]) {
				i++
			}
			if !validName(rest[:i]) || bytes.IndexByte(rest[:i], ':') >= 0 {
				return "", nil, fmt.Errorf("%q is not a label name", clip(rest[:i]))
			}
			name, rest = string(rest[:i]), skipBlanks(rest[i:])
		}
		if len(rest) == 0 || rest[0] != '=' {
			return "", nil, fmt.Errorf("label %s without a value", name)
		}
		rest = skipBlanks(rest[1:])
		if len(rest) == 0 || rest[0] != '"' {
			return "", nil, fmt.Errorf("the value of label %s is not in quotes", name)
		}
		var value string
		if value, rest, err = quotedText(rest); err != nil {
			return "", nil, fmt.Errorf("label %s: %w", name, err)
		}
		if seen[name] || name == "__name__" || name == "" {
			return "", nil, fmt.Errorf("label %q twice or not allowed", name)
		}
		seen[name] = true
		if value != "" {
			labels[name] = value
		}
		if rest, err = comma(rest); err != nil {
			return "", nil, err
		}
	}
	if metric == "" {
		return "", nil, errors.New("labels without a metric name")
	}
	return metric, labels, nil
}

// comma steps over what separates labels; the last one may have a comma too.
func comma(rest []byte) ([]byte, error) {
	rest = skipBlanks(rest)
	if len(rest) == 0 {
		return rest, nil
	}
	if rest[0] != ',' {
		return nil, fmt.Errorf("a comma is missing before %q", clip(rest))
	}
	return skipBlanks(rest[1:]), nil
}

// quotedText reads "…" with the escapes \\, \" and \n; any other backslash
// stands for itself, as Prometheus reads it.
func quotedText(text []byte) (string, []byte, error) {
	end := 1
	escaped := false
	for ; end < len(text) && text[end] != '"'; end++ {
		if text[end] == '\\' {
			escaped = true
			end++
		}
	}
	if end >= len(text) {
		return "", nil, errors.New("a text without its closing quote")
	}
	s := string(text[1:end])
	if escaped {
		s = unescaper.Replace(s)
	}
	if !utf8.ValidString(s) {
		return "", nil, fmt.Errorf("%q is not UTF-8", s)
	}
	return s, text[end+1:], nil
}

var unescaper = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n")

// plainSample reads what nearly all lines have after their series: a blank, a whole
// number, a blank, and seconds or milliseconds with three decimals or none. ok is false
// for anything else, which need not be wrong.
func plainSample(text []byte) (value float64, milli int64, isSeconds, ok bool) {
	if len(text) == 0 || text[0] != ' ' {
		return 0, 0, false, false
	}
	n, i := digits(text, 1)
	if i == 1 || i > 16 || i == len(text) || text[i] != ' ' {
		return 0, 0, false, false
	}
	value = float64(n)
	from := i + 1
	n, i = digits(text, from)
	switch {
	case i == from || i > from+15:
		return 0, 0, false, false
	case i == len(text):
		if n < millisFrom {
			return value, n * 1000, true, true
		}
		return value, n, false, true
	case text[i] != '.' || len(text) != i+4 || n >= millisFrom:
		return 0, 0, false, false
	}
	thousandths, end := digits(text, i+1)
	return value, n*1000 + thousandths, true, end == len(text)
}

// digits reads the digits of text from i on, and says where they end. More than 18 overflow.
func digits(text []byte, i int) (n int64, end int) {
	for ; i < len(text) && text[i]-'0' <= 9; i++ {
		n = n*10 + int64(text[i]-'0')
	}
	return n, i
}

// parseSample reads a value and a time in any form that the exposition formats allow.
func parseSample(text []byte) (value float64, milli int64, isSeconds bool, err error) {
	valueText, rest := field(text)
	if value, err = parseValue(valueText); err != nil {
		return 0, 0, false, err
	}
	timeText, rest := field(rest)
	if len(timeText) == 0 || timeText[0] == '#' {
		return 0, 0, false, errors.New("a sample without a timestamp: give every sample a timestamp, e.g. with promtool tsdb dump-openmetrics")
	}
	if milli, isSeconds, err = parseTime(timeText); err != nil {
		return 0, 0, false, err
	}
	if len(rest) > 0 && rest[0] != '#' { // an exemplar may follow
		return 0, 0, false, fmt.Errorf("%q after the timestamp", clip(rest))
	}
	return value, milli, isSeconds, nil
}

// parseValue reads a number as the exposition formats have it.
func parseValue(text []byte) (float64, error) {
	if len(text) == 0 {
		return 0, errors.New("a sample without a value")
	}
	if n, ok := wholeNumber(text); ok {
		return float64(n), nil
	}
	for _, c := range text {
		if c == '_' || c == 'p' || c == 'P' || c == 'x' || c == 'X' { // Go's own notations
			return 0, fmt.Errorf("%q is not a number", clip(text))
		}
	}
	v, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number", clip(text))
	}
	return v, nil
}

// wholeNumber reads up to 15 digits, which a float64 holds exactly.
func wholeNumber(text []byte) (int64, bool) {
	if len(text) == 0 || len(text) > 15 {
		return 0, false
	}
	var n int64
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// parseTime reads a timestamp: seconds if it has a decimal point or an exponent
// or is below millisFrom, else milliseconds. Fractions of a millisecond are
// rounded from the text, not through a float.
func parseTime(text []byte) (milli int64, isSeconds bool, err error) {
	whole, fraction, hasPoint := bytes.Cut(text, []byte{'.'})
	n, ok := wholeNumber(whole)
	if ok && !hasPoint {
		if n < millisFrom {
			return n * 1000, true, nil
		}
		return n, false, nil
	}
	if ok && n < millisFrom && len(fraction) > 0 && isDigits(fraction) {
		n *= 1000
		for i, unit := 0, int64(100); i < min(3, len(fraction)); i, unit = i+1, unit/10 {
			n += int64(fraction[i]-'0') * unit
		}
		if len(fraction) > 3 && fraction[3] >= '5' {
			n++
		}
		return n, true, nil
	}
	v, err := parseValue(text)
	if err != nil || math.IsNaN(v) || math.Abs(v) >= millisFrom {
		return 0, false, fmt.Errorf("%q is not a timestamp", clip(text))
	}
	return int64(math.Round(v * 1000)), true, nil
}

func isDigits(text []byte) bool {
	for _, c := range text {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// field cuts the next word.
func field(text []byte) (word, rest []byte) {
	text = skipBlanks(text)
	i := 0
	for i < len(text) && !isBlank(text[i]) {
		i++
	}
	return text[:i], skipBlanks(text[i:])
}

func skipBlanks(text []byte) []byte {
	for len(text) > 0 && isBlank(text[0]) {
		text = text[1:]
	}
	return text
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

// validName accepts metric names, and label names but for the colon.
func validName(name []byte) bool {
	for i, c := range name {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == ':' || i > 0 && c >= '0' && c <= '9') {
			return false
		}
	}
	return len(name) > 0
}

func clip(text []byte) []byte { return text[:min(len(text), 60)] }
