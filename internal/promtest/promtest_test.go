package promtest

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"gpuledger/gpu"
)

func sample() []gpu.Series {
	return []gpu.Series{{Metric: "m", Samples: []gpu.Sample{{UnixMilli: time.Date(2024, 9, 1, 0, 0, 0, 0, time.UTC).UnixMilli(), Value: 1}}}}
}

// TestPanic is run by TestNothingIsLeftBehind in another process.
func TestPanic(t *testing.T) {
	if os.Getenv("PROMTEST_PANIC") == "" {
		t.Skip("only as a child of TestNothingIsLeftBehind")
	}
	fmt.Println("url", Start(t, sample()))
	go panic("a panic on another goroutine runs no cleanup")
	select {}
}

func TestNothingIsLeftBehind(t *testing.T) {
	Binary(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestPanic$")
	cmd.Env = append(os.Environ(), "PROMTEST_PANIC=1", "TMPDIR="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	url := ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if u, ok := strings.CutPrefix(lines.Text(), "url "); ok {
			url = u
		}
	}
	if err := cmd.Wait(); err == nil || url == "" {
		t.Fatalf("the child ended with %v, url %q", err, url)
	}
	for range 600 {
		resp, err := http.Get(url + "/-/ready")
		if err != nil {
			return
		}
		resp.Body.Close()
		time.Sleep(50 * time.Millisecond)
	}
	t.Error("Prometheus outlives its test")
}

func TestStartFailureIsReported(t *testing.T) {
	if _, err := run(t, Binary(t), []string{"--no-such-flag"}); err == nil || !strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("got %v", err)
	}
}
