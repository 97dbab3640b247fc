package warehouse

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// track is a table of spells: an id, a range, and the columns of a state.
type track struct {
	table, id string
	columns   []string // "name type"
	from      string   // joins that find the node of a row, which is t
	node      string   // the node's id
}

var (
	nodeStates = track{
		"node_state", "node_id",
		[]string{"provider_id text", "instance_type text", "region text", "zone text", "pool text", "labels jsonb", "gpu_capacity jsonb", "cpu_milli bigint", "memory_bytes bigint"},
		"", "t.node_id",
	}
	devicesSeen    = track{"device_seen", "device_id", nil, "JOIN gpuledger.device d ON d.id = t.device_id", "d.node_id"}
	partitionModes = track{
		"partition_mode", "partition_id",
		[]string{"mode text", "slots int"},
		"JOIN gpuledger.gpu_partition p ON p.id = t.partition_id JOIN gpuledger.device d ON d.id = p.device_id", "d.node_id",
	}
	podsSeen     = track{"pod_seen", "pod_id", []string{"node_id int"}, "", "t.node_id"}
	clusterNames = track{"cluster_named", "cluster_id", []string{"name text"}, "", "t.cluster_id"}
)

// state is the canonical text of a state: keys in order, numbers as they are.
func state(columns map[string]any) string {
	b, err := json.Marshal(columns)
	if err != nil {
		panic(err) // strings, integers and maps of them always marshal
	}
	return string(b)
}

func (t track) names() []string {
	out := make([]string, len(t.columns))
	for i, c := range t.columns {
		out[i], _, _ = strings.Cut(c, " ")
	}
	return out
}

// read finds the spells of the nodes' things, and of further ids, that overlap or touch
// a stretch of time, and the nodes that each was on.
func (t track) read(ctx context.Context, tx pgx.Tx, nodes []int32, ids []int64, start, end time.Time) (spells, map[int64][]int32, error) {
	object := "'{}'"
	if len(t.columns) > 0 {
		var parts []string
		for _, n := range t.names() {
			parts = append(parts, fmt.Sprintf("'%s', t.%s", n, n))
		}
		object = "jsonb_build_object(" + strings.Join(parts, ", ") + ")::text"
	}
	// A second more on either side: a range that ends where another starts does not overlap it.
	rows, err := tx.Query(ctx, fmt.Sprintf(`SELECT t.%s, %s, lower(t.valid), upper(t.valid), %s FROM gpuledger.%s t %s WHERE (%s = ANY ($1) OR t.%s = ANY ($2)) AND t.valid && tstzrange($3, $4)`,
		t.id, t.node, object, t.table, t.from, t.node, t.id), nodes, ids, start.Add(-time.Second), end.Add(time.Second))
	if err != nil {
		return nil, nil, err
	}
	out, on := spells{}, map[int64][]int32{}
	var id int64
	var node int32
	var x spell
	_, err = pgx.ForEachRow(rows, []any{&id, &node, &x.start, &x.end, &x.state}, func() error {
		canonical, err := canonicalJSON(x.state)
		x.state = canonical
		x.start, x.end = x.start.UTC(), x.end.UTC()
		out[id] = append(out[id], x)
		on[id] = append(on[id], node)
		return err
	})
	return out, on, err
}

// canonicalJSON spells what the database returns as state spells it.
func canonicalJSON(text string) (string, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var m map[string]any
	if err := d.Decode(&m); err != nil {
		return "", err
	}
	return state(m), nil
}

// write makes the table say now instead of old. Where both say the same it writes
// nothing.
func (t track) write(ctx context.Context, tx pgx.Tx, old, now spells) error {
	gone, come := changes(old, now)
	if len(gone) > 0 {
		ids, starts, _, _ := columnsOf(gone)
		if _, err := tx.Exec(ctx, fmt.Sprintf(`DELETE FROM gpuledger.%s t USING unnest($1::bigint[], $2::timestamptz[]) AS w (id, start) WHERE t.%s = w.id AND lower(t.valid) = w.start`, t.table, t.id), ids, starts); err != nil {
			return err
		}
	}
	if len(come) == 0 {
		return nil
	}
	ids, starts, ends, states := columnsOf(come)
	into, from, values := t.id+", valid", "unnest($1::bigint[], $2::timestamptz[], $3::timestamptz[], $4::text[]) AS w (id, starts, ends, state)", "w.id, tstzrange(w.starts, w.ends)"
	if len(t.columns) > 0 {
		into += ", " + strings.Join(t.names(), ", ")
		from += ", jsonb_to_record(w.state::jsonb) AS x (" + strings.Join(t.columns, ", ") + ")"
		values += ", x." + strings.Join(t.names(), ", x.")
	}
	_, err := tx.Exec(ctx, fmt.Sprintf("INSERT INTO gpuledger.%s (%s) SELECT %s FROM %s", t.table, into, values, from), ids, starts, ends, states)
	return err
}

func columnsOf(in []idSpell) (ids []int64, starts, ends []time.Time, states []string) {
	for _, x := range in {
		ids, starts, ends, states = append(ids, x.id), append(starts, x.start), append(ends, x.end), append(states, x.state)
	}
	return ids, starts, ends, states
}
