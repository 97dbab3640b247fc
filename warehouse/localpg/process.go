//go:build unix

package localpg

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// watchdogScript holds the read end of a pipe whose write end only we hold. It
// reads the postmaster's pid, then waits: "done" means that the server has ended,
// end of file that we have, so it stops the server. Without a pid (we died while
// starting it) it takes the one that the server wrote down, if it is a postgres.
const watchdogScript = `
read -r pid || pid=
read -r word || word=
[ "$word" = done ] && exit 0
if [ -z "$pid" ]; then
	sleep 1
	read -r pid < "$1/postmaster.pid" || exit 0
	case $(ps -o comm= -p "$pid") in *postgres*) ;; *) exit 0 ;; esac
fi
kill -INT "$pid" || exit 0
i=0
while [ $i -lt 100 ]; do
	kill -0 "$pid" 2>/dev/null || exit 0
	sleep 0.1
	i=$((i + 1))
done
kill -QUIT "$pid"
`

// process is a postmaster of ours with its watchdog.
type process struct {
	pid    int
	exited chan struct{} // closed when the postmaster has ended
	err    error         // how it ended; read after exited

	watchPipe *os.File
	watchdog  *exec.Cmd
}

// startProcess starts the postmaster, output to log.
func startProcess(bin, dataDir string, args, env []string, as *runAs, log *os.File) (*process, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	// The watchdog comes first: from here on nothing of ours can be orphaned.
	dog := exec.Command("/bin/sh", "-c", watchdogScript, "gpuledger-watchdog", dataDir)
	dog.Stdin, dog.Dir, dog.Env = r, "/", env
	dog.SysProcAttr = &syscall.SysProcAttr{Credential: as.credential(), Setpgid: true}
	if err := dog.Start(); err != nil {
		w.Close()
		return nil, fmt.Errorf("start the watchdog of Postgres: %w", err)
	}
	p := &process{exited: make(chan struct{}), watchPipe: w, watchdog: dog}

	cmd := exec.Command(bin, append([]string{"-D", dataDir}, args...)...)
	cmd.Stdout, cmd.Stderr, cmd.Dir, cmd.Env = log, log, "/", env
	cmd.SysProcAttr = childAttr(as, syscall.SIGINT)
	started := make(chan error)
	go func() {
		// The parent-death signal is tied to the thread that started the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			p.pid = cmd.Process.Pid
			_, err = io.WriteString(w, strconv.Itoa(p.pid)+"\n")
			if err != nil {
				cmd.Process.Signal(syscall.SIGQUIT)
				cmd.Wait()
			}
		}
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		p.endWatchdog("done\n")
		close(p.exited)
	}()
	if err := <-started; err != nil {
		p.endWatchdog("\ndone\n")
		return nil, fmt.Errorf("start Postgres: %w", err)
	}
	return p, nil
}

func (p *process) endWatchdog(word string) {
	io.WriteString(p.watchPipe, word) // a watchdog that is gone needs no word
	p.watchPipe.Close()
	p.watchdog.Wait()
}

func (p *process) hasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// stop ends the postmaster: a clean fast shutdown, harder if that hangs.
func (p *process) stop() error {
	for _, step := range []struct {
		sig  syscall.Signal
		wait time.Duration
	}{
		{syscall.SIGINT, time.Minute}, {syscall.SIGQUIT, 10 * time.Second}, {syscall.SIGKILL, 10 * time.Second},
	} {
		if !p.hasExited() {
			// Only our own child that has not been waited for: the pid can't be another's.
			if err := syscall.Kill(p.pid, step.sig); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("stop Postgres (pid %d): %w", p.pid, err)
			}
		}
		select {
		case <-p.exited:
			return nil
		case <-time.After(step.wait):
		}
	}
	return fmt.Errorf("Postgres (pid %d) does not end", p.pid)
}

// recordedPID is the pid that a postmaster wrote into its data folder, 0 if none.
func recordedPID(dataDir string) int {
	text, err := os.ReadFile(dataDir + "/postmaster.pid")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || pid <= 1 {
		return 0
	}
	return pid
}

func alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// endOrphan stops a Postgres on dataDir that lost its owner. The caller holds
// the folder's lock. A recorded pid that lives but is not such a Postgres (the
// number was given to another process) is returned, so that the next server can
// be told to ignore it.
func endOrphan(dataDir string, report func(string, ...any)) (foreign int, err error) {
	pid := recordedPID(dataDir)
	if pid == 0 || !alive(pid) {
		return 0, nil
	}
	if !isPostgresOf(pid, dataDir) {
		return pid, nil
	}
	report("stopping a Postgres (pid %d) that lost its owner", pid)
	for _, step := range []struct {
		sig  syscall.Signal
		wait time.Duration
	}{{syscall.SIGINT, 30 * time.Second}, {syscall.SIGQUIT, 10 * time.Second}} {
		if err := syscall.Kill(pid, step.sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return 0, fmt.Errorf("stop the Postgres (pid %d) that lost its owner: %w", pid, err)
		}
		for deadline := time.Now().Add(step.wait); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
			if !alive(pid) || !isPostgresOf(pid, dataDir) {
				return 0, nil
			}
		}
	}
	return 0, fmt.Errorf("a Postgres (pid %d) that lost its owner does not end: end it with: kill %d", pid, pid)
}
