package gpu

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

// ClaimCapacityMetric is what a kube-state-metrics CustomResourceState says of a claim's
// consumed capacity (KEP-5075), in bytes; deploy/ has its configuration. The labels are
// namespace, name, pool and device.
const ClaimCapacityMetric = "kube_resourceclaim_consumed_memory_bytes"

// addClaim keeps the memory that a claim consumes of a device.
func (inv *Inventory) addClaim(s Series) {
	if len(s.Samples) == 0 || lastValue(s) <= 0 {
		return
	}
	name := workloadLabel(s.Labels, "namespace") + "/" + s.Labels["name"]
	if inv.claims[name] == nil {
		inv.claims[name] = map[string]uint64{}
	}
	inv.claims[name][s.Labels["pool"]+"/"+s.Labels["device"]] = uint64(lastValue(s))
}

// capacity is the memory that a claim consumes of the device; 0 where it holds the
// device, or nothing says.
func (inv *Inventory) capacity(c claimRef) uint64 {
	devices := inv.claims[c.name]
	if bytes, ok := devices[c.device]; ok {
		return bytes
	}
	if len(devices) == 1 && c.device == "/" { // a series that does not name its device
		for _, bytes := range devices {
			return bytes
		}
	}
	return 0
}

// claimed gives devices to pods whose claims kube-state-metrics shows and no sample
// does, on nodes whose GPUs are not handed out by a device plugin: there a claim may be
// for anything. Pods of one claim share its device.
func (f *nodeFold) claimed(parts []*placedPart, pods []*Pod) {
	if f.node == nil || len(f.node.GPUCapacity) > 0 || f.node.CPUMilli == 0 {
		return
	}
	placed, device := map[string]bool{}, map[string]*placedPart{}
	for _, pp := range parts {
		for _, h := range pp.holders {
			placed[h.uid] = true
			if h.claim != "" {
				device[h.claim] = pp
			}
		}
	}
	for _, p := range pods {
		if placed[p.UID] || p.gpuRequest() > 0 {
			continue
		}
		for _, claim := range p.Claims {
			pp := device[claim]
			if pp == nil {
				pp = f.leastHeld(parts, p, func(pp *placedPart) bool { return pp.Geometry == "" })
			}
			if pp == nil {
				continue
			}
			device[claim] = pp
			pp.hold(p, 1, FlagPlacementInferred).claim = claim
		}
	}
}

// countMembers tells each pod how many hold its claim.
func countMembers(claims []claim) {
	for i := range claims {
		for k := range claims {
			if claims[i].h.claim == claims[k].h.claim {
				claims[i].members++
			}
		}
	}
}

// claimIdle is what claims that several pods share leave unused of their capacity, in
// units of 1/scale bytes, and whether every claim has a capacity: what is free of the
// device is then nobody's.
func claimIdle(claims []claim, scale uint64) (idle [columns]uint64, all bool) {
	all = len(claims) > 0
	used := map[string]uint64{}
	for _, c := range claims {
		all = all && c.h.capacity > 0
		used[c.h.claim] += c.used
	}
	for _, c := range claims {
		n, shared := used[c.h.claim]
		if !shared || c.members < 2 || c.h.capacity == 0 {
			continue
		}
		delete(used, c.h.claim) // once for the claim
		idle[colRequestNone] += c.h.capacity * scale
		idle[colRequestReplica] += c.h.capacity * scale
		idle[colMaxNone] += (c.h.capacity - min(n, c.h.capacity)) * scale
		idle[colMaxReplica] += (c.h.capacity - min(n, c.h.capacity)) * scale
	}
	return idle, all
}
