// Package bqtest stands in for BigQuery in tests: an HTTP server with one table of a
// billing export, which answers the statements of billing/gcp by what they mean.
package bqtest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Field is a column in BigQuery's schema.
type Field struct {
	Name   string  `json:"name"`
	Type   string  `json:"type"`
	Mode   string  `json:"mode,omitempty"`
	Fields []Field `json:"fields,omitempty"`
}

// Row is a row as its JSON has it. Numbers are json.Number.
type Row map[string]any

// Server is the stand-in. Its fields may be changed between requests.
type Server struct {
	*httptest.Server
	Project, Dataset, Table string

	mu sync.Mutex
	// Schema are the table's columns; Partition the one that it is partitioned by, empty
	// for the time of ingestion, "none" for a table that is not.
	Schema    []Field
	Partition string
	Rows      []Row
	// Scanned is what a dry run says that a query reads, in bytes.
	Scanned int64
	// Fault answers in the server's place if it returns a status.
	Fault func(r *http.Request) (status int, reason, message string)
	// Page is how many rows an answer has at most.
	Page int

	jobs    map[string]*job
	Queries []string // of jobs that were run, in order
}

type job struct {
	fields []Field
	rows   [][]any
}

// New starts a server of the table project.dataset.table.
func New(t testing.TB, schema []Field, rows []Row) *Server {
	s := &Server{Project: "bills-prod", Dataset: "billing", Table: "gcp_billing_export_resource_v1_010101_F0FFF0_61C528", Schema: schema, Rows: rows, Scanned: 1 << 20, Page: 2, jobs: map[string]*job{}}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

// Name is project.dataset.table.
func (s *Server) Name() string { return s.Project + "." + s.Dataset + "." + s.Table }

// Change runs f while no request is served.
func (s *Server) Change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Fault != nil {
		if status, reason, message := s.Fault(r); status != 0 {
			refuse(w, status, reason, message)
			return
		}
	}
	path := strings.TrimPrefix(r.URL.Path, "/bigquery/v2/projects/")
	parts := strings.Split(path, "/")
	switch {
	case len(parts) == 5 && parts[1] == "datasets" && parts[3] == "tables":
		s.about(w, parts)
	case len(parts) == 2 && parts[1] == "jobs" && r.Method == http.MethodPost:
		s.insert(w, r)
	case len(parts) == 3 && parts[1] == "queries":
		s.results(w, r, parts[2])
	default:
		refuse(w, http.StatusNotFound, "notFound", "no such path: "+r.URL.Path)
	}
}

func refuse(w http.ResponseWriter, status int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{
		"code": status, "message": message, "errors": []any{map[string]any{"reason": reason, "message": message}},
	}})
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func (s *Server) about(w http.ResponseWriter, parts []string) {
	if parts[0] != s.Project || parts[2] != s.Dataset || parts[4] != s.Table {
		refuse(w, http.StatusNotFound, "notFound", "Not found: Table "+strings.Join([]string{parts[0], parts[2], parts[4]}, "."))
		return
	}
	table := map[string]any{
		"kind": "bigquery#table", "type": "TABLE", "location": "EU", "schema": map[string]any{"fields": s.Schema},
		"tableReference": map[string]any{"projectId": parts[0], "datasetId": parts[2], "tableId": parts[4]},
	}
	switch s.Partition {
	case "none":
	case "":
		table["timePartitioning"] = map[string]any{"type": "DAY"}
	default:
		table["timePartitioning"] = map[string]any{"type": "DAY", "field": s.Partition}
	}
	answer(w, table)
}

func (s *Server) insert(w http.ResponseWriter, r *http.Request) {
	var in struct {
		JobReference  map[string]any `json:"jobReference"`
		Configuration struct {
			DryRun bool `json:"dryRun"`
			Query  struct {
				Query           string `json:"query"`
				QueryParameters []struct {
					Name  string `json:"name"`
					Value struct {
						Value       string                   `json:"value"`
						ArrayValues []struct{ Value string } `json:"arrayValues"`
					} `json:"parameterValue"`
				} `json:"queryParameters"`
			} `json:"query"`
		} `json:"configuration"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		refuse(w, http.StatusBadRequest, "invalid", err.Error())
		return
	}
	params := map[string][]string{}
	for _, p := range in.Configuration.Query.QueryParameters {
		for _, v := range p.Value.ArrayValues {
			params[p.Name] = append(params[p.Name], v.Value)
		}
		if p.Value.Value != "" {
			params[p.Name] = []string{p.Value.Value}
		}
	}
	one, err := s.run(in.Configuration.Query.Query, params)
	if err != nil {
		refuse(w, http.StatusBadRequest, "invalidQuery", err.Error())
		return
	}
	id := fmt.Sprintf("job%d", len(s.jobs)+1)
	out := map[string]any{
		"jobReference":  map[string]any{"projectId": s.Project, "jobId": id, "location": "EU"},
		"configuration": map[string]any{"jobType": "QUERY", "dryRun": in.Configuration.DryRun, "query": map[string]any{"query": in.Configuration.Query.Query}},
		"status":        map[string]any{"state": "DONE"},
		"statistics":    map[string]any{"totalBytesProcessed": strconv.FormatInt(s.Scanned, 10), "query": map[string]any{"totalBytesProcessed": strconv.FormatInt(s.Scanned, 10), "statementType": "SELECT"}},
	}
	if !in.Configuration.DryRun {
		s.jobs[id] = one
		s.Queries = append(s.Queries, in.Configuration.Query.Query)
	}
	answer(w, out)
}

func (s *Server) results(w http.ResponseWriter, r *http.Request, id string) {
	one := s.jobs[id]
	if one == nil {
		refuse(w, http.StatusNotFound, "notFound", "Not found: Job "+id)
		return
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("pageToken"))
	if start := r.URL.Query().Get("startIndex"); start != "" {
		from, _ = strconv.Atoi(start)
	}
	to := min(len(one.rows), from+s.Page)
	if r.URL.Query().Get("maxResults") == "0" {
		to = from
	}
	out := map[string]any{
		"jobReference": map[string]any{"projectId": s.Project, "jobId": id, "location": "EU"},
		"jobComplete":  true, "totalRows": strconv.Itoa(len(one.rows)), "schema": map[string]any{"fields": one.fields},
	}
	var rows []any
	for _, row := range one.rows[from:to] {
		var cells []any
		for _, v := range row {
			cells = append(cells, map[string]any{"v": v})
		}
		rows = append(rows, map[string]any{"f": cells})
	}
	out["rows"] = rows
	if to < len(one.rows) && to > from {
		out["pageToken"] = strconv.Itoa(to)
	}
	answer(w, out)
}

// micros is a TIMESTAMP of an answer.
func micros(t time.Time) string { return strconv.FormatInt(t.UnixMicro(), 10) }
