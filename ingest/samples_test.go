package ingest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"gpuledger/billing/period"
	"gpuledger/gpu"
)

var noon = time.Date(2026, 10, 5, 12, 0, 0, 0, time.UTC)

// memory serves series and records the spans it was asked for.
type memory struct {
	series []gpu.Series
	asked  []period.Span
	fail   error
}

func (m *memory) Describe(context.Context) (Description, error) { return Description{}, nil }

func (m *memory) Select(_ context.Context, sel Selector, span period.Span, fn func(gpu.Series) error) error {
	m.asked = append(m.asked, span)
	if m.fail != nil {
		return m.fail
	}
	wanted := map[string]bool{}
	for _, n := range sel.Metrics {
		wanted[n] = true
	}
	for _, s := range clip(m.series, span) {
		ok := wanted[s.Metric]
		for label, values := range sel.OneOf {
			ok = ok && slices.Contains(values, s.Labels[label])
		}
		if ok {
			if err := fn(s); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *memory) List(ctx context.Context, sel Selector, span period.Span, fn func(gpu.Series) error) error {
	defer func(n int) { m.asked = m.asked[:n] }(len(m.asked))
	return m.Select(ctx, sel, span, func(s gpu.Series) error {
		s.Samples = nil
		return fn(s)
	})
}

func fleetSeries(span period.Span) []gpu.Series {
	var up, used []gpu.Sample
	for t := span.Start.Add(15 * time.Second); t.Before(span.End); t = t.Add(30 * time.Second) {
		up = append(up, gpu.Sample{UnixMilli: t.UnixMilli(), Value: 1})
		used = append(used, gpu.Sample{UnixMilli: t.UnixMilli(), Value: float64(t.Minute() * 100)})
	}
	dev := func(metric string, s []gpu.Sample) gpu.Series {
		return gpu.Series{Metric: metric, Labels: map[string]string{"UUID": "GPU-1", "Hostname": "n1", "modelName": "NVIDIA L4"}, Samples: s}
	}
	return []gpu.Series{
		{Metric: "kube_node_info", Labels: map[string]string{"node": "n1", "provider_id": "aws:///z/i-1"}, Samples: up},
		{Metric: "kube_node_labels", Labels: map[string]string{"node": "n1", "label_nvidia_com_gpu_count": "1"}, Samples: up},
		dev("DCGM_FI_DEV_FB_USED", used), dev("DCGM_FI_DEV_FB_FREE", up),
	}
}

// An hour comes out the same whatever was read with it.
func TestFoldDoesNotDependOnRequestSize(t *testing.T) {
	span := period.Span{Start: noon, End: noon.Add(9 * time.Hour)}
	src := &memory{series: fleetSeries(span.Grow(20 * time.Minute))}
	fold := func(s period.Span) map[time.Time][]gpu.NodeHour {
		out := map[time.Time][]gpu.NodeHour{}
		if err := FoldWhole(t.Context(), src, nil, gpu.Settings{}, s, func(c Chunk) error {
			for _, h := range c.Hours {
				out[h.Hour] = h.Nodes
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return out
	}
	whole := fold(span)
	if len(whole) != 9 {
		t.Fatalf("%d hours", len(whole))
	}
	for _, h := range span.Hours() {
		if one := fold(period.Hour(h)); len(one[h]) != 1 || !reflect.DeepEqual(one[h], whole[h]) {
			t.Errorf("%s differs alone", h)
		}
	}
	for _, s := range src.asked {
		if s.Duration() > maxHoursPerRead*time.Hour+2*gpu.Neighbourhood {
			t.Errorf("asked for %s", s)
		}
	}
}

// A source of two clusters that use one node name is refused: their pods cannot be told apart.
func TestFoldRefusesTwoMachinesAtOnce(t *testing.T) {
	series := fleetSeries(period.Hour(noon))
	other := series[0]
	other.Labels = map[string]string{"node": "n1", "provider_id": "aws:///z/i-2"}
	err := FoldWhole(t.Context(), &memory{series: append(series, other)}, nil, gpu.Settings{}, period.Hour(noon), func(Chunk) error { t.Error("emitted"); return nil })
	var clash gpu.Clash
	if !errors.As(err, &clash) || clash.Node != "n1" {
		t.Error(err)
	}
}

func TestFoldStopsAtAnError(t *testing.T) {
	boom := errors.New("boom")
	err := Fold(t.Context(), &memory{fail: boom}, nil, gpu.Settings{}, period.Hour(noon), func(Chunk) error { t.Error("emitted"); return nil })
	if !errors.Is(err, boom) {
		t.Error(err)
	}
	n := 0
	err = Fold(t.Context(), &memory{}, nil, gpu.Settings{}, period.Span{Start: noon, End: noon.Add(48 * time.Hour)}, func(Chunk) error { n++; return boom })
	if !errors.Is(err, boom) || n != 1 {
		t.Error(err, n)
	}
}

func TestComplete(t *testing.T) {
	for _, c := range []struct{ from, to, now, wantFrom, wantTo string }{
		{"10:00", "14:00", "16:00", "10:00", "14:00"},
		{"10:20", "13:10", "16:00", "10:00", "14:00"}, // whole hours
		{"10:00", "14:00", "13:09", "10:00", "12:00"}, // 12:00-13:00 ended only 9 minutes ago
		{"10:00", "14:00", "13:10", "10:00", "13:00"},
	} {
		at := func(s string) time.Time {
			var h, m int
			if _, err := fmt.Sscanf(s, "%d:%d", &h, &m); err != nil {
				t.Fatal(err)
			}
			return time.Date(2026, 10, 5, h, m, 0, 0, time.UTC)
		}
		got := Complete(period.Span{Start: at(c.from), End: at(c.to)}, at(c.now))
		if !got.Start.Equal(at(c.wantFrom)) || !got.End.Equal(at(c.wantTo)) {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
