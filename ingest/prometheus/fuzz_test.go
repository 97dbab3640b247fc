package prometheus_test

import (
	"encoding/json"
	"math"
	"math/big"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/golang/snappy"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/prometheus/prompb"

	"gpuledger/gpu"
	"gpuledger/ingest/prometheus"
)

// bounded fails where reading a body takes more memory than its size explains.
func bounded(t *testing.T, body []byte, read func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	read()
	runtime.ReadMemStats(&after)
	if got, most := after.TotalAlloc-before.TotalAlloc, uint64(2<<20+1000*len(body)); got > most {
		t.Errorf("%d bytes are read with %d bytes of memory", len(body), got)
	}
}

// checkSeries: what is delivered keeps the promises of ingest.Source.
func checkSeries(t *testing.T, x gpu.Series, start, end int64) {
	t.Helper()
	for i, p := range x.Samples {
		if p.UnixMilli < start || p.UnixMilli >= end || p.Value != p.Value || i > 0 && x.Samples[i-1].UnixMilli >= p.UnixMilli {
			t.Errorf("sample %d is %v of [%d,%d)", i, p, start, end)
		}
	}
	if x.Labels == nil {
		t.Error("a series without labels")
	}
}

func FuzzChunks(f *testing.F) {
	t := &testing.T{}
	good := slicesConcat(
		frame(t, series("a=1", chunk(t, at(0, 1), at(15000, 2.5)))),
		frame(t, series("a=1", chunk(t, at(30000, 3))), series("a=2", chunk(t, at(1, 4)))),
	)
	f.Add(good)
	f.Add(good[:len(good)-5])
	f.Add(frame(t, series("a=1", prompb.Chunk{Type: prompb.Chunk_XOR, Data: []byte{0xff, 0xff}})))
	f.Add(frame(t, series("a=1", prompb.Chunk{Type: prompb.Chunk_XOR, Data: []byte{0xff, 0xff, 1, 2, 3}})))
	f.Add(frame(t, series("a=1", prompb.Chunk{Type: prompb.Chunk_HISTOGRAM, Data: []byte{0, 0, 1}})))
	f.Add(frame(t, series("a=1", prompb.Chunk{Type: 99, Data: []byte{0, 1, 1}})))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0, 0, 0, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0, 0})
	start, end := hour.Start.UnixMilli(), hour.End.UnixMilli()
	f.Fuzz(func(t *testing.T, body []byte) {
		bounded(t, body, func() {
			prometheus.DecodeChunks(body, start, end, func(x gpu.Series) error { checkSeries(t, x, start, end); return nil })
		})
		// The fuzzer finds no checksums: what is in a frame is tried by itself.
		framed := frameOf(body)
		bounded(t, framed, func() {
			prometheus.DecodeChunks(framed, start, end, func(x gpu.Series) error { checkSeries(t, x, start, end); return nil })
		})
	})
}

func FuzzSamples(f *testing.F) {
	good, err := (&prompb.ReadResponse{Results: []*prompb.QueryResult{{Timeseries: []*prompb.TimeSeries{{
		Labels: []prompb.Label{{Name: "__name__", Value: "m"}}, Samples: []prompb.Sample{{Timestamp: hour.Start.UnixMilli(), Value: 1}},
	}}}}}).Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(snappy.Encode(nil, good))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f, 0})
	start, end := hour.Start.UnixMilli(), hour.End.UnixMilli()
	f.Fuzz(func(t *testing.T, body []byte) {
		bounded(t, body, func() {
			prometheus.DecodeSamples(body, start, end, func(x gpu.Series) error { checkSeries(t, x, start, end); return nil })
		})
	})
}

