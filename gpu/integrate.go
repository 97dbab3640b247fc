package gpu

import (
	"math/bits"
	"slices"
)

// pieceBits is the resolution of a piece of share time: 2^-20 µs. Pieces are
// floors, so at most one such unit is lost a piece; the loss is handed out with
// the largest remainders when pieces become whole microseconds.
const pieceBits = 20

// residualTolerance is the share of usable memory, in percent, up to which a
// difference between the device's figure and the pods' is spread over the pods.
const residualTolerance = 2

// column indexes the five definitions of Shares.
const (
	colUsed = iota
	colRequestNone
	colRequestReplica
	colMaxNone
	colMaxReplica
	columns
)

type rowKey struct {
	uid      string
	category Category
	method   Method
}

// accumulator gathers one row.
type accumulator struct {
	pieces         [columns]uint64 // units of 2^-20 µs
	spread         uint64
	usedHi, usedLo uint64 // byte-µs
	heldHi, heldLo uint64
	measured, gap  int64
	samples        int64
	first, last    int64
	peak           uint64
	histogram      [HistogramBuckets]int64 // µs
	flags          Flags
	replicas       int
}

// integration walks the instants of one partition's hour.
type integration struct {
	pp     *placedPart
	hour   interval
	rows   map[rowKey]*accumulator
	usable uint64 // what shares are taken of; never 0

	device  cursor
	holders []cursor
	last    map[*holder]lastRow
	marks   Flags   // what is to be said of all rows of the instant
	frozen  bool    // the samples of the instant are stale
	claims  []claim // of the instant, in memory that is used again
	wants   [][columns]uint64
}

// lastRow is the row that a holder's time went to before.
type lastRow struct {
	method Method
	row    *accumulator
}

// cursor walks a trail along ascending instants.
type cursor struct {
	trail
	cell, sample int
}

// at returns the cell that covers instant t.
func (c *cursor) at(t int64) (cell, bool) {
	for c.cell < len(c.cells) && c.cells[c.cell].end <= t {
		c.cell++
	}
	if c.cell < len(c.cells) && c.cells[c.cell].start <= t {
		return c.cells[c.cell], true
	}
	return cell{}, false
}

// within returns the samples in a piece of time.
func (c *cursor) within(seg interval) []int64 {
	for c.sample < len(c.samples) && c.samples[c.sample] < seg.start {
		c.sample++
	}
	n := c.sample
	for n < len(c.samples) && c.samples[n] < seg.end {
		n++
	}
	return c.samples[c.sample:n]
}

// nominalBytes stands for the memory of a partition of unknown size that nothing
// measures: requests are shares of it, and no figure in bytes is kept.
const nominalBytes = 1 << 30

// shareBase returns the bytes that a partition's shares are taken of.
func (pp *placedPart) shareBase() uint64 {
	if pp.UsableBytes == 0 && len(pp.data.device.cells) == 0 && !pp.data.perPod {
		return nominalBytes
	}
	return max(pp.UsableBytes, 1)
}

// integrate normalises the holders' bytes at each instant and integrates the
// result over the partition's present time (DESIGN §4.2).
func integrate(pp *placedPart, hour interval) []Row {
	in := &integration{pp: pp, hour: hour, rows: map[rowKey]*accumulator{}, usable: pp.shareBase(), device: cursor{trail: pp.data.device}, last: map[*holder]lastRow{}}
	for _, h := range pp.holders {
		in.holders = append(in.holders, cursor{trail: h.trail})
	}
	edges := in.edges()
	for _, present := range pp.present {
		first, _ := slices.BinarySearch(edges, present.start)
		for i := first; i+1 < len(edges) && edges[i] < present.end; i++ {
			in.segment(interval{edges[i], edges[i+1]})
		}
	}
	return in.finish()
}

// edges returns every instant at which something changes.
func (in *integration) edges() []int64 {
	var e []int64
	add := func(i interval) {
		if i = i.clip(in.hour); i.start < i.end {
			e = append(e, i.start, i.end)
		}
	}
	for _, p := range in.pp.present {
		add(p)
	}
	for _, p := range in.pp.unpartitioned {
		add(p)
	}
	if in.pp.dev != nil {
		for _, f := range in.pp.dev.frozen {
			add(f)
		}
	}
	for _, c := range in.pp.data.device.cells {
		add(c.interval)
	}
	for _, h := range in.pp.holders {
		add(h.life)
		for _, c := range h.trail.cells {
			add(c.interval)
		}
	}
	return sortedUnique(e)
}

