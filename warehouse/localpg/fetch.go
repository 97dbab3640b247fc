package localpg

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

var downloadable = map[int]embeddedpostgres.PostgresVersion{
	14: embeddedpostgres.V14, 15: embeddedpostgres.V15, 16: embeddedpostgres.V16,
	17: embeddedpostgres.V17, 18: embeddedpostgres.V18,
}

const defaultDownload = 17

// fetchBinaries downloads and unpacks a Postgres below dir, once.
//
// Of embedded-postgres only the fetching is wanted: its starter runs as the
// calling user, opens a TCP port and outlives a crash. Start is the only door to
// the fetching, so it gets a data folder that claims to be initialised and holds
// nothing, and its failure to run that is expected. What counts is the binaries.
func fetchBinaries(ctx context.Context, dir, mirror string, want int) (*binaries, error) {
	if want == 0 {
		want = defaultDownload
	}
	version, ok := downloadable[want]
	if !ok {
		return nil, fmt.Errorf("no download of Postgres %d", want)
	}
	root := filepath.Join(dir, "dist", string(version))
	if b, err := inspect(filepath.Join(root, "bin")); err == nil {
		return b, nil
	}
	empty := filepath.Join(root, "empty")
	if err := os.MkdirAll(empty, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(empty, "PG_VERSION"), fmt.Appendf(nil, "%d\n", want), 0o644); err != nil {
		return nil, err
	}
	cfg := embeddedpostgres.DefaultConfig().Version(version).Port(0).Logger(io.Discard).
		CachePath(filepath.Join(dir, "dist")).RuntimePath(filepath.Join(root, "run")).
		BinariesPath(root).DataPath(empty)
	if mirror != "" {
		cfg = cfg.BinaryRepositoryURL(mirror)
	}
	done := make(chan error, 1)
	go func() { done <- embeddedpostgres.NewDatabase(cfg).Start() }()
	var startErr error
	select {
	case startErr = <-done:
	case <-ctx.Done(): // the library has no context: its download ends by itself
		return nil, ctx.Err()
	}
	b, err := inspect(filepath.Join(root, "bin"))
	if err != nil {
		if startErr != nil {
			return nil, startErr
		}
		return nil, err
	}
	return b, nil
}
