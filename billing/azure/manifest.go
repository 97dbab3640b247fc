package azure

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"sort"
	"strings"
	"time"

	"gpuledger/billing"
	"gpuledger/billing/period"
	"gpuledger/billing/table"
	"gpuledger/objstore"
)

// manifest is manifest.json of one run of an export. A run is the whole month so far.
type manifest struct {
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

// run is one run of an export with the files it has.
type run struct {
	key       string // of its manifest, or of its one file
	export    string
	kind      kind
	month     period.Month
	submitted time.Time
	id        string
	raw       []byte
	files     []billing.File
	about     map[string]file
	header    []string
}

// Deliveries returns the newest run of each month and kind of export, an actual and an
// amortized one together. Where some months are whole and others are not, it returns the
// whole ones together with the error about the others.
func (r *Reader) Deliveries(ctx context.Context) ([]billing.Delivery, error) {
	objects, err := r.store.List(ctx, "")
	if err != nil {
		return nil, r.wrap(err)
	}
	byKey := map[string]objstore.Object{}
	var manifests []objstore.Object
	for _, o := range objects {
		byKey[o.Key] = o
		if strings.EqualFold(path.Base(o.Key), "manifest.json") {
			manifests = append(manifests, o)
		}
	}
	var runs []*run
	var errs []error
	focus := 0
	for _, o := range manifests {
		one, err := r.manifest(ctx, o, byKey)
		switch {
		case errors.Is(err, errFOCUS):
			focus++
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", o.Key, err))
		default:
			runs = append(runs, one)
		}
	}
	if len(manifests) == 0 {
		if runs, err = r.single(ctx, objects); err != nil {
			return nil, r.wrap(err)
		}
	}
	if len(runs) == 0 && len(errs) == 0 {
		if focus > 0 {
			return nil, r.wrap(fmt.Errorf("%s: the exports there are FOCUS exports; read them as type focus", r.store.Location()))
		}
		return nil, r.wrap(fmt.Errorf("%s: %w: no manifest.json and no .csv, .csv.gz or .parquet file there", r.store.Location(), billing.ErrIncomplete))
	}
	out, err := r.deliveries(runs)
	return out, r.wrap(errors.Join(append(errs, err)...))
}

var errFOCUS = errors.New("a FOCUS export")

// manifest reads one manifest and checks the files it names.
func (r *Reader) manifest(ctx context.Context, o objstore.Object, have map[string]objstore.Object) (*run, error) {
	body, obj, err := r.store.Get(ctx, o.Key, o.ETag)
	if err != nil {
		return nil, table.Incomplete(o.Key, err)
	}
	defer body.Close()
	raw, err := io.ReadAll(io.LimitReader(body, maxManifest))
	if err != nil {
		return nil, table.Incomplete(o.Key, err)
	}
	var m manifest
	if err := json.Unmarshal([]byte(strings.TrimPrefix(string(raw), "\ufeff")), &m); err != nil {
		return nil, fmt.Errorf("%w: not a readable manifest (%w)", billing.ErrIncomplete, err)
	}
	one := &run{key: o.Key, export: m.ExportConfig.ExportName, id: m.RunInfo.RunID, raw: raw, submitted: obj.Modified, about: map[string]file{}}
	switch kind := m.ExportConfig.Type; {
	case strings.EqualFold(kind, "ActualCost"), strings.EqualFold(kind, "Usage"):
		one.kind = actual
	case strings.EqualFold(kind, "AmortizedCost"):
		one.kind = amortized
	case strings.EqualFold(kind, "FocusCost"):
		return nil, errFOCUS
	default:
		return nil, fmt.Errorf("an export of type %q: choose cost and usage details, actual and amortized", kind)
	}
	if t, err := parseStamp(m.RunInfo.SubmittedTime); err == nil {
		one.submitted = t
	}
	start, err := parseStamp(m.RunInfo.StartDate)
	if err != nil {
		return nil, fmt.Errorf("runInfo.startDate: %w", err)
	}
	one.month = period.MonthOf(start)
	if m.BlobCount != nil && *m.BlobCount != len(m.Blobs) {
		return nil, fmt.Errorf("%w: blobCount is %d and %d blobs are named", billing.ErrIncomplete, *m.BlobCount, len(m.Blobs))
	}
	var sum int64
	for _, b := range m.Blobs {
		key, ok := resolve(o.Key, b.BlobName, have)
		switch {
		case !ok:
			return nil, fmt.Errorf("%w: data file %s is not there; wait for the export to finish, or copy it too", billing.ErrIncomplete, b.BlobName)
		case have[key].Size != b.ByteCount:
			return nil, fmt.Errorf("%w: data file %s has %d bytes and the manifest says %d", billing.ErrIncomplete, key, have[key].Size, b.ByteCount)
		case !table.IsData(key):
			return nil, fmt.Errorf("data file %s is neither .csv, .csv.gz nor .parquet", key)
		}
		f := file{kind: one.kind, rows: -1}
		if b.DataRowCount != nil {
			f.rows = *b.DataRowCount
			sum += f.rows
		}
		if _, twice := one.about[key]; twice {
			return nil, fmt.Errorf("data file %s is named twice; its lines would count double", key)
		}
		one.about[key] = f
		one.files = append(one.files, billing.File{Key: key, Size: have[key].Size, ETag: have[key].ETag})
	}
	if m.DataRowCount != nil && len(m.Blobs) > 0 && sum > 0 && *m.DataRowCount != sum {
		return nil, fmt.Errorf("%w: dataRowCount is %d and the blobs' add up to %d", billing.ErrIncomplete, *m.DataRowCount, sum)
	}
	return one, nil
}

const maxManifest = 16 << 20

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

// deliveries takes the newest run of each month and kind.
func (r *Reader) deliveries(runs []*run) (out []billing.Delivery, err error) {
	type slot struct {
		month period.Month
		kind  kind
	}
	newest := map[slot]*run{}
	for _, one := range runs {
		s := slot{one.month, one.kind}
		have := newest[s]
		if have != nil && have.export != one.export {
			return nil, fmt.Errorf("%s: two exports hold %s (%s and %s); point the location at one of them, or the month counts twice", r.store.Location(), one.month, have.key, one.key)
		}
		if have == nil || one.submitted.After(have.submitted) || one.submitted.Equal(have.submitted) && one.key > have.key {
			newest[s] = one
		}
	}
	// A month's inconclusive run is what the other is not.
	for s, one := range newest {
		if s.kind != both {
			continue
		}
		for of, is := range map[kind]kind{actual: amortized, amortized: actual} {
			if newest[slot{s.month, of}] != nil {
				one.become(is)
				newest[slot{s.month, is}] = one
				delete(newest, s)
			}
		}
	}
	files := map[string]file{}
	months := map[period.Month]*billing.Delivery{}
	raw := map[period.Month][][]byte{}
	kinds := map[period.Month]map[kind]bool{}
	for _, k := range []kind{amortized, actual, both} {
		for s, one := range newest {
			if s.kind != k {
				continue
			}
			d := months[s.month]
			if d == nil {
				d = &billing.Delivery{Format: "Azure " + k.String(), BillingPeriod: s.month, Manifest: one.key, ID: one.id, Columns: one.header}
				months[s.month], kinds[s.month] = d, map[kind]bool{}
			} else {
				d.Format, d.ID = "Azure actual and amortized", d.ID+" "+one.id
			}
			kinds[s.month][k] = true
			d.Files = append(d.Files, one.files...)
			if one.submitted.After(d.Submitted) {
				d.Submitted = one.submitted
			}
			raw[s.month] = append(raw[s.month], one.raw)
			for key, f := range one.about {
				files[key] = f
			}
		}
	}
	for m, d := range months {
		d.Notes = notesOf(kinds[m])
		d.Token = token(raw[m], d.Files)
		out = append(out, *d)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].BillingPeriod.Start().Before(out[j].BillingPeriod.Start()) })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.files = files
	return out, nil
}

// become settles what the run's files are.
func (one *run) become(k kind) {
	one.kind = k
	for key, f := range one.about {
		one.about[key] = file{k, f.rows}
	}
}

func notesOf(have map[kind]bool) []string {
	notes := []string{"contracted cost unavailable: the export does not state it"}
	switch {
	case have[actual] && have[amortized], have[both]:
	case have[actual]:
		notes = append(notes, "effective cost is the billed cost: there is no amortized export, so what a reservation or savings plan covers costs nothing; add one")
	default:
		notes = append(notes, "billed cost lacks the purchases of reservations and savings plans: there is no actual export; add one")
	}
	return notes
}

// token hashes all that a change of content would change.
func token(manifests [][]byte, files []billing.File) [32]byte {
	h := sha256.New()
	field := func(b []byte) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(b))))
		h.Write(b)
	}
	for _, m := range manifests {
		field(m)
	}
	for _, f := range files {
		field([]byte(f.Key))
		field(binary.BigEndian.AppendUint64(nil, uint64(f.Size)))
		field([]byte(f.ETag))
	}
	return [32]byte(h.Sum(nil))
}
