// Package billingtest is test support for the readers of bills.
package billingtest

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/billing/period"
)

// Shared returns the path of a file of the reference material that lies beside a
// development checkout, and skips the test, saying what it leaves unchecked,
// where there is none.
func Shared(t testing.TB, rel, unchecked string) string {
	t.Helper()
	_, self, _, _ := runtime.Caller(0)
	root := filepath.Join(filepath.Dir(self), "..", "..", "..", "shared")
	p := filepath.Join(root, filepath.FromSlash(rel))
	if _, err := os.Stat(p); err != nil {
		t.Skipf("not checked: %s, because ../shared/%s is absent", unchecked, rel)
	}
	return p
}

// Deliveries returns the reader's deliveries and fails the test on an error.
func Deliveries(t testing.TB, r billing.Reader) []billing.Delivery {
	t.Helper()
	ds, err := r.Deliveries(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return ds
}

// ReadAll returns every line of a delivery, with its tags.
func ReadAll(t testing.TB, r billing.Reader, d billing.Delivery) []billing.Line {
	t.Helper()
	lines, err := Read(r, d)
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// Read returns the lines passed on before the first error, and the error.
func Read(r billing.Reader, d billing.Delivery) ([]billing.Line, error) {
	var out []billing.Line
	err := r.Read(context.Background(), d, func(*billing.Line) bool { return true }, func(l *billing.Line, _ bool) error {
		out = append(out, *l)
		return nil
	})
	return out, err
}

// Diff compares lines but for where they stood, and returns "" where they are
// equal.
func Diff(a, b []billing.Line) string {
	return cmp.Diff(a, b, cmpopts.EquateComparable(money.Amount{}, period.Month{}), cmpopts.IgnoreFields(billing.Line{}, "File", "Row"))
}

// Class returns the lines of one class.
func Class(lines []billing.Line, c billing.Class) []billing.Line {
	var out []billing.Line
	for _, l := range lines {
		if l.Class == c {
			out = append(out, l)
		}
	}
	return out
}
