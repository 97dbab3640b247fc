package gpu

import (
	"fmt"
	"time"
)

// Mode is how a device or partition is shared.
type Mode string

// The sharing modes. Unknown is said where it cannot be told, never Exclusive.
const (
	ModeExclusive   Mode = "exclusive"
	ModeTimeSlicing Mode = "time_slicing"
	ModeMPS         Mode = "mps"
	ModeMIG         Mode = "mig"
	ModePartition   Mode = "partition" // AMD compute partitions
	ModeFraction    Mode = "fraction"  // HAMi, Run:ai, KAI: a part of a GPU's memory by limit
	ModeDRA         Mode = "dra"       // a ResourceClaim holds the device
	ModeUnknown     Mode = "unknown"
)

// Method is the rung of the ladder (DESIGN §4.3) a holder's bytes came from; a
// higher number is a weaker source. 5 and 6 are estimates.
type Method int

// The rungs.
const (
	ProcessUID     Method = 1 // per-process bytes by pod UID
	ProcessName    Method = 2 // per-process bytes by namespace and pod name
	Limit          Method = 3 // a hard limit: MPS cap, HAMi, DRA capacity
	SoleHolder     Method = 4 // the device's figure, where one pod holds the device
	ReplicaRequest Method = 5 // the device's figure, or usable memory, by replicas requested
	Even           Method = 6 // even among holders
	NoMethod       Method = 7 // nobody: the time goes to a category
)

var methodNames = map[Method]string{
	ProcessUID: "process_uid", ProcessName: "process_name", Limit: "limit", SoleHolder: "sole_holder",
	ReplicaRequest: "replica_request", Even: "even", NoMethod: "none",
}

func (m Method) String() string { return methodNames[m] }

// Category is a remainder category that telemetry can tell (DESIGN §4.4).
type Category string

// The categories of a partition's time that no pod holds.
const (
	Unallocated  Category = "unallocated"
	SlotHeld     Category = "slot_held"
	Unattributed Category = "unattributed"
	NoTelemetry  Category = "no_telemetry"
	ClaimIdle    Category = "claim_idle" // free memory of a device that a claim shared by pods holds
	// MIGUnpartitioned is also the category of a MIG-enabled GPU with no instance.
	MIGUnpartitioned Category = "mig_unpartitioned"
)

// Flags mark what a reader of a row should know.
type Flags uint32

// The flags.
const (
	FlagCopied            Flags = 1 << iota // the exporter copied the device's figure to several pods
	FlagMappingFailed                       // every pod shows 0 while the device is in use
	FlagOverReported                        // the pods' bytes exceed the device's
	FlagRogue                               // uses the device without having requested it
	FlagPlacementInferred                   // no sample says which device the pod is on
	FlagCapacityAssumed                     // usable memory comes from the model table
	FlagHolderUnlisted                      // kube-state-metrics does not know the pod
	FlagFrozen                              // the exporter repeated what it last knew: its samples are no measurement
	FlagModeInferred                        // only the shape of the data says that the device is shared
	FlagModeUnknown                         // nothing tells how the device is shared
)

// Shares are share-seconds in whole microseconds, one for each way a policy may
// define what a holder takes up (DESIGN §4.2).
type Shares struct {
	Used           int64 // basis used
	RequestNone    int64 // hard reservations only
	RequestReplica int64 // … and usable/R for each time-slicing replica
	MaxNone        int64 // the larger of hard reservation and use, at each instant
	MaxReplica     int64 // … with usable/R for each time-slicing replica
}

// HistogramBuckets is the number of equal parts of usable memory a row's
// histogram of held bytes has; the last one includes everything above.
const HistogramBuckets = 16

