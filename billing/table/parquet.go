package table

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"gpuledger/billing"
	"gpuledger/internal/parquetio"
	"gpuledger/objstore"
)

type parquetSource struct {
	file  objstore.File
	names []string
	rows  *parquetio.Reader
	tags  map[int][]tagColumn
	bad   error // a column of a shape that no cell can be read from
}

func openParquet(ctx context.Context, store objstore.Store, file billing.File, opt Options) (source, error) {
	f, err := store.Fetch(ctx, file.Key, file.ETag)
	if err != nil {
		return nil, err
	}
	if got := f.Object().Size; file.Size > 0 && got != file.Size {
		return nil, errors.Join(sizeError(file.Key, got, file.Size), f.Close())
	}
	p, err := parquetio.Open(f, f.Object().Size)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", file.Key, err)
	}
	s := &parquetSource{file: f, tags: map[int][]tagColumn{}}
	wanted, active := slices.Clone(opt.Columns), slices.Clone(opt.Active)
	for _, theirs := range p.Columns() {
		name := opt.rename(theirs)
		s.names = append(s.names, name)
		if i := slices.Index(opt.Columns, name); i >= 0 {
			wanted[i] = theirs
		}
		for col, prefix := range opt.Prefixed {
			if tag, ok := strings.CutPrefix(name, prefix); ok && tag != "" && (active == nil || slices.Contains(active, col)) {
				s.tags[col] = append(s.tags[col], tagColumn{tag, len(wanted)})
				if active != nil {
					active = append(active, len(wanted))
				}
				wanted = append(wanted, theirs)
			}
		}
	}
	s.rows = p.Reader(wanted, active)
	return s, nil
}

func (s *parquetSource) header() []string { return s.names }
func (s *parquetSource) has(col int) bool { return s.rows.Has(col) || len(s.tags[col]) > 0 }

func (s *parquetSource) next() error {
	if s.bad != nil {
		return &billing.RowError{Err: s.bad}
	}
	err := s.rows.Next()
	if err == nil || err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	return &billing.RowError{Err: err}
}

// text of a column that is not a plain value fails at the next row: a wrong shape
// is wrong on every row.
func (s *parquetSource) text(col int) (string, bool) {
	v, ok, err := s.rows.Text(col)
	if err != nil {
		s.bad = err
	}
	return v, ok
}

func (s *parquetSource) pairs(col int) (map[string]string, bool, error) {
	tags := s.tags[col]
	if len(tags) == 0 {
		return s.rows.Map(col)
	}
	var out map[string]string
	for _, t := range tags {
		v, ok, err := s.rows.Text(t.at)
		if err != nil {
			return nil, false, err
		}
		if ok && v != "" {
			if out == nil {
				out = map[string]string{}
			}
			out[t.name] = v
		}
	}
	return out, true, nil
}

func (s *parquetSource) close() error {
	return errors.Join(s.rows.Close(), s.file.Close())
}
