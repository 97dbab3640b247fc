package aws

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"gpuledger/billing"
	"gpuledger/billing/money"
)

// gross are the columns of an export without discounts as columns.
func gross() []string {
	return slices.DeleteFunc(slices.Clone(allColumns), func(c string) bool { return strings.Contains(c, "_net_") })
}

const p5 = "USE1-BoxUsage:p5.48xlarge"

func TestClasses(t *testing.T) {
	node := row{"line_item_resource_id": "i-0abc", "line_item_usage_type": p5, "line_item_operation": "RunInstances", "line_item_usage_amount": "1"}
	with := func(base row, more row) row {
		out := row{}
		for _, m := range []row{base, more} {
			for k, v := range m {
				out[k] = v
			}
		}
		return out
	}
	plan := "arn:aws:savingsplans::111111111111:savingsplan/x"
	for _, tc := range []struct {
		name                    string
		row                     row
		class                   billing.Class
		billed, effective, list string // list "" is absent
		instance, typ, family   string
	}{
		{
			"on demand", with(node, row{"line_item_unblended_cost": "98.32", "pricing_public_on_demand_cost": "98.32"}),
			billing.NodeUsage, "98.32", "98.32", "98.32", "i-0abc", "p5.48xlarge", "",
		},
		{
			"instance as ARN", with(node, row{"line_item_resource_id": "arn:aws:ec2:us-east-1:222222222222:instance/i-0abc"}),
			billing.NodeUsage, "0", "0", "", "i-0abc", "p5.48xlarge", "",
		},
		{
			"spot, type in the description",
			row{"line_item_resource_id": "i-1", "line_item_usage_type": "SpotUsage", "line_item_operation": "RunInstances:SV001", "line_item_line_item_description": "g5.xlarge Linux/UNIX Spot Instance-hour in US East", "line_item_unblended_cost": "0.4"},
			billing.NodeUsage, "0.4", "0.4", "", "i-1", "g5.xlarge", "",
		},
		{
			"savings plan covered", with(node, row{"line_item_line_item_type": "SavingsPlanCoveredUsage", "line_item_unblended_cost": "2", "pricing_public_on_demand_cost": "2", "savings_plan_savings_plan_effective_cost": "1.2", "savings_plan_savings_plan_a_r_n": plan}),
			billing.NodeUsage, "0", "1.2", "2", "i-0abc", "p5.48xlarge", "",
		},
		{
			"savings plan negation",
			row{"line_item_line_item_type": "SavingsPlanNegation", "line_item_unblended_cost": "-2", "line_item_usage_type": p5, "savings_plan_savings_plan_a_r_n": plan},
			billing.Other, "0", "0", "0", "", "p5.48xlarge", "",
		},
		{
			"EC2 savings plan fee",
			row{"line_item_line_item_type": "SavingsPlanRecurringFee", "line_item_product_code": "ComputeSavingsPlans", "line_item_usage_type": "USE1-EC2SP:p5.1yrNoUpfront", "line_item_unblended_cost": "10", "savings_plan_total_commitment_to_date": "10", "savings_plan_used_commitment": "7.5"},
			billing.CommitmentUnused, "10", "2.5", "", "", "", "p5",
		},
		{
			"compute savings plan fee",
			row{"line_item_line_item_type": "SavingsPlanRecurringFee", "line_item_usage_type": "ComputeSP:1yrNoUpfront", "line_item_unblended_cost": "1", "savings_plan_total_commitment_to_date": "1", "savings_plan_used_commitment": "1"},
			billing.CommitmentUnused, "1", "0", "", "", "", "",
		},
		{
			"savings plan upfront",
			row{"line_item_line_item_type": "SavingsPlanUpfrontFee", "line_item_unblended_cost": "8760"},
			billing.Fee, "8760", "0", "", "", "", "",
		},
		{
			"reserved", with(node, row{"line_item_line_item_type": "DiscountedUsage", "reservation_effective_cost": "60.5", "pricing_public_on_demand_cost": "98.32", "reservation_reservation_a_r_n": "arn:ri"}),
			billing.NodeUsage, "0", "60.5", "98.32", "i-0abc", "p5.48xlarge", "",
		},
		{
			"reservation fee",
			row{"line_item_line_item_type": "RIFee", "line_item_usage_type": "HeavyUsage:p4d.24xlarge", "line_item_unblended_cost": "744", "reservation_unused_amortized_upfront_fee_for_billing_period": "1.5", "reservation_unused_recurring_fee": "2.25", "reservation_reservation_a_r_n": "arn:ri"},
			billing.CommitmentUnused, "744", "3.75", "", "", "p4d.24xlarge", "",
		},
		{
			"upfront of a reservation",
			row{"line_item_line_item_type": "Fee", "line_item_unblended_cost": "1000", "reservation_reservation_a_r_n": "arn:ri"},
			billing.Fee, "1000", "0", "", "", "", "",
		},
		{
			"other fee",
			row{"line_item_line_item_type": "Fee", "line_item_unblended_cost": "100"},
			billing.Fee, "100", "100", "", "", "", "",
		},
		{
			"tax by type",
			row{"line_item_line_item_type": "Tax", "line_item_unblended_cost": "19", "line_item_line_item_description": "Tax for product code AmazonEC2 usage type USE1-BoxUsage:p4d.24xlarge operation RunInstances"},
			billing.Tax, "19", "19", "", "", "p4d.24xlarge", "",
		},
		{
			"tax of the account",
			row{"line_item_line_item_type": "Tax", "line_item_unblended_cost": "19", "line_item_line_item_description": "Tax of type VAT"},
			billing.Tax, "19", "19", "", "", "", "",
		},
		{"credit", row{"line_item_line_item_type": "Credit", "line_item_unblended_cost": "-5"}, billing.Credit, "-5", "-5", "", "", "", ""},
		{"refund", row{"line_item_line_item_type": "Refund", "line_item_unblended_cost": "-5"}, billing.Refund, "-5", "-5", "", "", "", ""},
		{
			"refund of a plan's fee",
			row{"line_item_line_item_type": "Refund", "line_item_product_code": "ComputeSavingsPlans", "line_item_line_item_description": "Refund for one-time fee for Savings Plan ID x", "line_item_unblended_cost": "-8760"},
			billing.Refund, "-8760", "0", "", "", "", "",
		},
		{"EDP", row{"line_item_line_item_type": "EdpDiscount", "line_item_unblended_cost": "-9"}, billing.Discount, "-9", "-9", "", "", "", ""},
		{
			"private rate on a node",
			row{"line_item_line_item_type": "PrivateRateDiscount", "line_item_unblended_cost": "-1", "line_item_resource_id": "i-0abc", "line_item_usage_type": p5},
			billing.Discount, "-1", "-1", "", "i-0abc", "p5.48xlarge", "",
		},
		{"bundled", row{"line_item_line_item_type": "BundledDiscount", "line_item_unblended_cost": "-1"}, billing.Discount, "-1", "-1", "", "", "", ""},
		{"a type of the future", row{"line_item_line_item_type": "QuantumUsage", "line_item_unblended_cost": "1"}, billing.Other, "1", "1", "", "", "", ""},
		{
			"unused capacity",
			row{"line_item_usage_type": "UnusedBox:p5.48xlarge", "line_item_resource_id": "arn:aws:ec2:us-east-1:2:capacity-reservation/cr-1", "line_item_unblended_cost": "98.32"},
			billing.CapacityUnused, "98.32", "98.32", "", "", "p5.48xlarge", "",
		},
		{
			"traffic of an instance",
			row{"line_item_resource_id": "i-0abc", "line_item_operation": "RunInstances", "line_item_usage_type": "DataTransfer-Out-Bytes", "pricing_unit": "GB", "line_item_unblended_cost": "3"},
			billing.Other, "3", "3", "", "i-0abc", "", "",
		},
		{
			"volume",
			row{"line_item_resource_id": "vol-0abc", "line_item_operation": "CreateVolume-Gp3", "line_item_usage_type": "EBS:VolumeUsage.gp3", "line_item_unblended_cost": "3"},
			billing.Other, "3", "3", "", "", "", "",
		},
		{
			"marketplace software",
			row{"line_item_product_code": "8xk", "line_item_resource_id": "i-0abc", "line_item_usage_type": "SoftwareUsage:p5.48xlarge", "line_item_unblended_cost": "1"},
			billing.Other, "1", "1", "", "i-0abc", "p5.48xlarge", "",
		},
		{"E-notation", with(node, row{"line_item_unblended_cost": "1.81E-8"}), billing.NodeUsage, "0.0000000181", "0.0000000181", "", "i-0abc", "p5.48xlarge", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := newExport(t)
			e.columns = gross()
			lines, _, _ := e.lines(tc.row)
			if len(lines) != 1 {
				t.Fatalf("%d lines", len(lines))
			}
			l := lines[0]
			list := ""
			if l.Costs.List.Valid {
				list = l.Costs.List.Amount.String()
			}
			got := []string{string(l.Class), l.Costs.Billed.String(), l.Costs.Effective.String(), list, l.InstanceID, l.InstanceType, l.InstanceFamily}
			want := []string{string(tc.class), tc.billed, tc.effective, tc.list, tc.instance, tc.typ, tc.family}
			if !slices.Equal(got, want) {
				t.Errorf("class, billed, effective, list, instance, type, family\n got %q\nwant %q", got, want)
			}
		})
	}
}

