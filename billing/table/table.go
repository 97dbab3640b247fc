// Package table reads the data files of a delivery row by row and column by
// name, the same way for CSV, gzipped CSV and Parquet, so that a provider's
// decoder is written once.
package table

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/objstore"
)

// Options say how a file is read.
type Options struct {
	// Columns are the columns wanted, by their exact names. A row's cells are
	// addressed by their index in it.
	Columns []string
	// Active, if not nil, are the indexes of the only columns whose cells will be
	// asked for: the rest need not be decoded. Has answers for all.
	Active []int
	// Rename brings a name of a file's header to those of Columns; nil: as it is.
	Rename func(string) string
	// Prefixed are columns of Columns that a file may have as many, each of one name of
	// the map: the index of Columns, and what stands before the name, once renamed.
	Prefixed map[int]string
	// Nulls are the texts that mean "no value" in CSV, beside the empty cell.
	Nulls []string
}

// source is one open file: CSV or Parquet.
type source interface {
	header() []string
	has(col int) bool
	next() error // io.EOF after the last row
	text(col int) (string, bool)
	pairs(col int) (map[string]string, bool, error)
	close() error
}

// Reader walks the rows of one file. It is not safe for concurrent use.
type Reader struct {
	src     source
	opt     Options
	key     string
	row     int64
	owned   bool // texts are strings of their own already
	strings map[string]string
	times   map[string]time.Time
	maps    map[string]map[string]string
}

// rename applies Options.Rename.
func (o Options) rename(name string) string {
	if o.Rename == nil {
		return name
	}
	return o.Rename(name)
}

// Open opens one data file, pinned to the entity tag that the delivery recorded,
// and reads its header. A file that is absent, changed, truncated or not of the
// recorded size is an error that wraps billing.ErrIncomplete. Parquet, JSON and zip are
// told by the name, gzip by the content.
func Open(ctx context.Context, store objstore.Store, file billing.File, opt Options) (*Reader, error) {
	r := &Reader{
		opt: opt, key: file.Key,
		strings: map[string]string{}, times: map[string]time.Time{}, maps: map[string]map[string]string{},
	}
	var err error
	switch {
	case isParquet(file.Key):
		r.owned = true
		r.src, err = openParquet(ctx, store, file, opt)
	case strings.HasSuffix(strings.ToLower(file.Key), ".zip"):
		r.src, err = openZip(ctx, store, file, opt)
	case IsJSON(file.Key):
		r.src, err = openJSON(ctx, store, file, opt)
	default:
		r.src, err = openCSV(ctx, store, file, opt)
	}
	if err != nil {
		var rowErr *billing.RowError
		if errors.As(err, &rowErr) && rowErr.File == "" {
			rowErr.File = file.Key
		}
		return nil, Incomplete(file.Key, err)
	}
	return r, nil
}

func isParquet(key string) bool { return strings.HasSuffix(strings.ToLower(key), ".parquet") }

// IsData reports whether a key names a file that Open reads.
func IsData(key string) bool {
	k := strings.ToLower(key)
	return isParquet(k) || strings.HasSuffix(k, ".csv") || strings.HasSuffix(k, ".csv.gz") || strings.HasSuffix(k, ".zip")
}

// Incomplete translates a store's errors about a file into billing.ErrIncomplete:
// each of them may be gone at the next try.
func Incomplete(key string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, billing.ErrIncomplete):
		if strings.Contains(err.Error(), key) {
			return err
		}
		return fmt.Errorf("%s: %w", key, err)
	case errors.Is(err, objstore.ErrNotFound), errors.Is(err, objstore.ErrChanged), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%s: %w: %w; nothing of it was loaded; try again after the provider's next delivery", key, billing.ErrIncomplete, err)
	}
	return err
}

// Close releases the file.
func (r *Reader) Close() error { return r.src.close() }

// Header returns the names of all columns of the file, in its order.
func (r *Reader) Header() []string { return r.src.header() }

// Has reports whether the file has the column with index col of Options.Columns.
func (r *Reader) Has(col int) bool { return r.src.has(col) }

// Row returns the number of the current row; 1 is the first data row.
func (r *Reader) Row() int64 { return r.row }

// Next moves to the next row and returns io.EOF after the last one.
func (r *Reader) Next() error {
	err := r.src.next()
	var rowErr *billing.RowError
	switch {
	case err == nil:
		r.row++
		return nil
	case err == io.EOF:
		return io.EOF
	case errors.As(err, &rowErr):
		rowErr.File, rowErr.Row = r.key, r.row+1
		return rowErr
	}
	return Incomplete(r.key, err)
}

// Text returns a cell, or "" where the column is absent or the cell holds no
// value. The string may share memory with the whole row: see Keep.
func (r *Reader) Text(col int) string {
	s, _ := r.src.text(col)
	return s
}

// Keep returns a cell as a string of its own that can be held after the row is
// gone. Equal texts share one string.
func (r *Reader) Keep(col int) string {
	s := r.Text(col)
	if s == "" || r.owned {
		return s
	}
	if kept, ok := r.strings[s]; ok {
		return kept
	}
	if len(r.strings) >= maxShared {
		clear(r.strings)
	}
	kept := strings.Clone(s)
	r.strings[kept] = kept
	return kept
}

