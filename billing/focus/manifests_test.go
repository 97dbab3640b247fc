package focus

import (
	"compress/gzip"
	"encoding/csv"
	"errors"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpuledger/billing"
	"gpuledger/billing/billingtest"
)

// sumOf adds a column of gzipped CSV files by itself.
func sumOf(t *testing.T, column string, files ...string) *big.Rat {
	t.Helper()
	sum := new(big.Rat)
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		rows, err := csv.NewReader(z).ReadAll()
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		at := slices.Index(rows[0], column)
		for _, row := range rows[1:] {
			x, ok := new(big.Rat).SetString(row[at])
			if !ok {
				t.Fatalf("%q", row[at])
			}
			sum.Add(sum, x)
		}
	}
	return sum
}

// FOCUS exports as AWS and Azure lay them out: of each month the files that the newest
// manifest names, and no others.
func TestManifests(t *testing.T) {
	for _, c := range []struct {
		where  string
		months map[string][]string
	}{
		{"samples/billing/focus/costroid/aws-focus-s3/fixture/demo/exports/costroid-demo", map[string][]string{
			"2026-05": {"data/BILLING_PERIOD=2026-05/costroid-demo-00001.csv.gz", "data/BILLING_PERIOD=2026-05/costroid-demo-00002.csv.gz"},
			"2026-06": {"data/BILLING_PERIOD=2026-06/20260702T120000Z-a1b2c3d4/costroid-demo-00001.csv.gz"},
		}},
		{"samples/billing/focus/costroid/azure-focus/fixture/devaccount/exports/costroid-demo", map[string][]string{
			"2026-05": {"mtd-snapshot/current/part_0_0001.csv.gz", "mtd-snapshot/current/part_1_0001.csv.gz"},
			"2026-06": nil, // the newer of two runs
		}},
	} {
		root := billingtest.Shared(t, c.where, "FOCUS exports with manifests")
		r := open(t, root, Options{})
		ds := billingtest.Deliveries(t, r)
		if len(ds) != len(c.months) {
			t.Errorf("%s: %d deliveries", c.where, len(ds))
		}
		for _, d := range ds {
			files := c.months[d.BillingPeriod.String()]
			var paths []string
			for _, f := range d.Files {
				paths = append(paths, filepath.Join(root, f.Key))
				if files != nil && !slices.Contains(files, f.Key) {
					t.Errorf("%s: %s is read", d.BillingPeriod, f.Key)
				}
			}
			if files != nil && len(files) != len(d.Files) || !strings.HasPrefix(d.Format, "FOCUS 1.") || d.Manifest == "" {
				t.Errorf("%+v", d)
			}
			lines := billingtest.ReadAll(t, r, d)
			got := new(big.Rat)
			for _, l := range lines {
				x, ok := new(big.Rat).SetString(l.Costs.Billed.String())
				if !ok {
					t.Fatal(l.Costs.Billed)
				}
				got.Add(got, x)
			}
			if want := sumOf(t, "BilledCost", paths...); len(lines) == 0 || got.Cmp(want) != 0 {
				t.Errorf("%s %s: %d lines of %s, want %s", c.where, d.BillingPeriod, len(lines), got.FloatString(18), want.FloatString(18))
			}
		}
	}
}

// A manifest that counts other rows than the file has is found while reading.
func TestManifestCounts(t *testing.T) {
	root := billingtest.Shared(t, "samples/billing/focus/costroid/azure-focus/fixture/devaccount/exports/costroid-demo/mtd-snapshot", "a FOCUS export of Azure")
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(root)); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "current", "manifest.json")
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close(), os.Remove(name), os.WriteFile(name, []byte(strings.NewReplacer(`"dataRowCount": 3`, `"dataRowCount": 4`, `"dataRowCount": 5`, `"dataRowCount": 6`).Replace(string(text))), 0o644)); err != nil {
		t.Fatal(err)
	}
	r := open(t, dir, Options{})
	if _, err := billingtest.Read(r, billingtest.Deliveries(t, r)[0]); !errors.Is(err, billing.ErrIncomplete) || !strings.Contains(err.Error(), "has 3 rows and the manifest says 4") {
		t.Error(err)
	}
}
