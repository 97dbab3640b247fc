package gpu

import "math/bits"

// memo keeps what explains a charge and what later questions need.
func (in *integration) memo(a *accumulator, seg interval, c *claim, held, usable, sumUsed uint64) {
	dt := uint64(seg.length())
	if c.spread > 0 {
		a.spread += mulDiv(dt<<pieceBits, uint64(c.spread)*uint64(max(1, in.pp.Replicas)), max(usable, sumUsed))
	}
	a.replicas = max(a.replicas, c.h.replicas)
	a.flags |= c.flags | in.marks
	if in.frozen && !c.measured {
		a.flags |= FlagFrozen
	}
	if in.pp.part != nil && in.pp.part.usable == 0 || in.pp.part == nil {
		a.flags |= FlagCapacityAssumed
	}
	if in.usable != nominalBytes || in.pp.UsableBytes > 0 {
		a.addHeld(held, dt)
	}
	if !c.measured {
		a.gap += int64(dt)
		return
	}
	a.addUsed(c.inUse, dt)
	a.measured += int64(dt)
	a.peak = max(a.peak, c.inUse)
	bucket := 0
	if m := in.pp.UsableBytes; m > 0 && c.inUse > 0 {
		bucket = int(min(uint64(HistogramBuckets-1), mulDiv(c.inUse, HistogramBuckets, m)))
	}
	a.histogram[bucket] += int64(dt)
	if n := len(c.samples); n > 0 {
		a.samples += int64(n)
		if a.first < 0 {
			a.first = c.samples[0]
		}
		a.last = c.samples[n-1]
	}
}

func (a *accumulator) addUsed(bytes, us uint64) { add128(&a.usedHi, &a.usedLo, bytes, us) }
func (a *accumulator) addHeld(bytes, us uint64) { add128(&a.heldHi, &a.heldLo, bytes, us) }

func add128(hi, lo *uint64, a, b uint64) {
	h, l := bits.Mul64(a, b)
	var c uint64
	*lo, c = bits.Add64(*lo, l, 0)
	*hi, _ = bits.Add64(*hi, h, c)
}

// byteSeconds rounds byte-microseconds to the nearest byte-second.
func byteSeconds(hi, lo uint64) int64 { return int64(div128(hi, lo, 1_000_000)) }

// div128 divides and rounds to the nearest; what is beyond an int64 becomes the largest.
func div128(hi, lo, d uint64) uint64 {
	const most = ^uint64(0) >> 1
	lo, c := bits.Add64(lo, d/2, 0)
	hi += c
	if hi >= d {
		return most
	}
	q, _ := bits.Div64(hi, lo, d)
	return min(q, most)
}
