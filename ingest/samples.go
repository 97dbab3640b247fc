package ingest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sort"
	"time"

	"golang.org/x/sync/errgroup"

	"gpuledger/billing/period"
	"gpuledger/gpu"
)

// Lag is how long after its end an hour is read at the earliest: scrapes and
// remote writes arrive late.
const Lag = 10 * time.Minute

// samplesPerRead bounds one read; a read that brought more makes the next smaller.
const samplesPerRead = 1_000_000

// maxHoursPerRead bounds the window of one read.
const maxHoursPerRead = 6

// Chunk is a stretch of folded hours with what it took to read them.
type Chunk struct {
	Span    period.Span
	Hours   []gpu.ClusterHour
	Series  int64
	Samples int64
}

// Fold reads the hours of a span from a source, in order, and passes them on in
// chunks. Memory does not grow with the span. Equal reads equal labels to choose
// the cluster within a shared store.
func Fold(ctx context.Context, src Source, equal map[string]string, settings gpu.Settings, span period.Span, emit func(Chunk) error) error {
	hours := span.Hours()
	size := maxHoursPerRead
	for len(hours) > 0 {
		n := min(size, len(hours))
		c, err := foldChunk(ctx, src, equal, settings, hours[:n])
		if err != nil {
			return err
		}
		if err := emit(c); err != nil {
			return err
		}
		hours = hours[n:]
		switch {
		case c.Samples > samplesPerRead && size > 1:
			size /= 2
		case c.Samples < samplesPerRead/4 && size < maxHoursPerRead:
			size++
		}
	}
	return nil
}

func foldChunk(ctx context.Context, src Source, equal map[string]string, settings gpu.Settings, hours []time.Time) (Chunk, error) {
	c := Chunk{Span: period.Span{Start: hours[0], End: hours[len(hours)-1].Add(time.Hour)}}
	read := c.Span.Grow(gpu.Neighbourhood)
	families := gpu.InventoryMetrics
	if settings.Usage {
		families = append(slices.Clone(families), gpu.UsageMetrics...)
	}
	inventory, err := c.read(ctx, src, Selector{Metrics: families, Equal: equal}, read)
	if err != nil {
		return c, fmt.Errorf("inventory: %w", err)
	}
	devices, err := c.read(ctx, src, Selector{Metrics: gpu.DeviceMetrics, Equal: equal}, read)
	if err != nil {
		return c, fmt.Errorf("device samples: %w", err)
	}
	c.Hours = make([]gpu.ClusterHour, len(hours))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, h := range hours {
		g.Go(func() error {
			around := period.Hour(h).Grow(gpu.Neighbourhood)
			c.Hours[i] = gpu.FoldHour(clip(inventory, around), clip(devices, around), h, settings)
			return nil
		})
	}
	err = g.Wait()
	for _, h := range c.Hours {
		for _, clash := range h.Clashes {
			err = errors.Join(err, fmt.Errorf("%s: %w", h.Hour.Format(time.RFC3339), clash))
		}
	}
	return c, err
}

func (c *Chunk) read(ctx context.Context, src Source, sel Selector, span period.Span) ([]gpu.Series, error) {
	var out []gpu.Series
	err := src.Select(ctx, sel, span, func(s gpu.Series) error {
		c.Series++
		c.Samples += int64(len(s.Samples))
		s.Prepare()
		out = append(out, s)
		return nil
	})
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

// Complete cuts a span to whole hours that have ended long enough ago to be read.
func Complete(span period.Span, now time.Time) period.Span {
	span.Start = span.Start.UTC().Truncate(time.Hour)
	if end := now.Add(-Lag).UTC().Truncate(time.Hour); span.End.After(end) {
		span.End = end
	}
	if t := span.End.UTC().Truncate(time.Hour); t.Before(span.End) {
		span.End = t.Add(time.Hour)
	}
	return span
}
