// Package parquetio reads named columns of Parquet files page by page, and writes
// small ones. Rows of wide files are never built: on a Cost and Usage Report of
// 120 columns, row reading costs thirty times what the wanted columns cost.
package parquetio

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/parquet-go/parquet-go"
)

// File is an open Parquet file. Its reader must stay open as long as it is used.
type File struct {
	file  *parquet.File
	names []string
}

// Open reads the footer. The error of a file that is cut short or no Parquet
// file wraps io.ErrUnexpectedEOF.
func Open(r io.ReaderAt, size int64) (_ *File, err error) {
	defer recovered(&err)
	f, err := parquet.OpenFile(r, size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true), parquet.ReadBufferSize(256<<10))
	if err != nil {
		return nil, fmt.Errorf("not a whole Parquet file (%w): %w", err, io.ErrUnexpectedEOF)
	}
	out := &File{file: f}
	for _, c := range f.Root().Columns() {
		out.names = named(out.names, "", c)
	}
	return out, nil
}

// named adds a column's name, or those of the columns in it where it is a group of them.
func named(out []string, parent string, c *parquet.Column) []string {
	name := parent + c.Name()
	if c.Leaf() || c.Repeated() || slices.ContainsFunc(leavesOf(c, nil), func(l *parquet.Column) bool { return l.MaxRepetitionLevel() > c.MaxRepetitionLevel() }) {
		return append(out, name)
	}
	for _, child := range c.Columns() {
		out = named(out, name+".", child)
	}
	return out
}

// column finds a column by its name; that of one in a group follows the group's and a
// point.
func (f *File) column(name string) *parquet.Column {
	if c := f.file.Root().Column(name); c != nil {
		return c
	}
	at := f.file.Root()
	for _, part := range strings.Split(name, ".") {
		if at = at.Column(part); at == nil {
			return nil
		}
	}
	return at
}

// recovered turns a panic of the decoder into an error: it panics on some files
// that are broken.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("damaged Parquet file: %v", p)
	}
}

// Columns returns the names of the columns, in the file's order. Those of a group
// follow its name and a point: service.id.
func (f *File) Columns() []string { return f.names }

// Rows returns the number of rows the footer states.
func (f *File) Rows() int64 { return f.file.NumRows() }

// Reader walks the rows over the wanted columns only. It is not safe for
// concurrent use.
type Reader struct {
	cols   []column
	active []*column
	at     int64
	total  int64
}

// column is one wanted column: a leaf, a map's key and value leaves, or those of a list
// of groups.
type column struct {
	name   string
	there  bool
	kind   int // of the shapes below
	leaf   *cursor
	val    *cursor
	key    []parquet.Value
	vals   []parquet.Value
	list   []field
	broken error
}

// field is one leaf of a list of groups.
type field struct {
	name    string
	cursor  *cursor
	present int // the definition level from which a value stands for an element
	vals    []parquet.Value
}

const (
	shapeAbsent = iota
	shapeLeaf
	shapeMap
	shapeList
	shapeOther
)

// Reader returns a reader of the columns with the given names. A name that the
// file does not have is no error: Has reports it, and its cells hold no value.
// With active not nil, only the columns with those indexes are read.
func (f *File) Reader(names []string, active []int) *Reader {
	r := &Reader{cols: make([]column, len(names)), total: f.Rows()}
	for i, name := range names {
		c := &r.cols[i]
		c.name = name
		node := f.column(name)
		if node == nil {
			continue
		}
		c.there = true
		if active != nil && !slices.Contains(active, i) {
			continue
		}
		c.open(node)
		if c.kind != shapeAbsent {
			r.active = append(r.active, c)
		}
	}
	return r
}

// open finds the leaves of a column. A map, and a list of key and value pairs,
// both have exactly the leaves key and value below one repetition.
func (c *column) open(node *parquet.Column) {
	leaves := leavesOf(node, nil)
	switch {
	case node.Leaf() && node.MaxRepetitionLevel() == 0:
		c.kind, c.leaf = shapeLeaf, newCursor(node)
	case len(leaves) == 2 && leaves[0].MaxRepetitionLevel() == 1 && leaves[1].MaxRepetitionLevel() == 1 &&
		leaves[0].Name() == "key" && leaves[1].Name() == "value":
		c.kind, c.leaf, c.val = shapeMap, newCursor(leaves[0]), newCursor(leaves[1])
	case len(leaves) > 1 && !slices.ContainsFunc(leaves, func(l *parquet.Column) bool { return l.MaxRepetitionLevel() != 1 }):
		c.kind = shapeList
		for _, l := range leaves {
			c.list = append(c.list, field{name: l.Name(), cursor: newCursor(l), present: repeatedLevel(node)})
		}
	default:
		c.kind = shapeOther
		c.broken = fmt.Errorf("column %s is neither a plain value nor a map of names to values: %s", c.name, node)
	}
}

