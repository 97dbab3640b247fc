package gpu

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"strings"
)

// Sample is one true sample with its own timestamp, never a value at a query step.
type Sample struct {
	UnixMilli int64
	Value     float64
}

// Series is a run of samples of one metric with one label set, in ascending
// order of time, at most one sample an instant, NaN (and so stale markers) removed.
type Series struct {
	Metric  string            // without type suffixes added or removed
	Labels  map[string]string // without __name__; an empty value means absent and is left out
	Samples []Sample

	Key string // LabelKey of Labels once Prepare was called, else ""

	// ObjectLabels are those of the object, in a family of them, once Prepare was called.
	ObjectLabels map[string]string
}

// Prepare works out once what ordering needs of the labels. It changes nothing else:
// a series that is folded many times is ordered faster.
func (s *Series) Prepare() {
	s.Key = LabelKey(s.Labels)
	if prefix := objectLabels[s.Metric]; prefix != "" {
		s.ObjectLabels = prefixed(s.Labels, prefix)
	}
}

// objectLabels are the families that carry the labels of an object, with what stands
// before each.
var objectLabels = map[string]string{
	"kube_node_labels": "label_", "kube_pod_labels": "label_", "kube_namespace_labels": "label_", "kube_pod_annotations": "annotation_",
}

// ofObject returns the labels of the object that the series is of.
func (s *Series) ofObject() map[string]string {
	if s.ObjectLabels == nil {
		s.ObjectLabels = prefixed(s.Labels, objectLabels[s.Metric])
	}
	return s.ObjectLabels
}

// order sorts series by metric, then by how many samples they have within the hour and
// the time of the last of them, then by labels, so that nothing depends on the order in
// which a source returns them. Of two label sets of one object the one that held longest
// in the hour wins, of two as long the later: what came after it belongs to the next.
func order(series []Series, hour interval) {
	type rank struct {
		at, held int
		last     int64
	}
	ranks := make([]rank, len(series))
	for i := range series {
		s := &series[i]
		if s.Key == "" {
			s.Prepare()
		}
		before := func(t int64) int {
			return sort.Search(len(s.Samples), func(k int) bool { return s.Samples[k].UnixMilli*1000 >= t })
		}
		n := before(hour.end)
		ranks[i] = rank{i, n - before(hour.start), math.MinInt64}
		if n > 0 {
			ranks[i].last = s.Samples[n-1].UnixMilli
		}
	}
	slices.SortFunc(ranks, func(x, y rank) int {
		a, b := &series[x.at], &series[y.at]
		if c := strings.Compare(a.Metric, b.Metric); c != 0 {
			return c
		}
		switch {
		case x.held != y.held:
			return x.held - y.held
		case x.last != y.last:
			return cmp.Compare(x.last, y.last)
		}
		if c := strings.Compare(a.Key, b.Key); c != 0 {
			return c
		}
		return x.at - y.at
	})
	all := slices.Clone(series)
	for i, r := range ranks {
		series[i] = all[r.at]
	}
}

// LabelKey renders a label set canonically.
func LabelKey(l map[string]string) string {
	names := make([]string, 0, len(l))
	for n := range l {
		names = append(names, n)
	}
	sort.Strings(names)
	var b strings.Builder
	for _, n := range names {
		b.WriteString(n)
		b.WriteByte(0)
		b.WriteString(l[n])
		b.WriteByte(0)
	}
	return b.String()
}
