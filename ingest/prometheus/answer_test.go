package prometheus_test

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"gpuledger/gpu"
	"gpuledger/ingest"
	"gpuledger/ingest/prometheus"
)

func decode(text string) ([]gpu.Series, []string, error) {
	return prometheus.DecodeMatrix(strings.NewReader(text), math.MinInt64, math.MaxInt64)
}

func samples(pairs ...any) []gpu.Sample {
	var out []gpu.Sample
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, gpu.Sample{UnixMilli: int64(pairs[i].(int)), Value: pairs[i+1].(float64)})
	}
	return out
}

func TestDecodeMatrix(t *testing.T) {
	inf := math.Inf(1)
	negZero := math.Copysign(0, -1)
	points := func(text string) string {
		return `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"__name__":"m"},"values":` + text + `}]}}`
	}
	m := func(pairs ...any) []gpu.Series {
		return []gpu.Series{{Metric: "m", Labels: map[string]string{}, Samples: samples(pairs...)}}
	}
	for _, c := range []struct {
		name, text string
		want       []gpu.Series
		warnings   []string
	}{
		{
			"decimals", points(`[[1,"1"],[1.5,"1.5"],[1.25,"-2.25"],[1.125,"0.1"],[1700000000.001,"1e+06"]]`),
			m(1000, 1.0, 1125, 0.1, 1250, -2.25, 1500, 1.5, 1700000000001, 1e6), nil,
		},
		// As floats these would round to the millisecond beside.
		{
			"times are exact", points(`[[9007199254.993,"1"],[9007199254.999,"2"],[99999999999.999,"3"],[123456789012.345,"4"]]`),
			m(9007199254993, 1.0, 9007199254999, 2.0, 99999999999999, 3.0, 123456789012345, 4.0), nil,
		},
		{
			"odd times", points(`[[-1.5,"1"],[-0,"2"],[0.001,"3"],[1.6e3,"4"],[1700000000.1239,"5"],[1700000001.1000,"6"]]`),
			m(-1500, 1.0, 0, 2.0, 1, 3.0, 1600000, 4.0, 1700000000123, 5.0, 1700000001100, 6.0), nil,
		},
		{
			"values", points(`[[1,"NaN"],[2,"+Inf"],[3,"-Inf"],[4,"5e-324"],[5,"1.7976931348623157e+308"],[6,"9007199254740993"],[7,"123456789012345678901234567890"],[8,"0.30000000000000004"],[9,"-0"],[10,"nan"],[11,"\u0031"]]`),
			m(2000, inf, 3000, -inf, 4000, 5e-324, 5000, math.MaxFloat64, 6000, 9007199254740992.0, 7000, 123456789012345678901234567890.0, 8000, 0.30000000000000004, 9000, negZero, 11000, 1.0), nil,
		},
		{
			"white space", " {\n\"status\" : \"success\" ,\t\"data\" : { \"resultType\" : \"matrix\" , \"result\" : [ { \"metric\" : { \"__name__\" : \"m\" } , \"values\" : [ [ 1 , \"2\" ] , [3,\"4\"] ] } ] } } \r\n",
			m(1000, 2.0, 3000, 4.0), nil,
		},
		{
			"any order", `{"warnings":["w1","w2"],"infos":["i"],"data":{"result":[{"histograms":[[1,{"count":"2","buckets":[[0,"1","2","3"]]}]],"values":[[1,"2"]],"metric":{"__name__":"m"}}],"stats":{"a":[true,false,null,-1.5e-3]},"resultType":"matrix"},"status":"success"}`,
			m(1000, 2.0),
			[]string{"w1", "w2"},
		},
		{"only histograms", `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"__name__":"m"},"histograms":[[1,{"count":"2"}]]}]},"warnings":null}`, nil, nil},
		{"out of order", points(`[[3,"3"],[1,"1"],[3,"4"]]`), m(1000, 1.0, 3000, 3.0), nil},
		{"nothing", `{"status":"success","data":{"resultType":"matrix","result":[]}}`, nil, nil},
		{"null", `{"status":"success","data":{"resultType":"matrix","result":null}}`, nil, nil},
		{
			"escapes", `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"\"\\\/\b\f\n\r\t","\u0062":"\u00fc\u65e5\ud83d\ude00","c":"\ud83dx\ude00\ud83d\ud83d\ude00","e":"","日本":"日"},"values":[[1,"2"]]}]}}`,
			[]gpu.Series{{Labels: map[string]string{"a": "\"\\/\b\f\n\r\t", "b": "ü日😀", "c": "\ufffdx\ufffd\ufffd😀", "日本": "日"}, Samples: samples(1000, 2.0)}},
			nil,
		},
	} {
		for how, r := range map[string]io.Reader{
			"at once": strings.NewReader(c.text), "byte by byte": iotest.OneByteReader(strings.NewReader(c.text)),
			"with the end": iotest.DataErrReader(strings.NewReader(c.text)),
		} {
			got, warnings, err := prometheus.DecodeMatrix(r, math.MinInt64, math.MaxInt64)
			if err != nil {
				t.Errorf("%s %s: %v", c.name, how, err)
				continue
			}
			if d := cmp.Diff(c.want, got) + cmp.Diff(c.warnings, warnings); d != "" {
				t.Errorf("%s %s: %s", c.name, how, d)
			}
		}
		// A part is no answer, wherever it ends.
		for i := range len(strings.TrimSpace(c.text)) {
			if got, _, err := decode(c.text[:i]); err == nil || got != nil {
				t.Errorf("%s: the first %d bytes are taken for the whole", c.name, i)
			}
		}
		// Nor is what a broken connection leaves, though it happens to be whole.
		broken := io.MultiReader(strings.NewReader(c.text), iotest.ErrReader(errors.New("reset")))
		if _, _, err := prometheus.DecodeMatrix(broken, 0, 1); err == nil || !strings.Contains(err.Error(), "reset") {
			t.Errorf("%s: %v of a broken connection", c.name, err)
		}
	}
}

