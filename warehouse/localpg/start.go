//go:build unix

package localpg

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Start runs the private Postgres of opts.Dir, creating its data on first use,
// and returns when it accepts connections. The caller must Stop it; should the
// caller's process end without, the server ends by itself. A folder in use by
// another process is an *InUseError, no Postgres at all wraps ErrNoBinaries.
func Start(ctx context.Context, opts Options) (_ *Server, err error) {
	dir, err := resolveDir(opts.Dir)
	if err != nil {
		return nil, err
	}
	dataDir := filepath.Join(dir, "data")
	as, err := chooseUser(dataDir)
	if err != nil {
		return nil, err
	}
	if err := checkOurs(dir); err != nil {
		return nil, err
	}
	if err := makeDir(dir, as); err != nil {
		return nil, fmt.Errorf("folder of the private Postgres: %w", err)
	}
	if err := checkReachable(dir, as); err != nil {
		return nil, err
	}
	lock, err := acquireLock(ctx, dir, opts)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			lock.release()
		}
	}()
	foreign, err := endOrphan(dataDir, opts.report)
	if err != nil {
		return nil, err
	}
	bin, err := chooseBinaries(ctx, dir, dataDir, opts)
	if err != nil {
		return nil, err
	}
	env := serverEnv(foreign)
	if err := initialise(ctx, bin, dir, dataDir, env, as, opts); err != nil {
		return nil, err
	}
	socketDir := socketDirOf(dir)
	if err := makeDir(socketDir, as); err != nil {
		return nil, fmt.Errorf("socket folder of the private Postgres: %w", err)
	}
	s := &Server{dir: dir, socketDir: socketDir, binDir: bin.dir, version: bin.version, lock: lock}
	logPath := filepath.Join(dir, "postgres.log")
	log, err := openLog(logPath)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the server has its own copy
	at, err := log.Seek(0, 2)
	if err != nil {
		return nil, err
	}
	s.proc, err = startProcess(filepath.Join(bin.dir, "postgres"), dataDir,
		settings(socketDir, opts.Ephemeral, smallShm()), env, as, log)
	if err != nil {
		return nil, err
	}
	if err := s.awaitReady(ctx, opts); err != nil {
		s.proc.stop()
		return nil, fmt.Errorf("%w%s", err, logTail(logPath, at))
	}
	return s, nil
}

func resolveDir(dir string) (string, error) {
	if dir == "" {
		return DefaultDir()
	}
	return filepath.Abs(dir)
}

// socketDirOf is inside dir where the path suits a socket, else a folder in /tmp
// whose name follows from dir. It must be short, and a comma in a connection
// string separates hosts.
func socketDirOf(dir string) string {
	if inside := filepath.Join(dir, "run"); len(inside) <= maxSocketPath && !strings.Contains(inside, ",") {
		return inside
	}
	return fmt.Sprintf("/tmp/gpuledger-%x", sha256.Sum256([]byte(dir)))[:len("/tmp/gpuledger-")+16]
}

func chooseBinaries(ctx context.Context, dir, dataDir string, opts Options) (*binaries, error) {
	want, err := dataMajor(dataDir)
	if err != nil {
		return nil, err
	}
	bin, passedOver, err := findBinaries(want)
	if bin != nil || err != nil {
		return bin, err
	}
	mirror := opts.DownloadURL
	if mirror == "" {
		mirror = os.Getenv("GPULEDGER_PG_MIRROR")
	}
	if mirror != "off" {
		opts.report("no Postgres is installed here: downloading one")
		bin, err = fetchBinaries(ctx, dir, mirror, want)
		if err == nil {
			return bin, nil
		}
	}
	if want != 0 && len(passedOver) > 0 {
		return nil, fmt.Errorf("the data in %s was made by Postgres %d, but only Postgres %s is installed: "+
			"install Postgres %d, or move the folder away to start anew", dataDir, want, strings.Join(passedOver, ", "), want)
	}
	if err != nil {
		return nil, fmt.Errorf("%w (download: %w)", ErrNoBinaries, err)
	}
	return nil, ErrNoBinaries
}

// dataMajor is the major version that made the data, 0 where there is none yet.
func dataMajor(dataDir string) (int, error) {
	text, err := os.ReadFile(filepath.Join(dataDir, "PG_VERSION"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("%s/PG_VERSION says %q: not a Postgres data folder of ours", dataDir, text)
	}
	return major, nil
}

// serverEnv is our environment without what would change the server.
func serverEnv(foreignPID int) []string {
	env := []string{"LC_ALL=C", "TZ=UTC"}
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "PG") || strings.HasPrefix(name, "LC_") || name == "LANG" || name == "TZ" || name == "DATABASE_URL" {
			continue
		}
		env = append(env, kv)
	}
	if foreignPID > 0 {
		// Postgres refuses to start while the pid in a crashed server's file is
		// alive, save for that of its grandparent. Its check for left-over shared
		// memory stays in force, which deleting the file would skip.
		env = append(env, "PG_GRANDPARENT_PID="+strconv.Itoa(foreignPID))
	}
	return env
}

