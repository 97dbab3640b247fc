// Package allocate is the pure split: from what a node's window of time was held
// by, to one vector of ratios that sums to exactly one. It has no context, clock,
// logger, SQL or network. The method is DESIGN §4.
package allocate

import (
	"fmt"
	"strings"
	"time"

	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/billing/period"
	"gpuledger/gpu"
	"gpuledger/policy"
)

// MethodVersion names the arithmetic. It enters every unit's hash: change it when
// the same inputs would give other ratios.
const MethodVersion = "gpu-memory-weighted-v3"

// The remainder categories beyond those telemetry tells. The class of a line that
// is on no node is its category.
const (
	NotReady         = "not_ready"         // billed before or after the node was Ready
	MIGUnpartitioned = "mig_unpartitioned" // memory slices the geometry leaves out
	DriverReserved   = "driver_reserved"   // memory that the driver keeps, where the policy gives it a line
	PodCategory      = "pod"
)

// Pod is what ownership needs to know of a pod.
type Pod struct {
	UID       string
	Namespace string
	Workload  string
	Labels    map[string]string
	NSLabels  map[string]string
	Notes     map[string]string // annotations
}

// Node is what the split needs to know of a node. ExpectedGPUs counts the devices
// its instance type has; 0 where the type is not known.
type Node struct {
	Cluster       string
	Pool          string
	Account       string
	ExpectedGPUs  int
	ExpectedModel string

	// What its instance type has, for hours whose inventory does not say; 0 unknown.
	InstanceType string
	CPUMilli     int64
	MemoryBytes  int64
}

// Hour is one hour of a node's telemetry, as stored. Where the node was not seen,
// Seen is false and CoveredMicros says for how long the cluster's inventory was.
type Hour struct {
	Start         time.Time
	Seen          bool
	CoveredMicros int64
	gpu.NodeHour  // its Pool is the node's at the time
}

// Window is the stretch of time that one or more bill lines of a node charge.
type Window struct {
	Span         period.Span
	BilledMicros int64 // Σ quantity of the instance-hour lines; 0: take the span
	Node         Node
	Hours        []Hour // those that overlap the span, in order
	Pods         map[string]Pod
	// Before are the hours before the span, in order, as far as a rule looks back; for
	// who held the node last.
	Before []Hour

	// The list cost of the lines that price the whole node, and the instance time they
	// bill: what price_difference takes CPU and memory off.
	ListCost   money.Amount
	ListMicros int64
	Currency   string

	// Around is who else is charged in the cluster in the same span; nil where no rule
	// looks beyond the node.
	Around *Around
}

// Target is who gets a share: a pod, or a remainder category with its payer. A
// remainder that a policy moved to a pod keeps its category and says so.
type Target struct {
	// Component is the part of the node's price the share is of; "" where a line is
	// not divided, and the share is of whatever component the line has.
	Component billing.Component
	PodUID    string
	Category  string   // "pod", or the remainder category the share comes from
	MovedBy   string   // the policy that moved a remainder to PodUID, "" otherwise
	Model     string   // "" of CPU and memory
	Mode      gpu.Mode // "" of CPU and memory
	Pool      string   // node pool at the time
	Node      string   // the name the machine had; "" of what belongs to the line as a whole
	Owner     policy.Owner

	ownerKey string // of Owner, where it was worked out
}

// give makes somebody else the owner.
func (t *Target) give(o policy.Owner) { t.Owner, t.ownerKey = o, "" }

// OwnerKey is Owner.Key.
func (t *Target) OwnerKey() string {
	if t.ownerKey != "" {
		return t.ownerKey
	}
	return t.Owner.Key()
}

// Key orders and identifies a target by meaning, never by a database id.
func (t *Target) Key() string { return t.key() }

// key orders and identifies a target by meaning, never by a database id.
func (t *Target) key() string {
	return strings.Join([]string{string(t.Component), t.Category, t.MovedBy, t.PodUID, t.Model, string(t.Mode), t.Pool, t.Node, t.OwnerKey()}, "\x01")
}

