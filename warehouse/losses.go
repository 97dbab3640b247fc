package warehouse

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"gpuledger/gpu"
)

// LessMeasuredError says what hours would lose by being read again: measured time, or
// whole nodes. They stay as they are stored: the source has begun to forget, or shows
// less than another one did.
type LessMeasuredError struct {
	Node                string
	Hour                time.Time
	StoredUS, OfferedUS int64 // device-time that is measured, of the first node-hour
	Gone                bool  // the first is not there at all
	NodeHours           int
	Hours               int
}

func (e *LessMeasuredError) Error() string {
	gone := ""
	if e.Gone && e.StoredUS == 0 {
		gone = ", which is not there now"
	}
	return fmt.Sprintf("%d node-hours would lose measured time, the first being %s at %s (%.1f device-seconds stored, %.1f read now)%s; their %d hours stay as they are, what else was read is stored; use --allow-less to accept it",
		e.NodeHours, e.Node, e.Hour.Format(time.RFC3339), float64(e.StoredUS)/1e6, float64(e.OfferedUS)/1e6, gone, e.Hours)
}

// Join adds up what several loads would lose, nil for nothing.
func (e *LessMeasuredError) Join(o *LessMeasuredError) *LessMeasuredError {
	switch {
	case o == nil:
		return e
	case e == nil:
		sum := *o
		return &sum
	}
	e.NodeHours, e.Hours = e.NodeHours+o.NodeHours, e.Hours+o.Hours
	return e
}

// storedVersion is the current version of a node-hour.
type storedVersion struct {
	id, measured   int64
	node           int32
	name, instance string
	hour           time.Time
	sha            string
}

// versions reads the current node-hours of the cluster in the hours, in order.
func (s *sampleSave) versions(ctx context.Context) ([]storedVersion, error) {
	rows, err := s.tx.Query(ctx, `SELECT h.id, h.measured_us, h.node_id, n.name, n.instance_id, h.hour, h.sha256 FROM gpuledger.node_hour h JOIN gpuledger.node n ON n.id = h.node_id
		WHERE h.superseded_by IS NULL AND n.cluster_id = $1 AND h.hour = ANY ($2) ORDER BY h.hour, n.name, h.node_id`, s.clusterID, s.times())
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (v storedVersion, err error) {
		var sha []byte
		err = r.Scan(&v.id, &v.measured, &v.node, &v.name, &v.instance, &v.hour, &sha)
		v.hour, v.sha = v.hour.UTC(), string(sha)
		return v, err
	})
}

func (s *sampleSave) times() []time.Time {
	out := make([]time.Time, len(s.hours))
	for i, h := range s.hours {
		out[i] = h.Hour
	}
	return out
}

// coverage reads how much of each hour the inventory was seen, as it is stored.
func (s *sampleSave) coverage(ctx context.Context) (map[int64]int64, error) {
	out := map[int64]int64{}
	rows, err := s.tx.Query(ctx, "SELECT hour, covered_us FROM gpuledger.cluster_hour WHERE cluster_id = $1 AND hour = ANY ($2) AND superseded_by IS NULL", s.clusterID, s.times())
	if err != nil {
		return nil, err
	}
	var hour time.Time
	var covered int64
	_, err = pgx.ForEachRow(rows, []any{&hour, &covered}, func() error {
		out[hour.Unix()] = covered
		return nil
	})
	return out, err
}

// scrapeMicros is what the coverage of one hour may differ by between two reads of the
// same store: a scrape at either end.
const scrapeMicros = 75_000_000

// leave takes the hours out of the load that stay as they are stored: those of which
// nothing was read, or less of the inventory, and those that would lose something.
func (s *sampleSave) leave(ctx context.Context) error {
	covered, err := s.coverage(ctx)
	if err != nil {
		return err
	}
	s.stored, err = s.versions(ctx)
	if err != nil {
		return err
	}
	byHour := map[int64][]storedVersion{}
	for _, v := range s.stored {
		byHour[v.hour.Unix()] = append(byHour[v.hour.Unix()], v)
	}
	var stay []gpu.ClusterHour
	for _, h := range s.hours {
		at := h.Hour.Unix()
		if was, known := covered[at]; known && s.keeps(h, was, byHour[at]) {
			continue
		}
		if loss := lossOf(h, byHour[at]); loss != nil && !s.load.AllowLess {
			s.less = s.less.Join(loss)
			continue
		}
		stay = append(stay, h)
	}
	s.hours = stay
	return nil
}

// keeps reports whether a stored hour says more than the one that was read, whatever of
// measured time that has: all of it where nothing was read, and else more of the inventory.
func (s *sampleSave) keeps(h gpu.ClusterHour, covered int64, stored []storedVersion) bool {
	nothing := h.CoveredMicros == 0 && len(h.Nodes) == 0
	switch {
	case nothing && (covered > 0 || len(stored) > 0):
		return !s.load.AllowEmpty
	case h.CoveredMicros+scrapeMicros < covered:
		return !s.load.AllowLess
	}
	return false
}

// lossOf says what an hour would lose: of a node that is in both its measured time, and a
// node that is not there now. A node without a provider id is there under the one that has
// become known since, if that has as much.
func lossOf(h gpu.ClusterHour, stored []storedVersion) *LessMeasuredError {
	offered, named := map[nodeKey]int64{}, map[string]int64{}
	for i := range h.Nodes {
		m, _ := measuredMicros(h.Nodes[i])
		offered[keyOf(&h.Nodes[i])] = m
		named[h.Nodes[i].Node] += m
	}
	var loss *LessMeasuredError
	for _, v := range stored {
		now, there := offered[nodeKey{v.name, v.instance}]
		if !there && v.instance == "" {
			now, there = named[v.name], hasName(named, v.name)
		}
		if there && now >= v.measured {
			continue
		}
		one := &LessMeasuredError{Node: v.name, Hour: v.hour, StoredUS: v.measured, OfferedUS: now, Gone: !there, NodeHours: 1}
		if loss == nil {
			loss = one
			loss.Hours = 1
			continue
		}
		loss = loss.Join(one)
	}
	return loss
}

func hasName(named map[string]int64, name string) bool { _, ok := named[name]; return ok }
