package main

import (
	"context"
	"maps"
	"sort"
	"sync"
	"time"

	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/ingest"
)

// watched is a store that remembers of which hours it gave any sample, and under which
// value of a label. A store of several clusters is narrowed to the values that stand for
// one of them.
type watched struct {
	ingest.Source
	label  string // "" where the store is of one cluster
	values []string

	mu   sync.Mutex
	seen map[int64]map[string]int // samples of each series by hour (Unix seconds) and value
}

// watch narrows a store to a cluster and watches what it gives.
func watch(src ingest.Source, cl ClusterConfig) *watched {
	return &watched{Source: src, label: cl.label, values: cl.values, seen: map[int64]map[string]int{}}
}

func (w *watched) narrow(sel ingest.Selector) ingest.Selector {
	if w.label == "" {
		return sel
	}
	oneOf := map[string][]string{w.label: w.values}
	maps.Copy(oneOf, sel.OneOf)
	sel.OneOf = oneOf
	return sel
}

// Select implements ingest.Source.
func (w *watched) Select(ctx context.Context, sel ingest.Selector, span period.Span, fn func(gpu.Series) error) error {
	return w.Source.Select(ctx, w.narrow(sel), span, func(s gpu.Series) error {
		w.note(s)
		return fn(s)
	})
}

// List implements ingest.Source.
func (w *watched) List(ctx context.Context, sel ingest.Selector, span period.Span, fn func(gpu.Series) error) error {
	return w.Source.List(ctx, w.narrow(sel), span, fn)
}

func (w *watched) note(s gpu.Series) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for rest := s.Samples; len(rest) > 0; {
		hour := rest[0].UnixMilli / 3_600_000 * 3_600
		n := sort.Search(len(rest), func(i int) bool { return rest[i].UnixMilli >= (hour+3_600)*1000 })
		if w.seen[hour] == nil {
			w.seen[hour] = map[string]int{}
		}
		w.seen[hour][s.Labels[w.label]] += n
		rest = rest[n:]
	}
}

// has reports whether any sample of an hour came. What was folded does not tell: the last
// sample before the hour and the first after it reach into it.
func (w *watched) has(hour time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.seen[hour.Unix()]) > 0
}

// nameAt is the value that most samples of an hour had, else the given name.
func (w *watched) nameAt(hour time.Time, otherwise string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	best, n := otherwise, 0
	for _, v := range w.values {
		if c := w.seen[hour.Unix()][v]; c > n {
			best, n = v, c
		}
	}
	return best
}
