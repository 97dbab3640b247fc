package main

import (
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gpuledger/billing/billingtest"
	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/ingest"
	"gpuledger/ingest/openmetrics"
)

// The files of ../shared/samples/gpu are real expositions of one instant, published by
// others; its SOURCES.md says what each is. The tests give them timestamps around an hour,
// and what a Prometheus has beside them: the node by the scrape's labels, and
// kube-state-metrics. What must come out is worked out by hand.

// published is one file, or a variant of it.
type published struct {
	file, variant string
	settings      gpu.Settings
	inventory     []gpu.Series
	edit          func(string) string // what the published text leaves out
	uncounted     []string            // metrics of the file that nothing is read from, by which it lands nowhere
	want          []wantPart
	check         func(*testing.T, landed)
}

type landed struct {
	nodes     []gpu.NodeHour
	inventory *gpu.Inventory
}

// device is the k-th device of the only node.
func (l landed) device(t *testing.T, k int) gpu.Device {
	t.Helper()
	if len(l.nodes) != 1 || len(l.nodes[0].Devices) <= k {
		t.Fatalf("%d nodes, no device %d", len(l.nodes), k)
	}
	return l.nodes[0].Devices[k]
}

// wantPart is a partition in order of devices and instances.
type wantPart struct {
	instance string
	mode     gpu.Mode
	slices   [2]int // its own, and its device's
	usable   uint64 // bytes
	rows     []wantRow
}

// wantRow is a row of it: its pod or category, by which rung, its mean use in bytes, and its
// share of the hour on the basis max.
type wantRow struct {
	who    string
	method gpu.Method
	used   uint64
	share  [2]uint64 // n of d
	flags  gpu.Flags
}

var hourOfSamples = time.Date(2026, 10, 5, 10, 0, 0, 0, time.UTC)

// beside returns series of kube-state-metrics, around the hour.
func beside(metric string, v float64, kv ...string) gpu.Series {
	return series(metric, scrapes(period.Hour(hourOfSamples).Grow(15*time.Minute), v), append([]string{"job", "ksm"}, kv...)...)
}

// publishedNode is a node with a capacity of nvidia.com/gpu and labels.
func publishedNode(name string, capacity int, labels ...string) []gpu.Series {
	out := []gpu.Series{beside("kube_node_info", 1, "node", name, "provider_id", "gce://p/z/"+name)}
	if capacity > 0 {
		out = append(out, beside("kube_node_status_capacity", float64(capacity), "node", name, "resource", "nvidia_com_gpu", "unit", "integer"))
	}
	if len(labels) > 0 {
		out = append(out, beside("kube_node_labels", 1, append([]string{"node", name}, labels...)...))
	}
	return out
}

// publishedPod is a pod on a node with a request.
func publishedPod(node, namespace, name, resource string, n int) []gpu.Series {
	l := []string{"namespace", namespace, "pod", name, "uid", "uid-" + name, "node", node}
	out := []gpu.Series{beside("kube_pod_info", 1, l...)}
	if n > 0 {
		out = append(out, beside("kube_pod_container_resource_requests", float64(n), append(l, "container", "c", "resource", resource, "unit", "integer")...))
	}
	return out
}

// exporterOn is the exporter's pod, by which a series' Hostname is a node.
func exporterOn(node, name string) []gpu.Series {
	return publishedPod(node, "gpu-operator", name, "", 0)
}

// nodeLabels are the labels of a published node as kube-state-metrics shows them.
func nodeLabels(t *testing.T, file string) []string {
	t.Helper()
	other := regexp.MustCompile(`[^a-zA-Z0-9_]`)
	var out []string
	for _, line := range strings.Split(readFile(t, billingtest.Shared(t, "samples/gpu/"+file, "published node labels")), "\n") {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			out = append(out, "label_"+other.ReplaceAllString(key, "_"), strings.Trim(value, `"`))
		}
	}
	return out
}

// replaced swaps texts of a file for others.
func replaced(pairs ...string) func(string) string {
	return func(text string) string { return strings.NewReplacer(pairs...).Replace(text) }
}

// TestPublishedSamples lands every file of the folder.
func TestPublishedSamples(t *testing.T) {
	folder := filepath.Dir(billingtest.Shared(t, "samples/gpu/SOURCES.md", "published exporter samples"))
	all := slices.Concat(publishedDCGM(t), publishedOthers(t))
	files, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if name := f.Name(); name != "SOURCES.md" && !slices.ContainsFunc(all, func(p published) bool { return p.file == name }) {
			t.Errorf("%s is in no table: what must come of it?", name)
		}
	}
	for _, p := range all {
		t.Run(p.file+"/"+p.variant, func(t *testing.T) {
			got := p.land(t, filepath.Join(folder, p.file))
			p.compare(t, got)
			if p.check != nil {
				p.check(t, got)
			}
		})
	}
}

