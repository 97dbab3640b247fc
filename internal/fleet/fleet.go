// Package fleet makes synthetic GPU fleets and writes the files a user of the
// program has: a CUR 2.0 delivery, OpenMetrics files, and the configuration. A
// Fleet is plain data, so that a test can work out by hand what the program must
// say of it. The same fleet is the same bytes on every machine: everything is
// integers, decimal text and hashes of names.
package fleet

import (
	"cmp"
	"slices"
	"time"

	"gpuledger/billing/period"
)

// Fleet is one cluster for one month with the bill for it.
type Fleet struct {
	Cluster string
	Month   period.Month
	Region  string
	Payer   string // AWS account that pays
	Account string // AWS account of the cluster

	// Interval is the distance of device samples, InventoryInterval that of
	// kube-state-metrics. Both scrape half an interval after midnight, so that a
	// sample stands for exactly one interval of the grid from midnight, and a step
	// on the grid is measured where it happens.
	Interval          time.Duration
	InventoryInterval time.Duration

	Nodes      []Node
	Pods       []Pod
	Namespaces []Namespace
	Charges    []Charge // every line that is not an instance's hours
	Parquet    bool     // the bill as Parquet instead of gzipped CSV

	Policy string // the text of policy.yaml
	Owners string // the text of owners.yaml
}

// Purchase is how a node's hours are bought.
type Purchase int

// The ways to buy.
const (
	OnDemand    Purchase = iota // Usage lines at Price
	Spot                        // Usage lines of SpotUsage at the hour's own rate
	SavingsPlan                 // SavingsPlanCoveredUsage lines at Rate
	Reserved                    // DiscountedUsage lines at Rate, one for each commitment of the hour
)

// Sharing is how a node shares its GPUs and what its exporter tells of that.
type Sharing int

// The sharing modes. None has no GPUs.
const (
	None       Sharing = iota
	Exclusive          // one pod a GPU; the series carries it
	PerProcess         // time-slicing; a device series, and one for each pod by its processes
	Copies             // time-slicing; the device's figure repeated for each pod
	MIG                // one pod an instance, on every GPU of the node
)

// GPU is what an exporter says of one model.
type GPU struct {
	Model       string // as NVML spells it
	TotalMiB    int64
	ReservedMiB int64 // the driver's, which no pod can have
}

// UsableMiB is total less reserved.
func (g GPU) UsableMiB() int64 { return g.TotalMiB - g.ReservedMiB }

// Instance is one MIG instance of a GPU.
type Instance struct {
	GPU      int
	ID       string // GPU_I_ID, unique within the GPU
	Profile  string // 1g.5gb
	TotalMiB int64
}

// instanceBaseMiB is what an empty MIG instance shows as used.
const instanceBaseMiB = 13

// Node is one EC2 instance and Kubernetes node.
type Node struct {
	Name, InstanceID string
	Type, Zone, Pool string
	CPUs             int64
	MemoryMiB        int64

	Purchase    Purchase
	Price       string // on-demand price per hour, decimal USD
	Rate        string // effective price per hour where a commitment covers it
	SpotMicros  [2]int64
	Commitments []Commitment

	Billed     period.Span // what the bill charges for
	Registered time.Time   // kube_node_created
	Ready      time.Time   // the Ready condition, until the end of Billed

	Sharing   Sharing
	GPU       GPU
	GPUs      int
	Replicas  int // slots a GPU under time-slicing
	Instances []Instance
	Residual  []Step        // bytes on the first GPU that no pod answers for (PerProcess)
	Outages   []period.Span // the exporter is silent
}

// Commitment is a reservation or savings plan that covers a node for a time.
type Commitment struct {
	ARN string
	period.Span
}

// Step is a value from an instant on.
type Step struct {
	At  time.Time
	MiB int64
}

// Pod is one pod on one node.
type Pod struct {
	Namespace, Name, UID string
	OwnerKind, OwnerName string // as kube_pod_owner says: ReplicaSet, Job, StatefulSet
	Labels               map[string]string
	Node                 string // the node's name
	Resource             string // as kube-state-metrics spells it; "" without GPUs
	Units                int64
	CPUMilli, MemoryMiB  int64
	Life                 period.Span
	Completes            bool    // a Job's pod: its object stays for an hour after the end
	Places               []Place // one for each GPU or instance it holds
	Memory               []Step  // GPU memory on each of its places
}

// Place is where a pod holds a device.
type Place struct {
	GPU      int
	Instance string // GPU_I_ID under MIG
	Slot     int    // vgpu under time-slicing
}

// Namespace is a namespace with the labels that kube-state-metrics may show.
type Namespace struct {
	Name   string
	Labels map[string]string
}

// Charge is one line of the bill that is not an instance's hours. Amounts are
// decimal text; "" is no value.
type Charge struct {
	Type, Product, UsageType, Operation, Resource, Description string
	period.Span
	Quantity, Unit string
	Cost           string // line_item_unblended_cost
	List           string // pricing_public_on_demand_cost
	InstanceType   string // product_instance_type

	ReservationARN        string
	UnusedRecurring       string
	PlanARN, PlanFamily   string
	PlanTotal, PlanUsed   string // commitment of the hour, and what of it was used
	CapacityReservation   string
	LegalEntity, TaxClass string
}

// Node returns the node of that name.
func (f *Fleet) Node(name string) *Node {
	for i := range f.Nodes {
		if f.Nodes[i].Name == name {
			return &f.Nodes[i]
		}
	}
	return nil
}

// UsedMiB is the pod's memory on each of its places at an instant.
func (p *Pod) UsedMiB(at time.Time) int64 {
	if !p.Life.Contains(at) {
		return 0
	}
	return valueAt(p.Memory, at)
}

// valueAt is the step function: the last step not after the instant, else 0.
func valueAt(steps []Step, at time.Time) int64 {
	i, found := slices.BinarySearchFunc(steps, at, func(s Step, t time.Time) int { return s.At.Compare(t) })
	switch {
	case found:
		return steps[i].MiB
	case i == 0:
		return 0
	}
	return steps[i-1].MiB
}

// partition is a GPU or a MIG instance with the pods that hold it at some time.
type partition struct {
	gpu      int
	instance *Instance // nil for a whole GPU
	pods     []tenant
}

type tenant struct {
	*Pod
	slot int
}

// partitions lists the node's GPUs or MIG instances in a fixed order.
func (f *Fleet) partitions(n *Node, pods []*Pod) []partition {
	var out []partition
	for g := range n.GPUs {
		if n.Sharing != MIG {
			out = append(out, partition{gpu: g})
			continue
		}
		for i := range n.Instances {
			if n.Instances[i].GPU == g {
				out = append(out, partition{gpu: g, instance: &n.Instances[i]})
			}
		}
	}
	for i := range out {
		pt := &out[i]
		for _, p := range pods {
			for _, pl := range p.Places {
				if pl.GPU == pt.gpu && (pt.instance == nil || pt.instance.ID == pl.Instance) {
					pt.pods = append(pt.pods, tenant{p, pl.Slot})
				}
			}
		}
		slices.SortStableFunc(pt.pods, func(a, b tenant) int {
			return cmp.Or(a.Life.Start.Compare(b.Life.Start), cmp.Compare(a.UID, b.UID))
		})
	}
	return out
}

// podsByNode groups the pods once for a whole run.
func (f *Fleet) podsByNode() map[string][]*Pod {
	out := map[string][]*Pod{}
	for i := range f.Pods {
		p := &f.Pods[i]
		out[p.Node] = append(out[p.Node], p)
	}
	return out
}
