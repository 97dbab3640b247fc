//go:build unix

package localpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// lockFile is an flock on Dir/lock: the kernel frees it when the process ends,
// however it ends, so it is never stale. Its text names the holder for people.
type lockFile struct{ f *os.File }

func lockPath(dir string) string { return filepath.Join(dir, "lock") }

// acquireLock takes the lock of dir. Without opts.Wait a held lock is an *InUseError.
func acquireLock(ctx context.Context, dir string, opts Options) (*lockFile, error) {
	f, err := os.OpenFile(lockPath(dir), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the private Postgres: %w", err)
	}
	var nextReport time.Time
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		inUse := holder(dir)
		if !opts.Wait {
			f.Close()
			return nil, inUse
		}
		if now := time.Now(); now.After(nextReport) {
			nextReport = now.Add(10 * time.Second)
			opts.report("waiting for the private Postgres in %s, in use by pid %d", dir, inUse.PID)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("%w: %w", inUse, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
	text := strconv.Itoa(os.Getpid()) + "\n"
	if opts.Serving {
		text += "serving\n"
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(text), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return &lockFile{f}, nil
}

func (l *lockFile) release() {
	l.f.Truncate(0) // a name left behind would only mislead
	l.f.Close()
}

// holder reads who holds the lock of dir.
func holder(dir string) *InUseError {
	e := &InUseError{Dir: dir}
	text, err := os.ReadFile(lockPath(dir))
	if err != nil {
		return e // unreadable: still in use, by whom is unknown
	}
	pid, rest, _ := strings.Cut(string(text), "\n")
	e.PID, _ = strconv.Atoi(pid)
	e.Serving = strings.HasPrefix(rest, "serving")
	return e
}

// held reports whether some process holds the lock of dir.
func held(dir string) (bool, error) {
	f, err := os.Open(lockPath(dir))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	// A shared lock is refused exactly while another holds it for itself, and
	// does not disturb other askers.
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}
