package aws

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpuledger/billing"
	"gpuledger/internal/parquetio"
	"gpuledger/objstore"
)

// export writes a CUR 2.0 delivery to a folder, the way AWS lays it out.
type export struct {
	t       testing.TB
	dir     string // the folder that stands for the bucket
	prefix  string // below it, to the export's folder
	month   string
	execID  string // sub-folder of CREATE_NEW_REPORT, "" for OVERWRITE
	columns []string
}

type row map[string]string

var allColumns = columns[:]

func newExport(t testing.TB) *export {
	return &export{t: t, dir: t.TempDir(), prefix: "cur/gpu", month: "2026-10", columns: allColumns}
}

func (e *export) write(key string, b []byte) {
	e.t.Helper()
	p := filepath.Join(e.dir, filepath.FromSlash(key))
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		e.t.Fatal(err)
	}
	if err := os.WriteFile(p, b, 0o644); err != nil {
		e.t.Fatal(err)
	}
}

func (e *export) partition(kind string) string {
	p := e.prefix + "/" + kind + "/BILLING_PERIOD=" + e.month + "/"
	if e.execID != "" {
		p += e.execID + "/"
	}
	return p
}

// data writes a data file and returns its S3 URI, which names another bucket
// and a longer prefix than the copy has.
func (e *export) data(name string, b []byte) string {
	key := e.partition("data") + name
	e.write(key, b)
	return "s3://original-bucket/deep/" + key
}

func (e *export) manifest(uris ...string) {
	e.t.Helper()
	type col struct {
		Name string `json:"name"`
	}
	m := map[string]any{"executionId": "exec-1", "dataFiles": uris, "additionalOutputFiles": []string{}}
	var cols []col
	for _, c := range e.columns {
		cols = append(cols, col{c})
	}
	m["columns"] = cols
	b, err := json.Marshal(m)
	if err != nil {
		e.t.Fatal(err)
	}
	if e.execID != "" {
		e.write(e.partition("metadata")+"gpu-Manifest.json", b)
	}
	e.write(e.prefix+"/metadata/BILLING_PERIOD="+e.month+"/gpu-Manifest.json", b)
}

func (e *export) reader() *Reader {
	e.t.Helper()
	store, err := objstore.Open(context.Background(), e.dir)
	if err != nil {
		e.t.Fatal(err)
	}
	return New(store, "aws")
}

// lines writes rows as one gzipped CSV delivery and reads it back.
func (e *export) lines(rows ...row) ([]billing.Line, *Reader, billing.Delivery) {
	e.t.Helper()
	e.manifest(e.data("gpu-00001.csv.gz", gz(csvOf(e.columns, rows...))))
	return e.read()
}

func (e *export) read() ([]billing.Line, *Reader, billing.Delivery) {
	e.t.Helper()
	r := e.reader()
	ds, err := r.Deliveries(context.Background())
	if err != nil {
		e.t.Fatal(err)
	}
	var out []billing.Line
	for _, d := range ds {
		err := r.Read(context.Background(), d, func(*billing.Line) bool { return true }, func(l *billing.Line, _ bool) error {
			out = append(out, *l)
			return nil
		})
		if err != nil {
			e.t.Fatal(err)
		}
	}
	return out, r, ds[len(ds)-1]
}

func csvOf(columns []string, rows ...row) []byte {
	records := [][]string{columns}
	for _, r := range rows {
		r = full(r)
		rec := make([]string, len(columns))
		for j, c := range columns {
			rec[j] = r[c]
		}
		records = append(records, rec)
	}
	var b bytes.Buffer
	if err := csv.NewWriter(&b).WriteAll(records); err != nil {
		panic(err) // a buffer takes everything
	}
	return b.Bytes()
}

// full adds what every row has.
func full(r row) row {
	out := row{
		"line_item_line_item_type": "Usage", "line_item_usage_start_date": "2026-10-01T00:00:00.000Z", "line_item_usage_end_date": "2026-10-01T01:00:00.000Z",
		"line_item_unblended_cost": "0", "line_item_net_unblended_cost": "", "line_item_currency_code": "USD", "bill_payer_account_id": "111111111111",
		"line_item_usage_account_id": "222222222222", "line_item_product_code": "AmazonEC2", "pricing_unit": "Hrs",
	}
	for k, v := range r {
		out[k] = v
	}
	return out
}

func gz(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(b)
	if err = errors.Join(err, w.Close()); err != nil {
		panic(err) // a buffer takes everything
	}
	return out.Bytes()
}

// parquetOf writes rows with AWS's own types: doubles, timestamps, maps.
func parquetOf(t testing.TB, names []string, rows ...row) []byte {
	t.Helper()
	cols := make([]parquetio.Column, len(names))
	for i, n := range names {
		cols[i] = parquetio.Column{Name: n, Kind: kindOf(n)}
	}
	var b bytes.Buffer
	w, err := parquetio.NewWriter(&b, cols)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		r = full(r)
		cells := make([]any, len(names))
		for i, c := range cols {
			if r[c.Name] != "" {
				cells[i] = cellOf(t, c.Kind, r[c.Name])
			}
		}
		if err := w.Write(cells); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func kindOf(name string) parquetio.Kind {
	switch {
	case name == "product" || name == "resource_tags" || name == "tags":
		return parquetio.StringMap
	case strings.HasSuffix(name, "_date"):
		return parquetio.TimestampMillis
	case strings.HasSuffix(name, "_cost"), strings.HasSuffix(name, "_amount"), strings.HasSuffix(name, "_fee"),
		strings.HasSuffix(name, "_fee_for_billing_period"), strings.HasSuffix(name, "_commitment"), strings.HasSuffix(name, "_to_date"):
		return parquetio.Double
	}
	return parquetio.String
}

func cellOf(t testing.TB, kind parquetio.Kind, s string) any {
	t.Helper()
	var v any = s
	var err error
	switch kind {
	case parquetio.StringMap:
		m := map[string]string{}
		err = json.Unmarshal([]byte(s), &m)
		v = m
	case parquetio.TimestampMillis:
		v, err = time.Parse(time.RFC3339, s)
	case parquetio.Double:
		v, err = strconv.ParseFloat(s, 64)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}
