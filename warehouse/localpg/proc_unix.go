//go:build unix && !linux

package localpg

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// childAttr starts a child in a process group of its own, so that Ctrl-C reaches
// only us. There is no parent-death signal here: the watchdog alone ends it.
func childAttr(as *runAs, _ syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: as.credential(), Setpgid: true}
}

// isPostgresOf reports whether pid is a Postgres server. The folder can't be
// read without special tools, but the caller holds the folder's lock.
func isPostgresOf(pid int, _ string) bool {
	out, err := exec.Command("ps", "-o", "comm=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && strings.Contains(string(out), "postgres")
}

func smallShm() bool { return false }
