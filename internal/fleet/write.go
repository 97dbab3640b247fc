package fleet

import (
	"bufio"
	"compress/gzip"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"gpuledger/billing/period"
	"gpuledger/ingest/openmetrics"
	"gpuledger/internal/parquetio"
)

// The export's place below bills/: its prefix and name.
const (
	billsFolder   = "bills"
	metricsFolder = "metrics"
	exportPrefix  = "finops"
	exportName    = "gpu-costs"
	exportBucket  = "example-billing-exports"
)

// Written says what Write made.
type Written struct {
	Config  string // path of gpuledger.yaml
	Files   []string
	Bytes   int64 // of all files
	Lines   int64 // of the bill
	Series  int64 // summed over the days
	Samples int64
}

// Write writes the fleet's files below dir: bills/…, metrics/…, gpuledger.yaml,
// policy.yaml and owners.yaml, and reports what it wrote. Its own files are
// replaced; metrics of another month beside them would become part of the
// cluster, so they are refused.
func (f Fleet) Write(dir string) (Written, error) {
	w := Written{Config: filepath.Join(dir, "gpuledger.yaml")}
	if err := f.checkFolder(dir); err != nil {
		return w, err
	}
	for _, doc := range []struct{ name, text string }{{"gpuledger.yaml", f.config()}, {"policy.yaml", f.Policy}, {"owners.yaml", f.Owners}} {
		if err := w.file(filepath.Join(dir, doc.name), func(out io.Writer) error { return writeText(out, doc.text) }); err != nil {
			return w, err
		}
	}
	if err := f.writeBill(&w, dir); err != nil {
		return w, err
	}
	return w, f.writeMetrics(&w, dir)
}

func writeText(w io.Writer, s string) error {
	_, err := io.WriteString(w, s)
	return err
}

func (f *Fleet) checkFolder(dir string) error {
	have, err := filepath.Glob(filepath.Join(dir, metricsFolder, "*.om.gz"))
	if err != nil {
		return err
	}
	for _, path := range have {
		if !strings.HasPrefix(filepath.Base(path), f.Month.String()+"-") {
			return fmt.Errorf("%s is of another month than %s; choose an empty folder", path, f.Month)
		}
	}
	return nil
}

// file writes one file and counts it.
func (w *Written) file(path string, fill func(io.Writer) error) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	bw := bufio.NewWriterSize(out, 1<<16)
	if err := fill(bw); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := bw.Flush(); err != nil {
		return err
	}
	info, err := out.Stat()
	if err != nil {
		return err
	}
	w.Files = append(w.Files, path)
	w.Bytes += info.Size()
	return nil
}

// gzipped compresses without a name or a time, so that equal content is equal
// bytes, and at the fastest level: a bench waits for it, and a month is small.
func gzipped(fill func(io.Writer) error) func(io.Writer) error {
	return func(out io.Writer) error {
		zw, err := gzip.NewWriterLevel(out, gzip.BestSpeed)
		if err != nil {
			return err
		}
		if err := fill(zw); err != nil {
			return err
		}
		return zw.Close()
	}
}

// writeBill writes the delivery as two data files, half a month each, then its
// manifest, the order in which AWS does.
func (f *Fleet) writeBill(w *Written, dir string) error {
	export := filepath.Join(dir, billsFolder, exportPrefix, exportName)
	partition := "BILLING_PERIOD=" + f.Month.String()
	ending, write := ".csv.gz", writeCSV
	if f.Parquet {
		ending, write = ".snappy.parquet", writeParquet
	}
	month := f.Month.Span()
	middle := month.Start.AddDate(0, 0, 15)
	var uris []string
	for i, part := range []period.Span{{Start: month.Start, End: middle}, {Start: middle, End: month.End}} {
		name := fmt.Sprintf("%s-%05d%s", exportName, i+1, ending)
		err := w.file(filepath.Join(export, "data", partition, name), func(out io.Writer) error {
			return write(out, func(emit func(*row) error) error {
				return f.biller().lines(part, func(r *row) error {
					w.Lines++
					return emit(r)
				})
			})
		})
		if err != nil {
			return err
		}
		uris = append(uris, "s3://"+exportBucket+"/"+exportPrefix+"/"+exportName+"/data/"+partition+"/"+name)
	}
	return w.file(filepath.Join(export, "metadata", partition, exportName+"-Manifest.json"), func(out io.Writer) error { return f.writeManifest(out, uris) })
}

