package warehouse

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"gpuledger/billing/period"
	"gpuledger/gpu"
)

// SampleLoad describes one read of samples, for the record.
type SampleLoad struct {
	Cluster       string // the cluster's stable key
	ClusterName   string
	Span          period.Span
	Driver        string
	ServerVersion string
	Settings      [32]byte // hash of what the samples were read with
	Series        int64
	Samples       int64
	Started       time.Time
	AllowLess     bool // accept hours with less measured time than is stored
}

// SampleResult says what saving hours did.
type SampleResult struct {
	NodeHours int64
	Changed   int64
}

// LessMeasuredError refuses hours whose re-read has less measured time than is
// stored: the source has begun to forget.
type LessMeasuredError struct {
	Node                string
	Hour                time.Time
	StoredUS, OfferedUS int64
	Hours               int
}

func (e *LessMeasuredError) Error() string {
	return fmt.Sprintf("%d node-hours would lose measured time, the first being %s at %s (%.1f device-seconds stored, %.1f read now); nothing was changed; use --allow-less to accept it",
		e.Hours, e.Node, e.Hour.Format(time.RFC3339), float64(e.StoredUS)/1e6, float64(e.OfferedUS)/1e6)
}

// SaveHours stores folded hours of one cluster in one transaction. An hour of a
// node that says what is stored already writes nothing.
func (db *DB) SaveHours(ctx context.Context, load SampleLoad, hours []gpu.ClusterHour) (res SampleResult, err error) {
	err = pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		s := &sampleSave{tx: tx, load: load, hours: hours}
		return s.save(ctx, &res)
	})
	return res, err
}

type sampleSave struct {
	tx    pgx.Tx
	load  SampleLoad
	hours []gpu.ClusterHour

	clusterID  int32
	nodes      map[nodeKey]int32
	models     map[string]int32
	devices    map[deviceKey]int32
	partitions map[partitionKey]int32
	pods       map[podKey]int64
}

func (s *sampleSave) save(ctx context.Context, res *SampleResult) error {
	var err error
	if s.clusterID, err = s.cluster(ctx); err != nil {
		return err
	}
	if err := s.dimensions(ctx); err != nil {
		return err
	}
	var loadID int64
	if err := s.tx.QueryRow(ctx, `INSERT INTO gpuledger.sample_load (cluster_id, span, driver, server_version, settings_sha256, series, samples, node_hours, changed, started_at, finished_at)
		VALUES ($1, tstzrange($2, $3), $4, $5, $6, $7, $8, 0, 0, $9, clock_timestamp()) RETURNING id`, s.clusterID, s.load.Span.Start, s.load.Span.End, s.load.Driver, s.load.ServerVersion,
		s.load.Settings[:], s.load.Series, s.load.Samples, s.load.Started).Scan(&loadID); err != nil {
		return err
	}
	changed, err := s.changed(ctx)
	if err != nil {
		return err
	}
	clusterChanged, err := s.saveClusterHours(ctx, loadID)
	if err != nil {
		return err
	}
	for _, h := range s.hours {
		res.NodeHours += int64(len(h.Nodes))
	}
	res.Changed = int64(len(changed)) + clusterChanged
	if res.Changed == 0 {
		_, err := s.tx.Exec(ctx, "DELETE FROM gpuledger.sample_load WHERE id = $1", loadID) // a rerun writes nothing new
		return err
	}
	if _, err := s.tx.Exec(ctx, "UPDATE gpuledger.sample_load SET node_hours = $2, changed = $3 WHERE id = $1", loadID, res.NodeHours, res.Changed); err != nil {
		return err
	}
	if len(changed) == 0 {
		return nil
	}
	return s.write(ctx, loadID, changed)
}

