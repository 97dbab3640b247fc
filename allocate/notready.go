package allocate

import (
	"slices"

	"gpuledger/gpu"
)

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
	for _, r := range s.notReady(rest, uncovered) {
		for _, c := range s.parts() {
			by := s.inHour(overlap, 1, 1)
			by.per = 1 << fineBits
			s.addUnits(s.remainder(r.category, s.frame("", ""), c), gpu.NoMethod, r.amount<<fineBits, by)
		}
		for _, d := range s.restDevices() {
			s.add(s.remainder(r.category, s.frame(d.model, gpu.ModeUnknown), ""), gpu.NoMethod, r.amount, s.inHour(overlap, s.slices*d.count, d.price))
		}
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
	for _, r := range s.notReady(billed-ready, uncovered) {
		for _, c := range s.parts() {
			by := s.ofLine(1, 1)
			by.overlap = 1 << fineBits
			s.addUnits(s.remainder(r.category, s.frame("", ""), c), gpu.NoMethod, r.amount, by)
		}
		for _, d := range s.restDevices() {
			s.addUnits(s.remainder(r.category, s.frame(d.model, gpu.ModeUnknown), ""), gpu.NoMethod, r.amount, s.ofLine(s.slices*d.count, d.price))
		}
	}
}

// restDevices is what the node has, by model, for time in which no device was seen: what
// the hour with the most devices shows, and of the type that is expected what is missing.
func (s *split) restDevices() []restDevice {
	if s.rests != nil {
		for i := range s.rests {
			s.rests[i].price = s.remainderWeight(s.rests[i].model)
		}
		return s.rests
	}
	add := func(model string, n int) {
		if n <= 0 {
			return
		}
		i := slices.IndexFunc(s.rests, func(d restDevice) bool { return d.model == model })
		if i < 0 {
			i = len(s.rests)
			s.rests = append(s.rests, restDevice{model: model, price: s.remainderWeight(model)})
		}
		s.rests[i].count += uint64(n)
	}
	var most []gpu.Device
	if s.priced { // else all are of one model
		for i := range s.w.Hours {
			if d := s.w.Hours[i].Devices; len(d) > len(most) {
				most = d
			}
		}
	}
	for i := range most {
		add(most[i].Model, 1)
	}
	model := s.w.Node.ExpectedModel
	if model == "" {
		model = s.onlyModel()
	}
	add(model, s.devices-len(most))
	return s.rests
}

type restDevice struct {
	model        string
	count, price uint64
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
