package layout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"sort"
	"strings"

	"gpuledger/billing"
	"gpuledger/billing/period"
	"gpuledger/billing/table"
	"gpuledger/objstore"
)

// manifest is <export>-Manifest.json. It has no billing period: that stands in
// the key. Sizes are not in AWS's own manifests, and are checked where a copy or
// a compatible exporter states them.
type manifest struct {
	ExecutionID string         `json:"executionId"`
	Columns     []column       `json:"columns"`
	DataFiles   []manifestFile `json:"dataFiles"`
}

type column struct {
	Name string `json:"name"`
}

type manifestFile struct {
	URI  string
	Size int64
}

func (f *manifestFile) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, &f.URI)
	}
	var o struct {
		S3URI string `json:"s3Uri"`
		Size  int64  `json:"size"`
	}
	if err := json.Unmarshal(b, &o); err != nil {
		return err
	}
	f.URI, f.Size = o.S3URI, o.Size
	return nil
}

// manifestKey matches the manifest at the level of the partition, which always
// describes the newest refresh; those one folder deeper (CREATE_NEW_REPORT)
// describe one refresh each and are history.
var manifestKey = regexp.MustCompile(`^(?:(.*)/)?metadata/BILLING_PERIOD=(\d{4}-\d{2})/([^/]*)-?Manifest\.json$`)

type found struct {
	object objstore.Object
	root   string // the export's folder below the location, "" or ending in a slash
	month  period.Month
	folder string // of a legacy report: that of the month, 20261001-20261101
}

// AWS returns the newest refresh of each month of AWS's exports at a location: data
// exports (CUR 2.0, FOCUS) and legacy Cost and Usage Reports, in the order of their
// months. Only metadata is chosen by listing; data files never are. No export at all is an
// error that wraps billing.ErrIncomplete.
func AWS(ctx context.Context, store objstore.Store) ([]Run, error) {
	objects, err := store.List(ctx, "metadata/")
	if err == nil && len(objects) == 0 {
		objects, err = store.List(ctx, "")
	}
	if err != nil {
		return nil, err
	}
	var out []found
	nested := 0
	for _, o := range objects {
		m := manifestKey.FindStringSubmatch(o.Key)
		if m == nil {
			if legacy := legacyManifestKey.FindStringSubmatch(o.Key); legacy != nil {
				month, err := legacyMonth(legacy[3], legacy[4])
				if err != nil {
					return nil, fmt.Errorf("%s: %w", o.Key, err)
				}
				out = append(out, found{o, rootOf(legacy[1]), month, legacy[2]})
				continue
			}
			if strings.HasSuffix(o.Key, "Manifest.json") {
				nested++
			}
			continue
		}
		month, err := period.ParseMonth(m[2])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.Key, err)
		}
		out = append(out, found{o, rootOf(m[1]), month, ""})
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].month.Start().Before(out[j].month.Start()) })
	if len(out) == 0 {
		hint := "AWS writes it after all data files; if none ever appears, point the location at the export's folder (the one that holds data/ and metadata/)"
		if nested > 0 {
			hint = "only manifests of single refreshes are there; copy metadata/BILLING_PERIOD=*/*-Manifest.json too"
		}
		return nil, fmt.Errorf("%s: %w: no metadata/BILLING_PERIOD=YYYY-MM/<export>-Manifest.json; %s", store.Location(), billing.ErrIncomplete, hint)
	}
	runs := make([]Run, len(out))
	for i, f := range out {
		runs[i] = f.run(ctx, store)
	}
	return runs, nil
}

func rootOf(folder string) string {
	if folder == "" {
		return ""
	}
	return folder + "/"
}

// run reads one manifest and looks at the files it names.
func (f found) run(ctx context.Context, store objstore.Store) Run {
	one := Run{Kind: AWSExport, Export: f.object.Key, Month: f.month, Manifest: f.object.Key}
	if f.folder != "" {
		one.Kind = AWSLegacy
	}
	one.Err = f.read(ctx, store, &one)
	return one
}

