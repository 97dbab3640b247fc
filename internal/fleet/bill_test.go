package fleet

import (
	"context"
	"maps"
	"math/big"
	"path/filepath"
	"strings"
	"testing"

	"gpuledger/billing"
	"gpuledger/billing/aws"
	"gpuledger/billing/billingtest"
	"gpuledger/billing/money"
	"gpuledger/gpu"
	"gpuledger/objstore"
)

func readBill(t *testing.T, dir string) ([]billing.Line, []string) {
	t.Helper()
	store, err := objstore.Open(context.Background(), filepath.Join(dir, "bills", "finops", "gpu-costs"))
	if err != nil {
		t.Fatal(err)
	}
	r := aws.New(store, "aws")
	ds := billingtest.Deliveries(t, r)
	if len(ds) != 1 || len(ds[0].Files) != 2 || ds[0].BillingPeriod.String() != "2026-10" {
		t.Fatalf("deliveries %+v", ds)
	}
	return billingtest.ReadAll(t, r, ds[0]), r.ReadNotes(ds[0])
}

func TestBillReadsBack(t *testing.T) {
	b, dir, w := writtenDemo(t)
	lines, notes := readBill(t, dir)
	if int64(len(lines)) != w.Lines {
		t.Errorf("%d lines of %d", len(lines), w.Lines)
	}
	for _, n := range notes {
		if strings.Contains(n, "negations") || strings.Contains(n, "unknown") || strings.Contains(n, "skipped") {
			t.Errorf("note: %s", n)
		}
	}
	types := map[string]int{}
	spotByDescription := 0
	for _, l := range lines {
		types[l.ChargeType]++
		if l.UsageType == "SpotUsage" && l.InstanceType == "g6e.xlarge" && l.Class == billing.NodeUsage {
			spotByDescription++
		}
		if !b.Month.Span().Contains(l.ChargePeriod.Start) || l.Currency != "USD" || l.UsageAccount != b.Account {
			t.Fatalf("line %+v", l)
		}
	}
	// October has 744 hours. Usage: 516 + 744 + 192 + 53 + 744 node hours, 744 of
	// EKS, 6 of unused capacity, 21 days of traffic, 31 each of S3 and EBS.
	want := map[string]int{
		"Usage": 516 + 744 + 192 + 53 + 744 + 744 + 6 + 21 + 31 + 31, "DiscountedUsage": 745, "RIFee": 2,
		"SavingsPlanCoveredUsage": 744, "SavingsPlanNegation": 744, "SavingsPlanRecurringFee": 744,
		"Tax": 3, "Credit": 2, "EdpDiscount": 1, "Fee": 1,
	}
	if !maps.Equal(types, want) {
		t.Errorf("line types %v, want %v", types, want)
	}
	if spotByDescription != 17 {
		t.Errorf("%d Spot lines are told by their description, want the 17 hours divisible by 3 of 53", spotByDescription)
	}
}

// The hour in which the reservation is renewed is two lines of half an hour, and
// the Spot node's first hour bills twenty minutes.
func TestPartialHours(t *testing.T) {
	b, dir, _ := writtenDemo(t)
	lines, _ := readBill(t, dir)
	micros := func(node string, day, hour int) (out []int64) {
		for _, l := range lines {
			if l.InstanceID == b.Fleet.Node(node).InstanceID && l.ChargePeriod.Start.Equal(b.at(day, hour, 0)) && l.Class == billing.NodeUsage {
				us, ok := l.BilledMicros()
				if !ok {
					t.Errorf("no hours on %+v", l)
				}
				out = append(out, us)
			}
		}
		return out
	}
	if got := micros(nodeCopied, 12, 9); len(got) != 2 || got[0] != 1_800_000_000 || got[1] != 1_800_000_000 {
		t.Errorf("renewal hour %v", got)
	}
	if got := micros(nodeSpot, 20, 13); len(got) != 1 || got[0] != 1_199_998_800 {
		t.Errorf("first Spot hour %v", got)
	}
	if got := micros(nodeSpot, 22, 17); len(got) != 1 || got[0] != 1_500_001_200 {
		t.Errorf("last Spot hour %v", got)
	}
}

func TestParquetSaysTheSame(t *testing.T) {
	_, dir, _ := writtenDemo(t)
	csv, _ := readBill(t, dir)
	f := Demo(october(t))
	f.Parquet = true
	other := t.TempDir()
	if err := f.writeBill(&Written{}, other); err != nil {
		t.Fatal(err)
	}
	parquet, _ := readBill(t, other)
	if d := billingtest.Diff(csv, parquet); d != "" {
		t.Errorf("CSV and Parquet differ: %.2000s", d)
	}
}

