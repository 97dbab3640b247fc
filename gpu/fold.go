package gpu

import (
	"fmt"
	"sort"
	"time"

	"gpuledger/billing/period"
)

// Neighbourhood is how far to either side of an hour samples are read, so that a
// sample at the edge knows its neighbour.
const Neighbourhood = 15 * time.Minute

// FoldHour turns one hour of a cluster's series into node-hours, one for each GPU
// node. The series hold the samples of the hour and of Neighbourhood to either
// side; the result does not depend on their order, nor on what was read with them.
func FoldHour(inventory, devices []Series, hour time.Time, settings Settings) ClusterHour {
	span := period.Span{Start: hour, End: hour.Add(time.Hour)}
	inventory, devices = clipped(inventory, spanMicros(span)), clipped(devices, spanMicros(span))
	inv := NewInventory(inventory, settings, span)
	tel := NewTelemetry(devices, inv, span, settings)
	out := ClusterHour{Hour: hour, CoveredMicros: total(intersect(inv.covered, []interval{spanMicros(span)})), Unplaced: tel.Unplaced(), Inventory: inv}
	for _, name := range gpuNodes(inv, tel) {
		if c, ok := inv.Nodes[name].clash(spanMicros(span)); ok {
			out.Clashes = append(out.Clashes, c)
		}
		for _, f := range foldsOf(inv, tel, name, spanMicros(span)) {
			f.settings = settings
			if nh, ok := f.fold(); ok {
				nh.Hour = hour
				out.Nodes = append(out.Nodes, nh)
			}
		}
	}
	return out
}

// foldsOf returns one fold for each machine that had the node's name within the hour,
// with the time it had it and the devices seen then. A node known only from outside
// the hour has none: it was not part of the cluster.
func foldsOf(inv *Inventory, tel *Telemetry, name string, hour interval) []nodeFold {
	f := nodeFold{inv: inv, hour: hour, name: name, node: inv.Nodes[name], within: []interval{hour}, devices: tel.devicesOf(name)}
	if f.node == nil || len(f.node.machines) == 0 {
		return []nodeFold{f}
	}
	var out []nodeFold
	for _, m := range f.node.machines {
		one := f
		one.instanceID, one.providerID = m.instanceID, m.providerID
		if len(f.node.machines) > 1 {
			one.within = intersect(m.present, []interval{hour})
			one.devices = nil
			for _, d := range f.devices {
				if d.isOf(m, f.node.machines, hour) {
					one.devices = append(one.devices, d)
				}
			}
		}
		if total(intersect(m.present, []interval{hour})) > 0 || len(f.node.machines) == 1 && total(intersect(inv.covered, []interval{hour})) < hour.length() {
			out = append(out, one)
		}
	}
	return out
}

// isOf tells the machine that a device is in by its samples: one at the edge may be of
// the machine before, so a device is where most of them are, and where several are.
func (d *device) isOf(m machine, all []machine, hour interval) bool {
	within := func(m machine) int {
		n, present := 0, intersect(m.present, []interval{hour})
		for _, p := range d.parts {
			for _, at := range p.times {
				if contains(present, at) {
					n++
				}
			}
		}
		for _, at := range d.alive {
			if contains(present, at) {
				n++
			}
		}
		return n
	}
	mine, others := within(m), 0
	for _, o := range all {
		if o.instanceID != m.instanceID {
			others = max(others, within(o))
		}
	}
	return mine > 0 && (mine >= others || mine > strays)
}

// strays is how many samples of a device may seem to be of the machine after its own.
const strays = 3

// coverage is when any part of the device has samples.
func (d *device) coverage() []interval {
	var all []interval
	for _, p := range d.parts {
		all = append(all, p.coverage()...)
	}
	return union(all)
}

// gpuNodes are the nodes with devices, with GPU capacity, or of a GPU instance type.
func gpuNodes(inv *Inventory, tel *Telemetry) []string {
	set := map[string]bool{}
	for _, n := range tel.Nodes() {
		set[n] = true
	}
	for name, n := range inv.Nodes {
		if len(n.GPUCapacity) > 0 || IsGPUInstanceType(n.InstanceType) || n.Labels["nvidia_com_gpu_count"] != "" {
			set[name] = true
		}
	}
	out := make([]string, 0, len(set))
	for n := range set {
		out = append(out, n)
	}
	sort.Strings(out)
	return out
}

// nodeFold folds one node's hour.
type nodeFold struct {
	inv     *Inventory
	hour    interval
	name    string
	node    *Node // nil where kube-state-metrics does not know it
	devices []*device
	within  []interval // when the name was this machine's

	instanceID, providerID string

	ready    []interval
	settings Settings
	mode     Mode
	replicas int

	configured bool // the mode is the configuration's
	silent     int  // devices made up from MIG requests, where no series shows any
	byCapacity bool // the devices are counted by the node's capacity alone
}

