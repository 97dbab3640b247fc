package ingest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/internal/anyfleet"
)

// picky refuses reads of more than so many samples.
type picky struct {
	memory
	most    int
	listed  int // the most series of a list; 0: any number
	refused int
}

func (p *picky) List(ctx context.Context, sel Selector, span period.Span, fn func(gpu.Series) error) error {
	var all []gpu.Series
	if err := p.memory.List(ctx, sel, span, func(s gpu.Series) error { all = append(all, s); return nil }); err != nil {
		return err
	}
	if p.listed > 0 && len(all) > p.listed {
		p.refused++
		return ErrTooLarge
	}
	for _, s := range all {
		if err := fn(s); err != nil {
			return err
		}
	}
	return nil
}

func (p *picky) Select(ctx context.Context, sel Selector, span period.Span, fn func(gpu.Series) error) error {
	var all []gpu.Series
	n := 0
	if err := p.memory.Select(ctx, sel, span, func(s gpu.Series) error {
		all, n = append(all, s), n+len(s.Samples)
		return nil
	}); err != nil {
		return err
	}
	if n > p.most {
		p.refused++
		return fmt.Errorf("%v: %d samples: %w", sel, n, ErrTooLarge)
	}
	for _, s := range all {
		if err := fn(s); err != nil {
			return err
		}
	}
	return nil
}

