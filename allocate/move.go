package allocate

import (
	"math/bits"
	"time"

	"gpuledger/billing/money"
	"gpuledger/gpu"
	"gpuledger/policy"
)

// given is what a pod gets of a partition-hour.
type given struct {
	pod      *podTargets
	category string // "pod", or the remainder that a policy moved to it
	movedBy  string
	method   gpu.Method
	share    uint64   // µs, under the policy's basis
	row      *gpu.Row // the pod's own, whose figures go with its own share; nil with moved ones
}

// column picks the stored shares that the policy's basis and reservation ask for.
// Basis request always counts replicas.
func (x *Splitter) column(r *gpu.Row) int64 {
	switch x.basis {
	case basisUsed:
		return r.Shares.Used
	case basisRequest:
		return r.Shares.RequestReplica
	case basisMaxReplica:
		return r.Shares.MaxReplica
	}
	return r.Shares.MaxNone
}

// basis is which of a row's columns counts.
type basis int

const (
	basisMaxNone basis = iota
	basisMaxReplica
	basisUsed
	basisRequest
)

func basisOf(p *policy.Policy) basis {
	switch {
	case p.Basis == "used":
		return basisUsed
	case p.Basis == "request":
		return basisRequest
	case p.Reservation.TimeSlicing == "replica":
		return basisMaxReplica
	}
	return basisMaxNone
}

// partition gives away a partition-hour, after the redistributions of device scope.
// The shares keep their sum.
func (s *split) partition(h *Hour, d *gpu.Device, p *gpu.Partition, by factors) {
	f := s.frame(d.Model, p.Mode)
	if s.trace != nil {
		s.place.GPUInstance, s.place.Profile, s.place.PartitionMode, s.place.Slots, s.place.UsableBytes = p.GPUInstance, p.Profile, p.Mode, p.Replicas, p.UsableBytes
	}
	shares, known := s.shares[:0], s.known[:0]
	for i := range p.Rows {
		r := &p.Rows[i]
		shares = append(shares, uint64(max(0, s.column(r))))
		var pod *podTargets
		if r.PodUID != "" {
			pod = s.podOf(r.PodUID)
		}
		known = append(known, pod)
	}
	s.shares, s.known = shares, known
	if driver := s.driverMicros(d, p.PresentMicros); driver > 0 {
		s.takeOff(shares, driver)
		t := s.remainder(DriverReserved, f, "")
		if t.rule.Scope != policy.ScopeDevice || t.rule.Policy == policy.Keep || !s.redistribute(h, f, p, &gpu.Row{Category: DriverReserved}, t.rule, driver, by) {
			s.add(t, gpu.NoMethod, driver, by)
		}
	}
	for i := range p.Rows {
		r := &p.Rows[i]
		if s.trace != nil {
			s.place.UsedByteSeconds, s.place.MeasuredMicros, s.place.Replicas = r.UsedByteSeconds, r.MeasuredMicros, r.Replicas
		}
		if r.PodUID != "" {
			if !s.steady {
				s.give(h, f, given{known[i], PodCategory, "", r.Method, shares[i], r}, by)
				continue
			}
			t := s.pod(known[i], h.Start, s.changed, f, "", PodCategory, "")
			s.add(t, r.Method, shares[i], by)
			s.memo(t, r, by.overlap)
			continue
		}
		t := s.remainder(string(r.Category), f, "")
		left := shares[i]
		if s.trace != nil {
			s.place.UsedByteSeconds, s.place.MeasuredMicros, s.place.Replicas = 0, 0, 0
		}
		switch {
		case left == 0:
			continue
		case t.rule.Policy == policy.LastTenant:
			left -= s.toLastTenants(h, f, p, r, left, by)
		case t.rule.Policy != policy.Keep && t.rule.Scope == policy.ScopeDevice && s.redistribute(h, f, p, r, t.rule, left, by):
			continue
		}
		s.add(t, gpu.NoMethod, left, by)
	}
}

