package main

import (
	"math/big"

	"gpuledger/allocate"
	"gpuledger/policy"
	"gpuledger/warehouse"
)

// explainMove shows a remainder that left its hour: it was shared out as a part of the
// line.
func explainMove(p func(string, ...any), e *warehouse.Explanation) {
	category, by := e.Share.Category, e.Share.MovedBy
	switch by {
	case policy.Fixed:
		p("3. This is %s, moved here by the policy %q: its table gives team %s a share.", category, by, e.Share.Owner.Team)
	case policy.Headroom:
		if e.Share.PodUID == "" {
			p("3. This is %s that the platform keeps free on purpose: the first %s of the node.", category, percent(e.Policy.Idle.For(category, e.Share.Pool).Headroom))
		} else {
			p("3. This is %s beyond the headroom, moved here by the policy %q: everyone charged for the node shares it by what they are charged.", category, by)
		}
	default:
		p("3. This is %s, moved here by the policy %q: everyone charged for %s shares it %s.", category, by, whose(e), sharedBy(by))
	}
	for i := range e.Moves {
		p("   %s of the line × %s", e.Moves[i].Of, partOf(&e.Moves[i]))
	}
}

// explainMoved says why terms of a remainder are this target's.
func explainMoved(p func(string, ...any), e *warehouse.Explanation) {
	category, by := e.Share.Category, e.Share.MovedBy
	switch {
	case by == "" && len(e.Moves) > 0:
		p("   Of these %s of the line the platform keeps a part free on purpose; this is the rest, × %s.", e.Moves[0].Of, partOf(&e.Moves[0]))
		return
	case by == "":
	case by == policy.Platform, by == policy.PoolOwner:
		p("   This is %s, moved to team %s by the policy %q.", category, e.Share.Owner.Team, by)
	case by == policy.LastTenant:
		p("   This is %s of the time after this pod left the node empty, moved here by the policy %q, which looks back %s.", category, by, e.Policy.Idle.For(category, e.Share.Pool).Lookback)
	case by == policy.Headroom && e.Share.PodUID == "":
		p("   This is %s that the platform keeps free on purpose: the first %s of the node.", category, percent(e.Policy.Idle.For(category, e.Share.Pool).Headroom))
	case e.Terms[0].Move != nil:
		p("   This is %s, moved here by the policy %q: everyone charged for the node in the same hour shares it %s.", category, by, sharedBy(by))
	default:
		p("   This is %s of the GPU, moved here by the policy %q: the holders of the same GPU share it out over the hour.", category, by)
	}
	for i := range e.Moves {
		p("   And where nobody held the GPU: %s of the line × %s", e.Moves[i].Of, partOf(&e.Moves[i]))
	}
}

func sharedBy(by string) string {
	if by == policy.EvenSplit {
		return "in equal parts"
	}
	return "in proportion to their own charge"
}

// whose says where the receivers of a remainder that left its device are charged.
func whose(e *warehouse.Explanation) string {
	rule := e.Policy.Idle.For(e.Share.Category, e.Share.Pool)
	switch {
	case rule.Scope == policy.ScopeCluster:
		return "nodes of its cluster in the same time"
	case rule.Scope == policy.ScopePool:
		return "nodes of its pool in the same time, or where nobody is, of its cluster,"
	case rule.Climb:
		return "the node, or where nobody is, for nodes of its pool or cluster,"
	}
	return "the node"
}

// partOf is what a receiver has of what all receivers go by.
func partOf(m *allocate.Move) string {
	if m.All.IsZero() {
		return "(all)"
	}
	return decimal(new(big.Rat).SetFrac(m.Mine.Big(), m.All.Big()), 12)
}

// percent writes a decimal fraction as a percentage.
func percent(fraction string) string {
	r, ok := new(big.Rat).SetString(fraction)
	if !ok {
		return fraction
	}
	return decimal(r.Mul(r, big.NewRat(100, 1)), 12) + " %"
}
