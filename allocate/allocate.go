// Package allocate is the pure split: from what a node's window of time was held
// by, to one vector of ratios that sums to exactly one. It has no context, clock,
// logger, SQL or network. The method is DESIGN §4.
package allocate

import (
	"fmt"
	"math/bits"
	"sort"
	"strings"
	"time"

	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/policy"
)

// MethodVersion names the arithmetic. It enters every unit's hash: change it when
// the same inputs would give other ratios.
const MethodVersion = "gpu-memory-weighted-v1"

// The remainder categories beyond those telemetry tells. The class of a line that
// is on no node is its category.
const (
	NotReady         = "not_ready"         // billed before or after the node was Ready
	MIGUnpartitioned = "mig_unpartitioned" // memory slices the geometry leaves out
	PodCategory      = "pod"
)

// Pod is what ownership needs to know of a pod.
type Pod struct {
	UID       string
	Namespace string
	Workload  string
	Labels    map[string]string
	NSLabels  map[string]string
	Notes     map[string]string // annotations
}

// Node is what the split needs to know of a node. ExpectedGPUs counts the devices
// its instance type has; 0 where the type is not known.
type Node struct {
	Cluster       string
	Pool          string
	Account       string
	ExpectedGPUs  int
	ExpectedModel string
}

// Hour is one hour of a node's telemetry, as stored. Where the node was not seen,
// Seen is false and CoveredMicros says for how long the cluster's inventory was.
type Hour struct {
	Start         time.Time
	Seen          bool
	CoveredMicros int64
	gpu.NodeHour
}

// Window is the stretch of time that one or more bill lines of a node charge.
type Window struct {
	Span         period.Span
	BilledMicros int64 // Σ quantity of the instance-hour lines; 0: take the span
	Node         Node
	Hours        []Hour // those that overlap the span, in order
	Pods         map[string]Pod
}

// Target is who gets a share: a pod, or a remainder category with its payer. A
// remainder that a policy moved to a pod keeps its category and says so.
type Target struct {
	PodUID   string
	Category string // "pod", or the remainder category the share comes from
	MovedBy  string // the policy that moved a remainder to PodUID, "" otherwise
	Model    string
	Mode     gpu.Mode
	Owner    policy.Owner
}

// Key orders and identifies a target by meaning, never by a database id.
func (t Target) Key() string { return t.key() }

// key orders and identifies a target by meaning, never by a database id.
func (t Target) key() string {
	return strings.Join([]string{t.Category, t.MovedBy, t.PodUID, t.Model, string(t.Mode), t.Owner.Key()}, "\x01")
}

// Share is one target's part of a window.
type Share struct {
	Target
	Ratio           money.Ratio
	GPURatio        money.Ratio // of the window's device time, Σ μ·σ dt without price weights; sums to One
	UsedByteSeconds int64
	HeldByteSeconds int64
	MeasuredMicros  int64
	GapMicros       int64
	Method          gpu.Method                 // the weakest rung behind the ratio
	ByMethod        map[gpu.Method]money.Ratio // sums to Ratio
}

// entry gathers a target while the window is walked.
type entry struct {
	Target
	weight   money.Weight // with the model's price weight: decides the ratio
	time     money.Weight // without: device time
	byMethod map[gpu.Method]money.Weight
	used     int64
	held     int64
	measured int64
	gap      int64
}

// MissingWeight is the error for a window of several models of which one has no
// price weight. It is never taken to be 1.
type MissingWeight struct {
	Model string
	At    time.Time
}

func (e *MissingWeight) Error() string {
	return fmt.Sprintf("the node has GPUs of several models and policy.yaml has no weight for %q on %s; add to model_weights: - {model: %q, weight: \"1.0\", from: %s}",
		e.Model, e.At.UTC().Format("2006-01-02"), e.Model, e.At.UTC().Format("2006-01-02"))
}

