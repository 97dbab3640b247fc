package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"gpuledger/billing/period"
	"gpuledger/warehouse"
	"gpuledger/warehouse/localpg"
)

// privateDatabase is the database of the private Postgres that commands use.
const privateDatabase = "gpuledger"

// database is an open warehouse and, where it is ours, its server.
type database struct {
	*warehouse.DB
	server *localpg.Server // nil for a database of the user's
	name   string
}

// Close disconnects and stops a server of ours.
func (d *database) Close() error {
	d.DB.Close()
	if d.server != nil {
		return d.server.Stop()
	}
	return nil
}

// url finds the database to use: the flag, DATABASE_URL, the configuration, in this
// order; "" is the private Postgres (see private).
func (a *app) url(cfg *Config) string {
	if a.databaseURL != "" {
		return a.databaseURL
	}
	if u := os.Getenv("DATABASE_URL"); u != "" {
		return u
	}
	if cfg != nil {
		return cfg.Warehouse.URL
	}
	return ""
}

// private reports whether a URL means the private Postgres, and which of its
// databases: "" is the program's own, "private:demo" the demo's.
func private(url string) (database string, ok bool) {
	if url == "" {
		return privateDatabase, true
	}
	return strings.CutPrefix(url, "private:")
}

// openDatabase opens the warehouse that the command line and the configuration name.
// A private one is migrated on the way: nobody else uses it.
func (a *app) openDatabase(ctx context.Context, cfg *Config) (*database, error) {
	url := a.url(cfg)
	if name, ok := private(url); ok {
		return a.openPrivate(ctx, name)
	}
	db, err := warehouse.Open(ctx, url)
	if err != nil {
		return nil, err
	}
	if err := db.CheckSchema(ctx); err != nil {
		db.Close()
		return nil, err
	}
	return &database{DB: db}, nil
}

func (a *app) startPrivate(ctx context.Context) (*localpg.Server, error) {
	server, err := localpg.Start(ctx, localpg.Options{Wait: a.wait > 0, Report: func(line string) { a.log.Info(line) }})
	var inUse *localpg.InUseError
	if errors.As(err, &inUse) && inUse.Serving {
		return localpg.Attach(ctx, inUse.Dir)
	}
	return server, err
}

func (a *app) openPrivate(ctx context.Context, name string) (*database, error) {
	server, err := a.startPrivate(ctx)
	if err != nil {
		return nil, err
	}
	d, err := a.connectPrivate(ctx, server, name)
	if err != nil {
		return nil, errors.Join(err, server.Stop())
	}
	return d, nil
}

// connectPrivate opens a database of the private Postgres, brought up to date.
func (a *app) connectPrivate(ctx context.Context, server *localpg.Server, name string) (*database, error) {
	return a.preparePrivate(ctx, server, name, func(db *warehouse.DB) error {
		_, err := db.Migrate(ctx)
		return err
	})
}

// preparePrivate opens a database of the private Postgres and has it prepared.
func (a *app) preparePrivate(ctx context.Context, server *localpg.Server, name string, prepare func(*warehouse.DB) error) (*database, error) {
	if err := server.EnsureDatabase(ctx, name); err != nil {
		return nil, err
	}
	db, err := warehouse.Open(ctx, server.URL(name))
	if err != nil {
		return nil, err
	}
	if err := prepare(db); err != nil {
		db.Close()
		return nil, err
	}
	return &database{DB: db, server: server, name: name}, nil
}

// withDatabase loads the configuration, opens the warehouse and runs fn.
func (a *app) withDatabase(ctx context.Context, fn func(*Config, *database) error) (err error) {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	db, err := a.openDatabase(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return fn(cfg, db)
}

// withReader is withDatabase for commands that only read: they work without a
// configuration too.
func (a *app) withReader(ctx context.Context, fn func(*database) error) (err error) {
	cfg, err := a.loadConfig()
	if err != nil {
		if _, statErr := os.Stat(a.configPath); statErr == nil {
			return err
		}
		cfg = nil
	}
	db, err := a.openDatabase(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return fn(db)
}

// month reads --period, or finds the newest month with a run.
func (db *database) month(ctx context.Context, text string) (period.Month, error) {
	if text != "" {
		m, err := period.ParseMonth(text)
		if err != nil {
			return m, &exitError{exitUsage, err}
		}
		return m, nil
	}
	m, err := db.LatestPeriod(ctx)
	if err == nil && m.IsZero() {
		err = incompletef("no month has a published run; run: gpuledger run")
	}
	return m, err
}

// say prints a line for a person to stderr, which data never shares.
func (a *app) say(format string, args ...any) {
	if !a.quiet {
		_, _ = fmt.Fprintf(a.stderr, format+"\n", args...)
	}
}
