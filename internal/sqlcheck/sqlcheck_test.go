package sqlcheck

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-googlesql"

	"gpuledger/billing/gcp"
)

func TestMain(m *testing.M) {
	if err := googlesql.Init(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// field is a column of BigQuery's schema.
type field struct {
	Name, Type, Mode string
	Fields           []field
}

const table = "p.d.export"

// analyzer knows one table and the parameters of the queries.
type analyzer struct {
	t       *testing.T
	catalog *googlesql.SimpleCatalog
	types   *googlesql.TypeFactory
	lang    *googlesql.LanguageOptions
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func newAnalyzer(t *testing.T, schema []field) *analyzer {
	a := &analyzer{t: t}
	a.catalog = must[*googlesql.SimpleCatalog](t)(googlesql.NewSimpleCatalog("bigquery", nil))
	a.types = must[*googlesql.TypeFactory](t)(googlesql.NewTypeFactory())
	a.lang = must[*googlesql.LanguageOptions](t)(googlesql.NewLanguageOptions())
	if err := a.lang.EnableMaximumLanguageFeatures(); err != nil {
		t.Fatal(err)
	}
	if err := a.lang.SetSupportsAllStatementKinds(); err != nil {
		t.Fatal(err)
	}
	if err := a.catalog.AddBuiltinFunctionsAndTypes(&googlesql.BuiltinFunctionOptions{LanguageOptions: a.lang}); err != nil {
		t.Fatal(err)
	}
	export := must[*googlesql.SimpleTable](t)(googlesql.NewSimpleTable(table, 0))
	for _, f := range append(schema, field{Name: "_PARTITIONTIME", Type: "TIMESTAMP"}) {
		column := must[*googlesql.SimpleColumn](t)(googlesql.NewSimpleColumn(table, f.Name, a.typeOf(f), f.Name == "_PARTITIONTIME", false))
		if err := export.AddColumn2(column, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.catalog.AddTable(export); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *analyzer) scalar(name string) googlesql.Googlesql_TypeNode {
	get := must[googlesql.Googlesql_TypeNode](a.t)
	switch name {
	case "STRING":
		return get(a.types.GetString())
	case "TIMESTAMP":
		return get(a.types.GetTimestamp())
	case "FLOAT":
		return get(a.types.GetDouble())
	case "NUMERIC":
		return get(a.types.GetNumeric())
	case "BOOLEAN":
		return get(a.types.GetBool())
	case "INTEGER":
		return get(a.types.GetInt64())
	}
	a.t.Fatalf("a column of type %s", name)
	return nil
}

func (a *analyzer) typeOf(f field) googlesql.Googlesql_TypeNode {
	get := must[googlesql.Googlesql_TypeNode](a.t)
	var out googlesql.Googlesql_TypeNode
	if f.Type == "RECORD" {
		var inner []*googlesql.StructField
		for _, x := range f.Fields {
			inner = append(inner, &googlesql.StructField{Name: x.Name, Type_: a.typeOf(x)})
		}
		if len(inner) == 0 { // an array of unknown records
			inner = []*googlesql.StructField{{Name: "x", Type_: a.scalar("STRING")}}
		}
		out = get(a.types.MakeStructType2(inner))
	} else {
		out = a.scalar(f.Type)
	}
	if f.Mode == "REPEATED" {
		out = get(a.types.MakeArrayType2(out))
	}
	return out
}

// check analyses one statement.
func (a *analyzer) check(sql string) error {
	opts := must[*googlesql.AnalyzerOptions](a.t)(googlesql.NewAnalyzerOptions2())
	if err := opts.SetLanguage(a.lang); err != nil {
		a.t.Fatal(err)
	}
	text := a.scalar("STRING")
	texts := must[googlesql.Googlesql_TypeNode](a.t)(a.types.MakeArrayType2(text))
	for name, kind := range map[string]googlesql.Googlesql_TypeNode{"month": text, "first": text, "months": texts, "services": texts, "since": a.scalar("TIMESTAMP")} {
		if err := opts.AddQueryParameter(name, kind); err != nil {
			a.t.Fatal(err)
		}
	}
	_, err := googlesql.AnalyzeStatement(sql, opts, a.catalog, a.types)
	return err
}

// shared is a file of the reference material beside a development checkout.
func shared(t *testing.T, rel string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "shared", filepath.FromSlash(rel)))
	if os.IsNotExist(err) {
		t.Skipf("not checked: ../shared/%s is absent", rel)
	}
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func flatten(out map[string]string, parent string, fields []field) map[string]string {
	for _, f := range fields {
		switch name := parent + f.Name; {
		case f.Mode == "REPEATED":
			out[name] = "REPEATED"
		case f.Type == "RECORD":
			flatten(out, name+".", f.Fields)
		default:
			out[name] = f.Type
		}
	}
	return out
}

func statements(t *testing.T, schema []field, focus bool) {
	a := newAnalyzer(t, schema)
	all := gcp.Statements(table, flatten(map[string]string{}, "", schema), focus)
	if len(all) < 4 {
		t.Fatalf("%d statements", len(all))
	}
	for what, sql := range all {
		if err := a.check(sql); err != nil {
			t.Errorf("%s: %v\n%s", what, err, sql)
		}
		// The analyzer is no yes-man.
		if err := a.check(strings.Replace(sql, "FROM `"+table+"`", ", no_such_column FROM `"+table+"`", 1)); err == nil {
			t.Errorf("%s: a column that is not there passes", what)
		}
	}
}

func TestDetailedExport(t *testing.T) {
	var schema []field
	if err := json.Unmarshal(shared(t, "samples/billing/gcp/gcp_billing_export_resource_v1.schema.json"), &schema); err != nil {
		t.Fatal(err)
	}
	statements(t, schema, false)
}

func TestFOCUSExport(t *testing.T) {
	var in struct{ Schema struct{ Fields []field } }
	if err := json.Unmarshal(shared(t, "samples/billing/focus/costroid/gcp-focus-bq/fixture/2026-06.json"), &in); err != nil {
		t.Fatal(err)
	}
	statements(t, in.Schema.Fields, true)
}
