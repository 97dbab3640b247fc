// Package layout finds the deliveries of a provider's export by the manifests it writes:
// which files are the newest whole refresh of a month. It reads no bill.
package layout

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"

	"gpuledger/billing"
	"gpuledger/billing/period"
)

// Run is one refresh of an export: all files of a month so far.
type Run struct {
	Kind      Kind
	Export    string // its name or folder: two of them may hold the same month
	Month     period.Month
	ID        string // the provider's execution, assembly or run id
	Manifest  string // its key
	Submitted time.Time
	Columns   []string // as the manifest lists them, if it does
	Files     []billing.File
	Rows      map[string]int64 // of each file by its key, where the manifest counts them
	Raw       []byte           // the manifest itself
	// Err says what is wrong with the refresh; the others may be read all the same.
	Err error
}

// Kind is what the manifest says that the files are.
type Kind int

// The kinds. A data export of AWS may hold a FOCUS table too: its columns tell.
const (
	AWSExport Kind = iota + 1
	AWSLegacy
	AzureActual
	AzureAmortized
	AzureFOCUS
)

// IsFOCUS reports whether the files of a run are of a FOCUS table.
func IsFOCUS(r Run) bool {
	return r.Kind == AzureFOCUS || r.Kind == AWSExport && slices.Contains(r.Columns, "BilledCost")
}

// Token hashes all that a change of content would change: manifests, and every file's
// key, size and entity tag.
func Token(manifests [][]byte, files []billing.File) [32]byte {
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

// maxManifest bounds what is read of one, in bytes.
const maxManifest = 16 << 20
