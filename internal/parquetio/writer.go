package parquetio

import (
	"fmt"
	"io"
	"maps"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"
)

// Kind is the type of a column to write, and the Go type its cells take.
type Kind int

// The kinds.
const (
	String          Kind = iota // string, dictionary encoded
	Double                      // float64; for exports that carry costs so, never for our own
	Int64                       // int64
	Decimal                     // string, a decimal number without exponent
	TimestampMillis             // time.Time, UTC
	TimestampMicros             // time.Time, UTC
	StringMap                   // map[string]string
)

// Column describes one column to write. Every column may hold nil, no value.
type Column struct {
	Name             string
	Kind             Kind
	Precision, Scale int // of a Decimal: at most 38 digits
}

// Writer writes rows to a Parquet file, snappy compressed, in row groups of
// 100,000 rows.
type Writer struct {
	w       *parquet.GenericWriter[any]
	columns []Column
	leaf    []int // first leaf of each column in the file, which orders them by name
	leaves  int
	cells   [][]parquet.Value
	row     parquet.Row
}

// NewWriter returns a writer with the given columns, in whose order Write takes
// cells. The file holds them in order of name. Close completes the file.
func NewWriter(w io.Writer, columns []Column) (*Writer, error) {
	group := parquet.Group{}
	for _, c := range columns {
		node, err := c.node()
		if err != nil {
			return nil, err
		}
		if _, ok := group[c.Name]; ok {
			return nil, fmt.Errorf("parquet: column %s is given twice", c.Name)
		}
		group[c.Name] = node
	}
	schema := parquet.NewSchema("rows", group)
	out := &Writer{columns: columns, leaves: len(schema.Columns())}
	out.cells = make([][]parquet.Value, out.leaves)
	for _, c := range columns {
		path := []string{c.Name}
		if c.Kind == StringMap {
			path = append(path, "key_value", "key")
		}
		leaf, ok := schema.Lookup(path...)
		if !ok {
			return nil, fmt.Errorf("parquet: column %s is not in its own schema", c.Name)
		}
		out.leaf = append(out.leaf, leaf.ColumnIndex)
	}
	out.w = parquet.NewGenericWriter[any](w, schema, parquet.Compression(&parquet.Snappy), parquet.MaxRowsPerRowGroup(100_000), parquet.CreatedBy("gpuledger", "", ""))
	return out, nil
}

func (c Column) node() (parquet.Node, error) {
	switch c.Kind {
	case String:
		return parquet.Optional(parquet.Encoded(parquet.String(), &parquet.RLEDictionary)), nil
	case Double:
		return parquet.Optional(parquet.Leaf(parquet.DoubleType)), nil
	case Int64:
		return parquet.Optional(parquet.Int(64)), nil
	case TimestampMillis:
		return parquet.Optional(parquet.Timestamp(parquet.Millisecond)), nil
	case TimestampMicros:
		return parquet.Optional(parquet.Timestamp(parquet.Microsecond)), nil
	case StringMap:
		return parquet.Optional(parquet.Map(parquet.String(), parquet.Optional(parquet.String()))), nil
	case Decimal:
		switch {
		case c.Precision < 1 || c.Precision > 38 || c.Scale < 0 || c.Scale > c.Precision:
			return nil, fmt.Errorf("parquet: column %s: DECIMAL(%d,%d) is not possible", c.Name, c.Precision, c.Scale)
		case c.Precision <= 9:
			return parquet.Optional(parquet.Decimal(c.Scale, c.Precision, parquet.Int32Type)), nil
		case c.Precision <= 18:
			return parquet.Optional(parquet.Decimal(c.Scale, c.Precision, parquet.Int64Type)), nil
		}
		return parquet.Optional(parquet.Decimal(c.Scale, c.Precision, parquet.FixedLenByteArrayType(16))), nil
	}
	return nil, fmt.Errorf("parquet: column %s has no kind", c.Name)
}