// koku PR 5252: covered usage and its negation add up to what the plan charges,
// and count the hour once.
func TestSavingsPlanOffset(t *testing.T) {
	e := newExport(t)
	e.columns = gross()
	lines, r, d := e.lines(
		row{"line_item_line_item_type": "SavingsPlanCoveredUsage", "line_item_resource_id": "i-a", "line_item_usage_type": p5, "line_item_usage_amount": "1", "line_item_unblended_cost": "2", "savings_plan_savings_plan_effective_cost": "1.2", "pricing_public_on_demand_cost": "2"},
		row{"line_item_line_item_type": "SavingsPlanNegation", "line_item_usage_type": p5, "line_item_usage_amount": "1", "line_item_unblended_cost": "-2"},
	)
	var total billing.Costs
	var micros int64
	for _, l := range lines {
		total.Billed = total.Billed.Add(l.Costs.Billed)
		total.Effective = total.Effective.Add(l.Costs.Effective)
		m, _ := l.BilledMicros()
		micros += m
	}
	if total.Billed.Sign() != 0 || total.Effective != money.MustParse("1.2") || micros != 3_600_000_000 {
		t.Errorf("billed %s, effective %s, %d µs; want 0, 1.2 and one hour", total.Billed, total.Effective, micros)
	}
	if notes := strings.Join(r.ReadNotes(d), "\n"); strings.Contains(notes, "negations miss") {
		t.Errorf("a sound offset is reported: %s", notes)
	}
}

