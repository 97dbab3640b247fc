// Package prometheus reads true samples from a Prometheus and what speaks its API:
// by the remote read protocol, which hands out the stored chunks at a small part of
// the cost that a query has for the server, and where there is none (Thanos Query,
// VictoriaMetrics, the managed services of Amazon and Google) by range selectors,
// which give the raw points. Both give the same samples.
package prometheus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/common/config"
	"github.com/prometheus/prometheus/prompb"

	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/ingest"
)

var (
	// ErrNoRemoteRead reports an endpoint without the remote read protocol, such
	// as Thanos Query, VictoriaMetrics, and the managed services of AWS and Google.
	ErrNoRemoteRead = errors.New("no remote read here: leave driver at auto or set it to query, which asks the query API; " +
		"or give the URL of a Prometheus (behind Thanos: the one beside a sidecar), Mimir or Cortex")
	// ErrTooLarge reports that the server or the limit on a response refuses the
	// amount asked for: a shorter span or fewer metrics may pass.
	ErrTooLarge = ingest.ErrTooLarge
	// ErrPartial reports an answer that by the server's own warning may lack data.
	ErrPartial = errors.New("the answer may be partial (--allow-partial takes it as it is)")

	errNoEndpoint = errors.New("the server has no such endpoint")
	errOtherKind  = errors.New("check the URL and whether a proxy asks for a login")
)

// Config says which server and how to reach it.
type Config struct {
	// URL is the server's base, with its path prefix: http://mimir/prometheus.
	URL string
	// HTTP is the client as in Prometheus' own configuration: TLS, basic auth,
	// bearer, OAuth2, proxy. The zero value means config.DefaultHTTPClientConfig.
	HTTP config.HTTPClientConfig
	// Headers are added to each request, such as X-Scope-OrgID. Their values are
	// treated as secrets.
	Headers map[string]string
	// SigV4 signs requests for Amazon Managed Prometheus; nil: not.
	SigV4 *SigV4
	// Google gets tokens for Google Managed Prometheus; nil: not.
	Google *Google
	// Driver is Auto (also ""), RemoteRead or Query.
	Driver string
	// Retention is how far back the server holds samples, for servers that don't
	// say. 0: unknown.
	Retention time.Duration
	// AllowPartial accepts answers with warnings, which Warnings then returns.
	AllowPartial bool
	// Timeout bounds one attempt. Default: 2 minutes.
	Timeout time.Duration
	// MaxTries bounds the attempts of one request. Default: 4.
	MaxTries uint
	// MaxRetryTime bounds all attempts of one request together. Default: 5 minutes.
	MaxRetryTime time.Duration
	// MaxResponseBytes bounds one response as it is on the wire. A Select holds as
	// much in memory by remote read, and by query the samples of it, 16 bytes each.
	// Past it, the error is ErrTooLarge. Default: 256 MiB, some 100 million samples
	// by remote read and 10 million by query.
	MaxResponseBytes int64
}

// Source is an ingest.Source over one server. It may be used by several
// goroutines; each Select is one request.
type Source struct {
	cfg     Config
	base    *url.URL
	shown   string // base without credentials, for errors
	client  *http.Client
	secrets secrets

	choosing sync.Mutex
	chosen   string            // the driver; "" until it is known
	external map[string]string // the server's external labels; nil until they are known

	mu       sync.Mutex
	warnings []string

	now func() time.Time
	// retryInterval is the first pause before another try.
	retryInterval time.Duration
}

var (
	_ ingest.Source  = (*Source)(nil)
	_ ingest.Partial = (*Source)(nil)
)

// Validate finds settings that contradict each other. It reads no file and does not
// connect. No error repeats a secret.
func (c Config) Validate() error {
	if _, err := parseBase(c.URL); err != nil {
		return err
	}
	if err := c.HTTP.Validate(); err != nil {
		return err
	}
	h := c.HTTP
	var ways []string
	for _, way := range []struct {
		name string
		is   bool
	}{
		{"basic_auth", h.BasicAuth != nil},
		{"authorization", h.Authorization != nil || h.BearerToken != "" || h.BearerTokenFile != ""},
		{"oauth2", h.OAuth2 != nil},
		{"sigv4", c.SigV4 != nil},
		{"google", c.Google != nil},
	} {
		if way.is {
			ways = append(ways, way.name)
		}
	}
	if len(ways) > 1 {
		return fmt.Errorf("%s: only one of them can log in", strings.Join(ways, ", "))
	}
	if c.SigV4 != nil {
		if err := c.SigV4.validate(); err != nil {
			return err
		}
	}
	switch c.Driver {
	case "", Auto, RemoteRead, Query:
		return nil
	}
	return fmt.Errorf("driver %q is not %s, %s or %s", c.Driver, Auto, RemoteRead, Query)
}

func parseBase(text string) (*url.URL, error) {
	base, err := url.Parse(text)
	if err != nil || (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" {
		// The text may hold a password: it is not repeated.
		return nil, errors.New("the URL is not one like http://prometheus:9090")
	}
	return base, nil
}