type totalKey struct {
	class   billing.Class
	inScope bool
}

// The controls of the delivery, by class and scope, are what the prices and
// hours of the demo come to, worked out without the code that writes the bill.
func TestControls(t *testing.T) {
	b, dir, _ := writtenDemo(t)
	lines, _ := readBill(t, dir)
	scope := billing.Scope{Instances: map[string]bool{}, GPUType: gpu.IsGPUInstanceType, GPUFamily: gpu.IsGPUFamily}
	for _, n := range b.Nodes {
		if n.Sharing != None {
			scope.Instances[n.InstanceID] = true
		}
	}
	var controls billing.Controls
	for i := range lines {
		if err := controls.Add(&lines[i], scope.Keep(&lines[i])); err != nil {
			t.Fatal(err)
		}
	}
	billed, effective := map[totalKey]money.Amount{}, map[totalKey]money.Amount{}
	for _, c := range controls.Rows() {
		k := totalKey{c.Class, c.InScope}
		billed[k], effective[k] = billed[k].Add(c.Billed), effective[k].Add(c.Effective)
	}

	sum := func(terms ...string) *big.Rat { // "744*0.331" and the like
		out := new(big.Rat)
		for _, term := range terms {
			product := big.NewRat(1, 1)
			for _, f := range strings.Split(term, "*") {
				x, ok := new(big.Rat).SetString(f)
				if !ok {
					t.Fatalf("%q", f)
				}
				product.Mul(product, x)
			}
			out.Add(out, product)
		}
		return out
	}
	usage := []string{"516*98.32", "744*0.8048", "192*21.957642"} // p5, g6, p4d on demand
	spot := b.Fleet.Node(nodeSpot)
	usage = append(usage, rounded("0.333333", spot.SpotRate(b.at(20, 13, 0))))
	for _, hour := range b.span(20, 14, 0, 22, 17, 0).Hours() {
		usage = append(usage, spot.SpotRate(hour))
	}
	usage = append(usage, rounded("0.416667", spot.SpotRate(b.at(22, 17, 0))))
	var traffic []string
	other := []string{"31*0.53333336", "744*0.1"} // EBS at 6.666667 × 0.08 a day, EKS
	for _, c := range b.Charges {
		switch c.Product + c.UsageType {
		case "AmazonEC2USE1-USW2-AWS-Out-Bytes":
			traffic = append(traffic, c.Quantity+"*0.02")
		case "AmazonS3TimedStorage-ByteHrs":
			other = append(other, c.Quantity+"*0.023")
		}
	}
	p5Tax, g6Tax := "3678.15", "43.41" // 516 × 98.32 × 7.25 % = 3,678.1512; 744 × 0.8048 × 7.25 % = 43.410912
	want := map[totalKey][2]*big.Rat{  // billed, effective
		{billing.NodeUsage, true}:        {sum(usage...), sum(append(usage, "744*0.331", "744*0.63378")...)},
		{billing.NodeUsage, false}:       {sum("744*0.384"), sum("744*0.384")},
		{billing.CommitmentUnused, true}: {sum("744*0.75", "744*0.331"), sum("744*0.11622")},
		{billing.CapacityUnused, true}:   {sum("6*98.32"), sum("6*98.32")},
		{billing.Other, true}:            {sum(traffic...), sum(traffic...)}, // and 744 negations of nothing
		{billing.Other, false}:           {sum(other...), sum(other...)},
		{billing.Tax, true}:              {sum(p5Tax, g6Tax), sum(p5Tax, g6Tax)},
		{billing.Tax, false}:             {sum("3.11"), sum("3.11")},
		{billing.Credit, true}:           {sum("-25"), sum("-25")},
		{billing.Credit, false}:          {sum("-100"), sum("-100")},
		{billing.Discount, false}:        {sum("-1512.406631"), sum("-1512.406631")},
		{billing.Fee, false}:             {sum("2713.48"), sum("2713.48")},
	}
	if len(want) != len(effective) {
		t.Errorf("%d groups, want %d", len(effective), len(want))
	}
	for k, w := range want {
		for i, got := range []money.Amount{billed[k], effective[k]} {
			if r, _ := new(big.Rat).SetString(got.String()); r.Cmp(w[i]) != 0 {
				t.Errorf("%s, in scope %v, metric %d: %s, want %s", k.class, k.inScope, i, got, w[i].FloatString(12))
			}
		}
	}
}

// rounded is a product to ten decimals, half up, as AWS states a cost.
func rounded(a, b string) string {
	x, _ := new(big.Rat).SetString(a)
	y, _ := new(big.Rat).SetString(b)
	return x.Mul(x, y).FloatString(10)
}
