package allocate

import (
	"math/big"
	"sort"

	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/gpu"
	"gpuledger/policy"
)

// Around is what the pods of a cluster are charged in one stretch of time and one
// currency: those who share remainders of pool and cluster scope. Build it with Add;
// the order of the calls makes no difference.
type Around struct {
	pods  map[receiverKey]*receiver
	lists map[listKey][]receiver // of the receivers, ready to share out over
}

type receiverKey struct {
	component      billing.Component
	pool, uid, who string
}

type listKey struct {
	component billing.Component
	pool      string // "" for the cluster
	all       bool
}

// receiver is a pod under one owner, and what it is charged itself.
type receiver struct {
	uid    string
	owner  policy.Owner
	method gpu.Method
	cost   money.Weight // in 1e-20 of the currency
}

// costUnit is 1e-20 in units of cost × ratio: exact for costs of up to eight decimals.
var costUnit = big.NewInt(10_000_000_000_000_000)

// Add tells what a line's own shares cost; those that a policy moved do not count.
func (a *Around) Add(shares []Share, effective money.Amount) {
	for _, sh := range shares {
		cost := new(big.Int).Mul(effective.Big(), big.NewInt(int64(sh.Ratio)))
		cost.Quo(cost, costUnit)
		if sh.Category != PodCategory || cost.Sign() <= 0 {
			continue
		}
		k := receiverKey{scopeComponent(sh.Component), sh.Pool, sh.PodUID, sh.Owner.Key()}
		if a.pods == nil {
			a.pods = map[receiverKey]*receiver{}
		}
		r := a.pods[k]
		if r == nil {
			r = &receiver{uid: sh.PodUID, owner: sh.Owner}
			a.pods[k] = r
		}
		r.method = max(r.method, sh.Method)
		lo := new(big.Int).And(cost, new(big.Int).SetUint64(^uint64(0)))
		w := money.Weight{Hi: new(big.Int).Rsh(cost, 64).Uint64(), Lo: lo.Uint64()}
		r.cost, _ = r.cost.Add(w)
		a.lists = nil
	}
}

// scopeComponent tells CPU and memory, which are shared out among themselves, from
// all that goes by GPUs.
func scopeComponent(c billing.Component) billing.Component {
	if c == billing.CPU || c == billing.Memory {
		return c
	}
	return billing.GPU
}

// in returns who is charged in a pool, or where all is set in the cluster, by UID and
// owner.
func (a *Around) in(c billing.Component, pool string, all bool) []receiver {
	k := listKey{scopeComponent(c), pool, all}
	if all {
		k.pool = ""
	}
	if list, ok := a.lists[k]; ok {
		return list
	}
	sum := map[[2]string]receiver{} // a pod may be charged in several pools
	for at, r := range a.pods {
		if at.component != k.component || !all && at.pool != pool {
			continue
		}
		s := sum[[2]string{at.uid, at.who}]
		s.uid, s.owner, s.method = r.uid, r.owner, max(s.method, r.method)
		s.cost, _ = s.cost.Add(r.cost)
		sum[[2]string{at.uid, at.who}] = s
	}
	keys := make([][2]string, 0, len(sum))
	for key := range sum {
		keys = append(keys, key)
	}
	sort.Slice(keys, func(i, j int) bool {
		if keys[i][0] != keys[j][0] {
			return keys[i][0] < keys[j][0]
		}
		return keys[i][1] < keys[j][1]
	})
	list := make([]receiver, len(keys))
	for i, key := range keys {
		list[i] = sum[key]
	}
	if a.lists == nil {
		a.lists = map[listKey][]receiver{}
	}
	a.lists[k] = list
	return list
}

// moveWide shares a remainder out over its pool or its cluster. Where nobody is
// charged in the pool, the cluster takes it; nil where nobody is there either.
func (s *split) moveWide(sh Share, rule policy.Rule) ([]Share, error) {
	a := s.w.Around
	if a == nil || !rule.Wide() {
		return nil, nil
	}
	to := a.in(sh.Component, sh.Pool, rule.Scope == policy.ScopeCluster)
	if len(to) == 0 {
		to = a.in(sh.Component, "", true)
	}
	if len(to) == 0 {
		return nil, nil
	}
	weights, pods := make([]money.Weight, len(to)), make([]string, len(to))
	for i, r := range to {
		weights[i], pods[i] = r.cost, r.uid
	}
	if rule.Policy == policy.EvenSplit {
		weights = evenly(pods, weights)
	}
	ratios, gpuRatios, err := sh.apportion(weights)
	if err != nil {
		return nil, err
	}
	var out []Share
	for i, r := range to {
		if ratios[i] == 0 && gpuRatios[i] == 0 {
			continue // of many receivers some get nothing: that is no charge
		}
		t := sh.Target // the device and the pool are those of the remainder
		t.PodUID, t.MovedBy = r.uid, rule.Policy
		t.give(r.owner)
		ratio := money.Ratio(ratios[i])
		moved := Share{Target: t, Ratio: ratio, GPURatio: money.Ratio(gpuRatios[i]), Method: r.method, ByMethod: byOne(r.method, ratio)}
		s.note(&moved, sh.Ratio, weights[i], weights)
		out = append(out, moved)
	}
	return out, nil
}
