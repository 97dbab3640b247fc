package prometheus

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/prompb"

	"gpuledger/gpu"
	"gpuledger/ingest"
)

// StripStreaming turns a remote read request into one of the older kind.
func StripStreaming(t *testing.T, r *http.Request) {
	if !strings.HasSuffix(r.URL.Path, readPath) {
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	raw, err := snappy.Decode(nil, body)
	if err != nil {
		t.Error(err)
	}
	var msg prompb.ReadRequest
	if err := msg.Unmarshal(raw); err != nil {
		t.Error(err)
	}
	msg.AcceptedResponseTypes = nil
	if raw, err = msg.Marshal(); err != nil {
		t.Error(err)
	}
	body = snappy.Encode(nil, raw)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
}

// SetRetryInterval shortens the pauses of tests.
func (s *Source) SetRetryInterval(d time.Duration) { s.retryInterval = d }

// SetNow sets the clock.
func (s *Source) SetNow(now func() time.Time) { s.now = now }

// The decoders, which take what servers send.
func DecodeChunks(body []byte, start, end int64, fn func(gpu.Series) error) error {
	if err := checkFrames(body); err != nil {
		return err
	}
	return decodeChunks(body, start, end, fn)
}

func DecodeSamples(body []byte, start, end int64, fn func(gpu.Series) error) error {
	return decodeSamples(body, start, end, fn)
}

func DecodeMatrix(r io.Reader, start, end int64) ([]gpu.Series, []string, error) {
	return decodeMatrix(r, start, end)
}

func DecodeSeries(r io.Reader) ([]gpu.Series, []string, error) { return decodeSeries(r) }

// Selector is the selector in PromQL.
func Selector(sel ingest.Selector) string { return selector(sel) }
