package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"gpuledger/gpu"
)

// findings are what loaded hours show to be wrong with a cluster's telemetry, each with
// the nodes and how many of their hours.
type findings map[string]map[string]int

// telemetryFaults are flags that somebody can do something about.
var telemetryFaults = []struct {
	flag gpu.Flags
	says string
}{
	{gpu.FlagMappingFailed, "every pod shows 0 bytes while the GPU is full: charges go by request; give the exporter hostPID: true"},
	{gpu.FlagFrozen, "the exporter repeats what it last knew: that time is not measured; restart it"},
	{gpu.FlagModeUnknown, "nothing tells how the GPUs are shared: charges are even among holders; export gpu-feature-discovery's labels, or set modes:"},
	{gpu.FlagCopied, "the device's figure is copied to each pod: charges go by request; see docs/telemetry.md for true bytes"},
	{gpu.FlagRogue, "pods use GPUs that they did not request: by NVIDIA_VISIBLE_DEVICES, or as privileged pods"},
}

// add looks through an hour.
func (f findings) add(h gpu.ClusterHour) {
	for _, n := range h.Nodes {
		var all gpu.Flags
		for _, d := range n.Devices {
			for _, p := range d.Partitions {
				for _, r := range p.Rows {
					all |= r.Flags
				}
			}
		}
		for _, fault := range telemetryFaults {
			if all&fault.flag == 0 {
				continue
			}
			if f[fault.says] == nil {
				f[fault.says] = map[string]int{}
			}
			f[fault.says][n.Node]++
		}
	}
}

// say logs each finding once for a load.
func (f findings) say(a *app, cluster string) {
	for _, fault := range telemetryFaults {
		nodes := f[fault.says]
		if len(nodes) == 0 {
			continue
		}
		hours := 0
		for _, n := range nodes {
			hours += n
		}
		names := slices.Sorted(maps.Keys(nodes))
		shown := strings.Join(names[:min(5, len(names))], ", ")
		if more := len(names) - 5; more > 0 {
			shown += fmt.Sprintf(" and %d more", more)
		}
		a.log.Warn(fault.says, "cluster", cluster, "node_hours", hours, "nodes", shown)
	}
}
