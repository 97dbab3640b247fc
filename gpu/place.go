package gpu

import "sort"

// holder is a pod that holds, or uses, a partition.
type holder struct {
	uid      string
	replicas int // client slots; 0 for rogue use
	life     interval
	byUID    bool // its samples carry the pod's UID
	trail    trail
	flags    Flags
	limit    uint64      // the most it may use, in bytes; 0 where nothing limits it
	claims   []heldClaim // the DRA claims it holds the partition by
	fraction bool        // it shares the GPU by a fraction
}

// place finds out which pod holds which partition. Samples that name a pod place
// it; what the remaining requests hold is put on the partitions with room, in a
// fixed order, and flagged.
func (f *nodeFold) place(parts []*placedPart, pods []*Pod) {
	left := map[string]int{} // units requested and not yet placed, by UID
	for _, p := range pods {
		left[p.UID] = int(p.gpuRequest())
	}
	f.placeNamed(parts, left)
	sort.SliceStable(pods, func(i, j int) bool {
		if a, b := pods[i].life.start, pods[j].life.start; a != b {
			return a < b
		}
		return pods[i].UID < pods[j].UID
	})
	for _, p := range pods {
		for left[p.UID] > 0 && f.placeUnit(parts, p) {
			left[p.UID]--
		}
	}
	f.claimed(parts, pods)
	for _, pp := range parts {
		sort.Slice(pp.holders, func(i, j int) bool { return pp.holders[i].uid < pp.holders[j].uid })
	}
}

// placeNamed puts the pods that a partition's samples name on it. A pod of
// several partitions has its request shared out over them, one by one.
func (f *nodeFold) placeNamed(parts []*placedPart, left map[string]int) {
	type naming struct {
		pp   *placedPart
		refs []podRef // several where the exporter came to know its UID
	}
	named := map[string][]naming{}
	pod := map[string]*Pod{}
	var order []string
	for _, pp := range parts {
		for _, ref := range pp.data.refs() {
			for _, p := range f.podsFor(pp.data, ref) {
				if pod[p.UID] == nil {
					order = append(order, p.UID)
				}
				pod[p.UID] = p
				all := named[p.UID]
				if n := len(all); n > 0 && all[n-1].pp == pp {
					all[n-1].refs = append(all[n-1].refs, ref)
					continue
				}
				named[p.UID] = append(all, naming{pp, []podRef{ref}})
			}
		}
	}
	for _, uid := range order {
		p, places := pod[uid], named[uid]
		requested := left[uid]
		slots := make([]int, len(places))
		for i, n := range places {
			for _, ref := range n.refs {
				slots[i] = max(slots[i], n.pp.namedSlots(ref, requested > 0, f.inv.Pods[uid] != nil))
			}
		}
		left[uid] = shareOut(requested, slots, func(i int) bool { return places[i].pp.whole() })
		for i, n := range places {
			f.placeOn(n.pp, n.refs, p, slots[i], requested)
		}
	}
}

// placeOn makes a pod that samples name a holder of a partition.
func (f *nodeFold) placeOn(pp *placedPart, refs []podRef, p *Pod, slots, requested int) {
	claimed := false
	for _, ref := range refs {
		claimed = claimed || pp.part != nil && len(pp.part.claims[ref]) > 0
	}
	if claimed {
		slots = max(1, slots) // a claim holds without a request
	}
	h := pp.hold(p, slots, 0)
	for _, ref := range refs {
		h.byUID = h.byUID || ref.uid != ""
		if pp.part != nil {
			h.limit = max(h.limit, pp.part.limits[ref].within(p.life))
			for _, claim := range pp.part.claims[ref] {
				h.addClaim(heldClaim{claim.name, pp.atMost(f.inv.capacity(claim))})
			}
		}
	}
	h.trail = pp.data.cut(refs, p.life)
	if f.inv.Pods[p.UID] == nil {
		h.flags |= FlagHolderUnlisted
	} else if slots == 0 && requested == 0 {
		h.flags |= FlagRogue
	}
}

// namedSlots is how many client slots of the partition a sample that names the pod
// proves: the slot labels where there are any; one where the kubelet's word (a
// device label) is all there is; none for bytes of a pod that requested nothing.
func (pp *placedPart) namedSlots(ref podRef, requested, listed bool) int {
	if n := pp.data.labels[ref]; n > 0 && !pp.whole() {
		return n
	}
	if pp.whole() && requested || !requested && (!listed || !pp.data.perPod) {
		return 1
	}
	return 0
}