// initialise creates the data folder beside its place and renames it, so a
// folder called "data" is always whole.
func initialise(ctx context.Context, bin *binaries, dir, dataDir string, env []string, as *runAs, opts Options) error {
	leftOver, _ := filepath.Glob(filepath.Join(globEscape(dir), "data.init-*"))
	for _, d := range leftOver {
		if err := os.RemoveAll(d); err != nil {
			return fmt.Errorf("remove a half-made data folder: %w", err)
		}
	}
	if major, err := dataMajor(dataDir); err != nil || major != 0 {
		return err
	}
	if entries, err := os.ReadDir(dataDir); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is not empty and not a Postgres data folder: move it away", dataDir)
	}
	opts.report("creating the private Postgres %s in %s", bin.version, dir)
	tmp := filepath.Join(dir, "data.init-"+strconv.Itoa(os.Getpid()))
	args := []string{"-D", tmp, "-U", superuser, "-E", "UTF8", "--locale=C", "-A", "trust"}
	if opts.Ephemeral {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin.dir, "initdb"), args...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = "/", env, 10*time.Second
	cmd.SysProcAttr = childAttr(as, syscall.SIGTERM)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it removes what it made
	runtime.LockOSThread()
	out, err := cmd.CombinedOutput()
	runtime.UnlockOSThread()
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return fmt.Errorf("initdb: %w: %s", err, lastLines(string(out), 5))
	}
	if err := os.Remove(dataDir); err != nil && !errors.Is(err, os.ErrNotExist) { // an empty folder
		return err
	}
	return os.Rename(tmp, dataDir)
}

func globEscape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

func openLog(path string) (*os.File, error) {
	if fi, err := os.Stat(path); err == nil && fi.Size() > 8<<20 {
		if err := os.Rename(path, path+".old"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
}

func (s *Server) awaitReady(ctx context.Context, opts Options) error {
	limit := opts.StartTimeout
	if limit == 0 {
		limit = 5 * time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	begin := time.Now()
	nextReport := begin.Add(10 * time.Second)
	for {
		err := s.exec(ctx, "postgres", "SELECT 1")
		if err == nil {
			return nil
		}
		if now := time.Now(); now.After(nextReport) {
			nextReport = now.Add(10 * time.Second)
			opts.report("Postgres is starting (%.0f s)", now.Sub(begin).Seconds())
		}
		select {
		case <-s.proc.exited:
			return fmt.Errorf("Postgres %s ended while starting (%v)", s.version, s.proc.err)
		case <-ctx.Done():
			return fmt.Errorf("Postgres %s did not start: %w (last: %w)", s.version, ctx.Err(), err)
		case <-time.After(30 * time.Millisecond):
		}
	}
}

func (s *Server) exec(ctx context.Context, db, sql string, args ...string) error {
	conn, err := pgconn.Connect(ctx, s.URL(db))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if len(args) == 0 {
		return conn.Exec(ctx, sql).Close()
	}
	params := make([][]byte, len(args))
	for i, a := range args {
		params[i] = []byte(a)
	}
	res := conn.ExecParams(ctx, sql, params, nil, nil, nil).Read()
	if res.Err == nil && len(res.Rows) == 0 {
		return errNoRow
	}
	return res.Err
}

var errNoRow = errors.New("no row")

// EnsureDatabase creates the named database if it does not exist.
func (s *Server) EnsureDatabase(ctx context.Context, name string) error {
	err := s.exec(ctx, "postgres", "SELECT 1 FROM pg_database WHERE datname = $1", name)
	if errors.Is(err, errNoRow) {
		err = s.exec(ctx, "postgres", `CREATE DATABASE "`+strings.ReplaceAll(name, `"`, `""`)+`"`)
		var pgErr *pgconn.PgError
		if errors.As(err, &pgErr) && (pgErr.Code == "42P04" || pgErr.Code == "23505") {
			err = nil // another session was faster
		}
	}
	if err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

func logTail(path string, from int64) string {
	text, err := os.ReadFile(path)
	if err != nil || int64(len(text)) <= from {
		return ""
	}
	return ": " + lastLines(string(text[from:]), 5) + " (log: " + path + ")"
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}
