package warehouse

import (
	"context"
	"time"

	"gpuledger/gpu"
)

// changedHour is a node-hour that says something else than is stored, or is new.
type changedHour struct {
	hour    *gpu.ClusterHour
	nh      *gpu.NodeHour
	nodeID  int32
	sha     [32]byte
	old     int64 // the version it replaces, 0 for none
	id      int64
	pods    map[string]int64
	measure int64
	present int64
}

// goneHour is a stored node-hour of an hour that was read now without the node.
type goneHour struct {
	id   int64
	node int32
	hour time.Time
}

// changed compares every node-hour with the stored one, and notes in gone the stored ones
// that are there no more.
func (s *sampleSave) changed() []*changedHour {
	type key struct {
		node int32
		hour int64
	}
	stored := map[key]storedVersion{}
	for _, v := range s.stored {
		stored[key{v.node, v.hour.Unix()}] = v
	}
	var out []*changedHour
	read, offered := map[int64]bool{}, map[key]bool{}
	for i := range s.hours {
		h := &s.hours[i]
		read[h.Hour.Unix()] = true
		hashes := podHashes(h.Inventory)
		for j := range h.Nodes {
			nh := &h.Nodes[j]
			c := &changedHour{hour: h, nh: nh, nodeID: s.nodes[keyOf(nh)], sha: nodeHourHash(*nh, hashes), pods: map[string]int64{}}
			k := key{c.nodeID, h.Hour.Unix()}
			offered[k] = true
			v, ok := stored[k]
			if ok && v.sha == string(c.sha[:]) {
				continue
			}
			c.old = v.id
			c.measure, c.present = measuredMicros(*nh)
			for _, uid := range podsOf(*nh) {
				c.pods[uid] = s.pods[podKey{uid, hashes[uid]}]
			}
			out = append(out, c)
		}
	}
	for _, v := range s.stored {
		if read[v.hour.Unix()] && !offered[key{v.node, v.hour.Unix()}] {
			s.gone = append(s.gone, goneHour{v.id, v.node, v.hour})
		}
	}
	return out
}

// withdraw takes node-hours that are there no more out of what is current. Nothing comes
// in their place, which is written as 0.
func (s *sampleSave) withdraw(ctx context.Context) error {
	if len(s.gone) == 0 {
		return nil
	}
	ids := make([]int64, len(s.gone))
	for i, g := range s.gone {
		ids[i] = g.id
	}
	_, err := s.tx.Exec(ctx, "UPDATE gpuledger.node_hour SET superseded_by = 0 WHERE id = ANY ($1)", ids)
	return err
}

// reseen brings up to date when nodes that lost hours were seen.
func (s *sampleSave) reseen(ctx context.Context) error {
	if len(s.gone) == 0 {
		return nil
	}
	nodes := make([]int32, len(s.gone))
	for i, g := range s.gone {
		nodes[i] = g.node
	}
	_, err := s.tx.Exec(ctx, `UPDATE gpuledger.node n SET first_hour = w.first, last_hour = w.last
		FROM (SELECT node_id, min(hour) AS first, max(hour) AS last FROM gpuledger.node_hour WHERE superseded_by IS NULL AND node_id = ANY ($1) GROUP BY 1) w WHERE n.id = w.node_id`, nodes)
	return err
}
