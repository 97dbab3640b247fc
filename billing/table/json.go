package table

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/gzip"

	"gpuledger/billing"
	"gpuledger/objstore"
)

// IsJSON reports whether a key names a file of JSON objects, one a row: one after the
// other, or in an array.
func IsJSON(key string) bool {
	k := strings.TrimSuffix(strings.ToLower(key), ".gz")
	return strings.HasSuffix(k, ".json") || strings.HasSuffix(k, ".ndjson") || strings.HasSuffix(k, ".jsonl")
}

// jsonSource reads objects. A column of an object in it is named with points:
// service.id. Such files leave out what is null, so that none of the columns can be
// said to be missing.
type jsonSource struct {
	columns []string
	paths   [][]string
	cells   []json.RawMessage
	dec     *json.Decoder
	array   bool
	body    io.Closer
}

func openJSON(ctx context.Context, store objstore.Store, file billing.File, opt Options) (source, error) {
	body, obj, err := store.Get(ctx, file.Key, file.ETag)
	if err != nil {
		return nil, err
	}
	if file.Size > 0 && obj.Size != file.Size {
		return nil, errors.Join(sizeError(file.Key, obj.Size, file.Size), body.Close())
	}
	s, err := newJSON(&exact{r: body, key: file.Key, left: obj.Size, size: obj.Size}, opt)
	if err != nil {
		return nil, errors.Join(err, body.Close())
	}
	s.body = body
	return s, nil
}

// newJSON begins a stream of objects, gzipped or not.
func newJSON(r io.Reader, opt Options) (*jsonSource, error) {
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
	s := &jsonSource{columns: opt.Columns, cells: make([]json.RawMessage, len(opt.Columns))}
	for _, c := range opt.Columns {
		s.paths = append(s.paths, strings.Split(c, "."))
	}
	for {
		b, err := buf.Peek(1)
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if b[0] != ' ' && b[0] != '\n' && b[0] != '\r' && b[0] != '\t' {
			s.array = b[0] == '['
			break
		}
		if _, err := buf.Discard(1); err != nil {
			return nil, err
		}
	}
	s.dec = json.NewDecoder(buf)
	if s.array {
		if _, err := s.dec.Token(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *jsonSource) header() []string { return s.columns }
func (s *jsonSource) has(int) bool     { return true }

func (s *jsonSource) next() error {
	if s.array && !s.dec.More() {
		switch _, err := s.dec.Token(); {
		case err == nil:
			return io.EOF
		case err == io.EOF:
			return fmt.Errorf("%w: the array of rows is cut short", billing.ErrIncomplete)
		default:
			return s.explain(err)
		}
	}
	var row map[string]json.RawMessage
	if err := s.dec.Decode(&row); err != nil {
		return s.explain(err)
	}
	if row == nil {
		return &billing.RowError{Err: errors.New("null where an object is expected")}
	}
	inner := map[string]map[string]json.RawMessage{}
	for i, path := range s.paths {
		cell := row[path[0]]
		if len(path) == 2 && cell != nil {
			group, ok := inner[path[0]]
			if !ok {
				if string(cell) != "null" {
					if err := json.Unmarshal(cell, &group); err != nil {
						return &billing.RowError{Column: path[0], Err: fmt.Errorf("not an object: %w", err)}
					}
				}
				inner[path[0]] = group
			}
			cell = group[path[1]]
		}
		if string(cell) == "null" {
			cell = nil
		}
		s.cells[i] = cell
	}
	return nil
}

func (s *jsonSource) explain(err error) error {
	var syntax *json.SyntaxError
	var shape *json.UnmarshalTypeError
	switch {
	case err == io.EOF, errors.Is(err, billing.ErrIncomplete):
		return err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: the file is cut short within a row", billing.ErrIncomplete)
	case errors.As(err, &syntax), errors.As(err, &shape):
		return &billing.RowError{Err: fmt.Errorf("not a JSON object a row: %w", err)}
	}
	return err
}

// text of a number is what stands there; of an array or object its JSON.
func (s *jsonSource) text(col int) (string, bool) {
	cell := s.cells[col]
	if len(cell) == 0 {
		return "", false
	}
	if cell[0] != '"' {
		return string(cell), true
	}
	var out string
	if err := json.Unmarshal(cell, &out); err != nil {
		return string(cell), true // it was valid within its row
	}
	return out, out != ""
}

func (s *jsonSource) pairs(int) (map[string]string, bool, error) { return nil, false, nil }

func (s *jsonSource) close() error {
	if s.body == nil {
		return nil
	}
	return s.body.Close()
}
