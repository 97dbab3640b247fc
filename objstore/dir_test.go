package objstore

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var ctx = context.Background()

func mustOpen(t *testing.T, location string) Store {
	t.Helper()
	s, err := Open(ctx, location)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func get(t *testing.T, s Store, key, etag string) (string, error) {
	t.Helper()
	r, _, err := s.Get(ctx, key, etag)
	if err != nil {
		return "", err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	return string(b), err
}

func keys(t *testing.T, s Store, prefix string) string {
	t.Helper()
	list, err := s.List(ctx, prefix)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, o := range list {
		out = append(out, o.Key)
	}
	return strings.Join(out, " ")
}

// The contract that both stores keep.
func testStore(t *testing.T, s Store) {
	for k, v := range map[string]string{"b/2.csv": "two", "a/1.csv": "one", "a.csv": "top", "a/10.csv": "ten"} {
		if err := s.Put(ctx, k, strings.NewReader(v)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Put(ctx, "a/1.csv", io.MultiReader(strings.NewReader("o"), strings.NewReader("ne!"))); err != nil {
		t.Fatal(err)
	}
	for prefix, want := range map[string]string{
		"": "a.csv a/1.csv a/10.csv b/2.csv", "a/": "a/1.csv a/10.csv", "a": "a.csv a/1.csv a/10.csv", "a/1": "a/1.csv a/10.csv", "a/1.csv": "a/1.csv", "none/": "",
	} {
		if got := keys(t, s, prefix); got != want {
			t.Errorf("list %q: %q, want %q", prefix, got, want)
		}
	}
	list, err := s.List(ctx, "a/1.")
	if err != nil || len(list) != 1 || list[0].Size != 4 || list[0].ETag == "" || list[0].Modified.IsZero() {
		t.Fatalf("object %+v, %v", list, err)
	}
	tag := list[0].ETag
	if got, err := get(t, s, "a/1.csv", tag); got != "one!" || err != nil {
		t.Errorf("get: %q, %v", got, err)
	}
	f, err := s.Fetch(ctx, "a/1.csv", tag)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 2)
	if _, err := f.ReadAt(b, 1); err != nil || string(b) != "ne" || f.Object().Size != 4 || f.Object().ETag != tag {
		t.Errorf("read at 1: %q, %+v, %v", b, f.Object(), err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Put(ctx, "a/1.csv", strings.NewReader("another")); err != nil {
		t.Fatal(err)
	}
	if _, err := get(t, s, "a/1.csv", tag); !errors.Is(err, ErrChanged) {
		t.Errorf("pinned get after a change: %v", err)
	}
	if _, err := s.Fetch(ctx, "a/1.csv", tag); !errors.Is(err, ErrChanged) {
		t.Errorf("pinned fetch after a change: %v", err)
	}
	for _, k := range []string{"a/9.csv", "zz"} {
		_, err := get(t, s, k, "")
		if _, fetchErr := s.Fetch(ctx, k, ""); !errors.Is(err, ErrNotFound) || !errors.Is(fetchErr, ErrNotFound) || !strings.Contains(err.Error(), k) {
			t.Errorf("absent %s: %v, %v", k, err, fetchErr)
		}
	}
	for _, k := range []string{"", "/etc/passwd", "../x", "a/../../x", "a//b"} {
		if _, err := get(t, s, k, ""); err == nil || errors.Is(err, ErrNotFound) {
			t.Errorf("key %q: %v", k, err)
		}
		if err := s.Put(ctx, k, strings.NewReader("")); err == nil {
			t.Errorf("key %q was written", k)
		}
	}
}

func TestDir(t *testing.T) {
	for _, scheme := range []string{"", "file://"} {
		testStore(t, mustOpen(t, scheme+t.TempDir()))
	}
}

func TestSingleFile(t *testing.T) {
	dir := t.TempDir()
	for _, n := range []string{"a.csv", "b.csv"} {
		if err := os.WriteFile(filepath.Join(dir, n), []byte(n), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := mustOpen(t, filepath.Join(dir, "b.csv"))
	if got := keys(t, s, ""); got != "b.csv" {
		t.Errorf("list: %q", got)
	}
}

func TestLinkedFolder(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "real"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "real", "a.csv"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", filepath.Join(dir, "link")); err != nil {
		t.Skip("links are not possible here:", err)
	}
	if got := keys(t, mustOpen(t, filepath.Join(dir, "link")), ""); got != "a.csv" {
		t.Errorf("list: %q", got)
	}
}

// A failed write leaves the old object and nothing beside it.
func TestFailedPut(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir)
	if err := s.Put(ctx, "out.csv", strings.NewReader("old")); err != nil {
		t.Fatal(err)
	}
	broken := io.MultiReader(strings.NewReader("half"), errReader{})
	if err := s.Put(ctx, "out.csv", broken); !errors.Is(err, errBroken) {
		t.Errorf("put: %v", err)
	}
	if got, _ := get(t, s, "out.csv", ""); got != "old" {
		t.Errorf("the object is %q", got)
	}
	if list, _ := os.ReadDir(dir); len(list) != 1 {
		t.Errorf("left behind: %v", list)
	}
}

var errBroken = errors.New("broken source")

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errBroken }

// A file that is rewritten in place while it is read is noticed at its end.
func TestRewrittenInPlace(t *testing.T) {
	dir := t.TempDir()
	p := filepath.Join(dir, "a.csv")
	if err := os.WriteFile(p, []byte("first"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, _, err := mustOpen(t, dir).Get(ctx, "a.csv", "")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := os.WriteFile(p, []byte("second and longer"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(r); !errors.Is(err, ErrChanged) {
		t.Errorf("read: %v", err)
	}
}

func TestBadLocations(t *testing.T) {
	for location, says := range map[string]string{
		"": "empty", "ftp://x/y": "ftp", "s3://": "s3://bucket/prefix", "s3://KEY:SECRET@bucket/x": "must not hold credentials", "s3://b?x=y": "s3://bucket/prefix",
	} {
		_, err := Open(ctx, location)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%q: %v", location, err)
		}
	}
}
