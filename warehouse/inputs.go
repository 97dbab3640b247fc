package warehouse

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"gpuledger/allocate"
	"gpuledger/billing/money"
	"gpuledger/billing/period"
	"gpuledger/gpu"
)

var catalogHash = sha256.Sum256([]byte(gpu.CatalogVersion()))

// line is a stored bill line, as far as allocation needs it.
type line struct {
	id                       int64
	source                   string
	key                      []byte
	ordinal                  int32
	class, component         string
	span                     period.Span
	billedUS                 *int64
	quantity                 string // hours, decimal; "" without
	currency                 string
	instanceID, instanceType string
	payer, account           string
	billed, effective, list  string
	contracted, provider     string
	sourceID                 int32
	billingPeriod            time.Time
}

const selectLines = `SELECT l.id, s.name, l.key, l.ordinal, l.class, l.component, l.charge_start, l.charge_end, l.billed_us,
		coalesce(l.instance_hours::text, ''),
		l.currency, r.instance_id, r.instance_type, r.payer, r.account, l.billed_cost::text, l.effective_cost::text, coalesce(l.list_cost::text, ''),
		coalesce(l.contracted_cost::text, ''), r.provider, l.source_id, l.billing_period
	FROM gpuledger.bill_line l
	JOIN gpuledger.source s ON s.id = l.source_id
	JOIN gpuledger.bill_resource r ON r.id = l.bill_resource_id `

func scanLine(r pgx.CollectableRow) (*line, error) {
	var l line
	err := r.Scan(&l.id, &l.source, &l.key, &l.ordinal, &l.class, &l.component, &l.span.Start, &l.span.End, &l.billedUS, &l.quantity,
		&l.currency, &l.instanceID, &l.instanceType, &l.payer, &l.account, &l.billed, &l.effective, &l.list, &l.contracted, &l.provider, &l.sourceID, &l.billingPeriod)
	l.span.Start, l.span.End = l.span.Start.UTC(), l.span.End.UTC()
	return &l, err
}

// loadLines reads the current lines that start on a day, ordered by what they say; those
// by base too where the policy brings them in.
func loadLines(ctx context.Context, tx pgx.Tx, m period.Month, day time.Time, byBase bool) ([]*line, error) {
	rows, err := tx.Query(ctx, selectLines+`WHERE l.charge_month = $1 AND l.last_delivery IS NULL AND l.charge_start >= $2 AND l.charge_start < $3 AND (NOT l.by_base OR $4)
		ORDER BY s.name, l.charge_start, l.key, l.ordinal`, m.Start(), day, day.AddDate(0, 0, 1), byBase)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanLine)
}

// node is a stored node.
type node struct {
	id                  int32
	clusterID           int32
	clusterKey          string
	names               []clusterName
	name, instanceID    string
	instanceType, pool  string      // as last known
	states              []nodeState // in order of time
	firstHour, lastHour time.Time
	current             bool // some hour shows it
}

type clusterName struct {
	name     string
	from, to time.Time // zero: open
}

func (n *node) clusterName(at time.Time) string {
	for _, c := range n.names {
		if (c.from.IsZero() || !at.Before(c.from)) && (c.to.IsZero() || at.Before(c.to)) {
			return c.name
		}
	}
	return n.clusterKey
}

// machine is what bill lines call the node: the provider's name of its machine, or, of a
// machine of one's own that has none, cluster/node, as a rate card does.
func (n *node) machine() string {
	if n.instanceID != "" {
		return n.instanceID
	}
	return n.clusterKey + "/" + n.name
}

// nodeIndex finds nodes by the provider's name of the machine.
type nodeIndex struct {
	byID       map[int32]*node
	byInstance map[string][]*node
}