func FuzzMatrix(f *testing.F) {
	for _, text := range []string{
		`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"__name__":"m","a":"\u00fc\ud83d\ude00\ud83d"},"values":[[1700000000.123,"1"],[1700000015,"NaN"],[1700000030.5,"1e+06"]]}]},"warnings":["w"]}`,
		`{"data":{"result":[{"histograms":[[1,{"count":"2"}]],"values":[],"metric":{}}],"resultType":"matrix"},"infos":[],"status":"success"}`,
		`{"status":"error","errorType":"execution","error":"no"}`,
		`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[-1e3,"-0"],[0.0019,"+Inf"],[1,"5e-324"]]}]}}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var got []gpu.Series
		var warnings []string
		var err error
		bounded(t, []byte(text), func() {
			got, warnings, err = prometheus.DecodeMatrix(strings.NewReader(text), math.MinInt64, math.MaxInt64)
		})
		if beyond(text) {
			return
		}
		want, wantWarnings, ok := oracleMatrix(text)
		if ok != (err == nil) {
			t.Fatalf("%q: %v, encoding/json: %t", text, err, ok)
		}
		if !ok {
			return
		}
		for _, x := range got {
			checkSeries(t, x, math.MinInt64, math.MaxInt64)
		}
		if d := cmp.Diff(want, got, cmpopts.EquateEmpty()) + cmp.Diff(wantWarnings, warnings, cmpopts.EquateEmpty()); d != "" {
			t.Fatal(d)
		}
		again, _, err := prometheus.DecodeMatrix(iotest.OneByteReader(strings.NewReader(text)), math.MinInt64, math.MaxInt64)
		if d := cmp.Diff(got, again); err != nil || d != "" {
			t.Fatal(err, d)
		}
	})
}

func FuzzSeries(f *testing.F) {
	f.Add(`{"status":"success","data":[{"__name__":"m","a":"1"},{"__name__":"m","a":"\u00fc"}],"warnings":["w"]}`)
	f.Add(`{"data":null,"status":"success"}`)
	f.Add(`{"status":"success","data":[{"a":1}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		var got []gpu.Series
		var err error
		bounded(t, []byte(text), func() { got, _, err = prometheus.DecodeSeries(strings.NewReader(text)) })
		if beyond(text) {
			return
		}
		want, ok := oracleSeries(text)
		if ok != (err == nil) {
			t.Fatalf("%q: %v, encoding/json: %t", text, err, ok)
		}
		if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); ok && d != "" {
			t.Fatal(d)
		}
	})
}

// field is a member of an object, in the order of the text: encoding/json's maps
// would hide one that comes twice.
type field struct {
	name  string
	value any
}

// beyond says that a text may have values that nest deeper, or numbers that are
// longer, than the scanner takes.
func beyond(text string) bool {
	depth, deepest := 0, 0
	for _, c := range text {
		switch c {
		case '[', '{':
			depth++
		case ']', '}':
			depth--
		}
		deepest = max(deepest, depth)
	}
	return deepest > 60 || len(text) > 900 && longNumber.MatchString(text)
}

var longNumber = regexp.MustCompile(`[-+.eE0-9]{900}`)

// tree reads a text by encoding/json into []field, []any, string, json.Number, bool
// and nil. It refuses texts that are not UTF-8, as the scanner does.
func tree(text string) (any, bool) {
	if !json.Valid([]byte(text)) || !utf8.ValidString(text) {
		return nil, false
	}
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var value func() (any, error)
	value = func() (any, error) {
		token, err := dec.Token()
		if err != nil {
			return nil, err
		}
		switch token {
		case json.Delim('{'):
			out := []field{}
			for dec.More() {
				name, err := dec.Token()
				if err != nil {
					return nil, err
				}
				v, err := value()
				if err != nil {
					return nil, err
				}
				out = append(out, field{name.(string), v})
			}
			_, err := dec.Token()
			return out, err
		case json.Delim('['):
			out := []any{}
			for dec.More() {
				v, err := value()
				if err != nil {
					return nil, err
				}
				out = append(out, v)
			}
			_, err := dec.Token()
			return out, err
		}
		return token, nil
	}
	v, err := value()
	return v, err == nil
}

// member finds the one member of a name; false for several.
func member(object any, name string) (value any, there, ok bool) {
	fields, is := object.([]field)
	if !is {
		return nil, false, false
	}
	for _, f := range fields {
		if f.name == name {
			if there {
				return nil, false, false
			}
			value, there = f.value, true
		}
	}
	return value, there, true
}