// cluster finds the cluster by its key and keeps its name: a new name is valid from
// the first hour it was read for.
func (s *sampleSave) cluster(ctx context.Context) (int32, error) {
	var id int32
	if err := s.tx.QueryRow(ctx, `WITH new AS (INSERT INTO gpuledger.cluster (key) VALUES ($1) ON CONFLICT (key) DO NOTHING RETURNING id)
		SELECT id FROM new UNION ALL SELECT id FROM gpuledger.cluster WHERE key = $1 LIMIT 1`, s.load.Cluster).Scan(&id); err != nil {
		return 0, err
	}
	var last string
	err := s.tx.QueryRow(ctx, "SELECT name FROM gpuledger.cluster_name WHERE cluster_id = $1 AND upper_inf(valid)", id).Scan(&last)
	switch {
	case err == pgx.ErrNoRows:
		_, err = s.tx.Exec(ctx, "INSERT INTO gpuledger.cluster_name (cluster_id, name, valid) VALUES ($1, $2, tstzrange(NULL, NULL))", id, s.load.ClusterName)
	case err == nil && last != s.load.ClusterName:
		if _, err = s.tx.Exec(ctx, "UPDATE gpuledger.cluster_name SET valid = tstzrange(lower(valid), $2) WHERE cluster_id = $1 AND upper_inf(valid)", id, s.load.Span.Start); err == nil {
			_, err = s.tx.Exec(ctx, "INSERT INTO gpuledger.cluster_name (cluster_id, name, valid) VALUES ($1, $2, tstzrange($3, NULL))", id, s.load.ClusterName, s.load.Span.Start)
		}
	}
	return id, err
}

// nodeHourHash identifies what an hour says, by names and never by database ids.
func nodeHourHash(nh gpu.NodeHour, pods map[string][32]byte) [32]byte {
	nh.Devices = append([]gpu.Device(nil), nh.Devices...)
	for i := range nh.Devices {
		d := &nh.Devices[i]
		d.GPUUtil, d.EngineActive = math.Round(d.GPUUtil*1e4)/1e4, math.Round(d.EngineActive*1e4)/1e4
	}
	attributes := map[string]string{}
	for _, uid := range podsOf(nh) {
		h := pods[uid]
		attributes[uid] = fmt.Sprintf("%x", h)
	}
	b, err := json.Marshal(struct {
		NodeHour gpu.NodeHour
		Pods     map[string]string
	}{nh, attributes})
	if err != nil {
		panic(err) // numbers, strings and maps of them always marshal; no NaN is kept
	}
	return sha256.Sum256(b)
}

// podsOf returns the UIDs an hour refers to, each once.
func podsOf(nh gpu.NodeHour) []string {
	seen := map[string]bool{}
	var out []string
	add := func(uid string) {
		if uid != "" && !seen[uid] {
			seen[uid] = true
			out = append(out, uid)
		}
	}
	for _, p := range nh.Pods {
		add(p.PodUID)
	}
	for _, d := range nh.Devices {
		for _, p := range d.Partitions {
			for _, r := range p.Rows {
				add(r.PodUID)
			}
		}
	}
	return out
}

// measuredMicros is how much of the devices' time samples cover.
func measuredMicros(nh gpu.NodeHour) int64 {
	var sum int64
	for _, d := range nh.Devices {
		for _, p := range d.Partitions {
			var most int64
			for _, r := range p.Rows {
				most = max(most, r.MeasuredMicros)
			}
			sum += min(most, p.PresentMicros)
		}
	}
	return sum
}

type changedHour struct {
	hour    *gpu.ClusterHour
	nh      *gpu.NodeHour
	nodeID  int32
	sha     [32]byte
	old     int64 // the version it replaces, 0 for none
	id      int64
	pods    map[string]int64
	measure int64
}

