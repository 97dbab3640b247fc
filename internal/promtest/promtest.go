// Package promtest starts a real Prometheus on given series for a test.
package promtest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb"

	"gpuledger/gpu"
)

// EnvBinary and EnvBinary3 name the environment variables with the paths of the
// prometheus to use. Without the first, the one on PATH is taken; without the
// second, the one that scripts/servers.sh builds.
const (
	EnvBinary  = "GPULEDGER_PROMETHEUS"
	EnvBinary3 = "GPULEDGER_PROMETHEUS3"
)

// Server is one Prometheus to test with.
type Server struct {
	Name string // for the names of tests
	path string
}

// Each runs a test with every Prometheus that gpuledger is tested with: the one on
// PATH (2.42 on Debian 12), and one of version 3. Where one is missing the test
// fails, or under -short is skipped.
func Each(t *testing.T, test func(t *testing.T, server Server)) {
	t.Helper()
	t.Run("installed", func(t *testing.T) { test(t, Server{"installed", Binary(t)}) })
	t.Run("version3", func(t *testing.T) { test(t, Version3(t)) })
}

// Version3 is a Prometheus of version 3.
func Version3(t testing.TB) Server {
	t.Helper()
	name := os.Getenv(EnvBinary3)
	if name == "" {
		name = built(t)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		missing(t, fmt.Sprintf("a Prometheus 3 for tests: %v\nbuild it (sh scripts/servers.sh prometheus3) or set %s", err, EnvBinary3))
	}
	return Server{"version3", path}
}

// built is where scripts/servers.sh puts the server of the version that go.mod has.
func built(t testing.TB) string {
	t.Helper()
	_, here, _, ok := runtime.Caller(0)
	root := filepath.Join(filepath.Dir(here), "..", "..")
	text, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if !ok || err != nil {
		t.Fatalf("find the version of Prometheus: %v", err)
	}
	m := regexp.MustCompile(`(?m)^\s*github\.com/prometheus/prometheus (v\S+)`).FindSubmatch(text)
	if m == nil {
		t.Fatal("go.mod has no github.com/prometheus/prometheus")
	}
	return filepath.Join(root, "bin", "prometheus-"+string(m[1]))
}

// Binary finds prometheus. Where there is none the test fails, or under -short
// is skipped.
func Binary(t testing.TB) string {
	t.Helper()
	name := os.Getenv(EnvBinary)
	if name == "" {
		name = "prometheus"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		missing(t, fmt.Sprintf("a Prometheus for tests: %v\ninstall one (apt-get install prometheus) or set %s", err, EnvBinary))
	}
	return path
}

func missing(t testing.TB, text string) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short and " + text)
	}
	t.Fatal(text)
}

// Start serves the series by the Prometheus on PATH.
func Start(t testing.TB, series []gpu.Series, args ...string) string {
	t.Helper()
	return Server{"installed", Binary(t)}.Start(t, series, args...)
}

// Start serves the series by a Prometheus on 127.0.0.1 until the test ends, and
// returns its URL. Samples of any age are kept. Args are further flags.
func (s Server) Start(t testing.TB, series []gpu.Series, args ...string) string {
	t.Helper()
	return s.StartWith(t, "global: {}\n", series, args...)
}

// StartWith does the same with a configuration.
func (s Server) StartWith(t testing.TB, config string, series []gpu.Series, args ...string) string {
	t.Helper()
	bin := s.path
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := WriteBlocks(data, series); err != nil {
		t.Fatalf("write blocks for Prometheus: %v", err)
	}
	conf := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(conf, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	// Another process may take the port between our look and Prometheus' start.
	var err error
	for range 3 {
		var url string
		url, err = run(t, bin, append([]string{
			"--config.file=" + conf, "--storage.tsdb.path=" + data, "--storage.tsdb.retention.time=100y",
			// The blocks stay as they were written.
			"--storage.tsdb.min-block-duration=2h", "--storage.tsdb.max-block-duration=2h",
			"--log.level=warn",
		}, args...))
		if err == nil {
			return url
		}
	}
	t.Fatalf("start %s: %v", bin, err)
	return ""
}

func run(t testing.TB, bin string, args []string) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	addr := l.Addr().String()
	l.Close()
	var out buffer
	cmd := exec.Command(bin, append(args, "--web.listen-address="+addr)...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return "", err
	}
	exited := make(chan struct{})
	go func() { cmd.Wait(); close(exited) }()
	endDog := watchdog(t, cmd.Process.Pid)
	stop := func() {
		endDog()
		cmd.Process.Kill() // the data is thrown away: no need to be gentle
		<-exited
	}
	url := "http://" + addr
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		select {
		case <-exited:
			endDog()
			return "", fmt.Errorf("it ended: %s", out.String())
		default:
		}
		resp, err := http.Get(url + "/-/ready")
		if err != nil {
			continue
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			t.Cleanup(stop)
			return url, nil
		}
	}
	stop()
	return "", fmt.Errorf("it is not ready after a minute: %s", out.String())
}

// watchdog kills pid when this process ends, however it ends: a panicking test
// runs no cleanup. The returned function calls it off.
func watchdog(t testing.TB, pid int) func() {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	dog := exec.Command("/bin/sh", "-c", `cat >/dev/null; kill -KILL "$1"`, "promtest-watchdog", strconv.Itoa(pid))
	dog.Stdin = r
	if err := dog.Start(); err != nil {
		t.Fatal(err)
	}
	return sync.OnceFunc(func() {
		dog.Process.Kill()
		dog.Wait()
		w.Close()
	})
}

// WriteBlocks writes the series as blocks of a day into a Prometheus data folder.
func WriteBlocks(dir string, series []gpu.Series) error {
	const day = 24 * 3600 * 1000
	days := map[int64]bool{}
	for _, s := range series {
		for _, x := range s.Samples {
			days[x.UnixMilli/day] = true
		}
	}
	for d := range days {
		if err := writeBlock(dir, series, d*day, (d+1)*day); err != nil {
			return err
		}
	}
	return nil
}

func writeBlock(dir string, series []gpu.Series, start, end int64) (err error) {
	// Twice the length: the writer refuses samples older than half a block before
	// the newest, and the series come one after another.
	w, err := tsdb.NewBlockWriter(slog.New(slog.NewTextHandler(io.Discard, nil)), dir, 2*(end-start))
	if err != nil {
		return err
	}
	defer func() {
		if cerr := w.Close(); err == nil {
			err = cerr
		}
	}()
	ctx := context.Background()
	for _, s := range series {
		b := labels.NewScratchBuilder(len(s.Labels) + 1)
		b.Add("__name__", s.Metric)
		for name, value := range s.Labels {
			b.Add(name, value)
		}
		b.Sort()
		set := b.Labels()
		app := w.Appender(ctx)
		for _, x := range s.Samples {
			if x.UnixMilli < start || x.UnixMilli >= end {
				continue
			}
			if _, err := app.Append(0, set, x.UnixMilli, x.Value); err != nil {
				return fmt.Errorf("%s at %d: %w", set, x.UnixMilli, err)
			}
		}
		if err := app.Commit(); err != nil {
			return err
		}
	}
	_, err = w.Flush(ctx)
	return err
}

// buffer may be written while it is read.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
