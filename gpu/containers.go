package gpu

import "strings"

// limit is the most a pod may use, and when that was said, for each of its containers
// and each of a container's virtual devices.
type limit struct {
	shares map[string][]allowed
	seen   interval
}

// allowed is a limit with when it was first and last said.
type allowed struct {
	interval
	bytes uint64
}

func (l limit) with(share string, bytes uint64, at int64) limit {
	if l.shares == nil {
		l = limit{map[string][]allowed{}, interval{at, at + 1}}
	}
	said := interval{at, at + 1}
	l.seen = interval{min(l.seen.start, at), max(l.seen.end, at+1)}
	all := l.shares[share]
	if n := len(all); n > 0 && all[n-1].bytes == bytes && all[n-1].start <= at {
		all[n-1].end = max(all[n-1].end, said.end)
	} else {
		l.shares[share] = append(all, allowed{said, bytes})
	}
	return l
}

// within is the limit of a pod of some life: the sum of the most that each part of it
// was allowed meanwhile. A pod made anew under the same name may have another.
//
// The scheduler's word of a pod counts its containers in another way than what enforces
// the limits, so that the two are not added: the larger counts.
func (l limit) within(life interval) uint64 {
	var enforced, granted uint64
	for share, all := range l.shares {
		var most uint64
		for _, a := range all {
			if a.clip(life).length() > 0 {
				most = max(most, a.bytes)
			}
		}
		if strings.HasPrefix(share, grantedShare) {
			granted += most
		} else {
			enforced += most
		}
	}
	return max(enforced, granted)
}

// grantedShare is put before the name of a container's part by the scheduler's word.
const grantedShare = "granted\x00"

// containerShare names the part of a pod that a series of HAMi's is about.
func containerShare(l map[string]string) string { return l["container"] + "\x00" + l["vdevice"] }
