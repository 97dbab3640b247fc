package gpu

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
