package gpu

import (
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
	gpu      bool   // by its driver
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
	if f.node == nil || len(f.node.GPUCapacity) > 0 {
		return
	}
	placed, device := map[string]bool{}, map[string]*placedPart{}
	for _, pp := range parts {
		for _, h := range pp.holders {
			placed[h.uid] = true
		}
	}
	for _, p := range pods {
		if placed[p.UID] || p.gpuRequest() > 0 {
			continue
		}
		for _, name := range p.Claims {
			for _, a := range f.inv.claims[name] {
				if !a.gpu {
					continue
				}
				pp := device[a.device]
				if pp == nil {
					pp = f.leastHeld(parts, p, func(pp *placedPart) bool { return pp.Geometry == "" && !pp.taken() })
				}
				if pp == nil {
					continue
				}
				device[a.device] = pp
				h := pp.hold(p, 0, FlagPlacementInferred)
				h.replicas = 1
				h.addClaim(heldClaim{name, pp.atMost(a.capacity)})
			}
		}
	}
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
}

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
		for _, held := range c.h.claims {
			s := by[held.name]
			if s == nil {
				s = &shared{capacity: held.capacity}
				by[held.name] = s
			}
			s.members++
			s.used += c.used - min(c.used, c.claims.alone)
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
