package table

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"

	"gpuledger/billing"
	"gpuledger/objstore"
)

type csvSource struct {
	names  []string
	index  []int // position in the record of each wanted column, -1 where absent
	tags   map[int][]tagColumn
	record []string
	nulls  map[string]bool
	rows   *csv.Reader
	body   io.Closer
}

func openCSV(ctx context.Context, store objstore.Store, file billing.File, opt Options) (source, error) {
	body, obj, err := store.Get(ctx, file.Key, file.ETag)
	if err != nil {
		return nil, err
	}
	if file.Size > 0 && obj.Size != file.Size {
		body.Close()
		return nil, sizeError(file.Key, obj.Size, file.Size)
	}
	src, err := newCSV(&exact{r: body, key: file.Key, left: obj.Size, size: obj.Size}, opt)
	if err != nil {
		body.Close()
		var rowErr *billing.RowError
		if errors.As(err, &rowErr) || errors.Is(err, billing.ErrIncomplete) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, err
		}
		return nil, fmt.Errorf("%s: %w", file.Key, err)
	}
	src.body = body
	return src, nil
}

func sizeError(key string, got, want int64) error {
	return fmt.Errorf("%s: %w: the file has %d bytes and the manifest says %d; wait for the provider to finish writing it", key, billing.ErrIncomplete, got, want)
}

// exact refuses a stream that ends before or after the size the store gave.
type exact struct {
	r          io.Reader
	key        string
	left, size int64
}

func (e *exact) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	e.left -= int64(n)
	if err == io.EOF && e.left != 0 {
		return n, sizeError(e.key, e.size-e.left, e.size)
	}
	return n, err
}

// newCSV reads the header of a CSV stream, gzipped or not.
func newCSV(r io.Reader, opt Options) (*csvSource, error) {
	buf := bufio.NewReaderSize(r, 1<<18)
	if magic, _ := buf.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(buf)
		if err != nil {
			return nil, explainGzip(err)
		}
		buf = bufio.NewReaderSize(gzipErrors{z}, 1<<18)
	}
	if bom, _ := buf.Peek(3); bytes.Equal(bom, []byte{0xef, 0xbb, 0xbf}) {
		if _, err := buf.Discard(3); err != nil {
			return nil, err
		}
	}
	s := &csvSource{rows: csv.NewReader(buf), nulls: map[string]bool{"": true}}
	for _, n := range opt.Nulls {
		s.nulls[n] = true
	}
	s.rows.ReuseRecord = true
	s.rows.FieldsPerRecord = -1 // checked here, to say it with the row
	head, err := s.rows.Read()
	switch {
	case err == io.EOF:
		return nil, fmt.Errorf("%w: the file is empty, it has not even a header", billing.ErrIncomplete)
	case err != nil:
		return nil, s.explain(err)
	}
	return s, s.setHeader(head, opt)
}

// tagColumn is a column that holds one name of a map.
type tagColumn struct {
	name string
	at   int
}

// setHeader finds the wanted columns. Empty cells name no column; a wanted
// column that stands there twice would be a guess.
func (s *csvSource) setHeader(head []string, opt Options) error {
	wanted := opt.Columns
	at := make(map[string]int, len(head))
	twice := map[string]bool{}
	for i, name := range head {
		name = opt.rename(strings.Clone(strings.TrimSpace(name)))
		s.names = append(s.names, name)
		for col, prefix := range opt.Prefixed {
			if tag, ok := strings.CutPrefix(name, prefix); ok && tag != "" {
				if s.tags == nil {
					s.tags = map[int][]tagColumn{}
				}
				s.tags[col] = append(s.tags[col], tagColumn{tag, i})
			}
		}
		if _, ok := at[name]; ok {
			twice[name] = true
		}
		at[name] = i
	}
	s.index = make([]int, len(wanted))
	for i, name := range wanted {
		pos, ok := at[name]
		if !ok || name == "" {
			pos = -1
		}
		if twice[name] {
			return fmt.Errorf("the header names column %s twice; export the file with one of them", name)
		}
		s.index[i] = pos
	}
	return nil
}

func (s *csvSource) header() []string { return s.names }
func (s *csvSource) has(col int) bool { return s.index[col] >= 0 || len(s.tags[col]) > 0 }

func (s *csvSource) next() error {
	rec, err := s.rows.Read()
	if err != nil {
		return s.explain(err)
	}
	if len(rec) != len(s.names) {
		return &billing.RowError{Err: fmt.Errorf("%d fields where the header has %d", len(rec), len(s.names))}
	}
	s.record = rec
	return nil
}

func (s *csvSource) explain(err error) error {
	var parse *csv.ParseError
	if errors.As(err, &parse) {
		return &billing.RowError{Err: fmt.Errorf("line %d of the file: %w", parse.Line, parse.Err)}
	}
	return err
}

func (s *csvSource) text(col int) (string, bool) {
	if i := s.index[col]; i >= 0 {
		if v := s.record[i]; !s.nulls[v] {
			return v, true
		}
	}
	return "", false
}

func (s *csvSource) pairs(col int) (map[string]string, bool, error) {
	tags := s.tags[col]
	if len(tags) == 0 {
		return nil, false, nil
	}
	var out map[string]string
	for _, t := range tags {
		if v := s.record[t.at]; !s.nulls[v] {
			if out == nil {
				out = map[string]string{}
			}
			out[t.name] = strings.Clone(v)
		}
	}
	return out, true, nil
}

func (s *csvSource) close() error {
	if s.body == nil {
		return nil
	}
	return s.body.Close()
}

// gzipErrors marks a stream that ends early or fails its checksum as incomplete.
type gzipErrors struct{ r io.Reader }

func (g gzipErrors) Read(p []byte) (int, error) {
	n, err := g.r.Read(p)
	return n, explainGzip(err)
}

func explainGzip(err error) error {
	var corrupt flate.CorruptInputError
	switch {
	case err == nil, err == io.EOF, errors.Is(err, billing.ErrIncomplete):
		return err
	case errors.As(err, &corrupt), errors.Is(err, gzip.ErrChecksum), errors.Is(err, gzip.ErrHeader), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: the gzip stream is truncated or damaged (%w)", billing.ErrIncomplete, err)
	}
	return err
}
