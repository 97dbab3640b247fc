//go:build unix

package localpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Stop ends the server cleanly and frees the folder. Further calls return the
// first result. On an attached server it does nothing.
func (s *Server) Stop() error {
	if s.attached {
		return nil
	}
	s.stopOnce.Do(func() {
		s.stopErr = s.proc.stop()
		if s.stopErr == nil && !strings.HasPrefix(s.socketDir, s.dir+"/") {
			os.Remove(s.socketDir) // empty by now; if not, it is found again by its name
		}
		s.lock.release()
	})
	return s.stopErr
}

// Exited is closed when the server has ended, for whatever reason. It is nil for
// an attached server.
func (s *Server) Exited() <-chan struct{} {
	if s.attached {
		return nil
	}
	return s.proc.exited
}

// Attach reaches the running server of dir (default: DefaultDir()) without
// owning it. Where none runs, the error wraps os.ErrNotExist.
func Attach(ctx context.Context, dir string) (*Server, error) {
	dir, err := resolveDir(dir)
	if err != nil {
		return nil, err
	}
	running, err := held(dir)
	if err != nil {
		return nil, err
	}
	if !running {
		return nil, fmt.Errorf("no private Postgres runs in %s: %w", dir, os.ErrNotExist)
	}
	s := &Server{dir: dir, socketDir: socketDirOf(dir), attached: true}
	major, err := dataMajor(filepath.Join(dir, "data"))
	if err != nil {
		return nil, err
	}
	if bin, _, err := findBinaries(major); err == nil && bin != nil { // only for psql and Version
		s.binDir, s.version = bin.dir, bin.version
	}
	if err := s.exec(ctx, "postgres", "SELECT 1"); err != nil {
		return nil, fmt.Errorf("reach the private Postgres in %s: %w", dir, err)
	}
	return s, nil
}

// StopRunning asks the process that holds dir (default: DefaultDir()) to end, as
// Ctrl-C would, waits for it and returns its pid; 0 where none runs. A Postgres
// without an owner is ended too.
func StopRunning(ctx context.Context, dir string) (int, error) {
	dir, err := resolveDir(dir)
	if err != nil {
		return 0, err
	}
	running, err := held(dir)
	if err != nil {
		return 0, err
	}
	if !running {
		if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
			return 0, nil
		}
		lock, err := acquireLock(ctx, dir, Options{})
		if err != nil {
			return 0, err
		}
		defer lock.release()
		data := filepath.Join(dir, "data")
		pid := recordedPID(data)
		if pid == 0 || !alive(pid) {
			return 0, nil
		}
		foreign, err := endOrphan(data, Options{}.report)
		if err != nil || foreign != 0 {
			return 0, err
		}
		return pid, nil
	}
	who := holder(dir)
	if who.PID <= 1 || who.PID == os.Getpid() {
		return 0, who
	}
	if err := syscall.Kill(who.PID, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return who.PID, fmt.Errorf("end pid %d: %w", who.PID, err)
	}
	for {
		select {
		case <-ctx.Done():
			return who.PID, fmt.Errorf("pid %d has not ended: %w", who.PID, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
		if running, err := held(dir); err != nil || !running {
			return who.PID, err
		}
	}
}

// InUse reports whether some process holds the private Postgres of dir; a folder
// that can't be read counts as in use.
func InUse(dir string) bool {
	running, err := held(dir)
	return running || err != nil
}
