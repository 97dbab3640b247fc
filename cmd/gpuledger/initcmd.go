package main

import (
	_ "embed" // the commented example
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"gpuledger/chargeback"
)

//go:embed example/gpuledger.yaml
var exampleConfig string

//go:embed example/policy.yaml
var examplePolicy string

//go:embed example/owners.yaml
var exampleOwners string

func (a *app) initCmd() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:     "init",
		Short:   "Write a commented gpuledger.yaml, policy.yaml and owners.yaml",
		Long:    "Write a commented gpuledger.yaml at --config, and policy.yaml and owners.yaml beside it. Existing files stay as they are.",
		Example: "  gpuledger init --config gpuledger.yaml",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			dir := filepath.Dir(a.configPath)
			for _, f := range []struct{ path, text string }{
				{a.configPath, exampleConfig}, {filepath.Join(dir, "policy.yaml"), examplePolicy}, {filepath.Join(dir, "owners.yaml"), exampleOwners},
			} {
				if _, err := os.Stat(f.path); !errors.Is(err, fs.ErrNotExist) && !force {
					a.say("%s is there already and stays as it is", f.path)
					continue
				}
				err := chargeback.WriteFile(f.path, func(w io.Writer) error { _, err := io.WriteString(w, f.text); return err })
				if err != nil {
					return err
				}
				a.say("wrote %s", f.path)
			}
			a.say("Edit them, then run: %s", fmt.Sprintf("gpuledger doctor --config %s", a.configPath))
			return nil
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace existing files")
	return cmd
}
