//go:build !unix

package localpg

import (
	"context"
	"errors"
)

var errUnsupported = errors.New("a private Postgres is not supported on this system: set DATABASE_URL")

type (
	process  struct{}
	lockFile struct{}
)

// Start is not supported here.
func Start(context.Context, Options) (*Server, error) { return nil, errUnsupported }

// Attach is not supported here.
func Attach(context.Context, string) (*Server, error) { return nil, errUnsupported }

// StopRunning is not supported here.
func StopRunning(context.Context, string) (int, error) { return 0, errUnsupported }

// InUse is never so here.
func InUse(string) bool { return false }

// Stop does nothing.
func (s *Server) Stop() error { return nil }

// Exited never ends.
func (s *Server) Exited() <-chan struct{} { return nil }

// EnsureDatabase is not supported here.
func (s *Server) EnsureDatabase(context.Context, string) error { return errUnsupported }
