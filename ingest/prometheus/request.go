package prometheus

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/prompb"
)

const readPath = "api/v1/read"

// remoteRead sends one query and returns the whole response, and whether it is
// of the streamed kind.
func (s *Source) remoteRead(ctx context.Context, q *prompb.Query) (body []byte, streamed bool, err error) {
	msg := prompb.ReadRequest{
		Queries: []*prompb.Query{q},
		AcceptedResponseTypes: []prompb.ReadRequest_ResponseType{
			prompb.ReadRequest_STREAMED_XOR_CHUNKS, prompb.ReadRequest_SAMPLES,
		},
	}
	raw, err := msg.Marshal()
	if err != nil {
		return nil, false, fmt.Errorf("prometheus: encode the request: %w", err)
	}
	payload := snappy.Encode(nil, raw)
	resp, err := s.retry(ctx, readPath, func(ctx context.Context) (*http.Request, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.endpoint(readPath).String(), bytes.NewReader(payload))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Content-Encoding", "snappy")
		req.Header.Set("Content-Type", "application/x-protobuf")
		req.Header.Set("X-Prometheus-Remote-Read-Version", "0.1.0")
		return req, nil
	}, func(r *response) error {
		switch r.mediaType {
		case "application/x-streamed-protobuf":
			return checkFrames(r.body)
		case "application/x-protobuf":
			return checkSamples(r.body)
		}
		return backoff.Permanent(fmt.Errorf("it answers with %q, which is not remote read: check the URL and whether a proxy asks for a login", r.mediaType))
	})
	if err != nil {
		return nil, false, err
	}
	return resp.body, resp.mediaType == "application/x-streamed-protobuf", nil
}

// response is a whole response of status 200.
type response struct {
	mediaType string
	body      []byte
}

// retry sends a request until an answer passes check: again after a failed
// connection, a response that is cut short, 429 and 5xx, and never after another
// 4xx, which would be the same again.
func (s *Source) retry(ctx context.Context, path string, build func(context.Context) (*http.Request, error), check func(*response) error) (*response, error) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval = s.retryInterval
	tries := 0
	resp, err := backoff.Retry(ctx, func() (*response, error) {
		tries++
		resp, err := s.attempt(ctx, build)
		if err == nil && check != nil {
			err = check(resp)
		}
		return resp, err
	}, backoff.WithBackOff(pause), backoff.WithMaxTries(s.cfg.MaxTries), backoff.WithMaxElapsedTime(s.cfg.MaxRetryTime))
	if err == nil {
		return resp, nil
	}
	var permanent *backoff.PermanentError
	if errors.As(err, &permanent) { // the last try is returned as it is
		err = permanent.Unwrap()
	}
	where := strings.TrimSuffix(s.shown, "/") + "/" + path
	if tries > 1 {
		return nil, fmt.Errorf("prometheus: %s: after %d tries: %w", where, tries, err)
	}
	return nil, fmt.Errorf("prometheus: %s: %w", where, err)
}

func (s *Source) attempt(ctx context.Context, build func(context.Context) (*http.Request, error)) (*response, error) {
	try, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	req, err := build(try)
	if err != nil {
		return nil, backoff.Permanent(err)
	}
	req.Header.Set("User-Agent", "gpuledger")
	for name, value := range s.cfg.Headers {
		req.Header.Set(name, value)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, s.explain(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, statusError(resp)
	}
	body, err := readAll(resp, s.cfg.MaxResponseBytes)
	if err != nil {
		return nil, s.explain(ctx, err)
	}
	mediaType, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		mediaType = "" // shown as such
	}
	return &response{mediaType, body}, nil
}

func readAll(resp *http.Response, limit int64) ([]byte, error) {
	var buf bytes.Buffer
	if resp.ContentLength > 0 && resp.ContentLength <= limit {
		buf.Grow(int(resp.ContentLength) + bytes.MinRead)
	}
	n, err := buf.ReadFrom(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("the response is cut short after %d bytes: %w", n, err)
	}
	if n > limit {
		return nil, backoff.Permanent(fmt.Errorf("the response is larger than %d bytes: %w", limit, ErrTooLarge))
	}
	return buf.Bytes(), nil
}

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
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no complete answer within %s: %w", s.cfg.Timeout, err)
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

func statusError(resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 300)) // only to show
	detail := strings.Join(strings.Fields(strings.ToValidUTF8(string(text), "?")), " ")
	if strings.HasPrefix(detail, "<") {
		detail = "a web page"
	}
	err := fmt.Errorf("%s: %s", resp.Status, detail)
	if detail == "" {
		err = errors.New(resp.Status)
	}
	code := resp.StatusCode
	switch {
	case code == http.StatusTooManyRequests, code >= 500 && code != http.StatusNotImplemented:
		if wait, ok := parseRetryAfter(resp.Header.Get("Retry-After"), time.Now()); ok {
			return &retryAfter{err, &backoff.RetryAfterError{Duration: wait}}
		}
		return err
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		err = fmt.Errorf("%w: check the credentials and headers of this source", err)
	case code == http.StatusNotFound, code == http.StatusMethodNotAllowed, code == http.StatusNotImplemented:
		if strings.HasSuffix(resp.Request.URL.Path, readPath) {
			err = fmt.Errorf("%w: %w", err, ErrNoRemoteRead)
		}
	case code == http.StatusRequestEntityTooLarge, code == http.StatusUnprocessableEntity,
		code == http.StatusBadRequest && strings.Contains(detail, "limit"):
		err = fmt.Errorf("%w: %w", err, ErrTooLarge)
	case code < 400:
		err = fmt.Errorf("%w: give the URL that it leads to", err)
	}
	return backoff.Permanent(err)
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
