package main

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"gpuledger/chargeback"
	"gpuledger/ingest"
)

// runJob is the name under which a run that ended well is recorded.
const runJob = "run"

// afterRun records how a run ended, and writes its metrics where they are asked for: also
// of a run that failed, for that is when they matter.
func (a *app) afterRun(ctx context.Context, cfg *Config, db *database, file string, runErr error) error {
	if ctx.Err() != nil {
		return runErr
	}
	var err error
	if runErr == nil {
		err = db.JobSucceeded(ctx, runJob, a.now())
	}
	if file == "" {
		file = cfg.path(cfg.MetricsFile)
	}
	if file != "" && err == nil {
		err = a.writeMetrics(ctx, db, file)
	}
	if runErr != nil && err != nil {
		return &exitError{exitFailed, errors.Join(runErr, err)}
	}
	return errors.Join(runErr, err)
}

// clusterStatus is where each cluster's samples stand now.
func (a *app) clusterStatus(ctx context.Context, db *database) (*chargeback.Table, error) {
	now := a.now().UTC()
	return db.ClusterStatus(ctx, now, now.Add(-ingest.Lag).Truncate(time.Hour))
}

// writeMetrics writes gauges in the text format that node_exporter's textfile collector
// reads. The file comes whole or not at all. What is not known is left out, not zero.
func (a *app) writeMetrics(ctx context.Context, db *database, file string) error {
	t, err := a.clusterStatus(ctx, db)
	if err != nil {
		return err
	}
	last, err := db.LastSuccess(ctx, runJob)
	if err != nil {
		return err
	}
	column := map[string]int{}
	for i, c := range t.Columns {
		column[c.Name] = i
	}
	byCluster := func(name, help, from string) *dto.MetricFamily {
		f := gauge(name, help)
		for _, r := range t.Rows {
			if cell := r[column[from]]; cell.Valid {
				v, err := strconv.ParseFloat(cell.Text, 64)
				if err != nil {
					continue // the column is of integers
				}
				label, cluster := "cluster", strings.ToValidUTF8(r[column["cluster"]].Text, "?")
				f.Metric = append(f.Metric, &dto.Metric{Label: []*dto.LabelPair{{Name: &label, Value: &cluster}}, Gauge: &dto.Gauge{Value: &v}})
			}
		}
		return f
	}
	families := []*dto.MetricFamily{
		byCluster("gpuledger_oldest_uncovered_hour_seconds_left", "Until the oldest hour that is not covered leaves what the cluster's sources hold.", "seconds_left"),
		byCluster("gpuledger_hours_uncovered", "Hours since the cluster was first seen that are not covered by samples and not lost.", "hours_uncovered"),
		byCluster("gpuledger_hours_lost", "Hours that no source held any more when they were to be read.", "hours_lost"),
	}
	if !last.IsZero() {
		f, v := gauge("gpuledger_last_success_timestamp_seconds", "When gpuledger run last ended with exit code 0."), float64(last.Unix())
		f.Metric = append(f.Metric, &dto.Metric{Gauge: &dto.Gauge{Value: &v}})
		families = append(families, f)
	}
	return chargeback.WriteFile(file, func(w io.Writer) error {
		for _, f := range families {
			if len(f.Metric) == 0 {
				continue
			}
			if _, err := expfmt.MetricFamilyToText(w, f); err != nil {
				return err
			}
		}
		return nil
	})
}

func gauge(name, help string) *dto.MetricFamily {
	return &dto.MetricFamily{Name: &name, Help: &help, Type: dto.MetricType_GAUGE.Enum()}
}
