package ingest

import (
	"context"
	"errors"
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
	kept     bool // windows are kept whole by who gets them

	groups     []gpu.Group
	listed     *gpu.Inventory // what they were made with
	nodeLabels []string       // of kube-state-metrics' series: node, exported_node, or both
	perSeries  float64        // samples of a series in an hour, as seen so far
}

// valuesPerRequest bounds the values of a label that one request names.
const valuesPerRequest = 500

// plan finds the groups of nodes and devices that can be read apart from each other. It
// lists series and reads no samples.
func (f *folding) plan(ctx context.Context, span period.Span) error {
	read := span.Grow(gpu.Neighbourhood)
	var inventory, devices []gpu.Series
	list := func(into *[]gpu.Series, sel Selector) (err error) {
		sel.Equal = f.equal
		*into, err = f.list(ctx, *into, sel, read)
		return err
	}
	if err := list(&inventory, Selector{Metrics: gpu.NodeMetrics}); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	f.nodeLabels = nil
	for _, s := range inventory {
		label := "node"
		if s.Labels["exported_node"] != "" {
			label = "exported_node"
		}
		if !slices.Contains(f.nodeLabels, label) {
			f.nodeLabels = append(f.nodeLabels, label)
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
	f.listed = gpu.NewInventory(inventory, f.settings, span)
	f.groups = gpu.Groups(f.listed, devices, f.settings)
	return nil
}

// list adds the series of a selector, in parts where they are too many at once.
func (f *folding) list(ctx context.Context, all []gpu.Series, sel Selector, span period.Span) ([]gpu.Series, error) {
	n := len(all)
	err := f.src.List(ctx, sel, span, func(s gpu.Series) error {
		all = append(all, s)
		return nil
	})
	a, b, ok := halves(sel)
	if !ok || !errors.Is(err, ErrTooLarge) {
		return all, err
	}
	if all, err = f.list(ctx, all[:n], a, span); err != nil {
		return all, err
	}
	return f.list(ctx, all, b, span)
}

// series counts those of all devices.
func (f *folding) series() int {
	n := 0
	for _, g := range f.groups {
		n += g.Series
	}
	return n
}
