package allocate

import (
	"sort"

	"gpuledger/gpu"
)

// slicesOf returns a partition's s_p and D (DESIGN §4.2) under the policy's weight
// and normaliser; 1 of 1 for a whole GPU.
func (s *split) slicesOf(d *gpu.Device, p *gpu.Partition) (slices, of uint64) {
	slices, of = uint64(max(1, p.MemorySlices)), uint64(max(1, p.DeviceSlices))
	if p.Geometry == "" {
		return slices, of
	}
	all := 0 // dominant shares of a geometry can exceed the GPU
	if s.p.Partition.Weight == "dominant" && s.p.Partition.Normaliser == "physical" {
		all = s.dominantSum(d, p.Geometry)
	}
	k := geometryKey{d.Model, p.Geometry, p.Profile, p.MemorySlices, p.DeviceSlices, all, p.ComputeSlices}
	if known, ok := s.geometries[k]; ok {
		return known[0], known[1]
	}
	slices, of = s.weighSlices(d.Model, p, slices, of, uint64(all))
	s.geometries[k] = [2]uint64{slices, of}
	return slices, of
}

func (s *split) weighSlices(model string, p *gpu.Partition, slices, of, configured uint64) (uint64, uint64) {
	m, known := gpu.LookupModel(model)
	if !known || m.MemorySlices == 0 {
		return slices, of
	}
	profiles, named := gpu.GeometryProfiles(m, p.Geometry)
	all := uint64(m.MemorySlices)
	switch s.p.Partition.Weight {
	case "compute":
		slices, all, of = uint64(max(1, p.ComputeSlices)), uint64(m.ComputeSlices), uint64(m.ComputeSlices)
		if named {
			of = uint64(gpu.ConfiguredComputeSlices(m, profiles))
		}
	case "dominant":
		slices, all = uint64(m.DominantSlices(p.MemorySlices, p.ComputeSlices)), uint64(m.MemorySlices*m.ComputeSlices)
		of = all
		if named {
			of = uint64(gpu.ConfiguredDominantSlices(m, profiles))
		}
	}
	if s.p.Partition.Normaliser == "physical" {
		of = max(all, configured)
	}
	return slices, of
}

// dominantSum is Σ dominant slices of the device's instances of one geometry.
func (s *split) dominantSum(d *gpu.Device, geometry string) int {
	m, _ := gpu.LookupModel(d.Model)
	sum := 0
	for i := range d.Partitions {
		if q := &d.Partitions[i]; q.Geometry == geometry {
			sum += m.DominantSlices(q.MemorySlices, q.ComputeSlices)
		}
	}
	return sum
}

// unpartitioned adds the slices that each geometry of a device leaves out.
func (s *split) unpartitioned(d *gpu.Device, overlap, price uint64) {
	type geometry struct {
		configured, of uint64 // Σ slices, D
		first          *gpu.Partition
	}
	all := map[string]*geometry{}
	var names []string
	for i := range d.Partitions {
		p := &d.Partitions[i]
		slices, of := s.slicesOf(d, p)
		g := all[p.Geometry]
		if g == nil {
			g = &geometry{of: of, first: p}
			all[p.Geometry] = g
			names = append(names, p.Geometry)
		}
		g.configured += slices
	}
	sort.Strings(names)
	for _, name := range names {
		g := all[name]
		if name == "" || g.configured >= g.of {
			continue
		}
		category, mode := MIGUnpartitioned, gpu.ModeMIG
		if g.first.Mode == gpu.ModePartition { // a card's partitions are all there, seen or not
			category, mode = string(gpu.NoTelemetry), gpu.ModePartition
		}
		f := s.frame(d.Model, mode)
		by := s.inHour(overlap, (g.of-g.configured)*(s.slices/g.of), price)
		present := uint64(g.first.PresentMicros)
		driver := s.driverMicros(d, g.first.PresentMicros)
		if s.trace != nil {
			s.place.GPUInstance, s.place.Profile = "", ""
		}
		s.add(s.remainder(DriverReserved, f, ""), gpu.NoMethod, driver, by)
		s.add(s.remainder(category, f, ""), gpu.NoMethod, present-driver, by)
	}
}

func (s *split) settleSlices(h *Hour) {
	for j := range h.Devices {
		d := &h.Devices[j]
		for k := range d.Partitions {
			if p := &d.Partitions[k]; p.DeviceSlices > 1 || p.Geometry != "" {
				_, of := s.slicesOf(d, p)
				s.slices = lcm(s.slices, of)
			}
		}
	}
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func lcm(a, b uint64) uint64 { return a / gcd(a, b) * b }
