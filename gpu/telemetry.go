package gpu

import (
	"cmp"
	"math"
	"sort"
	"strings"

	"gpuledger/billing/period"
)

// Telemetry is what the exporters say of a cluster's devices over a window.
type Telemetry struct {
	devices map[string]*device // by UUID
}

type device struct {
	uuid, rawModel string
	node           string
	parts          map[partKey]*part
	active         [4]mean // by family, from famUtil on
	alive          []int64 // samples of any instance that prove the GPU is there, Unix µs
	dropped        map[string]int64
	models         map[string]int // how many samples within the hour name each model
	model          Model          // of rawModel
	sized          bool           // it is known
	frozen         []interval     // when an exporter repeated what it last knew
}

// podRef is how a series names its pod.
type podRef struct{ namespace, name, uid string }

func (r podRef) compare(o podRef) int {
	return cmp.Or(strings.Compare(r.namespace, o.namespace), strings.Compare(r.name, o.name), strings.Compare(r.uid, o.uid))
}

type mean struct {
	sum float64
	n   int64
}

func (m *mean) add(v float64, counts bool) {
	if counts {
		m.sum, m.n = m.sum+v, m.n+1
	}
}

func (m mean) value() float64 {
	if m.n == 0 {
		return -1
	}
	return m.sum / float64(m.n)
}

// NewTelemetry gathers the device series of one hour and its neighbourhood. The
// inventory helps to find each device's node; it may be empty.
func NewTelemetry(series []Series, inv *Inventory, hour period.Span, settings Settings) *Telemetry {
	t := &Telemetry{devices: map[string]*device{}}
	var slab slab
	order(series, spanMicros(hour))
	all := placeSeries(series, settings.exporters(), inv)
	for i := range all { // what the values are checked against comes before the values
		s := &all[i]
		d := t.devices[s.uuid]
		if d == nil {
			d = &device{uuid: s.uuid, parts: map[partKey]*part{}, dropped: map[string]int64{}, models: map[string]int{}}
			t.devices[s.uuid] = d
		}
		d.named(s.Labels["modelName"], s.Samples, spanMicros(hour))
		if s.node != "" {
			d.node = s.node
		}
	}
	frozen := frozenSpells(all)
	for uuid, d := range t.devices {
		d.settleModel()
		d.model, d.sized = settings.model(d.rawModel)
		d.frozen = frozen[uuid]
	}
	for i := range all {
		s := &all[i]
		t.devices[s.uuid].add(s.Series, s.how, spanMicros(hour), s.slot, &slab)
	}
	t.showActive(all)
	for _, d := range t.devices {
		for _, p := range d.parts {
			p.finish()
			if p.frozen = p.stale(d.frozen); p.frozen != nil {
				for _, is := range p.frozen {
					if is {
						d.dropped["frozen"]++
					}
				}
			}
		}
	}
	return t
}

// indexes are the UUIDs of devices by node and place in it, as series say that have both.
func indexes(series []Series, table exporters, inv *Inventory) map[string]string {
	out := map[string]string{}
	for _, s := range series {
		how, known := table[s.Metric]
		if !known {
			continue
		}
		s = how.canonical(s)
		uuid, _ := how.device(s)
		index := strings.TrimPrefix(first(s.Labels, "gpu", "device"), "nvidia")
		if node := nodeOf(s, inv, lastTime(s)); uuid != "" && index != "" && node != "" {
			out[node+"/"+index] = uuid
		}
	}
	return out
}

// part returns the device's part of a key, which it has from now on.
func (d *device) part(key partKey) *part {
	p := d.parts[key]
	if p == nil {
		p = &part{partKey: key}
		d.parts[key] = p
	}
	return p
}

func (d *device) add(s Series, how reading, hour interval, slot string, slab *slab) {
	fam, from := how.fam, exporter{s.Metric, s.Labels["instance"]}
	key := partKey{s.Labels["GPU_I_ID"], s.Labels["GPU_I_PROFILE"]}
	if instance, ok := claimedInstance(s.Labels); ok {
		d.part(instance).show(s)
		s.Labels = map[string]string{} // the figure is the parent's, and no pod's
	} else if key.gi != "" && fam.activity() {
		d.part(key).show(s)
	}
	p := d.parts[key]
	if p == nil && fam.memory() {
		p = d.part(key)
	}
	if slot == "" {
		slot = s.Labels["vgpu"]
	}
	ref, named := podOf(s)
	if how.of == "device" { // the pod is the exporter's own
		ref, named = podRef{}, false
	}
	if named && p != nil {
		p.addClaim(ref, s.Labels)
	}
	switch {
	case fam.activity():
		d.average(&d.active[fam-famUtil], s, how, hour)
	case fam == famPresent, fam == famPower:
		for _, x := range s.Samples {
			if _, ok := d.accept(x.Value, how); ok && !contains(d.frozen, x.UnixMilli*1000) {
				d.alive = append(d.alive, x.UnixMilli*1000)
			}
		}
	default:
		if p != nil && fam == famUsed {
			p.addScraped(s.Samples)
		}
		var known []int64
		if p != nil {
			known = p.times
		}
		times, values := d.accepted(s.Samples, how, slab, known)
		switch fam {
		case famReserved:
			p.reserve = max(p.reserve, largest(values))
		case famTotal:
			p.total = max(p.total, largest(values))
		case famLimit, famGranted:
			p.addLimit(ref, containerShare(s.Labels), fam == famGranted, times, values)
		default:
			t := track{from: from, free: fam == famFree, ref: ref, named: named, slot: slot, process: how.of == "process", copies: how.of == "copies"}
			if how.of == "pod" && named && fam == famUsed {
				t.own, t.slot, t.share = true, "", containerShare(s.Labels)
			}
			p.addTrack(t, times, values)
		}
	}
}

