// Package localpg runs a private Postgres for one command: local binaries, data
// in one folder, a unix socket and no TCP port. The server ends with the process
// that started it, also when that process is killed.
package localpg

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	superuser = "postgres"
	port      = "5432" // only names the socket file: nothing listens on TCP

	// maxSocketPath is the shortest limit of sun_path in use (macOS: 104 bytes
	// with the final zero); postgres appends ".lock" to the name for its lock file.
	maxSocketPath = 103 - len("/.s.PGSQL."+port+".lock")
)

// ErrNoBinaries reports that no Postgres is installed and none could be downloaded.
var ErrNoBinaries = errors.New("no Postgres found: install it (apt install postgresql, or brew install postgresql@17) " +
	"or name its folder in GPULEDGER_PG_BIN, or set DATABASE_URL to a server of your own")

// InUseError reports that another process runs the Postgres of this folder.
type InUseError struct {
	Dir     string
	PID     int  // 0 while the other process has not yet said who it is
	Serving bool // started to be shared ("db start"): Attach reaches it
}

// Error says who holds the folder and what to do.
func (e *InUseError) Error() string {
	who := "another process"
	if e.PID > 0 {
		who = fmt.Sprintf("pid %d", e.PID)
	}
	return fmt.Sprintf("the private Postgres in %s is in use by %s; try again when it is done, or with --wait 5m (to use it from several commands at once, keep it running with: gpuledger db start)", e.Dir, who)
}

// Options says where the server lives and how Start behaves.
type Options struct {
	// Dir holds the data, the log and the lock. Default: DefaultDir().
	Dir string
	// Wait makes Start wait for another process to finish instead of failing
	// with an InUseError.
	Wait bool
	// Serving marks the server as one that other commands may Attach to.
	Serving bool
	// Ephemeral trades safety for speed (no fsync): for data that is thrown away.
	Ephemeral bool
	// StartTimeout bounds the start, crash recovery included. Default: 5 minutes.
	StartTimeout time.Duration
	// Report, when set, receives one line for a person about each longer step.
	Report func(line string)
	// DownloadURL is the Maven repository asked for binaries when none are
	// installed. Default: GPULEDGER_PG_MIRROR, else Maven Central; "off" downloads nothing.
	DownloadURL string
}

func (o Options) report(format string, args ...any) {
	if o.Report != nil {
		o.Report(fmt.Sprintf(format, args...))
	}
}

// DefaultDir is $XDG_STATE_HOME/gpuledger/pg, by default in ~/.local/state; for
// root /var/lib/gpuledger/pg, since Postgres must run as another user that can
// reach the folder.
func DefaultDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/gpuledger/pg", nil
	}
	if state := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, "gpuledger", "pg"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no folder for the private Postgres: %w; set XDG_STATE_HOME or DATABASE_URL", err)
	}
	return filepath.Join(home, ".local", "state", "gpuledger", "pg"), nil
}

// Server is a running private Postgres.
type Server struct {
	dir       string
	socketDir string
	binDir    string
	version   string
	attached  bool // not ours to stop

	stopOnce sync.Once
	stopErr  error
	proc     *process
	lock     *lockFile
}

// URL returns a connection string for the named database, as pgx and libpq read it.
func (s *Server) URL(db string) string {
	// libpq does not read "+" as a space.
	host := strings.ReplaceAll(url.QueryEscape(s.socketDir), "+", "%20")
	return "postgres://" + superuser + "@/" + url.PathEscape(db) + "?host=" + host + "&port=" + port
}

// PsqlLine returns a shell command that opens the named database.
func (s *Server) PsqlLine(db string) string {
	return shellQuote(s.psql()) + " " + shellQuote(s.URL(db))
}

// PsqlCommand returns the same command, ready to run with a terminal attached.
func (s *Server) PsqlCommand(db string) *exec.Cmd {
	return exec.Command(s.psql(), s.URL(db))
}

// psql prefers the one on PATH, which people recognise, then the server's own.
func (s *Server) psql() string {
	if _, err := exec.LookPath("psql"); err == nil {
		return "psql"
	}
	if own := filepath.Join(s.binDir, "psql"); s.binDir != "" && isExecutable(own) {
		return own
	}
	return "psql"
}

// Version is the server's version, such as "15.18".
func (s *Server) Version() string { return s.version }

// Dir is the folder that holds data, log and lock.
func (s *Server) Dir() string { return s.dir }

// Attached reports whether the server belongs to another process.
func (s *Server) Attached() bool { return s.attached }

// shellQuote leaves plain words alone and single-quotes everything else.
func shellQuote(s string) string {
	if s != "" && strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-:@%+=", r))
	}) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// settings are given on the command line, so they are the same whatever the
// data folder's postgresql.conf says. They suit one batch job on a laptop.
func settings(socketDir string, ephemeral, smallShm bool) []string {
	kv := []string{
		"listen_addresses=", // no TCP
		"port=" + port,
		"unix_socket_directories=" + quoteList(socketDir),
		"unix_socket_permissions=0700",
		"cluster_name=gpuledger",
		"max_connections=100",
		"shared_buffers=256MB",
		"effective_cache_size=1GB",
		"work_mem=64MB",
		"maintenance_work_mem=256MB",
		"max_locks_per_transaction=256", // month partitions: one lock each
		"wal_level=minimal",             // no replicas: COPY into a fresh table writes no WAL
		"max_wal_senders=0",
		"max_wal_size=2GB",
		"min_wal_size=256MB",
		"checkpoint_timeout=15min",
		"synchronous_commit=off", // a crash may lose the last moment, never consistency: the job reruns
		"random_page_cost=1.1",
		"jit=off",
		"timezone=UTC",
		"log_timezone=UTC",
		"logging_collector=off",
		"log_min_messages=warning",
		"log_line_prefix=%m [%p] ",
	}
	if ephemeral {
		kv = append(kv, "fsync=off", "full_page_writes=off", "shared_buffers=128MB")
	} else {
		kv = append(kv, "fsync=on")
	}
	if smallShm {
		// A container's 64 MB /dev/shm fails parallel queries half-way.
		kv = append(kv, "dynamic_shared_memory_type=mmap")
	}
	args := make([]string, 0, 2*len(kv))
	for _, s := range kv {
		args = append(args, "-c", s)
	}
	return args
}

// quoteList makes one element of a list setting: the path may hold a comma or a space.
func quoteList(path string) string {
	return `"` + strings.ReplaceAll(path, `"`, `""`) + `"`
}