// oracleAnswer is decodeAnswer by encoding/json.
func oracleAnswer(text string) (data any, warnings []string, ok bool) {
	v, ok := tree(text)
	if !ok {
		return nil, nil, false
	}
	for _, name := range []string{"status", "errorType", "error"} {
		value, there, one := member(v, name)
		_, isText := value.(string)
		if !one || there && !isText || name == "status" && value != "success" {
			return nil, nil, false
		}
	}
	raw, _, one := member(v, "warnings")
	if !one {
		return nil, nil, false
	}
	if raw != nil {
		list, is := raw.([]any)
		if !is {
			return nil, nil, false
		}
		for _, w := range list {
			text, is := w.(string)
			if !is {
				return nil, nil, false
			}
			warnings = append(warnings, text)
		}
	}
	data, there, one := member(v, "data")
	return data, warnings, there && one
}

func oracleMatrix(text string) ([]gpu.Series, []string, bool) {
	data, warnings, ok := oracleAnswer(text)
	if !ok {
		return nil, nil, false
	}
	kind, _, one := member(data, "resultType")
	result, there, one2 := member(data, "result")
	if !one || !one2 || !there || kind != "matrix" {
		return nil, nil, false
	}
	list, is := result.([]any)
	if !is && result != nil {
		return nil, nil, false
	}
	var out []gpu.Series
	for _, item := range list {
		metric, there, one := member(item, "metric")
		values, _, one2 := member(item, "values")
		series, ok := oracleLabels(metric)
		if !one || !one2 || !there || !ok {
			return nil, nil, false
		}
		if series.Samples, ok = oraclePoints(values); !ok {
			return nil, nil, false
		}
		if len(series.Samples) > 0 {
			out = append(out, series)
		}
	}
	return out, warnings, true
}

func oracleSeries(text string) ([]gpu.Series, bool) {
	data, _, ok := oracleAnswer(text)
	list, is := data.([]any)
	if !ok || !is && data != nil {
		return nil, false
	}
	var out []gpu.Series
	for _, item := range list {
		series, ok := oracleLabels(item)
		if !ok {
			return nil, false
		}
		out = append(out, series)
	}
	return out, true
}

func oracleLabels(metric any) (gpu.Series, bool) {
	series := gpu.Series{Labels: map[string]string{}}
	fields, is := metric.([]field)
	seen := map[string]bool{}
	for _, f := range fields {
		text, isText := f.value.(string)
		if !isText || seen[f.name] {
			return series, false
		}
		seen[f.name] = true
		if f.name == "__name__" {
			series.Metric = text
		} else if text != "" {
			series.Labels[f.name] = text
		}
	}
	return series, is
}

func oraclePoints(values any) ([]gpu.Sample, bool) {
	list, is := values.([]any)
	if !is && values != nil {
		return nil, false
	}
	var out []gpu.Sample
	for _, item := range list {
		point, is := item.([]any)
		if !is || len(point) != 2 {
			return nil, false
		}
		seconds, isNumber := point[0].(json.Number)
		text, isText := point[1].(string)
		if !isNumber || !isText {
			return nil, false
		}
		value, err := strconv.ParseFloat(text, 64)
		at, ok := oracleMilli(string(seconds))
		if err != nil || !ok {
			return nil, false
		}
		if value == value && at != math.MaxInt64 {
			out = append(out, gpu.Sample{UnixMilli: at, Value: value})
		}
	}
	return firstOfEach(out), true
}

func oracleMilli(text string) (int64, bool) {
	if strings.ContainsAny(text, "eE") {
		x, err := strconv.ParseFloat(text, 64)
		return int64(math.Round(x * 1000)), err == nil && math.Abs(x) <= 1e14
	}
	x, ok := new(big.Rat).SetString(text)
	if !ok || x.Cmp(big.NewRat(1e14, 1)) >= 0 || x.Cmp(big.NewRat(-1e14, 1)) <= 0 {
		return 0, false
	}
	x.Mul(x, big.NewRat(1000, 1))
	return new(big.Int).Quo(x.Num(), x.Denom()).Int64(), true
}

// firstOfEach sorts by time and keeps the first sample of an instant.
func firstOfEach(all []gpu.Sample) []gpu.Sample {
	var out []gpu.Sample
	for _, x := range inOrder(all) {
		if len(out) == 0 || out[len(out)-1].UnixMilli != x.UnixMilli {
			out = append(out, x)
		}
	}
	return out
}