// changed compares every node-hour with the stored one.
func (s *sampleSave) changed(ctx context.Context) ([]*changedHour, error) {
	var all []*changedHour
	var nodeIDs []int32
	var times []time.Time
	for i := range s.hours {
		h := &s.hours[i]
		hashes := podHashes(h.Inventory)
		for j := range h.Nodes {
			nh := &h.Nodes[j]
			c := &changedHour{hour: h, nh: nh, nodeID: s.nodes[s.nodeKey(h, nh.Node)], sha: nodeHourHash(*nh, hashes), measure: measuredMicros(*nh), pods: map[string]int64{}}
			for _, uid := range podsOf(*nh) {
				c.pods[uid] = s.pods[podKey{uid, hashes[uid]}]
			}
			all = append(all, c)
			nodeIDs, times = append(nodeIDs, c.nodeID), append(times, h.Hour)
		}
	}
	type version struct {
		id, measured int64
		sha          string
	}
	type key struct {
		node int32
		hour int64
	}
	stored := map[key]version{}
	rows, err := s.tx.Query(ctx, `SELECT n.id, n.node_id, n.hour, n.sha256, n.measured_us FROM gpuledger.node_hour n
		JOIN unnest($1::int[], $2::timestamptz[]) AS w (node_id, hour) ON w.node_id = n.node_id AND w.hour = n.hour WHERE n.superseded_by IS NULL`, nodeIDs, times)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var v version
		var node int32
		var hour time.Time
		var sha []byte
		if err := rows.Scan(&v.id, &node, &hour, &sha, &v.measured); err != nil {
			return nil, err
		}
		v.sha = string(sha)
		stored[key{node, hour.Unix()}] = v
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	var out []*changedHour
	var less *LessMeasuredError
	for _, c := range all {
		v, ok := stored[key{c.nodeID, c.hour.Hour.Unix()}]
		if ok && v.sha == string(c.sha[:]) {
			continue
		}
		if ok && c.measure < v.measured && !s.load.AllowLess {
			if less == nil {
				less = &LessMeasuredError{Node: c.nh.Node, Hour: c.hour.Hour, StoredUS: v.measured, OfferedUS: c.measure}
			}
			less.Hours++
		}
		c.old = v.id
		out = append(out, c)
	}
	if less != nil {
		return nil, less
	}
	return out, nil
}