func loadNodes(ctx context.Context, tx pgx.Tx) (*nodeIndex, error) {
	names := map[int32][]clusterName{}
	rows, err := tx.Query(ctx, "SELECT cluster_id, name, coalesce(lower(valid), 'epoch'), coalesce(upper(valid), 'epoch') FROM gpuledger.cluster_name ORDER BY cluster_id, lower(valid) NULLS FIRST")
	if err != nil {
		return nil, err
	}
	var clusterID int32
	var c clusterName
	if _, err := pgx.ForEachRow(rows, []any{&clusterID, &c.name, &c.from, &c.to}, func() error {
		x := c
		if x.from.Unix() == 0 {
			x.from = time.Time{}
		}
		if x.to.Unix() == 0 {
			x.to = time.Time{}
		}
		names[clusterID] = append(names[clusterID], x)
		return nil
	}); err != nil {
		return nil, err
	}
	states, err := loadNodeStates(ctx, tx)
	if err != nil {
		return nil, err
	}
	rows, err = tx.Query(ctx, `SELECT n.id, n.cluster_id, c.key, n.name, n.instance_id, n.instance_type, n.pool, n.first_hour, n.last_hour,
			EXISTS (SELECT FROM gpuledger.node_hour h WHERE h.node_id = n.id AND h.superseded_by IS NULL)
		FROM gpuledger.node n JOIN gpuledger.cluster c ON c.id = n.cluster_id ORDER BY n.id`)
	if err != nil {
		return nil, err
	}
	ix := &nodeIndex{byID: map[int32]*node{}, byInstance: map[string][]*node{}}
	all, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (*node, error) {
		var n node
		return &n, r.Scan(&n.id, &n.clusterID, &n.clusterKey, &n.name, &n.instanceID, &n.instanceType, &n.pool, &n.firstHour, &n.lastHour, &n.current)
	})
	for _, n := range all {
		n.names, n.states = names[n.clusterID], states[n.id]
		ix.byID[n.id] = n
		if !n.current {
			continue // it was taken back: no hour shows it any more
		}
		k := strings.ToLower(n.machine())
		ix.byInstance[k] = append(ix.byInstance[k], n)
	}
	return ix, err
}

// names returns the nodes that were the same machine of the same cluster.
func (ix *nodeIndex) names(n *node) []*node {
	var out []*node
	for _, o := range ix.byInstance[strings.ToLower(n.machine())] {
		if o.clusterID == n.clusterID {
			out = append(out, o)
		}
	}
	if len(out) == 0 {
		return []*node{n}
	}
	return out
}

// storedHour is a node-hour's identity.
type storedHour struct {
	id                         int64
	sha                        []byte
	readyMicros, unknownMicros int64
	node                       *node
	pool                       string
	cpuMilli, memoryBytes      int64 // the node's capacity, 0 where unknown
	readyStart, readyEnd       int64 // within the hour; 0 where unknown
	old                        bool  // read when that was not kept
}

// hourIndex holds the node-hours that a day's windows touch.
type hourIndex struct {
	index   *nodeIndex
	nodes   map[int32]map[int64]*storedHour
	covered map[int32]map[int64]int64 // by cluster
}

// at returns the stored hour of a machine, under whatever name it had the longest in
// it, or nil and how long the cluster's inventory was seen in it.
func (ix *hourIndex) at(n *node, hour time.Time) (*storedHour, int64) {
	var best *storedHour
	for _, name := range ix.index.names(n) {
		if h := ix.nodes[name.id][hour.Unix()]; h != nil && (best == nil || h.readyMicros > best.readyMicros) {
			best = h
		}
	}
	if best != nil {
		return best, 0
	}
	return nil, ix.covered[n.clusterID][hour.Unix()]
}