// Share is one target's part of a window.
type Share struct {
	Target
	Ratio           money.Ratio
	GPURatio        money.Ratio // of the window's device time, Σ μ·σ dt without price weights; sums to One, 0 of CPU and memory
	UsedByteSeconds int64
	HeldByteSeconds int64
	MeasuredMicros  int64
	GapMicros       int64
	Method          gpu.Method   // the weakest rung behind the ratio
	ByMethod        MethodRatios // sums to Ratio
}

// MethodRatios divides a ratio by the rung it rests on; the first is of no use.
type MethodRatios [gpu.NoMethod + 1]money.Ratio

// byOne is a ratio that rests on one rung.
func byOne(m gpu.Method, r money.Ratio) MethodRatios {
	var out MethodRatios
	out[m] = r
	return out
}

// MissingWeight is the error for a window of several models of which one has no
// price weight. It is never taken to be 1.
type MissingWeight struct {
	Model string
	At    time.Time
}

func (e *MissingWeight) Error() string {
	return fmt.Sprintf("the node has GPUs of several models and policy.yaml has no weight for %q on %s; add to model_weights: - {model: %q, weight: \"1.0\", from: %s}",
		e.Model, e.At.UTC().Format("2006-01-02"), e.Model, e.At.UTC().Format("2006-01-02"))
}

// Devices is the number of GPUs the window's node has: what its instance type says,
// or more where more were seen; at least one.
func (w *Window) Devices() int {
	n := max(1, w.Node.ExpectedGPUs)
	for _, h := range w.Hours {
		n = max(n, len(h.Devices))
	}
	return n
}

// Split computes the shares of a line that prices the whole node, in the order of
// their keys. The ratios sum to exactly one, for cost and for device time each.
func Split(w Window, p *policy.Policy, owners *policy.Owners) ([]Share, error) {
	return NewSplitter(p, owners).Split(w)
}

// Split is the function of that name.
func (x *Splitter) Split(w Window) ([]Share, error) {
	v, err := x.Compute(w, nil)
	if err != nil {
		return nil, err
	}
	return v.Of(billing.Node, w.ListMicros > 0)
}

// Contribution is one term of a target's weight: its share of a partition in an
// hour, before it is multiplied up.
type Contribution struct {
	Target
	Hour            time.Time
	Device          string
	GPUInstance     string
	Profile         string
	Slices, Of      uint64 // μ = Slices / Of
	PriceWeight     uint64 // in millionths where models differ, else 1
	OverlapSeconds  uint64 // of the hour, within the window
	ShareMicros     uint64
	Method          gpu.Method
	UsableBytes     uint64 // M of the partition
	UsedByteSeconds int64  // of this row, within the hour
	MeasuredMicros  int64
	PartitionMode   gpu.Mode
	Slots           int // client slots of the partition; 0 where unknown
	Replicas        int // of them the pod holds

	Move *Move // of a remainder that was shared out in the hour, else nil

	// Of CPU (thousandths of a core) and memory (bytes) only:
	Requested  int64 // the larger of request and use
	LifeMicros int64 // how long the pod lived while the node was ready
	Capacity   int64
}

// Move is the arithmetic of a share that a policy moved: of ÷ all × mine.
type Move struct {
	Of        string       // what was shared out: a ratio of the line, or seconds of an hour
	Mine, All money.Weight // what the receivers go by; zero under a table of teams
}

// Whole gives all of a line to one remainder category.
func Whole(category, model string, mode gpu.Mode, payer policy.Owner) Share {
	return Share{
		Target: Target{Category: category, Model: model, Mode: mode, Owner: payer},
		Ratio:  money.One, GPURatio: money.One, Method: gpu.NoMethod, ByMethod: byOne(gpu.NoMethod, money.One),
	}
}

// CategoryOf returns the remainder category of a line that no pod can pay.
func CategoryOf(c billing.Class) string { return string(c) }

const (
	hourSeconds = 3_600
	hourMicros  = 3_600_000_000
)
