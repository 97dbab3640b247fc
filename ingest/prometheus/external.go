package prometheus

import (
	"context"
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"

	"gpuledger/ingest"
)

// externalLabels are the labels that a Prometheus adds to whatever it hands out by
// remote read, but not to the answers of its query API. They are known only where
// the server shows its configuration.
func (s *Source) externalLabels(ctx context.Context) (labels map[string]string, known bool) {
	s.choosing.Lock()
	defer s.choosing.Unlock()
	if s.external != nil {
		return s.external, true
	}
	var shown struct{ YAML string }
	if !s.status(ctx, "api/v1/status/config", &shown) || shown.YAML == "" {
		return nil, false
	}
	var conf struct {
		Global struct {
			ExternalLabels map[string]string `yaml:"external_labels"`
		}
	}
	if yaml.Unmarshal([]byte(shown.YAML), &conf) != nil {
		return nil, false
	}
	if s.external = conf.Global.ExternalLabels; s.external == nil {
		s.external = map[string]string{}
	}
	return s.external, true
}

// within does what remote read does with a matcher that an external label fulfils:
// the stored series must have no label of that name.
func within(sel ingest.Selector, outside map[string]string) ingest.Selector {
	out := ingest.Selector{Metrics: sel.Metrics, Equal: map[string]string{}, OneOf: maps.Clone(sel.OneOf)}
	for name, value := range sel.Equal {
		if outside[name] == value {
			value = ""
		}
		out.Equal[name] = value
	}
	for name, values := range sel.OneOf {
		_, both := sel.Equal[name]
		if distinct := slices.Compact(slices.Sorted(slices.Values(values))); !both && len(distinct) == 1 && outside[name] == distinct[0] {
			delete(out.OneOf, name)
			out.Equal[name] = ""
		}
	}
	return out
}
