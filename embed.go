package gpuledger

import "embed"

// Migrations are the goose migrations, in migrations/.
//
//go:embed migrations/*.sql
var Migrations embed.FS

// SQL holds the finance views (sql/views) and ready-to-run questions (sql/finance),
// one statement a file.
//
//go:embed sql
var SQL embed.FS
