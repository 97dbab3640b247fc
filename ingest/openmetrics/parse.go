package openmetrics

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
)

const (
	maxLine = 1 << 20 // bytes

	// A whole number below this is seconds (until the year 5138), at or above it
	// milliseconds (since March 1973). A decimal point or an exponent means seconds.
	millisFrom = 100_000_000_000
)

// fileParser reads one file line by line. It keeps the samples of wanted metrics
// and checks the shape of all lines.
type fileParser struct {
	wanted map[string]bool
	// byText finds a series by its text as written: labels are decoded once a
	// series, not once a sample.
	byText map[string]*series
	byKey  map[string]*series
	list   []*series // in order of appearance

	samples        int64 // read, wanted or not, without NaN
	kept           int64
	minMilli       int64
	maxMilli       int64
	seconds, milli bool   // which unit of time was seen
	eof            bool   // "# EOF" was seen
	lastText       []byte // a text of the series last, as written
	last           *series
	unkept         []byte // holds lastText where no series does
	skipped        []byte // the name, with its brace, of the last metric that was not wanted
}

func newFileParser(wanted map[string]bool) *fileParser {
	return &fileParser{
		wanted: wanted, byText: map[string]*series{}, byKey: map[string]*series{},
		minMilli: math.MaxInt64, maxMilli: math.MinInt64,
	}
}

// lineError names the line of a text that is not as it should be.
type lineError struct {
	line int
	err  error
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %v", e.line, e.err) }
func (e *lineError) Unwrap() error { return e.err }

// read parses r to its end. alive is asked now and then whether to go on.
func (p *fileParser) read(r io.Reader, alive func() error) error {
	br := bufio.NewReaderSize(r, maxLine)
	for n := 1; ; n++ {
		if n%8192 == 0 {
			if err := alive(); err != nil {
				return err
			}
		}
		line, err := br.ReadSlice('\n')
		if err == nil {
			line = line[:len(line)-1]
		} else if errors.Is(err, bufio.ErrBufferFull) {
			return &lineError{n, fmt.Errorf("longer than %d bytes", maxLine)}
		} else if !errors.Is(err, io.EOF) {
			return &lineError{n, err}
		}
		if n == 1 {
			line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
		}
		line = bytes.TrimSuffix(line, []byte{'\r'})
		atEnd := err != nil
		if atEnd && len(line) > 0 && string(line) != "# EOF" {
			return &lineError{n, errors.New("the file is cut short: its last line has no line end")}
		}
		if lerr := p.line(line); lerr != nil {
			return &lineError{n, lerr}
		}
		if atEnd {
			if p.seconds && !p.eof {
				return &lineError{n, errors.New("the file is cut short: no \"# EOF\" at the end")}
			}
			return nil
		}
	}
}

func (p *fileParser) line(line []byte) error {
	rest := skipBlanks(line)
	if len(rest) == 0 {
		return nil
	}
	if p.eof {
		return errors.New("text after \"# EOF\"")
	}
	if rest[0] == '#' {
		p.eof = string(rest) == "# EOF"
		return nil
	}
	s, rest, err := p.series(rest)
	if err != nil {
		return err
	}
	value, milli, isSeconds, ok := plainSample(rest)
	if !ok {
		if value, milli, isSeconds, err = parseSample(rest); err != nil {
			return err
		}
	}
	if isSeconds {
		p.seconds = true
	} else {
		p.milli = true
	}
	if p.seconds && p.milli {
		return errors.New("the file mixes timestamps in seconds and in milliseconds")
	}
	if value != value { // NaN, stale markers among them
		return nil
	}
	p.samples++
	p.minMilli, p.maxMilli = min(p.minMilli, milli), max(p.maxMilli, milli)
	if s != nil {
		p.kept++
		s.append(milli, value)
	}
	return nil
}

// series finds the series at the start of line; nil if its metric is not wanted.
func (p *fileParser) series(line []byte) (*series, []byte, error) {
	// A bare name proves nothing: blanks and labels may follow it.
	if n := len(p.lastText); n > 0 && len(line) > n && p.lastText[n-1] == '}' && bytes.Equal(line[:n], p.lastText) {
		return p.last, line[n:], nil
	}
	// Files in the order of scrapes repeat the order of their series.
	if p.last != nil && p.last.next != nil {
		if next := p.last.next; len(line) > len(next.text) && bytes.Equal(line[:len(next.text)], next.text) {
			return p.take(next, next.text), line[len(next.text):], nil
		}
	}
	// Without an exemplar the last brace closes the labels. A hit proves it, since
	// only whole series texts are in the map.
	if end := bytes.LastIndexByte(line, '}') + 1; end > 0 {
		if s, ok := p.byText[string(line[:end])]; ok {
			return p.take(s, line[:end]), line[end:], nil
		}
	}
	if rest, ok := p.skip(line); ok {
		return nil, rest, nil
	}
	end, nameEnd, err := seriesEnd(line)
	if err != nil {
		return nil, nil, err
	}
	text, rest := line[:end], line[end:]
	if nameEnd > 0 && !p.wanted[string(line[:nameEnd])] {
		if !validName(line[:nameEnd]) {
			return nil, nil, fmt.Errorf("%q is not a metric name", clip(line[:nameEnd]))
		}
		return nil, rest, nil
	}
	s, ok := p.byText[string(text)]
	if !ok {
		metric, labels, err := parseSeries(text, nameEnd)
		if err != nil {
			return nil, nil, err
		}
		if p.wanted[metric] {
			key := seriesKey(metric, labels)
			if s = p.byKey[key]; s == nil {
				s = &series{metric: metric, labels: labels}
				p.byKey[key] = s
				p.list = append(p.list, s)
			}
			p.byText[string(text)] = s
		}
	}
	return p.take(s, text), rest, nil
}

// take notes that a series, or one that is not wanted, was on the line.
func (p *fileParser) take(s *series, text []byte) *series {
	if s != nil && s.text == nil && text[len(text)-1] == '}' {
		s.text = bytes.Clone(text)
	}
	if p.last != nil && s != nil && s.text != nil {
		p.last.next = s
	}
	p.last = s
	if s != nil && s.text != nil { // which means the same series, even if spelled otherwise
		p.lastText = s.text
	} else {
		p.unkept = append(p.unkept[:0], text...)
		p.lastText = p.unkept
	}
	return s
}

// skip steps over the labels of a metric that is not wanted, where nothing but the last
// brace can close them.
func (p *fileParser) skip(line []byte) (rest []byte, ok bool) {
	nameEnd := len(p.skipped) - 1
	if nameEnd < 0 || !bytes.HasPrefix(line, p.skipped) {
		nameEnd = bytes.IndexByte(line, '{')
		if nameEnd <= 0 || p.wanted[string(line[:nameEnd])] || !validName(line[:nameEnd]) {
			return nil, false
		}
		p.skipped = append(p.skipped[:0], line[:nameEnd+1]...)
	}
	if bytes.IndexByte(line, '#') >= 0 {
		return nil, false
	}
	end := bytes.LastIndexByte(line, '}')
	if end < 0 || end > nameEnd+1 && line[end-1] != '"' {
		return nil, false
	}
	return line[end+1:], true
}
