package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gpuledger/warehouse"
	"gpuledger/warehouse/localpg"
)

// documents checks the policy and the owners.
func (c *doctor) documents(cfg *Config, reports *[]*report) {
	r := &report{}
	*reports = append(*reports, r)
	if p, err := cfg.policy(""); err != nil {
		r.fail("policy", orNone(cfg.Policy), err, "mend the line it names")
	} else {
		c.policy = &p
		r.good("policy", orNone(cfg.Policy), "basis %s, idle %s, hash %x", p.Basis, p.Idle.Default.Policy, shortHash(p.Hash()))
	}
	o, err := cfg.owners()
	switch {
	case err != nil:
		r.fail("owners", orNone(cfg.Owners), err, "mend the line it names")
		return
	case len(o.Rules) == 0:
		r.bad("owners", orNone(cfg.Owners), "no rules: every pod will be without an owner", "write owners.yaml and name it in the configuration as owners:")
	default:
		r.good("owners", cfg.Owners, "%d rules, timezone %s", len(o.Rules), o.Timezone)
	}
	c.owners = &o
}

func shortHash(h [32]byte) []byte { return h[:6] }

// database checks the warehouse. A private one is started for the look; it is not made,
// nor brought up to date: the next command that writes does so.
func (c *doctor) database(ctx context.Context, a *app, cfg *Config, r *report) {
	url := a.url(cfg)
	where := "Postgres of the configuration"
	if name, ok := private(url); ok {
		dir, err := localpg.DefaultDir()
		if err != nil {
			r.fail("database", "warehouse", err, "set DATABASE_URL to a Postgres of yours")
			return
		}
		if _, err := os.Stat(filepath.Join(dir, "data", "PG_VERSION")); errors.Is(err, os.ErrNotExist) {
			r.note("database", "warehouse", "the private Postgres is not there yet; the first gpuledger run makes it in "+dir, "")
			return
		}
		server, err := a.startPrivate(ctx)
		if err != nil {
			r.fail("database", "warehouse", err, "see "+filepath.Join(dir, "postgres.log")+", or set DATABASE_URL to a Postgres of yours")
			return
		}
		defer func() {
			if err := server.Stop(); err != nil {
				r.fail("database", "warehouse", err, "see "+filepath.Join(dir, "postgres.log"))
			}
		}()
		url, where = server.URL(name), "private Postgres in "+dir
	}
	db, err := warehouse.Open(ctx, url)
	if err != nil {
		r.fail("database", "warehouse", err, "start it, or check DATABASE_URL")
		return
	}
	defer db.Close()
	v, err := db.ServerVersion(ctx)
	if err != nil {
		r.fail("database", "warehouse", err, "check the server's log")
		return
	}
	// Asking for the state of the migrations of an empty database would make their table.
	there, err := db.HasSchema(ctx)
	switch {
	case err == nil && there:
		err = db.CheckSchema(ctx)
	case err == nil:
		err = errors.New("the database is empty: it has no schema yet")
	}
	_, own := private(a.url(cfg))
	switch {
	case err == nil:
		r.good("database", "warehouse", "%s, version %s, schema up to date", where, v)
	case own:
		r.note("database", "warehouse", fmt.Sprintf("%s, version %s: the next gpuledger run brings its schema up to date", where, v), "")
	default:
		r.fail("database", "warehouse", err, "gpuledger migrate up")
	}
}

func (c *doctor) bills(ctx context.Context, cfg *Config, b BillConfig, r *report) {
	if b.Type == "ratecard" { // it prices what the warehouse knows; here its card is read
		if _, err := cfg.rateCard(b, nil); err != nil {
			r.fail("bill", b.Name, err, "mend the card of rates")
			return
		}
		r.good("bill", b.Name, "a card of rates: its lines are estimates")
		return
	}
	reader, err := cfg.reader(ctx, b, nil, time.Time{}, nil)
	if err != nil {
		r.fail("bill", b.Name, err, "check location: and the credentials")
		return
	}
	ds, err := reader.Deliveries(ctx)
	if err != nil {
		r.fail("bill", b.Name, err, "wait for the delivery to be whole, or check location:")
	}
	for _, d := range ds {
		var size int64
		for _, f := range d.Files {
			size += f.Size
		}
		what := fmt.Sprintf("%s, %s: %d files, %.1f MB", d.BillingPeriod, d.Format, len(d.Files), float64(size)/1e6)
		if len(d.Notes) > 0 {
			what += "; " + strings.Join(d.Notes, "; ")
		}
		r.good("bill", b.Name, "%s", what)
	}
	if err == nil && len(ds) == 0 {
		r.bad("bill", b.Name, "no delivery at "+b.where(), "check location:")
	}
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "(unknown)"
	}
	return t.UTC().Format("2006-01-02 15:04")
}
