package warehouse

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"gpuledger/allocate"
	"gpuledger/billing/period"
	"gpuledger/policy"
)

// findUnit looks a unit up by its inputs.
func (db *DB) findUnit(ctx context.Context, u *unitRef) (bool, error) {
	var output []byte
	err := db.pool.QueryRow(ctx, "SELECT id, output_sha256, rows FROM gpuledger.unit WHERE scope = $1 AND charge_day = $2 AND input_sha256 = $3", u.scope, u.day, u.input[:]).Scan(&u.id, &output, &u.rows)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	u.output = [32]byte(output)
	return true, nil
}

// bytesAtOnce bounds the rows in memory on their way into the warehouse.
const bytesAtOnce = 4 << 20

// writeUnit computes a unit, reading in one transaction, and stores it with its facts,
// rollups and control totals in another, after checking in SQL that every line is given
// away exactly once.
func (db *DB) writeUnit(ctx context.Context, read pgx.Tx, a *allocation, d *dayWork, u *unitWork, ref *unitRef) error {
	lines := len(u.loose)
	for _, w := range u.windows {
		lines += len(w.lines)
	}
	return pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error {
		if err := mayIdle(ctx, tx); err != nil {
			return err
		}
		err := tx.QueryRow(ctx, `INSERT INTO gpuledger.unit (scope, charge_day, input_sha256, output_sha256, method_version, lines, rows)
			VALUES ($1, $2, $3, '', $4, $5, 0) ON CONFLICT (scope, charge_day, input_sha256) DO NOTHING RETURNING id`,
			ref.scope, ref.day, ref.input[:], allocate.MethodVersion, lines).Scan(&ref.id)
		if errors.Is(err, pgx.ErrNoRows) { // another job wrote the same unit meanwhile
			var output []byte
			err := tx.QueryRow(ctx, "SELECT id, output_sha256, rows FROM gpuledger.unit WHERE scope = $1 AND charge_day = $2 AND input_sha256 = $3", ref.scope, ref.day, ref.input[:]).Scan(&ref.id, &output, &ref.rows)
			copy(ref.output[:], output)
			return err
		}
		if err != nil {
			return err
		}
		facts := newCopyRows()
		out := newOutput(func(ctx context.Context, rows []row, ids [][16]byte) error {
			dims, err := a.dims.resolve(ctx, db, rows)
			if err != nil {
				return err
			}
			for i := range rows {
				factRow(facts, a.o.Period, ref, &rows[i], ids[i], dims[i])
			}
			if len(facts.buf) < bytesAtOnce {
				return nil
			}
			return facts.flushTo(ctx, tx, "gpuledger.allocation", factColumns)
		})
		if err := a.compute(ctx, read, d, u, out.add); err != nil {
			return err
		}
		if err := facts.copyTo(ctx, tx, "gpuledger.allocation", factColumns); err != nil {
			return err
		}
		ref.rows, ref.output = out.rows, out.sum()
		if err := a.copyInputs(ctx, tx, d, u, ref); err != nil {
			return err
		}
		for _, q := range []string{insertPodDay, insertWorkloadDay, insertTotals} {
			if _, err := tx.Exec(ctx, q, ref.id, a.o.Period.Start()); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(ctx, "UPDATE gpuledger.unit SET output_sha256 = $2, rows = $3 WHERE id = $1", ref.id, ref.output[:], ref.rows); err != nil {
			return err
		}
		return checkUnit(ctx, tx, ref, a.o, lines)
	})
}

const factColumns = `period, charge_day, unit_id, line_id, component, target_kind, target_id, category, moved_by, owner_id, model_id, mode, node_id, node_pool, currency,
		ratio, gpu_ratio, device_hours, used_byte_seconds, held_byte_seconds, measured_us, gap_us, method, method_ratio, allocation_id`

