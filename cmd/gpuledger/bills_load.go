package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	"gpuledger/billing"
	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/objstore"
	"gpuledger/warehouse"
)

// raceWait is how long a delivery that changed under us is left alone before the next of
// raceTries.
var raceWait = 2 * time.Second

const raceTries = 3

// loadBills loads a source's deliveries and returns the months whose lines changed. A
// broken delivery does not keep the whole ones of other months out; one that was written
// while it was read is read again.
func (a *app) loadBills(ctx context.Context, cfg *Config, db *database, b BillConfig, only period.Month, allowEmpty bool) ([]period.Month, error) {
	var changed []period.Month
	for try := 1; ; try++ {
		months, err := a.loadBillsOnce(ctx, cfg, db, b, only, allowEmpty)
		changed = append(changed, months...)
		if !errors.Is(err, objstore.ErrChanged) || try == raceTries {
			return changed, err
		}
		a.log.Warn("a bill was written while it was read; it is read again", "source", b.Name, "error", err.Error())
		select {
		case <-ctx.Done():
			return changed, ctx.Err()
		case <-time.After(time.Duration(try) * raceWait):
		}
	}
}

func (a *app) loadBillsOnce(ctx context.Context, cfg *Config, db *database, b BillConfig, only period.Month, allowEmpty bool) ([]period.Month, error) {
	began := a.now()
	var looked time.Time
	if only.IsZero() { // who asks for a month gets it whenever it changed
		var err error
		if looked, err = cfg.lookedAt(ctx, db, b); err != nil {
			return nil, err
		}
	}
	r, err := cfg.reader(ctx, b, db.DB, looked, a.log)
	if err != nil {
		return nil, err
	}
	deliveries, broken := r.Deliveries(ctx)
	if broken != nil && len(deliveries) == 0 {
		return nil, broken
	}
	var changed []period.Month
	matched := false
	for _, d := range deliveries {
		if !only.IsZero() && d.BillingPeriod != only {
			continue
		}
		matched = true
		scope, err := cfg.scope(ctx, db, d.BillingPeriod)
		if err != nil {
			return changed, err
		}
		months, err := a.loadDelivery(ctx, db, warehouse.BillLoad{Source: b.Name, Kind: b.Type, Scope: scope, AllowEmpty: allowEmpty}, d, r)
		changed = append(changed, months...)
		if err != nil {
			return changed, err
		}
	}
	switch {
	case broken != nil:
		return changed, broken
	case b.Table != "" && only.IsZero() && (len(deliveries) > 0 || !looked.IsZero()):
		return changed, db.SetLookedAt(ctx, b.Name, began)
	case len(deliveries) == 0 && b.Type == "ratecard":
		return changed, nil // no node was seen yet
	case len(deliveries) == 0:
		return changed, incompletef("%w: there is no delivery, or none with a line, at %s", billing.ErrIncomplete, b.where())
	case !matched:
		var have []string
		for _, d := range deliveries {
			have = append(have, d.BillingPeriod.String())
		}
		return changed, incompletef("%w: no delivery of %s; there are: %s", billing.ErrIncomplete, only, orNone(strings.Join(have, ", ")))
	}
	return changed, nil
}

// lookedAt is when a source was last looked at whole: zero where a month that is stored
// would be kept by another scope now, and has to be read whether it changed or not.
func (c *Config) lookedAt(ctx context.Context, db *database, b BillConfig) (time.Time, error) {
	looked, err := db.LookedAt(ctx, b.Name)
	if err != nil || looked.IsZero() || b.Table == "" { // only a table is asked for what is new
		return looked, err
	}
	stored, err := db.StoredScopes(ctx, b.Name)
	if err != nil {
		return looked, err
	}
	for m, hash := range stored {
		scope, err := c.scope(ctx, db, m)
		if err != nil {
			return looked, err
		}
		if scope.Hash() != hash {
			return time.Time{}, nil
		}
	}
	return looked, nil
}

// scope decides which lines of a billing period are kept whole: those of GPU nodes that
// were known by the end of the month after it, of GPU instance types, and of the
// configured filters. A month is not read again for nodes of later ones.
func (c *Config) scope(ctx context.Context, db *database, m period.Month) (*billing.Scope, error) {
	known, err := db.KnownInstances(ctx, m.Next().Next().Start())
	if err != nil {
		return nil, err
	}
	s := &billing.Scope{Instances: known, GPUType: gpu.IsGPUInstanceType, GPUFamily: gpu.IsGPUFamily, Catalogue: fmt.Sprintf("%x", sha256.Sum256([]byte(gpu.CatalogVersion())))}
	for _, f := range c.Scope.Filters {
		s.Filters = append(s.Filters, billing.Filter{Accounts: f.Accounts, Tags: f.Tags})
	}
	return s, nil
}

// loadDelivery loads one delivery, unless it is loaded already.
func (a *app) loadDelivery(ctx context.Context, db *database, load warehouse.BillLoad, d billing.Delivery, r billing.Reader) ([]period.Month, error) {
	var res warehouse.BillResult
	err := db.Locked(ctx, a.wait, []string{"bills/" + load.Source + "/" + d.BillingPeriod.String()}, func() (err error) {
		stop := a.progress(fmt.Sprintf("bill %s %s", load.Source, d.BillingPeriod))
		defer stop()
		res, err = db.LoadDelivery(ctx, load, d, r)
		return err
	})
	if err != nil {
		return nil, err
	}
	if !res.Changed {
		a.log.Info("bill unchanged", "source", load.Source, "billing_period", d.BillingPeriod.String(), "lines", res.Lines)
		return nil, nil
	}
	a.log.Info("bill loaded", "source", load.Source, "billing_period", d.BillingPeriod.String(), "format", d.Format, "lines", res.Lines, "in_scope", res.KeptLines, "new", res.New, "gone", res.Gone)
	for _, n := range res.Notes {
		a.log.Info("bill note", "source", load.Source, "note", n)
	}
	return res.Months, nil
}
