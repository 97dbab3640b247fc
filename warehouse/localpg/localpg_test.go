//go:build unix

package localpg

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain turns the test binary into the child that tests kill.
func TestMain(m *testing.M) {
	if dir := os.Getenv("LOCALPG_TEST_CHILD"); dir != "" {
		s, err := Start(context.Background(), Options{Dir: dir, Ephemeral: true, Serving: true, DownloadURL: "off"})
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		fmt.Println("ready", s.proc.pid, s.proc.watchdog.Process.Pid)
		select {} // until killed
	}
	os.Exit(m.Run())
}

// newDir is short, and reachable for the user that Postgres runs as.
func newDir(t *testing.T, name string) string {
	t.Helper()
	base, err := os.MkdirTemp("/tmp", "lpg")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	return filepath.Join(base, name)
}

func need(t *testing.T) {
	t.Helper()
	if bin, _, err := findBinaries(0); err != nil || bin == nil {
		if testing.Short() {
			t.Skipf("-short and no Postgres: %v", err)
		}
		t.Fatalf("%v %v", ErrNoBinaries, err)
	}
}

func start(t *testing.T, opts Options) *Server {
	t.Helper()
	opts.Ephemeral, opts.DownloadURL = true, "off"
	s, err := Start(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// startChild runs a server in a child; kill ends the child without warning and
// returns when it is gone.
func startChild(t *testing.T, dir string) (owner int, kill func(), postgres, watchdog int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "LOCALPG_TEST_CHILD="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	reader := bufio.NewReader(out)
	line, err := reader.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() { cmd.Wait(); close(gone) }() // at once: a zombie would count as alive
	kill = func() { cmd.Process.Kill(); <-gone }
	t.Cleanup(kill)
	if _, err := fmt.Sscanf(line, "ready %d %d", &postgres, &watchdog); err != nil {
		t.Fatalf("child says %q", line)
	}
	return cmd.Process.Pid, kill, postgres, watchdog
}

func awaitGone(t *testing.T, pid int, dataDir string) {
	t.Helper()
	for range 600 {
		if !isPostgresOf(pid, dataDir) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("postgres %d still runs", pid)
}

func TestStartStopKeepsData(t *testing.T) {
	need(t)
	dir := newDir(t, "state of mine 100%+&'s/pg") // every character that needs an escape somewhere
	s := start(t, Options{Dir: dir})
	ctx := context.Background()
	for range 2 { // the second finds it there
		if err := s.EnsureDatabase(ctx, `od"d name`); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.exec(ctx, `od"d name`, "CREATE TABLE kept (); CHECKPOINT"); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(s.socketDir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("socket folder: %v %v, want mode 0700", fi, err)
	}
	if _, err := exec.LookPath("psql"); err == nil {
		out, err := exec.Command("sh", "-c", s.PsqlLine(`od"d name`)+` -Atc "SHOW listen_addresses"`).CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != "" {
			t.Errorf("psql line %s: %v %s", s.PsqlLine(`od"d name`), err, out)
		}
	}
	pid := s.proc.pid
	for range 2 {
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	if alive(pid) {
		t.Error("Stop returned and postgres lives")
	}
	again := start(t, Options{Dir: dir})
	if err := again.exec(ctx, `od"d name`, "DROP TABLE kept"); err != nil {
		t.Error(err)
	}
}

func TestLongPathUsesTmpSocket(t *testing.T) {
	need(t)
	s := start(t, Options{Dir: newDir(t, strings.Repeat("long/", 25)+"a, b")})
	if !strings.HasPrefix(s.socketDir, "/tmp/gpuledger-") {
		t.Errorf("socket in %s", s.socketDir)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.socketDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("socket folder is left behind: %v", err)
	}
}

func TestKilledOwnerLeavesNothing(t *testing.T) {
	need(t)
	dir := newDir(t, "pg")
	_, kill, pid, dog := startChild(t, dir)
	kill()
	awaitGone(t, pid, filepath.Join(dir, "data"))
	for i := 0; isWatchdog(dog); i++ {
		if i > 600 {
			t.Fatal("the watchdog still runs")
		}
		time.Sleep(50 * time.Millisecond)
	}
	start(t, Options{Dir: dir})
}

// TestWatchdogAlone is the macOS case: no parent-death signal.
func TestWatchdogAlone(t *testing.T) {
	need(t)
	dir := newDir(t, "pg")
	s := start(t, Options{Dir: dir})
	s.proc.watchPipe.Close() // what the kernel does when we end
	awaitGone(t, s.proc.pid, filepath.Join(dir, "data"))
}

func isWatchdog(pid int) bool {
	out, _ := exec.Command("ps", "-o", "stat=,args=", "-p", strconv.Itoa(pid)).Output()
	return strings.Contains(string(out), "gpuledger-watchdog") && !strings.HasPrefix(string(out), "Z")
}

// TestOrphanIsReplaced kills owner and watchdog at once and keeps the server.
func TestOrphanIsReplaced(t *testing.T) {
	need(t)
	dir := newDir(t, "pg")
	_, kill, pid, dog := startChild(t, dir)
	syscall.Kill(dog, syscall.SIGKILL)
	syscall.Kill(pid, syscall.SIGSTOP) // it can't act on the parent-death signal yet
	kill()
	time.AfterFunc(500*time.Millisecond, func() { syscall.Kill(pid, syscall.SIGCONT) })
	start(t, Options{Dir: dir})
	if isPostgresOf(pid, filepath.Join(dir, "data")) {
		t.Error("the orphan still runs")
	}
}

func TestInUseAttachAndStop(t *testing.T) {
	need(t)
	dir := newDir(t, "pg")
	ctx := context.Background()
	if _, err := Attach(ctx, dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Attach to nothing: %v", err)
	}
	owner, _, pid, _ := startChild(t, dir)
	_, err := Start(ctx, Options{Dir: dir})
	var inUse *InUseError
	if !errors.As(err, &inUse) || inUse.PID != owner || !inUse.Serving {
		t.Fatalf("got %v, want in use by pid %d", err, owner)
	}
	if want := fmt.Sprintf("in use by pid %d", owner); !strings.Contains(err.Error(), want) {
		t.Errorf("%q does not say %q", err, want)
	}
	guest, err := Attach(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := guest.EnsureDatabase(ctx, "guest"); err != nil {
		t.Error(err)
	}
	if err := guest.Stop(); err != nil || !isPostgresOf(pid, filepath.Join(dir, "data")) {
		t.Errorf("a guest stopped the server: %v", err)
	}
	var reported []string
	waiting, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	_, err = Start(waiting, Options{Dir: dir, Wait: true, Report: func(l string) { reported = append(reported, l) }})
	if !errors.As(err, &inUse) || !errors.Is(err, context.DeadlineExceeded) || len(reported) == 0 {
		t.Errorf("waiting ended with %v, reported %q", err, reported)
	}
	stopped, err := StopRunning(ctx, dir)
	if err != nil || stopped != owner {
		t.Errorf("StopRunning = %d, %v; want %d", stopped, err, owner)
	}
	awaitGone(t, pid, filepath.Join(dir, "data"))
	if stopped, err := StopRunning(ctx, dir); err != nil || stopped != 0 {
		t.Errorf("StopRunning of nothing = %d, %v", stopped, err)
	}
	start(t, Options{Dir: dir, Wait: true})
}

// TestForeignPID leaves a crashed server's file whose pid now belongs to another
// process of the same user.
func TestForeignPID(t *testing.T) {
	need(t)
	dir := newDir(t, "pg")
	s := start(t, Options{Dir: dir})
	text, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	s.Stop()
	as, err := chooseUser(filepath.Join(dir, "data"))
	if err != nil {
		t.Fatal(err)
	}
	other := exec.Command("sleep", "1000")
	other.Dir = "/"
	other.SysProcAttr = &syscall.SysProcAttr{Credential: as.credential()}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { other.Process.Kill(); other.Wait() }()
	_, rest, _ := strings.Cut(string(text), "\n")
	stale := strconv.Itoa(other.Process.Pid) + "\n" + rest
	path := filepath.Join(dir, "data", "postmaster.pid")
	if err := os.WriteFile(path, []byte(stale), 0o600); err != nil {
		t.Fatal(err)
	}
	if as != nil {
		os.Chown(path, int(as.uid), int(as.gid))
	}
	start(t, Options{Dir: dir})
	if !alive(other.Process.Pid) {
		t.Error("a process that is not ours was ended")
	}
}

func TestHalfMadeDataIsRedone(t *testing.T) {
	need(t)
	dir := newDir(t, "pg")
	ctx, cancel := context.WithCancel(context.Background())
	_, err := Start(ctx, Options{Dir: dir, Ephemeral: true, DownloadURL: "off", Report: func(line string) {
		if strings.HasPrefix(line, "creating") {
			time.AfterFunc(100*time.Millisecond, cancel)
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want canceled", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "data")); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("a half-made folder is in place: %v", err)
	}
	half := filepath.Join(dir, "data.init-1")
	if err := os.MkdirAll(filepath.Join(half, "base"), 0o700); err != nil {
		t.Fatal(err)
	}
	start(t, Options{Dir: dir})
	if _, err := os.Stat(half); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the left-over stays: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	need(t)
	ctx := context.Background()
	expect := func(err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	dir := newDir(t, "full")
	os.Mkdir(dir, 0o755)
	os.WriteFile(filepath.Join(dir, "letter.txt"), nil, 0o644)
	_, err := Start(ctx, Options{Dir: dir})
	expect(err, "holds other files")

	dir = newDir(t, "old")
	os.MkdirAll(filepath.Join(dir, "data"), 0o755)
	os.WriteFile(filepath.Join(dir, "lock"), nil, 0o644)
	os.WriteFile(filepath.Join(dir, "data", "PG_VERSION"), []byte("9\n"), 0o644)
	_, err = Start(ctx, Options{Dir: dir, DownloadURL: "off"})
	expect(err, "was made by Postgres 9")

	t.Setenv("GPULEDGER_PG_BIN", "/nowhere")
	_, err = Start(ctx, Options{Dir: newDir(t, "pg")})
	expect(err, "GPULEDGER_PG_BIN=/nowhere")
}

func TestUnreachableForTheUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root hands the server to another user")
	}
	dir := newDir(t, "shut/pg")
	if err := os.Mkdir(filepath.Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Start(context.Background(), Options{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "cannot get through "+filepath.Dir(dir)) {
		t.Errorf("got %v", err)
	}
}
