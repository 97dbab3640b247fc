//go:build unix

package localpg

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// runAs is the user that Postgres runs as; nil means ourselves.
type runAs struct {
	name     string
	uid, gid uint32
}

func (r *runAs) credential() *syscall.Credential {
	if r == nil {
		return nil
	}
	return &syscall.Credential{Uid: r.uid, Gid: r.gid}
}

// chooseUser drops root, which Postgres refuses: to the owner of existing data,
// else to postgres, else to nobody.
func chooseUser(dataDir string) (*runAs, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	if fi, err := os.Stat(dataDir); err == nil {
		if st, ok := fi.Sys().(*syscall.Stat_t); ok && st.Uid != 0 {
			return &runAs{fmt.Sprintf("uid %d", st.Uid), st.Uid, st.Gid}, nil
		}
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		return &runAs{name, uint32(uid), uint32(gid)}, nil
	}
	return nil, errors.New("Postgres does not run as root, and there is neither a user postgres nor nobody: " +
		"create one, run as another user, or set DATABASE_URL")
}

// makeDir creates dir with mode 0700 for the user; its missing parents stay open
// to passers-by, since another user has to get through them.
func makeDir(dir string, as *runAs) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	fi, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !fi.IsDir() {
		return fmt.Errorf("%s is not a folder", dir)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: owner unknown", dir)
	}
	switch {
	case as != nil && st.Uid == 0:
		if err := os.Chown(dir, int(as.uid), int(as.gid)); err != nil {
			return err
		}
	case as != nil && st.Uid != as.uid, as == nil && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to uid %d, not to the user that Postgres runs as", dir, st.Uid)
	}
	return os.Chmod(dir, 0o700)
}

// checkReachable names the parent of dir that keeps the user out; initdb would
// only say "permission denied".
func checkReachable(dir string, as *runAs) error {
	if as == nil {
		return nil
	}
	for p := filepath.Dir(dir); ; p = filepath.Dir(p) {
		fi, err := os.Stat(p)
		if err != nil {
			return err
		}
		if st, ok := fi.Sys().(*syscall.Stat_t); ok {
			bit := os.FileMode(0o001)
			if st.Uid == as.uid {
				bit = 0o100
			} else if st.Gid == as.gid {
				bit = 0o010
			}
			if fi.Mode().Perm()&bit == 0 {
				return fmt.Errorf("Postgres runs as %s, not as root, and cannot get through %s to %s: "+
					"use a folder elsewhere, such as /var/lib/gpuledger/pg", as.name, p, dir)
			}
		}
		if p == filepath.Dir(p) {
			return nil
		}
	}
}

// checkOurs refuses a folder with somebody else's files: its owner and mode are
// about to change.
func checkOurs(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) || (err == nil && len(entries) == 0) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := os.Lstat(lockPath(dir)); err != nil {
		return fmt.Errorf("%s holds other files: use an empty or a new folder for the private Postgres", dir)
	}
	return nil
}
