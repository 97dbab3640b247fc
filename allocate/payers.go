package allocate

import (
	"time"

	"gpuledger/billing/money"
	"gpuledger/gpu"
	"gpuledger/policy"
)

// payers applies the rules that move a remainder to teams.
type payers struct {
	p      *policy.Policy
	owners *policy.Owners
}

// target gives a remainder to the team that platform and owner name. Where owners.yaml
// has no rule for the pool, the remainder stays with its payer.
func (y payers) target(t Target, r policy.Rule, cluster, account string, at time.Time) Target {
	to := policy.Owner{}
	switch r.Policy {
	case policy.Platform:
		to = y.p.TeamOf(policy.PlatformTeam, y.owners, at)
	case policy.PoolOwner:
		to = y.owners.Resolve(policy.Subject{Cluster: cluster, NodePool: t.Pool, Account: account}, at)
		to.Dimensions = nil // a pool has no labels to tell them from
	}
	if to.Team != "" {
		t.MovedBy = r.Policy
		t.give(to)
	}
	return t
}

// fixed divides a remainder between the teams of a table, each part a share of its own.
func (y payers) fixed(sh Share, r policy.Rule, at time.Time) ([]Share, error) {
	weights := make([]money.Weight, len(r.Shares))
	for i, f := range r.Shares {
		weights[i] = money.W(f.Weight())
	}
	ratios, gpuRatios, err := sh.apportion(weights)
	if err != nil {
		return nil, err
	}
	out := make([]Share, len(r.Shares))
	for i, f := range r.Shares {
		out[i] = Share{Target: sh.Target, Ratio: money.Ratio(ratios[i]), GPURatio: money.Ratio(gpuRatios[i]), Method: gpu.NoMethod}
		out[i].MovedBy = policy.Fixed
		out[i].give(y.p.TeamOf(f.Team, y.owners, at))
		out[i].ByMethod = byOne(gpu.NoMethod, out[i].Ratio)
	}
	return out, nil
}

// Loose is a line that no node's pods can pay.
type Loose struct {
	Category, Model string
	Mode            gpu.Mode
	Cluster, Pool   string // of the nearest node, where there is one
	Account         string
	At              time.Time
	Devices         bool // it pays for device time
}

// Shares gives all of the line to its payer, or to the teams its category's rule names.
func (l Loose) Shares(p *policy.Policy, owners *policy.Owners) ([]Share, error) {
	sh := Whole(l.Category, l.Model, l.Mode, p.PayerOf(l.Category, l.Pool, l.Account))
	sh.Pool = l.Pool
	if !l.Devices {
		sh.GPURatio = 0
	}
	y, rule := payers{p, owners}, p.Idle.For(l.Category, l.Pool)
	if rule.Policy == policy.Fixed {
		return y.fixed(sh, rule, l.At)
	}
	sh.Target = y.target(sh.Target, rule, l.Cluster, l.Account, l.At)
	return []Share{sh}, nil
}
