// Package gce names machines of Google Compute Engine the way Kubernetes nodes do.
package gce

import "regexp"

var instance = regexp.MustCompile(`^(?://compute\.googleapis\.com/)?projects/([^/]+)/(?:zones/([^/]+)/)?instances/([^/]+)$`)

var number = regexp.MustCompile(`^[0-9]+$`)

// InstanceID returns the machine that a resource name is, as project/zone/name, the parts
// of a node's provider id (gce://project/zone/name): names repeat between zones. A bill
// may name the project by its number, and leave the zone out, which its own columns for
// them make good; "" where the resource is no machine, or a part of its name is missing.
func InstanceID(resource, project, zone string) string {
	m := instance.FindStringSubmatch(resource)
	if m == nil {
		return ""
	}
	if !number.MatchString(m[1]) {
		project = m[1]
	}
	if m[2] != "" {
		zone = m[2]
	}
	if project == "" || zone == "" {
		return ""
	}
	return project + "/" + zone + "/" + m[3]
}

// IsMachine reports whether a resource name is a machine's.
func IsMachine(resource string) bool { return instance.MatchString(resource) }
