// Package gpuledger turns a cloud bill and GPU telemetry into a chargeback in
// Postgres that ties out to the last digit.
//
// The way of a number through the program:
//
//	bills    billing/aws, billing/focus → billing.Line ─┐
//	                                                    ├→ warehouse (staging → promote)
//	metrics  ingest/prometheus, ingest/openmetrics      │
//	         → gpu.FoldHour → occupancy ────────────────┘
//	                                                        │
//	         finance views ← warehouse ← allocate.Split ←───┘
//
// billing/money and billing/period hold exact amounts and UTC intervals; policy
// holds policy.yaml and owners.yaml; chargeback makes the files that people read;
// cmd/gpuledger is the only place where the parts are wired together.
//
// This package holds only what is embedded in the binary: the migrations and the
// SQL of the views and of the ready-to-run questions.
package gpuledger
