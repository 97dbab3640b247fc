package ingest

import (
	"context"
	"maps"
	"slices"

	"gpuledger/gpu"
)

// ofOwners reads what owns the pods' ReplicaSets and Jobs, by their names: a cluster
// keeps many that have no pod any more.
func (p *podReader) ofOwners(ctx context.Context) error {
	names := map[string]map[string]bool{}
	for _, s := range p.out {
		if metric, name := gpu.OwnerToFollow(s); metric != "" {
			if names[metric] == nil {
				names[metric] = map[string]bool{}
			}
			names[metric][name] = true
		}
	}
	for _, metric := range slices.Sorted(maps.Keys(gpu.OwnerMetrics)) {
		for some := range slices.Chunk(keysOf(names[metric]), valuesPerRequest) {
			series, err := p.reading.read(ctx, Selector{Metrics: []string{metric}, OneOf: map[string][]string{gpu.OwnerMetrics[metric]: some}}, p.span, p.inParts)
			if err != nil {
				return err
			}
			p.out = append(p.out, series...)
		}
	}
	return nil
}
