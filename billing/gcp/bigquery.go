package gcp

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/bigquery"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"

	"gpuledger/billing"
	"gpuledger/billing/focus"
	"gpuledger/billing/period"
	"gpuledger/billing/table"
)

// defaultMaxBytes is how much one query may read.
const defaultMaxBytes = 1 << 40

// bigQuery is a table of the export in BigQuery.
type bigQuery struct {
	client *bigquery.Client
	opt    Options
	parts  [3]string // project, dataset, table

	mu    sync.Mutex
	about *dataset
	count map[[32]byte]int64         // rows that a delivery has, by its token
	first map[[32]byte]*bigquery.Job // the query of a delivery's rows, to be read again
}

// BigQuery returns the reader of the bill source with the given name from a table of the
// detailed usage cost export or of the FOCUS export. Credentials are Google's application
// default ones.
func BigQuery(ctx context.Context, name string, opt Options) (*Reader, error) {
	parts := strings.Split(strings.ReplaceAll(opt.Table, ":", "."), ".")
	if len(parts) != 3 || slices.Contains(parts, "") {
		return nil, fmt.Errorf("bills %s: table %q is not project.dataset.table", name, opt.Table)
	}
	if opt.Project == "" {
		opt.Project = parts[0]
	}
	if opt.MaxBytes == 0 {
		opt.MaxBytes = defaultMaxBytes
	}
	if opt.Services == nil {
		opt.Services = []string{computeEngine}
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	var with []option.ClientOption
	if opt.Endpoint != "" {
		with = append(with, option.WithEndpoint(strings.TrimSuffix(opt.Endpoint, "/")+"/bigquery/v2/"))
	}
	if strings.HasPrefix(opt.Endpoint, "http://") {
		with = append(with, option.WithoutAuthentication())
	}
	client, err := bigquery.NewClient(ctx, opt.Project, with...)
	if err != nil {
		return nil, fmt.Errorf("bills %s: %w", name, explain(err, opt))
	}
	w := &bigQuery{client: client, opt: opt, parts: [3]string(parts), count: map[[32]byte]int64{}, first: map[[32]byte]*bigquery.Job{}}
	return &Reader{name: name, from: w, notes: map[[32]byte][]string{}}, nil
}

// look reads what the table is: its columns, and how it is partitioned.
func (w *bigQuery) look(ctx context.Context) (*dataset, []string, error) {
	md, err := w.client.DatasetInProject(w.parts[0], w.parts[1]).Table(w.parts[2]).Metadata(ctx)
	if err != nil {
		return nil, nil, explain(err, w.opt)
	}
	t := &dataset{table: strings.Join(w.parts[:], "."), columns: map[string]string{}, location: md.Location}
	flatten(t.columns, "", md.Schema)
	t.focus = t.columns["BilledCost"] != "" && t.columns["BillingPeriodStart"] != ""
	var notes []string
	if !t.focus {
		if notes, err = missing(t.has); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", t.table, err)
		}
	}
	switch p := md.TimePartitioning; {
	case p == nil:
		notes = append(notes, fmt.Sprintf("%s is not partitioned by time: every look at it reads all of it", t.table))
	case p.Field == "":
		t.partition = "_PARTITIONTIME"
	case p.Field == "export_time", p.Field == "x_ExportTime":
		t.partition = p.Field
	default:
		notes = append(notes, fmt.Sprintf("%s is partitioned by %s, which does not bound when rows were exported: every look at it reads all of it", t.table, p.Field))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.about = t
	return t, notes, nil
}

// flatten lists the columns of a schema; those of a record follow its name and a point.
func flatten(out map[string]string, parent string, schema bigquery.Schema) {
	for _, f := range schema {
		switch name := parent + f.Name; {
		case f.Repeated:
			out[name] = "REPEATED"
		case f.Type == bigquery.RecordFieldType:
			flatten(out, name+".", f.Schema)
		default:
			out[name] = string(f.Type)
		}
	}
}

// day is the change token of one usage day of an invoice month.
type day struct {
	day    string
	newest string
	rows   int64
}

func (w *bigQuery) deliveries(ctx context.Context) ([]billing.Delivery, error) {
	t, notes, err := w.look(ctx)
	if err != nil {
		return nil, err
	}
	first := "000000"
	if !w.opt.From.IsZero() {
		first = w.opt.From.Start().Format("200601")
	}
	sql, params := t.days(true), []bigquery.QueryParameter{{Name: "first", Value: first}}
	if !w.opt.Since.IsZero() {
		months, err := w.changed(ctx, t, first)
		if err != nil || len(months) == 0 {
			return nil, err
		}
		since, err := monthOf(slices.Min(months))
		if err != nil {
			return nil, err
		}
		sql, params = t.days(false), []bigquery.QueryParameter{{Name: "months", Value: months}, {Name: "since", Value: since.Start().Add(-beforeMonth)}}
	}
	months := map[string][]day{}
	newest := map[string]time.Time{}
	err = w.query(ctx, t, sql, params, func(row []bigquery.Value) error {
		month, _ := row[0].(string)
		if month == "" {
			return fmt.Errorf("%s: rows without an invoice month", t.table)
		}
		n, _ := row[3].(int64)
		at, _ := row[2].(time.Time)
		months[month] = append(months[month], day{day: cell(row[1]), newest: cell(row[2]), rows: n})
		if at.After(newest[month]) {
			newest[month] = at
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	out := make([]billing.Delivery, 0, len(months))
	for text, days := range months {
		d, err := w.delivery(t, text, days, notes)
		if err != nil {
			return nil, err
		}
		d.Submitted = newest[text]
		out = append(out, d)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].BillingPeriod.Start().Before(out[j].BillingPeriod.Start()) })
	return out, nil
}

// changed are the invoice months that have rows exported since Options.Since.
func (w *bigQuery) changed(ctx context.Context, t *dataset, first string) ([]string, error) {
	var out []string
	var params []bigquery.QueryParameter
	if t.partition != "" {
		params = append(params, bigquery.QueryParameter{Name: "since", Value: w.opt.Since})
	}
	err := w.query(ctx, t, t.changedMonths(), params, func(row []bigquery.Value) error {
		if m, _ := row[0].(string); m >= first {
			out = append(out, m)
		}
		return nil
	})
	return out, err
}

func monthOf(text string) (period.Month, error) {
	if !yearMonth.MatchString(text) {
		return period.Month{}, fmt.Errorf("invoice month %q is not one such as 202610", text)
	}
	return period.ParseMonth(text[:4] + "-" + text[4:])
}

// delivery is one invoice month as it is now.
func (w *bigQuery) delivery(t *dataset, text string, days []day, notes []string) (billing.Delivery, error) {
	m, err := monthOf(text)
	if err != nil {
		return billing.Delivery{}, fmt.Errorf("%s: %w", t.table, err)
	}
	d := billing.Delivery{Format: "GCP detailed usage cost", BillingPeriod: m, Manifest: t.table, Columns: slices.Sorted(maps.Keys(t.columns)), Notes: notes}
	if t.focus {
		d.Format = focus.Version(d.Columns)
	}
	h := sha256.New()
	var rows int64
	_, _ = fmt.Fprintf(h, "%q %q %q", t.table, d.Columns, w.opt.Services)
	for _, one := range days {
		_, _ = fmt.Fprintf(h, "%q %q %d;", one.day, one.newest, one.rows)
		rows += one.rows
	}
	d.Token = [32]byte(h.Sum(nil))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count[d.Token] = rows
	return d, nil
}

// counted is how many rows a delivery had when it was listed.
func (w *bigQuery) counted(d billing.Delivery) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count[d.Token]
}

// each reads a month's rows, and the sums of those that are not read one by one.
func (w *bigQuery) each(ctx context.Context, d billing.Delivery, sums bool, fn func(*table.Reader, string, bool) error) error {
	w.mu.Lock()
	t, job := w.about, w.first[d.Token]
	delete(w.first, d.Token)
	w.mu.Unlock()
	if t == nil {
		return fmt.Errorf("%s: read before its deliveries were listed", w.opt.Table)
	}
	params := []bigquery.QueryParameter{
		{Name: "month", Value: d.BillingPeriod.Start().Format("200601")},
		{Name: "since", Value: d.BillingPeriod.Start().Add(-beforeMonth)},
		{Name: "services", Value: w.opt.Services},
	}
	sql, header := t.rows(w.opt.Services)
	var err error
	if job == nil {
		if job, err = w.run(ctx, t, sql, params); err != nil {
			return err
		}
		if !sums {
			w.mu.Lock()
			w.first[d.Token] = job
			w.mu.Unlock()
		}
	}
	if err := w.read(ctx, t, job, header, false, fn); err != nil || !sums || t.focus || t.detail(w.opt.Services) == "TRUE" {
		return err
	}
	sql, header = t.sums(w.opt.Services)
	if job, err = w.run(ctx, t, sql, params); err != nil {
		return err
	}
	return w.read(ctx, t, job, header, true, fn)
}

func (w *bigQuery) read(ctx context.Context, t *dataset, job *bigquery.Job, header []string, summed bool, fn func(*table.Reader, string, bool) error) error {
	it, err := job.Read(ctx)
	if err != nil {
		return explain(err, w.opt)
	}
	rows := table.Of(t.table, header, &answer{it: it, cells: make([]string, len(header)), opt: w.opt}, table.Options{Columns: columnsOf(t)})
	defer rows.Close()
	return fn(rows, t.table, summed)
}

func columnsOf(t *dataset) []string {
	if t.focus {
		return focus.Columns()
	}
	return columns[:]
}

// query runs a small query and passes its rows to fn.
func (w *bigQuery) query(ctx context.Context, t *dataset, sql string, params []bigquery.QueryParameter, fn func([]bigquery.Value) error) error {
	job, err := w.run(ctx, t, sql, params)
	if err != nil {
		return err
	}
	it, err := job.Read(ctx)
	if err != nil {
		return explain(err, w.opt)
	}
	for {
		var row []bigquery.Value
		err := it.Next(&row)
		if errors.Is(err, iterator.Done) {
			return nil
		}
		if err != nil {
			return explain(err, w.opt)
		}
		if err := fn(row); err != nil {
			return err
		}
	}
}

// run starts a query once a dry run has said that it reads no more than it may.
func (w *bigQuery) run(ctx context.Context, t *dataset, sql string, params []bigquery.QueryParameter) (*bigquery.Job, error) {
	q := w.client.Query(sql)
	q.Location, q.MaxBytesBilled = t.location, w.opt.MaxBytes
	for _, p := range params {
		if strings.Contains(sql, "@"+p.Name) {
			q.Parameters = append(q.Parameters, p)
		}
	}
	q.DryRun = true
	dry, err := q.Run(ctx)
	if err != nil {
		return nil, explain(err, w.opt)
	}
	if s := dry.LastStatus(); s != nil && s.Statistics != nil {
		n := s.Statistics.TotalBytesProcessed
		what, _, _ := strings.Cut(strings.TrimPrefix(sql, "-- gpuledger: "), "\n")
		w.opt.Log.Info("a query of BigQuery", "table", t.table, "asks", what, "reads_bytes", n)
		if n > w.opt.MaxBytes {
			return nil, fmt.Errorf("%s: a query for %s would read %d bytes and max_bytes allows %d; allow more, or begin with a later month (from)", t.table, what, n, w.opt.MaxBytes)
		}
	}
	q.DryRun = false
	job, err := q.Run(ctx)
	if err != nil {
		return nil, explain(err, w.opt)
	}
	return job, nil
}
