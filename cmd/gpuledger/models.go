package main

import (
	"fmt"
	"os"

	"gpuledger/gpu"
)

// readModels reads the table of GPU models, which is every cluster's.
func (c *Config) readModels() error {
	if c.Models == "" {
		return nil
	}
	file := c.path(c.Models)
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("models: %w", err)
	}
	models, err := gpu.ParseModels(string(text))
	if err != nil {
		return fmt.Errorf("models: %s: %w", file, err)
	}
	for i := range c.Clusters {
		c.Clusters[i].models = models
	}
	return nil
}
