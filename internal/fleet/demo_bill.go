package fleet

import (
	"math/big"
	"time"

	"gpuledger/billing/period"
)

// addCharges adds the lines of no instance's hours. In scope are those that name
// a GPU type or family: the plan's negations and fee, the reservations' fees, the
// unused capacity, two taxes and one credit. Out of scope is what is for the
// whole account or for another service.
func (b *builder) addCharges() {
	month := b.Month.Span()
	node := b.Fleet.Node
	plan := planARN(b.Payer)
	for _, h := range month.Hours() {
		window := period.Hour(h)
		b.charge(Charge{
			Type: "SavingsPlanNegation", Product: "AmazonEC2", UsageType: "BoxUsage:g5.xlarge", Operation: "RunInstances", Span: window,
			Description: "SavingsPlanNegation used by AccountId : " + b.Account + " and UsageSku : " + suffix("sku/g5", 16),
			Quantity:    "1", Unit: "Hrs", Cost: "-" + priceG5, PlanARN: plan,
		}, Charge{
			Type: "SavingsPlanRecurringFee", Product: "ComputeSavingsPlans", UsageType: "USE1-EC2SP:g5.1yrNoUpfront", Span: window,
			Description: "1 year No Upfront EC2 Instance Savings Plan, g5, us-east-1", Quantity: "1", Unit: "Hrs", Cost: planCommitment,
			PlanARN: plan, PlanFamily: "g5", PlanTotal: planCommitment, PlanUsed: planRateG5,
		}, Charge{
			Type: "Usage", Product: "AmazonEKS", UsageType: "USE1-AmazonEKS-Hours:perCluster", Operation: "CreateOperation", Span: window,
			Resource:    "arn:aws:eks:" + b.Region + ":" + b.Account + ":cluster/" + b.Cluster,
			Description: "Amazon EKS cluster usage in US East (N. Virginia)", Quantity: "1", Unit: "hour", Cost: "0.1", List: "0.1",
		})
	}
	for _, c := range node(nodeCopied).Commitments {
		span := c.Span.Intersect(month)
		hours := Hours(span)
		b.charge(Charge{
			Type: "RIFee", Product: "AmazonEC2", UsageType: "HeavyUsage:g4dn.xlarge", Operation: "RunInstances", Span: span,
			Description: "USD 0.331 hourly fee per Linux/UNIX (Amazon VPC), g4dn.xlarge instance", InstanceType: "g4dn.xlarge",
			Quantity: hours, Unit: "Hrs", Cost: Times(hours, reservedRateG4dn), ReservationARN: c.ARN, UnusedRecurring: "0",
		})
	}
	// The p5's capacity is reserved from day 3 at 00:00; until the node comes it is
	// paid for and empty.
	for _, h := range b.span(3, 0, 0, 3, 6, 0).Hours() {
		b.charge(Charge{
			Type: "Usage", Product: "AmazonEC2", UsageType: "UnusedBox:p5.48xlarge", Operation: "RunInstances", Span: period.Hour(h),
			Resource: b.capacityReservation(), CapacityReservation: b.capacityReservation(), InstanceType: "p5.48xlarge",
			Description: "$98.32 per Unused Reservation Linux p5.48xlarge Instance Hour", Quantity: "1", Unit: "Hrs", Cost: priceP5, List: priceP5,
		})
	}
	b.daily24()
	b.account()
}

func (b *builder) charge(c ...Charge) { b.Charges = append(b.Charges, c...) }

// daily24 adds what is metered by the day: traffic of the p5, which names its
// instance, and storage, which names none.
func (b *builder) daily24() {
	p5 := b.Fleet.Node(nodeTraining)
	for d := b.Month.Start(); d.Before(b.Month.Span().End); d = d.AddDate(0, 0, 1) {
		span := period.Span{Start: d, End: d.AddDate(0, 0, 1)}
		if p5.Billed.Contains(d) {
			gb := decimal(between("traffic/"+d.Format(time.DateOnly), 40_000_000, 900_000_000), 1_000_000)
			b.charge(Charge{
				Type: "Usage", Product: "AmazonEC2", UsageType: "USE1-USW2-AWS-Out-Bytes", Operation: "InterZone-Out", Span: span, Resource: p5.InstanceID,
				Description: "$0.02 per GB - US East (Northern Virginia) data transfer to US West (Oregon)", Quantity: gb, Unit: "GB",
				Cost: Times(gb, "0.02"), List: Times(gb, "0.02"),
			})
		}
		gb := decimal(between("bucket/"+d.Format(time.DateOnly), 60_000_000, 64_000_000), 1_000_000)
		b.charge(Charge{
			Type: "Usage", Product: "AmazonS3", UsageType: "TimedStorage-ByteHrs", Operation: "StandardStorage", Span: span, Resource: "demo-model-artifacts",
			Description: "$0.023 per GB - first 50 TB / month of storage used", Quantity: gb, Unit: "GB-Mo", Cost: Times(gb, "0.023"), List: Times(gb, "0.023"),
		}, Charge{
			Type: "Usage", Product: "AmazonEC2", UsageType: "EBS:VolumeUsage.gp3", Operation: "CreateVolume-Gp3", Span: span, Resource: "vol-" + instanceID("volume")[2:],
			Description: "$0.08 per GB-month of General Purpose (gp3) provisioned storage - US East (N. Virginia)", Quantity: "6.666667", Unit: "GB-Mo",
			Cost: Times("6.666667", "0.08"), List: Times("6.666667", "0.08"),
		})
	}
}

// account adds taxes, credits, the enterprise discount and support.
func (b *builder) account() {
	month := b.Month.Span()
	tax := func(usageType, operation, on string) {
		b.charge(Charge{
			Type: "Tax", Product: "AmazonEC2", Operation: operation, Span: month, TaxClass: "US Sales Tax",
			Description: "Tax for product code AmazonEC2 usage type " + usageType + " operation " + operation, Cost: cents(on, "0.0725"),
		})
	}
	tax("USE1-BoxUsage:p5.48xlarge", "RunInstances", Times(Hours(b.Fleet.Node(nodeTraining).Billed), priceP5))
	tax("USE1-BoxUsage:g6.xlarge", "RunInstances", Times(Hours(month), priceG6))
	b.charge(
		Charge{Type: "Tax", Product: "AmazonS3", Span: month, TaxClass: "US Sales Tax", Description: "Tax for the account", Cost: "3.11"},
		Charge{
			Type: "Credit", Product: "AmazonEC2", UsageType: "BoxUsage:g6.xlarge", Operation: "RunInstances", Span: month,
			Description: "G6 onboarding credit", Cost: "-25",
		},
		Charge{Type: "Credit", Product: "AmazonS3", Span: month, Description: "AWS Promotional Credit", Cost: "-100"},
		Charge{Type: "EdpDiscount", Product: "AmazonEC2", Span: month, Description: "Enterprise Discount Program discount", Cost: "-1512.406631"},
		Charge{Type: "Fee", Product: "AWSSupportBusiness", Span: month, Description: "AWS Business Support, monthly", Quantity: "1", Cost: "2713.48"},
	)
}

func decimal(n, of int64) string { return round(big.NewRat(n, of), 6) }

// cents is a tax: a share of an amount in whole cents.
func cents(amount, share string) string {
	return new(big.Rat).Mul(rat(amount), rat(share)).FloatString(2)
}