func (d *device) average(m *mean, s Series, how reading, hour interval) {
	if how.either {
		for _, x := range s.Samples {
			if x.Value > 1 && x.Value < blankInt32 {
				how.unit = units["percent"]
			}
		}
	}
	for _, x := range s.Samples {
		if v, ok := d.accept(x.Value, how); ok {
			at := x.UnixMilli * 1000
			m.add(v, at >= hour.start && at < hour.end && !contains(d.frozen, at))
		}
	}
}

func largest(values []uint64) uint64 {
	var most uint64
	for _, v := range values {
		most = max(most, v)
	}
	return most
}

// The smallest of DCGM's blank values in int32, float64 and int64 fields
// (dcgm_structs.h); in a MiB series everything from the first on is blank.
const (
	blankInt32 = 2147483632
	blankInt64 = 9.2e18
)

// accepted converts a series' values to bytes, with their times in Unix µs, and leaves
// out what can be no measurement. The times are the known ones, where they are the same.
func (d *device) accepted(samples []Sample, how reading, slab *slab, known []int64) (times []int64, values []uint64) {
	values = slab.values(len(samples))
	if len(samples) != len(known) {
		known = nil
	}
	before := known
	if known == nil {
		times = slab.times(len(samples))
	}
	// apart copies the times so far, once the series turns out to have its own.
	apart := func(n int) {
		if known != nil {
			times = slab.times(len(samples))
			copy(times, known[:n])
			known = nil
		}
	}
	// What is below this in whole units needs no closer look.
	plain := float64(d.capacity()) / how.unit
	if how.unit != 1 {
		plain = min(plain, blankInt32)
	}
	unit := uint64(how.unit)
	n, looked := 0, false
	for _, x := range samples {
		at := x.UnixMilli * 1000
		if known == nil {
			times[n] = at
		} else if known[n] != at {
			apart(n)
			times[n] = at
		}
		if x.Value >= 0 && x.Value < plain {
			if whole := uint64(x.Value); float64(whole) == x.Value {
				values[n] = whole * unit
				n++
				continue
			}
		}
		if !looked && how.unit == mib {
			if looked = true; d.areBytes(samples) {
				how.unit = 1
				return d.accepted(samples, how, slab, before)
			}
		}
		if v, ok := d.accept(x.Value, how); ok {
			values[n] = uint64(v)
			n++
		} else {
			apart(n)
		}
	}
	if known != nil {
		return known, values[:n:n]
	}
	return times[:n:n], values[:n:n]
}

// accept converts a value to bytes (or to a ratio for utilisation) and refuses
// what can be no measurement, counting it by reason.
func (d *device) accept(v float64, how reading) (float64, bool) {
	fam, unit := how.fam, how.unit
	if how.amd && v >= blankInt32 {
		unit = 1 // some builds of the exporter give bytes: no card has 2 PiB
	}
	reason := ""
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		reason = "nan"
	case v < 0:
		reason = "negative"
	case v >= blankInt64 || unit != 1 && v >= blankInt32 || !fam.memory() && v >= blankInt32:
		reason = "blank"
	case fam.memory() && v*unit > float64(d.capacity()):
		reason = "impossible_size"
	}
	if reason != "" {
		d.dropped[reason]++
		return 0, false
	}
	if fam.memory() {
		return math.Round(v * unit), true
	}
	if fam.activity() {
		return min(v*unit, 1), true // HAMi and some drivers show more than 100 %
	}
	return v * unit, true
}

// areBytes reports whether a series of MiB, by its name, is in bytes: a value of it is
// above ten times the GPU's memory and is no more than that in bytes, nor a blank.
func (d *device) areBytes(samples []Sample) bool {
	if !d.sized {
		return false
	}
	for _, x := range samples {
		blank := x.Value >= blankInt32 && x.Value <= blankInt32+3
		if x.Value*mib > 10*float64(d.model.TotalBytes) && x.Value <= float64(d.capacity()) && !blank {
			return true
		}
	}
	return false
}

// capacity is the size that nothing of the device may exceed, in bytes: 1.5 × its model's.
func (d *device) capacity() uint64 {
	if !d.sized {
		return 1 << 43 // 8 TiB: no GPU has that
	}
	return d.model.TotalBytes + d.model.TotalBytes/2
}

// Nodes returns the names of the nodes that have devices.
func (t *Telemetry) Nodes() []string {
	set := map[string]bool{}
	for _, d := range t.devices {
		if d.node != "" {
			set[d.node] = true
		}
	}
	out := make([]string, 0, len(set))
	for n := range set {
		out = append(out, n)
	}
	sort.Strings(out)
	return out
}

// Unplaced returns the UUIDs of devices whose node cannot be told.
func (t *Telemetry) Unplaced() []string {
	var out []string
	for uuid, d := range t.devices {
		if d.node == "" {
			out = append(out, uuid)
		}
	}
	sort.Strings(out)
	return out
}

func (t *Telemetry) devicesOf(node string) []*device {
	var out []*device
	for _, d := range t.devices {
		if d.node == node {
			out = append(out, d)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].uuid < out[j].uuid })
	return out
}