// land reads a file as a source does, and folds the hour.
func (p published) land(t *testing.T, path string) landed {
	t.Helper()
	dir := t.TempDir()
	inventory := p.inventory
	paths := []string{filepath.Join(dir, "inventory.om")}
	if !strings.HasSuffix(path, ".yaml") {
		text := readFile(t, path)
		if p.edit != nil {
			text = p.edit(text)
		}
		write(t, filepath.Join(dir, "metrics.txt"), stamped(text, hourOfSamples))
		paths = append(paths, filepath.Join(dir, "metrics.txt"))
	}
	writeOpenMetrics(t, paths[0], inventory)
	src, err := openmetrics.New(openmetrics.Config{Paths: paths, Metrics: slices.Concat(gpu.InventoryMetrics, p.settings.DeviceMetrics())})
	if err != nil {
		t.Fatal(err)
	}
	var out landed
	err = ingest.FoldWhole(t.Context(), src, nil, p.settings, period.Hour(hourOfSamples), func(ch ingest.Chunk) error {
		for _, h := range ch.Hours {
			out.nodes, out.inventory = append(out.nodes, h.Nodes...), h.Inventory
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// compare checks every partition and row.
func (p published) compare(t *testing.T, got landed) {
	t.Helper()
	for _, metric := range p.uncounted {
		if slices.Contains(p.settings.DeviceMetrics(), metric) {
			t.Errorf("%s is read: it tells nothing of memory", metric)
		}
	}
	var parts []gpu.Partition
	for _, n := range got.nodes {
		for _, d := range n.Devices {
			parts = append(parts, d.Partitions...)
		}
	}
	if len(parts) != len(p.want) {
		t.Fatalf("%d partitions, want %d: %+v", len(parts), len(p.want), parts)
	}
	for i, w := range p.want {
		g := parts[i]
		if g.GPUInstance != w.instance || g.Mode != w.mode || g.MemorySlices != w.slices[0] || g.DeviceSlices != w.slices[1] || g.UsableBytes != w.usable {
			t.Errorf("partition %d: instance %q, %s, %d of %d slices, %d usable; want %q, %s, %d of %d, %d",
				i, g.GPUInstance, g.Mode, g.MemorySlices, g.DeviceSlices, g.UsableBytes, w.instance, w.mode, w.slices[0], w.slices[1], w.usable)
		}
		var rows []string
		held := slices.DeleteFunc(slices.Clone(g.Rows), func(r gpu.Row) bool { return r.PodUID == "" && r.Shares.MaxNone == 0 })
		for _, r := range held {
			rows = append(rows, strings.TrimPrefix(r.PodUID, "uid-")+string(r.Category))
		}
		if len(held) != len(w.rows) {
			t.Errorf("partition %d has rows of %v, want %d", i, rows, len(w.rows))
			continue
		}
		for k, want := range w.rows {
			r, who := held[k], rows[k]
			hi, lo := bits.Mul64(3_600_000_000, want.share[0])
			micros, _ := bits.Div64(hi, lo, want.share[1])
			share := int64(micros)
			if who != want.who || r.Method != want.method || r.UsedByteSeconds != int64(3600*want.used) || r.Shares.MaxNone > share+2 || r.Shares.MaxNone < share-2 || r.Flags != want.flags {
				t.Errorf("partition %d: %s by %v, mean %d bytes, %d µs, flags %b; want %s by %v, %d, %d µs, flags %b",
					i, who, r.Method, r.UsedByteSeconds/3600, r.Shares.MaxNone, r.Flags, want.who, want.method, want.used, share, want.flags)
			}
		}
	}
}

// stamped repeats an exposition every 30 s around an hour, in the Prometheus text format
// with timestamps in milliseconds. A power moves: one that stands still is a frozen one.
func stamped(text string, hour time.Time) string {
	var b strings.Builder
	for _, line := range strings.Split(text, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		for i, s := range scrapes(period.Hour(hour).Grow(15*time.Minute), 0) {
			moved := line
			if strings.HasPrefix(line, "DCGM_FI_DEV_POWER_USAGE") {
				moved += fmt.Sprint(i % 7)
			}
			fmt.Fprintf(&b, "%s %d\n", moved, s.UnixMilli)
		}
	}
	return b.String()
}

// full is all of the hour.
var full = [2]uint64{1, 1}
