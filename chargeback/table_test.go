package chargeback

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func sample() *Table {
	t := NewTable("team", "cost#")
	t.Add("search, \"A\"\nB", "0.123456789012345678901234567890")
	t.Rows = append(t.Rows, []Cell{{}, Text("-12")})
	return t
}

func TestFormats(t *testing.T) {
	var b bytes.Buffer
	if err := sample().Write(&b, "csv"); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&b).ReadAll()
	if err != nil || len(rows) != 3 || rows[1][0] != "search, \"A\"\nB" || rows[1][1] != "0.123456789012345678901234567890" || rows[2][0] != "" {
		t.Errorf("%v %q", err, rows)
	}
	b.Reset()
	if err := sample().Write(&b, "json"); err != nil {
		t.Fatal(err)
	}
	var out []map[string]json.RawMessage
	if err := json.Unmarshal(b.Bytes(), &out); err != nil {
		t.Fatalf("%v\n%s", err, b.String())
	}
	if string(out[0]["cost"]) != "0.123456789012345678901234567890" || string(out[1]["team"]) != "null" {
		t.Errorf("%s", b.String())
	}
	b.Reset()
	nested := &Table{Columns: []Column{{Name: "labels", JSON: true}}, Rows: [][]Cell{{Text(`{"app": "a"}`)}, {{}}}}
	if err := nested.Write(&b, "json"); err != nil || !strings.Contains(b.String(), `{"labels": {"app": "a"}}`) || !strings.Contains(b.String(), `{"labels": null}`) {
		t.Errorf("%v %s", err, b.String())
	}
	b.Reset()
	if err := sample().Write(&b, "table"); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n"); len(lines) != 3 || len([]rune(lines[1])) != len([]rune(lines[2])) {
		t.Errorf("a line a row, numbers flush right:\n%s", b.String())
	}
}

func TestWriteFileIsWholeOrNotAtAll(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out.csv")
	if err := WriteFile(path, sample().WriteCSV); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	boom := errors.New("disk full")
	if err := WriteFile(path, func(w io.Writer) error { _, _ = io.WriteString(w, "half"); return boom }); !errors.Is(err, boom) {
		t.Error(err)
	}
	after, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("%v %q", err, after)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%v left behind", left)
	}
}

func TestExportQuery(t *testing.T) {
	for by, view := range map[string]string{"team,ai_model": "chargeback_month", "team,day": "chargeback_day", "pod": "finance.allocation", "pod,day": "finance.allocation"} {
		q, err := ExportQuery(strings.Split(by, ","))
		if err != nil || !strings.Contains(q, view) {
			t.Errorf("%s: %v\n%s", by, err, q)
		}
	}
	for _, by := range []string{"", "colour", "team; DROP TABLE x"} {
		if _, err := ExportQuery(strings.Split(by, ",")); err == nil {
			t.Errorf("%q accepted", by)
		}
	}
}
