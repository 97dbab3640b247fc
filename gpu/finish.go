package gpu

import (
	"sort"

	"gpuledger/billing/money"
)

// finish turns the pieces into whole microseconds that sum to the partition's
// present time in each column, and orders the rows.
func (in *integration) finish() []Row {
	keys := make([]rowKey, 0, len(in.rows))
	for k := range in.rows {
		keys = append(keys, k)
	}
	sort.Slice(keys, func(i, j int) bool {
		a, b := keys[i], keys[j]
		if (a.uid == "") != (b.uid == "") {
			return a.uid != ""
		}
		if a.uid != b.uid {
			return a.uid < b.uid
		}
		if a.category != b.category {
			return a.category < b.category
		}
		return a.method < b.method
	})
	out := make([]Row, len(keys))
	for i, k := range keys {
		out[i] = in.rows[k].row(k)
	}
	for c := range columns {
		weights := make([]money.Weight, len(keys))
		for i, k := range keys {
			weights[i] = money.W(in.rows[k].pieces[c])
		}
		parts, err := money.Apportion(in.pp.PresentMicros, weights)
		if err != nil {
			continue // no present time, or nothing at all: the column stays zero
		}
		for i, p := range parts {
			*out[i].Shares.column(c) = p
		}
	}
	return dropEmpty(out)
}

func (s *Shares) column(c int) *int64 {
	return [columns]*int64{&s.Used, &s.RequestNone, &s.RequestReplica, &s.MaxNone, &s.MaxReplica}[c]
}

// dropEmpty removes category rows without time; a pod's row stays even at zero,
// because that it was there and paid nothing is an answer too.
func dropEmpty(rows []Row) []Row {
	out := rows[:0]
	for _, r := range rows {
		if r.PodUID != "" || r.Shares != (Shares{}) {
			out = append(out, r)
		}
	}
	return out
}

func (a *accumulator) row(k rowKey) Row {
	r := Row{
		PodUID: k.uid, Category: k.category, Method: k.method, Replicas: a.replicas,
		SpreadMicros:    int64(a.spread >> pieceBits),
		UsedByteSeconds: byteSeconds(a.usedHi, a.usedLo), HeldByteSeconds: byteSeconds(a.heldHi, a.heldLo),
		MeasuredMicros: a.measured, GapMicros: a.gap, Samples: a.samples, PeakBytes: a.peak, Flags: a.flags,
	}
	if a.first >= 0 {
		r.First, r.Last = fromMicros(a.first), fromMicros(a.last)
	}
	for i, us := range a.histogram {
		r.Histogram[i] = (us + 500_000) / 1_000_000
	}
	return r
}
