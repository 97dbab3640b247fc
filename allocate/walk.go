package allocate

import (
	"fmt"
	"math/bits"
	"sort"
	"time"

	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/policy"
)

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
	pool    string       // node pool of the hour under way
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
	profiles, named := gpu.GeometryProfiles(m, p.Geometry)
	all := uint64(m.MemorySlices)
	switch s.p.Partition.Weight {
	case "compute":
		slices, all, of = uint64(max(1, p.ComputeSlices)), uint64(m.ComputeSlices), uint64(m.ComputeSlices)
		if named {
			of = uint64(gpu.ConfiguredComputeSlices(m, profiles))
		}
	case "dominant":
		slices, all = uint64(m.DominantSlices(p.MemorySlices, p.ComputeSlices)), uint64(m.MemorySlices*m.ComputeSlices)
		of = all
		if named {
			of = uint64(gpu.ConfiguredDominantSlices(m, profiles))
		}
	}
	if s.p.Partition.Normaliser == "physical" {
		of = max(all, s.configured(d, p)) // a sum of dominant shares can exceed the GPU
	}
	return slices, of
}

// configured is Σ slices of the device's instances of one geometry where that can be
// more than the GPU has, else 0.
func (s *split) configured(d gpu.Device, p *gpu.Partition) uint64 {
	m, _ := gpu.LookupModel(d.Model)
	if s.p.Partition.Weight != "dominant" {
		return 0
	}
	sum := 0
	for _, q := range d.Partitions {
		if q.Geometry == p.Geometry {
			sum += m.DominantSlices(q.MemorySlices, q.ComputeSlices)
		}
	}
	return uint64(sum)
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
	s.pool = s.w.Node.Pool
	if !h.Seen {
		return 0, uint64(hourMicros-h.CoveredMicros) * overlap, nil
	}
	s.pool = h.Pool
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
	mode := map[string]gpu.Mode{}
	for i := range d.Partitions {
		p := &d.Partitions[i]
		s.place.GPUInstance, s.place.Profile = p.GPUInstance, p.Profile
		slices, n := s.slicesOf(d, p)
		mu := slices * (s.slices / n)
		configured[p.Geometry] += slices
		present[p.Geometry], norm[p.Geometry], mode[p.Geometry] = p.PresentMicros, n, p.Mode
		for _, m := range s.move(h, d, p) {
			s.place.UsableBytes, s.place.UsedByteSeconds, s.place.MeasuredMicros = p.UsableBytes, m.used, m.measured
			s.place.PartitionMode, s.place.Slots, s.place.Replicas = p.Mode, p.Replicas, m.replicas
			s.add(m.Target, m.method, m.share, overlap, mu, pw)
			s.memo(m, overlap)
		}
	}
	for _, g := range sortedKeys(configured) {
		if n := norm[g]; g != "" && configured[g] < n {
			category, shared := MIGUnpartitioned, gpu.ModeMIG
			if mode[g] == gpu.ModePartition { // a card's partitions are all there, seen or not
				category, shared = string(gpu.NoTelemetry), gpu.ModePartition
			}
			t := s.remainderTarget(category, d.Model, shared)
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
	s.place, s.pool = Contribution{Hour: s.w.Span.Start}, s.w.Node.Pool
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
			s.partsRemainder(r.category, r.amount)
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
	t := Target{Category: category, Model: model, Mode: mode, Pool: s.pool, Owner: s.p.PayerOf(category, s.pool, s.w.Node.Account)}
	at := s.place.Hour
	if at.IsZero() {
		at = s.w.Span.Start
	}
	return s.payers().target(t, s.ruleFor(category), s.w.Node.Cluster, s.w.Node.Account, at)
}

func (s *split) payers() payers { return payers{s.p, s.owners} }

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
		c.Component = billing.GPU
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
