package billing

import (
	"bytes"
	"fmt"
	"math/big"
	"sort"

	"gpuledger/billing/money"
)

// Blocks amortise capacity that is paid for in advance and used at no price, such as a
// Capacity Block: its fee goes to the machines that ran in it, by their hours of all the
// instance-hours it has, and what of it nobody used stays on the fee's line as unused
// capacity. The zero value is ready.
//
// The lines of a block are those with its reservation. Those of its machines are held back
// until all of the delivery is read.
type Blocks struct {
	blocks map[string]*block
	notes  []string
}

type block struct {
	fees  []Line
	usage []Line   // machines' lines that cost nothing
	known *big.Int // instance-hours that unused capacity is billed for, in 1e-24
}

func (b *Blocks) at(reservation string) *block {
	if b.blocks == nil {
		b.blocks = map[string]*block{}
	}
	one := b.blocks[reservation]
	if one == nil {
		one = &block{known: new(big.Int)}
		b.blocks[reservation] = one
	}
	return one
}

// Hold reports whether the line is kept back, to come from Settle. Its tags are loaded
// then. Only lines of a reservation are.
func (b *Blocks) Hold(l *Line) bool {
	if l.Reservation == "" {
		return false
	}
	hours, timed := l.InstanceHours()
	switch {
	case l.Class == Fee && l.Costs.Effective.Sign() > 0:
		one := b.at(l.Reservation)
		one.fees = append(one.fees, b.keep(l))
		return true
	case l.Class == NodeUsage && timed && hours.Sign() > 0 && l.Commitment == "" && l.Costs.Billed.Sign() == 0 && l.Costs.Effective.Sign() == 0:
		one := b.at(l.Reservation)
		one.usage = append(one.usage, b.keep(l))
		return true
	case l.Class == CapacityUnused && timed:
		one := b.at(l.Reservation)
		one.known.Add(one.known, hours.Big())
	}
	return false
}

func (b *Blocks) keep(l *Line) Line {
	if l.LoadTags != nil {
		l.LoadTags()
	}
	out := *l
	out.LoadTags = nil
	return out
}

// Settle returns the lines that were held, with their costs, those of one block after the
// other.
func (b *Blocks) Settle() []Line {
	names := make([]string, 0, len(b.blocks))
	for n := range b.blocks {
		names = append(names, n)
	}
	sort.Strings(names)
	var out []Line
	for _, n := range names {
		one := b.blocks[n]
		if len(one.fees) > 0 {
			b.settle(n, one)
		}
		out = append(append(out, one.usage...), one.fees...)
	}
	b.blocks = nil
	return out
}

// Pass settles, and passes the lines on as Reader.Read does.
func (b *Blocks) Pass(keep func(*Line) bool, fn func(*Line, bool) error) error {
	for _, l := range b.Settle() {
		if err := fn(&l, keep(&l)); err != nil {
			return err
		}
	}
	return nil
}

// Notes say which blocks are not as their lines say, once settled.
func (b *Blocks) Notes() []string { return b.notes }

func (b *Blocks) settle(name string, one *block) {
	used := new(big.Int)
	instanceType := ""
	for i := range one.usage {
		h, _ := one.usage[i].InstanceHours()
		used.Add(used, h.Big())
		instanceType = max(instanceType, one.usage[i].InstanceType)
	}
	cost, hours, whole := new(big.Int), new(big.Int), true
	for i := range one.fees {
		f := &one.fees[i]
		cost.Add(cost, f.Costs.Effective.Big())
		if f.InstanceType == "" {
			f.InstanceType = instanceType
		}
		h := blockHours(f)
		whole = whole && h != nil
		if h != nil {
			hours.Add(hours, h)
		}
		if f.ChargePeriod.End.After(f.BillingPeriod.Next().Start()) {
			b.notes = append(b.notes, fmt.Sprintf("capacity block %s goes on in the month after %s: its fee is not amortised", name, f.BillingPeriod))
			return
		}
	}
	if !whole {
		hours.Add(used, one.known) // what it was used for, and what is said to be unused
	}
	if hours.Cmp(used) < 0 {
		b.notes = append(b.notes, fmt.Sprintf("capacity block %s was used for %s instance-hours and has %s: its fee goes to those", name, hoursText(used), hoursText(hours)))
		hours = used
	}
	if hours.Sign() == 0 {
		b.notes = append(b.notes, fmt.Sprintf("capacity block %s: how many instance-hours it has is not said: its fee is not amortised", name))
		return
	}
	left := new(big.Int).Set(cost)
	for i := range one.usage {
		l := &one.usage[i]
		h, _ := l.InstanceHours()
		n := new(big.Int).Mul(cost, h.Big())
		n.Quo(n, hours)
		l.Costs.Effective = amountOf(n)
		left.Sub(left, n)
	}
	one.unused(cost, left)
}

// unused leaves on the fees what no machine takes, by their cost; what does not divide on
// the first by content.
func (one *block) unused(cost, left *big.Int) {
	sort.SliceStable(one.fees, func(i, j int) bool {
		x, y := one.fees[i].Key(), one.fees[j].Key()
		return bytes.Compare(x[:], y[:]) < 0
	})
	rest := new(big.Int).Set(left)
	for i := len(one.fees) - 1; i >= 0; i-- {
		f, n := &one.fees[i], rest
		if i > 0 {
			n = new(big.Int).Mul(left, f.Costs.Effective.Big())
			n.Quo(n, cost)
			rest.Sub(rest, n)
		}
		if f.Costs.Effective = amountOf(n); n.Sign() != 0 {
			f.Class = CapacityUnused
		}
	}
}

// blockHours is how many instance-hours a fee is for, in 1e-24: its quantity where that is
// a time, else instances for as long as the line says. Nil where it says neither.
func blockHours(f *Line) *big.Int {
	if h, ok := f.InstanceHours(); ok && h.Sign() > 0 {
		return h.Big()
	}
	q, micros := f.ConsumedQuantity, f.ChargePeriod.Micros()
	if !q.Valid || q.Amount.Sign() <= 0 || micros < hourMicros {
		return nil
	}
	n := new(big.Int).Mul(q.Amount.Big(), big.NewInt(micros))
	return n.Quo(n, big.NewInt(hourMicros))
}

const hourMicros = 3_600_000_000

func hoursText(n *big.Int) string { return amountOf(n).String() }

// amountOf is n × 1e-24, which is no more than amounts that were read.
func amountOf(n *big.Int) money.Amount {
	a, err := money.FromBig(n)
	if err != nil {
		panic(err)
	}
	return a
}
