package table

import (
	"fmt"
	"slices"
	"time"

	"gpuledger/billing"
)

// Rows are rows that come from elsewhere than a file, such as a query's answer.
type Rows interface {
	// Next returns the texts of the next row, "" for no value, in the order of the
	// header; io.EOF after the last one. They are the caller's until the next call.
	Next() ([]string, error)
	Close() error
}

// Of reads rows with the given header; key names them in errors.
func Of(key string, header []string, rows Rows, opt Options) *Reader {
	s := &rowsSource{names: header, rows: rows}
	for _, c := range opt.Columns {
		s.index = append(s.index, slices.Index(header, c))
	}
	return &Reader{
		src: s, opt: opt, key: key, owned: true,
		strings: map[string]string{}, times: map[string]time.Time{}, maps: map[string]map[string]string{},
	}
}

type rowsSource struct {
	names []string
	index []int
	rows  Rows
	cells []string
}

func (s *rowsSource) header() []string { return s.names }
func (s *rowsSource) has(col int) bool { return s.index[col] >= 0 }
func (s *rowsSource) close() error     { return s.rows.Close() }

func (s *rowsSource) next() error {
	cells, err := s.rows.Next()
	if err != nil {
		return err
	}
	if len(cells) != len(s.names) {
		return &billing.RowError{Err: fmt.Errorf("%d values where the header has %d", len(cells), len(s.names))}
	}
	s.cells = cells
	return nil
}

func (s *rowsSource) text(col int) (string, bool) {
	if i := s.index[col]; i >= 0 && s.cells[i] != "" {
		return s.cells[i], true
	}
	return "", false
}

func (s *rowsSource) pairs(int) (map[string]string, bool, error) { return nil, false, nil }
