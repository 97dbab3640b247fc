package arch

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

const (
	module   = "gpuledger"
	anything = "*"
)

func TestArchitecture(t *testing.T) {
	root := os.DirFS("../..")
	for _, fault := range check(root) {
		t.Error(fault)
	}
}

// file is what counts of one Go file.
type file struct {
	name    string
	pkg     string // folder below the module's root, or "gpuledger" for the root
	test    bool
	doc     bool
	imports []string // ours without the module's path, the root's as "gpuledger"
	calls   []string // package.Function as written
}

// check returns what breaks the table, in the order of the files.
func check(root fs.FS) []string {
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }

	files, err := load(root, fault)
	if err != nil {
		return []string{err.Error()}
	}
	documented := map[string]bool{}
	for _, f := range files {
		documented[f.pkg] = documented[f.pkg] || f.doc
	}
	seen := map[string]bool{}
	for _, f := range files {
		_, known := edges[f.pkg]
		if !seen[f.pkg] {
			seen[f.pkg] = true
			if slices.Contains(vague, path.Base(f.pkg)) {
				fault("%s: a package of that name collects what has no place; name what it is about", f.pkg)
			} else if !known {
				fault("%s: a new package; say in internal/arch/table_test.go what it may import", f.pkg)
			}
			if !documented[f.pkg] {
				fault("%s: no file has a package comment", f.pkg)
			}
		}
		if f.test || !known {
			continue
		}
		for _, imp := range f.imports {
			if why := refused(f.pkg, imp); why != "" {
				fault("%s: %s imports %s: %s", f.name, f.pkg, imp, why)
			}
		}
		if slices.Contains(pure, f.pkg) {
			for _, call := range f.calls {
				if slices.Contains(impureCalls, call) {
					fault("%s: %s only calculates, so no %s: pass it in", f.name, f.pkg, call)
				}
			}
		}
	}
	return faults
}

// refused says why pkg may not import imp, or nothing.
func refused(pkg, imp string) string {
	if _, ours := edges[imp]; ours || imp == module {
		switch allowed := edges[pkg]; {
		case slices.Contains(testSupport, imp) && !slices.Contains(testSupport, pkg):
			return "it is for test files"
		case strings.HasPrefix(imp, "cmd/"):
			return "a command is imported by nobody"
		case !slices.Contains(allowed, imp) && !slices.Contains(allowed, anything):
			return "the table allows " + list(allowed)
		}
		return ""
	}
	if first, _, _ := strings.Cut(imp, "/"); !strings.Contains(first, ".") {
		if slices.Contains(pure, pkg) && slices.Contains(impureImports, imp) {
			return "this package only calculates"
		}
		return ""
	}
	longest := ""
	for prefix := range modules {
		if (imp == prefix || strings.HasPrefix(imp, prefix+"/")) && len(prefix) > len(longest) {
			longest = prefix
		}
	}
	switch {
	case longest == "":
		return "a new module; say in internal/arch/table_test.go who may use it"
	case !slices.Contains(modules[longest], pkg):
		return "only in " + list(modules[longest])
	}
	return ""
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// load reads the Go files, of every platform, and checks what concerns files alone.
// Reading them here, and not through `go list`, also lets go's test cache see what
// the result depends on.
func load(root fs.FS, fault func(string, ...any)) ([]file, error) {
	var files []file
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() {
			if name == "." {
				return nil
			}
			if base == "testdata" || base == "bin" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
				return fs.SkipDir
			}
			if _, err := fs.Stat(root, path.Join(name, "go.mod")); err == nil {
				return fs.SkipDir // a module of its own
			}
			return nil
		}
		top, _, _ := strings.Cut(name, "/")
		if (top == "migrations" || top == "sql") && path.Ext(name) != ".sql" {
			fault("%s: this folder holds only SQL", name)
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		f, err := parse(name, text)
		if err != nil {
			return err
		}
		if lines := bytes.Count(text, []byte("\n")); !f.test && lines > maxLines {
			fault("%s: %d lines, more than %d", name, lines, maxLines)
		}
		files = append(files, f)
		return nil
	})
	return files, err
}

func parse(name string, text []byte) (file, error) {
	f := file{name: name, pkg: path.Dir(name), test: strings.HasSuffix(name, "_test.go")}
	if f.pkg == "." {
		f.pkg = module
	}
	tree, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments)
	if err != nil {
		return f, err
	}
	f.doc = !f.test && tree.Doc != nil && strings.TrimSpace(tree.Doc.Text()) != ""
	packages := map[string]string{} // local name → import path
	for _, spec := range tree.Imports {
		imp, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return f, err
		}
		local := path.Base(imp)
		if spec.Name != nil {
			local = spec.Name.Name
		}
		packages[local] = imp
		f.imports = append(f.imports, strings.TrimPrefix(imp, module+"/"))
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && packages[x.Name] != "" {
				f.calls = append(f.calls, packages[x.Name]+"."+sel.Sel.Name)
			}
		}
		return true
	})
	return f, nil
}