func (f *Fleet) writeManifest(w io.Writer, uris []string) error {
	type column struct {
		Name string `json:"name"`
		Type string `json:"type"`
	}
	m := struct {
		ExecutionID string   `json:"executionId"`
		ExportARN   string   `json:"exportArn"`
		Columns     []column `json:"columns"`
		DataFiles   []string `json:"dataFiles"`
	}{
		ExecutionID: uuidOf("execution/" + f.Month.String()),
		ExportARN:   "arn:aws:bcm-data-exports:us-east-1:" + f.Payer + ":export/" + exportName + "-" + uuidOf("export/"+exportName),
		DataFiles:   uris,
	}
	for i, name := range columnNames {
		m.Columns = append(m.Columns, column{name, map[parquetio.Kind]string{
			parquetio.String: "string", parquetio.Double: "double", parquetio.TimestampMillis: "timestamp", parquetio.StringMap: "map",
		}[kindOf(i)]})
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(m)
}

func writeCSV(out io.Writer, rows func(func(*row) error) error) error {
	return gzipped(func(w io.Writer) error {
		cw := csv.NewWriter(w)
		if err := cw.Write(columnNames[:]); err != nil {
			return err
		}
		if err := rows(func(r *row) error { return cw.Write(r.cells[:]) }); err != nil {
			return err
		}
		cw.Flush()
		return cw.Error()
	})(out)
}

// kindOf is the column's type in AWS's own Parquet, where costs are doubles.
func kindOf(col int) parquetio.Kind {
	switch col {
	case colStart, colEnd, colPeriodStart, colPeriodEnd:
		return parquetio.TimestampMillis
	case colCostCategory, colProductMap, colResourceTags:
		return parquetio.StringMap
	case colUnblendedCost, colUsageAmount, colOnDemandCost, colRIEffective, colRIUnusedUpfront, colRIUnusedRecurring,
		colSPEffective, colSPTotal, colSPUsed:
		return parquetio.Double
	}
	return parquetio.String
}

func writeParquet(out io.Writer, rows func(func(*row) error) error) error {
	columns := make([]parquetio.Column, numColumns)
	for i, name := range columnNames {
		columns[i] = parquetio.Column{Name: name, Kind: kindOf(i)}
	}
	pw, err := parquetio.NewWriter(out, columns)
	if err != nil {
		return err
	}
	cells := make([]any, numColumns)
	err = rows(func(r *row) error {
		for c, text := range r.cells {
			var err error
			if cells[c], err = cell(kindOf(c), text); err != nil {
				return fmt.Errorf("%s: %w", columnNames[c], err)
			}
		}
		return pw.Write(cells)
	})
	if err != nil {
		return err
	}
	return pw.Close()
}

func cell(kind parquetio.Kind, text string) (any, error) {
	if text == "" {
		return nil, nil
	}
	switch kind {
	case parquetio.Double:
		return strconv.ParseFloat(text, 64)
	case parquetio.TimestampMillis:
		return time.Parse(time.RFC3339, text)
	case parquetio.StringMap:
		var m map[string]string
		err := json.Unmarshal([]byte(text), &m)
		return m, err
	}
	return text, nil
}

// nodesPerFile bounds what is held in memory for one metrics file.
const nodesPerFile = 64

// writeMetrics writes one file a day, or in larger fleets one for each 64 nodes of
// a day, several at a time.
func (f *Fleet) writeMetrics(w *Written, dir string) error {
	pods := f.podsByNode()
	blocks := slices.Collect(slices.Chunk(f.Nodes, nodesPerFile))
	var done []*Written
	g := errgroup.Group{}
	g.SetLimit(runtime.GOMAXPROCS(0))
	for d := f.Month.Start(); d.Before(f.Month.Span().End); d = d.AddDate(0, 0, 1) {
		day := period.Span{Start: d, End: d.AddDate(0, 0, 1)}
		for i, nodes := range blocks {
			name := day.Start.Format("2006-01-02")
			if len(blocks) > 1 {
				name += fmt.Sprintf("-%03d", i)
			}
			one := &Written{}
			done = append(done, one)
			g.Go(func() error {
				return f.writeSamples(one, filepath.Join(dir, metricsFolder, name+".om.gz"), day, nodes, pods, i == 0)
			})
		}
	}
	err := g.Wait()
	for _, d := range done {
		w.Files = append(w.Files, d.Files...)
		w.Bytes, w.Series, w.Samples = w.Bytes+d.Bytes, w.Series+d.Series, w.Samples+d.Samples
	}
	return err
}

// writeSamples writes one file; a day without a sample has none.
func (f *Fleet) writeSamples(w *Written, path string, day period.Span, nodes []Node, pods map[string][]*Pod, namespaces bool) error {
	series := slices.Concat(f.inventory(day, nodes, pods, namespaces), f.devices(day, nodes, pods))
	for _, s := range series {
		w.Samples += int64(len(s.Samples))
	}
	if w.Series = int64(len(series)); w.Samples == 0 {
		return nil
	}
	return w.file(path, gzipped(func(out io.Writer) error { return openmetrics.Write(out, series) }))
}
