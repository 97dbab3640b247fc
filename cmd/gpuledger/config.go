package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"gpuledger/gpu"
	"gpuledger/ingest"
	"gpuledger/ingest/openmetrics"
	"gpuledger/ingest/prometheus"
	"gpuledger/policy"
)

// Config is gpuledger.yaml. Paths are relative to the file's folder; ${NAME} stands
// for an environment variable.
type Config struct {
	Warehouse struct {
		URL string `yaml:"url"` // empty: DATABASE_URL, else a private Postgres
	} `yaml:"warehouse"`
	Clusters []ClusterConfig `yaml:"clusters"`
	Bills    []BillConfig    `yaml:"bills"`
	Scope    ScopeConfig     `yaml:"scope"`
	Policy   string          `yaml:"policy"`
	Owners   string          `yaml:"owners"`
	Models   string          `yaml:"models"` // GPU models beside those that are known, in the form of gpu/data/models.tsv

	MetricsFile string `yaml:"metrics_file"` // run writes its own metrics there, for node_exporter's textfile collector

	dir string
}

// ScopeConfig brings in lines beyond those of GPU nodes.
type ScopeConfig struct {
	Filters []struct {
		Accounts []string            `yaml:"accounts"`
		Tags     map[string][]string `yaml:"tags"`
	} `yaml:"filters"`
}

func (a *app) loadConfig() (*Config, error) {
	text, err := os.ReadFile(a.configPath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, usagef("no configuration at %s; run: gpuledger init", a.configPath)
	}
	if err != nil {
		return nil, err
	}
	cfg, err := parseConfig(a.configPath, text)
	if err != nil {
		return nil, &exitError{exitUsage, err}
	}
	return cfg, nil
}