// driverMicros is what the driver takes of a partition's time where the policy gives it
// a line of its own: reserved ÷ total memory of the device, rounded down.
func (s *split) driverMicros(d *gpu.Device, present int64) uint64 {
	if s.p.DriverReserved != "own_line" || d.ReservedBytes == 0 || d.ReservedBytes > d.TotalBytes || present <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(present), d.ReservedBytes)
	q, _ := bits.Div64(hi, lo, d.TotalBytes)
	return q
}

// takeOff takes micros off shares, from each in proportion.
func (s *split) takeOff(shares []uint64, micros uint64) {
	weights, sum := s.weights[:0], uint64(0)
	for _, x := range shares {
		weights, sum = append(weights, money.W(x)), sum+x
	}
	s.weights = weights
	parts, err := s.divider.Apportion(int64(sum-min(sum, micros)), weights)
	if err != nil {
		return // nobody has anything
	}
	for i, x := range parts {
		shares[i] = uint64(x)
	}
}

// give adds a pod's share, and divides it between the pod's owners, by time, where a
// rule begins or ends within the hour: midnight in Kolkata is at half past.
func (s *split) give(h *Hour, f *frame, g given, by factors) {
	if s.steady {
		t := s.pod(g.pod, h.Start, s.changed, f, "", g.category, g.movedBy)
		s.add(t, g.method, g.share, by)
		if g.row != nil {
			s.memo(t, g.row, by.overlap)
		}
		return
	}
	at, lasts := s.ownerTimes(h.Start)
	split := func(total int64) []int64 {
		parts, err := money.Apportion(total, lasts)
		if err != nil {
			return make([]int64, len(at)) // unreachable: the pieces of an hour are never nothing
		}
		return parts
	}
	shares := split(int64(g.share))
	var figures [4][]int64
	if g.row != nil {
		for i, v := range []int64{g.row.UsedByteSeconds, g.row.HeldByteSeconds, g.row.MeasuredMicros, g.row.GapMicros} {
			figures[i] = split(v)
		}
	}
	for i := range at {
		t := s.pod(g.pod, at[i], s.change(at[i]), f, "", g.category, g.movedBy)
		s.add(t, g.method, uint64(shares[i]), by)
		if g.row != nil {
			s.memo(t, &gpu.Row{UsedByteSeconds: figures[0][i], HeldByteSeconds: figures[1][i], MeasuredMicros: figures[2][i], GapMicros: figures[3][i]}, by.overlap)
		}
	}
}

// memo adds what goes with a pod's own share.
func (s *split) memo(t *target, r *gpu.Row, overlap uint64) {
	s.of(t)
	t.used += part(r.UsedByteSeconds, overlap, s.scale)
	t.held += part(r.HeldByteSeconds, overlap, s.scale)
	t.measured += part(r.MeasuredMicros, overlap, s.scale)
	t.gap += part(r.GapMicros, overlap, s.scale)
}

// ruleFor is the policy's treatment of a category, including unattributed bytes.
func (x *Splitter) ruleFor(category, pool string) policy.Rule {
	if category == string(gpu.Unattributed) && x.p.Unattributed.Mode == "spread" {
		return policy.Rule{Policy: policy.Proportional, Scope: policy.ScopeDevice}
	}
	r := x.p.Idle.For(category, pool)
	if x.p.ComponentSplit == policy.SCAD && r.Policy == policy.Keep && (category == string(gpu.Unallocated) || category == MIGUnpartitioned) {
		// AWS spreads what is unused by what each pod is allocated, per component.
		return policy.Rule{Policy: policy.SCAD, Scope: policy.ScopeNode}
	}
	return r
}

