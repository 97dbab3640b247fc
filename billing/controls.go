package billing

import (
	"cmp"
	"fmt"
	"slices"

	"gpuledger/billing/money"
	"gpuledger/billing/period"
)

// ControlKey is the grain of control totals. Currencies are never added.
type ControlKey struct {
	ChargeMonth  period.Month // the month of ChargePeriod.Start
	PayerAccount string
	UsageAccount string
	Service      string
	Class        Class
	Currency     string
	InScope      bool
}

// Control holds the sums over the lines of one key.
type Control struct {
	ControlKey
	Lines        int64
	Billed       money.Amount
	Effective    money.Amount
	List         money.Amount // over the lines that have one
	Contracted   money.Amount // likewise
	NoList       int64        // lines without a list cost
	NoContracted int64
}

// Controls accumulate every line of a delivery, in scope and out of it, so that
// what is kept whole and what is not add up to the bill. The zero value is ready.
type Controls struct{ sums map[ControlKey]*Control }

// Add counts one line. Its error is a sum beyond what an Amount holds.
func (c *Controls) Add(l *Line, inScope bool) (err error) {
	defer func() {
		if p := recover(); p != nil { // Amount.Add panics on overflow; a broken file is no programming error
			err = &RowError{File: l.File, Row: l.Row, Err: fmt.Errorf("control totals: %v", p)}
		}
	}()
	key := ControlKey{
		ChargeMonth: period.MonthOf(l.ChargePeriod.Start), PayerAccount: l.PayerAccount, UsageAccount: l.UsageAccount,
		Service: l.Service, Class: l.Class, Currency: l.Currency, InScope: inScope,
	}
	sum := c.sums[key]
	if sum == nil {
		if c.sums == nil {
			c.sums = map[ControlKey]*Control{}
		}
		sum = &Control{ControlKey: key}
		c.sums[key] = sum
	}
	n := max(1, l.Count)
	sum.Lines += n
	sum.Billed = sum.Billed.Add(l.Costs.Billed)
	sum.Effective = sum.Effective.Add(l.Costs.Effective)
	if l.Costs.List.Valid {
		sum.List = sum.List.Add(l.Costs.List.Amount)
	} else {
		sum.NoList += n
	}
	if l.Costs.Contracted.Valid {
		sum.Contracted = sum.Contracted.Add(l.Costs.Contracted.Amount)
	} else {
		sum.NoContracted += n
	}
	return nil
}

// Rows returns the totals in ascending order of their keys, the order of the
// fields of ControlKey, in scope last.
func (c *Controls) Rows() []Control {
	out := make([]Control, 0, len(c.sums))
	for _, s := range c.sums {
		out = append(out, *s)
	}
	slices.SortFunc(out, func(a, b Control) int { return compareKeys(a.ControlKey, b.ControlKey) })
	return out
}

func compareKeys(a, b ControlKey) int {
	return cmp.Or(
		a.ChargeMonth.Start().Compare(b.ChargeMonth.Start()),
		cmp.Compare(a.PayerAccount, b.PayerAccount),
		cmp.Compare(a.UsageAccount, b.UsageAccount),
		cmp.Compare(a.Service, b.Service),
		cmp.Compare(a.Class, b.Class),
		cmp.Compare(a.Currency, b.Currency),
		cmp.Compare(boolRank(a.InScope), boolRank(b.InScope)),
	)
}

func boolRank(b bool) int {
	if b {
		return 1
	}
	return 0
}
