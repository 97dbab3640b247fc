package allocate

import (
	"math/bits"
	"slices"
	"sort"
	"strings"
	"time"

	"gpuledger/billing/money"
	"gpuledger/gpu"
	"gpuledger/policy"
)

// tenancy is the time for which a pod held GPUs of the node, within an hour.
type tenancy struct {
	from, to int64 // Unix µs
	uid      string
	method   gpu.Method
	weight   money.Weight // device time in that hour
}

// vacancy is a stretch of an hour in which nobody held a GPU of the node.
type vacancy struct {
	from, to int64 // Unix µs
	since    int64 // when the last tenant left
	tenants  []tenancy
}

const endOfTime = int64(1) << 62

// together is how far apart two pods may leave a node, in µs, and both be its last
// tenants: a job's pods do not end in the same instant.
const together = 60 * 1_000_000

// settleVacancies finds out when the node was empty and who had held it last, where a
// rule asks for that.
func (s *split) settleVacancies() {
	if s.p.Idle.Lookback() == 0 {
		return
	}
	s.vacancies = map[time.Time][]vacancy{}
	var all []tenancy
	for _, hours := range [][]Hour{s.w.Before, s.w.Hours} {
		for i := range hours {
			all = append(all, s.tenancies(&hours[i])...)
		}
	}
	sort.Slice(all, func(i, j int) bool {
		a, b := &all[i], &all[j]
		switch {
		case a.from != b.from:
			return a.from < b.from
		case a.to != b.to:
			return a.to < b.to
		}
		return a.uid < b.uid
	})
	var last []tenancy
	var end int64
	for _, t := range all {
		if len(last) > 0 && t.from > end {
			s.vacant(end, t.from, last)
			last = last[:0:0]
		}
		end = max(end, t.to)
		last = slices.DeleteFunc(append(last, t), func(t tenancy) bool { return t.to < end-together })
	}
	if len(last) > 0 {
		s.vacant(end, endOfTime, last) // hours that the window cuts are taken whole, as their use is
	}
}

// vacant keeps a stretch of emptiness, by hours of the window.
func (s *split) vacant(from, to int64, tenants []tenancy) {
	if slices.ContainsFunc(tenants, func(t tenancy) bool { return t.uid == "" }) {
		return
	}
	for i := range s.w.Hours {
		h := s.w.Hours[i].Start
		v := vacancy{max(from, h.UnixMicro()), min(to, h.UnixMicro()+hourMicros), from, tenants}
		if v.from < v.to {
			s.vacancies[h] = append(s.vacancies[h], v)
		}
	}
}

// tenancies lists who held GPUs in an hour. A pod whose life is not known held its GPU
// for all of it, as far as emptiness goes.
func (s *split) tenancies(h *Hour) []tenancy {
	if !h.Seen || h.UncoveredMicros >= hourMicros {
		// Nobody knows who held the node: what follows has no last tenant that is known.
		return []tenancy{{from: h.Start.UnixMicro(), to: h.Start.UnixMicro() + hourMicros}}
	}
	held := map[string]*tenancy{}
	for i := range h.Devices {
		d := &h.Devices[i]
		for j := range d.Partitions {
			p := &d.Partitions[j]
			slices, of := s.slicesOf(d, p)
			for k := range p.Rows {
				r := &p.Rows[k]
				if r.PodUID == "" || r.Replicas == 0 && s.column(r) <= 0 {
					continue
				}
				t := held[r.PodUID]
				if t == nil {
					t = &tenancy{from: h.Start.UnixMicro(), to: h.Start.UnixMicro() + hourMicros, uid: r.PodUID}
					held[r.PodUID] = t
				}
				w, _ := money.W(uint64(max(0, s.column(r)))).Mul(slices * (s.slices / of))
				t.weight, _ = t.weight.Add(w)
				t.method = max(t.method, r.Method)
			}
		}
	}
	for i := range h.Pods {
		if t := held[h.Pods[i].PodUID]; t != nil {
			start, end := lifeOf(&h.Pods[i])
			t.from, t.to = h.Start.UnixMicro()+start, h.Start.UnixMicro()+end
		}
	}
	out := make([]tenancy, 0, len(held))
	for _, t := range held {
		if t.from < t.to {
			out = append(out, *t)
		}
	}
	sort.Slice(out, func(i, j int) bool { return strings.Compare(out[i].uid, out[j].uid) < 0 })
	return out
}

