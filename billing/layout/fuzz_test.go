package layout

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpuledger/objstore"
)

// lay writes files into a folder and opens it.
func lay(t testing.TB, files map[string][]byte) objstore.Store {
	t.Helper()
	dir := t.TempDir()
	for name, b := range files {
		p := filepath.Join(dir, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, b, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	store, err := objstore.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// sound requires of every run of any manifest that it is whole, or says what is wrong.
func sound(t *testing.T, runs []Run, err error) {
	t.Helper()
	if err != nil {
		return
	}
	for _, r := range runs {
		switch {
		case r.Err == nil && (r.Month.IsZero() || r.Kind == 0):
			t.Fatalf("a run without month or kind, and no word on it: %+v", r)
		case r.Err != nil && !strings.Contains(r.Err.Error(), r.Manifest):
			t.Fatalf("%v does not name %s", r.Err, r.Manifest)
		}
		seen := map[string]bool{}
		for _, f := range r.Files {
			if seen[f.Key] && r.Err == nil {
				t.Fatalf("file %s twice", f.Key)
			}
			seen[f.Key] = true
		}
	}
}

func FuzzAzureManifest(f *testing.F) {
	f.Add([]byte(`{"blobCount":1,"dataRowCount":1,"exportConfig":{"exportName":"a","type":"ActualCost"},"runInfo":{"runId":"r","submittedTime":"2026-09-02T00:00:00","startDate":"2026-09-01T00:00:00"},"blobs":[{"blobName":"c/x/part_0_0001.csv","byteCount":4,"dataRowCount":1}]}`))
	f.Add([]byte("\ufeff{\"blobs\":[{\"blobName\":\"../part_0_0001.csv\"}]}"))
	f.Fuzz(func(t *testing.T, manifest []byte) {
		runs, err := Azure(t.Context(), lay(t, map[string][]byte{"x/manifest.json": manifest, "x/part_0_0001.csv": []byte("a\n1\n")}))
		sound(t, runs, err)
	})
}

func FuzzAWSManifest(f *testing.F) {
	f.Add([]byte(`{"executionId":"e","dataFiles":["s3://b/p/gpu/data/BILLING_PERIOD=2026-10/gpu-00001.csv"],"columns":[{"name":"line_item_line_item_type"}]}`))
	f.Add([]byte(`{"assemblyId":"a","billingPeriod":{"start":"20261001T000000.000Z","end":"20261101T000000.000Z"},"reportKeys":["p/gpu/20261001-20261101/gpu-1.csv"],"columns":[{"category":"lineItem","name":"LineItemType"}]}`))
	f.Fuzz(func(t *testing.T, manifest []byte) {
		runs, err := AWS(t.Context(), lay(t, map[string][]byte{
			"gpu/metadata/BILLING_PERIOD=2026-10/gpu-Manifest.json": manifest, "gpu/20261001-20261101/gpu-Manifest.json": manifest,
			"gpu/data/BILLING_PERIOD=2026-10/gpu-00001.csv": []byte("a\n1\n"), "gpu/20261001-20261101/gpu-1.csv": []byte("a\n1\n"),
		}))
		sound(t, runs, err)
	})
}
