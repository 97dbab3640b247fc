package gpu

// Settings is what a cluster's owner knows and its metrics do not say.
type Settings struct {
	// Resources are further extended resources that stand for whole GPUs or client
	// slots, as Kubernetes spells them: example.com/gpu.
	Resources []string
	// Modes override the sharing mode by node pool; the first match wins.
	Modes []ModeOverride
	// Presets are the exporters that are read, of data/exporters.tsv; nil: all that do
	// not exclude each other. Of two that have a metric, the later reads it.
	Presets []string `json:",omitempty"`
	// Exporters are further metrics, or other readings of the presets'.
	Exporters []ExporterMetric `json:",omitempty"`
	// Models are known beside, and before, those of data/models.tsv; see ParseModels.
	Models []Model `json:",omitempty"`
	// Usage reads what pods use of CPU and memory, from cAdvisor.
	Usage bool
}

// ModeOverride sets the sharing mode of a pool's whole GPUs.
type ModeOverride struct {
	NodePool string // * is a wildcard
	Mode     Mode
	Replicas int // client slots a GPU, for time_slicing and mps
}
