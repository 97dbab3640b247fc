package main

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/ingest"
	"gpuledger/warehouse"
)

// sampleLoad reads hours of one cluster from its sources.
type sampleLoad struct {
	a        *app
	db       *database
	cl       ClusterConfig
	allow    lessAllowed
	total    warehouse.SampleResult
	full     int                 // hours of which something was read
	empty    map[int64]emptyHour // read, and nothing was there
	nothing  map[int64]bool      // nothing was there before, and nothing is listed now
	late     bool                // a later source may hold what one has nothing of
	findings findings
}

// lessAllowed is what the re-read of an hour may take away.
type lessAllowed struct {
	less  bool // measured time, nodes, inventory
	empty bool // all of it, where nothing was read
}

// emptyHour is an hour of which a source answered that it has nothing.
type emptyHour struct {
	from *source
	hour gpu.ClusterHour
}

// loadSamples reads the complete hours of a span that the sources still hold: all of
// them, or with missing only those not yet covered. Each hour comes whole from the first
// source that has something of it; an hour of which none has anything is stored as
// uncovered. Hours that no source holds any more and that were never read are lost: they
// are returned, oldest first, and never stored as uncovered.
func (a *app) loadSamples(ctx context.Context, db *database, cl ClusterConfig, sources *clusterSources, span period.Span, missing bool, allow lessAllowed) (lost []time.Time, err error) {
	asked := ingest.Complete(span, a.now())
	if asked.Empty() {
		return nil, nil
	}
	covered, err := db.CoveredHours(ctx, cl.ID, asked)
	if err != nil {
		return nil, err
	}
	read, err := db.ReadHours(ctx, cl.ID, asked)
	if err != nil {
		return nil, err
	}
	var rest []time.Time
	for _, h := range asked.Hours() {
		if !missing || !covered[h.Unix()] {
			rest = append(rest, h)
		}
	}
	todo := len(rest)
	l := &sampleLoad{a: a, db: db, cl: cl, allow: allow, empty: map[int64]emptyHour{}, nothing: map[int64]bool{}, findings: findings{}}
	failures := append([]error(nil), sources.failures...)
	if len(failures) > 0 { // what a source that is away has is not gone
		l.allow = lessAllowed{}
	}
	for i, src := range sources.open {
		l.late = i+1 < len(sources.open)
		var mine, others []time.Time
		for _, h := range rest {
			if src.holds(h) {
				mine = append(mine, h)
			} else {
				others = append(others, h)
			}
		}
		left, err := l.from(ctx, src, mine, read, missing)
		if err != nil {
			var failed *sourceError
			if !errors.As(err, &failed) {
				return nil, err
			}
			failures = append(failures, err)
			l.allow = lessAllowed{}
			if l.late {
				a.log.Warn("a source failed; its hours are read from the next", "cluster", cl.Name, "source", src.name, "error", err.Error())
			}
		}
		rest = append(others, left...)
		sort.Slice(rest, func(i, j int) bool { return rest[i].Before(rest[j]) })
	}
	if len(failures) == 0 { // else the source that failed may have something of them
		if err := l.saveEmpty(ctx); err != nil {
			return nil, err
		}
	}
	a.sayPartial(cl, sources)
	l.findings.say(a, cl.Name)
	a.log.Info("samples loaded", "cluster", cl.Name, "span", asked.String(), "driver", sources.drivers(), "hours", todo-len(rest), "node_hours", l.total.NodeHours, "changed", l.total.Changed)
	var unread, never []time.Time
	if len(failures) > 0 {
		for at := range l.empty {
			rest = append(rest, time.Unix(at, 0).UTC())
		}
	}
	for _, h := range rest {
		if _, answered := l.empty[h.Unix()]; answered && len(failures) == 0 || l.nothing[h.Unix()] {
			continue
		}
		_, known := read[h.Unix()]
		if !known {
			never = append(never, h)
		}
		if !known || sources.hold(h) {
			unread = append(unread, h)
		}
	}
	if len(failures) > 0 { // what a source that failed may hold is not lost
		if len(unread) > 0 {
			return nil, errors.Join(failures...)
		}
		return nil, l.refused(missing)
	}
	lost = sources.lost(never)
	if !missing && l.full == 0 && len(lost) == 0 { // asked for by name, and the load ends well
		a.log.Warn("no source has anything of the span; gpuledger doctor says what each holds", "cluster", cl.Name, "span", asked.String())
	}
	return lost, l.refused(missing)
}

