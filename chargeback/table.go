// Package chargeback makes what people read of the ledger: tables, and files that
// finance loads without touching them.
package chargeback

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// Column is a column of a Table.
type Column struct {
	Name    string
	Numeric bool // values are plain decimal numbers, exact, without an exponent
	JSON    bool // values are JSON: as json they are written as they are, not as a text
}

// Cell is a value as text, or absent.
type Cell struct {
	Text  string
	Valid bool
}

// Text returns a present cell.
func Text(s string) Cell { return Cell{s, true} }

// Table is rows of text with typed columns. Numbers keep every digit.
type Table struct {
	Columns []Column
	Rows    [][]Cell
}

// NewTable returns an empty table of text columns; a name that ends in "#" is numeric.
func NewTable(names ...string) *Table {
	t := &Table{}
	for _, n := range names {
		name, numeric := strings.CutSuffix(n, "#")
		t.Columns = append(t.Columns, Column{Name: name, Numeric: numeric})
	}
	return t
}

// Add appends a row of present cells.
func (t *Table) Add(values ...string) {
	row := make([]Cell, len(values))
	for i, v := range values {
		row[i] = Text(v)
	}
	t.Rows = append(t.Rows, row)
}

// Write renders the table as "table", "json" or "csv".
func (t *Table) Write(w io.Writer, format string) error {
	switch format {
	case "json":
		return t.writeJSON(w)
	case "csv":
		return t.WriteCSV(w)
	}
	return t.writeText(w)
}

func (t *Table) writeText(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	widths := make([]int, len(t.Columns)) // numbers are set flush right
	for i, c := range t.Columns {
		widths[i] = utf8.RuneCountInString(c.Name)
		for _, r := range t.Rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(r[i].Text))
		}
	}
	line := func(cell func(i int) string) {
		for i, c := range t.Columns {
			s := strings.Map(printable, cell(i))
			if c.Numeric {
				s = strings.Repeat(" ", widths[i]-utf8.RuneCountInString(s)) + s
			}
			if i+1 < len(t.Columns) {
				s += "\t"
			}
			_, _ = io.WriteString(tw, s)
		}
		_, _ = io.WriteString(tw, "\n")
	}
	line(func(i int) string { return t.Columns[i].Name })
	for _, r := range t.Rows {
		line(func(i int) string { return r[i].Text })
	}
	return tw.Flush()
}

// printable keeps control characters of names out of a terminal.
func printable(r rune) rune {
	if r < 0x20 || r == 0x7f {
		return '\uFFFD'
	}
	return r
}

func (t *Table) writeJSON(w io.Writer) error {
	var b strings.Builder
	b.WriteString("[")
	for i, r := range t.Rows {
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString("\n  {")
		for k, c := range t.Columns {
			if k > 0 {
				b.WriteString(", ")
			}
			name, err := json.Marshal(c.Name)
			if err != nil {
				return err
			}
			value := []byte("null")
			switch {
			case r[k].Valid && (c.Numeric || c.JSON) && json.Valid([]byte(r[k].Text)):
				value = []byte(r[k].Text) // every digit of a number, which a float would not keep
			case r[k].Valid:
				if value, err = json.Marshal(r[k].Text); err != nil {
					return err
				}
			}
			b.Write(name)
			b.WriteString(": ")
			b.Write(value)
		}
		b.WriteString("}")
	}
	b.WriteString("\n]\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteCSV writes RFC 4180 CSV with a header; absent cells are empty.
func (t *Table) WriteCSV(w io.Writer) error {
	cw := csv.NewWriter(w)
	rec := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		rec[i] = c.Name
	}
	if err := cw.Write(rec); err != nil {
		return err
	}
	for _, r := range t.Rows {
		for i := range rec {
			rec[i] = r[i].Text
		}
		if err := cw.Write(rec); err != nil {
			return err
		}
	}
	cw.Flush()
	return cw.Error()
}

// WriteFile writes a file beside its place and renames it, so that a reader never
// sees half of it.
func WriteFile(path string, write func(io.Writer) error) (err error) {
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return fmt.Errorf("write %s: the folder %s does not exist", path, filepath.Dir(path))
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			_ = f.Close() // the first error is the one to tell
			_ = os.Remove(f.Name())
		}
	}()
	if err := write(f); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.Rename(f.Name(), path)
}
