// Package pgtest gives each test a Postgres database of its own, copied from a
// template that was migrated once for the test binary.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"gpuledger/warehouse/localpg"
)

// EnvURL names the environment variable with the connection URL of a server to
// use instead of a private one: postgres://user@host/db, a role that may create
// databases.
const EnvURL = "GPULEDGER_TEST_DATABASE_URL"

var (
	mu       sync.Mutex
	admin    *pgx.Conn // to the server's own database; guarded by mu, one statement at a time
	urlOf    func(db string) string
	server   *localpg.Server
	template string // name of the migrated database, "" before the first New
	fatal    error  // why there is no server: the second test need not try again
	serial   int
	open     int // databases in use by tests
)

// New returns a connection string for a fresh database of this test alone. The
// first call applies migrate to the template that all databases are copied from;
// later calls ignore theirs, so one test binary has one schema. A nil migrate
// leaves it empty. The database is dropped when the test ends, and the server
// goes with the test binary, however that ends.
func New(t testing.TB, migrate func(ctx context.Context, dsn string) error) string {
	t.Helper()
	mu.Lock()
	defer mu.Unlock()
	ctx := context.Background()
	if fatal == nil && template == "" {
		fatal = setUp(ctx, migrate)
	}
	if fatal != nil {
		if testing.Short() && errors.Is(fatal, localpg.ErrNoBinaries) {
			t.Skipf("-short and no Postgres: %v", fatal)
		}
		t.Fatalf("a Postgres for tests: %v\ninstall one (apt-get install postgresql) or set %s", fatal, EnvURL)
	}
	serial++
	name := fmt.Sprintf("%s_%d", template, serial)
	if err := exec(ctx, "CREATE DATABASE "+quote(name)+" TEMPLATE "+quote(template)); err != nil {
		t.Fatalf("create the test's database: %v", err)
	}
	open++
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		// FORCE ends connections that a failed test left open.
		if err := exec(ctx, "DROP DATABASE "+quote(name)+" WITH (FORCE)"); err != nil {
			t.Errorf("drop the test's database: %v", err)
		}
		open--
	})
	return urlOf(name)
}

// Main runs the tests of a package and then stops the server at once and removes
// its files. Call it from TestMain: os.Exit(pgtest.Main(m)). Without it the
// server still ends with the binary, and its files are removed by the next run.
func Main(m *testing.M) int {
	defer tearDown()
	return m.Run()
}

func tearDown() {
	mu.Lock()
	defer mu.Unlock()
	ctx := context.Background()
	if admin != nil {
		if server == nil && template != "" {
			exec(ctx, "DROP DATABASE IF EXISTS "+quote(template)+" WITH (FORCE)") // best effort: the server is somebody else's
		}
		admin.Close(ctx)
	}
	if server != nil {
		server.Stop()
		os.RemoveAll(filepath.Dir(server.Dir()))
	}
}

func setUp(ctx context.Context, migrate func(context.Context, string) error) error {
	var err error
	if given := os.Getenv(EnvURL); given != "" {
		err = useURL(given)
	} else {
		err = useLocal(ctx)
	}
	if err != nil {
		return err
	}
	if admin, err = pgx.Connect(ctx, urlOf("")); err != nil {
		return err
	}
	name := fmt.Sprintf("gpuledger_test_%d_%d", os.Getpid(), time.Now().UnixNano()%1e9)
	if err := exec(ctx, "CREATE DATABASE "+quote(name)); err != nil {
		return err
	}
	if migrate != nil {
		if err := migrate(ctx, urlOf(name)); err != nil {
			return fmt.Errorf("migrate the template: %w", err)
		}
		// A connection left open would make every copy fail with a puzzle.
		if err := exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '"+name+"'"); err != nil {
			return err
		}
	}
	template = name
	return nil
}

func useURL(given string) error {
	u, err := url.Parse(given)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		return fmt.Errorf("%s is not a URL like postgres://user@host/db", EnvURL) // its text may hold a password
	}
	urlOf = func(db string) string {
		if db == "" {
			return given
		}
		c := *u
		c.Path, c.RawPath = "/"+db, ""
		return c.String()
	}
	return nil
}

const basePattern = "gpuledger-pgtest-"

func useLocal(ctx context.Context) error {
	removeLeftOvers()
	// Not t.TempDir: it is closed to the user that Postgres runs as under root,
	// and too long for a socket on macOS.
	base, err := os.MkdirTemp("/tmp", basePattern)
	if err != nil {
		return err
	}
	if err := os.Chmod(base, 0o755); err != nil {
		return err
	}
	s, err := localpg.Start(ctx, localpg.Options{Dir: filepath.Join(base, "pg"), Ephemeral: true, DownloadURL: "off"})
	if err != nil {
		os.RemoveAll(base)
		return err
	}
	server = s
	urlOf = func(db string) string {
		if db == "" {
			db = "postgres"
		}
		return s.URL(db)
	}
	return nil
}

// removeLeftOvers deletes the folders of test binaries that were killed or had
// no TestMain: those that nobody holds the lock of.
func removeLeftOvers() {
	old, _ := filepath.Glob("/tmp/" + basePattern + "*") // only a bad pattern fails
	for _, base := range old {
		if fi, err := os.Stat(base); err != nil || time.Since(fi.ModTime()) < time.Minute {
			continue // perhaps just being set up
		}
		if localpg.InUse(filepath.Join(base, "pg")) {
			continue
		}
		os.RemoveAll(base) // somebody else's is refused by the system, and stays
	}
}

func exec(ctx context.Context, sql string) error {
	_, err := admin.Exec(ctx, sql)
	return err
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
