package parquetio

import (
	"io"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

// cursor walks the values of one leaf column across pages and row groups. Values
// share memory with their page, so a page is released only when the first value
// of the next one is asked for.
type cursor struct {
	pages  parquet.Pages
	page   parquet.Page
	values parquet.ValueReader
	buf    []parquet.Value
	pos, n int
	now    parquet.Value

	text   func(parquet.Value) string
	shared map[string]string
	times  map[int64]string
}

// maxShared bounds the caches of repeated texts.
const maxShared = 1 << 16

func newCursor(col *parquet.Column) *cursor {
	c := &cursor{pages: col.Pages(), buf: make([]parquet.Value, 512), shared: map[string]string{}, times: map[int64]string{}}
	c.text = c.converter(col)
	return c
}

func (c *cursor) advance() error {
	if c.pos == c.n {
		if err := c.fill(); err != nil {
			return err
		}
	}
	c.now = c.buf[c.pos]
	c.pos++
	return nil
}

// fill reads values until there are some.
func (c *cursor) fill() (err error) {
	defer recovered(&err)
	for {
		if c.values != nil {
			n, err := c.values.ReadValues(c.buf)
			if n > 0 {
				c.pos, c.n = 0, n
				return nil
			}
			if err != nil && err != io.EOF {
				return err
			}
			parquet.Release(c.page)
			c.page, c.values = nil, nil
		}
		page, err := c.pages.ReadPage()
		if err != nil {
			return err
		}
		c.page, c.values = page, page.Values()
	}
}

// gather appends the values of one row of a repeated column: one that starts it,
// at repetition level 0, and those that continue it. They share memory with their
// page, so they are cloned when the row goes on in the next one.
func (c *cursor) gather(out []parquet.Value) ([]parquet.Value, error) {
	if err := c.advance(); err != nil {
		return out, err
	}
	out = append(out, c.now)
	for {
		if c.pos == c.n {
			for i := range out {
				out[i] = out[i].Clone()
			}
			if err := c.fill(); err == io.EOF {
				c.pos, c.n = 0, 0
				return out, nil
			} else if err != nil {
				return out, err
			}
		}
		if c.buf[c.pos].RepetitionLevel() == 0 {
			return out, nil
		}
		out = append(out, c.buf[c.pos])
		c.pos++
	}
}

func (c *cursor) close() error {
	if c.page != nil {
		parquet.Release(c.page)
		c.page, c.values = nil, nil
	}
	return c.pages.Close()
}

// converter chooses how the column's values become text.
func (c *cursor) converter(col *parquet.Column) func(parquet.Value) string {
	kind := col.Type().Kind()
	if logical := col.Type().LogicalType(); logical != nil {
		switch t := logical.Value.(type) {
		case *format.DecimalType:
			return func(v parquet.Value) string { return decimalText(unscaled(v, kind), int(t.Scale)) }
		case *format.TimestampType:
			unit := t.Unit.Value.Duration()
			return func(v parquet.Value) string { return c.timeText(v.Int64(), unit) }
		case *format.DateType:
			return func(v parquet.Value) string {
				return time.Unix(int64(v.Int32())*86400, 0).UTC().Format(time.DateOnly)
			}
		}
	}
	switch kind {
	case parquet.Boolean:
		return func(v parquet.Value) string { return strconv.FormatBool(v.Boolean()) }
	case parquet.Int32:
		return func(v parquet.Value) string { return strconv.FormatInt(int64(v.Int32()), 10) }
	case parquet.Int64:
		return func(v parquet.Value) string { return strconv.FormatInt(v.Int64(), 10) }
	case parquet.Float:
		return func(v parquet.Value) string { return floatText(float64(v.Float()), 32) }
	case parquet.Double:
		return func(v parquet.Value) string { return floatText(v.Double(), 64) }
	case parquet.Int96:
		return int96Text
	}
	return func(v parquet.Value) string { return c.share(v.ByteArray()) }
}

// share returns equal bytes as one string.
func (c *cursor) share(b []byte) string {
	if s, ok := c.shared[string(b)]; ok {
		return s
	}
	if len(c.shared) >= maxShared {
		clear(c.shared)
	}
	s := string(b)
	c.shared[s] = s
	return s
}

func (c *cursor) timeText(n int64, unit time.Duration) string {
	if s, ok := c.times[n]; ok {
		return s
	}
	if len(c.times) >= maxShared {
		clear(c.times)
	}
	perSecond := int64(time.Second / unit)
	sec, rest := n/perSecond, n%perSecond
	s := time.Unix(sec, rest*int64(unit)).UTC().Format(time.RFC3339Nano)
	c.times[n] = s
	return s
}

// julianUnix is the Julian day of 1970-01-01.
const julianUnix = 2_440_588

// int96Text reads the retired timestamp of Spark and Impala: nanoseconds of the
// day, then the Julian day.
func int96Text(v parquet.Value) string {
	i := v.Int96()
	nanos := int64(uint64(i[1])<<32 | uint64(i[0]))
	return time.Unix((int64(i[2])-julianUnix)*86400, nanos).UTC().Format(time.RFC3339Nano)
}

// floatText is the shortest text that reads back as the same double, without an
// exponent. Beyond 24 decimals, where only a double of 17 digits below 1e-7 goes,
// it is rounded there: the double itself is no closer to what was meant.
func floatText(f float64, bits int) string {
	s := strconv.FormatFloat(f, 'f', -1, bits)
	if _, frac, _ := strings.Cut(s, "."); len(frac) > 24 {
		s = strconv.FormatFloat(f, 'f', 24, bits)
	}
	return s
}

func unscaled(v parquet.Value, kind parquet.Kind) *big.Int {
	switch kind {
	case parquet.Int32:
		return big.NewInt(int64(v.Int32()))
	case parquet.Int64:
		return big.NewInt(v.Int64())
	}
	b := v.ByteArray()
	n := new(big.Int).SetBytes(b)
	if len(b) > 0 && b[0]&0x80 != 0 { // two's complement
		n.Sub(n, new(big.Int).Lsh(big.NewInt(1), uint(len(b))*8))
	}
	return n
}

// decimalText renders n × 10^-scale without trailing zeros.
func decimalText(n *big.Int, scale int) string {
	sign, digits := "", n.String()
	if n.Sign() < 0 {
		sign, digits = "-", digits[1:]
	}
	if scale <= 0 {
		return sign + digits + strings.Repeat("0", -scale)
	}
	if len(digits) <= scale {
		digits = strings.Repeat("0", scale-len(digits)+1) + digits
	}
	frac := strings.TrimRight(digits[len(digits)-scale:], "0")
	if frac == "" {
		return sign + digits[:len(digits)-scale]
	}
	return sign + digits[:len(digits)-scale] + "." + frac
}
