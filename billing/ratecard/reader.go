package ratecard

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"time"

	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/billing/period"
)

// NodeHour is what is known of a node in an hour.
type NodeHour struct {
	Cluster, Node string
	InstanceID    string // the provider's name of the machine, else cluster/node
	InstanceType  string
	Pool, Region  string
	Labels        map[string]string
	GPUs          int
	Model         string // of its GPUs, normalised
	Hour          time.Time
	ReadyMicros   int64 // of the hour
}

// Nodes returns the node-hours of a month, in a fixed order; Months the months that have
// any.
type Nodes interface {
	Months(ctx context.Context) ([]period.Month, error)
	NodeHours(ctx context.Context, m period.Month) ([]NodeHour, error)
}

// Reader is a billing.Reader over a card and the nodes that clusters showed.
type Reader struct {
	name, file string
	card       Card
	rates      []rate
	nodes      Nodes
}

var _ billing.Reader = (*Reader)(nil)

// New returns the reader of the bill source with the given name. File names the card in
// errors.
func New(name, file string, card Card, nodes Nodes) (*Reader, error) {
	rates, err := card.compile()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return &Reader{name, file, card, rates, nodes}, nil
}

// Deliveries returns a delivery for each month that has node-hours. Its token changes
// with the card and with what is known of the nodes.
func (r *Reader) Deliveries(ctx context.Context) ([]billing.Delivery, error) {
	months, err := r.nodes.Months(ctx)
	if err != nil {
		return nil, fmt.Errorf("bills %s: %w", r.name, err)
	}
	var out []billing.Delivery
	for _, m := range months {
		hours, err := r.nodes.NodeHours(ctx, m)
		if err != nil {
			return nil, fmt.Errorf("bills %s: %w", r.name, err)
		}
		h := sha256.New()
		if err := json.NewEncoder(h).Encode(struct {
			Card  Card
			Hours []NodeHour
		}{r.card, hours}); err != nil {
			return nil, err
		}
		d := billing.Delivery{Format: "rate card", BillingPeriod: m, ID: r.file, Token: [32]byte(h.Sum(nil))}
		d.Notes = []string{"estimated: hours that nodes were ready, by a rate card; no invoice stands behind them", "contracted cost unavailable: a rate card has none"}
		if priced := r.priced(hours); priced < len(hours) {
			d.Notes = append(d.Notes, fmt.Sprintf("%d of %d node-hours match no rate and are not billed", len(hours)-priced, len(hours)))
		}
		out = append(out, d)
	}
	return out, nil
}

func (r *Reader) priced(hours []NodeHour) int {
	n := 0
	for _, h := range hours {
		if r.rateOf(h) >= 0 {
			n++
		}
	}
	return n
}

func (r *Reader) rateOf(h NodeHour) int {
	return slices.IndexFunc(r.rates, func(x rate) bool { return x.holds(h) })
}

// Read implements billing.Reader.
func (r *Reader) Read(ctx context.Context, d billing.Delivery, keep func(*billing.Line) bool, fn func(*billing.Line, bool) error) error {
	hours, err := r.nodes.NodeHours(ctx, d.BillingPeriod)
	if err != nil {
		return fmt.Errorf("bills %s: %w", r.name, err)
	}
	for i, h := range hours {
		at := r.rateOf(h)
		if at < 0 || h.ReadyMicros <= 0 {
			continue
		}
		line, err := r.line(h, r.rates[at])
		if err != nil {
			return fmt.Errorf("bills %s: node %s at %s: %w", r.name, h.Node, h.Hour.Format(time.RFC3339), err)
		}
		line.BillingPeriod, line.File, line.Row = d.BillingPeriod, r.file, int64(i+1)
		if err := fn(&line, keep(&line)); err != nil {
			return err
		}
	}
	return nil
}

// line prices a node's hour: the time that it was ready, of twelve decimals, × the price,
// × its GPUs where the price is of one.
func (r *Reader) line(h NodeHour, x rate) (billing.Line, error) {
	ready := readyHours(h.ReadyMicros)
	quantity := ready
	unit := "Hours"
	if x.Per == "gpu" {
		quantity, unit = scale(ready, int64(h.GPUs)), "GPU-Hours"
	}
	effective, err := times(x.effective, quantity)
	if err != nil {
		return billing.Line{}, err
	}
	l := billing.Line{
		Provider: "rate card", ChargePeriod: period.Hour(h.Hour), Class: billing.NodeUsage, Component: billing.Node,
		ChargeCategory: "Usage", ChargeType: "Estimated", Description: fmt.Sprintf("Estimated: %s of %s at %s %s per %s", unit, h.Node, x.Effective, r.card.Currency, x.Per),
		PayerAccount: "", UsageAccount: h.Cluster, ResourceID: h.Cluster + "/" + h.Node, InstanceID: h.InstanceID, InstanceType: h.InstanceType, Region: h.Region,
		Service: "Rate card", Costs: billing.Costs{Billed: effective, Effective: effective}, Currency: r.card.Currency,
		ConsumedQuantity: money.Some(ready), ConsumedUnit: "Hours", PricingQuantity: money.Some(quantity), PricingUnit: unit,
	}
	if x.list.Valid {
		list, err := times(x.list.Amount, quantity)
		if err != nil {
			return l, err
		}
		l.Costs.List, l.ListUnitPrice = money.Some(list), x.list
	}
	return l, nil
}

var (
	one  = new(big.Int).Exp(big.NewInt(10), big.NewInt(money.Scale), nil)
	step = new(big.Int).Exp(big.NewInt(10), big.NewInt(money.Scale-money.RatioScale), nil)
)

// readyHours is µs as hours of twelve decimals, rounded down.
func readyHours(us int64) money.Amount {
	n := new(big.Int).Mul(big.NewInt(us), new(big.Int).Exp(big.NewInt(10), big.NewInt(money.RatioScale), nil))
	n.Quo(n, big.NewInt(3_600_000_000))
	a, err := money.FromBig(n.Mul(n, step))
	if err != nil {
		panic(err) // an hour is at most 1
	}
	return a
}

func scale(a money.Amount, n int64) money.Amount {
	out, err := money.FromBig(new(big.Int).Mul(a.Big(), big.NewInt(n)))
	if err != nil {
		panic(err) // a few hours
	}
	return out
}

// times multiplies exactly: a price of twelve decimals by hours of twelve.
func times(a, b money.Amount) (money.Amount, error) {
	n, rest := new(big.Int).QuoRem(new(big.Int).Mul(a.Big(), b.Big()), one, new(big.Int))
	if rest.Sign() != 0 {
		return money.Amount{}, fmt.Errorf("%s × %s has more than %d decimals", a, b, money.Scale)
	}
	return money.FromBig(n)
}
