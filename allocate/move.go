package allocate

import (
	"time"

	"gpuledger/billing/money"
	"gpuledger/gpu"
	"gpuledger/policy"
)

// moved is a share of a partition-hour with the target it ends up at.
type moved struct {
	Target
	method                    gpu.Method
	share                     uint64 // µs, under the policy's basis
	used, held, measured, gap int64
	replicas                  int
}

// column picks the stored shares that the policy's basis and reservation ask for.
// Basis request always counts replicas.
func (s *split) column(r *gpu.Row) int64 {
	switch {
	case s.p.Basis == "used":
		return r.Shares.Used
	case s.p.Basis == "request":
		return r.Shares.RequestReplica
	case s.p.Reservation.TimeSlicing == "replica":
		return r.Shares.MaxReplica
	}
	return r.Shares.MaxNone
}

// move names the target of every row of a partition-hour, after the redistributions
// of device scope. The shares keep their sum.
func (s *split) move(h Hour, d gpu.Device, p *gpu.Partition) []moved {
	var out []moved
	var holders []*gpu.Row
	for i := range p.Rows {
		if p.Rows[i].PodUID != "" {
			holders = append(holders, &p.Rows[i])
		}
	}
	for i := range p.Rows {
		r := &p.Rows[i]
		share := uint64(max(0, s.column(r)))
		if r.PodUID != "" {
			out = append(out, s.owned(h, moved{
				Target: s.podTarget(h.Start, r.PodUID, d.Model, p.Mode, PodCategory, ""), method: r.Method, share: share,
				used: r.UsedByteSeconds, held: r.HeldByteSeconds, measured: r.MeasuredMicros, gap: r.GapMicros, replicas: r.Replicas,
			})...)
			continue
		}
		rule := s.ruleFor(string(r.Category))
		if rule.Policy == policy.Keep || rule.Scope != policy.ScopeDevice || !s.redistribute(&out, h, d, p, r, rule, holders, share) {
			out = append(out, moved{Target: s.remainderTarget(string(r.Category), d.Model, p.Mode), method: gpu.NoMethod, share: share})
		}
	}
	return out
}

// ruleFor is the policy's treatment of a category, including unattributed bytes.
func (s *split) ruleFor(category string) policy.Rule {
	if category == string(gpu.Unattributed) && s.p.Unattributed.Mode == "spread" {
		return policy.Rule{Policy: policy.Proportional, Scope: policy.ScopeDevice}
	}
	r := s.p.Idle.For(category, s.pool)
	if s.p.ComponentSplit == policy.SCAD && r.Policy == policy.Keep && (category == string(gpu.Unallocated) || category == MIGUnpartitioned) {
		// AWS spreads what is unused by what each pod is allocated, per component.
		return policy.Rule{Policy: policy.SCAD, Scope: policy.ScopeNode}
	}
	return r
}

// redistribute shares a remainder out over the partition's holders, and reports
// whether there was anybody to take it.
func (s *split) redistribute(out *[]moved, h Hour, d gpu.Device, p *gpu.Partition, r *gpu.Row, rule policy.Rule, holders []*gpu.Row, share uint64) bool {
	if share == 0 {
		return true
	}
	by := []func(*gpu.Row) uint64{heldTime}
	switch {
	case rule.Policy == policy.Replica:
		by = []func(*gpu.Row) uint64{slotTime, heldTime}
	case rule.Policy == policy.Proportional && (r.Category == gpu.SlotHeld || r.Category == gpu.Unattributed || r.Category == gpu.ClaimIdle):
		by = []func(*gpu.Row) uint64{func(x *gpu.Row) uint64 { return uint64(x.Shares.Used) }, slotTime, heldTime}
	case rule.Policy == policy.Proportional:
		by = []func(*gpu.Row) uint64{func(x *gpu.Row) uint64 { return uint64(max(0, s.column(x))) }}
	}
	for _, weigh := range by {
		weights := make([]money.Weight, len(holders))
		for i, x := range holders {
			weights[i] = money.W(weigh(x))
		}
		parts, err := money.Apportion(int64(share), weights)
		if err != nil {
			continue // nobody under this measure: try the next
		}
		for i, x := range holders {
			*out = append(*out, s.owned(h, moved{Target: s.podTarget(h.Start, x.PodUID, d.Model, p.Mode, string(r.Category), rule.Policy), method: x.Method, share: uint64(parts[i])})...)
		}
		return true
	}
	return false
}

// owned divides a pod's share of an hour between its owners, by time, where a rule
// begins or ends within the hour: midnight in Kolkata is at half past.
func (s *split) owned(h Hour, m moved) []moved {
	at, weights := s.ownerTimes(h.Start)
	if len(at) == 1 {
		return []moved{m}
	}
	out := make([]moved, len(at))
	for i := range at {
		out[i] = m
		out[i].Target = s.podTarget(at[i], m.PodUID, m.Model, m.Mode, m.Category, m.MovedBy)
	}
	split := func(total int64, set func(*moved, int64)) {
		parts, err := money.Apportion(total, weights)
		for i := range out {
			if err == nil { // the weights are an hour: there is always somebody
				set(&out[i], parts[i])
			}
		}
	}
	split(int64(m.share), func(o *moved, v int64) { o.share = uint64(v) })
	split(m.used, func(o *moved, v int64) { o.used = v })
	split(m.held, func(o *moved, v int64) { o.held = v })
	split(m.measured, func(o *moved, v int64) { o.measured = v })
	split(m.gap, func(o *moved, v int64) { o.gap = v })
	return out
}

// ownerTimes returns the instants of an hour from which on an owner is asked for, the
// hour's start among them, and how long each of them lasts.
func (s *split) ownerTimes(hour time.Time) (at []time.Time, lasts []money.Weight) {
	end := hour.Add(time.Hour)
	at = append([]time.Time{hour}, s.owners.Changes(hour, end)...)
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

func heldTime(r *gpu.Row) uint64 { return uint64(r.MeasuredMicros + r.GapMicros) }

// slotTime is slots × time; at most 2^10 slots of an hour, so it fits.
func slotTime(r *gpu.Row) uint64 { return heldTime(r) * uint64(r.Replicas) }

func (s *split) podTarget(at time.Time, uid, model string, mode gpu.Mode, category, movedBy string) Target {
	pod := s.w.Pods[uid]
	owner := s.owners.Resolve(policy.Subject{
		Cluster: s.w.Node.Cluster, Namespace: pod.Namespace, Workload: pod.Workload, NodePool: s.pool, Account: s.w.Node.Account,
		Labels: pod.Labels, NamespaceLabels: pod.NSLabels, Annotations: pod.Notes,
	}, at)
	return Target{PodUID: uid, Category: category, MovedBy: movedBy, Model: model, Mode: mode, Pool: s.pool, Owner: owner}
}
