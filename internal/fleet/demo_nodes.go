package fleet

import (
	"time"

	"gpuledger/billing/period"
)

// The models of the demo. Totals are NVML's; what the driver keeps is measured
// for H100, T4, A100 and L40S, and of that order for L4 and A10G, where it is
// chosen so that 22 GiB are usable.
var (
	h100 = GPU{"NVIDIA H100 80GB HBM3", 81559, 479}
	l4   = GPU{"NVIDIA L4", 23034, 506}
	t4   = GPU{"Tesla T4", 15360, 400}
	a100 = GPU{"NVIDIA A100-SXM4-40GB", 40960, 576}
	a10g = GPU{"NVIDIA A10G", 23028, 500}
	l40s = GPU{"NVIDIA L40S", 46068, 609}
)

// Prices per hour, us-east-1, Linux.
const (
	priceP5   = "98.32"
	priceP4d  = "21.957642"
	priceG6   = "0.8048"
	priceG6e  = "1.861"
	priceG5   = "1.006"
	priceG4dn = "0.526"
	priceM6i  = "0.384"

	planRateG5       = "0.63378" // of the EC2 Instance Savings Plan
	planCommitment   = "0.75"    // per hour
	reservedRateG4dn = "0.331"
)

// The demo's nodes by what they are there to show.
const (
	nodeTraining = "ip-10-0-1-23.ec2.internal"  // p5, exclusive
	nodeShared   = "ip-10-0-2-41.ec2.internal"  // g6, time-sliced, bytes by process
	nodeCopied   = "ip-10-0-2-77.ec2.internal"  // g4dn, time-sliced, the device's figure for each pod
	nodeMIG      = "ip-10-0-3-18.ec2.internal"  // p4d
	nodePlan     = "ip-10-0-4-112.ec2.internal" // g5, covered by a Savings Plan
	nodeSpot     = "ip-10-0-5-204.ec2.internal" // g6e, two days of Spot
	nodeCPU      = "ip-10-0-6-9.ec2.internal"   // m6i, out of scope
)

func planARN(payer string) string {
	return "arn:aws:savingsplans::" + payer + ":savingsplan/" + uuidOf("plan/"+payer)
}

func (b *builder) reservation(name string) string {
	return "arn:aws:ec2:" + b.Region + ":" + b.Account + ":reserved-instances/" + uuidOf("ri/"+name)
}

func (b *builder) capacityReservation() string {
	return "arn:aws:ec2:" + b.Region + ":" + b.Account + ":capacity-reservation/cr-" + instanceID("capacity")[2:]
}

