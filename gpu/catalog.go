package gpu

import (
	"bufio"
	_ "embed" // the two tables
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// Model is what the program knows of a GPU model.
type Model struct {
	Name          string // normalised, see NormalizeModel
	TotalBytes    uint64 // frame buffer as NVML reports it
	ComputeSlices int    // of a whole GPU under MIG; 0 where MIG is not possible
	MemorySlices  int
}

// InstanceType is a cloud machine with GPUs.
type InstanceType struct {
	Provider  string // aws, gcp, azure
	Name      string
	GPUs      int
	Model     string // a Model's name
	VCPU      int
	MemoryGiB string // decimal text
}

//go:embed data/models.tsv
var modelsTSV string

//go:embed data/instances.tsv
var instancesTSV string

type tables struct {
	models    map[string]Model
	instances map[string]InstanceType
	families  map[string]bool
}

var catalog = sync.OnceValue(func() tables {
	t, err := parseTables(modelsTSV, instancesTSV)
	if err != nil {
		panic(err) // the tables are part of the binary and read by a test
	}
	return t
})

func parseTables(models, instances string) (tables, error) {
	t := tables{models: map[string]Model{}, instances: map[string]InstanceType{}, families: map[string]bool{}}
	err := eachRow(models, 4, func(f []string) error {
		mib, err1 := strconv.ParseUint(f[1], 10, 32)
		compute, err2 := strconv.Atoi(f[2])
		memory, err3 := strconv.Atoi(f[3])
		if err1 != nil || err2 != nil || err3 != nil || NormalizeModel(f[0]) != f[0] {
			return fmt.Errorf("model %q", f[0])
		}
		t.models[f[0]] = Model{Name: f[0], TotalBytes: mib << 20, ComputeSlices: compute, MemorySlices: memory}
		return nil
	})
	if err != nil {
		return t, err
	}
	return t, eachRow(instances, 6, func(f []string) error {
		gpus, err1 := strconv.Atoi(f[2])
		vcpu, err2 := strconv.Atoi(f[4])
		_, known := t.models[f[3]]
		if err1 != nil || err2 != nil || !known {
			return fmt.Errorf("instance type %q", f[1])
		}
		t.instances[strings.ToLower(f[1])] = InstanceType{Provider: f[0], Name: f[1], GPUs: gpus, Model: f[3], VCPU: vcpu, MemoryGiB: f[5]}
		if family, _, ok := strings.Cut(f[1], "."); ok {
			t.families[family] = true
		}
		return nil
	})
}

func eachRow(tsv string, fields int, fn func([]string) error) error {
	sc := bufio.NewScanner(strings.NewReader(tsv))
	for n := 1; sc.Scan(); n++ {
		if sc.Text() == "" || strings.HasPrefix(sc.Text(), "#") {
			continue
		}
		f := strings.Split(sc.Text(), "\t")
		if len(f) != fields {
			return fmt.Errorf("line %d has %d fields, not %d", n, len(f), fields)
		}
		if err := fn(f); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	return sc.Err()
}

// NormalizeModel brings the spellings of a model name to one: upper case, blanks
// and underscores as "-", no leading "NVIDIA", none of the suffixes that GPU
// feature discovery adds ("-SHARED", "-MIG-1g.5gb"). An unknown name stays
// recognisable: it is only respelt.
func NormalizeModel(raw string) string {
	s := strings.ToUpper(strings.TrimSpace(raw))
	s = strings.NewReplacer(" ", "-", "_", "-").Replace(s)
	s = strings.TrimPrefix(s, "NVIDIA-")
	s = strings.TrimSuffix(s, "-SHARED")
	if i := strings.Index(s, "-MIG-"); i > 0 {
		s = s[:i]
	}
	return s
}

// LookupModel finds a model by any spelling of its name.
func LookupModel(name string) (Model, bool) {
	m, ok := catalog().models[NormalizeModel(name)]
	return m, ok
}

// LookupInstanceType finds a GPU instance type by name, in any case.
func LookupInstanceType(name string) (InstanceType, bool) {
	t, ok := catalog().instances[strings.ToLower(name)]
	return t, ok
}

// IsGPUInstanceType reports whether the type is known to carry whole GPUs.
func IsGPUInstanceType(name string) bool { _, ok := LookupInstanceType(name); return ok }

// IsGPUFamily reports whether name is an AWS instance family with GPUs (p5, g6e).
func IsGPUFamily(name string) bool { return catalog().families[strings.ToLower(name)] }

// CatalogVersion identifies the two tables by their text; it enters every scope
// and unit hash, so that a corrected count is a reason to allocate again.
func CatalogVersion() string { return modelsTSV + instancesTSV }
