package layout

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"gpuledger/billing"
	"gpuledger/billing/period"
	"gpuledger/billing/table"
	"gpuledger/objstore"
)

// azureManifest is manifest.json of one run of an export. A run is the whole month so far.
type azureManifest struct {
	DataRowCount *int64 `json:"dataRowCount"`
	BlobCount    *int   `json:"blobCount"`
	ExportConfig struct {
		ExportName  string `json:"exportName"`
		Type        string `json:"type"`
		DataVersion string `json:"dataVersion"`
	} `json:"exportConfig"`
	RunInfo struct {
		RunID         string `json:"runId"`
		SubmittedTime string `json:"submittedTime"`
		StartDate     string `json:"startDate"`
	} `json:"runInfo"`
	Blobs []struct {
		BlobName     string `json:"blobName"`
		ByteCount    int64  `json:"byteCount"`
		DataRowCount *int64 `json:"dataRowCount"`
	} `json:"blobs"`
}

// Azure returns every run of Cost Management exports at a location, by their manifests;
// none where there is no manifest.
func Azure(ctx context.Context, store objstore.Store) ([]Run, error) {
	objects, err := store.List(ctx, "")
	if err != nil {
		return nil, err
	}
	have := map[string]objstore.Object{}
	for _, o := range objects {
		have[o.Key] = o
	}
	var runs []Run
	for _, o := range objects {
		if path.Base(o.Key) == "manifest.json" {
			runs = append(runs, azureRun(ctx, store, o, have))
		}
	}
	return runs, nil
}

func azureRun(ctx context.Context, store objstore.Store, o objstore.Object, have map[string]objstore.Object) Run {
	one := Run{Manifest: o.Key, Rows: map[string]int64{}}
	if err := one.readAzure(ctx, store, o, have); err != nil {
		one.Err = fmt.Errorf("%s: %w", o.Key, err)
	}
	return one
}

func (one *Run) readAzure(ctx context.Context, store objstore.Store, o objstore.Object, have map[string]objstore.Object) error {
	body, obj, err := store.Get(ctx, o.Key, o.ETag)
	if err != nil {
		return table.Incomplete(o.Key, err)
	}
	defer body.Close()
	raw, err := io.ReadAll(io.LimitReader(body, maxManifest))
	if err != nil {
		return table.Incomplete(o.Key, err)
	}
	var m azureManifest
	if err := json.Unmarshal([]byte(strings.TrimPrefix(string(raw), "\ufeff")), &m); err != nil {
		return fmt.Errorf("%w: not a readable manifest (%w)", billing.ErrIncomplete, err)
	}
	one.Export, one.ID, one.Raw, one.Submitted = m.ExportConfig.ExportName, m.RunInfo.RunID, raw, obj.Modified
	switch kind := m.ExportConfig.Type; {
	case strings.EqualFold(kind, "ActualCost"), strings.EqualFold(kind, "Usage"):
		one.Kind = AzureActual
	case strings.EqualFold(kind, "AmortizedCost"):
		one.Kind = AzureAmortized
	case strings.EqualFold(kind, "FocusCost"):
		one.Kind = AzureFOCUS
	default:
		return fmt.Errorf("an export of type %q: choose cost and usage details, actual and amortized", kind)
	}
	if t, err := parseStamp(m.RunInfo.SubmittedTime); err == nil {
		one.Submitted = t
	}
	start, err := parseStamp(m.RunInfo.StartDate)
	if err != nil {
		return fmt.Errorf("runInfo.startDate: %w", err)
	}
	one.Month = period.MonthOf(start)
	if m.BlobCount != nil && *m.BlobCount != len(m.Blobs) {
		return fmt.Errorf("%w: blobCount is %d and %d blobs are named", billing.ErrIncomplete, *m.BlobCount, len(m.Blobs))
	}
	var sum int64
	seen := map[string]bool{}
	for _, b := range m.Blobs {
		key, ok := resolve(o.Key, b.BlobName, have)
		switch {
		case !ok:
			return fmt.Errorf("%w: data file %s is not there; wait for the export to finish, or copy it too", billing.ErrIncomplete, b.BlobName)
		case have[key].Size != b.ByteCount:
			return fmt.Errorf("%w: data file %s has %d bytes and the manifest says %d", billing.ErrIncomplete, key, have[key].Size, b.ByteCount)
		case !table.IsData(key):
			return fmt.Errorf("data file %s is neither .csv, .csv.gz nor .parquet", key)
		}
		if seen[key] {
			return fmt.Errorf("data file %s is named twice; its lines would count double", key)
		}
		seen[key] = true
		if b.DataRowCount != nil {
			one.Rows[key] = *b.DataRowCount
			sum += *b.DataRowCount
		}
		one.Files = append(one.Files, billing.File{Key: key, Size: have[key].Size, ETag: have[key].ETag})
	}
	if m.DataRowCount != nil && len(m.Blobs) > 0 && sum > 0 && *m.DataRowCount != sum {
		return fmt.Errorf("%w: dataRowCount is %d and the blobs' add up to %d", billing.ErrIncomplete, *m.DataRowCount, sum)
	}
	return nil
}

func parseStamp(text string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02T15:04:05", "2006-01-02"} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time", text)
}

// resolve finds a blob, named from its container's root, in a copy at any depth: beside
// its manifest, or where its path ends like the name.
func resolve(manifestKey, blob string, have map[string]objstore.Object) (string, bool) {
	beside := path.Join(path.Dir(manifestKey), path.Base(blob))
	if _, ok := have[beside]; ok {
		return beside, true
	}
	for key := range have {
		if strings.HasSuffix("/"+blob, "/"+key) {
			return key, true
		}
	}
	return "", false
}
