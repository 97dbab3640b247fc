package warehouse

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

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

// storedVersion is the current version of a node-hour.
type storedVersion struct {
	id, measured int64
	node         int32
	name         string
	hour         time.Time
	sha          string
}

// versions reads the current node-hours of the cluster in the hours, in order.
func (s *sampleSave) versions(ctx context.Context) ([]storedVersion, error) {
	var hours []time.Time
	for _, h := range s.hours {
		hours = append(hours, h.Hour)
	}
	rows, err := s.tx.Query(ctx, `SELECT h.id, h.measured_us, h.node_id, n.name, h.hour, h.sha256 FROM gpuledger.node_hour h JOIN gpuledger.node n ON n.id = h.node_id
		WHERE h.superseded_by IS NULL AND n.cluster_id = $1 AND h.hour = ANY ($2) ORDER BY h.hour, n.name, h.node_id`, s.clusterID, hours)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (v storedVersion, err error) {
		var sha []byte
		err = r.Scan(&v.id, &v.measured, &v.node, &v.name, &v.hour, &sha)
		v.hour, v.sha = v.hour.UTC(), string(sha)
		return v, err
	})
}

// changed compares every node-hour with the stored one, and notes in gone the stored ones
// that are there no more.
func (s *sampleSave) changed(ctx context.Context) ([]*changedHour, error) {
	type key struct {
		node int32
		hour int64
	}
	var all []*changedHour
	offered, named := map[key]bool{}, map[nameHour]int64{}
	for i := range s.hours {
		h := &s.hours[i]
		hashes := podHashes(h.Inventory)
		for j := range h.Nodes {
			nh := &h.Nodes[j]
			c := &changedHour{hour: h, nh: nh, nodeID: s.nodes[keyOf(nh)], sha: nodeHourHash(*nh, hashes), pods: map[string]int64{}}
			c.measure, c.present = measuredMicros(*nh)
			for _, uid := range podsOf(*nh) {
				c.pods[uid] = s.pods[podKey{uid, hashes[uid]}]
			}
			all = append(all, c)
			offered[key{c.nodeID, h.Hour.Unix()}] = true
			named[nameHour{nh.Node, h.Hour.Unix()}] += c.measure
		}
	}
	versions, err := s.versions(ctx)
	if err != nil {
		return nil, err
	}
	stored, storedNamed := map[key]storedVersion{}, map[nameHour]int64{}
	for _, v := range versions {
		stored[key{v.node, v.hour.Unix()}] = v
		storedNamed[nameHour{v.name, v.hour.Unix()}] += v.measured
	}
	var less lessMeasured
	var out []*changedHour
	for _, c := range all {
		v, ok := stored[key{c.nodeID, c.hour.Hour.Unix()}]
		if ok && v.sha == string(c.sha[:]) {
			continue
		}
		if ok {
			less.note(c.nh.Node, c.hour.Hour, v.measured, c.measure)
		}
		c.old = v.id
		out = append(out, c)
	}
	says := s.sayAllNodes()
	for _, v := range versions {
		if offered[key{v.node, v.hour.Unix()}] || !says[v.hour.Unix()] {
			continue
		}
		// Under a provider id that has become known since, it is another machine of the name.
		k := nameHour{v.name, v.hour.Unix()}
		if named[k] < storedNamed[k] {
			less.note(v.name, v.hour, v.measured, max(0, v.measured-(storedNamed[k]-named[k])))
		}
		s.gone = append(s.gone, goneHour{v.id, v.node, v.hour})
	}
	if less.first != nil && !s.load.AllowLess {
		return nil, less.first
	}
	return out, nil
}

// nameHour is an hour of the nodes of a name.
type nameHour struct {
	name string
	hour int64
}

// sayAllNodes are the hours that say of every node whether it was there: not those that
// less was read of than is stored, nor those that nothing was read of.
func (s *sampleSave) sayAllNodes() map[int64]bool {
	out := map[int64]bool{}
	for _, h := range s.hours {
		nothing := h.CoveredMicros == 0 && len(h.Nodes) == 0
		out[h.Hour.Unix()] = !s.kept[h.Hour.Unix()] && (!nothing || s.load.AllowLess)
	}
	return out
}

// lessMeasured collects what a re-read would lose.
type lessMeasured struct{ first *LessMeasuredError }

func (l *lessMeasured) note(node string, hour time.Time, stored, offered int64) {
	if offered >= stored {
		return
	}
	if l.first == nil {
		l.first = &LessMeasuredError{Node: node, Hour: hour, StoredUS: stored, OfferedUS: offered}
	}
	l.first.Hours++
}

// withdraw takes node-hours that are there no more out of what is current. Nothing comes
// in their place, which is written as 0.
func (s *sampleSave) withdraw(ctx context.Context) error {
	if len(s.gone) == 0 {
		return nil
	}
	var ids []int64
	var nodes []int32
	for _, g := range s.gone {
		ids, nodes = append(ids, g.id), append(nodes, g.node)
	}
	if _, err := s.tx.Exec(ctx, "UPDATE gpuledger.node_hour SET superseded_by = 0 WHERE id = ANY ($1)", ids); err != nil {
		return err
	}
	_, err := s.tx.Exec(ctx, `UPDATE gpuledger.node n SET first_hour = w.first, last_hour = w.last
		FROM (SELECT node_id, min(hour) AS first, max(hour) AS last FROM gpuledger.node_hour WHERE superseded_by IS NULL AND node_id = ANY ($1) GROUP BY 1) w WHERE n.id = w.node_id`, nodes)
	return err
}