// shareOut adds the requested units that the slots do not yet show to the
// partitions that can take more than one, in turn, and returns what is left over.
func shareOut(requested int, slots []int, whole func(int) bool) int {
	for _, s := range slots {
		requested -= s
	}
	for progress := true; progress && requested > 0; {
		progress = false
		for i := range slots {
			if requested > 0 && !whole(i) {
				slots[i]++
				requested--
				progress = true
			}
		}
	}
	return max(0, requested)
}

// whole reports whether a single holder takes all of the partition.
func (pp *placedPart) whole() bool {
	switch pp.Mode {
	case ModeExclusive:
		return true
	case ModeMIG, ModePartition:
		return pp.Replicas <= 1
	}
	return false
}

// podsFor finds the pods a series names that lived within the hour: one by UID; by
// name perhaps several in turn, as a StatefulSet uses a name again. A completed pod
// keeps its label for a while, which gives it nothing. Where the inventory does not
// know the name at all, a pod is made up from the samples.
func (f *nodeFold) podsFor(r *readings, ref podRef) []*Pod {
	mid := r.spans[ref]
	named := f.inv.byName[ref.namespace+"/"+ref.name]
	known := f.onThisNode(named)
	if p := f.inv.Pods[ref.uid]; p != nil {
		named, known = []*Pod{p}, []*Pod{p}
	}
	var out []*Pod
	for _, p := range known {
		if p.life.clip(f.hour).clip(mid).length() > 0 {
			out = append(out, p)
		}
	}
	if len(named) > 0 || mid.clip(f.hour).length() == 0 {
		return out
	}
	uid := ref.uid
	if uid == "" {
		uid = "name:" + ref.namespace + "/" + ref.name
	}
	key := "unlisted\x00" + uid
	if p := f.inv.unlisted[key]; p != nil {
		p.life = interval{min(p.life.start, mid.start), max(p.life.end, mid.end)}
		return []*Pod{p}
	}
	p := &Pod{UID: uid, Namespace: ref.namespace, Name: ref.name, Node: f.name, WorkloadKind: "Pod", WorkloadName: ref.name, Requests: map[string]int64{}, life: mid}
	f.inv.unlisted[key] = p
	return []*Pod{p}
}

// onThisNode leaves out pods of the name that are on other nodes: a StatefulSet's pod may
// come back elsewhere while a label stays behind, and another cluster may have the name too.
func (f *nodeFold) onThisNode(pods []*Pod) []*Pod {
	var here []*Pod
	for _, p := range pods {
		if p.Node == f.name || p.Node == "" || f.node == nil {
			here = append(here, p)
		}
	}
	return here
}

// hold adds a holder, or replicas to the one that is there.
func (pp *placedPart) hold(p *Pod, replicas int, flags Flags) *holder {
	for _, h := range pp.holders {
		if h.uid == p.UID {
			h.replicas += replicas
			h.flags |= flags
			return h
		}
	}
	h := &holder{uid: p.UID, replicas: replicas, life: p.life, flags: flags}
	pp.holders = append(pp.holders, h)
	return h
}

// placeUnit puts one unit of a pod's request on a partition that has room, and reports
// whether there is one. Where the geometry of a GPU changes within the hour, the unit is
// on the same instance while there is one, and then on another.
func (f *nodeFold) placeUnit(parts []*placedPart, p *Pod) bool {
	open := intersect([]interval{p.life}, f.ready)
	var last *placedPart
	for total(open) > 0 {
		pp := f.roomiest(parts, p, open, last)
		if pp == nil {
			break
		}
		pp.hold(p, 1, FlagPlacementInferred)
		open, last = minus(open, pp.present), pp
	}
	if last == nil && total(intersect([]interval{p.life}, f.ready)) == 0 { // nothing to charge, but it is somewhere
		if last = f.roomiest(parts, p, nil, nil); last != nil {
			last.hold(p, 1, FlagPlacementInferred)
		}
	}
	return last != nil
}

// minus is what of in is not within out.
func minus(in, out []interval) []interval {
	var left []interval
	for _, i := range in {
		left = append(left, complement(intersect(out, []interval{i}), i)...)
	}
	return left
}

// roomiest picks where an unplaced unit of a pod's request goes for some time: of the
// partitions that are there then and offer the resource, the instance it was on before,
// else the one with the least held during the pod's life, then the first. An instance of
// a wrong or a longer name that has the size asked for serves where none that has the
// name is free.
func (f *nodeFold) roomiest(parts []*placedPart, p *Pod, open []interval, last *placedPart) *placedPart {
	there := func(pp *placedPart) bool { return open == nil || total(intersect(open, pp.present)) > 0 }
	var best *placedPart
	var bestHeld int64
	for _, offers := range []func(*placedPart, *Pod) bool{f.offers, f.fits, f.hasSize} {
		pp := f.leastHeld(parts, p, func(pp *placedPart) bool { return there(pp) && offers(pp, p) })
		if pp == nil {
			continue
		}
		if again := f.leastHeld(parts, p, func(pp *placedPart) bool { return there(pp) && offers(pp, p) && pp.sameInstance(last) }); again != nil {
			return again
		}
		held := f.heldDuring(pp, p)
		if held < int64(max(1, pp.Replicas)) {
			return pp
		}
		if best == nil || held < bestHeld {
			best, bestHeld = pp, held
		}
	}
	return best
}