// TestTable checks the table itself: an edge to nowhere, or a cycle, would allow
// what it should forbid.
func TestTable(t *testing.T) {
	level := map[string]int{}
	var visit func(pkg string, way []string) int
	visit = func(pkg string, way []string) int {
		if slices.Contains(way, pkg) {
			t.Fatalf("a cycle: %s", strings.Join(append(way, pkg), " → "))
		}
		if l, ok := level[pkg]; ok {
			return l
		}
		l := 0
		for _, imp := range edges[pkg] {
			if imp == anything {
				continue
			}
			if _, ok := edges[imp]; !ok {
				t.Errorf("%s may import %s, which is not in the table", pkg, imp)
			}
			l = max(l, 1+visit(imp, append(way, pkg)))
		}
		level[pkg] = l
		return l
	}
	for pkg := range edges {
		visit(pkg, nil)
	}
	for _, pkg := range append(slices.Clone(pure), testSupport...) {
		if _, ok := edges[pkg]; !ok {
			t.Errorf("%s is not in the table", pkg)
		}
	}
	for prefix, users := range modules {
		for _, pkg := range users {
			if _, ok := edges[pkg]; !ok {
				t.Errorf("%s may be used by %s, which is not in the table", prefix, pkg)
			}
		}
	}
}

// TestCheckFinds breaks each rule once.
func TestCheckFinds(t *testing.T) {
	good := map[string]string{
		"doc.go":                "// Package gpuledger is it.\npackage gpuledger\n",
		"gpu/gpu.go":            "// Package gpu is it.\npackage gpu\nimport _ \"gpuledger/billing/period\"\n",
		"gpu/gpu_test.go":       "package gpu\nimport _ \"gpuledger/internal/promtest\"\nimport _ \"github.com/spf13/cobra\"\n",
		"billing/period/p.go":   "// Package period is it.\npackage period\nimport \"time\"\nvar _ = time.Hour\n",
		"cmd/gpuledger/main.go": "// Command gpuledger is it.\npackage main\nimport _ \"gpuledger/gpu\"\nimport _ \"github.com/spf13/cobra\"\n",
		"migrations/1.sql":      "SELECT 1;\n",
		"testdata/x/x.go":       "not Go",
		"other/go.mod":          "module other\n",
		"other/util/x.go":       "package util\n",
		"internal/promtest/p.go": "// Package promtest is it.\npackage promtest\nimport _ \"gpuledger/gpu\"\n" +
			"import _ \"github.com/prometheus/prometheus/tsdb\"\n",
	}
	tests := []struct{ name, file, text, want string }{
		{"nothing wrong", "billing/period/q.go", "package period\n", ""},
		{
			"an edge downwards", "gpu/x.go", "package gpu\nimport _ \"gpuledger/warehouse\"\n",
			"gpu/x.go: gpu imports warehouse: the table allows billing/money, billing/period",
		},
		{"an edge on another platform", "gpu/x_plan9.go", "//go:build plan9\n\npackage gpu\nimport _ \"gpuledger/ingest\"\n", "gpu imports ingest"},
		{"the root", "gpu/x.go", "package gpu\nimport _ \"gpuledger\"\n", "gpu imports gpuledger: the table allows"},
		{"a command", "gpu/x.go", "package gpu\nimport _ \"gpuledger/cmd/gpuledger\"\n", "imported by nobody"},
		{"a client in a second place", "gpu/x.go", "package gpu\nimport _ \"github.com/aws/aws-sdk-go-v2/service/s3\"\n", "only in objstore"},
		{
			"the storage engine in a program", "ingest/prometheus/x.go", "// Package prometheus is it.\npackage prometheus\nimport _ \"github.com/prometheus/prometheus/tsdb\"\n",
			"only in internal/promtest",
		},
		{
			"a package beside the allowed one", "ingest/prometheus/x.go", "// Package prometheus is it.\npackage prometheus\nimport _ \"github.com/prometheus/prometheus/tsdb/chunkenc2\"\n",
			"only in internal/promtest",
		},
		{"an unknown module", "gpu/x.go", "package gpu\nimport _ \"example.com/left-pad\"\n", "a new module"},
		{"test support in a program", "cmd/gpuledger/x.go", "package main\nimport _ \"gpuledger/internal/promtest\"\n", "it is for test files"},
		{"a clock", "gpu/x.go", "package gpu\nimport clock \"time\"\nvar now = clock.Now()\n", "so no time.Now"},
		{"a network", "gpu/x.go", "package gpu\nimport _ \"net/http\"\n", "this package only calculates"},
		{"a vague name", "billing/helpers/x.go", "// Package helpers helps.\npackage helpers\n", "collects what has no place"},
		{"a package without a line", "billing/oracle/x.go", "// Package oracle is it.\npackage oracle\n", "a new package"},
		{"a package without a comment", "objstore/x.go", "package objstore\n", "no file has a package comment"},
		{"a long file", "gpu/x.go", "package gpu\n" + strings.Repeat("//\n", maxLines), "501 lines, more than 500"},
		{"a stray file", "sql/views/notes.md", "x\n", "holds only SQL"},
		{"a broken file", "gpu/x.go", "packag gpu\n", "gpu/x.go:1:1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tree := fstest.MapFS{tt.file: {Data: []byte(tt.text)}}
			for name, text := range good {
				tree[name] = &fstest.MapFile{Data: []byte(text)}
			}
			got := check(tree)
			switch {
			case tt.want == "" && len(got) != 0:
				t.Errorf("got %q, want nothing", got)
			case tt.want != "" && (len(got) != 1 || !strings.Contains(got[0], tt.want)):
				t.Errorf("got %q, want one with %q", got, tt.want)
			}
		})
	}
}
