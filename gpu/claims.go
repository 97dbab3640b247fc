package gpu

import (
	"maps"
	"slices"
	"strings"
)

// claimRef is how a series names the DRA claim that its pod holds a device by.
type claimRef struct {
	name   string // namespace/name
	device string // pool/device, as the driver names it
}

func claimOf(l map[string]string) (claimRef, bool) {
	if l["dra_claim_name"] == "" {
		return claimRef{}, false
	}
	return claimRef{l["dra_claim_namespace"] + "/" + l["dra_claim_name"], l["dra_pool_name"] + "/" + l["dra_device_name"]}, true
}

// What a kube-state-metrics CustomResourceState says of ResourceClaims; deploy/ has its
// configuration. The labels are namespace, name, driver, pool and device.
const (
	ClaimDeviceMetric   = "kube_resourceclaim_allocated_device"      // 1 for each device of a claim
	ClaimCapacityMetric = "kube_resourceclaim_consumed_memory_bytes" // of it, where capacity is consumed (KEP-5075)
)

// allocated is a device that the inventory says a claim has.
type allocated struct {
	claimRef
	gpu      bool // by its driver
	seen     interval
	capacity uint64 // of it that the claim consumes, in bytes; 0 where it holds all
}

// addClaim keeps what is said of a claim's device.
func (inv *Inventory) addClaim(s Series) {
	if len(s.Samples) == 0 || lastValue(s) <= 0 {
		return
	}
	name := workloadLabel(s.Labels, "namespace") + "/" + s.Labels["name"]
	ref := claimRef{name, s.Labels["pool"] + "/" + s.Labels["device"]}
	i := slices.IndexFunc(inv.claims[name], func(a allocated) bool { return a.claimRef == ref })
	if i < 0 {
		i = len(inv.claims[name])
		inv.claims[name] = append(inv.claims[name], allocated{claimRef: ref})
	}
	a := &inv.claims[name][i]
	hold := int64(float64(max(observedInterval(s.Samples), defaultInterval).Microseconds()) * holdFactor)
	from, to := s.Samples[0].UnixMilli*1000-hold, s.Samples[len(s.Samples)-1].UnixMilli*1000+hold
	if a.seen.length() > 0 {
		from, to = min(from, a.seen.start), max(to, a.seen.end)
	}
	a.seen = interval{from, to}
	a.gpu = a.gpu || isGPUDriver(s.Labels["driver"])
	if s.Metric == ClaimCapacityMetric {
		a.capacity = wholeNumber(lastValue(s))
	}
}

// isGPUDriver tells the drivers of GPUs (gpu.nvidia.com, gpu.amd.com, gpu.intel.com)
// from those of networks and other devices.
func isGPUDriver(driver string) bool { return strings.HasPrefix(driver, "gpu.") }

// capacity is the memory that a claim consumes of the device; 0 where it holds the
// device, or nothing says.
func (inv *Inventory) capacity(c claimRef) uint64 {
	all := inv.claims[c.name]
	for _, a := range all {
		if a.claimRef == c || len(all) == 1 && c.device == "/" { // a series that does not name its device
			return a.capacity
		}
	}
	return 0
}

// heldClaim is a claim that a pod holds a partition by.
type heldClaim struct {
	name     string
	capacity uint64 // 0: all of the partition
}

func (h *holder) addClaim(c heldClaim) {
	if !slices.ContainsFunc(h.claims, func(o heldClaim) bool { return o.name == c.name }) {
		h.claims = append(h.claims, c)
	}
}

// claimed gives devices to pods whose claims the inventory shows and no sample does, on
// nodes whose GPUs are not handed out by a device plugin. Only a claim that is known to
// be for a GPU counts: a pod may hold a network card by one. Pods of one claim share its
// device, and claims that consume capacity of one device do.
func (f *nodeFold) claimed(parts []*placedPart, pods []*Pod) {
	if f.node == nil || f.node.pluginCapacity() > 0 {
		return
	}
	device := map[string]*placedPart{} // by what the driver calls it
	for _, pp := range parts {
		if pp.part == nil {
			continue
		}
		for _, all := range pp.part.claims {
			for _, c := range all {
				device[c.device] = pp
			}
		}
	}
	for _, p := range pods {
		if p.gpuRequest() > 0 {
			continue
		}
		for _, name := range p.Claims {
			for _, a := range f.inv.claims[name] {
				if a.gpu {
					f.holdClaimed(parts, p, a, device)
				}
			}
		}
	}
}