func TestDecodeMatrixRefuses(t *testing.T) {
	points := func(text string) string {
		return `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":` + text + `}]}}`
	}
	deep := strings.Repeat("[", 1000) + strings.Repeat("]", 1000)
	for _, text := range []string{
		points(`[[01,"1"]]`), points(`[[1.,"1"]]`), points(`[[.5,"1"]]`), points(`[[1e,"1"]]`), points(`[[+1,"1"]]`), points(`[["1","1"]]`),
		points(`[[1,""]]`), points(`[[1,"."]]`), points(`[[1,"1x"]]`), points(`[[1,"1e999"]]`), points(`[[1,1]]`), points(`[[1,null]]`),
		points(`[[1]]`), points(`[[1,"1","1"]]`), points(`[[1,"1"],]`), points(`[,[1,"1"]]`), points(`[[1,"1"] [2,"1"]]`), points(`{}`),
		points(`[[1e300,"1"]]`), points(`[[` + strings.Repeat("9", 30) + `,"1"]]`), points(`[[1.` + strings.Repeat("9", 2000) + `,"1"]]`),
		points(`[[1,"1"]`), points("[[1,\"\n\"]]"), points("[[1,\"\xff\"]]"), points(`[[1,"\x"]]`), points(`[[1,"\u00g0"]]`),
		`{"status":"success","data":{"resultType":"matrix","result":[{"values":[[1,"1"]]}]}}`,
		`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":1}}]}}`,
		`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"1","a":"2"}}]}}`,
		`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"metric":{}}]}}`,
		`{"status":"success","data":{"resultType":"matrix","result":[],"result":[]}}`,
		`{"status":"success","status":"success","data":{"resultType":"matrix","result":[]}}`,
		`{"status":"success","data":{"resultType":"matrix","result":[]},"x":` + deep + `}`,
		`{"status":"success","data":{"resultType":"matrix","result":[]},"x":tru}`,
		`{"status":"success","data":{"resultType":"matrix"}}`,
		`{"status":"error","errorType":"execution","error":"no","data":{"resultType":"matrix","result":[]}}`,
		`{"status":"success","data":{"resultType":"scalar","result":[1,"1"]}}`, `[]`, `""`, ``, `{`, `nul`,
	} {
		if got, _, err := decode(text); err == nil || got != nil {
			t.Errorf("%.200s: %v", text, got)
		}
	}
}