// Write adds one row; nil is no value. A number that its DECIMAL cannot hold
// exactly is an error, never rounded.
func (w *Writer) Write(row []any) error {
	if len(row) != len(w.columns) {
		return fmt.Errorf("parquet: a row of %d cells for %d columns", len(row), len(w.columns))
	}
	for i, c := range w.columns {
		if err := w.cell(c, w.leaf[i], row[i]); err != nil {
			return fmt.Errorf("parquet: column %s: %w", c.Name, err)
		}
	}
	w.row = w.row[:0]
	for _, values := range w.cells {
		w.row = append(w.row, values...)
	}
	_, err := w.w.WriteRows([]parquet.Row{w.row})
	return err
}

func (w *Writer) cell(c Column, leaf int, cell any) error {
	w.cells[leaf] = w.cells[leaf][:0]
	if c.Kind == StringMap {
		m, ok := cell.(map[string]string)
		if !ok && cell != nil {
			return fmt.Errorf("a %T for a map", cell)
		}
		w.mapCell(leaf, m, ok)
		return nil
	}
	v, err := c.value(cell)
	if err != nil {
		return err
	}
	definition := 1
	if v.IsNull() {
		definition = 0
	}
	w.cells[leaf] = append(w.cells[leaf], v.Level(0, definition, leaf))
	return nil
}

// mapCell writes the two leaves of a map: definition level 0 is no map, 1 an
// empty one, 2 a name (and a null value), 3 a value.
func (w *Writer) mapCell(leaf int, m map[string]string, there bool) {
	w.cells[leaf+1] = w.cells[leaf+1][:0]
	if len(m) == 0 {
		definition := 0
		if there && m != nil {
			definition = 1
		}
		for _, l := range []int{leaf, leaf + 1} {
			w.cells[l] = append(w.cells[l], parquet.NullValue().Level(0, definition, l))
		}
		return
	}
	repetition := 0
	for _, k := range slices.Sorted(maps.Keys(m)) {
		w.cells[leaf] = append(w.cells[leaf], parquet.ByteArrayValue([]byte(k)).Level(repetition, 2, leaf))
		w.cells[leaf+1] = append(w.cells[leaf+1], parquet.ByteArrayValue([]byte(m[k])).Level(repetition, 3, leaf+1))
		repetition = 1
	}
}

func (c Column) value(cell any) (parquet.Value, error) {
	switch v := cell.(type) {
	case nil:
		return parquet.NullValue(), nil
	case string:
		if c.Kind == String {
			return parquet.ByteArrayValue([]byte(v)), nil
		}
		if c.Kind == Decimal {
			return c.decimal(v)
		}
	case float64:
		if c.Kind == Double {
			return parquet.DoubleValue(v), nil
		}
	case int64:
		if c.Kind == Int64 {
			return parquet.Int64Value(v), nil
		}
	case time.Time:
		if c.Kind == TimestampMillis {
			return parquet.Int64Value(v.UnixMilli()), nil
		}
		if c.Kind == TimestampMicros {
			return parquet.Int64Value(v.UnixMicro()), nil
		}
	}
	return parquet.Value{}, fmt.Errorf("a %T does not fit the column's kind", cell)
}

func (c Column) decimal(s string) (parquet.Value, error) {
	whole, frac, _ := strings.Cut(s, ".")
	frac = strings.TrimRight(frac, "0")
	if len(frac) > c.Scale {
		return parquet.Value{}, fmt.Errorf("%q has more than %d decimals", s, c.Scale)
	}
	n, ok := new(big.Int).SetString(whole+frac+strings.Repeat("0", c.Scale-len(frac)), 10)
	if !ok {
		return parquet.Value{}, fmt.Errorf("%q is not a decimal number", s)
	}
	if digits := len(strings.TrimPrefix(n.String(), "-")); digits > c.Precision {
		return parquet.Value{}, fmt.Errorf("%q has more than %d digits", s, c.Precision)
	}
	switch {
	case c.Precision <= 9:
		return parquet.Int32Value(int32(n.Int64())), nil
	case c.Precision <= 18:
		return parquet.Int64Value(n.Int64()), nil
	}
	if n.Sign() < 0 {
		n.Add(n, new(big.Int).Lsh(big.NewInt(1), 128))
	}
	return parquet.FixedLenByteArrayValue(n.FillBytes(make([]byte, 16))), nil
}

// Close writes what is buffered and the footer. It does not close the
// underlying writer.
func (w *Writer) Close() error { return w.w.Close() }