func (f found) read(ctx context.Context, store objstore.Store, one *Run) error {
	body, obj, err := store.Get(ctx, f.object.Key, "")
	if err != nil {
		return table.Incomplete(f.object.Key, err)
	}
	defer body.Close()
	raw, err := io.ReadAll(io.LimitReader(body, maxManifest+1))
	if err != nil {
		return table.Incomplete(f.object.Key, err)
	}
	one.Raw, one.Submitted = raw, obj.Modified
	var m manifest
	var report string
	switch {
	case len(raw) > maxManifest:
		err = errors.New("longer than 16 MiB")
	case f.folder != "":
		m, report, err = readLegacy(raw)
	default:
		err = json.Unmarshal(raw, &m)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: not a readable manifest (%w); wait for AWS to write it again", f.object.Key, billing.ErrIncomplete, err)
	}
	one.ID = m.ExecutionID
	for _, c := range m.Columns {
		one.Columns = append(one.Columns, c.Name)
	}
	if len(m.DataFiles) == 0 {
		return fmt.Errorf("%s: %w: the manifest names no data file; wait for AWS to write it again", f.object.Key, billing.ErrIncomplete)
	}
	return f.addFiles(ctx, store, one, report, m.DataFiles)
}

// addFiles resolves the manifest's URIs below the export's own folder, so that a
// copy of the bucket at any depth reads like the bucket, and takes sizes and
// entity tags from one listing of the folder they share.
func (f found) addFiles(ctx context.Context, store objstore.Store, one *Run, report string, files []manifestFile) error {
	keys := make([]string, len(files))
	folders := map[string]bool{}
	for i, file := range files {
		key, err := f.key(report, file.URI)
		if err != nil {
			return fmt.Errorf("%s: %w", f.object.Key, err)
		}
		keys[i] = key
		folders[path.Dir(key)+"/"] = true
	}
	var listed []objstore.Object
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		some, err := store.List(ctx, strings.TrimPrefix(folder, "./"))
		if err != nil {
			return err
		}
		listed = append(listed, some...)
	}
	have := make(map[string]objstore.Object, len(listed))
	for _, o := range listed {
		have[o.Key] = o
	}
	seen := map[string]bool{}
	for i, key := range keys {
		o, ok := have[key]
		switch {
		case seen[key]:
			return fmt.Errorf("%s: data file %s is named twice; its lines would count double", f.object.Key, key)
		case !ok:
			return fmt.Errorf("%s: %w: data file %s is not there; wait for AWS to write it again, or copy it too", f.object.Key, billing.ErrIncomplete, key)
		case files[i].Size > 0 && files[i].Size != o.Size:
			return fmt.Errorf("%s: %w: data file %s has %d bytes and the manifest says %d", f.object.Key, billing.ErrIncomplete, key, o.Size, files[i].Size)
		case !table.IsData(key):
			return fmt.Errorf("%s: data file %s is neither .csv, .csv.gz, .zip nor .parquet; choose one of them in the export's settings", f.object.Key, key)
		}
		seen[key] = true
		one.Files = append(one.Files, billing.File{Key: key, Size: o.Size, ETag: o.ETag})
	}
	return nil
}

// key resolves what the manifest names below the export's own folder.
func (f found) key(report, uri string) (string, error) {
	if f.folder != "" {
		return legacyKey(f, report, uri)
	}
	marker := "data/BILLING_PERIOD=" + f.month.String() + "/"
	at := strings.LastIndex(uri, "/"+marker)
	if at < 0 || path.Clean("/"+uri[at+1:]) != uri[at:] {
		return "", fmt.Errorf("data file %q is not below %s; this is not the layout of an AWS data export", uri, marker)
	}
	return f.root + uri[at+1:], nil
}
