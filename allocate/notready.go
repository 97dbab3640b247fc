package allocate

import (
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
