package gcp

import (
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"

	"gpuledger/billing"
	"gpuledger/billing/money"
)

// poolKey names what a commitment covers on one day: a kind of resource in a region, or
// any spending.
type poolKey struct {
	day      time.Time // UTC, of the usage's start
	currency string
	region   string
	resource string // "a2 core", "nvidia l4 gpu"; "" of a spend-based commitment
}

// pool is a day's commitment and what it was used for. Google bills the commitment as
// lines of its own, and gives usage that it covers back as credits; amortised cost moves
// the former to where the latter are.
type pool struct {
	committed money.Amount // cost of the commitment's lines
	paid      money.Amount // what was credited for it, above 0
	amount    *big.Rat     // how much was committed to, in units of pricing
	covered   *big.Rat     // how much of usage was credited whole
	uneven    bool         // an amount is missing, or of another unit
	unit      string

	held  []billing.Line // the commitment's lines
	given *big.Int       // moved to usage so far, in 1e-24
}

// pools are those of one invoice month. The first pass over its rows fills them, the
// second moves the cost.
type pools struct {
	byKey     map[poolKey]*pool
	uncovered int64 // credits whose commitment is not in the table
}

func newPools() *pools { return &pools{byKey: map[poolKey]*pool{}} }

var (
	resourceCommitment = regexp.MustCompile(`(?i)^commitment v[0-9]+: (.+?) (?:in|running in) .+ for [0-9]+ years?$`)
	spendCommitment    = regexp.MustCompile(`(?i)^commitment\s*-\s*dollar based v[0-9]+:`)
	runningIn          = regexp.MustCompile(`(?i)^(.+?) (?:running )?in .+$`)
	fillers            = regexp.MustCompile(`(?i)\b(instance|predefined|custom|spot preemptible|preemptible)\b`)
)

// poolOfCommitment tells whether a line is a commitment's, by its SKU: "Commitment v1: A2
// Cpu in Americas for 1 Year", "Commitment - dollar based v1: GCE for 3 years".
func poolOfCommitment(l *billing.Line) (poolKey, bool) {
	key := poolKey{day: l.ChargePeriod.Start.Truncate(24 * time.Hour), currency: l.Currency}
	if spendCommitment.MatchString(l.Description) {
		return key, true
	}
	m := resourceCommitment.FindStringSubmatch(l.Description)
	if m == nil {
		return key, false
	}
	key.region, key.resource = l.Region, resource(m[1])
	return key, true
}

// poolsOfUsage are what a usage line's credits belong to.
func poolsOfUsage(l *billing.Line, paid creditSums) map[poolKey]money.Amount {
	out := map[poolKey]money.Amount{}
	key := poolKey{day: l.ChargePeriod.Start.Truncate(24 * time.Hour), currency: l.Currency}
	if a := paid[spendDiscount]; a.Sign() < 0 {
		out[key] = a.Neg()
	}
	if a := paid[resourceDiscount]; a.Sign() < 0 {
		key.region, key.resource = l.Region, resource(l.Description)
		if m := runningIn.FindStringSubmatch(l.Description); m != nil {
			key.resource = resource(m[1])
		}
		out[key] = a.Neg()
	}
	return out
}

// resource brings "A2 Instance Core" and "A2 Cpu" to the same words. N1 is not named in
// its commitments.
func resource(text string) string {
	text = strings.ToLower(fillers.ReplaceAllString(text, " "))
	words := strings.Fields(strings.ReplaceAll(text, "cpu", "core"))
	if len(words) > 1 && words[0] == "n1" {
		words = words[1:]
	}
	return strings.Join(words, " ")
}

var families = []struct{ word, family string }{
	{"nvidia l4", "g2"}, {"rtx pro 6000", "g4"}, {"gb200", "a4x"}, {"b200", "a4"}, {"h200", "a3"}, {"h100", "a3"}, {"a100", "a2"},
}

var firstWord = regexp.MustCompile(`(?i)^commitment v[0-9]+: ([a-z][0-9]+[a-z]*) `)

// familyOf is the family of machines that a commitment is for, as far as it names one.
func familyOf(description string) string {
	lower := strings.ToLower(description)
	for _, f := range families {
		if strings.Contains(lower, f.word) {
			return f.family
		}
	}
	if m := firstWord.FindStringSubmatch(description); m != nil {
		return strings.ToLower(m[1])
	}
	return ""
}

func (p *pools) at(key poolKey) *pool {
	one := p.byKey[key]
	if one == nil {
		one = &pool{amount: new(big.Rat), covered: new(big.Rat), given: new(big.Int)}
		p.byKey[key] = one
	}
	return one
}