func TestNegationThatMisses(t *testing.T) {
	e := newExport(t)
	e.columns = gross()
	_, r, d := e.lines(
		row{"line_item_line_item_type": "SavingsPlanCoveredUsage", "line_item_resource_id": "i-a", "line_item_unblended_cost": "2.0000000001", "savings_plan_savings_plan_effective_cost": "1"},
		row{"line_item_line_item_type": "SavingsPlanNegation", "line_item_unblended_cost": "-2"},
	)
	if notes := strings.Join(r.ReadNotes(d), "\n"); !strings.Contains(notes, "by 0.0000000001 USD") {
		t.Errorf("notes %q do not say by how much", notes)
	}
}

// Partly covered (koku PR 5393, opencost PR 598): both lines of the hour count.
func TestPartlyCovered(t *testing.T) {
	e := newExport(t)
	e.columns = gross()
	node := row{"line_item_resource_id": "i-a", "line_item_usage_type": p5, "line_item_usage_amount": "0.5"}
	covered := row{"line_item_line_item_type": "SavingsPlanCoveredUsage", "line_item_unblended_cost": "25", "savings_plan_savings_plan_effective_cost": "20"}
	for k, v := range node {
		covered[k] = v
	}
	node["line_item_unblended_cost"] = "10"
	lines, _, _ := e.lines(covered, node)
	if got := lines[0].Costs.Effective.Add(lines[1].Costs.Effective); got != money.FromInt(30) {
		t.Errorf("effective %s, want 30", got)
	}
}

func TestSplitRowsAreSkipped(t *testing.T) {
	e := newExport(t)
	lines, r, d := e.lines(row{"line_item_operation": "EKSPod-EC2"}, row{"line_item_operation": "ECSTask-EC2"}, row{"line_item_unblended_cost": "1"})
	if len(lines) != 1 || !strings.Contains(strings.Join(r.ReadNotes(d), "\n"), "2 rows of split cost allocation skipped") {
		t.Errorf("%d lines, notes %q", len(lines), r.ReadNotes(d))
	}
}