// loadHours reads the node-hours of a day's windows, and those before the day that a
// rule looks back to.
func loadHours(ctx context.Context, tx pgx.Tx, index *nodeIndex, d *dayWork, lookback time.Duration) (*hourIndex, error) {
	ix := &hourIndex{index: index, nodes: map[int32]map[int64]*storedHour{}, covered: map[int32]map[int64]int64{}}
	var ids []int32
	seen := map[int32]bool{}
	from, to := d.day.Add(-lookback).Truncate(time.Hour), d.day
	for _, u := range d.units {
		for _, w := range u.windows {
			for _, n := range index.names(w.node) {
				if !seen[n.id] {
					seen[n.id] = true
					ids = append(ids, n.id)
				}
			}
			if w.span.End.After(to) {
				to = w.span.End
			}
		}
	}
	if len(ids) == 0 {
		return ix, nil
	}
	rows, err := tx.Query(ctx, `SELECT id, node_id, hour, sha256, ready_us, uncovered_us, pool, cpu_milli, memory_bytes, coalesce(ready_start_us, 0), coalesce(ready_end_us, 0), ready_end_us IS NULL FROM gpuledger.node_hour
		WHERE superseded_by IS NULL AND node_id = ANY ($1) AND hour >= $2 AND hour < $3`, ids, from, to)
	if err != nil {
		return nil, err
	}
	var h storedHour
	var nodeID, clusterID int32
	var hour time.Time
	if _, err := pgx.ForEachRow(rows, []any{&h.id, &nodeID, &hour, &h.sha, &h.readyMicros, &h.unknownMicros, &h.pool, &h.cpuMilli, &h.memoryBytes, &h.readyStart, &h.readyEnd, &h.old}, func() error {
		x := h
		x.node = index.byID[nodeID]
		x.sha = append([]byte(nil), h.sha...)
		if ix.nodes[nodeID] == nil {
			ix.nodes[nodeID] = map[int64]*storedHour{}
		}
		ix.nodes[nodeID][hour.Unix()] = &x
		return nil
	}); err != nil {
		return nil, err
	}
	rows, err = tx.Query(ctx, "SELECT cluster_id, hour, covered_us FROM gpuledger.cluster_hour WHERE superseded_by IS NULL AND hour >= $1 AND hour < $2", from, to)
	if err != nil {
		return nil, err
	}
	var covered int64
	_, err = pgx.ForEachRow(rows, []any{&clusterID, &hour, &covered}, func() error {
		if ix.covered[clusterID] == nil {
			ix.covered[clusterID] = map[int64]int64{}
		}
		ix.covered[clusterID][hour.Unix()] = covered
		return nil
	})
	return ix, err
}

// occupancies are the devices of node-hours, by node-hour id, and their pods.
type occupancies struct {
	devices map[int64][]gpu.Device
	uses    map[int64][]gpu.PodUse  // CPU and memory, where they are looked at
	pods    map[string]storedPod    // by the name that rows refer to them by
	owned   map[string]allocate.Pod // the same, as the split needs them
}

type storedPod struct {
	id                                   int64
	uid, namespace, name, kind, workload string
	labels, annotations, nsLabels        map[string]string
}

// loadOccupancy reads the facts of node-hours whole; uses says whether those of CPU
// and memory are needed too.
func loadOccupancy(ctx context.Context, tx pgx.Tx, nodeHours []int64, span period.Span, uses bool) (*occupancies, error) {
	out := noOccupancies()
	rows, err := tx.Query(ctx, `SELECT o.node_hour_id, d.uuid, m.name, p.id, p.geometry, p.gpu_instance, p.profile, p.memory_slices, p.device_slices, p.compute_slices,
			o.mode, o.slots, o.usable_bytes, o.present_us, coalesce(o.pod_id, 0), coalesce(o.category, ''), o.method, o.replicas,
			o.used_us, o.request_none_us, o.request_replica_us, o.max_none_us, o.max_replica_us, o.used_byte_seconds, o.held_byte_seconds, o.measured_us, o.gap_us,
			coalesce(h.total_bytes, 0), coalesce(h.reserved_bytes, 0)
		FROM gpuledger.occupancy o
		JOIN gpuledger.gpu_partition p ON p.id = o.partition_id
		JOIN gpuledger.device d ON d.id = p.device_id
		JOIN gpuledger.gpu_model m ON m.id = d.model_id
		LEFT JOIN gpuledger.device_hour h ON h.node_hour_id = o.node_hour_id AND h.device_id = d.id
		WHERE o.node_hour_id = ANY ($1) AND o.hour >= $2 AND o.hour < $3
		ORDER BY o.node_hour_id, d.uuid, m.name, p.geometry, p.gpu_instance, p.profile, p.id`, nodeHours, span.Start.Truncate(time.Hour), span.End)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	lastPart := int32(0)
	lastHour := int64(0)
	var podIDs []int64
	podSeen := map[int64]bool{}
	for rows.Next() {
		var nodeHour, pod, usable, total, reserved int64
		var part int32
		var uuid, model, category, mode string
		var p gpu.Partition
		var r gpu.Row
		if err := rows.Scan(&nodeHour, &uuid, &model, &part, &p.Geometry, &p.GPUInstance, &p.Profile, &p.MemorySlices, &p.DeviceSlices, &p.ComputeSlices,
			&mode, &p.Replicas, &usable, &p.PresentMicros, &pod, &category, &r.Method, &r.Replicas,
			&r.Shares.Used, &r.Shares.RequestNone, &r.Shares.RequestReplica, &r.Shares.MaxNone, &r.Shares.MaxReplica, &r.UsedByteSeconds, &r.HeldByteSeconds, &r.MeasuredMicros, &r.GapMicros, &total, &reserved); err != nil {
			return nil, err
		}
		p.Mode, p.UsableBytes, r.Category = gpu.Mode(mode), uint64(usable), gpu.Category(category)
		if pod != 0 {
			r.PodUID = podToken(pod)
			if !podSeen[pod] {
				podSeen[pod] = true
				podIDs = append(podIDs, pod)
			}
		}
		ds := out.devices[nodeHour]
		if n := len(ds); n == 0 || ds[n-1].UUID != uuid || ds[n-1].Model != model {
			ds = append(ds, gpu.Device{UUID: uuid, Model: model, TotalBytes: uint64(total), ReservedBytes: uint64(reserved)})
			lastPart = 0
		}
		d := &ds[len(ds)-1]
		if part != lastPart || nodeHour != lastHour {
			d.Partitions = append(d.Partitions, p)
			lastPart, lastHour = part, nodeHour
		}
		q := &d.Partitions[len(d.Partitions)-1]
		q.Rows = append(q.Rows, r)
		out.devices[nodeHour] = ds
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if uses {
		ids, err := out.loadUses(ctx, tx, nodeHours)
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			if !podSeen[id] {
				podSeen[id] = true
				podIDs = append(podIDs, id)
			}
		}
	}
	return out, out.loadPods(ctx, tx, podIDs)
}

