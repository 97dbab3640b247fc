package ec2

import "testing"

func TestUsageTypes(t *testing.T) {
	for in, want := range map[string][3]string{ // kind, type, family
		"BoxUsage:p5.48xlarge": {"BoxUsage", "p5.48xlarge", ""}, "USE1-BoxUsage:p4d.24xlarge": {"BoxUsage", "p4d.24xlarge", ""}, "EU-SpotUsage:g5.xlarge": {"SpotUsage", "g5.xlarge", ""},
		"UGW1-BoxUsage:u-6tb1.112xlarge": {"BoxUsage", "u-6tb1.112xlarge", ""}, "BoxUsage": {"BoxUsage", "", ""}, "": {"", "", ""}, "USE1-": {"", "", ""},
		"USE1-EC2SP:p5.1yrNoUpfront": {"EC2SP", "", "p5"}, "EC2SP:g5": {"EC2SP", "", ""}, "USE1-HostUsage:p4d": {"HostUsage", "", "p4d"}, "ReservedHostUsage:p4d.1yrNoUpfront": {"ReservedHostUsage", "", ""},
		"ComputeSP:1yrNoUpfront": {"ComputeSP", "", ""},
		"EBS:VolumeUsage.gp3":    {"EBS", "", ""}, "DataTransfer-Out-Bytes": {"DataTransfer-Out-Bytes", "", ""}, "CPUCredits:t3": {"CPUCredits", "", ""},
		"USE1-Train:ml.p4d.24xlarge": {"Train", "ml.p4d.24xlarge", ""}, "BoxUsage:p5en.48xlarge": {"BoxUsage", "p5en.48xlarge", ""}, "BoxUsage:c5.metal-24xl": {"BoxUsage", "c5.metal-24xl", ""}, "ABCDE1-X:a": {"ABCDE1-X", "", ""},
	} {
		if got := [3]string{Kind(in), TypeOf(in), FamilyOf(in)}; got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestInstanceID(t *testing.T) {
	for in, want := range map[string]string{
		"i-0abc": "i-0abc", "arn:aws:ec2:us-east-1:1:instance/i-0abc": "i-0abc", "arn:aws-cn:ec2:cn-north-1:1:instance/i-1": "i-1",
		"": "", "i-": "", "vol-0i-0": "", "i-0/x": "", "arn:aws:ec2:us-east-1:1:volume/vol-1": "", "arn:aws:x:y:z:instance/i-1": "", "my-i-0abc": "", "I-0abc": "",
	} {
		if got := InstanceID(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestTexts(t *testing.T) {
	for in, want := range map[string]string{
		"$1.624 per On Demand Linux g5.4xlarge Instance Hour": "g5.4xlarge", "p5en.48xlarge, reserved": "p5en.48xlarge", "Amazon EC2 (g6e.xlarge)": "g6e.xlarge",
		"$0.045 per GB - first 10 TB": "", "Standard_NC24ads_A100_v4": "", "x.large": "x.large", "see www.example.large.com": "",
	} {
		if got := TypeIn(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	if got := TaxedUsage("Tax for product code AmazonEC2 usage type USE1-BoxUsage:p4d.24xlarge operation RunInstances"); got != "USE1-BoxUsage:p4d.24xlarge" {
		t.Errorf("taxed usage %q", got)
	}
}
