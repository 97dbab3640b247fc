package warehouse

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"gpuledger/billing/period"
	"gpuledger/chargeback"
)

// SourceProbe is what one source of a cluster said it holds.
type SourceProbe struct {
	Ordinal        int // 0 is the cluster's metrics, then its fallbacks
	Driver, Source string
	Oldest         time.Time // zero where it does not forget, or does not say
	Newest         time.Time
	At             time.Time
}

// RecordProbes keeps what a cluster's sources hold, so that status needs no network.
func (db *DB) RecordProbes(ctx context.Context, cluster string, probes []SourceProbe) error {
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		id, err := clusterID(ctx, tx, cluster)
		if err != nil {
			return err
		}
		for _, p := range probes {
			if _, err := tx.Exec(ctx, `INSERT INTO gpuledger.source_probe (cluster_id, ordinal, driver, source, oldest, newest, probed_at) VALUES ($1, $2, $3, $4, $5, $6, $7)
				ON CONFLICT (cluster_id, ordinal) DO UPDATE SET driver = excluded.driver, source = excluded.source, oldest = excluded.oldest, newest = excluded.newest, probed_at = excluded.probed_at`,
				id, p.Ordinal, p.Driver, p.Source, instant(p.Oldest), instant(p.Newest), p.At); err != nil {
				return err
			}
		}
		return nil
	})
}

// FirstHour returns the first hour in which anything was seen of a cluster, zero
// where nothing was.
func (db *DB) FirstHour(ctx context.Context, cluster string) (time.Time, error) {
	var at *time.Time
	err := db.pool.QueryRow(ctx, `SELECT min(h.hour) FROM gpuledger.cluster_hour h JOIN gpuledger.cluster c ON c.id = h.cluster_id
		WHERE c.key = $1 AND h.superseded_by IS NULL AND h.covered_us > 0`, cluster).Scan(&at)
	if err != nil || at == nil {
		return time.Time{}, err
	}
	return at.UTC(), nil
}

// edgeMicros is how much of an hour must have been seen for anything to have been there:
// the last sample before an hour and the first after it reach into it.
const edgeMicros = 300_000_000

// ReadHours returns the hours of a span that were read, and of each whether anything was
// there.
func (db *DB) ReadHours(ctx context.Context, cluster string, span period.Span) (map[int64]bool, error) {
	rows, err := db.pool.Query(ctx, `SELECT h.hour, h.covered_us >= $4 OR EXISTS (SELECT FROM gpuledger.node_hour nh JOIN gpuledger.node n ON n.id = nh.node_id
			WHERE n.cluster_id = h.cluster_id AND nh.hour = h.hour AND nh.superseded_by IS NULL AND nh.measured_us * 10 > nh.present_us)
		FROM gpuledger.cluster_hour h JOIN gpuledger.cluster c ON c.id = h.cluster_id WHERE c.key = $1 AND h.superseded_by IS NULL AND h.hour >= $2 AND h.hour < $3`, cluster, span.Start, span.End, int64(edgeMicros))
	if err != nil {
		return nil, err
	}
	out := map[int64]bool{}
	var hour time.Time
	var there bool
	_, err = pgx.ForEachRow(rows, []any{&hour, &there}, func() error { out[hour.Unix()] = there; return nil })
	return out, err
}

// MarkLost records hours that no source holds any more, and returns those of them that
// were not known to be lost.
func (db *DB) MarkLost(ctx context.Context, cluster string, hours []time.Time, now time.Time) (fresh []time.Time, err error) {
	if len(hours) == 0 {
		return nil, nil
	}
	err = pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		id, err := clusterID(ctx, tx, cluster)
		if err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `WITH new AS (INSERT INTO gpuledger.lost_hour (cluster_id, hour, found_at) SELECT $1, h, $3 FROM unnest($2::timestamptz[]) AS h ON CONFLICT DO NOTHING RETURNING hour)
			SELECT hour FROM new ORDER BY 1`, id, hours, now)
		if err != nil {
			return err
		}
		fresh, err = pgx.CollectRows(rows, pgx.RowTo[time.Time])
		return err
	})
	for i := range fresh {
		fresh[i] = fresh[i].UTC()
	}
	return fresh, err
}

// foundAgain takes hours that were thought lost and have come from elsewhere off the
// list.
func (s *sampleSave) foundAgain(ctx context.Context) error {
	var found []time.Time
	for _, h := range s.hours {
		if h.CoveredMicros > 0 || len(h.Nodes) > 0 {
			found = append(found, h.Hour)
		}
	}
	_, err := s.tx.Exec(ctx, "DELETE FROM gpuledger.lost_hour WHERE cluster_id = $1 AND hour = ANY ($2)", s.clusterID, found)
	return err
}

// JobSucceeded records that a job ended well.
func (db *DB) JobSucceeded(ctx context.Context, job string, at time.Time) error {
	_, err := db.pool.Exec(ctx, "INSERT INTO gpuledger.job_success (job, at) VALUES ($1, $2) ON CONFLICT (job) DO UPDATE SET at = excluded.at", job, at)
	return err
}

