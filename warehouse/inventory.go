package warehouse

import (
	"context"
	"time"

	"gpuledger/chargeback"
)

// InventoryAt is what Inventory and InventoryPods show.
type InventoryAt struct {
	Cluster string    // its name or key; "" for all
	At      time.Time // zero: the newest hour of each cluster
}

// instants gives each cluster the instant that is asked for, and its name then. The
// newest known one is just before the end of the last hour whose inventory was seen.
const instants = `WITH asked AS (
	SELECT c.id, c.key, coalesce($1::timestamptz, (SELECT max(h.hour + h.covered_us * interval '1 microsecond') - interval '1 microsecond'
		FROM gpuledger.cluster_hour h WHERE h.cluster_id = c.id AND h.superseded_by IS NULL AND h.covered_us > 0)) AS at FROM gpuledger.cluster c
), cluster AS (
	SELECT a.id, a.at, coalesce(n.name, a.key) AS name FROM asked a LEFT JOIN gpuledger.cluster_name n ON n.cluster_id = a.id AND n.valid @> a.at
	WHERE $2 = '' OR a.key = $2 OR EXISTS (SELECT FROM gpuledger.cluster_name x WHERE x.cluster_id = a.id AND x.name = $2)
) `

func (o InventoryAt) args() []any {
	var at *time.Time
	if !o.At.IsZero() {
		at = &o.At
	}
	return []any{at, o.Cluster}
}

// Inventory returns one row for each GPU, or part of one, of the nodes that were there:
// where it is, how it is shared and how many pods its node had.
func (db *DB) Inventory(ctx context.Context, o InventoryAt) (*chargeback.Table, error) {
	return db.Query(ctx, instants+`
SELECT c.name AS cluster, n.name AS node, n.provider_id, coalesce(s.pool, '') AS node_pool, coalesce(s.instance_type, '') AS instance_type, coalesce(s.region, '') AS region,
	d.uuid AS device, m.name AS gpu_model, nullif(p.profile, '') AS profile, nullif(p.gpu_instance, '') AS gpu_instance, pm.mode AS sharing_mode, pm.slots AS replicas,
	(SELECT count(DISTINCT q.uid) FROM gpuledger.pod_seen t JOIN gpuledger.pod q ON q.id = t.pod_id WHERE t.node_id = n.id AND t.valid @> c.at) AS pods,
	to_char(c.at, 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS at
FROM cluster c
JOIN gpuledger.node n ON n.cluster_id = c.id
LEFT JOIN gpuledger.node_state s ON s.node_id = n.id AND s.valid @> c.at
LEFT JOIN gpuledger.device d ON d.node_id = n.id AND EXISTS (SELECT FROM gpuledger.device_seen t WHERE t.device_id = d.id AND t.valid @> c.at)
LEFT JOIN gpuledger.gpu_model m ON m.id = d.model_id
LEFT JOIN (gpuledger.gpu_partition p JOIN gpuledger.partition_mode pm ON pm.partition_id = p.id) ON p.device_id = d.id AND pm.valid @> c.at
WHERE s.node_id IS NOT NULL OR d.id IS NOT NULL
ORDER BY c.name, n.name, n.instance_id, d.uuid, m.name, p.geometry, p.gpu_instance, p.profile`, o.args()...)
}

// InventoryPods returns one row for each pod that lived on a GPU node. started and ended
// are what Kubernetes says, seen_from and seen_until what the loaded hours show.
func (db *DB) InventoryPods(ctx context.Context, o InventoryAt) (*chargeback.Table, error) {
	return db.Query(ctx, instants+`
SELECT c.name AS cluster, p.namespace, p.name AS pod, p.uid, n.name AS node, p.workload_kind, p.workload_name,
	to_char(l.started, 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS started, to_char(l.ended, 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS ended,
	to_char(l.seen_from, 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS seen_from, to_char(l.seen_until, 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS seen_until, p.labels
FROM cluster c
JOIN gpuledger.pod p ON p.cluster_id = c.id
JOIN gpuledger.pod_seen t ON t.pod_id = p.id AND t.valid @> c.at
JOIN gpuledger.node n ON n.id = t.node_id
CROSS JOIN LATERAL (SELECT min(q.started_at) AS started, max(q.completed_at) AS ended, min(lower(x.valid)) AS seen_from, max(upper(x.valid)) AS seen_until
	FROM gpuledger.pod q JOIN gpuledger.pod_seen x ON x.pod_id = q.id WHERE q.cluster_id = p.cluster_id AND q.uid = p.uid) l
ORDER BY c.name, p.namespace, p.name, p.uid`, o.args()...)
}
