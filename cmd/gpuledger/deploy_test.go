package main

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"gpuledger/policy"
)

const (
	imageBinary = "/usr/local/bin/gpuledger"
	imageUser   = 65532
)

func deployFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// checkCommandLine parses args as the program would, and stops before running them.
func checkCommandLine(t *testing.T, where string, args []string) {
	t.Helper()
	a := &app{stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard}
	cmd, rest, err := a.root().Find(args)
	if err != nil {
		t.Errorf("%s: %q: %v", where, args, err)
		return
	}
	if !cmd.Runnable() {
		t.Errorf("%s: %q names no command", where, args)
	}
	if err := cmd.ParseFlags(rest); err != nil {
		t.Errorf("%s: %q: %v", where, args, err)
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
		t.Errorf("%s: %q: %v", where, args, err)
	}
}

var pinned = regexp.MustCompile(`^[^:@]+:v?\d[\w.-]*$`)

func checkImage(t *testing.T, where, image string) {
	t.Helper()
	if !pinned.MatchString(image) {
		t.Errorf("%s: the image %q has no version", where, image)
	}
}

type manifests struct {
	namespace corev1.Namespace
	account   corev1.ServiceAccount
	config    corev1.ConfigMap
	job       batchv1.CronJob
}

func readManifests(t *testing.T) manifests {
	t.Helper()
	var m manifests
	kinds := map[string]any{"Namespace": &m.namespace, "ServiceAccount": &m.account, "ConfigMap": &m.config, "CronJob": &m.job}
	for i, doc := range strings.Split(deployFile(t, "deploy/kubernetes/cronjob.yaml"), "\n---\n") {
		var head struct{ Kind string }
		if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
			t.Fatalf("document %d: %v", i, err)
		}
		into, ok := kinds[head.Kind]
		if !ok {
			t.Fatalf("document %d: a second or unknown kind %q", i, head.Kind)
		}
		delete(kinds, head.Kind)
		if err := yaml.UnmarshalStrict([]byte(doc), into); err != nil {
			t.Fatalf("%s: %v", head.Kind, err)
		}
	}
	if len(kinds) != 0 {
		t.Fatalf("missing: %v", kinds)
	}
	return m
}

func TestCronJob(t *testing.T) {
	m := readManifests(t)
	spec := m.job.Spec
	job := spec.JobTemplate.Spec
	pod := job.Template.Spec
	for _, ns := range []string{m.account.Namespace, m.config.Namespace, m.job.Namespace} {
		if ns != m.namespace.Name {
			t.Errorf("an object in namespace %q, want %q", ns, m.namespace.Name)
		}
	}
	if pod.ServiceAccountName != m.account.Name {
		t.Errorf("service account %q", pod.ServiceAccountName)
	}
	if spec.ConcurrencyPolicy != batchv1.ForbidConcurrent || spec.StartingDeadlineSeconds == nil || spec.TimeZone == nil {
		t.Errorf("concurrency %q, starting deadline %v, time zone %v", spec.ConcurrencyPolicy, spec.StartingDeadlineSeconds, spec.TimeZone)
	}
	if job.BackoffLimit == nil || job.ActiveDeadlineSeconds == nil {
		t.Errorf("backoff limit %v, active deadline %v", job.BackoffLimit, job.ActiveDeadlineSeconds)
	}
	// The API server refuses a pod failure policy with any other restart policy.
	if pod.RestartPolicy != corev1.RestartPolicyNever {
		t.Errorf("restart policy %q", pod.RestartPolicy)
	}
	if got := job.PodFailurePolicy.Rules[0].OnExitCodes.Values; !slices.Equal(got, []int32{exitIncomplete, exitUsage}) {
		t.Errorf("exit codes that are not tried again: %v", got)
	}
	if s := pod.SecurityContext; s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.RunAsUser == nil || *s.RunAsUser != imageUser ||
		s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("the pod's security context: %+v", s)
	}
	var commands []string
	for _, c := range append(slices.Clone(pod.InitContainers), pod.Containers...) {
		commands = append(commands, c.Args[0])
		checkContainer(t, m, c, pod.Volumes)
	}
	if !slices.Equal(commands, []string{"migrate", "run"}) {
		t.Errorf("commands %q: want the schema, then the run", commands)
	}
}

