package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gpuledger/chargeback"
	"gpuledger/gpu"
)

func (a *app) exportersCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "exporters [PRESET…]",
		Short: "Print how exporters' metrics are read, to copy into gpuledger.yaml",
		Long: `Print how the metrics of known exporters are read, as clusters[].exporters of
gpuledger.yaml has them. A copy of a line that is changed there takes its place; a new
line adds an exporter. clusters[].presets chooses among the presets.`,
		Example: "  gpuledger exporters dcgm hami",
		RunE: func(_ *cobra.Command, args []string) error {
			var known []string
			for _, m := range gpu.Presets() {
				known = append(known, m.Preset)
			}
			for _, name := range args {
				if !slices.Contains(known, name) {
					return usagef("no preset %q; there are %s", name, strings.Join(slices.Compact(known), ", "))
				}
			}
			if a.output != "table" {
				t := chargeback.NewTable("preset", "name", "is", "unit", "of", "labels")
				for _, m := range gpu.Presets() {
					if len(args) == 0 || slices.Contains(args, m.Preset) {
						t.Add(m.Preset, m.Name, m.Is, m.Unit, m.Of, labelPairs(m))
					}
				}
				return t.Write(a.stdout, a.output)
			}
			var b strings.Builder
			last := ""
			for _, m := range gpu.Presets() {
				if len(args) > 0 && !slices.Contains(args, m.Preset) {
					continue
				}
				if m.Preset != last {
					fmt.Fprintf(&b, "# %s\nexporters:\n", m.Preset)
					last = m.Preset
				}
				fmt.Fprintf(&b, "  - {name: %s, is: %s, unit: %s, of: %s", m.Name, m.Is, m.Unit, m.Of)
				if m.AMD {
					b.WriteString("} # with the labels of AMD's device-metrics-exporter\n")
					continue
				}
				if len(m.Labels) > 0 {
					fmt.Fprintf(&b, ", labels: {%s}", labelPairs(m))
				}
				b.WriteString("}\n")
			}
			_, err := fmt.Fprint(a.stdout, b.String())
			return err
		},
	}
}

// labelPairs are a metric's labels as YAML has them within braces.
func labelPairs(m gpu.ExporterMetric) string {
	var pairs []string
	for _, ours := range slices.Sorted(maps.Keys(m.Labels)) {
		pairs = append(pairs, ours+": "+m.Labels[ours])
	}
	return strings.Join(pairs, ", ")
}
