// Package anyfleet is test support: it draws random fleets and policies, writes a
// fleet's series as its exporters would, and works out in exact fractions what every
// pod has of every GPU (docs/method.md). Nothing of it is taken from the program.
//
// Times are seconds from Start on a grid of Interval. Samples lie half an interval
// after each point of it, so that a sample stands for exactly one interval, and what
// changes on the grid is measured where it happens.
package anyfleet

import (
	"encoding/json"
	"time"

	"gpuledger/gpu"
)

const (
	Interval      = 120 // seconds
	Hour          = 3600
	neighbourhood = 900 // what is read to either side of an hour
)

// Start is when the window begins. In Kolkata it is midnight half an hour later.
var Start = time.Date(2026, 10, 5, 18, 0, 0, 0, time.UTC)

// At is an instant.
func At(seconds int) time.Time { return Start.Add(time.Duration(seconds) * time.Second) }

// Fleet is some GPU nodes of one cluster over a window of whole hours, and some hours
// before it.
type Fleet struct {
	Past, Hours int
	Nodes       []*Node
}

// Exporter is what a node's series say of its pods.
type Exporter string

const (
	Process Exporter = "process" // the device's series, and one for each pod by its processes
	Label   Exporter = "label"   // the device's series with the one pod that holds it
	Copies  Exporter = "copies"  // the device's figure repeated for each pod
	Bare    Exporter = "bare"    // the device's series only
	HAMi    Exporter = "hami"    // the device's series, and each pod's use and limit
)

// Node is a GPU node. All its GPUs are shared in one way.
type Node struct {
	Name, Pool, Instance string
	Mode                 gpu.Mode
	Exporter             Exporter
	Replicas             int // slots of a GPU, or of an instance under MIG
	Up, Down             int // it is there from … to
	Outage               [2]int
	Unseen               int // GPUs that no series shows
	GPUs                 []*GPU
	Pods                 []*Pod
	CPUMilli, Memory     int64
}

// GPU is a card, whole or in instances.
type GPU struct {
	UUID, Model           string
	TotalMiB, ReservedMiB int64
	Parts                 []*Part
}

// Part is a whole GPU or a MIG instance, from … to.
type Part struct {
	ID, Profile     string // "" of a whole GPU
	Memory, Compute int    // slices
	UsableMiB       int64
	From, To        int
	Stray           []Step // what the device shows beyond its pods' bytes, or below 0 falls short of them
}

// Step is a value from a time on.
type Step struct {
	At  int
	MiB int64
}

// Pod is a pod.
type Pod struct {
	Namespace, Name  string
	From, To         int
	CPUMilli, Memory int64
	Places           []Place
}

// Place is what a pod has of a part: GPU and Part are indexes.
type Place struct {
	GPU, Part   int
	Slots       int // requested; 0 of a pod that uses what it did not request
	Used        []Step
	LimitMiB    int64  // HAMi
	Claim       string // DRA
	CapacityMiB int64  // that the claim consumes; 0: the device
	Unseen      bool   // no series shows the pod
	NoSlotLabel bool   // its series does not say which slot
}

// UID is the pod's.
func (p *Pod) UID() string { return "uid-" + p.Name }

// Clone copies a fleet, to change the copy.
func (f *Fleet) Clone() *Fleet {
	b, err := json.Marshal(f)
	if err != nil {
		panic(err) // plain data
	}
	out := &Fleet{}
	if err := json.Unmarshal(b, out); err != nil {
		panic(err)
	}
	return out
}

// Devices is the number of GPUs, those that no series shows among them.
func (n *Node) Devices() int { return len(n.GPUs) + n.Unseen }

// Pod finds a pod by name.
func (n *Node) Pod(name string) *Pod {
	for _, p := range n.Pods {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// valueAt is the step function: the last step not after the time, else 0.
func valueAt(steps []Step, at int) int64 {
	v := int64(0)
	for _, s := range steps {
		if s.At <= at {
			v = s.MiB
		}
	}
	return v
}

// deviceMiB is what the exporter shows of a part.
func (n *Node) deviceMiB(g, p, at int) int64 {
	sum := valueAt(n.GPUs[g].Parts[p].Stray, at)
	for _, h := range n.holders(g, p) {
		if h.pod.From <= at && at < h.pod.To {
			sum += valueAt(h.Used, at)
		}
	}
	return max(0, sum)
}

// holder is a pod on a part.
type holder struct {
	pod *Pod
	*Place
}

func (n *Node) holders(g, p int) []holder {
	var out []holder
	for _, pod := range n.Pods {
		for i := range pod.Places {
			if pl := &pod.Places[i]; pl.GPU == g && pl.Part == p {
				out = append(out, holder{pod, pl})
			}
		}
	}
	return out
}

// sampled reports whether the node's exporter answered.
func (n *Node) sampled(at int) bool {
	return at >= n.Up && at < n.Down && !(at >= n.Outage[0] && at < n.Outage[1])
}

// String shows a fleet to the reader of a failure.
func (f *Fleet) String() string {
	b, err := json.Marshal(f)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
