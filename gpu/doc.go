// Package gpu knows GPUs on Kubernetes: models, instance types, MIG profiles,
// sharing modes, nodes, devices, partitions and pods, and how their samples
// become occupancy: who held which part of which device, for how long.
//
// It is pure: no clock, network, SQL or logging. Times are UTC, durations are
// whole microseconds, memory is whole bytes. Facts behind the tables and rules
// are NVIDIA's: the dcgm-exporter's sources, the MIG user guide, and the GPU
// feature discovery labels.
package gpu
