package prometheus

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// window is how much of a body a scanner holds at once.
const window = 64 << 10

// maxDepth bounds how deep values may nest that are only passed over.
const maxDepth = 64

// scanner reads JSON (RFC 8259) off a stream. It is strict: what it accepts is
// valid JSON in valid UTF-8. encoding/json costs ten times as much on raw points.
type scanner struct {
	r    io.Reader
	buf  []byte
	pos  int   // the next byte
	n    int   // the bytes in buf
	done error // why no more comes: io.EOF, or the transport's error
	off  int64 // where buf starts in the body
	text []byte
	seen map[string]string
}

func newScanner(r io.Reader) *scanner {
	return &scanner{r: r, buf: make([]byte, window), seen: map[string]string{}}
}

// fill moves the unread rest to the front and reads on; false at the end.
func (s *scanner) fill() bool {
	if s.done != nil || s.pos == 0 && s.n == len(s.buf) {
		return false
	}
	s.n = copy(s.buf, s.buf[s.pos:s.n])
	s.off += int64(s.pos)
	s.pos = 0
	for range 100 { // a reader may return nothing for a while
		n, err := s.r.Read(s.buf[s.n:])
		s.n += n
		if err != nil {
			s.done = err
		}
		if n > 0 || err != nil {
			return n > 0
		}
	}
	s.done = io.ErrNoProgress
	return false
}

// ensure reads on until k bytes are there, or fewer at the end.
func (s *scanner) ensure(k int) {
	for s.n-s.pos < k && s.fill() {
	}
}

// ended is the error of a body that stops too early.
func (s *scanner) ended() error {
	if errors.Is(s.done, io.EOF) {
		return fmt.Errorf("the response is cut short after %d bytes: %w", s.off+int64(s.n), io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("the response is cut short after %d bytes: %w", s.off+int64(s.n), s.done)
}

// wrong is the error of a body that is no JSON, or other than the API has it.
func (s *scanner) wrong(want string) error {
	if s.pos >= s.n && !s.fill() {
		return s.ended()
	}
	return fmt.Errorf("the response is damaged or no answer of a query API: %q at byte %d, want %s", s.buf[s.pos], s.off+int64(s.pos), want)
}

// next is the next byte that is no white space; it is not yet taken.
func (s *scanner) next() (byte, error) {
	for {
		for s.pos < s.n {
			switch c := s.buf[s.pos]; c {
			case ' ', '\n', '\t', '\r':
				s.pos++
			default:
				return c, nil
			}
		}
		if !s.fill() {
			return 0, s.ended()
		}
	}
}

func (s *scanner) expect(c byte) error {
	got, err := s.next()
	if err != nil {
		return err
	}
	if got != c {
		return s.wrong(strconv.QuoteRune(rune(c)))
	}
	s.pos++
	return nil
}

// end makes sure that nothing but white space follows.
func (s *scanner) end() error {
	if _, err := s.next(); err == nil {
		return s.wrong("its end")
	} else if !errors.Is(s.done, io.EOF) {
		return err
	}
	return nil
}

// object calls each with every key; each takes the value.
func (s *scanner) object(each func(key string) error) error {
	return s.list('{', '}', func() error {
		key, err := s.str()
		if err != nil {
			return err
		}
		name := s.intern(key)
		if err := s.expect(':'); err != nil {
			return err
		}
		return each(name)
	})
}

// array calls each at every element, which it takes.
func (s *scanner) array(each func() error) error { return s.list('[', ']', each) }

func (s *scanner) list(open, closing byte, each func() error) error {
	if err := s.expect(open); err != nil {
		return err
	}
	c, err := s.next()
	if err != nil {
		return err
	}
	if c == closing {
		s.pos++
		return nil
	}
	for {
		if err := each(); err != nil {
			return err
		}
		if c, err = s.next(); err != nil {
			return err
		}
		switch c {
		case ',':
			s.pos++
		case closing:
			s.pos++
			return nil
		default:
			return s.wrong("',' or " + strconv.QuoteRune(rune(closing)))
		}
	}
}

// str reads a string. What it returns holds until the next call of the scanner.
func (s *scanner) str() ([]byte, error) {
	if err := s.expect('"'); err != nil {
		return nil, err
	}
	for i := s.pos; i < s.n; i++ {
		if c := s.buf[i]; c == '"' {
			text := s.buf[s.pos:i]
			s.pos = i + 1
			return s.valid(text)
		} else if c == '\\' || c < ' ' {
			break
		}
	}
	s.text = s.text[:0]
	for {
		if s.pos >= s.n && !s.fill() {
			return nil, s.ended()
		}
		switch c := s.buf[s.pos]; {
		case c == '"':
			s.pos++
			return s.valid(s.text)
		case c == '\\':
			s.pos++
			if err := s.escape(); err != nil {
				return nil, err
			}
		case c < ' ':
			return nil, s.wrong("no control character in a text")
		default:
			s.text = append(s.text, c)
			s.pos++
		}
	}
}

func (s *scanner) valid(text []byte) ([]byte, error) {
	if !utf8.Valid(text) {
		return nil, fmt.Errorf("the response is damaged: a text before byte %d is not UTF-8", s.off+int64(s.pos))
	}
	return text, nil
}

// escape reads what follows a backslash. Half of a surrogate pair becomes U+FFFD,
// as encoding/json has it.
func (s *scanner) escape() error {
	if s.pos >= s.n && !s.fill() {
		return s.ended()
	}
	c := s.buf[s.pos]
	switch c {
	case '"', '\\', '/':
	case 'b':
		c = '\b'
	case 'f':
		c = '\f'
	case 'n':
		c = '\n'
	case 'r':
		c = '\r'
	case 't':
		c = '\t'
	case 'u':
		s.pos++
		r, err := s.hex()
		if err != nil {
			return err
		}
		for utf16.IsSurrogate(r) {
			s.ensure(2)
			if s.n-s.pos < 2 || s.buf[s.pos] != '\\' || s.buf[s.pos+1] != 'u' {
				break
			}
			s.pos += 2
			low, err := s.hex()
			if err != nil {
				return err
			}
			if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
				s.text = utf8.AppendRune(s.text, pair)
				return nil
			}
			s.text = utf8.AppendRune(s.text, utf8.RuneError)
			r = low
		}
		s.text = utf8.AppendRune(s.text, r) // a surrogate becomes U+FFFD
		return nil
	default:
		return s.wrong("an escape")
	}
	s.pos++
	s.text = append(s.text, c)
	return nil
}

func (s *scanner) hex() (rune, error) {
	s.ensure(4)
	var r rune
	for range 4 {
		if s.pos >= s.n {
			return 0, s.ended()
		}
		c := s.buf[s.pos]
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, s.wrong("a hexadecimal digit")
		}
		s.pos++
	}
	return r, nil
}

