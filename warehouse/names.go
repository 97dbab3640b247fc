package warehouse

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// clusterID finds or makes a cluster by its stable key.
func clusterID(ctx context.Context, tx pgx.Tx, key string) (id int32, err error) {
	err = tx.QueryRow(ctx, `WITH new AS (INSERT INTO gpuledger.cluster (key) VALUES ($1) ON CONFLICT (key) DO NOTHING RETURNING id)
		SELECT id FROM new UNION ALL SELECT id FROM gpuledger.cluster WHERE key = $1 LIMIT 1`, key).Scan(&id)
	return id, err
}

// nameHours keeps the name that the hours are read under. An hour keeps the name under
// which it was first read: what the configuration says now is no word on then.
func (s *sampleSave) nameHours(ctx context.Context) error {
	if len(s.hours) == 0 {
		return nil
	}
	id := int64(s.clusterID)
	start, end := s.bounds()
	old, _, err := clusterNames.read(ctx, s.tx, []int32{s.clusterID}, nil, start, end)
	if err != nil {
		return err
	}
	now := old.clone()
	name := state(map[string]any{"name": storable(s.load.ClusterName)})
	for _, h := range s.hours {
		if there := h.CoveredMicros > 0 || len(h.Nodes) > 0; there && !old.covers(id, h.Hour) {
			now.put(id, spell{h.Hour, h.Hour.Add(time.Hour), name})
		}
	}
	if gone, come := changes(old, now); len(gone)+len(come) == 0 {
		return nil
	}
	if err := clusterNames.write(ctx, s.tx, old, now); err != nil {
		return err
	}
	return s.spreadNames(ctx)
}

// spreadNames makes the names hold between and beyond the hours: each from the first
// hour that was read under it until the first that was read under another.
func (s *sampleSave) spreadNames(ctx context.Context) error {
	const spread = `WITH said AS (
		SELECT lower(valid) AS at, name, lag(name) OVER (ORDER BY lower(valid)) AS before FROM gpuledger.cluster_named WHERE cluster_id = $1
	), change AS (
		SELECT name, CASE WHEN before IS NOT NULL THEN said.at END AS at, lead(said.at) OVER (ORDER BY said.at) AS until FROM said WHERE before IS DISTINCT FROM name
	) `
	var differ bool
	if err := s.tx.QueryRow(ctx, spread+`SELECT EXISTS (
		(SELECT name, tstzrange(at, until) FROM change EXCEPT SELECT name, valid FROM gpuledger.cluster_name WHERE cluster_id = $1)
		UNION ALL (SELECT name, valid FROM gpuledger.cluster_name WHERE cluster_id = $1 EXCEPT SELECT name, tstzrange(at, until) FROM change))`, s.clusterID).Scan(&differ); err != nil || !differ {
		return err
	}
	if _, err := s.tx.Exec(ctx, "DELETE FROM gpuledger.cluster_name WHERE cluster_id = $1", s.clusterID); err != nil {
		return err
	}
	_, err := s.tx.Exec(ctx, spread+"INSERT INTO gpuledger.cluster_name (cluster_id, name, valid) SELECT $1, name, tstzrange(at, until) FROM change", s.clusterID)
	return err
}
