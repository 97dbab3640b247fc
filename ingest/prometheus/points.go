package prometheus

import (
	"bytes"
	"math"
	"strconv"

	"gpuledger/gpu"
)

// powers are the exact powers of ten of a float64.
var powers = [...]float64{
	1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
	1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
}

// points reads [[seconds, "value"], …] and appends those of [start, end), in
// milliseconds, that are a number.
func (s *scanner) points(to []gpu.Sample, start, end int64) ([]gpu.Sample, error) {
	if none, err := s.null(); none || err != nil {
		return to, err
	}
	if err := s.expect('['); err != nil {
		return to, err
	}
	if c, err := s.next(); err != nil {
		return to, err
	} else if c == ']' {
		s.pos++
		return to, nil
	}
	for {
		s.ensure(quickPoint)
		at, value, size := parsePoint(s.buf[s.pos:s.n])
		if size > 0 {
			s.pos += size
		} else {
			var err error
			if at, value, err = s.point(); err != nil {
				return to, err
			}
		}
		if at >= start && at < end && value == value { // not NaN, so no stale marker
			to = append(to, gpu.Sample{UnixMilli: at, Value: value})
		}
		c := byte(0)
		if s.pos < s.n {
			c = s.buf[s.pos]
		}
		if c != ',' && c != ']' {
			var err error
			if c, err = s.next(); err != nil {
				return to, err
			}
		}
		switch s.pos++; c {
		case ',':
		case ']':
			return to, nil
		default:
			s.pos--
			return to, s.wrong("',' or ']'")
		}
	}
}

// quickPoint is the length of the longest point that parsePoint reads: 14 digits of
// milliseconds, 18 of a value, and what is around them.
const quickPoint = 48

// parsePoint reads a point as servers write nearly all of them: no white space, no
// exponent, digits that fit into a float64 exactly. Size 0 leaves it to point.
func parsePoint(b []byte) (at int64, value float64, size int) {
	if len(b) < 8 || b[0] != '[' {
		return 0, 0, 0
	}
	b = b[:min(len(b), quickPoint)]
	i := 1
	for ; i < len(b); i++ {
		d := b[i] - '0'
		if d > 9 {
			break
		}
		at = at*10 + int64(d)
	}
	// No leading zero in JSON, and no more digits than an int64 has room for.
	if i == 1 || i > 12 || b[1] == '0' && i > 2 || i == len(b) {
		return 0, 0, 0
	}
	decimals := 0
	if b[i] == '.' {
		first := i + 1
		for i++; i < len(b); i++ {
			d := b[i] - '0'
			if d > 9 {
				break
			}
			at = at*10 + int64(d)
		}
		if decimals = i - first; decimals == 0 || decimals > 3 {
			return 0, 0, 0
		}
	}
	for ; decimals < 3; decimals++ {
		at *= 10
	}
	if i+2 >= len(b) || b[i] != ',' || b[i+1] != '"' {
		return 0, 0, 0
	}
	i += 2
	negative := b[i] == '-'
	if negative {
		i++
	}
	var digits uint64
	first, point := i, -1
	for ; i < len(b); i++ {
		d := b[i] - '0'
		if d <= 9 {
			digits = digits*10 + uint64(d)
		} else if b[i] == '.' && point < 0 {
			point = i
		} else {
			break
		}
	}
	count := i - first
	if point >= 0 {
		count--
	}
	if count == 0 || count > 18 || digits > 1<<53 || i+1 >= len(b) || b[i] != '"' || b[i+1] != ']' {
		return 0, 0, 0
	}
	value = float64(digits)
	if point >= 0 {
		value /= powers[i-point-1] // both exact, so the quotient is the nearest float64
	}
	if negative {
		value = -value
	}
	return at, value, i + 2
}

// point reads a point in any form that the API may have.
func (s *scanner) point() (at int64, value float64, err error) {
	if err := s.expect('['); err != nil {
		return 0, 0, err
	}
	text, err := s.number()
	if err != nil {
		return 0, 0, err
	}
	at, ok := parseMilli(text)
	if !ok {
		return 0, 0, s.wrong("a time within range before it")
	}
	if err := s.expect(','); err != nil {
		return 0, 0, err
	}
	if text, err = s.str(); err != nil {
		return 0, 0, err
	}
	if value, err = strconv.ParseFloat(string(text), 64); err != nil {
		return 0, 0, s.wrong("a number as the text before it")
	}
	return at, value, s.expect(']')
}

// parseMilli turns the seconds of a JSON number into milliseconds: exactly where it
// has no exponent, and a fourth decimal is cut off.
func parseMilli(text []byte) (int64, bool) {
	if bytes.ContainsAny(text, "eE") {
		x, err := strconv.ParseFloat(string(text), 64)
		if err != nil || math.Abs(x) > 1e14 {
			return 0, false
		}
		return int64(math.Round(x * 1000)), true
	}
	digits, negative := bytes.CutPrefix(text, []byte("-"))
	whole, part, _ := bytes.Cut(digits, []byte("."))
	if len(whole) > 14 {
		return 0, false
	}
	var at int64
	for _, c := range whole {
		at = at*10 + int64(c-'0')
	}
	for i := range 3 {
		at *= 10
		if i < len(part) {
			at += int64(part[i] - '0')
		}
	}
	if negative {
		at = -at
	}
	return at, true
}