// number reads a number and returns its text, which holds until the next call of
// the scanner. One of more than a thousand characters is refused.
func (s *scanner) number() ([]byte, error) {
	if _, err := s.next(); err != nil {
		return nil, err
	}
	s.text = s.text[:0]
	peek := func() byte {
		if s.pos >= s.n && !s.fill() {
			return 0
		}
		return s.buf[s.pos]
	}
	take := func() {
		s.text = append(s.text, s.buf[s.pos])
		s.pos++
	}
	digits := func() error {
		if c := peek(); c < '0' || c > '9' {
			return s.wrong("a digit")
		}
		for c := peek(); c >= '0' && c <= '9'; c = peek() {
			if take(); len(s.text) > 1000 {
				return s.wrong("a shorter number")
			}
		}
		return nil
	}
	if peek() == '-' {
		take()
	}
	if peek() == '0' {
		take()
	} else if err := digits(); err != nil {
		return nil, err
	}
	if peek() == '.' {
		take()
		if err := digits(); err != nil {
			return nil, err
		}
	}
	if c := peek(); c == 'e' || c == 'E' {
		take()
		if c := peek(); c == '+' || c == '-' {
			take()
		}
		if err := digits(); err != nil {
			return nil, err
		}
	}
	return s.text, nil
}

func (s *scanner) literal(word string) error {
	s.ensure(len(word))
	if s.n-s.pos < len(word) || string(s.buf[s.pos:s.pos+len(word)]) != word {
		return s.wrong(word)
	}
	s.pos += len(word)
	return nil
}

// null takes a null if one is next.
func (s *scanner) null() (bool, error) {
	c, err := s.next()
	if err != nil || c != 'n' {
		return false, err
	}
	return true, s.literal("null")
}

// skip passes over a value of any kind.
func (s *scanner) skip(depth int) error {
	c, err := s.next()
	if err != nil {
		return err
	}
	if depth > maxDepth {
		return s.wrong("values that nest less deep")
	}
	switch c {
	case '{':
		return s.object(func(string) error { return s.skip(depth + 1) })
	case '[':
		return s.array(func() error { return s.skip(depth + 1) })
	case '"':
		_, err = s.str()
	case 't':
		err = s.literal("true")
	case 'f':
		err = s.literal("false")
	case 'n':
		err = s.literal("null")
	default:
		_, err = s.number()
	}
	return err
}

// intern returns the text as a string, the same one for the same text: names and
// most values of labels come with every series.
func (s *scanner) intern(text []byte) string {
	if known, ok := s.seen[string(text)]; ok {
		return known
	}
	out := string(text)
	s.seen[out] = out
	return out
}
