package main

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/ingest"
)

// observed is a store that remembers what kinds of series it gave, and that can be
// narrowed to some nodes.
type observed struct {
	ingest.Source
	settings gpu.Settings

	// What was listed before, of the chosen nodes; nil: not narrowed.
	nodes, devices []gpu.Series

	mu      sync.Mutex
	metrics map[string]int                 // series by metric
	labels  map[string]map[string]bool     // labels of objects, as kube-state-metrics spells them, by metric
	signs   map[string]map[gpu.Signs]int64 // by device, or node where a series has no device, with the last time
	index   map[string]string              // place of a device on its node, by UUID
	limited map[string]bool                // UIDs of pods that request a part of a GPU of HAMi
	follow  map[string]bool                // OwnerMetrics that would be of use
}

func observe(src ingest.Source, settings gpu.Settings) *observed {
	return &observed{
		Source: src, settings: settings, metrics: map[string]int{}, labels: map[string]map[string]bool{}, signs: map[string]map[gpu.Signs]int64{},
		index: map[string]string{}, limited: map[string]bool{}, follow: map[string]bool{},
	}
}

// only narrows the store to some groups of nodes and devices, of those that were listed.
func (o *observed) only(groups []gpu.Group, nodes, devices []gpu.Series) {
	names := map[string]bool{}
	for _, g := range groups {
		for _, n := range g.Nodes {
			names[n] = true
		}
	}
	o.nodes, o.devices = []gpu.Series{}, []gpu.Series{}
	for _, s := range nodes {
		if names[gpu.NodeName(s)] {
			o.nodes = append(o.nodes, s)
		}
	}
	// A group is found by the value of a label: looking at each for each series takes too long.
	type place struct{ label, value string }
	of := map[place][]int{}
	for i, g := range groups {
		for _, c := range g.Devices {
			for _, v := range c.Values {
				of[place{c.Label, v}] = append(of[place{c.Label, v}], i)
			}
		}
	}
	for _, s := range devices {
		label := gpu.DeviceLabel(s)
		if slices.ContainsFunc(of[place{label, s.Labels[label]}], func(i int) bool { return groups[i].Has(s) }) {
			o.devices = append(o.devices, s)
		}
	}
}

// List implements ingest.Source: of nodes and devices, those that were chosen.
func (o *observed) List(ctx context.Context, sel ingest.Selector, span period.Span, fn func(gpu.Series) error) error {
	known := o.nodes
	switch {
	case o.nodes == nil || len(sel.OneOf) > 0:
		return o.Source.List(ctx, sel, span, fn)
	case slices.Equal(sel.Metrics, gpu.NodeMetrics):
	case slices.Equal(sel.Metrics, o.settings.DeviceMetrics()):
		known = o.devices
	default:
		return o.Source.List(ctx, sel, span, fn)
	}
	for _, s := range known {
		if err := fn(s); err != nil {
			return err
		}
	}
	return nil
}

// Select implements ingest.Source.
func (o *observed) Select(ctx context.Context, sel ingest.Selector, span period.Span, fn func(gpu.Series) error) error {
	return o.Source.Select(ctx, sel, span, func(s gpu.Series) error {
		o.note(s)
		return fn(s)
	})
}

func (o *observed) note(s gpu.Series) {
	if len(s.Samples) == 0 {
		return
	}
	last := s.Samples[len(s.Samples)-1].UnixMilli
	o.mu.Lock()
	defer o.mu.Unlock()
	o.metrics[s.Metric]++
	switch s.Metric {
	case "kube_node_labels", "kube_pod_labels", "kube_namespace_labels":
		o.noteLabels(s, "label_")
	case "kube_pod_annotations":
		o.noteLabels(s, "annotation_")
	case gpu.RequestMetric:
		if slices.Contains(gpu.LimitMarks, s.Labels["resource"]) {
			o.limited[s.Labels["uid"]] = true
		}
	}
	if metric, _ := gpu.OwnerToFollow(s); metric != "" {
		o.follow[metric] = true
	}
	signs, uuid, index, node, ok := o.settings.SignsOf(s)
	if !ok {
		return
	}
	key := uuid
	if key == "" {
		key = node
	} else if index != "" {
		o.index[uuid] = index
	}
	if o.signs[key] == nil {
		o.signs[key] = map[gpu.Signs]int64{}
	}
	o.signs[key][signs] = max(o.signs[key][signs], last)
}

func (o *observed) noteLabels(s gpu.Series, prefix string) {
	if o.labels[s.Metric] == nil {
		o.labels[s.Metric] = map[string]bool{}
	}
	for name, v := range s.Labels {
		if key, ok := strings.CutPrefix(name, prefix); ok && v != "" {
			o.labels[s.Metric][key] = true
		}
	}
}

// current is how long before the newest sample of a device a series may have ended and
// still tell what its exporter is now: one that was replaced has ended before.
const current = 10 * time.Minute

// exporters are what the series of some devices, and those of their node that have no
// device, tell of their exporters now, by preset and in order.
func (o *observed) exporters(node string, uuids []string) []gpu.Signs {
	o.mu.Lock()
	defer o.mu.Unlock()
	var newest int64
	keys := append([]string{node}, uuids...)
	for _, k := range keys {
		for _, last := range o.signs[k] {
			newest = max(newest, last)
		}
	}
	by := map[string]gpu.Signs{}
	for _, k := range keys {
		for s, last := range o.signs[k] {
			if last < newest-current.Milliseconds() {
				continue
			}
			if have, ok := by[s.Preset]; ok {
				s = have.With(s)
			}
			by[s.Preset] = s
		}
	}
	out := make([]gpu.Signs, 0, len(by))
	for _, k := range slices.Sorted(maps.Keys(by)) {
		out = append(out, by[k])
	}
	return out
}

func (o *observed) countOf(metrics ...string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := 0
	for _, m := range metrics {
		n += o.metrics[m]
	}
	return n
}