// refused is an error for who asked for the hours, and a warning where they are looked at
// again by themselves: what is stored stays, and says more.
func (l *sampleLoad) refused(missing bool) error {
	switch less := l.total.Less; {
	case less == nil:
		return nil
	case missing:
		l.a.log.Warn("hours have less now than when they were read, and stay as they were", "cluster", l.cl.Name, "node_hours", less.NodeHours, "hours", less.Hours, "first", less.Node+" at "+less.Hour.Format(time.RFC3339))
		return nil
	default:
		return less
	}
}

// from reads hours from one source, and returns those that are left to the next: where it
// has nothing, and where it failed.
func (l *sampleLoad) from(ctx context.Context, src *source, hours []time.Time, read map[int64]bool, missing bool) (left []time.Time, err error) {
	done := map[int64]bool{}
	finish := func() []time.Time {
		var out []time.Time
		for _, h := range hours {
			if !done[h.Unix()] {
				out = append(out, h)
			}
		}
		return out
	}
	for _, part := range partsOf(hours, func(h time.Time) bool { there, known := read[h.Unix()]; return missing && known && !there }) {
		if part.knownEmpty {
			there, err := src.hasAny(ctx, part.span)
			if err != nil {
				return finish(), &sourceError{src.name, err}
			}
			if !there { // as before, and not worth reading
				for _, h := range part.span.Hours() {
					done[h.Unix()], l.nothing[h.Unix()] = !l.late, true
				}
				continue
			}
		}
		err := l.db.Locked(ctx, l.a.wait, l.a.sampleLocks(l.cl, part.span), func() error { return l.fold(ctx, src, part.span, done) })
		if err != nil {
			return finish(), err
		}
	}
	return finish(), nil
}

// part is a run of hours to read; knownEmpty: they were read before and nothing was there.
type part struct {
	span       period.Span
	knownEmpty bool
}

func partsOf(hours []time.Time, empty func(time.Time) bool) []part {
	var out []part
	for _, h := range hours {
		e := empty(h)
		if n := len(out); n > 0 && out[n-1].span.End.Equal(h) && out[n-1].knownEmpty == e {
			out[n-1].span.End = h.Add(time.Hour)
			continue
		}
		out = append(out, part{period.Hour(h), e})
	}
	return out
}

// sourceError is a source's, not the ledger's: another source may do.
type sourceError struct {
	source string
	err    error
}

func (e *sourceError) Error() string { return e.source + ": " + e.err.Error() }
func (e *sourceError) Unwrap() error { return e.err }

// savingError keeps what went wrong with storing apart from what went wrong with reading.
type savingError struct{ err error }

func (e *savingError) Error() string { return e.err.Error() }
func (e *savingError) Unwrap() error { return e.err }

// fold reads and stores a span from one source. Each piece is stored as it comes, so
// that a source that dies leaves the finished hours, and they are not read again.
func (l *sampleLoad) fold(ctx context.Context, src *source, span period.Span, done map[int64]bool) error {
	started := l.a.now()
	stop := l.a.progress(fmt.Sprintf("samples of %s, %s", l.cl.Name, span))
	defer stop()
	defer collectLess()()
	err := ingest.FoldWhole(ctx, src.Source, src.cl.Metrics.Match, l.cl.settings(), span, func(c ingest.Chunk) error {
		var full []gpu.ClusterHour
		for _, h := range c.Hours {
			if !src.watch.has(h.Hour) {
				if l.empty[h.Hour.Unix()].from == nil {
					l.empty[h.Hour.Unix()] = emptyHour{src, h}
				}
				done[h.Hour.Unix()] = !l.late
				continue
			}
			full = append(full, h)
		}
		if err := l.save(ctx, src, full, c.Series, c.Samples, started); err != nil {
			return &savingError{err}
		}
		for _, h := range full {
			done[h.Hour.Unix()] = true
			l.full++
			delete(l.empty, h.Hour.Unix())
			l.remark(h)
		}
		return nil
	})
	var saving *savingError
	var clash gpu.Clash
	switch {
	case err == nil:
		return nil
	case errors.As(err, &saving):
		return saving.err
	case errors.As(err, &clash), ctx.Err() != nil:
		return err
	}
	return &sourceError{src.name, err}
}

