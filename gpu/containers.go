package gpu

// limit is the most a pod may use, and when that was said: the sum of what each of
// its containers, and each of a container's virtual devices, was allowed at most.
type limit struct {
	shares map[string]uint64
	seen   interval
}

func (l limit) with(share string, bytes uint64, at int64) limit {
	if l.shares == nil {
		l = limit{map[string]uint64{}, interval{at, at + 1}}
	}
	l.seen = interval{min(l.seen.start, at), max(l.seen.end, at+1)}
	l.shares[share] = max(l.shares[share], bytes)
	return l
}

func (l limit) bytes() uint64 { return sum(l.shares) }

func sum(shares map[string]uint64) uint64 {
	var n uint64
	for _, v := range shares {
		n += v
	}
	return n
}

// containerShare names the part of a pod that a series of HAMi's is about.
func containerShare(l map[string]string) string { return l["container"] + "\x00" + l["vdevice"] }

// addShare adds what one container uses by itself: unlike copies of a device's
// figure, a pod's containers add up.
func (sc *scrape) addShare(ref podRef, share string, bytes uint64) {
	sc.own, sc.hasUsed = true, true
	if sc.shares == nil {
		sc.shares = map[podRef]map[string]uint64{}
	}
	if sc.shares[ref] == nil {
		sc.shares[ref] = map[string]uint64{}
	}
	sc.shares[ref][share] = max(sc.shares[ref][share], bytes)
	if sc.pods == nil {
		sc.pods, sc.slots = map[podRef]uint64{}, map[podRef]map[string]bool{}
	}
	sc.pods[ref] = sum(sc.shares[ref])
	sc.used = max(sc.used, sc.pods[ref])
}