// claim is what one holder takes up at an instant.
type claim struct {
	h        *holder
	claims   shareOfClaims
	used     uint64
	inUse    uint64 // what of it is known to be in use: a cap counts as used, and is no measurement
	spread   int64  // part of used that is spread residual; negative where use was scaled down
	method   Method
	measured bool
	samples  []int64 // times of those behind it within the instant
	sampled  bool    // it has samples behind it, there or before
	flags    Flags
}

func (in *integration) segment(seg interval) {
	pp := in.pp
	device, hasDevice := in.device.at(seg.start)
	claims := in.claims[:0]
	slots := 0
	for i, h := range pp.holders {
		if h.life.start > seg.start || h.life.end <= seg.start {
			continue
		}
		c := claim{h: h, flags: h.flags}
		if x, ok := in.holders[i].at(seg.start); ok && pp.data.perPod {
			c.used, c.measured, c.sampled, c.samples, c.method = x.value, true, true, in.holders[i].within(seg), ProcessName
			if h.byUID {
				c.method = ProcessUID
			}
		}
		if h.replicas == 0 && !c.measured {
			continue // it requested nothing, and nothing says that it uses the GPU now
		}
		claims = append(claims, c)
		slots += h.replicas
	}
	in.claims = claims
	in.marks, in.frozen = 0, pp.dev != nil && contains(pp.dev.frozen, seg.start)
	if pp.Mode == ModeUnknown {
		in.marks |= FlagModeUnknown
	}
	if pp.inferred {
		in.marks |= FlagModeInferred
	}
	if pp.Mode == ModeDRA {
		countClaims(claims)
	}
	unsized := pp.UsableBytes == 0 && in.usable != nominalBytes
	if unsized {
		in.usable = 1
	}
	residual := in.resolve(claims, slots, device, in.device.within(seg), hasDevice)
	for i := range claims {
		if c := &claims[i]; c.method == ProcessUID || c.method == ProcessName {
			c.inUse = c.used
		}
	}
	if unsized {
		in.size(claims, residual, device.value)
	}
	in.account(seg, claims, slots, residual, hasDevice)
}

// size takes what is known of an instant for the memory of a GPU whose size is not known:
// what is in use and what limits allow. The shares of it are an estimate.
func (in *integration) size(claims []claim, residual, device uint64) {
	sum := residual
	for i := range claims {
		c := &claims[i]
		sum += max(c.used, c.h.limit, c.claims.alone)
		c.method = max(c.method, ReplicaRequest)
	}
	in.usable = max(1, sum, device)
}

// mulDiv returns a × b / d, rounded down; the result fits because b ≤ d or a is
// far below 2^64/b.
func mulDiv(a, b, d uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	if d == 0 || hi >= d {
		return a
	}
	q, _ := bits.Div64(hi, lo, d)
	return q
}

// takesAll reports whether a claim pays the whole partition whatever it uses.
func (in *integration) takesAll(c claim, alone bool) bool {
	pp := in.pp
	if pp.Mode == ModeFraction && pp.fractionOf == ModeExclusive && c.h.limit == 0 && !c.h.fraction {
		return c.h.replicas > 0 // the GPU was whole again, or not yet divided
	}
	return c.h.replicas > 0 && (pp.whole() || pp.Mode == ModeDRA && (c.claims.all || alone && !c.claims.any) || pp.Mode == ModeUnknown && len(pp.holders) == 1 && !pp.data.perPod)
}

// demands returns what a claim takes up under each definition, in units of 1/scale
// bytes, scale being the partition's replicas, so that usable/R is exact.
func (in *integration) demands(c claim, scale uint64, alone bool) [columns]uint64 {
	pp := in.pp
	used := c.used * scale
	var reserved, replica uint64
	switch {
	case in.takesAll(c, alone):
		usable := in.usable * scale
		return [columns]uint64{usable, usable, usable, usable, usable}
	case c.h.replicas == 0: // rogue: pays what it uses
	case c.h.limit > 0:
		reserved = min(c.h.limit, in.usable) * scale
		replica = reserved
	case c.claims.alone > 0:
		reserved = min(c.claims.alone, in.usable) * scale
		replica = reserved
	case pp.Mode == ModeFraction: // its limit is not known: by what it is taken to use
		replica = used
	case pp.Mode == ModeDRA: // inside a claim that pods share, by use
	case pp.Mode == ModeMPS && pp.Replicas > 0:
		reserved = in.usable * uint64(c.h.replicas)
		replica = reserved
	case pp.Replicas > 0:
		replica = in.usable * uint64(c.h.replicas)
	}
	return [columns]uint64{used, reserved, replica, max(used, reserved), max(used, replica)}
}

