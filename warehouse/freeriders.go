package warehouse

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"sort"
	"strings"

	"github.com/jackc/pgx/v5"

	"gpuledger/allocate"
	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/billing/period"
	"gpuledger/policy"
)

// FreeRide is what component_split price_difference would charge a month's pods
// without a GPU, who pay nothing under gpu_all, in one currency.
type FreeRide struct {
	Currency string
	Riders   *big.Rat // what these pods would pay
	Month    *big.Rat // the month's effective cost
	// Changes is what each team would pay more (or less, below 0), the largest first;
	// remainders count to their payers.
	Changes []TeamChange
}

// TeamChange is a team's gain or loss; Team is "" for what has no owner.
type TeamChange struct {
	Team string
	Cost *big.Rat
}

// Material reports whether the pods without a GPU would pay more than 2 % of the month.
func (f FreeRide) Material() bool {
	return f.Month.Sign() > 0 && new(big.Rat).Mul(f.Riders, big.NewRat(50, 1)).Cmp(f.Month) > 0
}

// String says in a sentence what would move, from whom to whom.
func (f FreeRide) String() string {
	share := new(big.Rat).Quo(new(big.Rat).Mul(f.Riders, big.NewRat(100, 1)), f.Month)
	var more, less []string
	for _, c := range f.Changes {
		team := "team " + c.Team
		if c.Team == "" {
			team = "nobody's"
		}
		cost := new(big.Rat).Abs(c.Cost).FloatString(2)
		switch {
		case cost == "0.00":
		case c.Cost.Sign() > 0 && len(more) < 5:
			more = append(more, team+" "+cost)
		case c.Cost.Sign() < 0 && len(less) < 5:
			less = append(less, team+" "+cost)
		}
	}
	text := fmt.Sprintf("pods without a GPU pay nothing under component_split gpu_all; price_difference would charge them %s %s (%s %% of the month)", f.Riders.FloatString(2), f.Currency, share.FloatString(1))
	if len(more) > 0 {
		text += "; more for " + strings.Join(more, ", ")
	}
	if len(less) > 0 {
		text += "; less for " + strings.Join(less, ", ")
	}
	return text
}

