package ingest

import (
	"context"
	"errors"
	"time"

	"gpuledger/billing/period"
	"gpuledger/gpu"
)

// Lag is how long after its end an hour is read at the earliest: scrapes and
// remote writes arrive late.
const Lag = 10 * time.Minute

const (
	// samplesPerRead is about how many samples of devices one read brings, beside some
	// times as many of the inventory: what is held in memory does not grow with the fleet
	// or the span.
	samplesPerRead = 250_000
	// maxHoursPerRead bounds the window of one read.
	maxHoursPerRead = 6
	// seriesHoursPerWindow bounds the hours of a window that is kept whole, by the fleet.
	seriesHoursPerWindow = 24_000
	// maxHoursPerPlan is for how long a plan of groups is made: series come and go.
	maxHoursPerPlan = 24
	// readsAtOnce is how many groups are read and folded side by side.
	readsAtOnce = 2
)

// ErrTooLarge reports that a source refuses the amount asked for: a shorter span or
// fewer series may pass.
var ErrTooLarge = errors.New("more data than one request may have: ask for a shorter span or fewer series")

// Chunk is what one read brought: some hours of some nodes, with what it took.
type Chunk struct {
	Span   period.Span
	Hours  []gpu.ClusterHour
	Window period.Span // of which it is a part
	// Last says that the window is complete: each of its node-hours was in one chunk.
	Last bool
	// What the window took, once it is complete.
	Series, Samples int64
}

// Fold reads the hours of a span from a source, window after window, and passes them on
// in chunks, one at a time. Memory grows neither with the span nor with the fleet. Equal
// reads equal labels to choose the cluster within a shared store.
func Fold(ctx context.Context, src Source, equal map[string]string, settings gpu.Settings, span period.Span, emit func(Chunk) error) error {
	f := &folding{src: src, equal: equal, settings: settings, emit: emit}
	return f.run(ctx, span)
}

// FoldWhole passes on whole windows. A window of a large fleet is shorter, for it is kept
// until all of it is there.
func FoldWhole(ctx context.Context, src Source, equal map[string]string, settings gpu.Settings, span period.Span, emit func(Chunk) error) error {
	f := &folding{src: src, equal: equal, settings: settings, emit: whole(emit), kept: true}
	return f.run(ctx, span)
}

func (f *folding) run(ctx context.Context, span period.Span) error {
	f.perSeries = float64(time.Hour / (30 * time.Second)) // until one is seen
	for hours := span.Hours(); len(hours) > 0; {
		n := min(maxHoursPerPlan, len(hours))
		err := f.plan(ctx, spanOf(hours[:n]))
		for ; n > 1 && errors.Is(err, ErrTooLarge); err = f.plan(ctx, spanOf(hours[:n])) {
			n /= 2
		}
		if err != nil {
			return err
		}
		for today := hours[:n]; len(today) > 0; {
			k := min(maxHoursPerRead, len(today))
			if f.kept {
				k = min(k, max(1, seriesHoursPerWindow/max(1, f.series())))
			}
			if err := f.window(ctx, today[:k]); err != nil {
				return err
			}
			today = today[k:]
		}
		hours = hours[n:]
	}
	return nil
}

// whole brings the chunks of each window together for an emit that wants them so.
func whole(emit func(Chunk) error) func(Chunk) error {
	hours := map[time.Time]*gpu.ClusterHour{}
	return func(c Chunk) error {
		for _, h := range c.Hours {
			if hours[h.Hour] == nil {
				hours[h.Hour] = &gpu.ClusterHour{}
			}
			hours[h.Hour].Add(h)
		}
		if !c.Last {
			return nil
		}
		c.Hours = nil
		for _, t := range c.Window.Hours() {
			c.Hours = append(c.Hours, *hours[t])
		}
		clear(hours)
		return emit(c)
	}
}

func spanOf(hours []time.Time) period.Span {
	return period.Span{Start: hours[0], End: hours[len(hours)-1].Add(time.Hour)}
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
