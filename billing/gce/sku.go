package gce

import (
	"regexp"
	"strconv"
	"strings"
)

// Part is what of a machine a SKU prices.
type Part string

// The parts. What a SKU of Unknown prices is not told by its description; one of Beside
// prices something that a machine uses and is not part of it: traffic, an address.
const (
	Unknown Part = ""
	Beside  Part = "beside"
	Core    Part = "core"
	RAM     Part = "ram"
	GPU     Part = "gpu"
	Storage Part = "storage" // local SSDs, which come with the machine
	License Part = "license" // of what runs on it, by the core
)

// Component is the part in the words of billing.Component.
func (p Part) Component() string {
	switch p {
	case Core, License:
		return "cpu"
	case RAM:
		return "memory"
	case GPU:
		return "gpu"
	}
	return "node"
}

// PerInstance returns how many units of a part's quantity a machine of the type uses in an
// hour, and 0 where another part tells the machine's time: its GPUs where the type says
// how many, else its cores, which the system label MachineCores gives.
func (p Part) PerInstance(machineType, cores string) int64 {
	gpus := GPUs(machineType)
	switch {
	case p == GPU:
		return gpus
	case p == Core && gpus == 0:
		n, _ := strconv.ParseInt(cores, 10, 32) // no number is no count
		return max(0, n)
	}
	return 0
}

// Names of the labels that Compute Engine gives its lines.
const (
	MachineType      = "compute.googleapis.com/machine_spec"
	MachineCores     = "compute.googleapis.com/cores"
	ReservationName  = "compute.googleapis.com/reservation_name"
	ReservationOwner = "compute.googleapis.com/reservation_project_id"
	UnusedCapacity   = "compute.googleapis.com/is_unused_reservation"
)

var parts = []struct {
	part Part
	word *regexp.Regexp
}{
	{Beside, regexp.MustCompile(`(?i)\b(network|egress|ingress|data transfer|ip charge|pd capacity|snapshot|image)\b`)},
	{License, regexp.MustCompile(`(?i)\blicen[cs]ing fee\b`)},
	{GPU, regexp.MustCompile(`(?i)\bgpus?\b`)},
	{RAM, regexp.MustCompile(`(?i)\b(ram|memory)\b`)},
	{Core, regexp.MustCompile(`(?i)\b(core|v?cpu)s?\b`)},
	{Storage, regexp.MustCompile(`(?i)\blocal (ssd|storage)\b|\bssd backed local\b`)},
}

// PartOf tells by a SKU's description what of a machine it prices: "A2 Instance Core
// running in Americas", "Nvidia L4 GPU attached to Spot Preemptible VMs running in
// Belgium". Source: the SKU catalogue of Compute Engine.
func PartOf(description string) Part {
	for _, p := range parts {
		if p.word.MatchString(description) {
			return p.part
		}
	}
	return Unknown
}

var gpuSuffix = regexp.MustCompile(`-([0-9]+)g$`)

// attached are the accelerator-optimised types whose names count cores.
var attached = map[string]int64{
	"g2-standard-4": 1, "g2-standard-8": 1, "g2-standard-12": 1, "g2-standard-16": 1, "g2-standard-32": 1,
	"g2-standard-24": 2, "g2-standard-48": 4, "g2-standard-96": 8,
	"g4-standard-48": 1, "g4-standard-96": 2, "g4-standard-192": 4, "g4-standard-384": 8,
}

// GPUs returns how many GPUs a machine type comes with, 0 where its name does not say: an
// N1 has what was attached to it. Source: the machine types of Compute Engine.
func GPUs(machineType string) int64 {
	if n, ok := attached[strings.ToLower(machineType)]; ok {
		return n
	}
	if m := gpuSuffix.FindStringSubmatch(strings.ToLower(machineType)); m != nil {
		n, _ := strconv.ParseInt(m[1], 10, 32) // digits; out of range is 0 enough
		return n
	}
	return 0
}
