package gpu

// resolve takes each claim down the ladder until it has a figure, and returns the
// bytes that no pod answers for.
func (in *integration) resolve(claims []claim, slots int, device cell, samples []int64, hasDevice bool) (unattributed uint64) {
	pp := in.pp
	if len(claims) == 0 {
		if hasDevice && !within(device.value, 0, pp.UsableBytes) {
			return device.value
		}
		return 0
	}
	sum, missing, missingSlots := uint64(0), 0, 0
	for _, c := range claims {
		if c.measured {
			sum += c.used
		} else {
			missing++
			missingSlots += c.h.replicas
		}
	}
	failed := pp.data.perPod && hasDevice && slots > 0 && sum == 0 && missing == 0 && !within(device.value, 0, pp.UsableBytes)
	if failed { // of those who hold the device: who requested nothing may well use nothing
		for i := range claims {
			if claims[i].h.replicas > 0 {
				claims[i].measured = false
				claims[i].flags |= FlagMappingFailed
				missing++
				missingSlots += claims[i].h.replicas
			}
		}
	}
	if missing > 0 {
		left := uint64(0)
		if hasDevice && device.value > sum {
			left = device.value - sum
		}
		for i := range claims {
			if !claims[i].measured {
				in.estimate(&claims[i], left, hasDevice, samples, len(claims), missing, missingSlots)
			}
		}
		return 0
	}
	if !hasDevice {
		return 0
	}
	if device.value > sum && !within(device.value, sum, pp.UsableBytes) {
		return device.value - sum
	}
	for i := range claims { // a small residual, or pods that report more than the device
		c := &claims[i]
		if device.value < sum && !within(device.value, sum, pp.UsableBytes) {
			c.flags |= FlagOverReported
		}
		if sum > 0 {
			scaled := mulDiv(c.used, device.value, sum)
			c.spread, c.used = int64(scaled)-int64(c.used), scaled
		}
	}
	return 0
}

// within reports whether a and b differ by at most the tolerance.
func within(a, b, usable uint64) bool {
	d := max(a, b) - min(a, b)
	return d*100 <= usable*residualTolerance
}

// estimate fills a claim without samples of its own. left is what the device shows
// beyond the measured pods.
func (in *integration) estimate(c *claim, left uint64, hasDevice bool, samples []int64, claims, missing, slots int) {
	pp := in.pp
	// Where one pod holds the whole, the figure is its own, whatever label stayed on for a
	// scrape too long.
	copied := pp.data.copied && !(pp.whole() && claims == 1)
	if copied {
		c.flags |= FlagCopied
	}
	switch {
	case pp.Mode == ModeMPS && pp.Replicas > 0 && c.h.replicas > 0:
		// The daemon pins each client to its part (set_default_device_pinned_mem_limit).
		c.used, c.method = mulDiv(in.usable, uint64(c.h.replicas), uint64(pp.Replicas)), Limit
		c.measured, c.inUse = hasDevice, min(c.used, mulDiv(left, uint64(c.h.replicas), uint64(slots)))
		return
	case c.h.limit > 0:
		c.used, c.method, c.measured = c.h.limit, Limit, false
	case c.claims.any:
		c.used, c.method, c.measured = c.claims.even, Limit, false
	case hasDevice && claims == 1 && missing == 1 && !pp.data.perPod && !copied && (pp.whole() || pp.Mode != ModeTimeSlicing || c.h.flags&FlagPlacementInferred == 0):
		c.used, c.method = left, SoleHolder
		c.measured, c.sampled, c.samples = true, true, samples
	case hasDevice && slots > 0:
		c.used, c.method = mulDiv(left, uint64(c.h.replicas), uint64(slots)), ReplicaRequest
		c.measured, c.sampled, c.samples = true, true, samples
	case hasDevice:
		c.used, c.method = left/uint64(missing), Even
		c.measured, c.sampled, c.samples = true, true, samples
	case (pp.whole() || pp.Mode == ModeDRA && claims == 1) && c.h.replicas > 0:
		c.method = ReplicaRequest // it holds the whole; what it used is not known
	case pp.Replicas > 0 && c.h.replicas > 0:
		c.used, c.method = mulDiv(in.usable, uint64(min(c.h.replicas, pp.Replicas)), uint64(pp.Replicas)), ReplicaRequest
	default:
		c.used, c.method = in.usable/uint64(missing), Even
	}
	c.inUse = c.used
	if c.h.flags&FlagPlacementInferred != 0 && c.method < ReplicaRequest && c.method != Limit {
		c.method = ReplicaRequest
	}
	if pp.Mode == ModeUnknown && c.method != Limit {
		c.method = Even // it may be shared with others that no label shows: never silently exclusive
	}
}