func TestNetBasis(t *testing.T) {
	rows := []row{
		{"line_item_line_item_type": "SavingsPlanCoveredUsage", "line_item_resource_id": "i-a", "line_item_usage_type": p5, "line_item_unblended_cost": "2", "line_item_net_unblended_cost": "1.8", "savings_plan_savings_plan_effective_cost": "1.2", "savings_plan_net_savings_plan_effective_cost": "1.08"},
		{"line_item_unblended_cost": "10", "line_item_net_unblended_cost": "9"},
		{"line_item_line_item_type": "EdpDiscount", "line_item_unblended_cost": "-1"},
		{"line_item_unblended_cost": "3"},
	}
	e := newExport(t)
	lines, r, d := e.lines(rows...)
	var got []string
	for _, l := range lines {
		got = append(got, l.Costs.Billed.String()+"/"+l.Costs.Effective.String())
	}
	if want := []string{"0/1.08", "9/9", "0/0", "3/3"}; !slices.Equal(got, want) {
		t.Errorf("billed/effective %v, want %v", got, want)
	}
	if !strings.Contains(strings.Join(d.Notes, "\n"), "on the net basis") {
		t.Errorf("notes %q do not name the basis", d.Notes)
	}
	if !strings.Contains(strings.Join(r.ReadNotes(d), "\n"), "2 lines have no net cost") {
		t.Errorf("read notes %q do not count lines without net cost", r.ReadNotes(d))
	}

	// Without the plan's net column a net basis would be half of each.
	e = newExport(t)
	e.columns = slices.DeleteFunc(slices.Clone(allColumns), func(c string) bool { return c == columns[colSPNetEffective] })
	lines, _, d = e.lines(rows...)
	if got := lines[0].Costs.Effective; got != money.MustParse("1.2") || lines[1].Costs.Billed != money.FromInt(10) {
		t.Errorf("effective %s, billed %s; want the gross 1.2 and 10", got, lines[1].Costs.Billed)
	}
	if !strings.Contains(strings.Join(d.Notes, "\n"), columns[colSPNetEffective]) {
		t.Errorf("notes %q do not name the missing column", d.Notes)
	}
}

func TestTagsAndLateCharges(t *testing.T) {
	e := newExport(t)
	lines, _, _ := e.lines(
		row{"resource_tags": `{"user_team":"search","aws_eks_cluster_name":"a/b:c"}`, "tags": `{"user_team":"ranking"}`},
		row{"resource_tags": "{}", "tags": ""}, row{"resource_tags": "null"},
		row{"line_item_usage_start_date": "2026-08-31T23:00:00Z", "line_item_usage_end_date": "2026-09-01T00:00:00Z"},
	)
	if l := lines[0]; l.Tags["user_team"] != "search" || l.Tags["aws_eks_cluster_name"] != "a/b:c" || l.LoadTags != nil {
		t.Errorf("tags %v", l.Tags)
	}
	if lines[1].Tags != nil || lines[2].Tags != nil {
		t.Errorf("tags %v and %v, want none", lines[1].Tags, lines[2].Tags)
	}
	if l := lines[3]; l.BillingPeriod.String() != "2026-10" || l.ChargePeriod.Start.Month() != 8 {
		t.Errorf("late charge: billing period %s, charge period %s", l.BillingPeriod, l.ChargePeriod)
	}
}

// A Capacity Block of the reference: two p5 for a day, paid in advance and used for 36 hours.
func TestCapacityBlock(t *testing.T) {
	const block = "arn:aws:ec2:us-east-1:111122223333:capacity-reservation/cr-0abc"
	use := func(instance, hours string) row {
		return row{
			"line_item_resource_id": instance, "line_item_usage_type": p5, "line_item_usage_amount": hours,
			"line_item_unblended_cost": "0", "capacity_reservation_capacity_reservation_arn": block,
		}
	}
	e := newExport(t)
	e.columns = gross()
	lines, _, _ := e.lines(
		use("i-1", "24"),
		row{
			"line_item_line_item_type": "Fee", "line_item_resource_id": block, "line_item_usage_type": "USE1-CapacityBlock:p5.48xlarge", "line_item_usage_amount": "2", "pricing_unit": "Quantity",
			"line_item_usage_start_date": "2026-10-05T00:00:00Z", "line_item_usage_end_date": "2026-10-06T00:00:00Z", "line_item_unblended_cost": "10080.00",
		},
		use("i-2", "12"),
	)
	got := map[string]string{}
	for _, l := range lines {
		got[string(l.Class)+" "+l.InstanceID+" "+l.InstanceType] = l.Costs.Billed.String() + " " + l.Costs.Effective.String()
	}
	want := map[string]string{"node_usage i-1 p5.48xlarge": "0 5040", "node_usage i-2 p5.48xlarge": "0 2520", "capacity_unused  p5.48xlarge": "10080 2520"}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
