// Package ingest loads one period of bills, samples or inventory, once.
package ingest

import (
	"context"
	"time"

	"gpuledger/billing/period"
	"gpuledger/gpu"
)

// Selector chooses series: any of the metric names, with every label equal, and each
// label of OneOf equal to one of its values (none: no series).
type Selector struct {
	Metrics []string
	Equal   map[string]string
	OneOf   map[string][]string
}

// Source reads true samples with their true timestamps from one telemetry store.
type Source interface {
	// Select calls fn once for each matching series with samples in the span
	// (start inclusive, end exclusive). The series is fn's to keep, and not to change:
	// several may share their samples. Series come in no particular order. An error
	// from fn stops the read.
	Select(ctx context.Context, sel Selector, span period.Span, fn func(gpu.Series) error) error

	// List calls fn once for each matching series that may have samples in the span,
	// without its samples: a store may name series of a little before or after it.
	List(ctx context.Context, sel Selector, span period.Span, fn func(gpu.Series) error) error

	// Describe says what the store is and which time it holds. It is read-only
	// and cheap.
	Describe(ctx context.Context) (Description, error)
}

// Description is what a source says of itself.
type Description struct {
	Driver  string    // "remote_read", "query" or "openmetrics"
	Version string    // the server's version, "" where unknown
	Oldest  time.Time // first instant it holds; zero where unknown
	Newest  time.Time
	Forgets bool   // its samples expire, as a server's do: hours before Oldest are lost
	Detail  string // one sentence for a person
}

// Partial is a Source that may have been allowed to answer in part.
type Partial interface {
	Source
	// Warnings are the different warnings of a store so far, each saying that an
	// answer may lack data.
	Warnings() []string
}
