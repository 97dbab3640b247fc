package table

import (
	"context"
	"errors"
	"fmt"
	"io"

	"gpuledger/billing"
	"gpuledger/internal/parquetio"
	"gpuledger/objstore"
)

type parquetSource struct {
	file  objstore.File
	names []string
	rows  *parquetio.Reader
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
	return &parquetSource{file: f, names: p.Columns(), rows: p.Reader(opt.Columns, opt.Active)}, nil
}

func (s *parquetSource) header() []string { return s.names }
func (s *parquetSource) has(col int) bool { return s.rows.Has(col) }

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

func (s *parquetSource) pairs(col int) (map[string]string, bool, error) { return s.rows.Map(col) }

func (s *parquetSource) close() error {
	return errors.Join(s.rows.Close(), s.file.Close())
}
