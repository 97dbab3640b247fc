package gce

import "testing"

func TestInstanceID(t *testing.T) {
	for _, c := range []struct{ resource, project, zone, want string }{
		{"projects/p/zones/us-central1-a/instances/g2-1", "", "", "p/us-central1-a/g2-1"},
		{"//compute.googleapis.com/projects/p/zones/us-central1-a/instances/g2-1", "other", "other", "p/us-central1-a/g2-1"},
		{"projects/123456/instances/gke-a-1", "ml-prod", "us-central1-a", "ml-prod/us-central1-a/gke-a-1"},
		{"projects/123456/zones/us-central1-a/instances/gke-a-10", "ml-prod", "", "ml-prod/us-central1-a/gke-a-10"},
		{"projects/123456/instances/gke-a-1", "", "us-central1-a", ""}, // a number is no project's name
		{"projects/p/instances/gke-a-1", "", "", ""},
		{"projects/p/zones/z/disks/d", "p", "z", ""},
		{"g2-1", "p", "z", ""},
	} {
		if got := InstanceID(c.resource, c.project, c.zone); got != c.want {
			t.Errorf("%s: %q, want %q", c.resource, got, c.want)
		}
	}
}

func TestParts(t *testing.T) {
	for _, c := range []struct {
		sku, machine, cores string
		part                Part
		perInstance         int64
	}{
		{"A2 Instance Core running in Americas", "a2-highgpu-8g", "96", Core, 0},
		{"A2 Instance Ram running in Americas", "a2-highgpu-8g", "96", RAM, 0},
		{"Nvidia Tesla A100 GPU running in Americas", "a2-highgpu-8g", "96", GPU, 8},
		{"Nvidia L4 GPU attached to Spot Preemptible VMs running in Belgium", "g2-standard-48", "48", GPU, 4},
		{"Spot Preemptible A2 Instance Core running in Americas", "a2-megagpu-16g", "96", Core, 0},
		{"N1 Predefined Instance Core running in Americas", "n1-standard-8", "8", Core, 8},
		{"Nvidia Tesla T4 GPU running in Americas", "n1-standard-8", "8", GPU, 0},
		{"N1 Predefined Instance Core running in Americas", "n1-standard-8", "", Core, 0},
		{"SSD backed Local Storage attached to Spot Preemptible VMs", "a2-ultragpu-1g", "12", Storage, 0},
		{"Licensing Fee for Ubuntu Pro on VM with 12 VCPU (GPU cost)", "a2-highgpu-1g", "12", License, 0},
		{"Network Internet Data Transfer Out from Americas to GPU land", "a2-highgpu-1g", "12", Beside, 0},
		{"Suspend something", "a2-highgpu-1g", "12", Unknown, 0},
	} {
		part := PartOf(c.sku)
		if got := part.PerInstance(c.machine, c.cores); part != c.part || got != c.perInstance {
			t.Errorf("%s on %s: %q, %d; want %q, %d", c.sku, c.machine, part, got, c.part, c.perInstance)
		}
	}
}

func TestGPUsOfTypes(t *testing.T) {
	for machine, want := range map[string]int64{"a2-highgpu-1g": 1, "a2-ultragpu-8g": 8, "a3-megagpu-8g": 8, "a4-highgpu-8g": 8, "g2-standard-96": 8, "g2-standard-24": 2, "g4-standard-192": 4, "n1-standard-8": 0, "e2-medium": 0, "": 0} {
		if got := GPUs(machine); got != want {
			t.Errorf("%s: %d GPUs, want %d", machine, got, want)
		}
	}
}
