package aws

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"strings"
	"time"

	"gpuledger/billing"
	"gpuledger/billing/period"
)

// The layout of the legacy Cost and Usage Report: a folder for each month, with the
// manifest of its newest assembly; those one folder deeper are of one assembly each.
// The data lies beside it or in a folder of the assembly, or, for Athena, in
// <report>/year=2026/month=1 (no zero before the month).
var legacyManifestKey = regexp.MustCompile(`^(?:(.*)/)?((\d{8})-(\d{8}))/([^/]*)-?Manifest\.json$`)

// legacyManifest is <report>-Manifest.json of a legacy report.
type legacyManifest struct {
	AssemblyID string `json:"assemblyId"`
	ReportName string `json:"reportName"`
	Columns    []struct {
		Category string `json:"category"`
		Name     string `json:"name"`
	} `json:"columns"`
	ReportKeys []string `json:"reportKeys"`
}

// legacyMonth reads the month of a folder such as 20261001-20261101: its end is the first
// day of the next month.
func legacyMonth(start, end string) (period.Month, error) {
	from, err1 := time.Parse("20060102", start)
	to, err2 := time.Parse("20060102", end)
	if err1 != nil || err2 != nil || from.Day() != 1 || !from.AddDate(0, 1, 0).Equal(to) {
		return period.Month{}, fmt.Errorf("folder %s-%s is not one of a month", start, end)
	}
	return period.MonthOf(from), nil
}

// readLegacy reads a legacy manifest into the delivery and returns its files as keys of
// the bucket.
func readLegacy(raw []byte, d *billing.Delivery) ([]string, string, error) {
	var m legacyManifest
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, "", err
	}
	d.Format, d.ID = "AWS CUR", m.AssemblyID
	for _, c := range m.Columns {
		d.Columns = append(d.Columns, legacyName(c.Category+"/"+c.Name))
	}
	return m.ReportKeys, m.ReportName, nil
}

// legacyKey resolves a key of the bucket below the folder of the report, which may be a
// copy at any depth.
func legacyKey(f found, report, key string) (string, error) {
	markers := []string{f.folder + "/"}
	if report != "" {
		start := f.month.Start()
		markers = append(markers, fmt.Sprintf("%s/year=%d/month=%d/", report, start.Year(), start.Month()))
	}
	for _, marker := range markers {
		at := strings.LastIndex("/"+key, "/"+marker)
		if at >= 0 && path.Clean("/"+key[at:]) == "/"+key[at:] {
			return f.root + key[at:], nil
		}
	}
	return "", fmt.Errorf("data file %q is in none of the folders %s; this is not the layout of an AWS cost and usage report", key, strings.Join(markers, ", "))
}

// legacyName brings a name of a legacy report to that of CUR 2.0, as AWS does for Athena:
// lineItem/ResourceId is line_item_resource_id, savingsPlan/SavingsPlanARN is
// savings_plan_savings_plan_a_r_n. A name in that form stays, but for the spelling _arn
// that other tools give.
func legacyName(name string) string {
	category, rest, ok := strings.Cut(name, "/")
	if !ok {
		if renamed, ok := respelt[name]; ok {
			return renamed
		}
		return name
	}
	if category == "resourceTags" || category == "costCategory" { // the customer's own names
		return snake(category) + "_" + rest
	}
	return snake(category) + "_" + snake(rest)
}

var respelt = map[string]string{
	"reservation_reservation_arn":   columns[colRIARN],
	"savings_plan_savings_plan_arn": columns[colSPARN],
}

// snake puts an underscore before each capital but the first.
func snake(s string) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case r >= 'A' && r <= 'Z':
			if i > 0 {
				b.WriteByte('_')
			}
			b.WriteRune(r - 'A' + 'a')
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
