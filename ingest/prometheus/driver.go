package prometheus

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/prometheus/prompb"

	"gpuledger/ingest"
)

// The ways to read a server, as Config.Driver and Description.Driver have them.
const (
	// Auto takes remote read where it is, and queries elsewhere.
	Auto = "auto"
	// RemoteRead is Prometheus' remote read protocol: the stored chunks.
	RemoteRead = "remote_read"
	// Query asks the query API for raw points: ten times the bytes, and the server
	// holds all of an answer in memory.
	Query = "query"
)

var probe = ingest.Selector{Metrics: []string{"gpuledger_probe"}}

// driver is how the server is read; without a configured one the first call finds
// out, and it stays so for the source's life. Only a server that does not know
// remote read is queried: one that refuses it, or is down, is an error.
func (s *Source) driver(ctx context.Context) (string, error) {
	s.choosing.Lock()
	defer s.choosing.Unlock()
	if s.chosen != "" {
		return s.chosen, nil
	}
	err := s.try(ctx, RemoteRead)
	if err == nil {
		s.chosen = RemoteRead
	} else if errors.Is(err, ErrNoRemoteRead) || errors.Is(err, errOtherKind) {
		if no := s.try(ctx, Query); no != nil {
			return "", fmt.Errorf("neither remote read nor the query API answers: check the URL and its path: %w; %w", err, no)
		}
		s.chosen, err = Query, nil
	}
	return s.chosen, err
}

// try asks for nothing.
func (s *Source) try(ctx context.Context, driver string) error {
	if driver == Query {
		_, err := s.query(ctx, probe, 0, 1, true)
		return err
	}
	_, _, err := s.remoteRead(ctx, &prompb.Query{StartTimestampMs: 0, EndTimestampMs: 0, Matchers: matchers(probe)}, true)
	if errors.Is(err, errNoEndpoint) {
		err = fmt.Errorf("%w: %w", err, ErrNoRemoteRead)
	}
	return err
}
