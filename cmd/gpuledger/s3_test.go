package main

import (
	"io/fs"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"gpuledger/billing/period"
	"gpuledger/internal/fleet"
	"gpuledger/internal/pgtest"
	"gpuledger/objstore"
)

// One month of a fleet, delivered as csv.gz in a folder and as Parquet in a bucket,
// gives the same ledger, charge by charge.
func TestFolderAndBucketAgree(t *testing.T) {
	m, err := period.ParseMonth("2026-10")
	if err != nil {
		t.Fatal(err)
	}
	backend := s3mem.New()
	if err := backend.CreateBucket("bills"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(backend).Server())
	t.Cleanup(server.Close)
	for k, v := range map[string]string{
		"AWS_ENDPOINT_URL": server.URL, "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "wJalrEXAMPLE", "AWS_REGION": "us-east-1",
		"AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true", "AWS_PROFILE": "", "AWS_SESSION_TOKEN": "",
	} {
		t.Setenv(k, v)
	}
	var ledgers []string
	for _, parquet := range []bool{false, true} {
		dir := t.TempDir()
		f := fleet.New(fleet.Spec{Month: m, Nodes: 3, PodsPerNode: 3, Interval: 10 * time.Minute, Days: 3, Seed: 11})
		f.Parquet = parquet
		w, err := f.Write(dir)
		if err != nil {
			t.Fatal(err)
		}
		if parquet {
			upload(t, filepath.Join(dir, "bills"))
			text := readFile(t, w.Config)
			i := strings.Index(text, "location: ./bills")
			if i < 0 {
				t.Fatalf("no location in\n%s", text)
			}
			write(t, w.Config, strings.Replace(text, "location: ./bills", "location: s3://bills/copy", 1))
		}
		dsn := pgtest.New(t, migrate)
		mustCLI(t, dsn, "run", "--config", w.Config, "--period", "2026-10")
		ledgers = append(ledgers, one(t, dsn, everyCharge))
	}
	if ledgers[0] != ledgers[1] {
		t.Error("the ledgers differ")
	}
	if n := strings.Count(ledgers[0], "\n"); n < 300 {
		t.Errorf("only %d charges", n)
	}
}

// upload copies a folder into the bucket.
func upload(t *testing.T, dir string) {
	t.Helper()
	store, err := objstore.Open(t.Context(), "s3://bills/copy")
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		return store.Put(t.Context(), filepath.ToSlash(rel), f)
	})
	if err != nil {
		t.Fatal(err)
	}
}
