package warehouse

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"

	"gpuledger/billing/period"
	"gpuledger/gpu"
)

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
		hours.row(14)
		hours.int8(c.id)
		hours.int4(c.nodeID)
		hours.timestamp(c.hour.Hour)
		hours.int8(c.nh.ReadyMicros)
		hours.int8(c.nh.UncoveredMicros)
		hours.int8(c.measure)
		hours.int8(c.present)
		hours.text(c.nh.Pool)
		hours.int8(c.nh.CPUMilli)
		hours.int8(c.nh.MemoryBytes)
		hours.bytea(c.sha[:])
		hours.int8(loadID)
		hours.int8(c.nh.ReadyStartMicros)
		hours.int8(c.nh.ReadyEndMicros)
		for _, p := range c.nh.Pods {
			pods.row(9)
			pods.int8(c.id)
			pods.int8(c.pods[p.PodUID])
			for _, v := range []int64{p.LifeMicros, p.CPUMilli, p.Memory, p.GPUs, p.StartMicros} {
				pods.int8(v)
			}
			pods.optInt8(p.CPUUsedMilli)
			pods.optInt8(p.MemoryUsed)
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
	if err := hours.copyTo(ctx, s.tx, "gpuledger.node_hour", "id, node_id, hour, ready_us, uncovered_us, measured_us, present_us, pool, cpu_milli, memory_bytes, sha256, load_id, ready_start_us, ready_end_us"); err != nil {
		return err
	}
	if err := devices.copyTo(ctx, s.tx, "gpuledger.device_hour", "node_hour_id, device_id, total_bytes, reserved_bytes, gpu_util, engine_active, dropped, sm_active, dram_active"); err != nil {
		return err
	}
	if err := pods.copyTo(ctx, s.tx, "gpuledger.pod_hour", "node_hour_id, pod_id, life_us, cpu_milli, memory_bytes, gpus, start_us, cpu_used_milli, memory_used_bytes"); err != nil {
		return err
	}
	return occ.copyTo(ctx, s.tx, "gpuledger.occupancy", `hour, node_hour_id, partition_id, mode, slots, usable_bytes, present_us, pod_id, category, method, replicas,
		used_us, request_none_us, request_replica_us, max_none_us, max_replica_us, spread_us, used_byte_seconds, held_byte_seconds,
		measured_us, gap_us, samples, first_at, last_at, peak_bytes, histogram, flags`)
}

func (s *sampleSave) deviceRow(c *copyRows, h *changedHour, d gpu.Device) error {
	c.row(9)
	c.int8(h.id)
	c.int4(s.devices[s.deviceKey(h.nodeID, d)])
	c.int8(int64(d.TotalBytes))
	c.int8(int64(d.ReservedBytes))
	share := func(values ...float64) {
		for _, v := range values {
			if v < 0 {
				c.null()
			} else {
				c.float8(v)
			}
		}
	}
	share(d.GPUUtil, d.EngineActive)
	if len(d.Dropped) == 0 {
		c.null()
	} else {
		b, err := json.Marshal(d.Dropped)
		if err != nil {
			return err
		}
		c.jsonb(b)
	}
	share(d.SMActive, d.DRAMActive)
	return nil
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
