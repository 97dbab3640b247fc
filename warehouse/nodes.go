package warehouse

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"gpuledger/billing/period"
	"gpuledger/gpu"
)

// nodeState is what a node was for a while.
type nodeState struct {
	period.Span
	instanceType, pool string
}

func loadNodeStates(ctx context.Context, tx pgx.Tx) (map[int32][]nodeState, error) {
	rows, err := tx.Query(ctx, "SELECT node_id, lower(valid), upper(valid), instance_type, pool FROM gpuledger.node_state ORDER BY node_id, lower(valid)")
	if err != nil {
		return nil, err
	}
	out := map[int32][]nodeState{}
	var id int32
	var s nodeState
	_, err = pgx.ForEachRow(rows, []any{&id, &s.Start, &s.End, &s.instanceType, &s.pool}, func() error {
		out[id] = append(out[id], s)
		return nil
	})
	return out, err
}

// at is what the node was at an instant, by what get reads of it: the last that it was
// known to be then, and before it was first seen what it was first.
func (n *node) at(t time.Time, get func(nodeState) string, lastKnown string) string {
	known := ""
	for _, s := range n.states {
		v := get(s)
		if known != "" && s.Start.After(t) {
			break
		}
		if v != "" {
			known = v
		}
	}
	if known == "" {
		return lastKnown
	}
	return known
}

func (n *node) poolAt(t time.Time) string {
	return n.at(t, func(s nodeState) string { return s.pool }, n.pool)
}

func (n *node) typeAt(t time.Time) string {
	return n.at(t, func(s nodeState) string { return s.instanceType }, n.instanceType)
}

// seen is when the node was there within a span.
func (n *node) seen(span period.Span) []period.Span {
	var out []period.Span
	for _, s := range n.states {
		if both := s.Intersect(span); !both.Empty() {
			out = append(out, both)
		}
	}
	return out
}

// match finds the machine of a line and names it by the node it was longest in the
// line's window, or nearest to it: names change, and are used again, over time. One machine seen by two
// clusters at the same time is an error that names both.
func (ix *nodeIndex) match(l *line) (*node, error) {
	if l.instanceID == "" {
		return nil, nil
	}
	type found struct {
		node *node
		seen []period.Span
		long time.Duration
		gap  time.Duration
	}
	var all []found
	for _, n := range ix.byInstance[strings.ToLower(l.instanceID)] {
		f := found{node: n, seen: n.seen(l.span)}
		for _, s := range f.seen {
			f.long += s.Duration()
		}
		end := n.lastHour.Add(time.Hour)
		f.gap = max(n.firstHour.Sub(l.span.End), l.span.Start.Sub(end))
		if n.firstHour.Before(l.span.End) && l.span.Start.Before(end) {
			f.gap = -1 // they overlap; one that only touches is a neighbour
		}
		for _, o := range all {
			if o.node.clusterID == n.clusterID {
				continue
			}
			if at, both := together(o.seen, f.seen); both {
				return nil, fmt.Errorf("instance %s is a node of cluster %q and of cluster %q at %s; a machine belongs to one cluster at a time: check the clusters in gpuledger.yaml",
					l.instanceID, o.node.clusterName(at), n.clusterName(at), at.UTC().Format(time.RFC3339))
			}
		}
		all = append(all, f)
	}
	if len(all) == 0 {
		return nil, nil
	}
	sort.SliceStable(all, func(i, j int) bool {
		if all[i].long != all[j].long {
			return all[i].long > all[j].long
		}
		return all[i].gap < all[j].gap
	})
	return all[0].node, nil
}

// together reports whether two were there at the same time, for longer than one hands
// over to the other, and from when on.
func together(a, b []period.Span) (time.Time, bool) {
	for _, x := range a {
		for _, y := range b {
			if both := x.Intersect(y); both.Duration() > gpu.Handover {
				return both.Start, true
			}
		}
	}
	return time.Time{}, false
}
