package layout

import (
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"strings"
	"time"

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

// readLegacy reads a legacy manifest, whose files are keys of the bucket, and the name of
// its report. A column's name is category/name, as in the header of a CSV file.
func readLegacy(raw []byte) (m manifest, report string, err error) {
	var l legacyManifest
	if err := json.Unmarshal(raw, &l); err != nil {
		return m, "", err
	}
	m.ExecutionID = l.AssemblyID
	for _, c := range l.Columns {
		m.Columns = append(m.Columns, column{c.Category + "/" + c.Name})
	}
	for _, key := range l.ReportKeys {
		m.DataFiles = append(m.DataFiles, manifestFile{URI: key})
	}
	return m, l.ReportName, nil
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
