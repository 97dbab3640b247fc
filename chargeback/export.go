package chargeback

import (
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strings"
)

// dimension is a column that an export may be grouped by.
type dimension struct {
	column string // of the view
	fine   bool   // only finance.allocation has it
	daily  bool   // only finance.chargeback_day and finance.allocation have it
}

var dimensions = map[string]dimension{
	"team": {column: "team"}, "cost_center": {column: "cost_center"}, "namespace": {column: "namespace"}, "ai_model": {column: "ai_model"},
	"gpu_model": {column: "gpu_model"}, "category": {column: "category"}, "charge_class": {column: "charge_class"},
	"day": {column: "charge_day", daily: true},
	"pod": {column: "pod_name", fine: true}, "pod_uid": {column: "pod_uid", fine: true},
	"workload": {column: "workload_name", fine: true}, "workload_kind": {column: "workload_kind", fine: true},
	"cluster": {column: "cluster", fine: true}, "node": {column: "node", fine: true}, "node_pool": {column: "node_pool", fine: true},
	"instance_type": {column: "instance_type", fine: true}, "sharing_mode": {column: "sharing_mode", fine: true},
	"provider": {column: "provider", fine: true}, "account": {column: "account", fine: true}, "region": {column: "region", fine: true},
	"method": {column: "method", fine: true}, "moved_by": {column: "moved_by", fine: true},
}

// dimensionName is what a dimension of owners.yaml may be called to be exported.
var dimensionName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// Dimensions lists what an export can be grouped by.
func Dimensions() []string {
	out := make([]string, 0, len(dimensions))
	for d := range dimensions {
		out = append(out, d)
	}
	sort.Strings(out)
	return out
}

// ExportQuery returns the SQL of a month's export grouped by the given dimensions,
// with the period as $1. Costs and hours of the groups add up to the month's. What was posted
// in it of closed months comes last, under the month of the charge.
func ExportQuery(by []string) (string, error) {
	if len(by) == 0 {
		return "", fmt.Errorf("nothing to group by; choose from %s", strings.Join(Dimensions(), ", "))
	}
	var cols, names []string
	fine, daily := false, false
	for _, b := range by {
		d, ok := dimensions[b]
		if name, own := strings.CutPrefix(b, "dimensions."); own && dimensionName.MatchString(name) {
			d, ok = dimension{column: "dimensions ->> '" + name + "'", fine: true}, true
			b = name
		}
		if slices.Contains(names, b) {
			return "", fmt.Errorf("%q is there twice", b)
		}
		if !ok {
			return "", fmt.Errorf("cannot group by %q; choose from %s", b, strings.Join(Dimensions(), ", "))
		}
		fine, daily = fine || d.fine, daily || d.daily
		cols, names = append(cols, d.column), append(names, b)
	}
	view := "finance.chargeback_month"
	switch {
	case fine:
		view = "finance.allocation"
		for i, c := range cols {
			if c == "charge_day" {
				cols[i] = "(charge_start AT TIME ZONE 'UTC')::date"
			}
		}
	case daily:
		view = "finance.chargeback_day"
	}
	var selects, groups []string
	for i, c := range cols {
		selects = append(selects, fmt.Sprintf("%s AS %s", c, names[i]))
		groups = append(groups, c)
	}
	return fmt.Sprintf(`SELECT to_char(period, 'YYYY-MM') AS period, currency, %s,
	trim_scale(sum(billed_cost)) AS billed_cost, trim_scale(sum(effective_cost)) AS effective_cost, trim_scale(sum(list_cost)) AS list_cost,
	trim_scale(sum(gpu_hours)) AS gpu_hours, round(sum(used_gib_hours), 6) AS used_gib_hours, round(sum(held_gib_hours), 6) AS held_gib_hours, to_char(posting_period, 'YYYY-MM') AS posting_period
FROM %s WHERE posting_period = $1
GROUP BY period, posting_period, currency, %s
ORDER BY period <> posting_period, period, currency, %s`, strings.Join(selects, ", "), view, strings.Join(groups, ", "), strings.Join(groups, ", ")), nil
}
