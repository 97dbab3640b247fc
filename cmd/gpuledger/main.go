// Command gpuledger turns a cloud bill and GPU telemetry into a chargeback in
// Postgres. This package holds flags, configuration, wiring and exit codes; one
// file a command.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