// TestWindow puts every part of an answer across the end of the scanner's window.
func TestWindow(t *testing.T) {
	tail := `"metric":{"__name__":"m","label":"v\u00fcalue"},"values":[[1700000000.123,"12345.678"],[1700000001.5,"1e-7"]]}]}}`
	want := []gpu.Series{{Metric: "m", Labels: map[string]string{"label": "vüalue"}, Samples: samples(1700000000123, 12345.678, 1700000001500, 1e-7)}}
	for pad := 64<<10 - len(tail) - 100; pad < 64<<10+10; pad++ {
		text := `{"status":"success","data":{"resultType":"matrix","result":[{"x":"` + strings.Repeat("x", pad) + `",` + tail
		got, _, err := decode(text)
		if err != nil {
			t.Fatal(pad, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatal(pad, d)
		}
	}
}

// TestManyPoints compares the quick way of reading a point with strconv.
func TestManyPoints(t *testing.T) {
	var text bytes.Buffer
	var want []gpu.Sample
	text.WriteString(`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[`)
	x := 1e-9
	for i := range 5000 {
		x *= -1.0123
		v := x
		if i%3 == 0 {
			v = math.Trunc(x)
		}
		value := strconv.FormatFloat(v, 'f', -1, 64)
		at := 1700000000000 + int64(i)*15037
		if i > 0 {
			text.WriteByte(',')
		}
		text.WriteString(`[` + strconv.FormatFloat(float64(at)/1000, 'f', -1, 64) + `,"` + value + `"]`)
		want = append(want, gpu.Sample{UnixMilli: at, Value: v})
	}
	text.WriteString(`]}]}}`)
	got, _, err := prometheus.DecodeMatrix(&text, 0, math.MaxInt64)
	if err != nil || len(got) != 1 {
		t.Fatal(err, len(got))
	}
	for i := range want {
		if math.Float64bits(got[0].Samples[i].Value) != math.Float64bits(want[i].Value) || got[0].Samples[i].UnixMilli != want[i].UnixMilli {
			t.Fatalf("%d: %v, want %v", i, got[0].Samples[i], want[i])
		}
	}
}

func TestSelector(t *testing.T) {
	for want, sel := range map[string]ingest.Selector{
		`{__name__="m"}`:                    {Metrics: []string{"m"}},
		`{__name__=~"a:b|c\\.d"}`:           {Metrics: []string{"c.d", "a:b", "a:b"}},
		`{__name__="m",a="q\"\\\n\u200bü"}`: {Metrics: []string{"m"}, Equal: map[string]string{"a": "q\"\\\n\u200bü"}},
		`{__name__="m","my.label"="x",node=~"n-1|n\\|2"}`: {
			Metrics: []string{"m"}, Equal: map[string]string{"my.label": "x"}, OneOf: map[string][]string{"node": {"n|2", "n-1"}},
		},
	} {
		if got := prometheus.Selector(sel); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestDecodeSeries(t *testing.T) {
	got, warnings, err := prometheus.DecodeSeries(strings.NewReader(`{"status":"success","warnings":["w"],"data":[{"__name__":"m","a":"1"},{}]}`))
	want := []gpu.Series{{Metric: "m", Labels: map[string]string{"a": "1"}}, {Labels: map[string]string{}}}
	if d := cmp.Diff(want, got) + cmp.Diff([]string{"w"}, warnings); d != "" || err != nil {
		t.Error(d, err)
	}
	for _, text := range []string{`{"status":"success","data":[{"a":"1"},]}`, `{"status":"success","data":{}}`, `{"status":"success"}`, `{"status":"success","data":["a"]}`, `{"status":"success","data":[{"a":"1"}]`} {
		if got, _, err := prometheus.DecodeSeries(strings.NewReader(text)); err == nil || got != nil {
			t.Errorf("%s: %v", text, got)
		}
	}
}