// Row is what one pod, or one remainder category, had of one partition in one
// hour, by one method.
type Row struct {
	PodUID   string // "" for a category
	Category Category
	Method   Method
	Replicas int // client slots held; 0 for categories and for rogue use
	Shares   Shares
	// SpreadMicros is the part of Shares.Used that is a residual within 2 % of
	// usable memory, spread over the pods by use.
	SpreadMicros    int64
	UsedByteSeconds int64
	HeldByteSeconds int64
	MeasuredMicros  int64 // time covered by samples
	GapMicros       int64
	Samples         int64
	First, Last     time.Time // of the samples; zero without any
	PeakBytes       uint64
	Histogram       [HistogramBuckets]int64 // whole seconds by sixteenths of usable memory
	Flags           Flags
}

// Partition is a GPU, or a MIG instance of one, over the part of an hour in which
// the device's geometry did not change.
type Partition struct {
	Geometry       string // "" for a whole GPU; else the sorted profiles, "1g.5gb,2g.10gb"
	GPUInstance    string // GPU_I_ID, "" for a whole GPU
	Profile        string
	MemorySlices   int // 1 of 1 for a whole GPU
	DeviceSlices   int // D of DESIGN §4.2, configured normaliser
	ComputeSlices  int
	Mode           Mode
	Replicas       int // R: client slots of the partition; 1 where not shared, 0 where unknown
	UsableBytes    uint64
	PresentMicros  int64
	MeasuredMicros int64 // of it covered by samples of the device or of its pods
	Rows           []Row
}

// Device is one GPU of a node in one hour.
type Device struct {
	UUID          string // "missing-k" for a GPU the node has and no series shows
	Model         string // normalised
	RawModel      string
	TotalBytes    uint64
	ReservedBytes uint64
	// Means over samples, 0 to 1; -1 without any. They are of different things: a kernel ran
	// at all (GPU_UTIL), an engine was busy (GR_ENGINE_ACTIVE), the multiprocessors had
	// work (SM_ACTIVE), memory was read or written (DRAM_ACTIVE: bandwidth, not capacity).
	GPUUtil, EngineActive, SMActive, DRAMActive float64
	Dropped                                     map[string]int64
	Partitions                                  []Partition
}

// PodUse is what a pod on the node asked of CPU and memory while it lived.
type PodUse struct {
	PodUID      string
	StartMicros int64 // from the hour's start, when it was first alive within the hour
	LifeMicros  int64 // within the hour, from StartMicros on
	CPUMilli    int64
	Memory      int64 // bytes
	GPUs        int64 // requested GPUs or replicas or MIG devices
	// Mean use over that life; 0 where it is not collected.
	CPUUsedMilli int64 `json:",omitempty"`
	MemoryUsed   int64 `json:",omitempty"`
}

// NodeHour is everything the ledger keeps of one GPU node in one hour.
type NodeHour struct {
	Node         string
	InstanceID   string // the machine that had the name; "" where the inventory does not know it
	ProviderID   string
	InstanceType string
	Pool         string // the node pool at the time
	Hour         time.Time
	ReadyMicros  int64 // the node was Ready; every device is present for as long
	// From the hour's start: first Ready, and last Ready before; both 0 where not known.
	ReadyStartMicros, ReadyEndMicros int64
	UncoveredMicros                  int64 // nothing says whether it was
	CPUMilli                         int64 // the node's capacity, 0 where unknown
	MemoryBytes                      int64
	Devices                          []Device
	Pods                             []PodUse
}

// ClusterHour is one folded hour of a cluster.
type ClusterHour struct {
	Hour          time.Time
	CoveredMicros int64 // kube-state-metrics was there: a node it does not show was not part of the cluster
	Nodes         []NodeHour
	Unplaced      []string   // UUIDs of devices that no node can be found for
	Clashes       []Clash    // node names that mean two machines at once
	Inventory     *Inventory // what the hour's names mean
}

// Clash is a node name that two machines had at the same time: the series are of more
// than one cluster.
type Clash struct {
	Node      string
	Instances [2]string // the provider's names of the machines
}

func (c Clash) Error() string {
	return fmt.Sprintf("node %s is two machines at once (%s and %s): the series are of more than one cluster; tell them apart by the cluster's metrics.match", c.Node, c.Instances[0], c.Instances[1])
}