func parseConfig(name string, text []byte) (*Config, error) {
	cfg := &Config{dir: filepath.Dir(name)}
	if err := policy.DecodeStrict(name, text, cfg); err != nil {
		return nil, err
	}
	if err := expandEnv(reflect.ValueOf(cfg).Elem()); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := cfg.readModels(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return cfg, nil
}

func (c *Config) validate() error {
	seen := map[string]bool{}
	for i := range c.Clusters {
		cl := &c.Clusters[i]
		if d := cl.Discover; d != nil {
			switch {
			case cl.Name != "" || cl.ID != "":
				return fmt.Errorf("clusters: entry %d has discover, so no name or id: each value of the label is a name, discover.ids gives ids", i+1)
			case d.Label == "":
				return fmt.Errorf("clusters: entry %d: discover.label is missing", i+1)
			}
			for _, p := range append(slices.Clone(d.Include), d.Exclude...) {
				if _, err := path.Match(p, ""); err != nil {
					return fmt.Errorf("clusters: entry %d: discover: %q is not a pattern", i+1, p)
				}
			}
			cl.Name = "discovered by " + d.Label
		}
		if cl.Name == "" {
			return fmt.Errorf("clusters: entry %d has no name", i+1)
		}
		if cl.ID == "" {
			cl.ID = cl.Name
		}
		if seen[cl.ID] && cl.Discover == nil {
			return fmt.Errorf("clusters: %s is there twice; give each its own id", cl.ID)
		}
		seen[cl.ID] = true
		if err := cl.settings().CheckExporters(); err != nil {
			return fmt.Errorf("clusters: %s: %w", cl.Name, err)
		}
		for _, m := range cl.Modes {
			switch {
			case m.NodePool == "":
				return fmt.Errorf("clusters: %s: modes: an entry without node_pool", cl.Name)
			case m.Mode != "exclusive" && m.Mode != "time_slicing" && m.Mode != "mps":
				return fmt.Errorf("clusters: %s: modes: %q is not exclusive, time_slicing or mps", cl.Name, m.Mode)
			case m.Mode != "exclusive" && m.Replicas < 2:
				return fmt.Errorf("clusters: %s: modes: %s needs replicas of at least 2", cl.Name, m.Mode)
			case m.Mode == "exclusive" && m.Replicas > 1:
				return fmt.Errorf("clusters: %s: modes: exclusive with %d replicas: leave replicas out, or take time_slicing or mps", cl.Name, m.Replicas)
			}
		}
		for i, m := range append([]MetricsConfig{cl.Metrics}, cl.Fallback...) {
			where := "metrics"
			if i > 0 {
				where = fmt.Sprintf("fallback: entry %d", i)
			}
			if err := m.validate(c.dir); err != nil {
				return fmt.Errorf("clusters: %s: %s%w", cl.Name, where, err)
			}
		}
	}
	return c.validateBills()
}

func (m MetricsConfig) validate(dir string) error {
	switch {
	case m.Type == "prometheus" && m.URL == "":
		return errors.New(".url is missing")
	case m.Type == "openmetrics" && m.Path == "" && len(m.Paths) == 0:
		return errors.New(".path is missing")
	case m.Type != "prometheus" && m.Type != "openmetrics":
		return fmt.Errorf(".type %q is not prometheus or openmetrics", m.Type)
	case m.Type == "openmetrics":
		return nil
	}
	// Settings that contradict each other are the configuration's fault.
	server, err := m.server(dir)
	if err == nil {
		err = server.Validate()
	}
	if err != nil {
		return fmt.Errorf(": %w", err)
	}
	return nil
}

// needSources refuses a configuration that says nothing: an empty file, such as a
// mount gone wrong, should not be a night well done.
func (c *Config) needSources(name string) error {
	if len(c.Clusters) == 0 && len(c.Bills) == 0 {
		return usagef("%s names neither clusters nor bills", name)
	}
	return nil
}

var envReference = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// expandEnv replaces ${NAME} in every text of the configuration. A variable that is
// not set is an error, except DATABASE_URL: without it there is a private Postgres.
func expandEnv(v reflect.Value) error {
	switch v.Kind() {
	case reflect.String:
		s := v.String()
		for _, m := range envReference.FindAllStringSubmatch(s, -1) {
			val, ok := os.LookupEnv(m[1])
			if !ok && m[1] != "DATABASE_URL" {
				return fmt.Errorf("the environment variable %s is not set", m[1])
			}
			s = strings.ReplaceAll(s, m[0], val)
		}
		if v.CanSet() {
			v.SetString(s)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() {
				if err := expandEnv(f); err != nil {
					return err
				}
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			return expandEnv(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			if err := expandEnv(v.Index(i)); err != nil {
				return err
			}
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			e := reflect.New(v.Type().Elem()).Elem()
			e.Set(v.MapIndex(k))
			if err := expandEnv(e); err != nil {
				return err
			}
			v.SetMapIndex(k, e)
		}
	}
	return nil
}

// path resolves a path of the configuration against its folder.
func (c *Config) path(p string) string {
	if p == "" || filepath.IsAbs(p) || strings.Contains(p, "://") {
		return p
	}
	return filepath.Join(c.dir, p)
}

func (c *Config) policy(override string) (policy.Policy, error) {
	name := c.path(c.Policy)
	if override != "" {
		name = override
	}
	if name == "" {
		return policy.Parse("policy", nil)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return policy.Policy{}, usagef("policy: %w", err)
	}
	p, err := policy.Parse(name, text)
	if err != nil {
		return p, &exitError{exitUsage, err}
	}
	return p, nil
}

func (c *Config) owners() (policy.Owners, error) {
	if c.Owners == "" {
		return policy.NoOwners(), nil
	}
	name := c.path(c.Owners)
	text, err := os.ReadFile(name)
	if err != nil {
		return policy.Owners{}, usagef("owners: %w", err)
	}
	o, err := policy.ParseOwners(name, text)
	if err != nil {
		return o, &exitError{exitUsage, err}
	}
	return o, nil
}

// source opens a cluster's telemetry store.
func (c *Config) source(cl ClusterConfig) (ingest.Source, error) {
	m := cl.Metrics
	if m.Type == "openmetrics" {
		var paths []string
		for _, p := range append([]string{m.Path}, m.Paths...) {
			if p != "" {
				paths = append(paths, c.path(p))
			}
		}
		return openmetrics.New(openmetrics.Config{Paths: paths, Metrics: slices.Concat(gpu.InventoryMetrics, cl.settings().DeviceMetrics())})
	}
	cfg, err := m.server(c.dir)
	if err != nil {
		return nil, err
	}
	return prometheus.New(cfg)
}
