package openmetrics

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"gpuledger/gpu"
	"gpuledger/ingest"
)

// benchText is a scrape-ordered file: 200 GPUs, four pods each.
func benchText(n int) (text []byte, samples int) {
	var b bytes.Buffer
	rng := rand.New(rand.NewPCG(1, 2))
	for t := 0; samples < n; t++ {
		for g := range 200 {
			for pod := range 4 {
				fmt.Fprintf(&b, "DCGM_FI_DEV_FB_USED{gpu=\"%d\",UUID=\"GPU-%08d-c3a2-4b5d-9e8f-1234567890ab\",device=\"nvidia%d\",modelName=\"NVIDIA A100-SXM4-40GB\",Hostname=\"node-%d\",container=\"main\",namespace=\"team-%d\",pod=\"worker-%d\"} %d %d.%03d\n",
					g%8, g, g%8, g/8, pod, pod*1000+g, 1000+rng.IntN(30000), 1727740800+30*t, rng.IntN(1000))
				samples++
			}
		}
	}
	b.WriteString("# EOF\n")
	return b.Bytes(), samples
}

func BenchmarkParse(b *testing.B) {
	text, n := benchText(400_000)
	for _, c := range []struct{ name, metric string }{{"kept", "DCGM_FI_DEV_FB_USED"}, {"skipped", "other"}} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			var size int
			for b.Loop() {
				p := newFileParser(map[string]bool{c.metric: true})
				if err := p.read(bytes.NewReader(text), func() error { return nil }); err != nil {
					b.Fatal(err)
				}
				size = 0
				for _, s := range p.list {
					size += len(s.data)
				}
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "samples/s")
			b.ReportMetric(float64(size)/float64(n), "stored-B/sample")
		})
	}
}

// BenchmarkLines reads the lines of the same file and cuts each into its series, value
// and time, without making anything of them; with the numbers read too, it is what
// parsing is measured against.
func BenchmarkLines(b *testing.B) {
	text, n := benchText(400_000)
	for _, numbers := range []bool{false, true} {
		b.Run(fmt.Sprintf("numbers=%v", numbers), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			sum := 0.0
			for b.Loop() {
				r := bufio.NewReaderSize(bytes.NewReader(text), maxLine)
				for {
					line, err := r.ReadSlice('\n')
					if err != nil {
						break
					}
					_, rest, ok := bytes.Cut(line, []byte("} "))
					value, when, _ := bytes.Cut(bytes.TrimSuffix(rest, []byte("\n")), []byte(" "))
					if ok && numbers {
						v, err1 := strconv.ParseFloat(string(value), 64)
						t, err2 := strconv.ParseFloat(string(when), 64)
						if err1 != nil || err2 != nil {
							b.Fatal(err1, err2)
						}
						sum += v + t
					}
				}
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "samples/s")
		})
	}
}

func BenchmarkSelect(b *testing.B) {
	text, n := benchText(400_000)
	s, err := New(Config{Paths: []string{write(b, "m.om", string(text))}})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		err := s.Select(context.Background(), ingest.Selector{Metrics: []string{"DCGM_FI_DEV_FB_USED"}}, ever, func(gpu.Series) error { return nil })
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "samples/s")
}
