package ingest

import (
	"context"
	"fmt"
	"slices"

	"gpuledger/billing/period"
	"gpuledger/gpu"
)

// folding reads a span from one source.
type folding struct {
	src      Source
	equal    map[string]string
	settings gpu.Settings
	emit     func(Chunk) error

	groups    []gpu.Group
	nodeLabel string  // of kube-state-metrics' series
	perSeries float64 // samples of a series in an hour, as seen so far
}

// valuesPerRequest bounds the values of a label that one request names.
const valuesPerRequest = 500

// plan finds the groups of nodes and devices that can be read apart from each other. It
// lists series and reads no samples.
func (f *folding) plan(ctx context.Context, span period.Span) error {
	read := span.Grow(gpu.Neighbourhood)
	var inventory, devices []gpu.Series
	list := func(into *[]gpu.Series, sel Selector) error {
		sel.Equal = f.equal
		return f.src.List(ctx, sel, read, func(s gpu.Series) error {
			*into = append(*into, s)
			return nil
		})
	}
	if err := list(&inventory, Selector{Metrics: gpu.NodeMetrics}); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	f.nodeLabel = "node"
	for _, s := range inventory {
		if s.Labels["exported_node"] != "" {
			f.nodeLabel = "exported_node"
			break
		}
	}
	if err := list(&devices, Selector{Metrics: f.settings.DeviceMetrics()}); err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	nodes := gpu.NewInventory(slices.Clone(inventory), f.settings, span)
	for names := range slices.Chunk(gpu.NamesOfPods(nodes, devices, f.settings), valuesPerRequest) {
		for _, label := range []string{"pod", "exported_pod"} {
			if err := list(&inventory, Selector{Metrics: []string{"kube_pod_info"}, OneOf: map[string][]string{label: names}}); err != nil {
				return fmt.Errorf("list exporters' pods: %w", err)
			}
		}
	}
	f.groups = gpu.Groups(gpu.NewInventory(inventory, f.settings, span), devices, f.settings)
	return nil
}

// series counts those of all devices.
func (f *folding) series() int {
	n := 0
	for _, g := range f.groups {
		n += g.Series
	}
	return n
}