func foldAll(t testing.TB, src Source, span period.Span) []gpu.ClusterHour {
	t.Helper()
	var out []gpu.ClusterHour
	if err := FoldWhole(t.Context(), src, nil, gpu.Settings{}, span, func(c Chunk) error {
		out = append(out, c.Hours...)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// Any fleet read group by group gives what all of its series together give; the pods of
// each hour's inventory that hold something are the same too.
func TestGroupsMakeNoDifference(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := anyfleet.Draw(rt, anyfleet.Options{Nodes: 5, Hours: 3})
		inventory, devices := f.Series(0, f.Hours)
		span := period.Span{Start: anyfleet.Start, End: anyfleet.At(f.Hours * anyfleet.Hour)}
		src := &picky{memory: memory{series: slices.Concat(inventory, devices)}, most: rapid.IntRange(1500, 6000).Draw(rt, "most")}
		got := foldAll(t, src, span)
		for i, h := range span.Hours() {
			around := period.Hour(h).Grow(gpu.Neighbourhood)
			want := gpu.FoldHour(clip(inventory, around), clip(devices, around), h, gpu.Settings{})
			if !reflect.DeepEqual(got[i].Nodes, want.Nodes) || got[i].CoveredMicros != want.CoveredMicros || !slices.Equal(got[i].Unplaced, want.Unplaced) {
				rt.Fatalf("%s: read by groups\n%+v\nall together\n%+v", h, got[i].Nodes, want.Nodes)
			}
			pods := map[string]*gpu.Pod{}
			for _, p := range got[i].Inventory.AllPods() {
				pods[p.UID] = p
			}
			for _, p := range want.Inventory.AllPods() {
				if p.Node != "" && (pods[p.UID] == nil || !reflect.DeepEqual(pods[p.UID].Labels, p.Labels) || pods[p.UID].Lifetime() != p.Lifetime()) {
					rt.Fatalf("pod %s: %+v, want %+v", p.UID, pods[p.UID], p)
				}
			}
		}
	})
}

// What a source finds too large is asked for in halves; where half of nothing is left,
// it is an error that says what it was.
func TestTooLargeIsHalved(t *testing.T) {
	span := period.Span{Start: noon, End: noon.Add(6 * time.Hour)}
	series := fleetSeries(span.Grow(20 * time.Minute))
	src := &picky{memory: memory{series: series}, most: math.MaxInt}
	want := foldAll(t, src, span)
	src.most = 700 // of the 780 that a series has in the window with its neighbourhood
	if got := foldAll(t, src, span); src.refused == 0 || len(got) != 6 {
		t.Errorf("%d hours, %d refused", len(got), src.refused)
	} else if !reflect.DeepEqual(nodesOf(got), nodesOf(want)) {
		t.Error("halves say something else")
	}
	src.most, src.listed, src.refused = math.MaxInt, 1, 0
	if got := foldAll(t, src, span); src.refused == 0 || !reflect.DeepEqual(nodesOf(got), nodesOf(want)) {
		t.Errorf("lists in halves say something else; %d refused", src.refused)
	}
	src.most = 10
	err := Fold(t.Context(), src, nil, gpu.Settings{}, span, func(Chunk) error { return nil })
	if !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
}

func nodesOf(hours []gpu.ClusterHour) (out [][]gpu.NodeHour) {
	for _, h := range hours {
		out = append(out, h.Nodes)
	}
	return out
}

// One exporter for all nodes has one instance, and kube-state-metrics scraped with
// honorLabels off names itself first: each group still has its own nodes and pods only, and
// every series once.
func TestGroupsOfOneInstance(t *testing.T) {
	span := period.Span{Start: noon, End: noon.Add(2 * time.Hour)}
	around := span.Grow(20 * time.Minute)
	var series []gpu.Series
	run := func(metric string, value float64, kv ...string) {
		l := map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			l[kv[i]] = kv[i+1]
		}
		s := gpu.Series{Metric: metric, Labels: l}
		for at := around.Start; at.Before(around.End); at = at.Add(30 * time.Second) {
			s.Samples = append(s.Samples, gpu.Sample{UnixMilli: at.UnixMilli(), Value: value})
		}
		series = append(series, s)
	}
	for i, n := range []string{"n1", "n2", "n3"} {
		ksm := func(metric string, value float64, kv ...string) { // it runs on n1 itself
			run(metric, value, append([]string{"job", "ksm", "instance", "10.0.0.9:8080", "node", "n1", "exported_node", n}, kv...)...)
		}
		pod := []string{"namespace", "monitoring", "pod", "ksm-0", "exported_namespace", "ml", "exported_pod", "p-" + n, "uid", "uid-" + n}
		ksm("kube_node_info", 1, "provider_id", "aws:///z/i-"+n)
		ksm("kube_node_labels", 1, "label_nvidia_com_gpu_count", "1", "label_nvidia_com_gpu_replicas", "1")
		ksm("kube_pod_info", 1, pod...)
		ksm("kube_pod_container_resource_requests", 1, append([]string{"exported_container", "c", "resource", "nvidia_com_gpu"}, pod...)...)
		// Run:ai's: no UUID, one instance.
		run("runai_gpu_memory_used_mebibytes_per_pod_per_gpu", float64(1000*(i+1)), "instance", "runai:8080", "job", "runai", "node", n, "gpu", "0", "pod_name", "p-"+n, "pod_namespace", "ml", "pod_uuid", "uid-"+n)
		run("runai_gpu_memory_total_mebibytes_per_gpu", 23034, "instance", "runai:8080", "job", "runai", "node", n, "gpu", "0")
		// An exporter that names nodes in its own way, and devices by nothing but its instance.
		run("own_used_mib", 7000, "instance", "own:1", "job", "own", "host", n, "slot", "0")
	}
	settings := gpu.Settings{Exporters: []gpu.ExporterMetric{{Name: "own_used_mib", Is: "used", Unit: "MiB", Of: "device", Labels: map[string]string{"index": "slot", "node": "host"}}}}
	var got []gpu.ClusterHour
	f := &folding{src: &memory{series: series}, settings: settings, emit: whole(func(c Chunk) error { got = append(got, c.Hours...); return nil })}
	if err := f.plan(t.Context(), span); err != nil {
		t.Fatal(err)
	}
	f.perSeries = math.MaxFloat64 // each group by itself
	if err := f.window(t.Context(), span.Hours()); err != nil || len(f.groups) != 3 {
		t.Fatal(err, f.groups)
	}
	for i, h := range span.Hours() {
		hour := period.Hour(h).Grow(gpu.Neighbourhood)
		want := gpu.FoldHour(clip(series, hour), clip(series, hour), h, settings)
		if len(got[i].Nodes) != 3 || !reflect.DeepEqual(got[i].Nodes, want.Nodes) {
			t.Errorf("%s: by groups\n%+v\nall together\n%+v", h, got[i].Nodes, want.Nodes)
		}
		if n := len(got[i].Inventory.Pods); n != 3 {
			t.Errorf("%d pods", n)
		}
	}
}