// New returns a source. It does not connect.
func New(cfg Config) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("prometheus: %w", err)
	}
	base, err := parseBase(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("prometheus: %w", err)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 2 * time.Minute
	}
	if cfg.MaxTries == 0 {
		cfg.MaxTries = 4
	}
	if cfg.MaxRetryTime == 0 {
		cfg.MaxRetryTime = 5 * time.Minute
	}
	if cfg.MaxResponseBytes == 0 {
		cfg.MaxResponseBytes = 256 << 20
	}
	if reflect.ValueOf(cfg.HTTP).IsZero() {
		cfg.HTTP = config.DefaultHTTPClientConfig
	}
	s := &Source{
		cfg: cfg, base: base, shown: base.Scheme + "://" + base.Host + base.EscapedPath(),
		secrets: gather(cfg, base), now: time.Now, retryInterval: 500 * time.Millisecond,
	}
	if err := s.connect(); err != nil {
		return nil, s.secrets.clean(fmt.Errorf("prometheus: HTTP settings for %s: %w", s.shown, err))
	}
	if cfg.Driver != Auto {
		s.chosen = cfg.Driver
	}
	if s.cfg.HTTP.FollowRedirects {
		s.client.CheckRedirect = func(req *http.Request, via []*http.Request) error {
			if req.URL.Host != via[0].URL.Host { // the headers would go along
				return backoff.Permanent(fmt.Errorf("it redirects to another host, %s: give that one's URL", req.URL.Host))
			}
			if req.Method != via[0].Method { // the parameters would be lost
				return backoff.Permanent(fmt.Errorf("it redirects to %s://%s%s: give that URL", req.URL.Scheme, req.URL.Host, req.URL.EscapedPath()))
			}
			if len(via) >= 10 {
				return backoff.Permanent(errors.New("it redirects in circles"))
			}
			return nil
		}
	}
	return s, nil
}

// connect builds the client.
func (s *Source) connect() (err error) {
	if s.client, err = config.NewClientFromConfig(s.cfg.HTTP, "gpuledger"); err != nil {
		return err
	}
	switch {
	case s.cfg.SigV4 != nil:
		s.client.Transport = newAWSTransport(*s.cfg.SigV4, s.client.Transport)
	case s.cfg.Google != nil:
		s.client.Transport = &googleTransport{cfg: *s.cfg.Google, next: s.client.Transport}
	}
	return nil
}

// endpoint joins an API path to the base, which may have a prefix and a query.
func (s *Source) endpoint(path string) *url.URL { return s.base.JoinPath(path) }

// Select implements ingest.Source. fn is called only once the whole response has
// arrived, so a response that is cut short delivers nothing. A series whose
// samples are all NaN or native histograms is not delivered.
func (s *Source) Select(ctx context.Context, sel ingest.Selector, span period.Span, fn func(gpu.Series) error) error {
	start, end := ceilMilli(span.Start), ceilMilli(span.End)
	if empty(sel) || start >= end {
		return nil
	}
	driver, err := s.driver(ctx)
	if err != nil {
		return err
	}
	if driver == Query {
		all, err := s.query(ctx, sel, start, end, false)
		if err != nil {
			return err
		}
		return deliver(ctx, all, fn)
	}
	// The protocol's span is closed on both ends.
	body, streamed, err := s.remoteRead(ctx, &prompb.Query{
		StartTimestampMs: start, EndTimestampMs: end - 1, Matchers: matchers(sel),
	}, false)
	if errors.Is(err, errNoEndpoint) {
		err = fmt.Errorf("%w: %w", err, ErrNoRemoteRead)
	}
	if err != nil {
		return err
	}
	// An error of fn is the caller's own and comes back as it is.
	wrapped := func(x gpu.Series) error {
		if err := ctx.Err(); err != nil {
			return &callerError{err}
		}
		if err := fn(x); err != nil {
			return &callerError{err}
		}
		return nil
	}
	decode := decodeSamples
	if streamed {
		decode = decodeChunks
	}
	err = decode(body, start, end, wrapped)
	var own *callerError
	if errors.As(err, &own) {
		return own.err
	}
	if err != nil {
		return s.at(readPath, err)
	}
	return nil
}

type callerError struct{ err error }

func (e *callerError) Error() string { return e.err.Error() }

// ceilMilli rounds up: the samples at or after a time between two milliseconds
// start at the later one.
func ceilMilli(t time.Time) int64 {
	m := t.UnixMilli()
	if t.After(time.UnixMilli(m)) {
		m++
	}
	return m
}

func matchers(sel ingest.Selector) []*prompb.LabelMatcher {
	out := []*prompb.LabelMatcher{oneOf("__name__", sel.Metrics)}
	for _, label := range slices.Sorted(maps.Keys(sel.Equal)) {
		out = append(out, &prompb.LabelMatcher{Type: prompb.LabelMatcher_EQ, Name: label, Value: sel.Equal[label]})
	}
	for _, label := range slices.Sorted(maps.Keys(sel.OneOf)) {
		out = append(out, oneOf(label, sel.OneOf[label]))
	}
	return out
}

// oneOf matches a label that equals one of the values; the server anchors it.
func oneOf(label string, values []string) *prompb.LabelMatcher {
	values = slices.Compact(slices.Sorted(slices.Values(values)))
	if len(values) == 1 {
		return &prompb.LabelMatcher{Type: prompb.LabelMatcher_EQ, Name: label, Value: values[0]}
	}
	for i := range values {
		values[i] = regexp.QuoteMeta(values[i])
	}
	return &prompb.LabelMatcher{Type: prompb.LabelMatcher_RE, Name: label, Value: strings.Join(values, "|")}
}

// empty reports a selector that no series can match.
func empty(sel ingest.Selector) bool {
	for _, values := range sel.OneOf {
		if len(values) == 0 {
			return true
		}
	}
	return len(sel.Metrics) == 0
}
