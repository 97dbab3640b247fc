// Package warehouse is the only package that knows Postgres: migrations, versioned
// inputs, units, runs and the queries behind the finance views.
package warehouse

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"sort"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"gpuledger"
)

// DB is the warehouse.
type DB struct {
	pool *pgxpool.Pool
}

// connectTries bounds how often a connection is tried before giving up, about
// half a minute in all.
const connectTries = 6

// Open connects, retrying for a short while. The error names the server without
// its password.
func Open(ctx context.Context, url string) (*DB, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", hideURL(err))
	}
	if !strings.Contains(url, "pool_max_conns") { // who sets a limit keeps it, and has fewer workers
		cfg.MaxConns = jobConns + 2*mostWorkers // opened as they are needed
	}
	cfg.MaxConns = max(jobConns+2, cfg.MaxConns)
	cfg.ConnConfig.RuntimeParams["application_name"] = "gpuledger"
	cfg.ConnConfig.RuntimeParams["timezone"] = "UTC"
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = 10 * time.Second
	}
	// No named statements, so that a transaction pooler works.
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("database: %w", hideURL(err))
	}
	_, err = backoff.Retry(ctx, func() (struct{}, error) {
		err := pool.Ping(ctx)
		if err != nil && !transient(err) {
			return struct{}{}, backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithMaxTries(connectTries), backoff.WithBackOff(&backoff.ExponentialBackOff{InitialInterval: 300 * time.Millisecond, Multiplier: 2, MaxInterval: 8 * time.Second, RandomizationFactor: 0.2}))
	if err != nil {
		pool.Close()
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "3D000" {
			return nil, fmt.Errorf("database %s (%s): %s; create it with createdb, then run: gpuledger migrate up", cfg.ConnConfig.Host, cfg.ConnConfig.Database, pg.Message)
		}
		return nil, fmt.Errorf("database %s (%s) cannot be reached: %w; check that it runs and that DATABASE_URL is right", cfg.ConnConfig.Host, cfg.ConnConfig.Database, hideURL(err))
	}
	return &DB{pool: pool}, nil
}

// transient reports whether a later try of a connection may succeed.
func transient(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return strings.HasPrefix(pg.Code, "57P0") || pg.Code == "53300" // starting up or shutting down; too many connections
	}
	var op *net.OpError
	return errors.As(err, &op) || errors.Is(err, context.DeadlineExceeded)
}

// hideURL keeps connection strings, and with them passwords, out of errors.
func hideURL(err error) error {
	var parse *pgconn.ParseConfigError
	if errors.As(err, &parse) {
		return errors.New("cannot be parsed; expected postgres://user:password@host:5432/database")
	}
	return err
}

// Close releases every connection.
func (db *DB) Close() { db.pool.Close() }

// ServerVersion returns the server's version text.
func (db *DB) ServerVersion(ctx context.Context) (string, error) {
	var v string
	err := db.pool.QueryRow(ctx, "SHOW server_version").Scan(&v)
	return v, err
}

// migrations returns a goose provider over the embedded migrations.
func (db *DB) migrations() (*goose.Provider, *sql.DB, error) {
	files, err := fs.Sub(gpuledger.Migrations, "migrations")
	if err != nil {
		return nil, nil, err
	}
	conn := stdlib.OpenDBFromPool(db.pool)
	p, err := goose.NewProvider(goose.DialectPostgres, conn, files, goose.WithTableName("public.gpuledger_migration"))
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return p, conn, nil
}

// Migrate brings the schema to the newest version and (re)creates the finance
// views. It changes nothing on an up-to-date database. It returns the versions
// applied.
func (db *DB) Migrate(ctx context.Context) (applied []string, err error) {
	p, conn, err := db.migrations()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	unlock, err := db.migrating(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	results, err := p.Up(ctx)
	if err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	for _, r := range results {
		applied = append(applied, r.Source.Path)
	}
	return applied, db.createViews(ctx)
}

// migrating makes several programs that start at once migrate one after the other. The
// lock is of a transaction of its own and ends with it, also behind a pooler.
func (db *DB) migrating(ctx context.Context) (unlock func(), err error) {
	tx, err := db.pool.Begin(ctx)
	if err != nil {
		return nil, err
	}
	unlock = func() { _ = tx.Rollback(context.WithoutCancel(ctx)) } // nothing was written
	if err = mayIdle(ctx, tx); err == nil {
		_, err = tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtext('gpuledger migrations'))")
	}
	if err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// MigrateDown takes one migration back. The views go first: they are made again
// by Migrate.
func (db *DB) MigrateDown(ctx context.Context) (undone string, err error) {
	if _, err := db.pool.Exec(ctx, "DROP SCHEMA IF EXISTS finance CASCADE"); err != nil {
		return "", err
	}
	p, conn, err := db.migrations()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	r, err := p.Down(ctx)
	if err != nil {
		return "", fmt.Errorf("migrate down: %w", err)
	}
	return r.Source.Path, nil
}

// Migration is one migration and when it was applied (zero: pending).
type Migration struct {
	Name    string
	Applied time.Time
}

// MigrationStatus lists the migrations in order.
func (db *DB) MigrationStatus(ctx context.Context) (out []Migration, err error) {
	p, conn, err := db.migrations()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	all, err := p.Status(ctx)
	for _, s := range all {
		out = append(out, Migration{Name: s.Source.Path, Applied: s.AppliedAt})
	}
	return out, err
}

// HasSchema reports whether the database has tables of the warehouse, of whatever
// version; it changes nothing.
func (db *DB) HasSchema(ctx context.Context) (there bool, err error) {
	err = db.pool.QueryRow(ctx, "SELECT to_regclass('gpuledger.period') IS NOT NULL").Scan(&there)
	return there, err
}

// CheckSchema returns an error that says what to run where migrations are pending.
func (db *DB) CheckSchema(ctx context.Context) error {
	all, err := db.MigrationStatus(ctx)
	if err != nil {
		return err
	}
	for _, m := range all {
		if m.Applied.IsZero() {
			return fmt.Errorf("the database schema is not up to date (%s is pending); run: gpuledger migrate up", m.Name)
		}
	}
	return nil
}

func (db *DB) createViews(ctx context.Context) error {
	names, err := fs.Glob(gpuledger.SQL, "sql/views/*.sql")
	if err != nil {
		return err
	}
	sort.Strings(names)
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtext('gpuledger views')); "); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS finance"); err != nil {
			return err
		}
		for _, n := range names {
			text, err := fs.ReadFile(gpuledger.SQL, n)
			if err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, string(text)); err != nil {
				return fmt.Errorf("%s: %w", n, err)
			}
		}
		if _, err := tx.Exec(ctx, "SELECT gpuledger.grant_roles()"); err != nil {
			return fmt.Errorf("roles: %w", err)
		}
		return nil
	})
}

// Reset empties the warehouse: every schema of ours is dropped and made again.
func (db *DB) Reset(ctx context.Context) error {
	if _, err := db.pool.Exec(ctx, "DROP SCHEMA IF EXISTS finance, gpuledger CASCADE; DROP TABLE IF EXISTS public.gpuledger_migration", pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	_, err := db.Migrate(ctx)
	return err
}

// Databases lists the databases of a server that people made, in order.
func Databases(ctx context.Context, url string) ([]string, error) {
	db, err := Open(ctx, url)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	rows, err := db.pool.Query(ctx, "SELECT datname FROM pg_database WHERE NOT datistemplate AND datname <> 'postgres' ORDER BY 1")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
