package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"gpuledger/chargeback"
	"gpuledger/warehouse"
)

func (a *app) migrateCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "migrate", Short: "Create or update the database schema", Example: "  gpuledger migrate up", Args: cobra.ArbitraryArgs, RunE: needsSubcommand}
	cmd.AddCommand(
		&cobra.Command{
			Use: "up", Short: "Bring the schema and the finance views to this version", Args: cobra.NoArgs, Example: "  gpuledger migrate up --database-url postgres://gpuledger@db/gpuledger",
			RunE: func(c *cobra.Command, _ []string) error {
				return a.withSchema(c.Context(), func(db *warehouse.DB) error {
					applied, err := db.Migrate(c.Context())
					if err != nil {
						return err
					}
					a.log.Info("schema is up to date", "applied", len(applied))
					return nil
				})
			},
		},
		&cobra.Command{
			Use: "down", Short: "Take the newest migration back, with the data in it", Args: cobra.NoArgs, Example: "  gpuledger migrate down",
			RunE: func(c *cobra.Command, _ []string) error {
				return a.withSchema(c.Context(), func(db *warehouse.DB) error {
					undone, err := db.MigrateDown(c.Context())
					if err != nil {
						return err
					}
					a.log.Info("taken back", "migration", undone)
					return nil
				})
			},
		},
		&cobra.Command{
			Use: "status", Short: "List the migrations", Args: cobra.NoArgs, Example: "  gpuledger migrate status",
			RunE: func(c *cobra.Command, _ []string) error {
				return a.withSchema(c.Context(), func(db *warehouse.DB) error {
					all, err := db.MigrationStatus(c.Context())
					if err != nil {
						return err
					}
					t := chargeback.NewTable("migration", "applied")
					for _, m := range all {
						applied := "pending"
						if !m.Applied.IsZero() {
							applied = m.Applied.UTC().Format(time.RFC3339)
						}
						t.Add(m.Name, applied)
					}
					return t.Write(a.stdout, a.output)
				})
			},
		},
	)
	return cmd
}

// withSchema opens the warehouse without asking for an up-to-date schema.
func (a *app) withSchema(ctx context.Context, fn func(*warehouse.DB) error) (err error) {
	cfg, cfgErr := a.loadConfig()
	if cfgErr != nil && a.url(nil) == "" {
		cfg = nil // without a configuration: the private Postgres
	}
	url := a.url(cfg)
	if name, ok := private(url); ok {
		server, err := a.startPrivate(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.Stop()) }()
		if err := server.EnsureDatabase(ctx, name); err != nil {
			return err
		}
		url = server.URL(name)
	}
	db, err := warehouse.Open(ctx, url)
	if err != nil {
		return err
	}
	defer db.Close()
	return fn(db)
}