func (s *sampleSave) saveClusterHours(ctx context.Context, loadID int64) (changed int64, err error) {
	for _, h := range s.hours {
		var id, covered int64
		err := s.tx.QueryRow(ctx, "SELECT id, covered_us FROM gpuledger.cluster_hour WHERE cluster_id = $1 AND hour = $2 AND superseded_by IS NULL", s.clusterID, h.Hour).Scan(&id, &covered)
		if err != nil && err != pgx.ErrNoRows {
			return changed, err
		}
		if err == nil && (covered == h.CoveredMicros || covered > h.CoveredMicros && !s.load.AllowLess) {
			continue
		}
		changed++
		if _, err := s.tx.Exec(ctx, "UPDATE gpuledger.cluster_hour SET superseded_by = $2 WHERE id = $1", id, loadID); err != nil {
			return changed, err
		}
		if _, err := s.tx.Exec(ctx, "INSERT INTO gpuledger.cluster_hour (cluster_id, hour, covered_us, load_id) VALUES ($1, $2, $3, $4)", s.clusterID, h.Hour, h.CoveredMicros, loadID); err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// write stores the changed hours and supersedes their older versions.
func (s *sampleSave) write(ctx context.Context, loadID int64, changed []*changedHour) error {
	months := map[period.Month]bool{}
	for _, c := range changed {
		months[period.MonthOf(c.hour.Hour)] = true
	}
	for m := range months {
		if _, err := s.tx.Exec(ctx, "SELECT gpuledger.ensure_month('occupancy', $1::date)", m.Start()); err != nil {
			return err
		}
	}
	rows, err := s.tx.Query(ctx, "SELECT nextval(pg_get_serial_sequence('gpuledger.node_hour', 'id')) FROM generate_series(1, $1::int)", len(changed))
	if err != nil {
		return err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return err
	}
	var old, by []int64
	for i, c := range changed {
		c.id = ids[i]
		if c.old != 0 {
			old, by = append(old, c.old), append(by, c.id)
		}
	}
	if _, err := s.tx.Exec(ctx, `UPDATE gpuledger.node_hour n SET superseded_by = w.by_id FROM unnest($1::bigint[], $2::bigint[]) AS w (id, by_id) WHERE n.id = w.id`, old, by); err != nil {
		return err
	}
	return s.copyHours(ctx, loadID, changed)
}

func (s *sampleSave) copyHours(ctx context.Context, loadID int64, changed []*changedHour) error {
	hours, devices, pods, occ := newCopyRows(), newCopyRows(), newCopyRows(), newCopyRows()
	for _, c := range changed {
		hours.row(8)
		hours.int8(c.id)
		hours.int4(c.nodeID)
		hours.timestamp(c.hour.Hour)
		hours.int8(c.nh.ReadyMicros)
		hours.int8(c.nh.UncoveredMicros)
		hours.int8(c.measure)
		hours.bytea(c.sha[:])
		hours.int8(loadID)
		for _, p := range c.nh.Pods {
			pods.row(6)
			pods.int8(c.id)
			pods.int8(c.pods[p.PodUID])
			for _, v := range []int64{p.LifeMicros, p.CPUMilli, p.Memory, p.GPUs} {
				pods.int8(v)
			}
		}
		for _, d := range c.nh.Devices {
			if err := s.deviceRow(devices, c, d); err != nil {
				return err
			}
			for _, p := range d.Partitions {
				id := s.partitions[s.partitionKey(c.nodeID, d, p)]
				for _, r := range p.Rows {
					occupancyRow(occ, c, id, p, r)
				}
			}
		}
	}
	if err := hours.copyTo(ctx, s.tx, "gpuledger.node_hour", "id, node_id, hour, ready_us, uncovered_us, measured_us, sha256, load_id"); err != nil {
		return err
	}
	if err := devices.copyTo(ctx, s.tx, "gpuledger.device_hour", "node_hour_id, device_id, total_bytes, reserved_bytes, gpu_util, engine_active, dropped"); err != nil {
		return err
	}
	if err := pods.copyTo(ctx, s.tx, "gpuledger.pod_hour", "node_hour_id, pod_id, life_us, cpu_milli, memory_bytes, gpus"); err != nil {
		return err
	}
	return occ.copyTo(ctx, s.tx, "gpuledger.occupancy", `hour, node_hour_id, partition_id, mode, slots, usable_bytes, present_us, pod_id, category, method, replicas,
		used_us, request_none_us, request_replica_us, max_none_us, max_replica_us, spread_us, used_byte_seconds, held_byte_seconds,
		measured_us, gap_us, samples, first_at, last_at, peak_bytes, histogram, flags`)
}

func (s *sampleSave) deviceRow(c *copyRows, h *changedHour, d gpu.Device) error {
	c.row(7)
	c.int8(h.id)
	c.int4(s.devices[s.deviceKey(h.nodeID, d)])
	c.int8(int64(d.TotalBytes))
	c.int8(int64(d.ReservedBytes))
	for _, v := range []float64{d.GPUUtil, d.EngineActive} {
		if v < 0 {
			c.null()
		} else {
			c.float8(v)
		}
	}
	if len(d.Dropped) == 0 {
		c.null()
		return nil
	}
	b, err := json.Marshal(d.Dropped)
	c.jsonb(b)
	return err
}

func occupancyRow(c *copyRows, h *changedHour, partition int32, p gpu.Partition, r gpu.Row) {
	c.row(27)
	c.timestamp(h.hour.Hour)
	c.int8(h.id)
	c.int4(partition)
	c.text(string(p.Mode))
	c.int4(int32(p.Replicas))
	c.int8(int64(p.UsableBytes))
	c.int8(p.PresentMicros)
	c.optInt8(h.pods[r.PodUID])
	c.optText(string(r.Category))
	c.int2(int16(r.Method))
	c.int4(int32(r.Replicas))
	for _, v := range []int64{
		r.Shares.Used, r.Shares.RequestNone, r.Shares.RequestReplica, r.Shares.MaxNone, r.Shares.MaxReplica,
		r.SpreadMicros, r.UsedByteSeconds, r.HeldByteSeconds, r.MeasuredMicros, r.GapMicros, r.Samples,
	} {
		c.int8(v)
	}
	c.timestamp(r.First)
	c.timestamp(r.Last)
	c.int8(int64(r.PeakBytes))
	c.int8s(r.Histogram[:])
	c.int4(int32(r.Flags))
}