// repeatedLevel is the definition level of the first repetition below or at a column.
func repeatedLevel(c *parquet.Column) int {
	for !c.Repeated() && !c.Leaf() {
		c = c.Columns()[0]
	}
	return c.MaxDefinitionLevel()
}

func leavesOf(c *parquet.Column, out []*parquet.Column) []*parquet.Column {
	if c.Leaf() {
		return append(out, c)
	}
	for _, child := range c.Columns() {
		out = leavesOf(child, out)
	}
	return out
}

// Has reports whether the file has column i.
func (r *Reader) Has(i int) bool { return r.cols[i].there }

// Next moves to the next row and returns io.EOF after the last one. The first
// row needs it too.
func (r *Reader) Next() (err error) {
	if r.at >= r.total {
		return io.EOF
	}
	for _, c := range r.active {
		if err := c.next(); err != nil {
			if err == io.EOF {
				err = fmt.Errorf("it ends before row %d of %d: %w", r.at+1, r.total, io.ErrUnexpectedEOF)
			}
			return fmt.Errorf("column %s: %w", c.name, err)
		}
	}
	r.at++
	return nil
}

func (c *column) next() error {
	switch c.kind {
	case shapeLeaf:
		return c.leaf.advance()
	case shapeMap:
		var err error
		if c.key, err = c.leaf.gather(c.key[:0]); err != nil {
			return err
		}
		c.vals, err = c.val.gather(c.vals[:0])
		return err
	case shapeList:
		for i := range c.list {
			f := &c.list[i]
			var err error
			if f.vals, err = f.cursor.gather(f.vals[:0]); err != nil {
				return err
			}
		}
	}
	return nil
}

// Text returns a cell as text and whether it holds a value. Numbers are decimal
// text: DECIMAL exactly; DOUBLE by the shortest text that reads back as the same
// double, which is what was written before it became one, to at most 24
// decimals. Times are RFC 3339 in UTC. A list of groups is a JSON array of objects whose
// values are such texts. The string is the caller's to keep.
func (r *Reader) Text(i int) (string, bool, error) {
	c := &r.cols[i]
	switch c.kind {
	case shapeAbsent:
		return "", false, nil
	case shapeLeaf:
		if c.leaf.now.IsNull() {
			return "", false, nil
		}
		return c.leaf.text(c.leaf.now), true, nil
	case shapeMap:
		return "", false, fmt.Errorf("column %s is a map, not a plain value", c.name)
	case shapeList:
		return c.listText()
	}
	return "", false, c.broken
}

// listText renders a list of groups. An empty one is no value.
func (c *column) listText() (string, bool, error) {
	var items []map[string]string
	for _, f := range c.list {
		n := 0
		for _, v := range f.vals {
			if v.DefinitionLevel() < f.present {
				continue // the marker of a null or empty list
			}
			if n == len(items) {
				items = append(items, map[string]string{})
			}
			if !v.IsNull() {
				items[n][f.name] = f.cursor.text(v)
			}
			n++
		}
		if n != len(items) {
			return "", false, fmt.Errorf("column %s: a list with %d of one field and %d of another", c.name, len(items), n)
		}
	}
	if len(items) == 0 {
		return "", false, nil
	}
	b, err := json.Marshal(items)
	return string(b), err == nil, err
}

// Map returns the names and values of a map cell, nil where it is null or empty.
// ok is false where the column is not a map. A null value is "".
func (r *Reader) Map(i int) (m map[string]string, ok bool, err error) {
	c := &r.cols[i]
	switch c.kind {
	case shapeOther:
		return nil, false, c.broken
	case shapeMap:
	default:
		return nil, false, nil
	}
	if len(c.key) != len(c.vals) {
		return nil, true, errors.New("a map with more names than values")
	}
	for j, k := range c.key {
		if k.IsNull() {
			continue // the marker of a null or empty map
		}
		if m == nil {
			m = make(map[string]string, len(c.key))
		}
		v := ""
		if !c.vals[j].IsNull() {
			v = c.val.text(c.vals[j])
		}
		m[c.leaf.text(k)] = v
	}
	return m, true, nil
}

// Close releases the pages in use.
func (r *Reader) Close() error {
	var errs []error
	for _, c := range r.active {
		for _, leaf := range []*cursor{c.leaf, c.val} {
			if leaf != nil {
				errs = append(errs, leaf.close())
			}
		}
		for _, f := range c.list {
			errs = append(errs, f.cursor.close())
		}
	}
	return errors.Join(errs...)
}
