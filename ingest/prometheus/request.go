package prometheus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/cenkalti/backoff/v5"
	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/prompb"
)

const readPath = "api/v1/read"

// remoteRead sends one query and returns the whole response, and whether it is
// of the streamed kind.
func (s *Source) remoteRead(ctx context.Context, q *prompb.Query, probe bool) (body []byte, streamed bool, err error) {
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
	err = s.retry(ctx, request{path: readPath, probe: probe, build: func(ctx context.Context) (*http.Request, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.endpoint(readPath).String(), bytes.NewReader(payload))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Content-Encoding", "snappy")
		req.Header.Set("Content-Type", "application/x-protobuf")
		req.Header.Set("X-Prometheus-Remote-Read-Version", "0.1.0")
		return req, nil
	}, read: func(mediaType string, r io.Reader) error {
		check := checkSamples
		switch mediaType {
		case "application/x-streamed-protobuf":
			check, streamed = checkFrames, true
		case "application/x-protobuf":
			streamed = false
		default:
			return backoff.Permanent(notThe("remote read", mediaType))
		}
		if body, err = readAll(r); err != nil {
			return err
		}
		return check(body)
	}})
	return body, streamed, err
}

// notThe is the error of a response of another kind.
func notThe(what, mediaType string) error {
	return fmt.Errorf("it answers with %q, which is not %s: %w", mediaType, what, errOtherKind)
}

func readAll(r io.Reader) ([]byte, error) {
	var buf bytes.Buffer
	if n, err := buf.ReadFrom(r); err != nil {
		return nil, fmt.Errorf("the response is cut short after %d bytes: %w", n, err)
	}
	return buf.Bytes(), nil
}

// request is one request with what its answer has to be.
type request struct {
	path  string
	build func(context.Context) (*http.Request, error)
	// read takes the body of an answer of status 200 apart, anew at each try.
	read  func(mediaType string, body io.Reader) error
	probe bool // asks for nothing, so that less can't be asked for
}

// retry sends a request until its answer is read: again after a failed connection,
// a response that is cut short or damaged, 429 and 5xx, and never after another 4xx,
// which would be the same again. What is too slow twice is too large.
func (s *Source) retry(ctx context.Context, q request) error {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval = s.retryInterval
	tries, slow := 0, 0
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		tries++
		err := s.attempt(ctx, q)
		if errors.Is(err, errSlow) && !q.probe {
			if slow++; slow == maxSlow {
				err = backoff.Permanent(fmt.Errorf("%w: %w", err, ErrTooLarge))
			}
		}
		return struct{}{}, err
	}, backoff.WithBackOff(pause), backoff.WithMaxTries(s.cfg.MaxTries), backoff.WithMaxElapsedTime(s.cfg.MaxRetryTime))
	if err == nil {
		return nil
	}
	var permanent *backoff.PermanentError
	if errors.As(err, &permanent) { // the last try is returned as it is
		err = permanent.Unwrap()
	}
	if tries > 1 {
		err = fmt.Errorf("after %d tries: %w", tries, err)
	}
	return s.at(q.path, err)
}

// maxSlow is after how many answers that did not come in time a request is too large.
const maxSlow = 2

// at says where an error comes from, without any secret.
func (s *Source) at(path string, err error) error {
	return s.secrets.clean(fmt.Errorf("prometheus: %s/%s: %w", strings.TrimSuffix(s.shown, "/"), path, err))
}

func (s *Source) attempt(ctx context.Context, q request) error {
	try, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	req, err := q.build(try)
	if err != nil {
		return backoff.Permanent(err)
	}
	req.Header.Set("User-Agent", "gpuledger")
	for name, value := range s.cfg.Headers {
		req.Header.Set(name, value)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return s.explain(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return statusError(resp)
	}
	mediaType, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		mediaType = "" // shown as such
	}
	err = q.read(mediaType, &limited{r: resp.Body, limit: s.cfg.MaxResponseBytes})
	var refused *apiError
	if errors.As(err, &refused) {
		return refused.classed("")
	}
	if err != nil {
		return s.explain(ctx, err)
	}
	return nil
}

// limited refuses to read more than a limit.
type limited struct {
	r        io.Reader
	n, limit int64
}

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.n += int64(n); l.n > l.limit {
		return 0, backoff.Permanent(fmt.Errorf("the response is larger than %d bytes: %w", l.limit, ErrTooLarge))
	}
	return n, err
}
