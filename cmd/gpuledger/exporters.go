package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

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
					var pairs []string
					for _, ours := range slices.Sorted(maps.Keys(m.Labels)) {
						pairs = append(pairs, ours+": "+m.Labels[ours])
					}
					fmt.Fprintf(&b, ", labels: {%s}", strings.Join(pairs, ", "))
				}
				b.WriteString("}\n")
			}
			_, err := fmt.Fprint(a.stdout, b.String())
			return err
		},
	}
}
