package main

import (
	"testing"

	"gpuledger/internal/pgtest"
)

func TestDoctorFindsNothing(t *testing.T) {
	w := healthy()
	code, _, text := w.examine(t, pgtest.New(t, migrate))
	t.Logf("exit %d\n%s", code, text)
}