// Devices is the number of GPUs the window's node has: what its instance type says,
// or more where more were seen; at least one.
func (w *Window) Devices() int {
	n := max(1, w.Node.ExpectedGPUs)
	for _, h := range w.Hours {
		n = max(n, len(h.Devices))
	}
	return n
}

// Split computes the shares of a window, in the order of their keys. The ratios
// sum to exactly one, for cost and for device time each.
func Split(w Window, p *policy.Policy, owners *policy.Owners) ([]Share, error) {
	return Trace(w, p, owners, nil)
}

// Contribution is one term of a target's weight: its share of a partition in an
// hour, before it is multiplied up.
type Contribution struct {
	Target
	Hour            time.Time
	Device          string
	GPUInstance     string
	Profile         string
	Slices, Of      uint64 // μ = Slices / Of
	PriceWeight     uint64 // in millionths where models differ, else 1
	OverlapSeconds  uint64 // of the hour, within the window
	ShareMicros     uint64
	Method          gpu.Method
	UsableBytes     uint64 // M of the partition
	UsedByteSeconds int64  // of this row, within the hour
	MeasuredMicros  int64
}

// Trace is Split that also tells every term of every weight, in the order of the
// walk; see may be nil.
func Trace(w Window, p *policy.Policy, owners *policy.Owners, see func(Contribution)) ([]Share, error) {
	s := &split{w: w, p: p, owners: owners, entries: map[string]*entry{}, trace: see}
	if err := s.settleUnits(); err != nil {
		return nil, err
	}
	var ready, uncovered uint64 // in units of scale
	for _, h := range w.Hours {
		overlap := s.overlap(h.Start)
		if overlap == 0 {
			continue
		}
		r, u, err := s.hour(h, overlap)
		if err != nil {
			return nil, err
		}
		ready, uncovered = ready+r, uncovered+u
	}
	s.remainder(ready, uncovered)
	return s.finish()
}

// Whole gives all of a line to one remainder category.
func Whole(category, model string, mode gpu.Mode, payer policy.Owner) Share {
	return Share{
		Target: Target{Category: category, Model: model, Mode: mode, Owner: payer},
		Ratio:  money.One, GPURatio: money.One, Method: gpu.NoMethod, ByMethod: map[gpu.Method]money.Ratio{gpu.NoMethod: money.One},
	}
}

// CategoryOf returns the remainder category of a line that no pod can pay.
func CategoryOf(c billing.Class) string { return string(c) }

const (
	hourSeconds = 3_600
	hourMicros  = 3_600_000_000
)

type split struct {
	w       Window
	p       *policy.Policy
	owners  *policy.Owners
	entries map[string]*entry

	step    uint64 // seconds: the largest that measures every hour's overlap
	scale   uint64 // an hour in steps: 1 where every hour is whole
	trace   func(Contribution)
	place   Contribution // where the walk is, for trace
	slices  uint64       // least common multiple of the partitions' normalisers
	weights bool         // several models: price weights decide
	devices int          // devices of the node, at most over its hours
}

