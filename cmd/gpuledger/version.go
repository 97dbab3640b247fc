package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"gpuledger/allocate"
)

// buildVersion is set by the build: -ldflags "-X main.buildVersion=v1.2.3".
var buildVersion string

// version names the code: the release, else the commit it was built from.
func version() string {
	if buildVersion != "" {
		return buildVersion
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return "devel"
}

func (a *app) versionCmd() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs, Example: "  gpuledger version",
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(a.stdout, "gpuledger %s, method %s, %s\n", version(), allocate.MethodVersion, runtime.Version())
			return err
		},
	}
}
