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
	Source        string   // which of the cluster's sources it was read from
	Warnings      []string // what the source said of data that may be partial
	AllowLess     bool     // accept hours with less than is stored: measured time, nodes, inventory
	AllowEmpty    bool     // and those of which nothing was read
}

// SampleResult says what saving hours did.
type SampleResult struct {
	NodeHours int64
	Changed   int64
	Less      *LessMeasuredError // hours that stay as they are, for they would lose something; nil for none
}

// SaveHours stores folded hours of one cluster, each with all of its nodes, in one
// transaction. What an hour said before is replaced by what it says now, a node that it
// no longer shows included; where both say the same it writes nothing. An hour that would
// lose something by it stays as it is, unless the load allows it.
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
	stored     []storedVersion // what is current of the hours
	less       *LessMeasuredError
	gone       []goneHour // what is stored of the hours and not in them now
}

func (s *sampleSave) save(ctx context.Context, res *SampleResult) error {
	var err error
	// Saves of all clusters queue here: ranges of the inventory are read, changed and
	// written, and a machine must not come into two clusters at once.
	if _, err := s.tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtext('gpuledger inventory'))"); err != nil {
		return err
	}
	if s.clusterID, err = clusterID(ctx, s.tx, s.load.Cluster); err != nil {
		return err
	}
	if err := s.leave(ctx); err != nil {
		return err
	}
	if res.Less = s.less; len(s.hours) == 0 {
		return nil
	}
	if err := s.nameHours(ctx); err != nil {
		return err
	}
	if err := s.dimensions(ctx); err != nil {
		return err
	}
	var loadID int64
	if err := s.tx.QueryRow(ctx, `INSERT INTO gpuledger.sample_load (cluster_id, span, driver, server_version, settings_sha256, series, samples, node_hours, changed, started_at, finished_at, source, warnings)
		VALUES ($1, tstzrange($2, $3), $4, $5, $6, $7, $8, 0, 0, $9, clock_timestamp(), $10, $11) RETURNING id`, s.clusterID, s.load.Span.Start, s.load.Span.End, s.load.Driver, s.load.ServerVersion,
		s.load.Settings[:], s.load.Series, s.load.Samples, s.load.Started, s.load.Source, append([]string{}, s.load.Warnings...)).Scan(&loadID); err != nil {
		return err
	}
	changed := s.changed()
	clusterChanged, err := s.saveClusterHours(ctx, loadID, changed)
	if err != nil {
		return err
	}
	if err := s.withdraw(ctx); err != nil {
		return err
	}
	if err := s.saveInventory(ctx); err != nil {
		return err
	}
	if err := s.foundAgain(ctx); err != nil {
		return err
	}
	for _, h := range s.hours {
		res.NodeHours += int64(len(h.Nodes))
	}
	res.Changed = int64(len(changed)+len(s.gone)) + clusterChanged
	if res.Changed == 0 {
		_, err := s.tx.Exec(ctx, "DELETE FROM gpuledger.sample_load WHERE id = $1", loadID) // a rerun writes nothing new
		return err
	}
	if _, err := s.tx.Exec(ctx, "UPDATE gpuledger.sample_load SET node_hours = $2, changed = $3 WHERE id = $1", loadID, res.NodeHours, res.Changed); err != nil {
		return err
	}
	if len(changed) > 0 {
		if err := s.write(ctx, loadID, changed); err != nil {
			return err
		}
	}
	return s.reseen(ctx)
}

// nodeHourHash identifies what an hour says, by names and never by database ids.
func nodeHourHash(nh gpu.NodeHour, pods map[string][32]byte) [32]byte {
	nh.Devices = append([]gpu.Device(nil), nh.Devices...)
	for i := range nh.Devices {
		d := &nh.Devices[i]
		for _, v := range []*float64{&d.GPUUtil, &d.EngineActive, &d.SMActive, &d.DRAMActive} {
			*v = math.Round(*v*1e4) / 1e4
		}
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

// measuredMicros is how much of the devices' time samples cover, and presentMicros
// how much there is to cover.
func measuredMicros(nh gpu.NodeHour) (measured, present int64) {
	for _, d := range nh.Devices {
		for _, p := range d.Partitions {
			measured, present = measured+p.MeasuredMicros, present+p.PresentMicros
		}
	}
	return measured, present
}

// saveClusterHours stores how much of the inventory was seen. An hour of which something
// changed is of this load as a whole.
func (s *sampleSave) saveClusterHours(ctx context.Context, loadID int64, changedNodes []*changedHour) (changed int64, err error) {
	differs := map[int64]bool{}
	for _, c := range changedNodes {
		differs[c.hour.Hour.Unix()] = true
	}
	for _, g := range s.gone {
		differs[g.hour.Unix()] = true
	}
	for _, h := range s.hours {
		var id, covered int64
		err := s.tx.QueryRow(ctx, "SELECT id, covered_us FROM gpuledger.cluster_hour WHERE cluster_id = $1 AND hour = $2 AND superseded_by IS NULL", s.clusterID, h.Hour).Scan(&id, &covered)
		if err != nil && err != pgx.ErrNoRows {
			return changed, err
		}
		now := h.CoveredMicros
		if err == nil && !s.load.AllowLess {
			now = max(now, covered) // less by an edge at most
		}
		if err == nil && covered == now && !differs[h.Hour.Unix()] {
			continue
		}
		if err != nil || covered != now {
			changed++
		}
		if _, err := s.tx.Exec(ctx, "UPDATE gpuledger.cluster_hour SET superseded_by = $2 WHERE id = $1", id, loadID); err != nil {
			return changed, err
		}
		if _, err := s.tx.Exec(ctx, "INSERT INTO gpuledger.cluster_hour (cluster_id, hour, covered_us, load_id) VALUES ($1, $2, $3, $4)", s.clusterID, h.Hour, now, loadID); err != nil {
			return changed, err
		}
	}
	return changed, nil
}
