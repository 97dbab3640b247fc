package warehouse

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"gpuledger/billing/period"
	"gpuledger/billing/ratecard"
)

// RatedNodes are the node-hours that a rate card prices: those of months that are not
// closed.
type RatedNodes struct{ DB *DB }

// Months returns the months that have node-hours, in order.
func (r RatedNodes) Months(ctx context.Context) ([]period.Month, error) {
	rows, err := r.DB.pool.Query(ctx, `SELECT DISTINCT date_trunc('month', h.hour AT TIME ZONE 'UTC')::date AS month FROM gpuledger.cluster_hour h
		WHERE h.superseded_by IS NULL AND h.covered_us > 0 AND NOT EXISTS (SELECT FROM gpuledger.period p WHERE p.period = date_trunc('month', h.hour AT TIME ZONE 'UTC')::date AND p.state = 'closed')
		ORDER BY month`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (period.Month, error) {
		var t time.Time
		err := row.Scan(&t)
		return period.MonthOf(t), err
	})
}

// NodeHours returns a month's, by cluster, node, machine and hour. A node is of the type,
// region and labels that it had first in the hour.
func (r RatedNodes) NodeHours(ctx context.Context, m period.Month) ([]ratecard.NodeHour, error) {
	rows, err := r.DB.pool.Query(ctx, `
SELECT coalesce((SELECT x.name FROM gpuledger.cluster_name x WHERE x.cluster_id = c.id AND x.valid @> h.hour), c.key), n.name, `+machineOf+`,
	coalesce(t.instance_type, n.instance_type), h.pool, coalesce(t.region, n.region), coalesce(t.labels, '{}'), d.gpus, coalesce(d.model, ''), h.hour, h.ready_us
FROM gpuledger.node_hour h JOIN gpuledger.node n ON n.id = h.node_id JOIN gpuledger.cluster c ON c.id = n.cluster_id
LEFT JOIN LATERAL (SELECT s.instance_type, s.region, s.labels FROM gpuledger.node_state s WHERE s.node_id = n.id AND s.valid && tstzrange(h.hour, h.hour + interval '1 hour')
	ORDER BY lower(s.valid) LIMIT 1) t ON true
LEFT JOIN LATERAL (SELECT count(*) AS gpus, min(g.name) AS model FROM gpuledger.device_hour x JOIN gpuledger.device v ON v.id = x.device_id JOIN gpuledger.gpu_model g ON g.id = v.model_id
	WHERE x.node_hour_id = h.id) d ON true
WHERE h.superseded_by IS NULL AND h.hour >= $1 AND h.hour < $2
ORDER BY c.key, n.name, n.instance_id, h.hour`, m.Start(), m.Next().Start())
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (ratecard.NodeHour, error) {
		var n ratecard.NodeHour
		err := row.Scan(&n.Cluster, &n.Node, &n.InstanceID, &n.InstanceType, &n.Pool, &n.Region, &n.Labels, &n.GPUs, &n.Model, &n.Hour, &n.ReadyMicros)
		n.Hour = n.Hour.UTC()
		return n, err
	})
}
