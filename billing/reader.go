package billing

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"strings"

	"gpuledger/billing/money"
)

// Reader reads the deliveries of one bill source.
type Reader interface {
	// Deliveries returns the newest complete delivery of each billing period,
	// oldest period first. A half-written or mismatching delivery is an error
	// that wraps ErrIncomplete and names what is missing.
	Deliveries(ctx context.Context) ([]Delivery, error)

	// Read decodes every line of one delivery, classed, and passes it to fn with
	// kept = keep(line). A line's identity, class, costs and type are set when
	// keep is called; tags may be left unread for a line that is not kept. The
	// line is reused between calls. Read stops at the first error: a *RowError
	// for a row that does not parse, or one that wraps ErrIncomplete for a file
	// that is absent, truncated or not of the size the manifest gives.
	Read(ctx context.Context, d Delivery, keep func(*Line) bool, fn func(l *Line, kept bool) error) error
}

// ErrIncomplete marks input that is not (yet) whole: a later try may succeed
// without anybody changing anything. The program exits with 3 for it.
var ErrIncomplete = errors.New("data incomplete")

// RowError says where a delivery is broken and what to do.
type RowError struct {
	File   string
	Row    int64  // 1 is the first data row, 0 the header
	Column string // "" where the whole row is broken
	Err    error
}

func (e *RowError) Error() string {
	where := fmt.Sprintf("%s: row %d", e.File, e.Row)
	if e.Row == 0 {
		where = e.File + ": header"
	}
	if e.Column != "" {
		where += ", column " + e.Column
	}
	return where + ": " + e.Err.Error() + "; nothing of this delivery was loaded; ask the provider for a new delivery or mend the file"
}

func (e *RowError) Unwrap() error { return e.Err }

// unitsPerHour reads a unit of time by its spellings: "Hrs" (AWS), "Hours" (FOCUS),
// "1 Hour" (Azure), "Hour(s)", "Seconds".
func unitsPerHour(unit string) (int64, bool) {
	switch strings.ToLower(strings.TrimPrefix(strings.TrimSpace(unit), "1 ")) {
	case "hrs", "hours", "hour", "hour(s)", "hr", "h", "instance-hours", "instance-hrs", "instance hours":
		return 1, true
	case "minutes", "minute", "minute(s)", "min":
		return 60, true
	case "seconds", "second", "second(s)", "sec", "s":
		return 3600, true
	}
	return 0, false
}

// inHours divides by units an hour, rounded to twelve decimals.
func inHours(q money.Amount, perHour int64) money.Amount {
	if perHour == 1 { // most lines
		return q
	}
	scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(money.Scale-money.RatioScale), nil)
	n := new(big.Int).Quo(q.Big(), new(big.Int).Mul(big.NewInt(perHour), scale))
	a, err := money.FromBig(n.Mul(n, scale))
	if err != nil {
		return money.Amount{} // smaller than q, which is an Amount
	}
	return a
}

var (
	bigHourMicros = big.NewInt(3_600_000_000)
	bigUnit       = new(big.Int).Exp(big.NewInt(10), big.NewInt(money.Scale), nil)
)

// hoursToMicros rounds to the nearest microsecond.
func hoursToMicros(q money.Amount) int64 {
	n := new(big.Int).Mul(q.Big(), bigHourMicros)
	half := new(big.Int).Rsh(bigUnit, 1)
	return n.Quo(n.Add(n, half), bigUnit).Int64()
}