func (pp *placedPart) sameInstance(o *placedPart) bool {
	return o != nil && pp.dev == o.dev && pp.devIndex == o.devIndex && pp.GPUInstance == o.GPUInstance && pp.Profile == o.Profile
}

// heldDuring is how many slots of a partition are held while the pod lives, at most.
func (f *nodeFold) heldDuring(pp *placedPart, p *Pod) int64 {
	var n int64
	for _, h := range pp.holders {
		if h.uid != p.UID && h.life.clip(p.life).clip(f.hour).length() > 0 {
			n += int64(h.replicas)
		}
	}
	return n
}

// leastHeld is the first of the partitions that will do with the least held during the
// pod's life.
func (f *nodeFold) leastHeld(parts []*placedPart, p *Pod, will func(*placedPart) bool) *placedPart {
	var best *placedPart
	var bestHeld int64
	for _, pp := range parts {
		if !will(pp) {
			continue
		}
		var held int64
		for _, h := range pp.holders {
			held += total(intersect([]interval{h.life.clip(p.life).clip(f.hour)}, pp.present)) / int64(max(1, pp.Replicas)) * int64(h.replicas)
		}
		if best == nil || held < bestHeld {
			best, bestHeld = pp, held
		}
	}
	return best
}

// offers reports whether the partition can serve one of the pod's requests. A MIG
// instance serves its own profile's resource, and nvidia.com/gpu under the single
// strategy.
func (f *nodeFold) offers(pp *placedPart, p *Pod) bool {
	if pp.Geometry == "" {
		return p.wholeRequest() > 0 && pp.Mode != ModeMIG
	}
	for r, q := range p.Requests {
		if q > 0 && (r == "nvidia_com_mig_"+resourceName(pp.Profile) || r == "nvidia_com_gpu" || r == "nvidia_com_mig_"+resourceName(pp.Profile)+"_shared") {
			return true
		}
	}
	return pp.Mode == ModePartition && p.wholeRequest() > 0
}

// fits reports whether a MIG instance has the size of one of the pod's requests.
func (f *nodeFold) fits(pp *placedPart, p *Pod) bool {
	m, ok := f.modelOf(pp)
	if !ok || pp.Geometry == "" {
		return false
	}
	for r, q := range p.Requests {
		if want, ok := profileOfResource(r, m); q > 0 && ok && want.MemorySlices == pp.MemorySlices && want.ComputeSlices == pp.ComputeSlices {
			return true
		}
	}
	return false
}

// hasSize reports whether a MIG instance has the memory of one of the pod's requests: the
// exporter's name for it may be wrong.
func (f *nodeFold) hasSize(pp *placedPart, p *Pod) bool {
	m, ok := f.modelOf(pp)
	if !ok || pp.Geometry == "" || pp.Mode == ModePartition {
		return false
	}
	for r, q := range p.Requests {
		if want, ok := profileOfResource(r, m); q > 0 && ok && want.MemorySlices == pp.MemorySlices {
			return true
		}
	}
	return false
}

// wholeRequest is what a pod requests of whole GPUs or client slots of them.
func (p *Pod) wholeRequest() int64 {
	var n int64
	for r, q := range p.Requests {
		if r != "cpu" && r != "memory" && !isMIGResource(r) {
			n += q
		}
	}
	return n
}

// settleMode corrects the partition's mode by what its holders show: limits that
// something enforces, or claims; and where nothing else tells, by the shape of the data.
// What the configuration says stands.
func (pp *placedPart) settleMode() {
	if pp.configured {
		return
	}
	defer func() {
		if pp.Mode == ModeUnknown && pp.part != nil && pp.part.sharedByShape() {
			pp.Mode, pp.inferred = ModeTimeSlicing, true // of how many slots is not known
		}
	}()
	for _, h := range pp.holders {
		switch {
		case h.limit > 0 && pp.Mode == ModeFraction:
			return
		case h.limit > 0 && pp.Mode != ModeMIG && pp.Mode != ModeMPS:
			pp.fractionOf, pp.Mode = pp.Mode, ModeFraction
			return
		case len(h.claims) > 0:
			pp.Mode = ModeDRA
		}
	}
}
