package aws

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"gpuledger/billing"
	"gpuledger/billing/billingtest"
	"gpuledger/objstore"
)

// The bucket and a copy of it in a folder read the same, CSV and Parquet, with
// one request answered 503; a file replaced meanwhile is a clean failure.
func TestBucketReadsLikeItsCopy(t *testing.T) {
	e := newExport(t)
	node := row{"line_item_resource_id": "i-a", "line_item_usage_type": p5, "line_item_unblended_cost": "98.32", "resource_tags": `{"user_team":"a"}`}
	csvURI := e.data("gpu-00001.csv.gz", gz(csvOf(e.columns, node, cost("2"))))
	e.manifest(csvURI, e.data("gpu-00002.snappy.parquet", parquetOf(t, e.columns, node, cost("3"))))
	want, _, _ := e.read()

	store, calls := bucketOf(t, e.dir)
	r := New(store, "aws")
	calls.Store(0) // the next request is the one that fails
	d := billingtest.Deliveries(t, r)[0]
	if diff := billingtest.Diff(want, billingtest.ReadAll(t, r, d)); diff != "" {
		t.Error(diff)
	}

	replaced := strings.NewReader(string(gz(csvOf(e.columns, cost("7")))))
	if err := store.Put(context.Background(), d.Files[0].Key, replaced); err != nil {
		t.Fatal(err)
	}
	_, err := billingtest.Read(r, d)
	check(t, err, []string{"gpu-00001.csv.gz"}, true)
}

// bucketOf serves a folder's files as a bucket, failing the request after which
// calls is 1.
func bucketOf(t *testing.T, dir string) (objstore.Store, *atomic.Int64) {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("bills"); err != nil {
		t.Fatal(err)
	}
	fake := gofakes3.New(backend).Server()
	calls := &atomic.Int64{}
	calls.Store(1 << 32)
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fake.ServeHTTP(w, r)
	}))
	t.Cleanup(ts.Close)
	for k, v := range map[string]string{
		"AWS_ENDPOINT_URL": ts.URL, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1",
		"AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent", "AWS_PROFILE": "",
	} {
		t.Setenv(k, v)
	}
	store, err := objstore.Open(context.Background(), "s3://bills/some/where")
	if err != nil {
		t.Fatal(err)
	}
	local, err := objstore.Open(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	list, err := local.List(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range list {
		f, err := os.Open(filepath.Join(dir, o.Key))
		if err != nil {
			t.Fatal(err)
		}
		err = store.Put(context.Background(), o.Key, f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	return store, calls
}

// A month of lines, nine in ten out of scope, as a payer's export is.
func benchmarkRead(b *testing.B, name string, encode func(names []string, rows ...row) []byte) {
	e := newExport(b)
	var rows []row
	for i := range 20_000 {
		r := row{"line_item_resource_id": "i-0abc", "line_item_usage_type": "BoxUsage:m5.large", "line_item_unblended_cost": "0.096", "pricing_public_on_demand_cost": "0.096", "resource_tags": `{"user_team":"search","user_env":"prod"}`, "line_item_usage_amount": "1", "line_item_operation": "RunInstances", "line_item_line_item_description": "$0.096 per On Demand Linux m5.large Instance Hour"}
		if i%10 == 0 {
			r["line_item_usage_type"] = p5
		}
		rows = append(rows, r)
	}
	e.columns = gross()
	e.manifest(e.data(name, encode(e.columns, rows...)))
	r := e.reader()
	d := billingtest.Deliveries(b, r)[0]
	scope := billing.Scope{GPUType: func(t string) bool { return strings.HasPrefix(t, "p5.") }}
	b.ReportAllocs()
	for b.Loop() {
		var controls billing.Controls
		err := r.Read(context.Background(), d, scope.Keep, func(l *billing.Line, kept bool) error { return controls.Add(l, kept) })
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(rows))*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
}

func BenchmarkReadCSV(b *testing.B) {
	benchmarkRead(b, "gpu-1.csv.gz", func(names []string, rows ...row) []byte { return gz(csvOf(names, rows...)) })
}

func BenchmarkReadParquet(b *testing.B) {
	benchmarkRead(b, "gpu-1.parquet", func(names []string, rows ...row) []byte { return parquetOf(b, names, rows...) })
}