func (o *occupancies) loadPods(ctx context.Context, tx pgx.Tx, ids []int64) error {
	rows, err := tx.Query(ctx, "SELECT id, uid, namespace, name, workload_kind, workload_name, labels, annotations, namespace_labels FROM gpuledger.pod WHERE id = ANY ($1)", ids)
	if err != nil {
		return err
	}
	all, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (p storedPod, err error) {
		return p, r.Scan(&p.id, &p.uid, &p.namespace, &p.name, &p.kind, &p.workload, &p.labels, &p.annotations, &p.nsLabels)
	})
	// From here on rows refer to pods by UID and attributes, never by database id:
	// ids differ between warehouses and would decide ties.
	names := map[string]string{}
	for _, p := range all {
		name := podName(p)
		names[podToken(p.id)] = name
		o.pods[name] = p
		o.owned[name] = allocate.Pod{UID: p.uid, Namespace: p.namespace, Workload: p.workload, Labels: p.labels, NSLabels: p.nsLabels, Notes: p.annotations}
	}
	for _, us := range o.uses {
		for i := range us {
			us[i].PodUID = names[us[i].PodUID]
		}
	}
	for _, ds := range o.devices {
		for i := range ds {
			for j := range ds[i].Partitions {
				rows := ds[i].Partitions[j].Rows
				for k := range rows {
					if rows[k].PodUID != "" {
						rows[k].PodUID = names[rows[k].PodUID]
					}
				}
				sort.SliceStable(rows, func(a, b int) bool { return lessRow(&rows[a], &rows[b]) })
			}
		}
	}
	return err
}

func lessRow(a, b *gpu.Row) bool {
	if a.PodUID != b.PodUID {
		return a.PodUID < b.PodUID
	}
	if a.Category != b.Category {
		return a.Category < b.Category
	}
	return a.Method < b.Method
}

func podToken(id int64) string { return fmt.Sprintf("#%d", id) }

// podName is a pod's UID and its version: a pod that was relabelled within a window
// is two targets, each with its own owner.
func podName(p storedPod) string {
	at := podAttributes{p.namespace, p.name, p.kind, p.workload, p.labels, p.annotations, p.nsLabels}
	h := at.hash()
	return fmt.Sprintf("%s\x00%x", p.uid, h[:8])
}

func noOccupancies() *occupancies {
	return &occupancies{devices: map[int64][]gpu.Device{}, uses: map[int64][]gpu.PodUse{}, pods: map[string]storedPod{}, owned: map[string]allocate.Pod{}}
}

// deviceHours is a line's quantity in hours times its node's devices, exactly.
func deviceHours(quantity string, devices int) string {
	a, err := money.Parse(quantity)
	if err != nil {
		return "0"
	}
	sum := money.Amount{}
	for range devices {
		sum = sum.Add(a)
	}
	return sum.String()
}