// learn adds a row of the first pass.
func (p *pools) learn(l *billing.Line, paid creditSums) {
	if l.ChargeType != "regular" {
		return
	}
	if key, ok := poolOfCommitment(l); ok {
		if paid[feeOffset].Sign() != 0 {
			return // its own credit says what of it was used
		}
		one := p.at(key)
		one.committed = one.committed.Add(l.Costs.Billed)
		one.count(l, one.amount, big.NewRat(1, 1))
		return
	}
	for key, credit := range poolsOfUsage(l, paid) {
		one := p.at(key)
		one.paid = one.paid.Add(credit)
		cost := l.Costs.Billed.Sub(paid.total()) // before credits
		if cost.Sign() <= 0 {
			one.uneven = true
			continue
		}
		one.count(l, one.covered, new(big.Rat).SetFrac(credit.Big(), cost.Big()))
	}
}

// count adds a line's quantity, or the part of it, to a sum.
func (one *pool) count(l *billing.Line, sum, part *big.Rat) {
	q := l.PricingQuantity
	if !q.Valid || q.Amount.Sign() < 0 || one.unit != "" && one.unit != l.PricingUnit {
		one.uneven = true
		return
	}
	one.unit = l.PricingUnit
	whole := new(big.Rat).SetFrac(q.Amount.Big(), money.FromInt(1).Big())
	sum.Add(sum, whole.Mul(whole, part))
}

// used is the part of a resource-based commitment that was used, 1 where its amounts do
// not say.
func (one *pool) used(key poolKey) *big.Rat {
	all := big.NewRat(1, 1)
	if key.resource == "" || one.uneven || one.amount.Sign() <= 0 {
		return all
	}
	if u := new(big.Rat).Quo(one.covered, one.amount); u.Cmp(all) < 0 {
		return u
	}
	return all
}

// amortise moves to a usage line its part of what was paid for the commitments that cover
// it: cost of the commitment × used part × its credit ÷ all credits of the day, cut off at
// 24 decimals.
func (p *pools) amortise(l *billing.Line, paid creditSums) {
	for key, credit := range poolsOfUsage(l, paid) {
		one := p.byKey[key]
		if one == nil || one.committed.Sign() <= 0 || one.paid.Sign() <= 0 {
			p.uncovered++
			continue
		}
		part := new(big.Rat).SetFrac(credit.Big(), one.paid.Big())
		part.Mul(part, one.used(key))
		n := new(big.Int).Mul(one.committed.Big(), part.Num())
		n.Quo(n, part.Denom())
		moved, err := money.FromBig(n)
		if err != nil {
			continue // no more than the commitment, which is an Amount
		}
		one.given.Add(one.given, n)
		l.Costs.Effective = l.Costs.Effective.Add(moved)
	}
}

// hold keeps a commitment's line until all usage was seen.
func (p *pools) hold(key poolKey, l billing.Line) {
	one := p.at(key)
	one.held = append(one.held, l)
}

// rest returns the lines of commitments, with what nobody used as their effective cost,
// in the order of their content.
func (p *pools) rest() []billing.Line {
	var out []billing.Line
	for _, one := range p.byKey {
		left := one.committed.Big()
		left.Sub(left, one.given)
		out = append(out, one.spread(left)...)
	}
	keys := make(map[int][32]byte, len(out))
	order := make([]int, len(out))
	for i := range out {
		order[i], keys[i] = i, out[i].Key()
	}
	slices.SortFunc(order, func(a, b int) int {
		x, y := keys[a], keys[b]
		return slices.Compare(x[:], y[:])
	})
	sorted := make([]billing.Line, len(out))
	for i, at := range order {
		sorted[i] = out[at]
	}
	return sorted
}

// spread gives what is left, in 1e-24, to the commitment's lines by their cost. What does
// not divide goes to the first by content.
func (one *pool) spread(left *big.Int) []billing.Line {
	lines := one.held
	sort.SliceStable(lines, func(i, j int) bool {
		x, y := lines[i].Key(), lines[j].Key()
		return slices.Compare(x[:], y[:]) < 0
	})
	total := one.committed.Big()
	rest := new(big.Int).Set(left)
	for i := len(lines) - 1; i >= 0 && total.Sign() != 0; i-- {
		n := rest
		if i > 0 {
			n = new(big.Int).Mul(left, lines[i].Costs.Billed.Big())
			n.Quo(n, total)
			rest.Sub(rest, n)
		}
		if a, err := money.FromBig(n); err == nil { // no more than all of it
			lines[i].Costs.Effective = a
		}
	}
	for i := range lines {
		if lines[i].Costs.Effective.Sign() != 0 {
			lines[i].Class = billing.CommitmentUnused
		}
	}
	return lines
}

// notes says of which credits no commitment is known.
func (p *pools) notes() []string {
	if p.uncovered == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d lines are covered by commitments that are not in this billing account: what they cost is not part of their effective cost", p.uncovered)}
}