// LastSuccess returns when a job last ended well, zero where it never did.
func (db *DB) LastSuccess(ctx context.Context, job string) (time.Time, error) {
	var at *time.Time
	if err := db.pool.QueryRow(ctx, "SELECT max(at) FROM gpuledger.job_success WHERE job = $1", job).Scan(&at); err != nil || at == nil {
		return time.Time{}, err
	}
	return at.UTC(), nil
}

// ClusterStatus returns one row a cluster: its hours from the first that anything was
// seen in up to the last that could have been read by now. An hour is covered, lost, or
// uncovered: not read, or read with nothing there (files end where they end). seconds_left is until the oldest
// uncovered hour leaves what its sources hold, as if each forgot as fast as time goes
// by; 0 where it has left, NULL without such an hour or where a source keeps all.
func (db *DB) ClusterStatus(ctx context.Context, now, readable time.Time) (*chargeback.Table, error) {
	return db.Query(ctx, `
WITH first AS (
	SELECT cluster_id, min(hour) AS hour FROM gpuledger.cluster_hour WHERE superseded_by IS NULL AND covered_us > 0 GROUP BY 1
), probe AS (
	SELECT cluster_id, max(probed_at - oldest) AS keeps, bool_or(oldest IS NULL) AS keeps_all, bool_and(driver = 'openmetrics') AS files, max(newest) AS newest FROM gpuledger.source_probe GROUP BY 1
), span AS (
	SELECT c.id, least(f.hour, (SELECT min(hour) FROM gpuledger.lost_hour l WHERE l.cluster_id = c.id)) AS start FROM gpuledger.cluster c LEFT JOIN first f ON f.cluster_id = c.id
), hours AS (
	SELECT s.id, h.hour, ch.hour IS NOT NULL AS read, coalesce(ch.covered_us, 0) >= $3 AS covered, l.hour IS NOT NULL AND coalesce(ch.covered_us, 0) < $3 AS lost,
		CASE WHEN NOT p.keeps_all THEN extract(epoch FROM h.hour + p.keeps - $1::timestamptz) END AS seconds_left
	FROM span s LEFT JOIN probe p ON p.cluster_id = s.id CROSS JOIN LATERAL generate_series(s.start, least($2::timestamptz - interval '1 hour', CASE WHEN p.files THEN p.newest END), interval '1 hour') AS h (hour)
	LEFT JOIN gpuledger.cluster_hour ch ON ch.cluster_id = s.id AND ch.hour = h.hour AND ch.superseded_by IS NULL
	LEFT JOIN gpuledger.lost_hour l ON l.cluster_id = s.id AND l.hour = h.hour
), counted AS (
	SELECT id, count(*) FILTER (WHERE covered) AS covered, count(*) FILTER (WHERE NOT covered AND NOT lost) AS uncovered, count(*) FILTER (WHERE lost) AS lost,
		min(hour) FILTER (WHERE NOT covered AND NOT lost AND (NOT read OR seconds_left > 0)) AS oldest,
		floor(min(greatest(seconds_left, 0 * seconds_left)) FILTER (WHERE NOT covered AND NOT lost AND (NOT read OR seconds_left > 0)))::bigint AS seconds_left,
		range_agg(tstzrange(hour, hour + interval '1 hour')) FILTER (WHERE lost) AS lost_ranges
	FROM hours GROUP BY id
)
SELECT coalesce((SELECT n.name FROM gpuledger.cluster_name n WHERE n.cluster_id = c.id AND n.valid @> $1::timestamptz), c.key) AS cluster,
	coalesce(k.covered, 0) AS hours_covered, coalesce(k.uncovered, 0) AS hours_uncovered, coalesce(k.lost, 0) AS hours_lost,
	to_char(k.oldest, 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS oldest_uncovered, CASE WHEN k.oldest IS NOT NULL THEN k.seconds_left END AS seconds_left,
	CASE WHEN k.oldest IS NOT NULL THEN round(k.seconds_left / 3600.0, 1) END AS hours_left,
	(SELECT string_agg(to_char(lower(r), 'YYYY-MM-DD HH24:MI') || ' to ' || to_char(upper(r), 'YYYY-MM-DD HH24:MI'), ', ' ORDER BY r) FROM unnest(k.lost_ranges) AS r) AS lost,
	(SELECT string_agg(driver || ' from ' || coalesce(to_char(oldest, 'YYYY-MM-DD HH24:MI'), 'the start') || ', asked ' || to_char(probed_at, 'YYYY-MM-DD HH24:MI'), '; ' ORDER BY ordinal) FROM gpuledger.source_probe p WHERE p.cluster_id = c.id) AS sources
FROM gpuledger.cluster c LEFT JOIN counted k ON k.id = c.id ORDER BY 1, c.key`, now, readable, int64(edgeMicros))
}