func (f *nodeFold) fold() (NodeHour, bool) {
	uncovered := f.settleReady()
	nh := NodeHour{Node: f.name, InstanceID: f.instanceID, ProviderID: f.providerID, ReadyMicros: total(f.ready), UncoveredMicros: uncovered}
	if n := len(f.ready); n > 0 {
		nh.ReadyStartMicros, nh.ReadyEndMicros = f.ready[0].start-f.hour.start, f.ready[n-1].end-f.hour.start
	}
	if f.node != nil {
		nh.CPUMilli, nh.MemoryBytes = f.node.CPUMilli, f.node.MemoryBytes
		nh.Pool, nh.InstanceType = f.node.Pool, f.node.InstanceType
	}
	if uncovered == f.hour.length() {
		return nh, false // nothing known: as if it had not been read
	}
	pods := f.pods()
	for _, p := range pods {
		nh.Pods = append(nh.Pods, f.podUse(p))
	}
	if nh.ReadyMicros == 0 {
		return nh, true
	}
	var want int
	want, f.byCapacity = f.expectedDevices(pods)
	f.mode, f.replicas = f.sharing(max(want, len(f.devices)) - f.partitioned())
	var parts []*placedPart
	if len(f.devices) == 0 {
		parts = f.requestedInstances(pods, &want)
	}
	parts = append(parts, f.partitions(want)...)
	f.place(parts, pods)
	f.fractions(parts, pods)
	for _, pp := range parts {
		pp.configured = f.configured && pp.Geometry == ""
		pp.settleMode()
	}
	nh.Devices = append(nh.Devices, f.assemble(parts)...)
	return nh, true
}

// settleReady works out when the node was ready and how much of the hour nothing
// is known about. Device samples are evidence where the inventory has a hole.
func (f *nodeFold) settleReady() (uncovered int64) {
	hour := []interval{f.hour}
	var seen []interval
	for _, d := range f.devices {
		seen = append(seen, d.coverage()...)
	}
	seen = intersect(union(seen), f.within)
	if f.node == nil {
		f.ready = seen
		return f.hour.length() - total(seen)
	}
	covered := intersect(f.inv.covered, hour)
	evidence := intersect(seen, complement(covered, f.hour))
	f.ready = union(append(intersect(f.node.ready, f.within), evidence...))
	return f.hour.length() - total(union(append(covered, evidence...)))
}

func complement(in []interval, within interval) []interval {
	var out []interval
	at := within.start
	for _, i := range in {
		if i.start > at {
			out = append(out, interval{at, i.start})
		}
		at = max(at, i.end)
	}
	if at < within.end {
		out = append(out, interval{at, within.end})
	}
	return out
}

// pods returns the pods on the node that lived within the hour, by UID.
func (f *nodeFold) pods() []*Pod {
	var out []*Pod
	for _, p := range f.inv.onNode[f.name] {
		if f.lived(p) > 0 {
			out = append(out, p)
		}
	}
	return out
}

// lived is how long a pod lived on this machine within the hour.
func (f *nodeFold) lived(p *Pod) int64 { return total(intersect([]interval{p.life}, f.within)) }

func (f *nodeFold) podUse(p *Pod) PodUse {
	u := PodUse{
		PodUID: p.UID, LifeMicros: f.lived(p),
		CPUMilli: p.Requests["cpu"], Memory: p.Requests["memory"], GPUs: p.gpuRequest(),
	}
	if lived := intersect([]interval{p.life}, f.within); len(lived) > 0 {
		u.StartMicros = lived[0].start - f.hour.start
	}
	u.CPUUsedMilli, u.MemoryUsed = p.used()
	return u
}

func (p *Pod) gpuRequest() int64 {
	var n int64
	for r, q := range p.Requests { // of all resources, only these are kept beside GPUs
		if r != "cpu" && r != "memory" {
			n += q
		}
	}
	return n
}

// placedPart is a partition with the pods that hold it.
type placedPart struct {
	dev      *device // nil for a device no series shows
	devIndex int
	part     *part // nil without series
	Partition
	present []interval
	// unpartitioned is when a MIG-enabled GPU was seen without any instance.
	unpartitioned []interval
	fractionOf    Mode // what the GPU is to who has no fraction of it
	configured    bool // the mode is the configuration's: nothing in the data changes it
	inferred      bool // the mode is told by the shape of the data
	data          *readings
	holders       []*holder
}