func checkContainer(t *testing.T, m manifests, c corev1.Container, volumes []corev1.Volume) {
	t.Helper()
	if len(c.Command) != 0 {
		t.Errorf("%s: the image has an entry point, so args alone", c.Name)
	}
	checkCommandLine(t, c.Name, c.Args)
	checkImage(t, c.Name, c.Image)
	if s := c.SecurityContext; s == nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.ReadOnlyRootFilesystem == nil ||
		!*s.ReadOnlyRootFilesystem || s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("%s: security context %+v", c.Name, s)
	}
	if c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() {
		t.Errorf("%s: resources %+v", c.Name, c.Resources)
	}
	mounted := map[string]string{} // volume → path
	for _, v := range c.VolumeMounts {
		mounted[v.Name] = v.MountPath
	}
	sources := map[string]corev1.VolumeSource{}
	for _, v := range volumes {
		sources[v.Name] = v.VolumeSource
	}
	if v := sources["config"]; v.ConfigMap == nil || v.ConfigMap.Name != m.config.Name {
		t.Errorf("the volume config is %+v", v)
	}
	if v := sources["tmp"]; v.EmptyDir == nil || mounted["tmp"] != "/tmp" {
		t.Errorf("%s: the root file system is read-only, and there is no other /tmp", c.Name)
	}
	env := map[string]corev1.EnvVar{}
	for _, e := range c.Env {
		env[e.Name] = e
	}
	if got, want := env["GPULEDGER_CONFIG"].Value, mounted["config"]+"/gpuledger.yaml"; got != want {
		t.Errorf("%s: GPULEDGER_CONFIG=%q, the file is at %q", c.Name, got, want)
	}
	if from := env["DATABASE_URL"].ValueFrom; from == nil || from.SecretKeyRef == nil {
		t.Errorf("%s: DATABASE_URL is not from a Secret", c.Name)
	}
}

// TestConfigMap reads the files of the ConfigMap as the program does.
func TestConfigMap(t *testing.T) {
	data := readManifests(t).config.Data
	cfg, err := parseConfig("gpuledger.yaml", []byte(data["gpuledger.yaml"]))
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.Clusters) == 0 || len(cfg.Bills) == 0 {
		t.Errorf("%d clusters, %d bills", len(cfg.Clusters), len(cfg.Bills))
	}
	for _, name := range []string{cfg.Policy, cfg.Owners} {
		if data[name] == "" {
			t.Errorf("gpuledger.yaml names %q, which the ConfigMap has not", name)
		}
	}
	if _, err := policy.Parse(cfg.Policy, []byte(data[cfg.Policy])); err != nil {
		t.Error(err)
	}
	if _, err := policy.ParseOwners(cfg.Owners, []byte(data[cfg.Owners])); err != nil {
		t.Error(err)
	}
}

// compose is as much of the format as docker-compose.yml uses.
type compose struct {
	Template any `yaml:"x-gpuledger"`
	Services map[string]struct {
		Build *struct {
			Context string            `yaml:"context"`
			Args    map[string]string `yaml:"args"`
		} `yaml:"build"`
		Image       string             `yaml:"image"`
		Profiles    []string           `yaml:"profiles"`
		Command     []string           `yaml:"command"`
		Environment map[string]*string `yaml:"environment"`
		ReadOnly    bool               `yaml:"read_only"`
		CapDrop     []string           `yaml:"cap_drop"`
		SecurityOpt []string           `yaml:"security_opt"`
		Ports       []string           `yaml:"ports"`
		Volumes     []string           `yaml:"volumes"`
		DependsOn   map[string]struct {
			Condition string `yaml:"condition"`
		} `yaml:"depends_on"`
		Healthcheck *struct {
			Test        []string `yaml:"test"`
			Interval    string   `yaml:"interval"`
			Timeout     string   `yaml:"timeout"`
			Retries     int      `yaml:"retries"`
			StartPeriod string   `yaml:"start_period"`
		} `yaml:"healthcheck"`
	} `yaml:"services"`
	Volumes map[string]any `yaml:"volumes"`
}

