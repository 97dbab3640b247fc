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
)

// split is one window under way.
type split struct {
	*Splitter
	w Window

	step    uint64 // seconds: the largest that measures every hour's overlap
	scale   uint64 // an hour in steps: 1 where every hour is whole
	trace   func(Contribution)
	place   Contribution      // where the walk is, for trace
	at      time.Time         // the hour under way: whose rules of ownership hold
	changed int               // change of at
	steady  bool              // no owner changes within it
	byHour  bool              // several hours, and rules of node scope: weights are in 2^-20 µs
	moves   map[string][]Move // nil where nobody asks
	waiting []waiting         // remainders that the hour's end shares out
	slices  uint64            // least common multiple of the partitions' normalisers
	priced  bool              // several models: price weights decide
	pool    string            // node pool of the hour under way
	node    string            // and the name of the node
	devices int               // devices of the node, at most over its hours

	vacancies map[time.Time][]vacancy // by hour, where the policy asks for them
	wide      bool                    // a weight did not fit
	unknown   int                     // device-hours that do not say what the driver keeps
}

// factors turn units of time into weight, and back into what a reader is told.
type factors struct {
	overlap uint64 // of the hour, in units of step; of what belongs to no hour what makes its units those of the others
	slices  uint64 // μ × the window's slices
	price   uint64 // w(model)
	per     uint64 // units in a µs
	seconds uint64 // of the hour that the window takes; 3,600 of what belongs to no hour
}

// inHour are the factors of an hour's terms: microseconds, or where remainders are
// shared out by the hour units of 2^-20 of them.
func (s *split) inHour(overlap, slices, price uint64) factors {
	by := factors{overlap, slices, price, 1, overlap * s.step}
	if s.byHour {
		by.per = 1 << fineBits
	}
	return by
}

// ofLine are the factors of time that belongs to no hour, in µs × scale.
func (s *split) ofLine(slices, price uint64) factors {
	by := factors{1, slices, price, s.scale, hourSeconds}
	if s.byHour {
		by.overlap = 1 << fineBits
	}
	return by
}

// weight is what so many units weigh, and whether that fits.
func (by factors) weight(units uint64) (w money.Weight, ok bool) {
	w = money.W(units)
	if by.overlap == 1 && by.slices == 1 && by.price == 1 {
		return w, true
	}
	ok = true
	for _, f := range [...]uint64{by.overlap, by.slices, by.price} {
		fits := false
		w, fits = w.Mul(f)
		ok = ok && fits
	}
	return w, ok
}

// settleUnits chooses the integers that make every weight exact.
func (s *split) settleUnits() error {
	s.slices, s.devices = 1, s.w.Devices()
	model := ""
	add := func(m string) {
		s.priced = s.priced || m != "" && model != "" && m != model
		if m != "" {
			model = m
		}
	}
	for i := range s.w.Before {
		s.settleSlices(&s.w.Before[i])
	}
	step := uint64(hourSeconds)
	for i := range s.w.Hours {
		h := &s.w.Hours[i]
		s.settleSlices(h)
		step = gcd(step, s.overlapSeconds(h.Start))
		if len(h.Devices) < s.w.Node.ExpectedGPUs {
			add(s.w.Node.ExpectedModel)
		}
		for j := range h.Devices {
			add(h.Devices[j].Model)
		}
	}
	s.step, s.scale = step, hourSeconds/step
	if s.slices > 1<<20 {
		return fmt.Errorf("partitions of %d different sizes in one window", s.slices)
	}
	return nil
}

