package prometheus

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cenkalti/backoff/v5"
)

// errSlow reports an answer that did not come in time, by our limit or the server's.
var errSlow = errors.New("too slow")

// explain makes an error of the transport safe to show and says what to do.
func (s *Source) explain(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return backoff.Permanent(cause)
	}
	var urlErr *url.Error
	if errors.As(err, &urlErr) { // it repeats the URL, and its query may hold a token
		err = urlErr.Err
	}
	var permanent *backoff.PermanentError
	if errors.As(err, &permanent) {
		return err
	}
	var cert *tls.CertificateVerificationError
	if errors.As(err, &cert) {
		return backoff.Permanent(fmt.Errorf("its certificate is not trusted: %w: set tls_config.ca_file", err))
	}
	var timeout net.Error
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("no complete answer within %s: %w: %w", s.cfg.Timeout, err, errSlow)
	}
	return err
}

// retryAfter carries the server's wish to backoff.Retry without showing it.
type retryAfter struct {
	err  error
	wish *backoff.RetryAfterError
}

func (e *retryAfter) Error() string   { return e.err.Error() }
func (e *retryAfter) Unwrap() []error { return []error{e.err, e.wish} }

// apiError is a failure in the server's words.
type apiError struct {
	code       int    // the HTTP status; 200 where only the answer says that it failed
	status     string // the same as text
	kind, text string // errorType and error of the API, or nothing and the body
}

func (e *apiError) Error() string {
	parts := make([]string, 0, 3)
	if e.code != http.StatusOK {
		parts = append(parts, e.status)
	}
	for _, p := range []string{e.kind, e.text} {
		if p != "" {
			parts = append(parts, shorten(p))
		}
	}
	return "the server says: " + strings.Join(parts, ": ")
}

// shorten makes a server's text fit into a line.
func shorten(text string) string {
	const most = 400
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")
	if len(text) <= most {
		return text
	}
	cut := most
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}

func statusError(resp *http.Response) error {
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // only to show
	e := &apiError{code: resp.StatusCode, status: resp.Status}
	var said struct{ ErrorType, Error string }
	switch {
	case json.Unmarshal(raw, &said) == nil && said.Error != "":
		e.kind, e.text = said.ErrorType, said.Error
	case strings.HasPrefix(strings.TrimSpace(string(raw)), "<"):
		e.text = "a web page"
	default:
		e.text = string(raw)
	}
	return e.classed(resp.Header.Get("Retry-After"))
}

// classed says whether another try or a smaller request may help.
func (e *apiError) classed(wish string) error {
	lower := strings.ToLower(e.text)
	busy := e.code == http.StatusTooManyRequests || strings.Contains(lower, "concurrent") || strings.Contains(lower, "outstanding requests")
	switch {
	case !busy && containsAny(lower, limitTexts):
		return backoff.Permanent(fmt.Errorf("%w: %w", e, ErrTooLarge))
	case !busy && (e.kind == "timeout" || e.code == http.StatusGatewayTimeout || containsAny(lower, slowTexts)):
		return fmt.Errorf("%w: %w", e, errSlow)
	case busy, e.code >= 500 && e.code != http.StatusNotImplemented,
		e.code == http.StatusOK && (e.kind == "internal" || e.kind == "unavailable"):
		if wait, ok := parseRetryAfter(wish, time.Now()); ok {
			return &retryAfter{e, &backoff.RetryAfterError{Duration: wait}}
		}
		return e
	case e.code == http.StatusUnauthorized, e.code == http.StatusForbidden:
		return backoff.Permanent(fmt.Errorf("%w: check the credentials and headers of this source", e))
	case e.code == http.StatusNotFound, e.code == http.StatusMethodNotAllowed, e.code == http.StatusNotImplemented,
		e.code == http.StatusBadRequest && strings.Contains(lower, "unsupported path"): // VictoriaMetrics
		return backoff.Permanent(fmt.Errorf("%w: %w", e, errNoEndpoint))
	case e.code == http.StatusRequestEntityTooLarge, e.code == http.StatusUnprocessableEntity:
		return backoff.Permanent(fmt.Errorf("%w: %w", e, ErrTooLarge))
	case e.code >= 300 && e.code < 400:
		return backoff.Permanent(fmt.Errorf("%w: give the URL that it leads to", e))
	}
	return backoff.Permanent(e)
}

// limitTexts are what servers say, in lower case, when a query is over a limit that
// a smaller one may keep. Their status differs: Prometheus has 400 and 422, Cortex
// and Thanos also 500.
var limitTexts = []string{
	"too many samples",                                                                                                  // Prometheus' --query.max-samples
	"exceeded sample limit",                                                                                             // Prometheus' --storage.remote.read-sample-limit
	"exceeded maximum resolution",                                                                                       // 11,000 points a series
	"err-mimir-max-",                                                                                                    // Mimir's per-tenant limits
	"the query exceeded the",                                                                                            // Mimir, before its limits had ids
	"query time range exceeds",                                                                                          // Mimir, Cortex, Amazon
	"the query hit the",                                                                                                 // Cortex, Amazon: "… max number of chunks limit", "… aggregated data size limit"
	"exceeded series limit", "exceeded chunks limit", "exceeded samples limit", "exceeded bytes limit", "violated (got", // Thanos, Cortex
	"-search.max",              // VictoriaMetrics names the flag to raise
	"not enough memory for",    // VictoriaMetrics
	"message larger than max",  // gRPC between the parts of Thanos, Mimir, Cortex
	"response size exceeds",    // proxies
	"exceeds the maximum size", // the same
}

// slowTexts are what servers say when they give up on a query.
var slowTexts = []string{"query timed out", "context deadline exceeded", "timeout during"}

func containsAny(text string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(text, p) {
			return true
		}
	}
	return false
}

// parseRetryAfter reads seconds or a date.
func parseRetryAfter(text string, now time.Time) (time.Duration, bool) {
	if n, err := strconv.Atoi(text); err == nil && n >= 0 && n < 1<<31 {
		return time.Duration(n) * time.Second, true
	}
	if t, err := http.ParseTime(text); err == nil {
		return max(0, t.Sub(now)), true
	}
	return 0, false
}
