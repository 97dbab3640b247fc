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