func factRow(c *copyRows, m period.Month, ref *unitRef, r *row, id [16]byte, dims dimIDs) {
	s := &r.share
	c.row(25)
	c.date(m.Start())
	c.date(ref.day)
	c.int8(ref.id)
	c.int8(r.line.id)
	c.text(r.component)
	if s.PodUID != "" {
		c.text("pod")
	} else {
		c.text("remainder")
	}
	c.optInt8(r.pod.id)
	c.text(s.Category)
	c.optText(s.MovedBy)
	c.int4(dims.owner)
	c.int4(dims.model)
	c.text(string(s.Mode))
	if r.node != nil {
		c.int4(r.node.id)
	} else {
		c.null()
	}
	c.optText(s.Pool)
	c.text(r.line.currency)
	c.int8(int64(s.Ratio))
	c.int8(int64(s.GPURatio))
	c.numeric(r.deviceHours)
	for _, v := range []int64{r.used, r.held, s.MeasuredMicros, s.GapMicros} {
		c.int8(v)
	}
	c.int2(int16(s.Method))
	c.int8s(methodRatios(*s))
	c.bytea(id[:]) // a uuid is its sixteen bytes
}

// copyInputs pins the node-hours the unit was computed from: where a rule looks beyond
// the node, those of the whole cluster.
func (a *allocation) copyInputs(ctx context.Context, tx pgx.Tx, d *dayWork, u *unitWork, ref *unitRef) error {
	c := newCopyRows()
	seen := map[int64]bool{}
	windows := u.windows
	if len(windows) > 0 && a.o.Policy.Idle.Wide() {
		windows = d.windowsOf(windows[0].node.clusterID)
	}
	for _, w := range windows {
		for _, hour := range a.inputHours(w) {
			if h, _ := d.hours.at(w.node, hour); h != nil && !seen[h.id] {
				seen[h.id] = true
				c.row(2)
				c.int8(ref.id)
				c.int8(h.id)
			}
		}
	}
	return c.copyTo(ctx, tx, "gpuledger.unit_node_hour", "unit_id, node_hour_id")
}

// heldUnused prices the part of a charge that was held and not used.
const heldUnused = `sum(CASE WHEN a.category = 'pod' AND a.held_byte_seconds > a.used_byte_seconds
		THEN l.effective_cost * a.ratio * 0.000000000001 * (a.held_byte_seconds - a.used_byte_seconds) / a.held_byte_seconds ELSE 0 END)`

const rollupCosts = `sum(l.billed_cost * a.ratio) * 0.000000000001, sum(l.effective_cost * a.ratio) * 0.000000000001,
	sum(l.list_cost * a.ratio) * 0.000000000001, sum(l.contracted_cost * a.ratio) * 0.000000000001,
	sum(a.device_hours * a.gpu_ratio) * 0.000000000001, sum(a.used_byte_seconds), sum(a.held_byte_seconds), ` + heldUnused

const insertPodDay = `INSERT INTO gpuledger.pod_day (unit_id, period, charge_day, currency, charge_class, target_id, category, moved_by, owner_id, model_id, mode, node_id,
		billed_cost, effective_cost, list_cost, contracted_cost, gpu_hours, used_byte_seconds, held_byte_seconds, held_unused_cost)
	SELECT a.unit_id, a.period, a.charge_day, a.currency, nullif(l.charge_class, ''), a.target_id, a.category, a.moved_by, a.owner_id, a.model_id, a.mode, a.node_id, ` + rollupCosts + `
	FROM gpuledger.allocation a JOIN gpuledger.bill_line l ON l.id = a.line_id AND l.charge_month = a.period
	WHERE a.unit_id = $1 AND a.period = $2
	GROUP BY a.unit_id, a.period, a.charge_day, a.currency, nullif(l.charge_class, ''), a.target_id, a.category, a.moved_by, a.owner_id, a.model_id, a.mode, a.node_id`

const insertWorkloadDay = `INSERT INTO gpuledger.workload_day (unit_id, period, charge_day, currency, charge_class, cluster_id, namespace, workload_kind, workload_name, category, owner_id, model_id, node_pool,
		billed_cost, effective_cost, list_cost, contracted_cost, gpu_hours, used_byte_seconds, held_byte_seconds, held_unused_cost)
	SELECT a.unit_id, a.period, a.charge_day, a.currency, nullif(l.charge_class, ''), n.cluster_id, p.namespace, p.workload_kind, p.workload_name, a.category, a.owner_id, a.model_id, a.node_pool, ` + rollupCosts + `
	FROM gpuledger.allocation a JOIN gpuledger.bill_line l ON l.id = a.line_id AND l.charge_month = a.period
	LEFT JOIN gpuledger.node n ON n.id = a.node_id LEFT JOIN gpuledger.pod p ON p.id = a.target_id
	WHERE a.unit_id = $1 AND a.period = $2
	GROUP BY a.unit_id, a.period, a.charge_day, a.currency, nullif(l.charge_class, ''), n.cluster_id, p.namespace, p.workload_kind, p.workload_name, a.category, a.owner_id, a.model_id, a.node_pool`

