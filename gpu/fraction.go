package gpu

import (
	"math/big"
	"strings"
)

// reservationNamespaces hold the pods with which Run:ai and KAI reserve a whole GPU
// for a group of pods that share it. They are not the payers.
var reservationNamespaces = map[string]bool{"runai-reservation": true, "kai-resource-reservation": true}

// fractions gives a reserved GPU to the pods of its group, each with the limit its
// annotations state, in place of the reservation pod. Source: run-ai/fake-gpu-operator
// and NVIDIA/KAI-Scheduler, reference/gpu-telemetry.md §4.4.
func (f *nodeFold) fractions(parts []*placedPart, pods []*Pod) {
	reserved := map[string][]*placedPart{} // by GPU group
	for _, pp := range parts {
		var kept []*holder
		for _, h := range pp.holders {
			p := f.inv.Pods[h.uid]
			if p == nil || !reservationNamespaces[p.Namespace] {
				kept = append(kept, h)
				continue
			}
			if g := p.Labels["runai_gpu_group"]; g != "" {
				reserved[g] = append(reserved[g], pp)
			}
			pp.fractionOf = pp.Mode
			pp.Mode = ModeFraction
		}
		pp.holders = kept
	}
	for _, p := range pods {
		for _, pp := range reserved[p.Labels["runai_gpu_group"]] {
			if !reservationNamespaces[p.Namespace] {
				// Without a fraction that can be read it still shares the GPU: as an estimate.
				h := pp.hold(p, 1, 0)
				h.limit, h.fraction = fractionLimit(p, pp.UsableBytes), true
				h.flags &^= FlagRogue // its annotation is its request
			}
		}
	}
}

// fractionLimit reads how much of a GPU a pod was given: MiB allocated or asked for,
// else a fraction of the usable memory.
func fractionLimit(p *Pod, usable uint64) uint64 {
	for _, a := range []string{"runai_allocated_gpu_memory", "gpu_memory"} {
		if size, ok := new(big.Int).SetString(p.Annotations[a], 10); ok && size.Sign() > 0 && size.BitLen() < 40 {
			return size.Uint64() << 20
		}
	}
	text := first(p.Annotations, "runai_allocated_gpus", "gpu_fraction")
	share, ok := new(big.Rat).SetString(strings.TrimSpace(text))
	if !ok || share.Sign() <= 0 || share.Cmp(big.NewRat(1, 1)) > 0 {
		return 0
	}
	share.Mul(share, new(big.Rat).SetInt(new(big.Int).SetUint64(usable)))
	return new(big.Int).Quo(share.Num(), share.Denom()).Uint64()
}

// matchPool matches a pool's name against a pattern in which * is any run of
// characters.
func matchPool(pattern, pool string) bool {
	before, after, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == pool
	}
	rest, ok := strings.CutPrefix(pool, before)
	if !ok {
		return false
	}
	for i := 0; i <= len(rest); i++ {
		if matchPool(after, rest[i:]) {
			return true
		}
	}
	return false
}