func readCompose(t *testing.T) compose {
	t.Helper()
	var file compose
	if err := policy.DecodeStrict("docker-compose.yml", []byte(deployFile(t, "docker-compose.yml")), &file); err != nil {
		t.Fatal(err)
	}
	return file
}

// variable is ${NAME:-default} as compose replaces it.
var variable = regexp.MustCompile(`\$\{[A-Z_]+:-([^}]*)\}`)

func TestCompose(t *testing.T) {
	file := readCompose(t)
	ours := 0
	for name, s := range file.Services {
		if s.Build == nil {
			checkImage(t, name, s.Image)
		} else {
			ours++
			checkCommandLine(t, name, s.Command)
			url := s.Environment["DATABASE_URL"]
			if url == nil || !strings.Contains(*url, "@postgres:5432/") {
				t.Errorf("%s: DATABASE_URL is not the service postgres", name)
			}
		}
		for on, d := range s.DependsOn {
			other, ok := file.Services[on]
			switch {
			case !ok:
				t.Errorf("%s waits for %q, which there is not", name, on)
			case d.Condition == "service_healthy" && other.Healthcheck == nil:
				t.Errorf("%s waits for the health of %s, which is not checked", name, on)
			case d.Condition != "service_healthy" && d.Condition != "service_completed_successfully":
				t.Errorf("%s waits for %s on %q", name, on, d.Condition)
			}
			for _, p := range s.Profiles {
				if len(other.Profiles) != 0 && !slices.Contains(other.Profiles, p) {
					t.Errorf("%s waits for %s, which is not in its profile %s", name, on, p)
				}
			}
		}
		for _, v := range s.Volumes {
			source, _, _ := strings.Cut(variable.ReplaceAllString(v, "$1"), ":")
			if !strings.HasPrefix(source, ".") {
				if _, ok := file.Volumes[source]; !ok {
					t.Errorf("%s: the volume %q is not declared", name, source)
				}
			} else if _, err := os.Stat(filepath.Join("../..", source)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") {
				t.Errorf("%s: the port %s is open to the network, with a password that everybody knows", name, p)
			}
		}
	}
	if ours == 0 {
		t.Error("no service of ours")
	}
}

// TestComposeDemoAgrees checks that the demo's second command line looks where the
// first one writes, and at the same month.
func TestComposeDemoAgrees(t *testing.T) {
	file := readCompose(t)
	write, read := file.Services["demo-files"].Command, file.Services["demo"].Command
	dir := write[slices.Index(write, "--dir")+1]
	if got, want := read[slices.Index(read, "--config")+1], dir+"/gpuledger.yaml"; got != want {
		t.Errorf("the demo reads %s, its files are in %s", got, dir)
	}
	if got := read[slices.Index(read, "--period")+1]; got != demoMonth {
		t.Errorf("the demo runs %s, its files are of %s", got, demoMonth)
	}
}

// prometheusConfig is as much of the format as deploy/prometheus.yml uses.
type prometheusConfig struct {
	Global struct {
		ScrapeInterval string            `yaml:"scrape_interval"`
		ExternalLabels map[string]string `yaml:"external_labels"`
	} `yaml:"global"`
	ScrapeConfigs []struct {
		JobName        string `yaml:"job_name"`
		HonorLabels    bool   `yaml:"honor_labels"`
		ScrapeInterval string `yaml:"scrape_interval"`
		StaticConfigs  []struct {
			Targets []string `yaml:"targets"`
		} `yaml:"static_configs"`
	} `yaml:"scrape_configs"`
}

func TestPrometheusConfig(t *testing.T) {
	var cfg prometheusConfig
	if err := policy.DecodeStrict("prometheus.yml", []byte(deployFile(t, "deploy/prometheus.yml")), &cfg); err != nil {
		t.Fatal(err)
	}
	if len(cfg.ScrapeConfigs) != 2 {
		t.Errorf("%d jobs", len(cfg.ScrapeConfigs))
	}
	for _, s := range cfg.ScrapeConfigs {
		// Without it the exporter's own pod and namespace stand in the place of the user's.
		if !s.HonorLabels {
			t.Errorf("%s: honor_labels is not set", s.JobName)
		}
	}
}