// partitions lists the node's partitions: each device's GPU or MIG instances by
// epoch of its geometry, then one whole GPU for each device that no series shows.
func (f *nodeFold) partitions(want int) []*placedPart {
	var out []*placedPart
	for i, d := range f.devices {
		instances := d.instances()
		if len(instances) == 0 {
			p := d.parts[partKey{}]
			pp := &placedPart{dev: d, devIndex: i, part: p, present: f.ready, Partition: Partition{
				MemorySlices: 1, DeviceSlices: 1, ComputeSlices: 1, Mode: f.mode, Replicas: f.replicas,
			}}
			if p == nil && f.migEnabled() {
				pp.unpartitioned, pp.Mode = d.seen(), ModeMIG
			}
			out = append(out, pp)
			continue
		}
		out = append(out, f.migPartitions(d, i, instances)...)
	}
	for k := len(f.devices); k < want; k++ {
		out = append(out, &placedPart{devIndex: f.silent + k, present: f.ready, Partition: Partition{
			MemorySlices: 1, DeviceSlices: 1, ComputeSlices: 1, Mode: f.mode, Replicas: f.replicas,
		}})
	}
	for _, pp := range out {
		pp.data = newReadings(pp.part)
		pp.UsableBytes = f.usable(pp)
		pp.PresentMicros = total(pp.present)
	}
	return out
}

// usable is M: total less what the driver keeps, as measured, else from the model.
func (f *nodeFold) usable(pp *placedPart) uint64 {
	if pp.part != nil && pp.part.usable > 0 {
		return pp.part.usable
	}
	m, ok := f.modelOf(pp)
	if !ok {
		return 0
	}
	if pp.Geometry != "" && m.MemorySlices > 0 {
		return m.TotalBytes * uint64(pp.MemorySlices) / uint64(m.MemorySlices)
	}
	return m.TotalBytes
}

func (f *nodeFold) modelOf(pp *placedPart) (Model, bool) {
	if pp.dev != nil && pp.dev.rawModel != "" {
		return f.settings.model(pp.dev.rawModel)
	}
	if f.node != nil {
		if t, ok := LookupInstanceType(f.node.InstanceType); ok {
			return f.settings.model(t.Model)
		}
		return f.settings.model(f.node.Labels["nvidia_com_gpu_product"])
	}
	return Model{}, false
}

// assemble integrates every partition and groups them by device.
func (f *nodeFold) assemble(parts []*placedPart) []Device {
	var out []Device
	for _, pp := range parts {
		if n := len(out); n == 0 || out[n-1].UUID != f.uuidOf(pp) {
			out = append(out, f.deviceOf(pp))
		}
		d := &out[len(out)-1]
		pp.Rows = integrate(pp, f.hour)
		d.Partitions = append(d.Partitions, pp.Partition)
	}
	return out
}

func (f *nodeFold) uuidOf(pp *placedPart) string {
	if pp.dev == nil {
		return fmt.Sprintf("missing-%d", pp.devIndex)
	}
	return pp.dev.uuid
}

func (f *nodeFold) deviceOf(pp *placedPart) Device {
	d := Device{UUID: f.uuidOf(pp), GPUUtil: -1, EngineActive: -1, SMActive: -1, DRAMActive: -1}
	m, known := f.modelOf(pp)
	if pp.dev == nil {
		d.Model, d.RawModel, d.TotalBytes = m.Name, m.Name, m.TotalBytes
		return d
	}
	d.RawModel, d.Model = pp.dev.rawModel, NormalizeModel(pp.dev.rawModel)
	a := &pp.dev.active
	d.GPUUtil, d.EngineActive, d.SMActive, d.DRAMActive, d.Dropped = a[0].value(), a[1].value(), a[2].value(), a[3].value(), pp.dev.dropped
	if known {
		d.TotalBytes = m.TotalBytes
	}
	if whole := pp.dev.parts[partKey{}]; whole != nil {
		if whole.total > 0 {
			d.TotalBytes = whole.total
		}
		d.ReservedBytes = whole.reserve
		if d.ReservedBytes == 0 && whole.usable > 0 && whole.usable < d.TotalBytes {
			d.ReservedBytes = d.TotalBytes - whole.usable
		}
	}
	if d.ReservedBytes == 0 { // under MIG the driver's part is said of each instance
		var profiles []Profile
		var reserved uint64
		for _, p := range pp.dev.instances() {
			profiles = append(profiles, p.resolved(m))
			reserved += p.reserve
		}
		if known && len(profiles) > 0 && Fits(m, profiles) {
			d.ReservedBytes = reserved
		}
	}
	return d
}