// settleUnits chooses the integers that make every weight exact.
func (s *split) settleUnits() error {
	s.slices, s.devices = 1, s.w.Devices()
	models := map[string]bool{}
	step := uint64(hourSeconds)
	for _, h := range s.w.Hours {
		step = gcd(step, s.overlapSeconds(h.Start))
		if len(h.Devices) < s.w.Node.ExpectedGPUs && s.w.Node.ExpectedModel != "" {
			models[s.w.Node.ExpectedModel] = true
		}
		for _, d := range h.Devices {
			if d.Model != "" {
				models[d.Model] = true
			}
			for i := range d.Partitions {
				_, of := s.slicesOf(d, &d.Partitions[i])
				s.slices = lcm(s.slices, of)
			}
		}
	}
	s.step, s.scale = step, hourSeconds/step
	s.weights = len(models) > 1
	if s.slices > 1<<20 {
		return fmt.Errorf("partitions of %d different sizes in one window", s.slices)
	}
	return nil
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func lcm(a, b uint64) uint64 { return a / gcd(a, b) * b }

// slicesOf returns a partition's s_p and D (DESIGN §4.2) under the policy's weight
// and normaliser; 1 of 1 for a whole GPU.
func (s *split) slicesOf(d gpu.Device, p *gpu.Partition) (slices, of uint64) {
	m, known := gpu.LookupModel(d.Model)
	slices, of = uint64(max(1, p.MemorySlices)), uint64(max(1, p.DeviceSlices))
	if p.Geometry == "" || !known || m.MemorySlices == 0 {
		return slices, of
	}
	all := uint64(m.MemorySlices)
	if s.p.Partition.Weight == "compute" {
		slices, all, of = uint64(max(1, p.ComputeSlices)), uint64(m.ComputeSlices), uint64(m.ComputeSlices)
		if profiles, ok := gpu.GeometryProfiles(m, p.Geometry); ok {
			of = uint64(gpu.ConfiguredComputeSlices(m, profiles))
		}
	}
	if s.p.Partition.Normaliser == "physical" {
		of = all
	}
	return slices, of
}

// overlapSeconds is how much of the hour the window takes. Bills are cut at whole
// seconds at the finest.
func (s *split) overlapSeconds(hour time.Time) uint64 {
	return uint64(s.w.Span.Intersect(period.Hour(hour)).Duration() / time.Second)
}

// overlap is the same in units of step: scale where the hour is whole.
func (s *split) overlap(hour time.Time) uint64 { return s.overlapSeconds(hour) / s.step }

func (s *split) priceWeight(model string, at time.Time) (uint64, error) {
	if !s.weights {
		return 1, nil
	}
	w, ok := s.p.WeightOf(gpu.NormalizeModel, model, at)
	if !ok {
		return 0, &MissingWeight{Model: model, At: at}
	}
	return w, nil
}

// hour adds one hour and returns how much of it the node was ready and how much of
// it nothing is known about, in units of scale.
func (s *split) hour(h Hour, overlap uint64) (ready, uncovered uint64, err error) {
	if !h.Seen {
		return 0, uint64(hourMicros-h.CoveredMicros) * overlap, nil
	}
	s.place = Contribution{Hour: h.Start}
	for _, d := range h.Devices {
		s.place.Device = d.UUID
		if err := s.device(h, d, overlap); err != nil {
			return 0, 0, err
		}
	}
	s.place = Contribution{Hour: h.Start, Device: "not seen"}
	if missing := s.devices - len(h.Devices); missing > 0 && h.ReadyMicros > 0 {
		model := s.w.Node.ExpectedModel
		pw, err := s.priceWeight(model, h.Start)
		if err != nil {
			return 0, 0, err
		}
		t := s.remainderTarget(string(gpu.NoTelemetry), model, gpu.ModeUnknown)
		s.add(t, gpu.NoMethod, uint64(h.ReadyMicros), overlap, s.slices*uint64(missing), pw)
	}
	return uint64(h.ReadyMicros) * overlap, uint64(h.UncoveredMicros) * overlap, nil
}

func (s *split) device(h Hour, d gpu.Device, overlap uint64) error {
	pw, err := s.priceWeight(d.Model, h.Start)
	if err != nil {
		return err
	}
	configured := map[string]uint64{} // Σ slices by geometry
	present := map[string]int64{}
	norm := map[string]uint64{}
	for i := range d.Partitions {
		p := &d.Partitions[i]
		s.place.GPUInstance, s.place.Profile = p.GPUInstance, p.Profile
		slices, n := s.slicesOf(d, p)
		mu := slices * (s.slices / n)
		configured[p.Geometry] += slices
		present[p.Geometry], norm[p.Geometry] = p.PresentMicros, n
		for _, m := range s.move(h, d, p) {
			s.place.UsableBytes, s.place.UsedByteSeconds, s.place.MeasuredMicros = p.UsableBytes, m.used, m.measured
			s.add(m.Target, m.method, m.share, overlap, mu, pw)
			s.memo(m, overlap)
		}
	}
	for _, g := range sortedKeys(configured) {
		if n := norm[g]; g != "" && configured[g] < n {
			t := s.remainderTarget(MIGUnpartitioned, d.Model, gpu.ModeMIG)
			s.add(t, gpu.NoMethod, uint64(present[g]), overlap, (n-configured[g])*(s.slices/n), pw)
		}
	}
	return nil
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

// remainder adds the billed time beyond what the node was ready for.
func (s *split) remainder(ready, uncovered uint64) {
	s.place = Contribution{Hour: s.w.Span.Start}
	billed := uint64(s.w.BilledMicros)
	if span := uint64(s.w.Span.Micros()); billed == 0 || billed > span {
		billed = span
	}
	billed *= s.scale
	if billed <= ready {
		return
	}
	rest := billed - ready
	unknown := min(rest, uncovered)
	model := s.w.Node.ExpectedModel
	if model == "" {
		model = s.onlyModel()
	}
	n := uint64(s.devices)
	pw := s.remainderWeight(model)
	for _, r := range []struct {
		category string
		amount   uint64
	}{{string(gpu.NoTelemetry), unknown}, {NotReady, rest - unknown}} {
		if r.amount > 0 {
			s.add(s.remainderTarget(r.category, model, gpu.ModeUnknown), gpu.NoMethod, r.amount, 1, s.slices*n, pw)
		}
	}
}

// remainderWeight prices time in which no device was seen: the expected model's
// weight, or the only one there is.
func (s *split) remainderWeight(model string) uint64 {
	w, err := s.priceWeight(model, s.w.Span.Start)
	if err != nil {
		return 1_000_000 // unreachable for a known model; for none, weight 1 among weights in millionths
	}
	return w
}

func (s *split) onlyModel() string {
	model := ""
	for _, h := range s.w.Hours {
		for _, d := range h.Devices {
			if model != "" && d.Model != model {
				return ""
			}
			model = d.Model
		}
	}
	return model
}

func (s *split) remainderTarget(category, model string, mode gpu.Mode) Target {
	return Target{Category: category, Model: model, Mode: mode, Owner: s.p.PayerOf(category, s.w.Node.Pool, s.w.Node.Account)}
}

func (s *split) entry(t Target) *entry {
	k := t.key()
	e := s.entries[k]
	if e == nil {
		e = &entry{Target: t, byMethod: map[gpu.Method]money.Weight{}}
		s.entries[k] = e
	}
	return e
}

// add gives a target micros × overlap × slices of device time, priced at pw.
func (s *split) add(t Target, m gpu.Method, micros, overlap, slices, pw uint64) {
	if micros == 0 {
		return
	}
	e := s.entry(t)
	w, _ := money.W(micros).Mul(overlap)
	w, _ = w.Mul(slices)
	e.time, _ = e.time.Add(w)
	w, ok := w.Mul(pw)
	if !ok {
		panic("allocate: weight beyond 128 bits")
	}
	e.weight, _ = e.weight.Add(w)
	e.byMethod[m], _ = e.byMethod[m].Add(w)
	if s.trace != nil {
		c := s.place
		c.Target, c.Method, c.ShareMicros, c.PriceWeight = t, m, micros, pw
		c.OverlapSeconds = overlap * s.step
		c.Slices, c.Of = slices, s.slices
		s.trace(c)
	}
}

func (s *split) memo(m moved, overlap uint64) {
	if m.MovedBy != "" || m.PodUID == "" {
		return
	}
	e := s.entry(m.Target)
	e.used += part(m.used, overlap, s.scale)
	e.held += part(m.held, overlap, s.scale)
	e.measured += part(m.measured, overlap, s.scale)
	e.gap += part(m.gap, overlap, s.scale)
}

// part scales an hour's figure to the part of the hour that the window takes.
func part(v int64, overlap, scale uint64) int64 {
	if scale == 1 {
		return v
	}
	hi, lo := bits.Mul64(uint64(v), overlap)
	q, _ := bits.Div64(hi, lo, scale)
	return int64(q)
}
