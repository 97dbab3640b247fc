package objstore

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// server is an S3 in this process. fault may answer a request in its place.
type server struct {
	url   string
	fault atomic.Value // func(http.ResponseWriter, *http.Request) bool
	lists atomic.Int64
}

func newServer(t *testing.T) *server {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("bills"); err != nil {
		t.Fatal(err)
	}
	fake := gofakes3.New(backend).Server()
	s := &server{}
	s.fault.Store(func(http.ResponseWriter, *http.Request) bool { return false })
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("list-type") == "2" {
			s.lists.Add(1)
		}
		if !s.fault.Load().(func(http.ResponseWriter, *http.Request) bool)(w, r) {
			fake.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(ts.Close)
	s.url = ts.URL
	for k, v := range map[string]string{
		"AWS_ENDPOINT_URL": ts.URL, "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "wJalrEXAMPLE", "AWS_SESSION_TOKEN": "", "AWS_REGION": "", "AWS_DEFAULT_REGION": "",
		"AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true", "AWS_PROFILE": "",
	} {
		t.Setenv(k, v)
	}
	return s
}

func (s *server) failWith(f func(w http.ResponseWriter, r *http.Request) bool) { s.fault.Store(f) }

func s3Error(w http.ResponseWriter, status int, code string) bool {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, `<?xml version="1.0"?><Error><Code>%s</Code><Message>as asked</Message></Error>`, code)
	return true
}

func TestS3(t *testing.T) {
	newServer(t)
	testStore(t, mustOpen(t, "s3://bills/some/prefix/"))
}

func TestS3SingleObject(t *testing.T) {
	newServer(t)
	folder := mustOpen(t, "s3://bills/x")
	for _, k := range []string{"a.csv", "a.csv.gz"} {
		if err := folder.Put(ctx, k, strings.NewReader(k)); err != nil {
			t.Fatal(err)
		}
	}
	s := mustOpen(t, "s3://bills/x/a.csv")
	if got := keys(t, s, ""); got != "a.csv" {
		t.Errorf("list: %q", got)
	}
	if got, err := get(t, s, "a.csv", ""); got != "a.csv" || err != nil {
		t.Errorf("get: %q, %v", got, err)
	}
	if s.Location() != "s3://bills/x/a.csv" {
		t.Errorf("location %s", s.Location())
	}
}

// More keys than a page holds, in order, and none of a folder with a longer name.
func TestS3Pagination(t *testing.T) {
	srv := newServer(t)
	all, s := mustOpen(t, "s3://bills"), mustOpen(t, "s3://bills/p")
	const n = 1203
	for i := range n {
		if err := s.Put(ctx, fmt.Sprintf("%04d.csv", i), strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := all.Put(ctx, "p2/other.csv", strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	srv.lists.Store(0)
	list, err := s.List(ctx, "")
	if err != nil || len(list) != n || list[0].Key != "0000.csv" || list[n-1].Key != "1202.csv" {
		t.Fatalf("%d keys, %v", len(list), err)
	}
	if pages := srv.lists.Load(); pages != 2 {
		t.Errorf("%d pages, want 2", pages)
	}
}

func TestS3Retries(t *testing.T) {
	srv := newServer(t)
	s := mustOpen(t, "s3://bills/p")
	if err := s.Put(ctx, "a.csv", strings.NewReader("content")); err != nil {
		t.Fatal(err)
	}
	var calls atomic.Int64
	srv.failWith(func(w http.ResponseWriter, _ *http.Request) bool {
		return calls.Add(1) == 1 && s3Error(w, http.StatusServiceUnavailable, "SlowDown")
	})
	if got, err := get(t, s, "a.csv", ""); got != "content" || err != nil {
		t.Errorf("after one 503: %q, %v", got, err)
	}
	if calls.Load() != 2 {
		t.Errorf("%d requests, want 2", calls.Load())
	}
}

// A body that breaks off goes on from where it broke, pinned to its version.
func TestS3ResumesBody(t *testing.T) {
	srv := newServer(t)
	s := mustOpen(t, "s3://bills/p")
	content := strings.Repeat("0123456789", 5000)
	if err := s.Put(ctx, "a.csv", strings.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	var gets atomic.Int64
	cut := func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || gets.Add(1) > 1 {
			return false
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		io.WriteString(w, content[:12345]) //nolint:errcheck // the fault is the point
		return true                        // the server closes the connection: too few bytes
	}
	srv.failWith(cut)
	if got, err := get(t, s, "a.csv", ""); got != content || err != nil {
		t.Errorf("%d of %d bytes, %v", len(got), len(content), err)
	}
	if gets.Load() != 2 {
		t.Errorf("%d requests, want 2", gets.Load())
	}

	// Every time it breaks at once: it must end.
	srv.failWith(func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		return true
	})
	if _, err := get(t, s, "a.csv", ""); !errors.Is(err, ErrChanged) || !strings.Contains(err.Error(), "broke off at byte 0") {
		t.Errorf("always broken: %v", err)
	}
}

func TestS3Errors(t *testing.T) {
	srv := newServer(t)
	s := mustOpen(t, "s3://bills/p")
	for _, tc := range []struct {
		status int
		code   string
		is     error
		says   string
	}{
		{http.StatusPreconditionFailed, "PreconditionFailed", ErrChanged, "s3://bills/p/a.csv"},
		{http.StatusNotFound, "NoSuchKey", ErrNotFound, "s3://bills/p/a.csv"},
		{http.StatusNotFound, "NoSuchBucket", ErrNotFound, `no bucket "bills"`},
		{http.StatusForbidden, "AccessDenied", nil, "s3:GetObject"},
		{http.StatusMovedPermanently, "PermanentRedirect", nil, "set AWS_REGION"},
	} {
		srv.failWith(func(w http.ResponseWriter, _ *http.Request) bool { return s3Error(w, tc.status, tc.code) })
		_, err := get(t, s, "a.csv", "etag")
		if err == nil || tc.is != nil && !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%d %s: %v", tc.status, tc.code, err)
		}
		if err != nil && (strings.Contains(err.Error(), "wJalrEXAMPLE") || strings.Contains(err.Error(), "AKIDEXAMPLE")) {
			t.Errorf("a secret in %v", err)
		}
	}
}

func TestS3NeedsRegion(t *testing.T) {
	newServer(t)
	t.Setenv("AWS_ENDPOINT_URL", "")
	if _, err := Open(ctx, "s3://bills/p"); err == nil || !strings.Contains(err.Error(), "AWS_REGION") {
		t.Errorf("without a region: %v", err)
	}
}