func (s *split) settleSlices(h *Hour) {
	for j := range h.Devices {
		d := &h.Devices[j]
		for k := range d.Partitions {
			if p := &d.Partitions[k]; p.DeviceSlices > 1 || p.Geometry != "" {
				_, of := s.slicesOf(d, p)
				s.slices = lcm(s.slices, of)
			}
		}
	}
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
func (s *split) slicesOf(d *gpu.Device, p *gpu.Partition) (slices, of uint64) {
	slices, of = uint64(max(1, p.MemorySlices)), uint64(max(1, p.DeviceSlices))
	if p.Geometry == "" {
		return slices, of
	}
	all := 0 // dominant shares of a geometry can exceed the GPU
	if s.p.Partition.Weight == "dominant" && s.p.Partition.Normaliser == "physical" {
		all = s.dominantSum(d, p.Geometry)
	}
	k := geometryKey{d.Model, p.Geometry, p.Profile, p.MemorySlices, p.DeviceSlices, all, p.ComputeSlices}
	if known, ok := s.geometries[k]; ok {
		return known[0], known[1]
	}
	slices, of = s.weighSlices(d.Model, p, slices, of, uint64(all))
	s.geometries[k] = [2]uint64{slices, of}
	return slices, of
}

func (s *split) weighSlices(model string, p *gpu.Partition, slices, of, configured uint64) (uint64, uint64) {
	m, known := gpu.LookupModel(model)
	if !known || m.MemorySlices == 0 {
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
		of = max(all, configured)
	}
	return slices, of
}

// dominantSum is Σ dominant slices of the device's instances of one geometry.
func (s *split) dominantSum(d *gpu.Device, geometry string) int {
	m, _ := gpu.LookupModel(d.Model)
	sum := 0
	for i := range d.Partitions {
		if q := &d.Partitions[i]; q.Geometry == geometry {
			sum += m.DominantSlices(q.MemorySlices, q.ComputeSlices)
		}
	}
	return sum
}

// overlapSeconds is how much of the hour the window takes. Bills are cut at whole
// seconds at the finest.
func (s *split) overlapSeconds(hour time.Time) uint64 {
	if hour.Equal(s.w.Span.Start) && s.w.Span.End.Sub(hour) == time.Hour {
		return hourSeconds
	}
	return uint64(s.w.Span.Intersect(period.Hour(hour)).Duration() / time.Second)
}

// overlap is the same in units of step: scale where the hour is whole.
func (s *split) overlap(hour time.Time) uint64 { return s.overlapSeconds(hour) / s.step }

func (s *split) priceWeight(model string, at time.Time) (uint64, error) {
	if !s.priced {
		return 1, nil
	}
	w, ok := s.p.WeightOf(gpu.NormalizeModel, model, at)
	if !ok {
		return 0, &MissingWeight{Model: model, At: at}
	}
	return w, nil
}

// enter sets the place of the walk.
func (s *split) enter(at time.Time, pool, node, device string) {
	if s.at, s.pool, s.node = at, pool, node; len(s.changes) > 0 {
		s.changed = s.change(at)
	}
	s.steady = s.changed == len(s.changes) || !s.changes[s.changed].Before(at.Add(time.Hour))
	if s.trace != nil {
		s.place = Contribution{Hour: at, Device: device}
	}
}

// hour adds one hour and returns how much of it the node was ready and how much of
// it nothing is known about, in units of scale.
func (s *split) hour(h *Hour, overlap uint64) (ready, uncovered uint64, err error) {
	if !h.Seen {
		return 0, uint64(hourMicros-h.CoveredMicros) * overlap, nil
	}
	for i := range h.Devices {
		s.enter(h.Start, h.Pool, h.Node, h.Devices[i].UUID)
		if err := s.device(h, &h.Devices[i], overlap); err != nil {
			return 0, 0, err
		}
	}
	if missing := s.devices - len(h.Devices); missing > 0 && h.ReadyMicros > 0 {
		s.enter(h.Start, h.Pool, h.Node, "not seen")
		model := s.w.Node.ExpectedModel
		pw, err := s.priceWeight(model, h.Start)
		if err != nil {
			return 0, 0, err
		}
		t := s.remainder(string(gpu.NoTelemetry), s.frame(model, gpu.ModeUnknown), "")
		s.add(t, gpu.NoMethod, uint64(h.ReadyMicros), s.inHour(overlap, s.slices*uint64(missing), pw))
	}
	return uint64(h.ReadyMicros) * overlap, uint64(h.UncoveredMicros) * overlap, nil
}

func (s *split) device(h *Hour, d *gpu.Device, overlap uint64) error {
	price, err := s.priceWeight(d.Model, h.Start)
	if err != nil {
		return err
	}
	if s.p.DriverReserved == "own_line" && (d.ReservedBytes == 0 || d.TotalBytes == 0) {
		s.unknown++
	}
	cut := false
	for i := range d.Partitions {
		p := &d.Partitions[i]
		slices, of := s.slicesOf(d, p)
		s.partition(h, d, p, s.inHour(overlap, slices*(s.slices/of), price))
		cut = cut || p.Geometry != ""
	}
	if cut {
		s.unpartitioned(d, overlap, price)
	}
	return nil
}

// unpartitioned adds the slices that each geometry of a device leaves out.
func (s *split) unpartitioned(d *gpu.Device, overlap, price uint64) {
	type geometry struct {
		configured, of uint64 // Σ slices, D
		first          *gpu.Partition
	}
	all := map[string]*geometry{}
	var names []string
	for i := range d.Partitions {
		p := &d.Partitions[i]
		slices, of := s.slicesOf(d, p)
		g := all[p.Geometry]
		if g == nil {
			g = &geometry{of: of, first: p}
			all[p.Geometry] = g
			names = append(names, p.Geometry)
		}
		g.configured += slices
	}
	sort.Strings(names)
	for _, name := range names {
		g := all[name]
		if name == "" || g.configured >= g.of {
			continue
		}
		category, mode := MIGUnpartitioned, gpu.ModeMIG
		if g.first.Mode == gpu.ModePartition { // a card's partitions are all there, seen or not
			category, mode = string(gpu.NoTelemetry), gpu.ModePartition
		}
		f := s.frame(d.Model, mode)
		by := s.inHour(overlap, (g.of-g.configured)*(s.slices/g.of), price)
		present := uint64(g.first.PresentMicros)
		driver := s.driverMicros(d, g.first.PresentMicros)
		if s.trace != nil {
			s.place.GPUInstance, s.place.Profile = "", ""
		}
		s.add(s.remainder(DriverReserved, f, ""), gpu.NoMethod, driver, by)
		s.add(s.remainder(category, f, ""), gpu.NoMethod, present-driver, by)
	}
}

// billsAll reports whether the line bills all of its span: then it is known of every
// hour what of it was billed and not ready.
func (s *split) billsAll() bool {
	return s.w.BilledMicros <= 0 || s.w.BilledMicros >= s.w.Span.Micros()
}

// restOfHour adds what of an hour was billed and the node was not ready for.
func (s *split) restOfHour(h *Hour, overlap uint64) {
	ready, uncovered := uint64(0), uint64(hourMicros-h.CoveredMicros)
	pool, node := s.w.Node.Pool, ""
	if h.Seen {
		ready, uncovered = uint64(h.ReadyMicros), uint64(h.UncoveredMicros)
		pool, node = h.Pool, h.Node
	}
	if ready >= hourMicros {
		return
	}
	s.enter(h.Start, pool, node, "")
	rest := hourMicros - ready
	f, slices, price := s.restFrame()
	for _, r := range s.notReady(rest, uncovered) {
		for _, c := range s.parts() {
			by := s.inHour(overlap, 1, 1)
			by.per = 1 << fineBits
			s.addUnits(s.remainder(r.category, s.frame("", ""), c), gpu.NoMethod, r.amount<<fineBits, by)
		}
		s.add(s.remainder(r.category, f, ""), gpu.NoMethod, r.amount, s.inHour(overlap, slices, price))
	}
}

// rest adds the billed time beyond what the node was ready for, in units of scale, of a
// line that does not bill all of its span.
func (s *split) rest(ready, uncovered uint64) {
	s.enter(s.w.Span.Start, s.w.Node.Pool, "", "")
	billed := uint64(s.w.BilledMicros) * s.scale
	if billed <= ready {
		return
	}
	f, slices, price := s.restFrame()
	for _, r := range s.notReady(billed-ready, uncovered) {
		for _, c := range s.parts() {
			by := s.ofLine(1, 1)
			by.overlap = 1 << fineBits
			s.addUnits(s.remainder(r.category, s.frame("", ""), c), gpu.NoMethod, r.amount, by)
		}
		s.addUnits(s.remainder(r.category, f, ""), gpu.NoMethod, r.amount, s.ofLine(slices, price))
	}
}

// restFrame is what time in which no device was seen is of.
func (s *split) restFrame() (f *frame, slices, price uint64) {
	model := s.w.Node.ExpectedModel
	if model == "" {
		model = s.onlyModel()
	}
	return s.frame(model, gpu.ModeUnknown), s.slices * uint64(s.devices), s.remainderWeight(model)
}

type restPart struct {
	category string
	amount   uint64
}

// notReady divides billed time into what is not known and what was not ready.
func (s *split) notReady(rest, uncovered uint64) []restPart {
	var out []restPart
	unknown := min(rest, uncovered)
	if unknown > 0 {
		out = append(out, restPart{string(gpu.NoTelemetry), unknown})
	}
	if rest > unknown {
		out = append(out, restPart{NotReady, rest - unknown})
	}
	return out
}

// remainderWeight prices time in which no device was seen: the expected model's
// weight, or the only one there is.
func (s *split) remainderWeight(model string) uint64 {
	w, err := s.priceWeight(model, s.at)
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

// add gives a target micros of device time in an hour.
func (s *split) add(t *target, m gpu.Method, micros uint64, by factors) {
	switch {
	case micros == 0:
	case s.byHour:
		s.addUnits(t, m, micros<<fineBits, by)
	default:
		s.weigh(t, m, micros, by)
		if s.trace != nil {
			s.tell(t, m, micros, by)
		}
	}
}

// addUnits gives a target units of time, of devices, CPU or memory; or keeps them until
// the hour's end, where a rule shares them out then.
func (s *split) addUnits(t *target, m gpu.Method, units uint64, by factors) {
	switch {
	case units == 0:
	case s.byHour && ofNode(t.rule, t.Component):
		s.waiting = append(s.waiting, waiting{t, units, by})
	default:
		s.put(t, m, units, by)
	}
}

// put gives a target units of time for good.
func (s *split) put(t *target, m gpu.Method, units uint64, by factors) {
	if units == 0 {
		return
	}
	s.weigh(t, m, units, by)
	if s.trace != nil {
		s.tell(t, m, units, by)
	}
}

func (s *split) weigh(t *target, m gpu.Method, units uint64, by factors) {
	s.of(t)
	w, ok := by.weight(units)
	if s.priced && t.Component == "" { // else it is the weight
		time := by
		time.price = 1
		without, _ := time.weight(units)
		t.time, _ = t.time.Add(without)
	}
	s.wide = s.wide || !ok
	t.gain(m, w)
	if s.byHour {
		t.hourly, _ = t.hourly.Add(w)
	}
}

// tell passes a term on.
func (s *split) tell(t *target, m gpu.Method, units uint64, by factors) {
	c := s.place
	c.Target, c.Method, c.ShareMicros, c.PriceWeight = t.Target, m, units/by.per, by.price
	if c.Component == "" {
		c.Component = billing.GPU
	}
	c.OverlapSeconds = by.seconds
	c.Slices, c.Of = by.slices, s.slices
	if t.Component != "" {
		c.Slices, c.Of = 1, 1
	}
	s.trace(c)
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