// maxShared bounds each of a reader's caches of repeated cells.
const maxShared = 1 << 16

// Amount returns a cell as an exact number; absent where there is no value.
func (r *Reader) Amount(col int) (money.NullAmount, error) {
	s := r.Text(col)
	if s == "" {
		return money.NullAmount{}, nil
	}
	a, err := money.Parse(s)
	if err != nil {
		return money.NullAmount{}, r.Error(col, err)
	}
	return money.Some(a), nil
}

// Must returns a cell as an exact number; no value is an error.
func (r *Reader) Must(col int) (money.Amount, error) {
	a, err := r.Amount(col)
	if err == nil && !a.Valid {
		err = r.Error(col, errors.New("no value where a number is required"))
	}
	return a.Amount, err
}

// timeLayouts are RFC 3339 and the shapes that exports use in its place: a space
// for the T, no zone (UTC), no seconds, or a date alone.
var timeLayouts = []string{
	time.RFC3339Nano, "2006-01-02 15:04:05.999999999", "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05Z07:00",
	"2006-01-02T15:04Z07:00", "2006-01-02 15:04", "2006-01-02T15:04", "2006-01-02 15:04:05 UTC", "2006-01-02 15:04:05 MST", "2006-01-02",
}

// Time returns a cell as an instant in UTC; no value is an error.
func (r *Reader) Time(col int) (time.Time, error) {
	s := r.Text(col)
	if t, ok := r.times[s]; ok {
		return t, nil
	}
	t, err := parseTime(s)
	if err != nil {
		return time.Time{}, r.Error(col, err)
	}
	if len(r.times) >= maxShared {
		clear(r.times)
	}
	r.times[strings.Clone(s)] = t
	return t, nil
}

func parseTime(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, errors.New("no value where a time is required")
	}
	for _, layout := range timeLayouts {
		t, err := time.Parse(layout, s)
		if err != nil {
			continue
		}
		if name, offset := t.Zone(); layout == "2006-01-02 15:04:05 MST" && name != "UTC" && offset == 0 {
			continue // an abbreviation that time.Parse does not know is not UTC
		}
		if y := t.UTC().Year(); y < 2000 || y > 2200 {
			return time.Time{}, fmt.Errorf("time %q is not of this century", s)
		}
		return t.UTC(), nil
	}
	return time.Time{}, fmt.Errorf("%q is not a time like 2026-10-01T00:00:00Z", s)
}

// Map returns a cell of names and values: a Parquet map, or a JSON object as
// CSV carries it. No value, null and {} are a nil map. Values that are not text
// keep their JSON form. Equal cells share one map: it must not be modified.
func (r *Reader) Map(col int) (map[string]string, error) {
	if m, ok, err := r.src.pairs(col); err != nil {
		return nil, r.Error(col, err)
	} else if ok {
		return m, nil
	}
	s := r.Text(col)
	if s == "" || s == "{}" {
		return nil, nil
	}
	if m, ok := r.maps[s]; ok {
		return m, nil
	}
	m, err := ParseObject(s)
	if err != nil {
		return nil, r.Error(col, err)
	}
	if len(r.maps) >= maxShared/16 {
		clear(r.maps)
	}
	r.maps[strings.Clone(s)] = m
	return m, nil
}

// ParseObject reads a JSON object of names and values, or an array of objects that have a
// key and a value each. Keys stay verbatim: tag names hold ':' and '/'.
func ParseObject(s string) (map[string]string, error) {
	if strings.HasPrefix(s, "[") {
		return parsePairs(s)
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal([]byte(s), &raw); err != nil {
		return nil, fmt.Errorf("not a JSON object of names and values: %w", err)
	}
	if len(raw) == 0 {
		return nil, nil
	}
	out := make(map[string]string, len(raw))
	for k, v := range raw {
		var text string
		switch {
		case string(v) == "null":
			text = ""
		case v[0] != '"':
			text = string(v)
		default:
			if err := json.Unmarshal(v, &text); err != nil {
				return nil, fmt.Errorf("value of %q: %w", k, err)
			}
		}
		out[k] = text
	}
	return out, nil
}

// parsePairs reads [{"key": …, "value": …}], as BigQuery has it. A name that is there
// twice keeps its first value.
func parsePairs(s string) (map[string]string, error) {
	var list []struct{ Key, Value *string } // found without regard to case
	if err := json.Unmarshal([]byte(s), &list); err != nil {
		return nil, fmt.Errorf("not an array of keys and values: %w", err)
	}
	var out map[string]string
	for _, p := range list {
		if p.Key == nil {
			return nil, fmt.Errorf("an element without a key in %.60s", s)
		}
		if _, twice := out[*p.Key]; twice {
			continue
		}
		if out == nil {
			out = make(map[string]string, len(list))
		}
		out[*p.Key] = ""
		if p.Value != nil {
			out[*p.Key] = *p.Value
		}
	}
	return out, nil
}

// Error says which cell of the current row is broken.
func (r *Reader) Error(col int, err error) *billing.RowError {
	e := &billing.RowError{File: r.key, Row: r.row, Err: err}
	if col >= 0 {
		e.Column = r.opt.Columns[col]
	}
	return e
}
