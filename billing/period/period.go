// Package period holds half-open intervals of UTC time: hours, days, months.
package period

import (
	"fmt"
	"time"
)

// Span is the half-open interval [Start, End).
type Span struct{ Start, End time.Time }

// Empty reports whether the span holds no time.
func (s Span) Empty() bool { return !s.Start.Before(s.End) }

// Duration returns End - Start, or 0 for an empty span.
func (s Span) Duration() time.Duration {
	if s.Empty() {
		return 0
	}
	return s.End.Sub(s.Start)
}

// Micros returns the duration in whole microseconds.
func (s Span) Micros() int64 { return s.Duration().Microseconds() }

// Contains reports whether t is in [Start, End).
func (s Span) Contains(t time.Time) bool { return !t.Before(s.Start) && t.Before(s.End) }

// Intersect returns the common part, which may be empty.
func (s Span) Intersect(o Span) Span {
	if o.Start.After(s.Start) {
		s.Start = o.Start
	}
	if o.End.Before(s.End) {
		s.End = o.End
	}
	return s
}

// Grow returns the span with d added on either side.
func (s Span) Grow(d time.Duration) Span { return Span{s.Start.Add(-d), s.End.Add(d)} }

// Hours returns the starts of the UTC hours that overlap the span, in order.
func (s Span) Hours() []time.Time {
	if s.Empty() {
		return nil
	}
	var out []time.Time
	for t := s.Start.UTC().Truncate(time.Hour); t.Before(s.End); t = t.Add(time.Hour) {
		out = append(out, t)
	}
	return out
}

// String renders the span as RFC 3339 start/end.
func (s Span) String() string {
	return s.Start.UTC().Format(time.RFC3339) + "/" + s.End.UTC().Format(time.RFC3339)
}

// Hour returns the UTC hour that starts at or before t.
func Hour(t time.Time) Span {
	start := t.UTC().Truncate(time.Hour)
	return Span{start, start.Add(time.Hour)}
}

// Day returns midnight UTC of t's day.
func Day(t time.Time) time.Time {
	y, m, d := t.UTC().Date()
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
}

// Month is a UTC calendar month: the first instant of it.
type Month struct{ first time.Time }

// MonthOf returns the month that holds t.
func MonthOf(t time.Time) Month {
	y, m, _ := t.UTC().Date()
	return Month{time.Date(y, m, 1, 0, 0, 0, 0, time.UTC)}
}

// ParseMonth reads "2026-10".
func ParseMonth(s string) (Month, error) {
	t, err := time.Parse("2006-01", s)
	if err != nil {
		return Month{}, fmt.Errorf("period %q is not a month like 2026-10", s)
	}
	return Month{t}, nil
}

// Start returns the first instant of the month.
func (m Month) Start() time.Time { return m.first }

// Span returns the month as an interval.
func (m Month) Span() Span { return Span{m.first, m.first.AddDate(0, 1, 0)} }

// Next returns the month after m.
func (m Month) Next() Month { return Month{m.first.AddDate(0, 1, 0)} }

// IsZero reports whether m was never set.
func (m Month) IsZero() bool { return m.first.IsZero() }

// String renders the month as "2026-10".
func (m Month) String() string { return m.first.Format("2006-01") }
