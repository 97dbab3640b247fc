package objstore

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"gpuledger/internal/blobtest"
)

const blobBills = "https://billing.blob.core.windows.net/bills"

// noSecret holds every error to hold none of what signs requests.
func noSecret(t *testing.T, text string) {
	t.Helper()
	for _, secret := range blobtest.Secrets {
		if strings.Contains(text, secret) {
			t.Errorf("the secret %q is in %s", secret, text)
		}
	}
}

func TestBlob(t *testing.T) {
	for _, location := range []string{
		blobBills + "/some/prefix/", blobBills, "az://billing/bills/some", "abfss://bills@billing.dfs.core.windows.net/some/prefix",
		"https://billing.blob.core.usgovcloudapi.net/bills/some", "https://billing.z12.blob.storage.azure.net/bills/x%20y", blobBills + "/some?" + blobtest.SAS,
	} {
		t.Run(location[:20], func(t *testing.T) {
			srv := blobtest.New(t, "bills")
			testStore(t, mustOpen(t, location))
			how := "key"
			if strings.Contains(location, "?") {
				how = "sas"
			}
			if srv.Count(how) == 0 || srv.Count("key")+srv.Count("sas")+srv.Count("bearer") != srv.Count(how) {
				t.Errorf("not all signed by %s", how)
			}
		})
	}
}

func TestBlobLocation(t *testing.T) {
	blobtest.New(t, "bills")
	for location, want := range map[string]string{
		blobBills + "/a/b/?" + blobtest.SAS:                       blobBills + "/a/b/",
		blobBills + "/a/b.csv?" + blobtest.SAS:                    blobBills + "/a/b.csv",
		"https://Billing.blob.core.windows.net/bills":             blobBills + "/",
		"az://billing/bills/a":                                    blobBills + "/a/",
		"abfss://bills@billing.dfs.core.chinacloudapi.cn/a/b":     "https://billing.blob.core.chinacloudapi.cn/bills/a/b/",
		"https://billing-secondary.blob.core.windows.net/bills/a": "https://billing-secondary.blob.core.windows.net/bills/a/",
	} {
		if got := mustOpen(t, location).Location(); got != want {
			t.Errorf("%s is at %s", want, got)
		}
	}
}

func TestBadBlobLocations(t *testing.T) {
	blobtest.New(t, "bills")
	for location, says := range map[string]string{
		"https://example.com/bills?" + blobtest.SAS:                        "example.com is not Azure Blob Storage",
		"https://evil.com/.blob.core.windows.net/bills?" + blobtest.SAS:    "evil.com is not",
		"https://billing.blob.core.windows.net?" + blobtest.SAS:            "not of the form",
		"https://billing.blob.core.windows.net/%zz?" + blobtest.SAS:        "not an address",
		"https://billing:c2VjcmV0@billing.blob.core.windows.net/bills":     "must not hold credentials",
		"abfss://bills:c2VjcmV0@billing.dfs.core.windows.net/a":            "must not hold credentials",
		blobBills + "?restype=container":                                   "no SAS token",
		blobBills + "?" + strings.Replace(blobtest.SAS, "sig=", "sgi=", 1): "no SAS token",
		"billing.blob.core.windows.net/bills?" + blobtest.SAS:              "starts with https://",
		"http://billing.blob.core.windows.net/bills?" + blobtest.SAS:       `scheme "http"`,
		blobBills + "#a": "not of the form",
	} {
		_, err := Open(ctx, location)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", location, err)
		} else {
			noSecret(t, err.Error())
		}
	}
}

func TestPublic(t *testing.T) {
	for location, want := range map[string]string{
		blobBills + "/a?" + blobtest.SAS:                       blobBills + "/a",
		"billing.blob.core.windows.net/bills?" + blobtest.SAS:  "billing.blob.core.windows.net/bills",
		"s3://KEY:c2VjcmV0@bucket/x":                           "s3://bucket/x",
		"abfss://bills@billing.dfs.core.windows.net/a":         "abfss://bills@billing.dfs.core.windows.net/a",
		"./bills/what?.csv":                                    "./bills/what?.csv",
		"https://u:c2VjcmV0@billing.blob.core.windows.net/x?y": "https://billing.blob.core.windows.net/x",
		"s3://bucket/prefix":                                   "s3://bucket/prefix",
	} {
		if got := Public(location); got != want {
			t.Errorf("%s is shown as %s", location, got)
		}
	}
}

func TestBlobSingleObject(t *testing.T) {
	blobtest.New(t, "bills")
	folder := mustOpen(t, blobBills+"/x")
	for _, k := range []string{"a.csv", "a.csv.gz"} {
		if err := folder.Put(ctx, k, strings.NewReader(k)); err != nil {
			t.Fatal(err)
		}
	}
	s := mustOpen(t, blobBills+"/x/a.csv")
	if got := keys(t, s, ""); got != "a.csv" {
		t.Errorf("list: %q", got)
	}
	if got := keys(t, s, "b"); got != "" {
		t.Errorf("list of what it is not: %q", got)
	}
	if got, err := get(t, s, "a.csv", ""); got != "a.csv" || err != nil {
		t.Errorf("get: %q, %v", got, err)
	}
}

