//go:build unix

package localpg

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// fakeMirror is a Maven repository with one archive of scripts, and its count of requests.
func fakeMirror(t *testing.T) (*httptest.Server, *int) {
	t.Helper()
	if _, err := exec.LookPath("xz"); err != nil {
		t.Skip("no xz to make an archive with")
	}
	bin := filepath.Join(t.TempDir(), "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\n[ \"$1\" = --version ] && echo 'postgres (PostgreSQL) 17.5' && exit 0\nexit 1\n"
	for _, name := range []string{"postgres", "initdb", "pg_ctl"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	txz, err := exec.Command("tar", "-C", filepath.Dir(bin), "-cJf", "-", "bin").Output()
	if err != nil {
		t.Fatal(err)
	}
	var jar bytes.Buffer
	z := zip.NewWriter(&jar)
	f, err := z.Create("postgres-linux-x86_64.txz")
	if err != nil {
		t.Fatal(err)
	}
	f.Write(txz)
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	requests := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		if strings.HasSuffix(r.URL.Path, ".sha256") {
			fmt.Fprintf(w, "%x", sha256.Sum256(jar.Bytes()))
			return
		}
		w.Write(jar.Bytes())
	}))
	t.Cleanup(srv.Close)
	return srv, &requests
}

func TestFetch(t *testing.T) {
	srv, requests := fakeMirror(t)
	dir := t.TempDir()
	for range 2 { // the second needs no download
		b, err := fetchBinaries(context.Background(), dir, srv.URL, 0)
		if err != nil {
			t.Fatal(err)
		}
		if b.version != "17.5" || !strings.HasPrefix(b.dir, dir) {
			t.Errorf("got %+v", b)
		}
	}
	if *requests != 2 {
		t.Errorf("%d requests, want the archive and its checksum once", *requests)
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	defer gone.Close()
	if _, err := fetchBinaries(context.Background(), t.TempDir(), gone.URL, 16); err == nil || !strings.Contains(err.Error(), "16.9") {
		t.Errorf("got %v", err)
	}
	if _, err := fetchBinaries(context.Background(), t.TempDir(), gone.URL, 12); err == nil {
		t.Error("Postgres 12 was fetched")
	}
}

func TestNoBinariesSaysWhatToInstall(t *testing.T) {
	dir := newDir(t, "pg")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GPULEDGER_PG_BIN", "")
	t.Setenv("PATH", t.TempDir())
	defer func(p []string) { fixedPlaces = p }(fixedPlaces)
	fixedPlaces = nil
	_, err := chooseBinaries(context.Background(), dir, filepath.Join(dir, "data"), Options{DownloadURL: "off"})
	if !errors.Is(err, ErrNoBinaries) || !strings.Contains(err.Error(), "apt install postgresql") {
		t.Errorf("got %v", err)
	}
}
