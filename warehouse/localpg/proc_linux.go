package localpg

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// childAttr starts a child in a process group of its own, so that Ctrl-C reaches
// only us, and has the kernel signal it when the starting thread ends: the caller
// must stay on its thread for as long as the child runs.
func childAttr(as *runAs, onDeath syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: as.credential(), Setpgid: true, Pdeathsig: onDeath}
}

// isPostgresOf reports whether pid is a Postgres that runs on dataDir.
func isPostgresOf(pid int, dataDir string) bool {
	cwd, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/cwd")
	if err != nil {
		return false
	}
	real, err := filepath.EvalSymlinks(dataDir)
	return err == nil && cwd == real
}

// smallShm reports whether /dev/shm is too small for parallel queries.
func smallShm() bool {
	var st syscall.Statfs_t
	if err := syscall.Statfs("/dev/shm", &st); err != nil {
		return true
	}
	return st.Blocks*uint64(st.Bsize) < 256<<20
}