// save stores hours, those that follow one another under one name at once.
func (l *sampleLoad) save(ctx context.Context, src *source, hours []gpu.ClusterHour, series, samples int64, started time.Time) error {
	for len(hours) > 0 {
		n := 1
		for n < len(hours) && hours[n].Hour.Equal(hours[n-1].Hour.Add(time.Hour)) && src.nameAt(hours[n].Hour) == src.nameAt(hours[0].Hour) {
			n++
		}
		res, err := l.db.SaveHours(ctx, warehouse.SampleLoad{
			Cluster: l.cl.ID, ClusterName: src.nameAt(hours[0].Hour), Span: period.Span{Start: hours[0].Hour, End: hours[n-1].Hour.Add(time.Hour)},
			Driver: src.about.Driver, ServerVersion: src.about.Version, Source: src.described(), Warnings: src.warnings(), Settings: settingsHash(src.cl),
			Series: series, Samples: samples, Started: started, AllowLess: l.allow.less, AllowEmpty: l.allow.empty,
		}, hours[:n])
		if err != nil {
			return err
		}
		l.total.NodeHours += res.NodeHours
		l.total.Changed += res.Changed
		l.total.Less = l.total.Less.Join(res.Less)
		hours, series, samples = hours[n:], 0, 0 // what was read is counted once
	}
	return nil
}

// saveEmpty stores hours of which no source had anything as uncovered.
func (l *sampleLoad) saveEmpty(ctx context.Context) error {
	bySource := map[*source][]gpu.ClusterHour{}
	var order []*source
	for _, e := range l.empty {
		if bySource[e.from] == nil {
			order = append(order, e.from)
		}
		bySource[e.from] = append(bySource[e.from], e.hour)
	}
	sort.Slice(order, func(i, j int) bool { return order[i].ordinal < order[j].ordinal })
	for _, src := range order {
		hours := bySource[src]
		sort.Slice(hours, func(i, j int) bool { return hours[i].Hour.Before(hours[j].Hour) })
		for _, p := range periodsOf(hours) {
			err := l.db.Locked(ctx, l.a.wait, l.a.sampleLocks(l.cl, p.span), func() error { return l.save(ctx, src, p.hours, 0, 0, l.a.now()) })
			if err != nil {
				return err
			}
		}
	}
	return nil
}

type hoursOf struct {
	span  period.Span
	hours []gpu.ClusterHour
}

func periodsOf(hours []gpu.ClusterHour) []hoursOf {
	var out []hoursOf
	for _, h := range hours {
		if n := len(out); n > 0 && out[n-1].span.End.Equal(h.Hour) {
			out[n-1].span.End = h.Hour.Add(time.Hour)
			out[n-1].hours = append(out[n-1].hours, h)
			continue
		}
		out = append(out, hoursOf{period.Hour(h.Hour), []gpu.ClusterHour{h}})
	}
	return out
}

// remark says what is odd about an hour.
func (l *sampleLoad) remark(h gpu.ClusterHour) {
	l.findings.add(h)
	if seen := h.CoveredMicros; seen > 0 && seen < partlySeen {
		l.a.log.Warn("the inventory was seen for a part of the hour only; the next run reads it again while the source holds it", "cluster", l.cl.Name, "hour", h.Hour.Format(time.RFC3339), "seconds", seen/1_000_000)
	}
	if len(h.Unplaced) > 0 {
		l.a.log.Warn("devices of no known node are left out", "cluster", l.cl.Name, "hour", h.Hour.Format(time.RFC3339), "uuids", h.Unplaced)
	}
}

func (a *app) sampleLocks(cl ClusterConfig, s period.Span) []string {
	set := map[string]bool{}
	for _, h := range s.Hours() {
		set["samples/"+cl.ID+"/"+period.MonthOf(h).String()] = true
	}
	var out []string
	for k := range set {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

// spansOf names hours as ranges, for a person.
func spansOf(hours []time.Time) string {
	var out []string
	for _, p := range partsOf(hours, func(time.Time) bool { return false }) {
		out = append(out, p.span.Start.Format(time.RFC3339)+" to "+p.span.End.Format(time.RFC3339))
	}
	return strings.Join(out, ", ")
}