const insertTotals = `INSERT INTO gpuledger.unit_total (unit_id, source_id, payer, billing_period, currency, lines, billed_in, effective_in, list_in, billed_out, effective_out, list_out)
	SELECT $1, l.source_id, r.payer, l.billing_period, l.currency, count(*), sum(l.billed_cost), sum(l.effective_cost), coalesce(sum(l.list_cost), 0),
		sum(l.billed_cost * s.ratio) * 0.000000000001, sum(l.effective_cost * s.ratio) * 0.000000000001, coalesce(sum(l.list_cost * s.ratio), 0) * 0.000000000001
	FROM (SELECT line_id, sum(ratio) AS ratio FROM gpuledger.allocation WHERE unit_id = $1 AND period = $2 GROUP BY line_id) s
	JOIN gpuledger.bill_line l ON l.id = s.line_id AND l.charge_month = $2
	JOIN gpuledger.bill_resource r ON r.id = l.bill_resource_id
	GROUP BY l.source_id, r.payer, l.billing_period, l.currency`

// checkUnit verifies DESIGN §4.5 in SQL before the unit exists for anybody.
//
// Device time is given away exactly once too: by the rows of a line's GPU part, or of
// the line as a whole. Where the policy divides lines, CPU and memory have none of it.
func checkUnit(ctx context.Context, tx pgx.Tx, ref *unitRef, o AllocateOptions, lines int) error {
	m, divides := o.Period, o.Policy.ComponentSplit != policy.GPUAll
	var wrong, counted int64
	if err := tx.QueryRow(ctx, `SELECT count(*) FILTER (WHERE ratio <> 1000000000000 OR stray_gpu_ratio <> 0
				OR gpu_ratio <> CASE WHEN has_devices THEN 1000000000000 ELSE 0 END), count(*)
		FROM (SELECT line_id, sum(ratio) AS ratio, sum(gpu_ratio) AS gpu_ratio,
				bool_or(NOT ($3 AND component IN ('cpu', 'memory'))) AS has_devices,
				coalesce(sum(gpu_ratio) FILTER (WHERE $3 AND component IN ('cpu', 'memory')), 0) AS stray_gpu_ratio
			FROM gpuledger.allocation WHERE unit_id = $1 AND period = $2 GROUP BY line_id) s`, ref.id, m.Start(), divides).Scan(&wrong, &counted); err != nil {
		return err
	}
	if wrong > 0 || counted != int64(lines) {
		return fmt.Errorf("unit %s of %s does not balance: %d lines of %d given away, %d of them not exactly once; this is a bug, please report it", ref.scope, ref.day.Format("2006-01-02"), counted, lines, wrong)
	}
	var lost int64 // rows that the finance views would not show whole
	if err := tx.QueryRow(ctx, `SELECT count(*) FROM gpuledger.allocation a
			LEFT JOIN gpuledger.owner o ON o.id = a.owner_id LEFT JOIN gpuledger.gpu_model g ON g.id = a.model_id
			LEFT JOIN gpuledger.pod p ON p.id = a.target_id LEFT JOIN gpuledger.node n ON n.id = a.node_id
		WHERE a.unit_id = $1 AND a.period = $2
			AND (o.id IS NULL OR g.id IS NULL OR a.target_kind = 'pod' AND p.id IS NULL OR a.node_id IS NOT NULL AND n.id IS NULL)`, ref.id, m.Start()).Scan(&lost); err != nil {
		return err
	}
	if lost > 0 {
		return fmt.Errorf("unit %s of %s: %d rows name an owner, model, pod or node that is not stored; run it again", ref.scope, ref.day.Format("2006-01-02"), lost)
	}
	var off int64
	if err := tx.QueryRow(ctx, `SELECT count(*) FROM gpuledger.unit_total WHERE unit_id = $1 AND (billed_in, effective_in, list_in) IS DISTINCT FROM (billed_out, effective_out, list_out)`, ref.id).Scan(&off); err != nil {
		return err
	}
	if off > 0 {
		return fmt.Errorf("unit %s of %s: costs in and out differ; this is a bug, please report it", ref.scope, ref.day.Format("2006-01-02"))
	}
	return nil
}