// instructions returns the Dockerfile's instructions by name, in order.
func instructions(t *testing.T, text string) map[string][]string {
	t.Helper()
	text = strings.ReplaceAll(text, "\\\n", " ")
	out := map[string][]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, rest, _ := strings.Cut(line, " ")
		switch name {
		case "FROM", "WORKDIR", "COPY", "ARG", "RUN", "USER", "ENTRYPOINT", "CMD", "ENV":
			out[name] = append(out[name], strings.TrimSpace(rest))
		default:
			t.Fatalf("Dockerfile: unknown instruction %q", name)
		}
	}
	return out
}

func TestDockerfile(t *testing.T) {
	in := instructions(t, deployFile(t, "Dockerfile"))
	goVersion := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(deployFile(t, "go.mod"))[1]
	if len(in["FROM"]) != 2 || !strings.Contains(in["FROM"][0], " golang:"+goVersion+" ") {
		t.Errorf("FROM %q: want golang:%s, as in go.mod, and the final image", in["FROM"], goVersion)
	}
	if want := []string{"[\"" + imageBinary + "\"]"}; !slices.Equal(in["ENTRYPOINT"], want) {
		t.Errorf("ENTRYPOINT %q", in["ENTRYPOINT"])
	}
	if want := []string{strconv.Itoa(imageUser) + ":" + strconv.Itoa(imageUser)}; !slices.Equal(in["USER"], want) {
		t.Errorf("USER %q", in["USER"])
	}
	build := strings.Join(in["RUN"], "\n")
	// buildVersion is the variable's name in this package; the linker is silent about
	// a name that there is not.
	_ = buildVersion
	for _, want := range []string{"CGO_ENABLED=0", "-trimpath", "-X main.buildVersion=", "-o /out/gpuledger ./cmd/gpuledger"} {
		if !strings.Contains(build, want) {
			t.Errorf("the build is without %q", want)
		}
	}
	if !slices.ContainsFunc(in["COPY"], func(s string) bool { return strings.HasSuffix(s, "/out/gpuledger "+imageBinary) }) {
		t.Errorf("COPY %q: the binary is not at %s", in["COPY"], imageBinary)
	}
}

// TestDockerignore checks that every folder with Go files or embedded SQL gets into
// the image's build: a new one would be missing there only.
func TestDockerignore(t *testing.T) {
	var sent []string
	for line := range strings.Lines(deployFile(t, ".dockerignore")) {
		if dir, ok := strings.CutPrefix(strings.TrimSpace(line), "!"); ok {
			sent = append(sent, dir)
		}
	}
	err := fs.WalkDir(os.DirFS("../.."), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
				return fs.SkipDir
			}
			return nil
		case strings.HasSuffix(name, "_test.go") || (filepath.Ext(name) != ".go" && filepath.Ext(name) != ".sql"):
			return nil
		}
		top, _, below := strings.Cut(name, "/")
		if below && !slices.Contains(sent, top) {
			t.Errorf(".dockerignore keeps %s out of the build", name)
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestDeployChecksFind keeps the checks above honest.
func TestDeployChecksFind(t *testing.T) {
	for _, image := range []string{"postgres", "postgres:latest", "ghcr.io/example/gpuledger"} {
		if pinned.MatchString(image) {
			t.Errorf("%q passes as a version", image)
		}
	}
	var job batchv1.CronJob
	text := bytes.Replace([]byte(deployFile(t, "deploy/kubernetes/cronjob.yaml")), []byte("concurrencyPolicy:"), []byte("concurencyPolicy:"), 1)
	docs := bytes.Split(text, []byte("\n---\n"))
	if err := yaml.UnmarshalStrict(docs[len(docs)-1], &job); err == nil || !strings.Contains(err.Error(), "concurencyPolicy") {
		t.Errorf("a misspelt field: %v", err)
	}
}
