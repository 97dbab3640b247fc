package billing

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"

	"gpuledger/billing/money"
	"gpuledger/billing/period"
)

// Bases say which part of account-wide lines what is in scope answers for: the part of the
// usage they apply to that is in scope, by effective cost. The zero value is ready.
//
// A tax, discount, credit or refund applies to usage of the same account and service, as
// far as there is any; else of the service, of the account, of all of the payer. What a
// savings plan or reservation left unused applies to the usage that the rest of it covered.
type Bases struct {
	usage map[baseKey]*base
	wide  map[wideKey]*wide
}

// baseKey is what lines have in common that share an account-wide one. Fields are "" where
// it does not matter.
type baseKey struct {
	month                               period.Month // of the charge
	currency, payer, account, service   string
	commitment                          string
	anyAccount, anyService, byCommitted bool
}

type base struct{ inScope, all money.Amount }

type wideKey struct {
	baseKey
	class Class
}

// wide adds up the account-wide lines of one key.
type wide struct {
	first Line // the earliest by content, for what they have in common
	costs Costs
}

// Add counts one line of a delivery.
func (b *Bases) Add(l *Line, inScope bool) (err error) {
	defer func() {
		if p := recover(); p != nil { // Amount.Add panics on overflow
			err = &RowError{File: l.File, Row: l.Row, Err: fmt.Errorf("account-wide totals: %v", p)}
		}
	}()
	if b.usage == nil {
		b.usage, b.wide = map[baseKey]*base{}, map[wideKey]*wide{}
	}
	key := baseKey{month: period.MonthOf(l.ChargePeriod.Start), currency: l.Currency, payer: l.PayerAccount, account: l.UsageAccount, service: l.Service}
	switch l.Class {
	case NodeUsage, CapacityUnused, Other:
		for _, k := range key.ladder() {
			b.count(k, l.Costs.Effective, inScope)
		}
		if l.Commitment != "" && l.Class == NodeUsage || l.Commitment != "" && l.Class == Other {
			b.count(key.covered(l.Commitment), l.Costs.Effective, inScope)
		}
	case Tax, Discount, Credit, Refund, CommitmentUnused:
		if !inScope {
			b.add(key, l)
		}
	}
	return nil
}

func (b *Bases) count(k baseKey, cost money.Amount, inScope bool) {
	one := b.usage[k]
	if one == nil {
		one = &base{}
		b.usage[k] = one
	}
	one.all = one.all.Add(cost)
	if inScope {
		one.inScope = one.inScope.Add(cost)
	}
}

func (b *Bases) add(key baseKey, l *Line) {
	if l.Class == CommitmentUnused {
		key.commitment = l.Commitment
	}
	k := wideKey{key, l.Class}
	w := b.wide[k]
	if w == nil {
		w = &wide{first: Line{Provider: l.Provider, BillingPeriod: l.BillingPeriod, ChargeCategory: l.ChargeCategory}}
		b.wide[k] = w
	}
	w.first.ChargeCategory = min(w.first.ChargeCategory, l.ChargeCategory)
	w.costs.Billed = w.costs.Billed.Add(l.Costs.Billed)
	w.costs.Effective = w.costs.Effective.Add(l.Costs.Effective)
	if l.Costs.List.Valid {
		w.costs.List = money.Some(w.costs.List.Amount.Add(l.Costs.List.Amount))
	}
	if l.Costs.Contracted.Valid {
		w.costs.Contracted = money.Some(w.costs.Contracted.Amount.Add(l.Costs.Contracted.Amount))
	}
}

// ladder are the usages that a line may apply to, the nearest first.
func (k baseKey) ladder() [4]baseKey {
	service, account, payer := k, k, k
	service.account, service.anyAccount = "", true
	account.service, account.anyService = "", true
	payer.account, payer.service, payer.anyAccount, payer.anyService = "", "", true, true
	return [4]baseKey{k, service, account, payer}
}

// covered is the usage that a commitment covered, whoever's it is.
func (k baseKey) covered(commitment string) baseKey {
	return baseKey{month: k.month, currency: k.currency, payer: k.payer, commitment: commitment, byCommitted: true}
}

// of returns the usage that an account-wide line applies to.
func (b *Bases) of(k wideKey) (one *base, what string) {
	if k.class == CommitmentUnused && k.commitment != "" {
		one = b.usage[k.covered(k.commitment)]
		return one, "usage that " + k.commitment + " covered"
	}
	k.commitment = ""
	texts := [4]string{"usage of " + k.service + " by " + k.account, "usage of " + k.service, "usage by " + k.account, "usage"}
	for i, at := range k.ladder() {
		if one = b.usage[at]; one != nil && one.all.Sign() > 0 {
			return one, texts[i]
		}
	}
	return nil, ""
}

// Lines returns a line for each kind of account-wide lines that something in scope answers
// for, with its part of their costs, cut off at 24 decimals, in the order of their keys.
func (b *Bases) Lines() []Line {
	keys := make([]wideKey, 0, len(b.wide))
	for k := range b.wide {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(x, y wideKey) int {
		return cmp.Or(x.month.Start().Compare(y.month.Start()), cmp.Compare(x.currency, y.currency), cmp.Compare(x.payer, y.payer),
			cmp.Compare(x.account, y.account), cmp.Compare(x.service, y.service), cmp.Compare(x.class, y.class), cmp.Compare(x.commitment, y.commitment))
	})
	var out []Line
	for _, k := range keys {
		on, what := b.of(k)
		if on == nil || on.all.Sign() <= 0 || on.inScope.Sign() <= 0 {
			continue
		}
		w, part := b.wide[k], new(big.Rat).SetFrac(on.inScope.Big(), on.all.Big())
		if part.Cmp(big.NewRat(1, 1)) > 0 { // credits on what is not in scope make it more than all
			part.SetInt64(1)
		}
		l := w.first
		l.ChargePeriod, l.Class, l.Component, l.ChargeType, l.ByBase = k.month.Span(), k.class, Node, "by_base", true
		l.PayerAccount, l.UsageAccount, l.Service, l.Commitment, l.Currency = k.payer, k.account, k.service, k.commitment, k.currency
		l.Description = fmt.Sprintf("%s for the whole account, effective %s: %s of %s %s of %s is in scope", k.class, w.costs.Effective, on.inScope, on.all, k.currency, what)
		l.Costs = Costs{Billed: portion(w.costs.Billed, part), Effective: portion(w.costs.Effective, part)}
		if w.costs.List.Valid {
			l.Costs.List = money.Some(portion(w.costs.List.Amount, part))
		}
		if w.costs.Contracted.Valid {
			l.Costs.Contracted = money.Some(portion(w.costs.Contracted.Amount, part))
		}
		if l.Costs.Billed.Sign() != 0 || l.Costs.Effective.Sign() != 0 {
			out = append(out, l)
		}
	}
	return out
}

// portion is a × part, of at most 1, cut off at 24 decimals.
func portion(a money.Amount, part *big.Rat) money.Amount {
	n := new(big.Int).Mul(a.Big(), part.Num())
	p, err := money.FromBig(n.Quo(n, part.Denom()))
	if err != nil {
		panic(err) // no larger than a, which is an Amount
	}
	return p
}