// redistribute shares a remainder out over the partition's holders, and reports
// whether there was anybody to take it.
func (s *split) redistribute(h *Hour, f *frame, p *gpu.Partition, r *gpu.Row, rule *policy.Rule, share uint64, by factors) bool {
	proportional := rule.Policy == policy.Proportional
	byUse := proportional && (r.Category == gpu.SlotHeld || r.Category == gpu.Unattributed || r.Category == gpu.ClaimIdle)
	measures := [...]measure{heldTime, none, none} // the next where nobody has any of one
	switch {
	case byUse:
		measures = [...]measure{usedTime, slotTime, heldTime}
		if sameAsBytes(p) {
			measures[0] = usedBytes
		}
	case proportional:
		measures[0] = shareTime
	case rule.Policy == policy.Replica:
		measures = [...]measure{slotTime, heldTime, none}
	}
	for _, measure := range measures {
		if measure == none {
			break
		}
		weights := s.weights[:0]
		for i := range p.Rows {
			w := uint64(0)
			if p.Rows[i].PodUID != "" {
				w = s.measured(measure, &p.Rows[i])
			}
			weights = append(weights, money.W(w))
		}
		s.weights = weights
		parts, err := s.divider.Apportion(int64(share), weights)
		if err != nil {
			continue // nobody under this measure: try the next
		}
		for i := range p.Rows {
			x := &p.Rows[i]
			switch {
			case x.PodUID == "" || parts[i] == 0:
			case s.steady:
				s.add(s.pod(s.known[i], h.Start, s.changed, f, "", string(r.Category), rule.Policy), x.Method, uint64(parts[i]), by)
			default:
				s.give(h, f, given{s.known[i], string(r.Category), rule.Policy, x.Method, uint64(parts[i]), nil}, by)
			}
		}
		return true
	}
	return false
}

// ownerTimes returns the instants of an hour from which on an owner is asked for, the
// hour's start among them, and how long each of them lasts.
func (x *Splitter) ownerTimes(hour time.Time) (at []time.Time, lasts []money.Weight) {
	end := hour.Add(time.Hour)
	at = []time.Time{hour}
	for i := x.change(hour); i < len(x.changes) && x.changes[i].Before(end); i++ {
		at = append(at, x.changes[i])
	}
	lasts = make([]money.Weight, len(at))
	for i := range at {
		until := end
		if i+1 < len(at) {
			until = at[i+1]
		}
		lasts[i] = money.W(uint64(until.Sub(at[i]).Microseconds()))
	}
	return at, lasts
}

// measure is what a remainder is shared out by.
type measure int

const (
	none      measure = iota
	usedBytes         // byte-seconds, where all of them are known
	usedTime          // share-seconds by bytes used, estimates too
	shareTime         // share-seconds under the policy's basis
	slotTime          // slots × time; at most 2^10 slots of an hour, so it fits
	heldTime
)

func (s *split) measured(by measure, r *gpu.Row) uint64 {
	switch by {
	case usedBytes:
		return uint64(max(0, r.UsedByteSeconds))
	case usedTime:
		return uint64(max(0, r.Shares.Used))
	case shareTime:
		return uint64(max(0, s.column(r)))
	case slotTime:
		return uint64(r.MeasuredMicros+r.GapMicros) * uint64(r.Replicas)
	}
	if r.Replicas == 0 && s.column(r) <= 0 {
		return 0 // it requested nothing and uses nothing
	}
	return uint64(r.MeasuredMicros + r.GapMicros)
}

// sameAsBytes reports whether the pods' share-seconds by use are their byte-seconds ÷ usable
// memory: they are unless some are estimates, or the GPU was oversubscribed. The bytes are
// then the finer measure: two equal users of little memory have the same of what is free.
func sameAsBytes(p *gpu.Partition) bool {
	const rounding = 2 // µs
	for i := range p.Rows {
		r := &p.Rows[i]
		if r.PodUID == "" || r.Shares.Used <= 0 && r.UsedByteSeconds <= 0 {
			continue
		}
		hi, lo := bits.Mul64(uint64(max(0, r.UsedByteSeconds)), 1_000_000)
		if hi >= p.UsableBytes {
			return false
		}
		micros, _ := bits.Div64(hi, lo, p.UsableBytes)
		if d := int64(micros) - r.Shares.Used; d > rounding || d < -rounding {
			return false
		}
	}
	return true
}

// apportion divides what a remainder is of a line, and what it is of the GPUs' part, by the
// same weights.
func (sh Share) apportion(weights []money.Weight) (ratios, gpuRatios []int64, err error) {
	if ratios, err = money.Apportion(int64(sh.Ratio), weights); err != nil {
		return nil, nil, err
	}
	gpuRatios, err = money.Apportion(int64(sh.GPURatio), weights)
	return ratios, gpuRatios, err
}
