package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/ingest"
)

// benchServer is the Prometheus of a bench.
type benchServer struct {
	dir, url string
	cmd      *exec.Cmd
}

func (s *benchServer) start(ctx context.Context) error {
	bin, err := exec.LookPath(envOr("GPULEDGER_PROMETHEUS", "prometheus"))
	if err != nil {
		return fmt.Errorf("a Prometheus for the bench: %w: install one, or give --url", err)
	}
	conf := filepath.Join(s.dir, "prometheus.yml")
	if err := os.WriteFile(conf, []byte("global: {}\n"), 0o644); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	addr := l.Addr().String()
	_ = l.Close()
	s.cmd = exec.Command(bin, "--config.file="+conf, "--storage.tsdb.path="+filepath.Join(s.dir, "data"), "--storage.tsdb.retention.time=100y",
		"--web.enable-remote-write-receiver", "--log.level=error", "--web.listen-address="+addr)
	s.cmd.Stderr = os.Stderr
	if err := s.cmd.Start(); err != nil {
		return err
	}
	s.url = "http://" + addr
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err := ctx.Err(); err != nil {
			s.stop()
			return err
		}
		if resp, err := http.Get(s.url + "/-/ready"); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
	}
	s.stop()
	return fmt.Errorf("%s does not get ready", bin)
}

func (s *benchServer) stop() {
	if s.cmd != nil {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

// watch notes the server's memory until the function it returns is called, which says
// by how much it grew at most, in MB; 0 where the server is not ours or the system does
// not tell.
func (s *benchServer) watch() func() float64 {
	if s.cmd == nil {
		return func() float64 { return 0 }
	}
	pid := s.cmd.Process.Pid
	before := residentMB(pid)
	most := before
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				most = max(most, residentMB(pid))
			}
		}
	})
	return func() float64 {
		close(done)
		wg.Wait()
		return most - before
	}
}

// residentMB is a process' resident memory (Linux), 0 where it is not told.
func residentMB(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(text))
	if len(f) < 2 {
		return 0
	}
	pages, _ := strconv.ParseFloat(f[1], 64)
	return pages * float64(os.Getpagesize()) / 1e6
}

// processUse is this process' processor time, of the user and the system, and its peak
// memory in MB.
func processUse() (cpuSeconds, peakMB float64) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, 0
	}
	seconds := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return seconds(u.Utime) + seconds(u.Stime), float64(u.Maxrss) / 1e3
}

// recorder writes down what is asked of a source.
type recorder struct {
	ingest.Source
	mu  sync.Mutex
	log *json.Encoder
}

type benchRequest struct {
	Selector ingest.Selector
	Span     period.Span
}

func (r *recorder) Select(ctx context.Context, sel ingest.Selector, span period.Span, fn func(gpu.Series) error) error {
	r.mu.Lock()
	err := r.log.Encode(benchRequest{sel, span})
	r.mu.Unlock()
	if err != nil {
		return err
	}
	return r.Source.Select(ctx, sel, span, fn)
}

// median is the result of the middle by processor time, with the most memory of all.
func median(all []benchResult) benchResult {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b benchResult) int { return int((a.CPUSeconds - b.CPUSeconds) * 1e6) })
	out := all[(len(all)-1)/2]
	for _, r := range all {
		out.PeakMB, out.ServerGrowthMB = max(out.PeakMB, r.PeakMB), max(out.ServerGrowthMB, r.ServerGrowthMB)
	}
	return out
}
