package pgtest

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

func migrateOnce(t *testing.T) func(context.Context, string) error {
	return func(ctx context.Context, dsn string) error {
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return err
		}
		t.Cleanup(func() { conn.Close(ctx) }) // still open when the copies are made
		_, err = conn.Exec(ctx, "CREATE TABLE seed AS SELECT 1 AS n")
		return err
	}
}

func TestDatabasesAreApart(t *testing.T) {
	ctx := context.Background()
	for range 3 {
		conn, err := pgx.Connect(ctx, New(t, migrateOnce(t))) // left open: the drop must manage
		if err != nil {
			t.Fatal(err)
		}
		var n int
		if err := conn.QueryRow(ctx, "UPDATE seed SET n = n + 1 RETURNING n").Scan(&n); err != nil || n != 2 {
			t.Errorf("n = %d, %v; want 2: a database is shared or was not migrated", n, err)
		}
	}
}

func TestDroppedAtTheEnd(t *testing.T) {
	ctx := context.Background()
	var dsn string
	t.Run("one", func(t *testing.T) { dsn = New(t, nil) })
	if _, err := pgx.Connect(ctx, dsn); err == nil {
		t.Error("the database outlives its test")
	}
	mu.Lock()
	defer mu.Unlock()
	if open != 0 {
		t.Errorf("%d databases in use", open)
	}
}

func TestParallel(t *testing.T) {
	for _, name := range []string{"a", "b", "c"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := pgx.Connect(context.Background(), New(t, nil))
			if err != nil {
				t.Fatal(err)
			}
			conn.Close(context.Background())
		})
	}
}
