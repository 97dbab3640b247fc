package main

import (
	"math/big"
	"strings"

	"gpuledger/allocate"
	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/policy"
	"gpuledger/warehouse"
)

// explainRequests shows the terms of a charge for CPU or memory.
func explainRequests(p func(string, ...any), e *warehouse.Explanation) {
	what := "the node's " + e.Component
	p("3. Share of %s = requested or used, the larger, × time ÷ the larger of the capacity and what all pods ask for", what)
	mine, all := new(big.Rat), new(big.Rat)
	for _, t := range e.Terms {
		mine.Add(mine, term(t))
		if t.PodUID == "" || t.MovedBy != "" {
			p("   %s: %s s", t.Hour.UTC().Format("15h"), term(t).FloatString(6))
			continue
		}
		p("   %s: %s of %s for %s s = %s s  (%s)", t.Hour.UTC().Format("15h"), quantity(t.Component, t.Requested), quantity(t.Component, t.Capacity),
			seconds(t.LifeMicros), term(t).FloatString(6), t.Method)
	}
	for _, t := range e.All {
		all.Add(all, term(t))
	}
	p("   weight of this charge %s of %s in all", mine.FloatString(6), all.FloatString(6))
}

// quantity says CPU in cores and memory in GiB.
func quantity(c billing.Component, n int64) string {
	if c == billing.CPU {
		return decimal(new(big.Rat).SetFrac64(n, 1_000), 3) + " vCPU"
	}
	return decimal(new(big.Rat).SetFrac64(n, 1<<30), 3) + " GiB"
}

// decimal writes a number with at most so many decimals.
func decimal(r *big.Rat, digits int) string {
	return strings.TrimRight(strings.TrimRight(r.FloatString(digits), "0"), ".")
}

// explainParts shows how a line is divided into GPU, CPU and memory.
func explainParts(p func(string, ...any), e *warehouse.Explanation) {
	v := e.Parts
	if v == nil {
		return
	}
	if v.Undivided != "" {
		p("   The line prices %s only: all of it is shared out so.", e.Component)
		return
	}
	p("   The line is divided by component_split %s:", e.Policy.ComponentSplit)
	nano := func(n uint64) string { return decimal(new(big.Rat).SetFrac64(int64(n), 1_000_000_000), 9) }
	base := v.Base
	cpu, memory := quantity(billing.CPU, v.Size.CPUMilli), quantity(billing.Memory, v.Size.MemoryBytes)
	if e.Policy.ComponentSplit == policy.PriceDifference {
		p("   %s × %s and %s × %s of a list price of %s %s an hour; the rest is the GPUs'", nano(base.VCPU), cpu, nano(base.GiB), memory, listPerHour(&e.Window), e.Line.Currency)
	} else {
		p("   %d GPU(s) × %s : %s × %s : %s × %s", v.Size.GPUs, nano(base.GPU), cpu, nano(base.VCPU), memory, nano(base.GiB))
	}
	p("   gpu %s, cpu %s, memory %s; this is %s", v.Parts.GPU, v.Parts.CPU, v.Parts.Memory, e.Component)
}

// listPerHour is the window's list cost for an hour of its node.
func listPerHour(w *allocate.Window) string {
	if w.ListMicros <= 0 {
		return "0"
	}
	r := new(big.Rat).SetFrac(w.ListCost.Big(), money.FromInt(1).Big())
	return decimal(r.Mul(r, new(big.Rat).SetFrac64(3_600_000_000, w.ListMicros)), 9)
}