// readyWithin is when the node was ready, in Unix µs; from the hour's start where that
// is all that is known.
func (h *Hour) readyWithin() (start, end int64) {
	start, end = h.ReadyStartMicros, h.ReadyEndMicros
	if end == 0 {
		end = h.ReadyMicros
	}
	return h.Start.UnixMicro() + start, h.Start.UnixMicro() + end
}

// lifeOf is when a pod lived within its hour, in µs from the hour's start.
func lifeOf(u *gpu.PodUse) (start, end int64) {
	start = min(max(0, u.StartMicros), hourMicros)
	return start, min(start+max(0, u.LifeMicros), hourMicros)
}

// within clips a vacancy to what the rule's lookback reaches.
func (v *vacancy) within(rule *policy.Rule) (from, to int64) {
	return v.from, min(v.to, v.since+rule.LookbackMicros())
}

// toLastTenants gives what is unallocated while the node was empty to those who held it
// last, up to the rule's lookback, and returns how much. left is what the row has of it
// after the driver.
func (s *split) toLastTenants(h *Hour, f *frame, p *gpu.Partition, r *gpu.Row, left uint64, by factors) uint64 {
	rule := s.ruleFor(string(r.Category), f.pool)
	whole := uint64(max(0, s.column(r)))
	room, moved := whole, uint64(0)
	start, end := h.readyWithin()
	free, vacant := s.freeOf(h, p)
	for _, v := range s.vacancies[h.Start] {
		from, to := v.within(&rule)
		from, to = max(from, start), min(to, end)
		if from >= to || room == 0 {
			continue
		}
		empty := uint64(to - from)
		if p.PresentMicros < h.ReadyMicros { // a GPU cut anew: when in the hour this part was there is not kept
			empty = scaled(empty, p.PresentMicros, h.ReadyMicros)
		}
		empty = min(scaled(empty, free, vacant), room)
		room -= empty
		hi, lo := bits.Mul64(empty, left)
		micros, _ := bits.Div64(hi, lo, whole) // left ≤ whole
		if s.toTenants(v.tenants, micros, func(t *tenancy, part uint64) {
			s.give(h, f, given{s.podOf(t.uid), string(r.Category), rule.Policy, t.method, part, nil}, by)
		}) {
			moved += micros
		}
	}
	return moved
}

// freeOf is how long a partition was empty in an hour, and how much of that was free and
// known to be: when in the emptiness the rest was is not kept.
func (s *split) freeOf(h *Hour, p *gpu.Partition) (free, vacant int64) {
	start, end := h.readyWithin()
	for _, v := range s.vacancies[h.Start] {
		vacant += max(0, min(v.to, end)-max(v.from, start))
	}
	if p.PresentMicros < h.ReadyMicros {
		vacant = int64(scaled(uint64(vacant), p.PresentMicros, h.ReadyMicros))
	}
	free = vacant
	for i := range p.Rows {
		if c := p.Rows[i].Category; c == gpu.NoTelemetry || c == gpu.Unattributed {
			free -= s.column(&p.Rows[i])
		}
	}
	return max(0, free), vacant
}

// scaled is n × part ÷ whole, rounded down, for 0 ≤ part ≤ whole.
func scaled(n uint64, part, whole int64) uint64 {
	if part >= whole || whole <= 0 {
		return n
	}
	hi, lo := bits.Mul64(n, uint64(max(0, part)))
	q, _ := bits.Div64(hi, lo, uint64(whole))
	return q
}

// toTenants divides an amount between tenants by the device time they had.
func (s *split) toTenants(tenants []tenancy, amount uint64, give func(*tenancy, uint64)) bool {
	weights := make([]money.Weight, len(tenants))
	for i := range tenants {
		weights[i] = tenants[i].weight
	}
	parts, err := money.Apportion(int64(amount), weights)
	if err != nil {
		return false // nobody had anything
	}
	for i := range tenants {
		give(&tenants[i], uint64(parts[i]))
	}
	return true
}
