package warehouse

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"gpuledger/billing/period"
)

// freeMachines says which machines a month bills at an effective cost of 0 for no reason
// that the bill gives: the time is billed, and its list price is not 0.
func (db *DB) freeMachines(ctx context.Context, m period.Month) ([]string, error) {
	var out []string
	rows, err := db.pool.Query(ctx, `SELECT source, count(*), (array_agg(machine ORDER BY hours DESC, machine))[1], trim_scale(round(sum(hours), 3))::text
		FROM (`+freeMachines+`) x GROUP BY source ORDER BY source`, m.Start())
	if err != nil {
		return nil, err
	}
	var source, machine, hours string
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&source, &n, &machine, &hours}, func() error {
		out = append(out, fmt.Sprintf("%d machines of source %s cost nothing for %s hours (%s among them), and no line says why: a commitment or a block whose fee is elsewhere? See: gpuledger bills unmatched --period %s", n, source, hours, machine, m))
		return nil
	})
	return out, err
}

// freeMachines are the machines of the month in $1 with the hours in which they cost
// nothing. One that a correction takes back is not among them, nor one at no list price.
const freeMachines = `
	SELECT source, machine, instance_type, sum(hours) AS hours, min(charge_start) AS first, max(charge_end) AS last
	FROM (
		SELECT s.name AS source, coalesce(nullif(r.instance_id, ''), r.resource_id) AS machine, max(r.instance_type) AS instance_type, l.charge_start, l.charge_end, sum(l.instance_hours) AS hours
		FROM ` + currentLines + `
		WHERE l.charge_month = $1::date AND l.last_delivery IS NULL AND l.class = 'node_usage'
		GROUP BY s.name, coalesce(nullif(r.instance_id, ''), r.resource_id), l.charge_start, l.charge_end
		HAVING sum(l.effective_cost) = 0 AND sum(l.instance_hours) > 0 AND bool_and(l.effective_cost = 0) AND NOT coalesce(bool_and(l.list_cost = 0), false)
			AND NOT bool_or(l.charge_class = 'Correction')
	) w GROUP BY source, machine, instance_type`
