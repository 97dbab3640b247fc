package openmetrics

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"pgregory.net/rapid"

	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/ingest"
)

var ever = period.Span{Start: time.Unix(0, 0), End: time.Unix(1<<36, 0)}

func write(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func gz(t testing.TB, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write([]byte(text))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func zst(t testing.TB, text string) string {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(w.EncodeAll([]byte(text), nil))
}

func read(t testing.TB, span period.Span, metrics []string, paths ...string) ([]gpu.Series, *Source, error) {
	t.Helper()
	s, err := New(Config{Paths: paths})
	if err != nil {
		t.Fatal(err)
	}
	var out []gpu.Series
	err = s.Select(context.Background(), ingest.Selector{Metrics: metrics}, span, func(x gpu.Series) error {
		out = append(out, x)
		return nil
	})
	return out, s, err
}

func TestFormats(t *testing.T) {
	want := []gpu.Series{
		{Metric: "m", Labels: map[string]string{"a": "x", "b": "q\"\\\n\\t ü}"}, Samples: []gpu.Sample{{UnixMilli: 1727740800123, Value: 1.5}, {UnixMilli: 1727740815000, Value: math.Inf(1)}}},
		{Metric: "m", Labels: map[string]string{}, Samples: []gpu.Sample{{UnixMilli: 1727740800000, Value: 7}}},
		{Metric: "my.metric", Labels: map[string]string{"a.b": "c"}, Samples: []gpu.Sample{{UnixMilli: 1727740800000, Value: 9}}},
	}
	seconds := "# TYPE m unknown\n# HELP m Text.\n# UNIT m \n" +
		`m{a="x",b="q\"\\\n\t ü}"} 1.5 1727740800.123` + "\n" +
		`m{a="x",b="q\"\\\n\t ü}"} +Inf 1.727740815e+09 # {trace_id="}"} 0.67 1727740815` + "\n" +
		`m 7 1727740800` + "\n" +
		`other{x="y"} NaN 1727740800` + "\n" +
		`{"my.metric","a.b"="c",e=""} 9 1727740800.0004` + "\n# EOF\n"
	millis := "\xef\xbb\xbf# a comment\r\n\r\n" +
		`m { a = "x" , b="q\"\\\n\t ü}", }  1.5	1727740800123` + "\r\n" +
		`m{b="q\"\\\n\t ü}",a="x",c=""} Inf 1727740815000` + "\n" +
		`m {} 7e0 1727740800000` + "\n" +
		`m{a="x"} nan 1727740800000` + "\n" +
		`{"my.metric","a.b"="c"} 9 1727740800000` + "\n"
	for name, text := range map[string]string{
		"m.om": seconds, "m.om.gz": gz(t, seconds), "m.prom": millis, "zipped.txt": gz(t, millis), "m.om.zst": zst(t, seconds),
		"noend.om": strings.TrimSuffix(seconds, "\n"),
	} {
		got, s, err := read(t, ever, []string{"m", "my.metric", "absent", "m"}, write(t, name, text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		desc, err := s.Describe(context.Background())
		if err != nil || desc.Oldest.UnixMilli() != 1727740800000 || desc.Newest.UnixMilli() != 1727740815000 {
			t.Errorf("%s: %+v %v", name, desc, err)
		}
	}
}

func TestErrorsNameFileAndLine(t *testing.T) {
	long := gz(t, strings.Repeat("m 1 1727740800000\n", 50000))
	for text, want := range map[string]string{
		"m 1 1727740800\nm 2\n# EOF\n":             "line 2: a sample without a timestamp: give every sample a timestamp, e.g. with promtool tsdb dump-openmetrics",
		"m 1 # {a=\"b\"} 1 2\n# EOF\n":             "line 1: a sample without a timestamp",
		"other 1\n":                                "line 1: a sample without a timestamp",
		"m 1 1727740800\n":                         "line 2: the file is cut short: no \"# EOF\"",
		"m 1 1727740800000\nm 1 17277408":          "line 2: the file is cut short",
		"m 1 1727740800\nm 1 1727740800000\n":      "line 2: the file mixes timestamps",
		"# EOF\nm 1 1727740800\n":                  "line 2: text after",
		"m{a=\"b} 1 1727740800\n# EOF\n":           "line 1: labels without a closing brace",
		"m{a=\"b\" c=\"d\"} 1 1727740800\n":        "line 1: a comma is missing",
		"m{a=b} 1 1727740800\n":                    "line 1: the value of label a is not in quotes",
		"m{a=\"b\",a=\"c\"} 1 1727740800\n":        "line 1: label \"a\" twice",
		"m{a=\"\xff\"} 1 1727740800\n":             "line 1: label a: \"\\xff\" is not UTF-8",
		"m{1a=\"\"} 1 1727740800\n":                "line 1: \"1a\" is not a label name",
		"{a=\"b\"} 1 1727740800\n":                 "line 1: labels without a metric name",
		"1m 1 1727740800\n":                        "line 1: \"1m\" is not a metric name",
		"m 0x1p3 1727740800\n":                     "line 1: \"0x1p3\" is not a number",
		"m 1_0 1727740800\n":                       "line 1: \"1_0\" is not a number",
		"m 1 yesterday\n":                          "line 1: \"yesterday\" is not a timestamp",
		"m 1 1e300\n":                              "line 1: \"1e300\" is not a timestamp",
		"m 1 1727740800 2\n":                       "line 1: \"2\" after the timestamp",
		"m\n":                                      "line 1: a name without a value",
		"m " + strings.Repeat("1", maxLine) + "\n": "line 1: longer than",
		long[:len(long)/2]:                         "cut short",
		long[:len(long)-4]:                         "cut short",
	} {
		path := write(t, "bad.om", text)
		got, _, err := read(t, ever, []string{"m"}, path)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%.40q: got %v, want %q", text, err, want)
		}
		if len(got) > 0 {
			t.Errorf("%.40q: half-loaded", text)
		}
	}
	for path, want := range map[string]string{
		"/nowhere/*.om":                          "no file matches /nowhere/*.om",
		t.TempDir():                              "is a folder",
		write(t, "x.gz", "m 1 1727740800000\n"):  "it is not gzip",
		write(t, "x.zst", "m 1 1727740800000\n"): "it is not zstd",
		write(t, "cut.zst", zst(t, long)[:60]):   "cut short",
	} {
		if _, _, err := read(t, ever, []string{"m"}, path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
	}
}

// TestMerge reads a series in pieces: over files, out of order, with repeats.
func TestMerge(t *testing.T) {
	dir := t.TempDir()
	var want []gpu.Sample
	texts := make([]strings.Builder, 3)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 5000 {
		x := gpu.Sample{UnixMilli: 1727740800000 + int64(i)*15000 + rng.Int64N(50), Value: math.Floor(rng.Float64()*1e6) / 8}
		want = append(want, x)
	}
	shuffled := slices.Clone(want)
	rng.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	for i, x := range shuffled {
		for range 1 + i%2 {
			fmt.Fprintf(&texts[rng.IntN(3)], "m{a=\"1\"} %v %d\n", x.Value, x.UnixMilli)
		}
	}
	fmt.Fprintf(&texts[2], "m{a=\"1\"} -1 %d\nm{a=\"1\"} NaN %d\n", want[17].UnixMilli, want[18].UnixMilli)
	for i := range texts {
		// The names' order is the files' order: the disagreeing sample is last.
		os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.prom", i)), []byte(texts[i].String()), 0o644)
	}
	got, s, err := read(t, ever, []string{"m"}, filepath.Join(dir, "*.prom"), filepath.Join(dir, "1.prom"))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]gpu.Series{{Metric: "m", Labels: map[string]string{"a": "1"}, Samples: want}}, got); d != "" {
		t.Error(d)
	}
	if s.Conflicts() != 1 {
		t.Errorf("%d conflicts, want 1", s.Conflicts())
	}
	for range 200 {
		from, to := rng.IntN(5000), rng.IntN(5000)
		span := period.Span{Start: time.UnixMilli(want[from].UnixMilli), End: time.UnixMilli(want[to].UnixMilli)}
		var part []gpu.Sample
		s.Select(context.Background(), ingest.Selector{Metrics: []string{"m"}}, span, func(x gpu.Series) error {
			part = x.Samples
			return nil
		})
		if from >= to {
			from = to
		}
		if !slices.Equal(part, want[from:to]) {
			t.Fatalf("[%d,%d): got %d samples", from, to, len(part))
		}
	}
}

func TestSelectMatchesAndStops(t *testing.T) {
	path := write(t, "m.prom", "m{a=\"1\"} 1 1727740800000\nm{a=\"2\",b=\"\"} 2 1727740800000\nm{b=\"3\"} 3 1727740800000\n")
	s, err := New(Config{Paths: []string{path}, Metrics: []string{"m"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	for _, c := range []struct {
		equal map[string]string
		want  []float64
	}{
		{nil, []float64{1, 2, 3}},
		{map[string]string{"a": "2"}, []float64{2}},
		{map[string]string{"b": ""}, []float64{1, 2}},
		{map[string]string{"a": "1", "b": "3"}, nil},
	} {
		var got []float64
		err := s.Select(ctx, ingest.Selector{Metrics: []string{"m"}, Equal: c.equal}, ever, func(x gpu.Series) error {
			got = append(got, x.Samples[0].Value)
			x.Labels["a"], x.Samples[0].Value = "mine", -1 // the series is the callback's to keep
			return nil
		})
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%v: got %v %v, want %v", c.equal, got, err, c.want)
		}
	}
	stop := errors.New("enough")
	if err := s.Select(ctx, ingest.Selector{Metrics: []string{"m"}}, ever, func(gpu.Series) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
	// A further metric needs a further pass, and the file must be the same then.
	os.WriteFile(path, []byte("n 1 1727740800000\n"), 0o644)
	if err := s.Select(ctx, ingest.Selector{Metrics: []string{"n"}}, ever, nil); err == nil || !strings.Contains(err.Error(), "has changed") {
		t.Errorf("got %v", err)
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if err := s.Select(canceled, ingest.Selector{Metrics: []string{"m"}}, ever, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestLikePrometheus compares with Prometheus' own parser of the format.
func TestLikePrometheus(t *testing.T) {
	text := `# HELP fb Used.
# TYPE fb gauge
fb{gpu="0",UUID="GPU-1",modelName="NVIDIA A100 \"x\"\\y\nz"} 12345 1727740800
fb{gpu="0",UUID="GPU-1",modelName=""} -0.25 1727740800.5
fb{gpu="0"} 1e-300 1727740830.999
# TYPE ecc counter
ecc_total{gpu="0"} 17 1727740830 # {trace_id="a}b"} 1 1727740829
ecc_created{gpu="0"} 1727740000 1727740830
# TYPE up unknown
up +Inf 1.72774083e+09
{"a.b","c.d"="e"} 18446744073709551615 1727740800
# EOF
`
	p := textparse.NewOpenMetricsParser([]byte(text), labels.NewSymbolTable())
	var want []string
	for {
		entry, err := p.Next()
		if err != nil {
			break
		}
		if entry != textparse.EntrySeries {
			continue
		}
		_, ts, v := p.Series()
		var l labels.Labels
		p.Labels(&l)
		want = append(want, fmt.Sprint(l.WithoutEmpty(), *ts, v))
	}
	got, _, err := read(t, ever, []string{"fb", "ecc_total", "ecc_created", "up", "a.b"}, write(t, "m.om", text))
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, s := range got {
		l := labels.NewBuilder(labels.FromMap(s.Labels)).Set("__name__", s.Metric).Labels()
		for _, x := range s.Samples {
			have = append(have, fmt.Sprint(l, x.UnixMilli, x.Value))
		}
	}
	slices.Sort(want)
	slices.Sort(have)
	if len(want) != 7 {
		t.Fatalf("the oracle read %d samples", len(want))
	}
	if d := cmp.Diff(want, have); d != "" {
		t.Error(d)
	}
}

func TestWriteReadsBack(t *testing.T) {
	want := odd()
	var b bytes.Buffer
	if err := Write(&b, want); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.String(), "# TYPE"); n != 3 {
		t.Errorf("%d TYPE lines, want one a metric", n)
	}
	got, _, err := read(t, ever, []string{"fb", "fb2", "a b"}, write(t, "m.om", b.String()))
	if err != nil {
		t.Fatal(err)
	}
	sortSeries(want)
	sortSeries(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for _, s := range []gpu.Series{
		{Metric: ""},
		{Metric: "m", Labels: map[string]string{"a": "\xff"}},
		{Metric: "m", Samples: []gpu.Sample{{UnixMilli: -1}}},
	} {
		if err := Write(&b, []gpu.Series{s}); err == nil {
			t.Errorf("%v was written", s)
		}
	}
}

func odd() []gpu.Series {
	return []gpu.Series{
		{Metric: "fb2", Labels: map[string]string{}, Samples: []gpu.Sample{{UnixMilli: 1, Value: 1}, {UnixMilli: 1727740800001, Value: math.MaxFloat64}}},
		{Metric: "fb", Labels: map[string]string{"q": `a"b\c` + "\nd\\n", "u": "日本 ü", "z": " , } # { = "}, Samples: []gpu.Sample{{UnixMilli: 1727740800999, Value: 5e-324}}},
		{Metric: "a b", Labels: map[string]string{"c:d": "e", "f.g": "h"}, Samples: []gpu.Sample{{UnixMilli: 1727740800000, Value: math.Inf(-1)}, {UnixMilli: 1727740800010, Value: math.Copysign(0, -1)}}},
		{Metric: "fb", Labels: map[string]string{"q": "other"}, Samples: []gpu.Sample{{UnixMilli: 1727740800100, Value: 0.1}}},
	}
}

func sortSeries(all []gpu.Series) {
	slices.SortFunc(all, func(a, b gpu.Series) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
}

// FuzzParse: no text panics, and what is read survives writing and reading.
func FuzzParse(f *testing.F) {
	f.Add([]byte("m{a=\"x\",b=\"q\\\"\\\\\\n\"} 1.5 1727740800.123 # {t=\"}\"} 1\n# EOF\n"))
	f.Add([]byte("m { a = \"x\" , }  1.5\t1727740800123\r\nm{a=\"x\"} 2 5e9\n"))
	f.Add([]byte("{\"m\",\"a.b\"=\"c\"} 9 1727740800\nm 1 -5\n# EOF"))
	var b bytes.Buffer
	Write(&b, odd())
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, text []byte) {
		wanted := map[string]bool{"m": true, "fb": true, "a b": true}
		alive := func() error { return nil }
		first := newFileParser(wanted)
		if first.read(bytes.NewReader(text), alive) != nil {
			return
		}
		all := decodeAll(first)
		var out bytes.Buffer
		if err := Write(&out, all); err != nil {
			for _, s := range all {
				if len(s.Samples) > 0 && (s.Samples[0].UnixMilli < 0 || s.Samples[len(s.Samples)-1].UnixMilli >= 1000*millisFrom) {
					return // times that only a text can hold
				}
			}
			t.Fatal(err)
		}
		second := newFileParser(wanted)
		if err := second.read(&out, alive); err != nil {
			t.Fatalf("%v in %q", err, out.String())
		}
		again := decodeAll(second)
		sortSeries(all)
		sortSeries(again)
		if d := cmp.Diff(all, again); d != "" {
			t.Fatal(d)
		}
	})
}

func decodeAll(p *fileParser) []gpu.Series {
	var out []gpu.Series
	for _, s := range p.list {
		if len(s.blocks) > 0 {
			s.order()
			out = append(out, gpu.Series{Metric: s.metric, Labels: s.labels, Samples: s.between(math.MinInt64, math.MaxInt64)})
		}
	}
	return out
}

// TestPlainSample holds the short way of reading a value and a time to the whole one.
func TestPlainSample(t *testing.T) {
	number := rapid.StringMatching(`[+-]?[0-9]{0,20}(\.[0-9]{0,5})?(e[0-9])?`)
	plain, whole := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		text := []byte(" " + rapid.OneOf(rapid.StringMatching(`[0-9]{1,17}`), number).Draw(t, "value") +
			" " + rapid.OneOf(rapid.StringMatching(`[0-9]{9,16}(\.[0-9]{3})?`), number).Draw(t, "time") +
			rapid.SampledFrom([]string{"", "", "", " ", "x", " # {} 1"}).Draw(t, "end"))
		value, milli, isSeconds, ok := plainSample(text)
		if !ok {
			whole++
			return
		}
		plain++
		v, m, s, err := parseSample(text)
		if err != nil || v != value || m != milli || s != isSeconds {
			t.Fatalf("%q: %v %v %v in the short way, %v %v %v %v in the whole", text, value, milli, isSeconds, v, m, s, err)
		}
	})
	if plain == 0 || whole == 0 {
		t.Fatalf("%d lines read the short way, %d not: both are to be tried", plain, whole)
	}
}
