package allocate

import (
	"fmt"
	"math/bits"
	"time"

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
	rests     []restDevice            // what time in which no device was seen is of
	wide      bool                    // a weight did not fit
	unknown   int                     // device-hours that do not say what the driver keeps
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

// part scales an hour's figure to the part of the hour that the window takes.
func part(v int64, overlap, scale uint64) int64 {
	if scale == 1 {
		return v
	}
	hi, lo := bits.Mul64(uint64(v), overlap)
	q, _ := bits.Div64(hi, lo, scale)
	return int64(q)
}
