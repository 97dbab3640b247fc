package fleet

import (
	"fmt"
	"time"

	"gpuledger/billing/period"
)

// Spec describes a larger fleet by numbers. Zero values take the default named.
type Spec struct {
	Month       period.Month
	Cluster     string        // bench
	Nodes       int           // 10; by turns time-sliced L4, exclusive 8 × H100, copied T4, exclusive A10G
	PodsPerNode int           // 4; at most 48 on a shared GPU and one a GPU on the rest
	PodLife     time.Duration // 24h: a pod's place is taken by the next pod then
	Interval    time.Duration // 1m, of device samples and inventory
	Days        int           // of the month, from its first; 0: all of it
	Seed        uint64
	Parquet     bool
}

// The models of a Spec's nodes, by turns.
var benchNodes = []Node{
	{Type: "g6.xlarge", CPUs: 4, MemoryMiB: 16 << 10, Price: priceG6, Sharing: PerProcess, GPU: l4, GPUs: 1, Pool: "inference-l4"},
	{Type: "p5.48xlarge", CPUs: 192, MemoryMiB: 2048 << 10, Price: priceP5, Sharing: Exclusive, GPU: h100, GPUs: 8, Pool: "train-h100"},
	{Type: "g4dn.xlarge", CPUs: 4, MemoryMiB: 16 << 10, Price: priceG4dn, Sharing: Copies, GPU: t4, GPUs: 1, Pool: "inference-t4"},
	{Type: "g5.xlarge", CPUs: 4, MemoryMiB: 16 << 10, Price: priceG5, Sharing: Exclusive, GPU: a10g, GPUs: 1, Pool: "batch-a10g"},
}

// New returns the fleet of a Spec. The same Spec is the same fleet.
func New(s Spec) Fleet {
	s.defaults()
	b := &builder{Fleet: Fleet{
		Cluster: s.Cluster, Month: s.Month, Region: "us-east-1", Payer: "111122223333", Account: "222233334444",
		Interval: s.Interval, InventoryInterval: s.Interval, Parquet: s.Parquet, Policy: policyText, Owners: benchOwners,
	}}
	for i := range benchTeams {
		b.Namespaces = append(b.Namespaces, Namespace{Name: fmt.Sprintf("team-%02d", i)})
	}
	for i := range s.Nodes {
		b.benchNode(s, i)
	}
	return b.Fleet
}

const benchTeams = 20

const benchOwners = `rules:
  - {match: {namespace: "team-0*"}, team: search, cost_center: "4711"}
  - {match: {namespace: "team-1*"}, team: ranking, cost_center: "4712"}
dimensions:
  ai_model: [label:model]
`

func (s *Spec) defaults() {
	if s.Cluster == "" {
		s.Cluster = "bench"
	}
	if s.Nodes == 0 {
		s.Nodes = 10
	}
	if s.PodsPerNode == 0 {
		s.PodsPerNode = 4
	}
	if s.PodLife == 0 {
		s.PodLife = 24 * time.Hour
	}
	if s.Interval == 0 {
		s.Interval = time.Minute
	}
}

func (b *builder) benchNode(s Spec, i int) {
	n := benchNodes[i%len(benchNodes)]
	n.Name = fmt.Sprintf("ip-10-%d-%d-%d.ec2.internal", 1+i/62500, i/250%250, 2+i%250)
	n.Zone, n.Billed = "us-east-1"+string(rune('a'+i%4)), b.always()
	if s.Days > 0 {
		n.Billed.End = b.at(1+s.Days, 0, 0)
	}
	slots := n.GPUs
	if n.Sharing != Exclusive {
		slots = min(max(s.PodsPerNode, 1), 48)
		n.Replicas = slots
	}
	b.node(n)
	for k := range min(s.PodsPerNode, slots) {
		b.benchPods(s, &n, k, slots)
	}
}

// benchPods fills one slot with one pod after another; the turns are staggered, on
// the grid of the samples.
func (b *builder) benchPods(s Spec, n *Node, k, slots int) {
	month := b.Month.Span().Intersect(n.Billed)
	name := fmt.Sprintf("%d/%s/%d", s.Seed, n.Name, k)
	offset := time.Duration(between("turn/"+name, 0, int64(s.PodLife/s.Interval)-1)) * s.Interval
	for start := month.Start.Add(offset - s.PodLife); start.Before(month.End); start = start.Add(s.PodLife) {
		life := period.Span{Start: start, End: start.Add(s.PodLife)}.Intersect(n.Billed)
		id := name + start.Format("/2006-01-02T15:04")
		share := n.GPU.UsableMiB()
		p := Pod{Node: n.Name, Resource: "nvidia_com_gpu", Units: 1, CPUMilli: 500, MemoryMiB: 1024, Life: life, Places: gpus(k)}
		if n.Sharing != Exclusive {
			share /= int64(slots)
			p.Places = slot(k)
		}
		for t := start; t.Before(life.End); t = t.Add(4 * time.Hour) {
			p.Memory = append(p.Memory, Step{t, between(id+t.Format("/15"), share/4, share)})
		}
		model := fmt.Sprintf("model-%02d", number(name)%30)
		p.Labels = labels("svc-"+suffix(name, 4), "bench", model)
		b.deployment(fmt.Sprintf("team-%02d", number(name)%benchTeams), "svc-"+suffix(name, 4), "a"+id, p)
	}
}
