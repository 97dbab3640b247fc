package ingest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"gpuledger/billing/period"
	"gpuledger/gpu"
)

// common is what of a window every group needs.
type common struct {
	series []gpu.Series            // of no node
	info   map[string][]gpu.Series // kube_node_info by node
	claims map[string][]gpu.Series // by namespace/name of the claim
}

// window reads and folds some hours, group by group.
func (f *folding) window(ctx context.Context, hours []time.Time) error {
	w := &reading{folding: f, hours: hours, span: spanOf(hours)}
	all, err := w.common(ctx)
	if half := len(hours) / 2; half > 0 && errors.Is(err, ErrTooLarge) {
		if err := f.window(ctx, hours[:half]); err != nil {
			return err
		}
		return f.window(ctx, hours[half:])
	}
	if err != nil {
		return fmt.Errorf("inventory: %w", err)
	}
	// What is true of the cluster, and of every hour even where nothing is on it.
	if err := w.fold(hours, all.series, nil); err != nil {
		return err
	}
	perGroup := max(1, int(samplesPerRead/(f.perSeries*w.span.Grow(gpu.Neighbourhood).Duration().Hours())))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readsAtOnce)
	for members := range packed(f.groups, perGroup) {
		g.Go(func() error { return w.group(ctx, all, hours, members) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if w.deviceHours > 0 {
		f.perSeries = max(1, float64(w.deviceSamples)/w.deviceHours)
	}
	return f.emit(Chunk{Span: w.span, Window: w.span, Last: true, Series: w.series, Samples: w.samples})
}

// packed yields runs of groups of at most so many series in all, or a single one that
// has more.
func packed(groups []gpu.Group, series int) func(func([]gpu.Group) bool) {
	return func(yield func([]gpu.Group) bool) {
		for len(groups) > 0 {
			n, sum := 1, groups[0].Series
			for n < len(groups) && sum+groups[n].Series <= series {
				sum += groups[n].Series
				n++
			}
			if !yield(groups[:n]) {
				return
			}
			groups = groups[n:]
		}
	}
}

// reading is one window of a folding.
type reading struct {
	*folding
	hours []time.Time
	span  period.Span

	mu            sync.Mutex // guards emit and the sums
	series        int64
	samples       int64
	deviceSamples int64
	deviceHours   float64 // series × hours
}

// common reads what is of no single node, and when the inventory itself was there.
func (w *reading) common(ctx context.Context) (*common, error) {
	read := w.span.Grow(gpu.Neighbourhood)
	all := &common{info: map[string][]gpu.Series{}, claims: map[string][]gpu.Series{}}
	info, err := w.read(ctx, Selector{Metrics: []string{"kube_node_info"}}, read, false)
	if err != nil {
		return nil, err
	}
	for _, s := range info {
		n := gpu.NodeName(s)
		all.info[n] = append(all.info[n], s)
	}
	all.series = gpu.Coverage(info)
	rest, err := w.read(ctx, Selector{Metrics: gpu.ClusterMetrics}, read, len(w.hours) == 1)
	if err != nil {
		return nil, err
	}
	for _, s := range rest {
		if claim, ok := gpu.ClaimOf(s); ok {
			all.claims[claim] = append(all.claims[claim], s)
		} else {
			all.series = append(all.series, s)
		}
	}
	return all, nil
}

// group reads some groups together and folds their hours. What the source finds too
// large is halved: the hours, then the groups, then what one request names.
func (w *reading) group(ctx context.Context, all *common, hours []time.Time, members []gpu.Group) error {
	single := len(hours) == 1 && len(members) == 1
	err := w.attempt(ctx, all, hours, members, single)
	if !errors.Is(err, ErrTooLarge) || single {
		return err
	}
	switch half, part := len(hours)/2, len(members)/2; {
	case half > 0:
		if err := w.group(ctx, all, hours[:half], members); err != nil {
			return err
		}
		return w.group(ctx, all, hours[half:], members)
	default:
		if err := w.group(ctx, all, hours, members[:part]); err != nil {
			return err
		}
		return w.group(ctx, all, hours, members[part:])
	}
}

func (w *reading) attempt(ctx context.Context, all *common, hours []time.Time, members []gpu.Group, inParts bool) error {
	g := gpu.Join(members)
	span := spanOf(hours).Grow(gpu.Neighbourhood)
	var devices []gpu.Series
	for _, c := range g.Devices {
		for some := range slices.Chunk(c.Values, valuesPerRequest) {
			sel := Selector{Metrics: c.Metrics, OneOf: map[string][]string{c.Label: some}}
			if c.Label == "" {
				sel.OneOf = nil
			}
			series, err := w.read(ctx, sel, span, inParts)
			if err != nil {
				return fmt.Errorf("device samples: %w", err)
			}
			for _, s := range series {
				if g.Owns(s, w.listed, w.settings) {
					devices = append(devices, s)
				}
			}
		}
	}
	inv := &podReader{reading: w, span: span, inParts: inParts, uids: map[string]bool{}, names: map[string]bool{}}
	inventory, err := inv.read(ctx, all, g.Nodes, devices)
	if err != nil {
		return fmt.Errorf("inventory: %w", err)
	}
	w.mu.Lock()
	for _, s := range devices {
		w.deviceSamples += int64(len(s.Samples))
	}
	w.deviceHours += float64(len(devices)) * span.Duration().Hours()
	w.mu.Unlock()
	return w.fold(hours, inventory, devices)
}

// fold folds hours from what was read for them and passes them on.
func (w *reading) fold(hours []time.Time, inventory, devices []gpu.Series) error {
	c := Chunk{Span: spanOf(hours), Window: w.span}
	var err error
	for _, h := range hours {
		around := period.Hour(h).Grow(gpu.Neighbourhood)
		folded := gpu.FoldHour(clip(inventory, around), clip(devices, around), h, w.settings)
		for _, clash := range folded.Clashes {
			err = errors.Join(err, fmt.Errorf("%s: %w", h.Format(time.RFC3339), clash))
		}
		c.Hours = append(c.Hours, folded)
	}
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.emit(c)
}

// read gathers series; in parts, where one request is too large, by the families and
// then by the values that it names.
func (w *reading) read(ctx context.Context, sel Selector, span period.Span, inParts bool) ([]gpu.Series, error) {
	out, err := w.request(ctx, sel, span)
	if !inParts || !errors.Is(err, ErrTooLarge) {
		return out, err
	}
	a, b, ok := halves(sel)
	if !ok {
		return nil, err
	}
	if out, err = w.read(ctx, a, span, true); err != nil {
		return nil, err
	}
	rest, err := w.read(ctx, b, span, true)
	return append(out, rest...), err
}

// halves cuts a selector in two; false where nothing of it can be cut.
func halves(sel Selector) (a, b Selector, ok bool) {
	a, b = sel, sel
	if n := len(sel.Metrics) / 2; n > 0 {
		a.Metrics, b.Metrics = sel.Metrics[:n], sel.Metrics[n:]
		return a, b, true
	}
	for label, values := range sel.OneOf { // there is one at most
		n := len(values) / 2
		a.OneOf, b.OneOf = map[string][]string{label: values[:n]}, map[string][]string{label: values[n:]}
		return a, b, n > 0
	}
	return a, b, false
}

// request reads series.
func (w *reading) request(ctx context.Context, sel Selector, span period.Span) ([]gpu.Series, error) {
	sel.Equal = w.equal
	var out []gpu.Series
	var samples int64
	err := w.src.Select(ctx, sel, span, func(s gpu.Series) error {
		s.Prepare()
		samples += int64(len(s.Samples))
		out = append(out, s)
		return nil
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.series, w.samples = w.series+int64(len(out)), w.samples+samples
	return out, err
}

// clip cuts series down to a span, so that an hour is folded from the same samples
// whatever was read with it.
func clip(series []gpu.Series, span period.Span) []gpu.Series {
	from, to := span.Start.UnixMilli(), span.End.UnixMilli()
	out := make([]gpu.Series, 0, len(series))
	for _, s := range series {
		i := sort.Search(len(s.Samples), func(i int) bool { return s.Samples[i].UnixMilli >= from })
		j := sort.Search(len(s.Samples), func(j int) bool { return s.Samples[j].UnixMilli >= to })
		if i < j {
			s.Samples = s.Samples[i:j]
			out = append(out, s)
		}
	}
	return out
}
