package allocate

import (
	"fmt"
	"math/big"

	"gpuledger/billing/money"
	"gpuledger/policy"
)

// AWS split cost allocation data weighs a GPU, a vCPU and a GiB 9 : 0.9 : 0.1, and on
// machines without GPUs a vCPU and a GiB 9 : 1.
var (
	scadGPU   = policy.Nano{GPU: 9_000_000_000, VCPU: 900_000_000, GiB: 100_000_000}
	scadNoGPU = policy.Nano{VCPU: 9_000_000_000, GiB: 1_000_000_000}
)

// What a GPU part of the price should lie within, in Ratio units: outside, the
// prices are probably those of another region, cloud or generation.
const (
	leastGPUPart = 300_000_000_000
	mostGPUPart  = 980_000_000_000
)

// settleParts works out how much of a line that prices the whole node is GPU, CPU
// and memory.
func (v *Vectors) settleParts() error {
	s := v.split
	if s.p.ComponentSplit == policy.GPUAll || s.p.ComponentSplit == policy.BilledSKU {
		v.Undivided = "component_split is " + s.p.ComponentSplit
		return nil
	}
	v.Size = s.size()
	if s.p.ComponentSplit == policy.PriceDifference {
		var ok bool
		if v.Base, ok = s.p.PricesAt(s.w.Currency, s.w.Span.Start); !ok {
			return &MissingPrice{Currency: s.w.Currency, At: s.w.Span.Start}
		}
	}
	if v.Size.CPUMilli <= 0 || v.Size.MemoryBytes <= 0 {
		v.Undivided = fmt.Sprintf("the CPU and memory of %s are not known: collect kube_node_status_capacity", orType(s.w.Node.InstanceType))
		v.Findings = append(v.Findings, v.Undivided+"; component_split stays gpu_all there")
		return nil
	}
	var weights []*big.Int // CPU, GPU, memory
	switch s.p.ComponentSplit {
	case policy.PriceDifference:
		if s.w.ListCost.Sign() <= 0 || s.w.ListMicros <= 0 {
			v.Undivided = "no line states a list cost" // the reader of the lines says which
			return nil
		}
		weights = priceDifference(v.Base, v.Size, s.w.ListCost, s.w.ListMicros)
	case policy.FixedRatio:
		v.Base = s.p.Ratios()
		weights = basePrices(v.Base, v.Size)
	case policy.SCAD:
		v.Base = scadGPU
		if v.Size.GPUs == 0 {
			v.Base = scadNoGPU
		}
		weights = basePrices(v.Base, v.Size)
	}
	ratios, err := money.RatiosOf(weights)
	if err != nil {
		return fmt.Errorf("component_split %s: every weight of %s is 0: %w", s.p.ComponentSplit, orType(s.w.Node.InstanceType), err)
	}
	v.Parts = Parts{CPU: ratios[0], GPU: ratios[1], Memory: ratios[2]}
	if g := v.Parts.GPU; s.p.ComponentSplit == policy.PriceDifference && (g < leastGPUPart || g > mostGPUPart) {
		v.Findings = append(v.Findings, fmt.Sprintf("component_prices leave %s of the list price of %s to its GPUs, outside 0.3 to 0.98: check that they are of its region and generation", g, orType(s.w.Node.InstanceType)))
	}
	return nil
}

func orType(instanceType string) string {
	if instanceType == "" {
		return "a machine of no known type"
	}
	return instanceType
}

// size is what the node has, the most over the window's hours.
func (s *split) size() Size {
	out := Size{GPUs: s.w.Node.ExpectedGPUs}
	for i := range s.w.Hours {
		h := &s.w.Hours[i]
		out.GPUs = max(out.GPUs, len(h.Devices))
		out.CPUMilli, out.MemoryBytes = max(out.CPUMilli, h.CPUMilli), max(out.MemoryBytes, h.MemoryBytes)
	}
	if out.CPUMilli <= 0 {
		out.CPUMilli = s.w.Node.CPUMilli
	}
	if out.MemoryBytes <= 0 {
		out.MemoryBytes = s.w.Node.MemoryBytes
	}
	return out
}

// basePrices weighs CPU, GPU and memory by quantity × base, in units of 1e-9 ÷ 1,000
// ÷ 2^30.
func basePrices(base policy.Nano, n Size) []*big.Int {
	return []*big.Int{
		product(base.VCPU, uint64(n.CPUMilli), 1<<30),
		product(base.GPU, uint64(n.GPUs), 1_000, 1<<30),
		product(base.GiB, uint64(n.MemoryBytes), 1_000),
	}
}

// priceDifference weighs CPU and memory by their price and the GPUs by what is left
// of the list price: φ_gpu = 1 − (p_cpu·vCPU + p_mem·GiB) / P_list, at least 0. list
// is what micros of instance time cost.
func priceDifference(price policy.Nano, n Size, list money.Amount, micros int64) []*big.Int {
	w := basePrices(price, n)
	// A price an hour is ×3.6e9 µs; a list cost in 1e-24 is 1e-15 of a billionth.
	perHour := product(uint64(micros), 1_000_000_000_000_000)
	whole := new(big.Int).Mul(list.Big(), product(3_600_000_000, 1_000, 1<<30))
	for _, i := range []int{0, 2} {
		w[i].Mul(w[i], perHour)
		whole.Sub(whole, w[i])
	}
	w[1] = whole
	if whole.Sign() < 0 {
		w[1] = new(big.Int)
	}
	return w
}

func product(factors ...uint64) *big.Int {
	out := big.NewInt(1)
	for _, f := range factors {
		out.Mul(out, new(big.Int).SetUint64(f))
	}
	return out
}
