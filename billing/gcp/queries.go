package gcp

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gpuledger/billing/focus"
)

// dataset is what is known of a table before it is read.
type dataset struct {
	table     string            // project.dataset.table
	columns   map[string]string // type of each column, REPEATED or a scalar's; those of a record with a point
	partition string            // the column that bounds what is read; "" where there is none that does
	focus     bool
	location  string
}

// has answers for the columns of the detailed export.
func (t *dataset) has(col int) bool {
	switch col {
	case colCount, colCreditSum:
		return false
	}
	return t.columns[columns[col]] != ""
}

// month is the expression for a row's invoice month, 202610.
func (t *dataset) month() string {
	if t.focus {
		return "FORMAT_TIMESTAMP('%Y%m', BillingPeriodStart)"
	}
	return "invoice.month"
}

// when are the columns that say of when a row is, and when it was exported.
func (t *dataset) when() (usage, exported string) {
	if !t.focus {
		return "usage_start_time", t.or("export_time", "TIMESTAMP(NULL)")
	}
	return "ChargePeriodStart", t.or("x_ExportTime", "TIMESTAMP(NULL)")
}

func (t *dataset) or(column, absent string) string {
	if t.columns[column] == "" {
		return absent
	}
	return column
}

// bound is the condition that leaves old partitions unread.
func (t *dataset) bound(parameter string) string {
	if t.partition == "" {
		return "TRUE"
	}
	return t.partition + " >= " + parameter
}

// changedMonths asks which months have rows exported since @since.
func (t *dataset) changedMonths() string {
	return fmt.Sprintf("-- gpuledger: months\nSELECT DISTINCT %s AS month FROM `%s` WHERE %s", t.month(), t.table, t.bound("@since"))
}

// days asks for the change token of each usage day of the months: the newest time of
// export and the number of rows.
func (t *dataset) days(all bool) string {
	usage, exported := t.when()
	which := t.month() + " IN UNNEST(@months) AND " + t.bound("@since")
	if all {
		which = t.month() + " >= @first"
	}
	return fmt.Sprintf("-- gpuledger: days\nSELECT %s AS month, DATE(%s) AS day, MAX(%s) AS newest, COUNT(*) AS n\nFROM `%s` WHERE %s\nGROUP BY month, day ORDER BY month, day",
		t.month(), usage, exported, t.table, which)
}

// detail is the condition for rows that are read one by one: of the wanted services, of
// commitments, and those that commitments cover.
func (t *dataset) detail(services []string) string {
	if slices.Contains(services, "*") || t.columns["service.id"] == "" {
		return "TRUE"
	}
	return "(IFNULL(service.id IN UNNEST(@services), FALSE)\n\tOR IFNULL(STARTS_WITH(sku.description, 'Commitment'), FALSE)\n\tOR EXISTS (SELECT 1 FROM UNNEST(credits) AS c WHERE STARTS_WITH(c.type, 'COMMITTED_USAGE_DISCOUNT') OR c.type = 'FEE_UTILIZATION_OFFSET'))"
}

// rows asks for the rows of a month as they are. Arrays come as their JSON.
func (t *dataset) rows(services []string) (sql string, header []string) {
	names, detail := columns[:], t.detail(services)
	if t.focus {
		names, detail = focus.Columns(), "TRUE"
	}
	var list []string
	for _, name := range names {
		switch t.columns[name] {
		case "":
			continue
		case "REPEATED", "JSON":
			list = append(list, fmt.Sprintf("TO_JSON_STRING(%s) AS c%d", name, len(header)))
		default:
			list = append(list, fmt.Sprintf("%s AS c%d", name, len(header)))
		}
		header = append(header, name)
	}
	return fmt.Sprintf("-- gpuledger: rows\nSELECT %s\nFROM `%s` WHERE %s = @month AND %s\n\tAND %s", strings.Join(list, ", "), t.table, t.month(), t.bound("@since"), detail), header
}

// exact reads a double the way that its text does, so that sums are of decimals.
func exact(expression string) string {
	return "ROUND(CAST(CAST(" + expression + " AS STRING) AS BIGNUMERIC), 24)"
}

// sums asks for what the other rows of a month add up to, by all that control totals and
// classes need. Rows with a list cost and rows without are never in one sum.
func (t *dataset) sums(services []string) (sql string, header []string) {
	by := []string{"TIMESTAMP_TRUNC(usage_start_time, MONTH)"}
	header = []string{columns[colStart]}
	for _, col := range []int{colAccount, colService, colServiceID, colProject, colCurrency, colMonth, colCostType, colAdjustmentType} {
		if t.has(col) {
			by = append(by, columns[col])
			header = append(header, columns[col])
		}
	}
	list := make([]string, len(by))
	groups := make([]string, len(by))
	for i, expression := range by {
		list[i], groups[i] = fmt.Sprintf("%s AS c%d", expression, i), fmt.Sprintf("c%d", i)
	}
	add := func(expression, name string) {
		list = append(list, fmt.Sprintf("%s AS c%d", expression, len(header)))
		header = append(header, name)
	}
	add("TIMESTAMP_TRUNC(MIN(usage_start_time), MONTH)", columns[colEnd])
	add("CAST(SUM("+exact("cost")+") AS STRING)", columns[colCost])
	add("CAST(SUM(IFNULL((SELECT SUM("+exact("c.amount")+") FROM UNNEST(credits) AS c), 0)) AS STRING)", columns[colCreditSum])
	groups = append(groups, "cost < 0")
	for _, col := range []int{colListCost, colContractCost} {
		if t.has(col) {
			add("CAST(SUM("+exact(columns[col])+") AS STRING)", columns[col])
			groups = append(groups, columns[col]+" IS NULL")
		}
	}
	add("COUNT(*)", columns[colCount])
	return fmt.Sprintf("-- gpuledger: sums\nSELECT %s\nFROM `%s` WHERE invoice.month = @month AND %s\n\tAND NOT %s\nGROUP BY %s",
		strings.Join(list, ", "), t.table, t.bound("@since"), t.detail(services), strings.Join(groups, ", ")), header
}

// Statements returns the queries for a table of the given columns (name, with a point in a
// record, to type; REPEATED of an array), for a check of their text: what each asks, and
// how.
func Statements(table string, columns map[string]string, isFOCUS bool) map[string]string {
	t := &dataset{table: table, columns: columns, partition: "_PARTITIONTIME", focus: isFOCUS}
	out := map[string]string{"months": t.changedMonths(), "days": t.days(false), "all days": t.days(true)}
	out["rows"], _ = t.rows([]string{computeEngine})
	if !isFOCUS {
		out["sums"], _ = t.sums([]string{computeEngine})
	}
	return out
}

// beforeMonth is how long before an invoice month its first rows may be exported: the
// month is one of Pacific time, and begins in no time zone earlier than this.
const beforeMonth = 48 * time.Hour
