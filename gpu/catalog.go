package gpu

import (
	"bufio"
	_ "embed" // the two tables
	"fmt"
	"regexp"
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
	// BandwidthBytesPerSecond is of its memory, by the datasheet; 0 where not known. Times
	// Device.DRAMActive it is the traffic.
	BandwidthBytesPerSecond uint64
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
	all, err := ParseModels(models)
	if err != nil {
		return t, err
	}
	for _, m := range all {
		t.models[m.Name] = m
	}
	return t, eachRow(instances, 6, func(f []string) error {
		gpus, err1 := strconv.Atoi(f[2])
		vcpu, err2 := strconv.Atoi(f[4])
		_, known := t.models[f[3]]
		if err1 != nil || err2 != nil || !known {
			return fmt.Errorf("instance type %q", f[1])
		}
		t.instances[strings.ToLower(f[1])] = InstanceType{Provider: f[0], Name: f[1], GPUs: gpus, Model: f[3], VCPU: vcpu, MemoryGiB: f[5]}
		for provider, sep := range map[string]string{"aws": ".", "gcp": "-"} {
			if family, _, ok := strings.Cut(f[1], sep); ok && f[0] == provider {
				t.families[family] = true
			}
		}
		return nil
	})
}

// ParseModels reads a table of models in the form of data/models.tsv: one model a line,
// fields separated by tabs, # for comments. A name may be spelt in any way; the same model
// twice is an error. Errors name the line.
func ParseModels(text string) ([]Model, error) {
	var out []Model
	seen := map[string]bool{}
	err := eachRow(text, 5, func(f []string) error {
		m := Model{Name: NormalizeModel(f[0])}
		mib, err1 := strconv.ParseUint(f[1], 10, 32)
		compute, err2 := strconv.ParseUint(f[2], 10, 8)
		memory, err3 := strconv.ParseUint(f[3], 10, 8)
		bandwidth, err4 := strconv.ParseUint(f[4], 10, 32)
		switch {
		case m.Name == "" || seen[m.Name]:
			return fmt.Errorf("model %q has no name, or is there twice", f[0])
		case err1 != nil || mib == 0:
			return fmt.Errorf("model %s: total %q is not a number of MiB", f[0], f[1])
		case err2 != nil || err3 != nil || !(compute == 0 && memory == 0 || compute == 4 && memory == 4 || compute == 7 && memory == 8):
			return fmt.Errorf("model %s: %s compute and %s memory slices; MIG has 7 and 8, or 4 and 4, and a GPU without it 0 and 0", f[0], f[2], f[3])
		case err4 != nil:
			return fmt.Errorf("model %s: bandwidth %q is not a whole number of GB/s", f[0], f[4])
		}
		seen[m.Name] = true
		m.TotalBytes, m.ComputeSlices, m.MemorySlices, m.BandwidthBytesPerSecond = mib<<20, int(compute), int(memory), bandwidth*1e9
		out = append(out, m)
		return nil
	})
	return out, err
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
	s := strings.ToUpper(strings.Join(strings.Fields(raw), " "))
	s = strings.NewReplacer(" ", "-", "_", "-").Replace(s)
	s = strings.TrimPrefix(s, "NVIDIA-")
	s = strings.TrimSuffix(s, "-SHARED")
	if i := strings.Index(s, "-MIG-"); i > 0 {
		s = s[:i]
	}
	return s
}

// vgpu is a kind of vGPU: GRID A100-8C has 8 GiB of an A100, and GRID A100-1-5C the 5 of
// one of its MIG instances. The letter is the licence.
var vgpu = regexp.MustCompile(`^(?:GRID-)?[A-Z0-9]+(?:-[A-Z0-9]+)*-([0-9]{1,3})[ABCQ]$`)

// LookupModel finds a model by any spelling of its name. A vGPU's size is in its name,
// nominal; its bandwidth is a share of its host's that nothing tells.
func LookupModel(name string) (Model, bool) {
	name = NormalizeModel(name)
	if m, ok := catalog().models[name]; ok {
		return m, true
	}
	if f := vgpu.FindStringSubmatch(name); f != nil {
		if gib, err := strconv.ParseUint(f[1], 10, 32); err == nil && gib > 0 {
			return Model{Name: name, TotalBytes: gib << 30}, true
		}
	}
	return Model{}, false
}

// model finds a model in the settings' table, else in the program's.
func (s Settings) model(name string) (Model, bool) {
	if len(s.Models) > 0 {
		normal := NormalizeModel(name)
		for _, m := range s.Models {
			if m.Name == normal {
				return m, true
			}
		}
	}
	return LookupModel(name)
}

// LookupInstanceType finds a GPU instance type by name, in any case.
func LookupInstanceType(name string) (InstanceType, bool) {
	t, ok := catalog().instances[strings.ToLower(name)]
	return t, ok
}

// IsGPUInstanceType reports whether the type is known to carry whole GPUs.
func IsGPUInstanceType(name string) bool { _, ok := LookupInstanceType(name); return ok }

// IsGPUFamily reports whether name is a family of instances with GPUs: AWS's p5 and g6e,
// Google's a2 and g2.
func IsGPUFamily(name string) bool { return catalog().families[strings.ToLower(name)] }

// CatalogVersion identifies the two tables by their text; it enters every scope
// and unit hash, so that a corrected count is a reason to allocate again.
func CatalogVersion() string { return modelsTSV + instancesTSV }
