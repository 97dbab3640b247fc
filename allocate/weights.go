package allocate

import (
	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/gpu"
)

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
