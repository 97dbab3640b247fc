package main

import (
	"fmt"
	"time"

	promconfig "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"

	"gpuledger/gpu"
	"gpuledger/ingest/prometheus"
)

// ClusterConfig names a cluster and where its samples are.
type ClusterConfig struct {
	Name    string        `yaml:"name"`
	ID      string        `yaml:"id"` // stable over renames; default: the name
	Metrics MetricsConfig `yaml:"metrics"`

	Discover *DiscoverConfig `yaml:"discover"` // instead of a name: one cluster for each value of a label
	Fallback []MetricsConfig `yaml:"fallback"` // asked in order for hours that metrics does not hold or has nothing of

	Resources []string     `yaml:"resources"` // further extended resources that are GPUs: example.com/gpu
	Modes     []ModeConfig `yaml:"modes"`     // sharing modes by node pool, where labels do not tell
	Usage     bool         `yaml:"usage"`     // read what pods use of CPU and memory too, from cAdvisor

	Presets   []string         `yaml:"presets"`   // exporters to read, see gpuledger exporters; default: all but dcgm-per-process
	Exporters []ExporterConfig `yaml:"exporters"` // further metrics, or other readings of the presets'

	models []gpu.Model // of Config.Models

	// Of a discovered cluster: the label, and its values that stand for the cluster.
	label  string
	values []string
}

// DiscoverConfig finds clusters by a label of a store that several write to.
type DiscoverConfig struct {
	Label   string            `yaml:"label"`
	Include []string          `yaml:"include"` // values to read, * is a wildcard; default: all
	Exclude []string          `yaml:"exclude"`
	IDs     map[string]string `yaml:"ids"` // stable ids by value; default: the value. Two values with one id are one cluster that was renamed
}

// ExporterConfig is one metric of an exporter and how it is read, see gpuledger exporters.
type ExporterConfig struct {
	Name   string            `yaml:"name"`
	Is     string            `yaml:"is"`     // used | free | reserved | total | limit | granted | gpu_util | engine_active | sm_active | dram_active | present | power
	Unit   string            `yaml:"unit"`   // MiB | bytes | percent | ratio | ratio_or_percent | watts
	Of     string            `yaml:"of"`     // auto | device | copies | process | pod
	Labels map[string]string `yaml:"labels"` // uuid, index, model, node, namespace, pod, container, pod_uid, slot, vdevice, mig_id, mig_profile
}

// ModeConfig sets the sharing mode of a node pool's whole GPUs.
type ModeConfig struct {
	NodePool string `yaml:"node_pool"` // * is a wildcard
	Mode     string `yaml:"mode"`      // exclusive | time_slicing | mps
	Replicas int    `yaml:"replicas"`  // client slots a GPU
}

// settings is what of the cluster's configuration the folding of samples needs.
func (cl *ClusterConfig) settings() gpu.Settings {
	s := gpu.Settings{Resources: cl.Resources, Usage: cl.Usage, Presets: cl.Presets, Models: cl.models}
	for _, e := range cl.Exporters {
		s.Exporters = append(s.Exporters, gpu.ExporterMetric{Name: e.Name, Is: e.Is, Unit: e.Unit, Of: e.Of, Labels: e.Labels})
	}
	for _, m := range cl.Modes {
		s.Modes = append(s.Modes, gpu.ModeOverride{NodePool: m.NodePool, Mode: gpu.Mode(m.Mode), Replicas: m.Replicas})
	}
	return s
}

// MetricsConfig is one telemetry store.
type MetricsConfig struct {
	Type    string                       `yaml:"type"`    // prometheus | openmetrics
	URL     string                       `yaml:"url"`     // prometheus
	Headers map[string]string            `yaml:"headers"` // prometheus: X-Scope-OrgID, …
	HTTP    *promconfig.HTTPClientConfig `yaml:"http"`    // prometheus: basic_auth, authorization, oauth2, tls_config, proxy_url
	SigV4   *prometheus.SigV4            `yaml:"sigv4"`   // prometheus: sign for Amazon Managed Prometheus
	Google  *prometheus.Google           `yaml:"google"`  // prometheus: tokens for Google Managed Prometheus
	Match   map[string]string            `yaml:"match"`   // labels that choose the cluster within a shared store
	Path    string                       `yaml:"path"`    // openmetrics: a file or glob
	Paths   []string                     `yaml:"paths"`   // openmetrics: several

	Driver       string `yaml:"driver"`        // prometheus: auto | remote_read | query
	Retention    string `yaml:"retention"`     // prometheus: such as 15d, for servers that do not say
	AllowPartial bool   `yaml:"allow_partial"` // prometheus: take answers with warnings
}

// server is the configuration of a Prometheus.
func (m MetricsConfig) server(dir string) (prometheus.Config, error) {
	cfg := prometheus.Config{URL: m.URL, Headers: m.Headers, SigV4: m.SigV4, Driver: m.Driver, AllowPartial: m.AllowPartial}
	if m.HTTP != nil {
		cfg.HTTP = *m.HTTP
		cfg.HTTP.SetDirectory(dir)
	}
	if m.Google != nil {
		cfg.Google = &prometheus.Google{CredentialsFile: promconfig.JoinDir(dir, m.Google.CredentialsFile)}
	}
	if m.Retention != "" {
		d, err := model.ParseDuration(m.Retention)
		if err != nil {
			return cfg, fmt.Errorf("retention %q is not a time like 15d", m.Retention)
		}
		cfg.Retention = time.Duration(d)
	}
	return cfg, nil
}