// FreeRiders works out what price_difference would move in a month that is allocated
// by gpu_all, by currency. It needs component_prices and writes nothing; lines before
// the first price count as unchanged.
func (db *DB) FreeRiders(ctx context.Context, m period.Month, p policy.Policy, owners policy.Owners) ([]FreeRide, error) {
	if p.ComponentSplit != policy.GPUAll || len(p.ComponentPrices) == 0 {
		return nil, nil
	}
	p.ComponentSplit = policy.PriceDifference
	f := &freeRiders{
		a:      &allocation{db: db, o: AllocateOptions{Period: m, Policy: p, Owners: owners}},
		riders: map[string]*big.Int{}, teams: map[string]map[string]*big.Int{}, month: map[string]*big.Rat{},
	}
	err := pgx.BeginTxFunc(ctx, db.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		var err error
		if f.a.nodes, err = loadNodes(ctx, tx); err != nil {
			return err
		}
		for day := m.Start(); day.Before(m.Span().End); day = day.AddDate(0, 0, 1) {
			if err := f.addDay(ctx, tx, m, &dayWork{day: day}); err != nil {
				return err
			}
		}
		rows, err := tx.Query(ctx, "SELECT currency, sum(effective_cost)::text FROM finance.chargeback_month WHERE period = $1 AND posting_period = $1 GROUP BY currency", m.Start())
		if err != nil {
			return err
		}
		var currency, cost string
		_, err = pgx.ForEachRow(rows, []any{&currency, &cost}, func() error {
			r, ok := new(big.Rat).SetString(cost)
			if !ok {
				return fmt.Errorf("cost %q", cost)
			}
			f.month[currency] = r
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("free riders of %s: %w", m, err)
	}
	return f.result(), nil
}

// freeRiders adds up costs in units of 1e-36: 24 decimals of the line, 12 of the ratio.
type freeRiders struct {
	a      *allocation
	riders map[string]*big.Int            // by currency
	teams  map[string]map[string]*big.Int // by currency and team
	month  map[string]*big.Rat
}

var unit36 = new(big.Int).Exp(big.NewInt(10), big.NewInt(36), nil)

func (f *freeRiders) addDay(ctx context.Context, tx pgx.Tx, m period.Month, d *dayWork) error {
	lines, err := loadLines(ctx, tx, m, d.day, f.a.byBase())
	if err != nil || len(lines) == 0 {
		return err
	}
	if d, err = f.a.newDay(ctx, tx, d.day, lines); err != nil {
		return err
	}
	if err := f.a.survey(ctx, tx, d); err != nil {
		return err
	}
	for _, u := range d.units {
		occ, err := f.a.occupancyOf(ctx, tx, d, u.windows)
		if err != nil {
			return err
		}
		for _, w := range u.windows {
			for _, currency := range currencies(w.lines) {
				if err := f.addWindow(d.split, f.a.window(d, w, occ, currency), w.lines); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (f *freeRiders) addWindow(split *allocate.Splitter, win allocate.Window, lines []*line) error {
	v, err := split.Compute(win, nil)
	var noPrice *allocate.MissingPrice
	if errors.As(err, &noPrice) {
		return nil
	}
	if err != nil {
		return err
	}
	// A line that does not say its list cost is not divided: that is gpu_all.
	now, err := v.Of(billing.Node, false)
	if err != nil {
		return err
	}
	pays := map[string]bool{}
	for _, s := range now {
		pays[s.PodUID] = pays[s.PodUID] || s.Ratio > 0
	}
	for _, l := range lines {
		if l.currency != win.Currency {
			continue
		}
		then, err := f.a.sharesOf(v, l)
		if err != nil {
			return err
		}
		cost, err := money.Parse(l.effective)
		if err != nil {
			return err
		}
		f.add(l.currency, cost, now, -1, nil)
		f.add(l.currency, cost, then, 1, pays)
	}
	return nil
}

// add counts a line's shares to their teams, and those of pods that are not in pays
// to the riders.
func (f *freeRiders) add(currency string, cost money.Amount, shares []allocate.Share, sign int64, pays map[string]bool) {
	if f.teams[currency] == nil {
		f.teams[currency], f.riders[currency] = map[string]*big.Int{}, new(big.Int)
	}
	for _, s := range shares {
		x := new(big.Int).Mul(cost.Big(), big.NewInt(int64(s.Ratio)*sign))
		sum := f.teams[currency][s.Owner.Team]
		if sum == nil {
			sum = new(big.Int)
			f.teams[currency][s.Owner.Team] = sum
		}
		sum.Add(sum, x)
		if pays != nil && s.PodUID != "" && !pays[s.PodUID] {
			f.riders[currency].Add(f.riders[currency], x)
		}
	}
}

func (f *freeRiders) result() []FreeRide {
	var out []FreeRide
	for currency, sum := range f.riders {
		if f.month[currency] == nil {
			continue
		}
		r := FreeRide{Currency: currency, Riders: new(big.Rat).SetFrac(sum, unit36), Month: f.month[currency]}
		for team, x := range f.teams[currency] {
			r.Changes = append(r.Changes, TeamChange{team, new(big.Rat).SetFrac(x, unit36)})
		}
		sort.Slice(r.Changes, func(i, j int) bool {
			a, b := r.Changes[i], r.Changes[j]
			if c := new(big.Rat).Abs(a.Cost).Cmp(new(big.Rat).Abs(b.Cost)); c != 0 {
				return c > 0
			}
			return a.Team < b.Team
		})
		out = append(out, r)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Currency < out[j].Currency })
	return out
}