// holdClaimed places one device of a pod's claim, for as long as the inventory shows the
// claim to have it.
func (f *nodeFold) holdClaimed(parts []*placedPart, p *Pod, a allocated, device map[string]*placedPart) {
	during := p.life.clip(a.seen)
	if during.clip(f.hour).length() == 0 {
		return
	}
	pp := device[a.device]
	if pp == nil && !strings.Contains(a.device, "-mig-") { // of an instance that nothing shows it is not known which it is
		pp = f.leastHeld(parts, p, func(pp *placedPart) bool {
			return pp.Geometry == "" && !pp.taken() && !slices.Contains(slices.Collect(maps.Values(device)), pp)
		})
	}
	if pp == nil {
		return
	}
	device[a.device] = pp
	for _, h := range pp.holders {
		if h.uid == p.UID {
			if h.flags&FlagPlacementInferred != 0 {
				h.addClaim(heldClaim{a.name, pp.atMost(a.capacity)})
			}
			return // a sample says it already
		}
	}
	h := pp.hold(p, 1, FlagPlacementInferred)
	h.life = during
	h.addClaim(heldClaim{a.name, pp.atMost(a.capacity)})
}

// pluginCapacity is what a device plugin offers of GPUs; 0 also where one was before.
func (n *Node) pluginCapacity() int64 {
	var sum int64
	for _, c := range n.GPUCapacity {
		sum += c
	}
	return sum
}

// taken reports whether a sample shows that somebody holds the device by a claim of all
// of it.
func (pp *placedPart) taken() bool {
	for _, h := range pp.holders {
		for _, c := range h.claims {
			if c.capacity == 0 && h.flags&FlagPlacementInferred == 0 {
				return true
			}
		}
	}
	return false
}

// atMost bounds a capacity by what there is.
func (pp *placedPart) atMost(capacity uint64) uint64 {
	if pp.UsableBytes > 0 {
		return min(capacity, pp.UsableBytes)
	}
	return capacity
}

// shareOfClaims is what a pod's claims are at an instant: what it reserves by itself,
// and whether a claim gives it all of the device.
type shareOfClaims struct {
	alone uint64 // Σ capacity of the claims that no other pod holds
	even  uint64 // the same with its part of those that it shares
	all   bool   // a claim of the whole device, held by it alone
	any   bool   // it holds a claim with a capacity
	mine  []string
}

// own reports whether no other pod holds a claim now.
func (c *shareOfClaims) own(held heldClaim) bool { return slices.Contains(c.mine, held.name) }

// countClaims works out each pod's share of the claims.
func countClaims(claims []claim) {
	members := map[string]uint64{}
	for _, c := range claims {
		for _, held := range c.h.claims {
			members[held.name]++
		}
	}
	for i := range claims {
		c := &claims[i]
		for _, held := range c.h.claims {
			n := members[held.name]
			c.claims.any = c.claims.any || held.capacity > 0
			c.claims.even += held.capacity / n
			switch {
			case held.capacity == 0:
				c.claims.all = c.claims.all || len(claims) == 1
			case n == 1:
				c.claims.alone += held.capacity
				c.claims.mine = append(c.claims.mine, held.name)
			}
		}
	}
}

// claimIdle is what claims that several pods share leave unused of their capacity, in
// units of 1/scale bytes, and whether every claim has a capacity: what is free of the
// device is then nobody's. What a pod uses beyond its own claims is of those it shares.
func claimIdle(claims []claim, scale uint64) (idle [columns]uint64, all bool) {
	all = len(claims) > 0
	type shared struct{ capacity, used, members uint64 }
	by := map[string]*shared{}
	for _, c := range claims {
		all = all && c.claims.any && !c.claims.all
		var capacities uint64 // of the claims that it shares
		for _, held := range c.h.claims {
			if held.capacity > 0 && !c.claims.own(held) {
				capacities += held.capacity
			}
		}
		for _, held := range c.h.claims {
			s := by[held.name]
			if s == nil {
				s = &shared{capacity: held.capacity}
				by[held.name] = s
			}
			s.members++
			if !c.claims.own(held) {
				s.used += mulDiv(c.used-min(c.used, c.claims.alone), held.capacity, max(capacities, held.capacity))
			}
		}
	}
	for _, s := range by {
		if s.members < 2 || s.capacity == 0 {
			continue
		}
		idle[colRequestNone] += s.capacity * scale
		idle[colRequestReplica] += s.capacity * scale
		idle[colMaxNone] += (s.capacity - min(s.used, s.capacity)) * scale
		idle[colMaxReplica] += (s.capacity - min(s.used, s.capacity)) * scale
	}
	return idle, all
}