// More blobs than a page holds, in order, and neither folders nor what lies beside.
func TestBlobListing(t *testing.T) {
	srv := blobtest.New(t, "bills")
	srv.PageSize = 10
	for i := range 23 {
		srv.Add("bills", fmt.Sprintf("p/%02d.csv", i), blobtest.Blob{Content: []byte("x"), Metadata: map[string]string{"by": "export"}})
	}
	srv.Add("bills", "p/", blobtest.Blob{})
	srv.Add("bills", "p/folder", blobtest.Blob{Type: "directory"})
	srv.Add("bills", "p/marker", blobtest.Blob{Metadata: map[string]string{"hdi_isfolder": "true"}})
	srv.Add("bills", "p/z\x01 &<é.csv", blobtest.Blob{Content: []byte("x"), Type: "file"})
	srv.Add("bills", "p2/other.csv", blobtest.Blob{})
	s := mustOpen(t, blobBills+"/p")
	list, err := s.List(ctx, "")
	if err != nil || len(list) != 24 || list[0].Key != "00.csv" || list[23].Key != "z\x01 &<é.csv" {
		t.Fatalf("%d keys, %v", len(list), err)
	}
	if pages := srv.Count("list"); pages != 3 {
		t.Errorf("%d pages, want 3", pages)
	}
	if got, err := get(t, s, list[23].Key, list[23].ETag); got != "x" || err != nil {
		t.Errorf("get of an odd name: %q, %v", got, err)
	}
}

// An object of any size replaces the old one at once, and a source that fails leaves it.
func TestBlobPut(t *testing.T) {
	srv := blobtest.New(t, "bills")
	s := mustOpen(t, blobBills)
	large := strings.Repeat("0123456789abcdef", 20<<16)
	for _, content := range []string{"", "small", large} {
		for name, source := range map[string]io.Reader{"seeker": strings.NewReader(content), "stream": io.MultiReader(strings.NewReader(content))} {
			if err := s.Put(ctx, "a.csv", source); err != nil {
				t.Fatal(err)
			}
			if got, err := get(t, s, "a.csv", ""); got != content || err != nil {
				t.Errorf("%s: %d of %d bytes, %v", name, len(got), len(content), err)
			}
		}
	}
	if n := srv.Count("put"); n != 6 {
		t.Errorf("%d requests, want 6", n)
	}
	broken := io.MultiReader(strings.NewReader("half"), errReader{})
	if err := s.Put(ctx, "a.csv", broken); !errors.Is(err, errBroken) || !strings.Contains(err.Error(), blobBills+"/a.csv") {
		t.Errorf("put: %v", err)
	}
	if got, err := get(t, s, "a.csv", ""); got != large || err != nil {
		t.Errorf("after a failed put: %d bytes, %v", len(got), err)
	}
}

// Bytes come as they are stored, also where the blob says that they are gzip.
func TestBlobKeepsEncoding(t *testing.T) {
	srv := blobtest.New(t, "bills")
	var packed bytes.Buffer
	zw := gzip.NewWriter(&packed)
	fmt.Fprint(zw, "content")
	zw.Close()
	srv.Add("bills", "a.csv.gz", blobtest.Blob{Content: packed.Bytes(), Encoding: "gzip"})
	s := mustOpen(t, blobBills)
	list, err := s.List(ctx, "")
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	if got, err := get(t, s, "a.csv.gz", list[0].ETag); got != packed.String() || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	f, err := s.Fetch(ctx, "a.csv.gz", list[0].ETag)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Object() != list[0] {
		t.Errorf("fetched %+v, listed %+v", f.Object(), list[0])
	}
}

// A cancelled context ends a request that waits, and the wait before another.
func TestBlobCancelled(t *testing.T) {
	srv := blobtest.New(t, "bills")
	s := mustOpen(t, blobBills)
	for name, fault := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"silent": func(_ http.ResponseWriter, r *http.Request) bool {
			_, _ = io.Copy(io.Discard, r.Body) // else the server does not notice who leaves
			<-r.Context().Done()
			return true
		},
		"busy": func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Retry-After", "30")
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		},
	} {
		srv.Fault(fault)
		one, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		start := time.Now()
		_, _, err := s.Get(one, "a.csv", "")
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), blobBills+"/a.csv") || time.Since(start) > 10*time.Second {
			t.Errorf("%s: %v after %s", name, err, time.Since(start))
		}
		done, cancel := context.WithCancel(ctx)
		time.AfterFunc(50*time.Millisecond, cancel)
		if err := s.Put(done, "a.csv", strings.NewReader("x")); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: put: %v", name, err)
		}
	}
}