// account adds one instant's shares to the rows.
func (in *integration) account(seg interval, claims []claim, held int, unattributed uint64, hasDevice bool) {
	pp := in.pp
	dt := uint64(seg.length())
	if hasDevice || slices.ContainsFunc(claims, func(c claim) bool { return c.sampled }) {
		pp.MeasuredMicros += int64(dt)
	}
	scale := uint64(max(1, pp.Replicas))
	usable := in.usable * scale
	demands := slices.Grow(in.wants[:0], len(claims))[:len(claims)]
	in.wants = demands
	var sums [columns]uint64
	if slices.ContainsFunc(claims, func(c claim) bool { return in.takesAll(c, len(claims) == 1) }) {
		unattributed = 0 // the driver's own bytes are inside what the holder pays for
	}
	stray := unattributed * scale
	sums[colUsed], sums[colMaxNone], sums[colMaxReplica] = stray, stray, stray
	for i, c := range claims {
		demands[i] = in.demands(c, scale, len(claims) == 1)
		for k := range sums {
			sums[k] += demands[i][k]
		}
	}
	var unused [columns]uint64
	capped := false
	if pp.Mode == ModeDRA {
		unused, capped = claimIdle(claims, scale)
		for k := range sums {
			sums[k] += unused[k]
		}
	}
	var given [columns]uint64
	give := func(a *accumulator, amounts *[columns]uint64) {
		var amount, of, p uint64 // of the column before: it is often the same again
		for k, x := range amounts {
			if x == 0 {
				continue
			}
			if all := max(usable, sums[k]); x != amount || all != of {
				amount, of, p = x, all, mulDiv(dt<<pieceBits, x, all)
			}
			a.pieces[k] += p
			given[k] += p
		}
	}
	for i := range claims {
		c := &claims[i]
		a := in.rowOf(c)
		give(a, &demands[i])
		in.memo(a, seg, c, demands[i][colMaxNone]/scale, usable, sums[colUsed])
	}
	if unused[colRequestNone] > 0 {
		give(in.row(rowKey{category: ClaimIdle, method: NoMethod}), &unused)
	}
	if stray > 0 {
		a := in.row(rowKey{category: Unattributed, method: NoMethod})
		give(a, &[columns]uint64{colUsed: stray, colMaxNone: stray, colMaxReplica: stray})
		a.addUsed(unattributed, dt)
		a.measured += int64(dt)
	}
	free := Unallocated
	switch {
	case len(claims) == 0 && !hasDevice && contains(pp.unpartitioned, seg.start):
		free = MIGUnpartitioned
	case len(claims) == 0 && !hasDevice:
		free = NoTelemetry
	case pp.Mode == ModeDRA && len(claims) > 0 && !capped:
		free = ClaimIdle
	case pp.Replicas > 1 && held >= pp.Replicas && pp.Mode != ModeFraction:
		free = SlotHeld
	}
	for k := range sums {
		if sums[k] < usable {
			a := in.row(rowKey{category: free, method: NoMethod})
			a.pieces[k] += dt<<pieceBits - given[k]
		}
	}
	if a := in.rows[rowKey{category: free, method: NoMethod}]; a != nil && sums[colUsed] < usable {
		a.flags |= in.marks
		if in.frozen && !hasDevice {
			a.flags |= FlagFrozen
		}
		if hasDevice {
			a.measured += int64(dt)
		} else {
			a.gap += int64(dt)
		}
	}
}

func (in *integration) rowOf(c *claim) *accumulator {
	before := in.last[c.h]
	if before.row == nil || before.method != c.method {
		before = lastRow{c.method, in.row(rowKey{uid: c.h.uid, method: c.method})}
		in.last[c.h] = before
	}
	return before.row
}

func (in *integration) row(k rowKey) *accumulator {
	a := in.rows[k]
	if a == nil {
		a = &accumulator{first: -1}
		in.rows[k] = a
	}
	return a
}
