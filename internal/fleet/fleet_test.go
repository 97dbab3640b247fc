package fleet

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gpuledger/billing/period"
	"gpuledger/policy"
)

func october(t testing.TB) period.Month {
	t.Helper()
	m, err := period.ParseMonth("2026-10")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// demo is the October fleet, written once for all tests.
var demo struct {
	once sync.Once
	dir  string
	b    *builder
	w    Written
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if demo.dir != "" {
		os.RemoveAll(demo.dir)
	}
	os.Exit(code)
}

func writtenDemo(t testing.TB) (*builder, string, Written) {
	t.Helper()
	demo.once.Do(func() {
		if demo.dir, demo.err = os.MkdirTemp("", "fleet"); demo.err != nil {
			return
		}
		demo.b = &builder{Demo(october(t))}
		demo.w, demo.err = demo.b.Write(demo.dir)
	})
	if demo.err != nil {
		t.Fatal(demo.err)
	}
	return demo.b, demo.dir, demo.w
}

// sums hashes every file below a folder.
func sums(t *testing.T, dir string) map[string][32]byte {
	t.Helper()
	out := map[string][32]byte{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		out[rel] = sha256.Sum256(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestSameBytes(t *testing.T) {
	_, dir, w := writtenDemo(t)
	again := t.TempDir()
	if _, err := Demo(october(t)).Write(again); err != nil {
		t.Fatal(err)
	}
	a, b := sums(t, dir), sums(t, again)
	if len(a) != len(w.Files) || len(a) != len(b) {
		t.Fatalf("%d and %d files, %d reported", len(a), len(b), len(w.Files))
	}
	for name, sum := range a {
		if b[name] != sum {
			t.Errorf("%s differs between two writes", name)
		}
	}
}

// What a person waits for and keeps on disk stays small.
func TestSize(t *testing.T) {
	_, dir, w := writtenDemo(t)
	if w.Samples < 1_000_000 || w.Samples > 1_500_000 || w.Bytes > 15<<20 || w.Lines < 6000 {
		t.Errorf("%d samples, %d bytes, %d lines", w.Samples, w.Bytes, w.Lines)
	}
	days, err := filepath.Glob(filepath.Join(dir, "metrics", "2026-10-??.om.gz"))
	if err != nil || len(days) != 31 || w.Config != filepath.Join(dir, "gpuledger.yaml") {
		t.Errorf("%d days, configuration %s, %v", len(days), w.Config, err)
	}
}

func TestOtherMonthRefused(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, "metrics", "2026-09-30.om.gz")
	if err := os.MkdirAll(filepath.Dir(old), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(old, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Demo(october(t)).Write(dir); err == nil || !strings.Contains(err.Error(), "another month") {
		t.Errorf("got %v", err)
	}
}

// The three documents are what the program reads, strictly.
func TestDocuments(t *testing.T) {
	b, dir, _ := writtenDemo(t)
	text, err := os.ReadFile(filepath.Join(dir, "gpuledger.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var cfg struct {
		Warehouse struct{ URL string }
		Clusters  []struct {
			Name    string
			Metrics struct{ Type, Path string }
		}
		Bills          []struct{ Name, Type, Location string }
		Policy, Owners string
	}
	if err := policy.DecodeStrict("gpuledger.yaml", text, &cfg); err != nil {
		t.Fatal(err)
	}
	if len(cfg.Clusters) != 1 || cfg.Clusters[0].Name != "demo" || cfg.Clusters[0].Metrics.Path != "./metrics/*.om.gz" ||
		len(cfg.Bills) != 1 || cfg.Warehouse.URL != "private:demo" || cfg.Bills[0].Location != "./bills/finops/gpu-costs" || cfg.Policy != "policy.yaml" || cfg.Owners != "owners.yaml" {
		t.Errorf("configuration %+v", cfg)
	}
	got, err := policy.Parse("policy.yaml", []byte(b.Policy))
	if err != nil {
		t.Fatal(err)
	}
	want := policy.Default()
	want.RemainderOwner = []policy.RemainderOwner{{Team: "platform", CostCenter: "9000"}}
	if !bytes.Equal(got.Canonical(), want.Canonical()) {
		t.Errorf("policy is not the defaults:\n%s\n%s", got.Canonical(), want.Canonical())
	}
	owners, err := policy.ParseOwners("owners.yaml", []byte(b.Owners))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		namespace, team string
		at              time.Time
	}{
		{"embeddings", "search", b.at(15, 23, 59)},
		{"embeddings", "ranking", b.at(16, 0, 0)},
		{"ranking", "ranking", b.at(1, 0, 0)},
		{"research-llm", "research", b.at(1, 0, 0)},
		{"search", "search", b.at(28, 0, 0)},
		{"platform", "platform", b.at(1, 0, 0)},
		{"sandbox", "", b.at(1, 0, 0)},
	} {
		for _, p := range b.Pods {
			if p.Namespace != c.namespace {
				continue
			}
			labels := map[string]string{}
			for k, v := range p.Labels {
				labels[sanitised(k)] = v
			}
			o := owners.Resolve(policy.Subject{Cluster: "demo", Namespace: p.Namespace, Labels: labels}, c.at)
			if o.Team != c.team || o.Dimensions["ai_model"] != p.Labels["model"] {
				t.Errorf("%s/%s at %s: %+v, want team %q", p.Namespace, p.Name, c.at, o, c.team)
			}
		}
	}
}

// A fleet is one that could exist: pods fit their nodes, GPUs and slots.
func TestPlausible(t *testing.T) {
	for _, month := range []string{"2026-10", "2026-02"} {
		m, err := period.ParseMonth(month)
		if err != nil {
			t.Fatal(err)
		}
		plausible(t, Demo(m))
		plausible(t, New(Spec{Month: m, Nodes: 9, PodsPerNode: 5, Seed: 7}))
	}
}

func plausible(t *testing.T, f Fleet) {
	t.Helper()
	seen := map[string]bool{}
	for _, p := range f.Pods {
		n := f.Node(p.Node)
		switch {
		case seen[p.UID]:
			t.Errorf("%s: UID twice", p.Name)
		case n == nil || p.Life.Start.Before(n.Ready) || p.Life.End.After(n.Billed.End) || p.Life.Empty():
			t.Errorf("%s lives %s, its node is not there all the time", p.Name, p.Life)
		case p.Units != int64(len(p.Places)):
			t.Errorf("%s requests %d and holds %d", p.Name, p.Units, len(p.Places))
		case !slices.IsSortedFunc(p.Memory, func(a, b Step) int { return a.At.Compare(b.At) }):
			t.Errorf("%s: steps out of order", p.Name)
		}
		seen[p.UID] = true
	}
	byNode := f.podsByNode()
	for i := range f.Nodes {
		n := &f.Nodes[i]
		cpu := map[int64]int64{}
		for _, pt := range f.partitions(n, byNode[n.Name]) {
			for t0 := f.Month.Start(); t0.Before(f.Month.Span().End); t0 = t0.Add(30 * time.Minute) {
				var mib int64
				slots := map[int]bool{}
				for _, p := range pt.pods {
					if !p.Life.Contains(t0) {
						continue
					}
					if slots[p.slot] || p.slot >= max(1, n.Replicas) {
						t.Fatalf("%s GPU %d slot %d is held twice or is not there at %s", n.Name, pt.gpu, p.slot, t0)
					}
					slots[p.slot] = true
					mib += p.UsedMiB(t0)
					cpu[t0.Unix()] += p.CPUMilli / int64(len(p.Places))
				}
				usable := n.GPU.UsableMiB()
				if pt.instance != nil {
					usable = pt.instance.TotalMiB - instanceBaseMiB
				}
				if mib+valueAt(n.Residual, t0) > usable || cpu[t0.Unix()] > n.CPUs*1000 {
					t.Fatalf("%s GPU %d: %d MiB of %d and %d milli-cores at %s", n.Name, pt.gpu, mib, usable, cpu[t0.Unix()], t0)
				}
			}
		}
	}
}

func TestSpec(t *testing.T) {
	s := Spec{Month: october(t), Nodes: 5, PodsPerNode: 3, Interval: 10 * time.Minute, Seed: 3}
	a, b := fmt.Sprintf("%+v", New(s)), fmt.Sprintf("%+v", New(s))
	if a != b {
		t.Error("one Spec, two fleets")
	}
	s.Seed = 4
	if fmt.Sprintf("%+v", New(s)) == a {
		t.Error("the seed changes nothing")
	}
	if w, err := New(s).Write(t.TempDir()); err != nil || w.Lines != 5*744 || w.Samples == 0 {
		t.Errorf("%+v, %v", w, err)
	}
}
