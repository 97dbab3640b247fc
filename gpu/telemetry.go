package gpu

import (
	"math"
	"slices"
	"sort"

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
	util, engine   mean
	alive          []point // samples of any instance that prove the GPU is there
	dropped        map[string]int64
}

type partKey struct{ gi, profile string }

// part gathers the samples of one GPU or MIG instance.
type part struct {
	partKey
	scrapes map[int64]*scrape // by Unix µs
	usable  uint64            // largest used + free seen at one instant
	total   uint64
	reserve uint64
	// gaps are those between samples of one series: where two exporters or replicas scrape
	// one device a second apart, the gaps between their merged samples say nothing.
	gaps   []int64               // ms
	limits map[podRef]limit      // the most each pod may use, where something enforces it
	named  map[podRef]limit      // pods that series without a figure for the part name
	claims map[podRef][]claimRef // DRA claims by pod
}

// scrape is what one scrape says of a part's used bytes.
type scrape struct {
	bare    *uint64
	pods    map[podRef]uint64            // largest over a pod's slots and containers, or their sum where own
	shares  map[podRef]map[string]uint64 // where own: by container and virtual device
	slots   map[podRef]map[string]bool
	used    uint64
	free    uint64
	hasUsed bool
	hasFree bool
	own     bool // the pods' figures are their own
}

// podRef is how a series names its pod.
type podRef struct{ namespace, name, uid string }

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
func NewTelemetry(series []Series, inv *Inventory, hour period.Span) *Telemetry {
	t := &Telemetry{devices: map[string]*device{}}
	order(series, spanMicros(hour))
	for _, s := range series {
		how, known := exporterData[s.Metric]
		if !known {
			continue
		}
		s = how.canonical(s)
		uuid, slot := replicaOf(first(s.Labels, "UUID", "uuid"))
		if uuid == "" {
			continue
		}
		d := t.devices[uuid]
		if d == nil {
			d = &device{uuid: uuid, parts: map[partKey]*part{}, dropped: map[string]int64{}}
			t.devices[uuid] = d
		}
		if m := s.Labels["modelName"]; m != "" {
			d.rawModel = m
		}
		if n := nodeOf(s, inv); n != "" {
			d.node = n
		}
		d.add(s, how, spanMicros(hour), slot)
	}
	for _, d := range t.devices {
		for _, p := range d.parts {
			p.finish()
		}
	}
	return t
}

// part returns the device's part of a key, which it has from now on.
func (d *device) part(key partKey) *part {
	p := d.parts[key]
	if p == nil {
		p = &part{partKey: key, scrapes: map[int64]*scrape{}, limits: map[podRef]limit{}, named: map[podRef]limit{}, claims: map[podRef][]claimRef{}}
		d.parts[key] = p
	}
	return p
}

// show says that a part was there, and with whom, without a figure of its memory.
func (p *part) show(s Series) {
	ref, named := podOf(s)
	for _, x := range s.Samples {
		at := x.UnixMilli * 1000
		if p.scrapes[at] == nil {
			p.scrapes[at] = &scrape{}
		}
		if named {
			p.named[ref] = p.named[ref].with("", 0, at)
		}
	}
	if named {
		p.addClaim(ref, s.Labels)
	}
}

func (p *part) addClaim(ref podRef, l map[string]string) {
	if claim, ok := claimOf(l); ok && !slices.Contains(p.claims[ref], claim) {
		p.claims[ref] = append(p.claims[ref], claim)
	}
}

func (d *device) add(s Series, how reading, hour interval, slot string) {
	fam := how.fam
	key := partKey{s.Labels["GPU_I_ID"], s.Labels["GPU_I_PROFILE"]}
	if instance, ok := claimedInstance(s.Labels); ok {
		d.part(instance).show(s)
		s.Labels = map[string]string{} // the figure is the parent's, and no pod's
	} else if key.gi != "" && (fam == famEngine || fam == famUtil) {
		d.part(key).show(s)
	}
	p := d.parts[key]
	if p == nil && fam.memory() {
		p = d.part(key)
	}
	if slot == "" {
		slot = s.Labels["vgpu"]
	}
	if p != nil && fam == famUsed {
		for i := 1; i < len(s.Samples); i++ {
			p.gaps = append(p.gaps, s.Samples[i].UnixMilli-s.Samples[i-1].UnixMilli)
		}
	}
	ref, named := podOf(s)
	if named && p != nil {
		p.addClaim(ref, s.Labels)
	}
	for _, x := range s.Samples {
		v, ok := d.accept(x.Value, how)
		if !ok {
			continue
		}
		at := x.UnixMilli * 1000
		inHour := at >= hour.start && at < hour.end
		switch fam {
		case famUtil:
			d.util.add(v, inHour)
			continue
		case famEngine:
			d.engine.add(v, inHour)
			continue
		case famPower:
			d.alive = append(d.alive, point{at: at})
			continue
		case famReserved:
			p.reserve = max(p.reserve, uint64(v))
			continue
		case famTotal:
			p.total = max(p.total, uint64(v))
			continue
		case famLimit:
			p.limits[ref] = p.limits[ref].with(containerShare(s.Labels), uint64(v), at)
			continue
		}
		sc := p.scrapes[at]
		if sc == nil {
			sc = &scrape{}
			p.scrapes[at] = sc
		}
		if how.ownPod && named && fam == famUsed {
			sc.addShare(ref, containerShare(s.Labels), uint64(v))
			continue
		}
		sc.add(fam, uint64(v), ref, named, slot)
	}
}

func (sc *scrape) add(fam family, bytes uint64, ref podRef, named bool, slot string) {
	if fam == famFree {
		sc.free, sc.hasFree = max(sc.free, bytes), true
		return
	}
	sc.used, sc.hasUsed = max(sc.used, bytes), true
	if !named {
		if sc.bare == nil || *sc.bare < bytes {
			sc.bare = &bytes
		}
		return
	}
	if sc.pods == nil {
		sc.pods, sc.slots = map[podRef]uint64{}, map[podRef]map[string]bool{}
	}
	sc.pods[ref] = max(sc.pods[ref], bytes)
	if slot != "" {
		if sc.slots[ref] == nil {
			sc.slots[ref] = map[string]bool{}
		}
		sc.slots[ref][slot] = true
	}
}

// The smallest of DCGM's blank values in int32, float64 and int64 fields
// (dcgm_structs.h); in a MiB series everything from the first on is blank.
const (
	blankInt32 = 2147483632
	blankInt64 = 9.2e18
)

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
	case fam.memory() && d.impossible(v*unit):
		reason = "impossible_size"
	}
	if reason != "" {
		d.dropped[reason]++
		return 0, false
	}
	if fam.memory() {
		return math.Round(v * unit), true
	}
	return v * unit, true
}

// impossible tells sizes above 1.5 × the model's capacity.
func (d *device) impossible(bytes float64) bool {
	m, ok := LookupModel(d.rawModel)
	if !ok {
		return bytes > 1<<43 // 8 TiB: no GPU has that
	}
	return bytes > 1.5*float64(m.TotalBytes)
}

func (p *part) finish() {
	for _, sc := range p.scrapes {
		if sc.hasFree && sc.hasUsed {
			p.usable = max(p.usable, sc.used+sc.free)
		}
	}
	if p.total > p.reserve && (p.reserve > 0 || p.usable == 0) {
		p.usable = p.total - p.reserve
	}
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
