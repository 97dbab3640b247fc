package ingest

import (
	"context"
	"slices"

	"gpuledger/billing/period"
	"gpuledger/gpu"
)

// podReader reads what kube-state-metrics says of a group's nodes and pods.
type podReader struct {
	*reading
	span    period.Span
	inParts bool
	uids    map[string]bool // pods found so far
	names   map[string]bool // of them, namespace/name
	out     []gpu.Series
}

// read returns the inventory of some nodes, of the pods on them, and of other pods that
// the devices' series name.
func (p *podReader) read(ctx context.Context, all *common, nodes []string, devices []gpu.Series) ([]gpu.Series, error) {
	p.out = slices.Clone(all.series)
	for _, n := range nodes {
		p.out = append(p.out, all.info[n]...)
	}
	onNode := append([]string{gpu.PodMetric}, gpu.OnNodeMetrics...)
	for _, label := range p.nodeLabels {
		if err := p.pods(ctx, onNode, label, nodes); err != nil {
			return nil, err
		}
	}
	if len(p.uids) == 0 { // kube-state-metrics may be told to leave it out
		for _, label := range p.nodeLabels {
			if err := p.pods(ctx, []string{gpu.RequestMetric}, label, nodes); err != nil {
				return nil, err
			}
		}
		p.out = slices.DeleteFunc(p.out, func(s gpu.Series) bool { return s.Metric == gpu.RequestMetric }) // it comes again with the pods
	}
	for _, label := range []string{"pod", "exported_pod"} {
		if err := p.pods(ctx, []string{gpu.PodMetric}, label, p.strangers(devices)); err != nil {
			return nil, err
		}
	}
	if err := p.ofPods(ctx); err != nil {
		return nil, err
	}
	if err := p.ofOwners(ctx); err != nil {
		return nil, err
	}
	claims := map[string]bool{}
	for _, s := range slices.Concat(p.out, devices) {
		if c := gpu.ClaimNamed(s); c != "" {
			claims[c] = true
		}
	}
	for _, c := range keysOf(claims) {
		p.out = append(p.out, all.claims[c]...)
	}
	if !p.settings.Usage {
		return p.out, nil
	}
	names := map[string]bool{}
	for _, s := range p.out {
		if name := gpu.PodName(s); name != "" {
			names[name] = true
		}
	}
	for _, label := range []string{"pod", "exported_pod"} {
		if err := p.pods(ctx, gpu.UsageMetrics, label, keysOf(names)); err != nil {
			return nil, err
		}
	}
	return p.out, nil
}

// pods reads the families of the pods, and of the nodes, that a label names.
func (p *podReader) pods(ctx context.Context, metrics []string, label string, values []string) error {
	for some := range slices.Chunk(values, valuesPerRequest) {
		series, err := p.reading.read(ctx, Selector{Metrics: metrics, OneOf: map[string][]string{label: some}}, p.span, p.inParts)
		if err != nil {
			return err
		}
		for _, s := range series {
			// With honorLabels off, node and pod are those of kube-state-metrics itself.
			if other := "exported_" + label; s.Labels[other] != "" {
				continue
			}
			if uid := s.Labels["uid"]; uid != "" {
				p.uids[uid] = true
				p.names[gpu.PodKey(s)] = true
			}
			p.out = append(p.out, s)
		}
	}
	return nil
}

// strangers are the names of pods that series of devices give and the nodes do not have:
// a label may outlive its pod, or be of one that has moved.
func (p *podReader) strangers(devices []gpu.Series) []string {
	set := map[string]bool{}
	for _, s := range devices {
		key, name, uid := p.settings.NamedPod(s)
		if name != "" && !p.names[key] && !p.uids[uid] {
			set[name] = true
		}
	}
	return keysOf(set)
}

// ofPods reads what is said of the pods found so far.
func (p *podReader) ofPods(ctx context.Context) error {
	for some := range slices.Chunk(keysOf(p.uids), valuesPerRequest) {
		series, err := p.reading.read(ctx, Selector{Metrics: gpu.OfPodMetrics, OneOf: map[string][]string{"uid": some}}, p.span, p.inParts)
		if err != nil {
			return err
		}
		p.out = append(p.out, series...)
	}
	return nil
}

func keysOf(set map[string]bool) []string {
	out := make([]string, 0, len(set))
	for k := range set {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