// addNodes adds the seven nodes. The three that come within the month say when
// they were registered and Ready.
func (b *builder) addNodes() {
	whole := b.always() // with a day to either side, in which no pod of the demo runs
	whole.Start, whole.End = whole.Start.AddDate(0, 0, -1), whole.End.AddDate(0, 0, 1)

	// Reserved capacity from day 3; launched at 06:00, Ready four minutes later.
	b.node(Node{
		Name: nodeTraining, Type: "p5.48xlarge", Zone: "us-east-1a", Pool: "train-h100", CPUs: 192, MemoryMiB: 2048 << 10,
		Price: priceP5, Billed: b.span(3, 6, 0, 24, 18, 0), Registered: b.at(3, 6, 4), Ready: b.at(3, 6, 4),
		Sharing: Exclusive, GPU: h100, GPUs: 8,
	})
	// 96 MiB of contexts that belong to no process are within the tolerance of 2 %
	// (450 MiB); on day 19 something outside any pod takes 2 GiB for six hours. The
	// exporter is down on day 17 from 14:00 to 15:10.
	b.node(Node{
		Name: nodeShared, Type: "g6.xlarge", Zone: "us-east-1b", Pool: "inference-l4", CPUs: 4, MemoryMiB: 16 << 10,
		Price: priceG6, Billed: whole, Sharing: PerProcess, GPU: l4, GPUs: 1, Replicas: 4,
		Residual: []Step{{whole.Start, 96}, {b.at(19, 10, 0), 2048}, {b.at(19, 16, 0), 96}},
		Outages:  []period.Span{b.span(17, 14, 0, 17, 15, 10)},
	})
	// Its reservation ends on day 12 at 09:30, and the next one starts: that hour is
	// two lines of half an hour.
	b.node(Node{
		Name: nodeCopied, Type: "g4dn.xlarge", Zone: "us-east-1b", Pool: "inference-t4", CPUs: 4, MemoryMiB: 16 << 10,
		Purchase: Reserved, Price: priceG4dn, Rate: reservedRateG4dn, Billed: whole,
		Commitments: []Commitment{
			{b.reservation("g4dn/1"), period.Span{Start: whole.Start, End: b.at(12, 9, 30)}},
			{b.reservation("g4dn/2"), period.Span{Start: b.at(12, 9, 30), End: whole.End}},
		},
		Sharing: Copies, GPU: t4, GPUs: 1, Replicas: 4,
	})
	b.node(Node{
		Name: nodeMIG, Type: "p4d.24xlarge", Zone: "us-east-1c", Pool: "mig-a100", CPUs: 96, MemoryMiB: 1152 << 10,
		Price: priceP4d, Billed: b.span(8, 12, 0, 16, 12, 0), Registered: b.at(8, 12, 0), Ready: b.at(8, 12, 0),
		Sharing: MIG, GPU: a100, GPUs: 8, Instances: demoInstances(),
	})
	b.node(Node{
		Name: nodePlan, Type: "g5.xlarge", Zone: "us-east-1a", Pool: "batch-a10g", CPUs: 4, MemoryMiB: 16 << 10,
		Purchase: SavingsPlan, Price: priceG5, Rate: planRateG5, Billed: whole,
		Commitments: []Commitment{{planARN(b.Payer), whole}}, Sharing: Exclusive, GPU: a10g, GPUs: 1,
	})
	// Billed from 13:40, registered at 13:42:30, taken back two days later.
	b.node(Node{
		Name: nodeSpot, Type: "g6e.xlarge", Zone: "us-east-1d", Pool: "spot-l40s", CPUs: 4, MemoryMiB: 32 << 10,
		Purchase: Spot, Price: priceG6e, SpotMicros: [2]int64{712_300, 861_900}, Billed: b.span(20, 13, 40, 22, 17, 25),
		Registered: b.at(20, 13, 42).Add(30 * time.Second), Ready: b.at(20, 13, 44),
		Sharing: Exclusive, GPU: l40s, GPUs: 1,
	})
	b.node(Node{
		Name: nodeCPU, Type: "m6i.2xlarge", Zone: "us-east-1a", Pool: "system", CPUs: 8, MemoryMiB: 32 << 10,
		Price: priceM6i, Billed: whole,
	})
}

func (b *builder) node(n Node) {
	n.InstanceID = instanceID(b.Cluster + "/" + n.Name)
	if n.Registered.IsZero() {
		n.Registered, n.Ready = n.Billed.Start.Add(90*time.Second), n.Billed.Start.Add(2*time.Minute)
	}
	b.Nodes = append(b.Nodes, n)
}

// demoInstances are two partitioned GPUs, 3g+2g+1g+1g and 7 × 1g, and six with
// one instance of all slices. Ids are those the driver gives.
func demoInstances() []Instance {
	out := []Instance{
		{0, "2", "3g.20gb", 19968}, {0, "3", "2g.10gb", 9856}, {0, "9", "1g.5gb", 4864}, {0, "10", "1g.5gb", 4864},
	}
	for _, id := range []string{"7", "8", "9", "10", "11", "12", "13"} {
		out = append(out, Instance{1, id, "1g.5gb", 4864})
	}
	for g := 2; g < 8; g++ {
		out = append(out, Instance{g, "0", "7g.40gb", 40192})
	}
	return out
}
