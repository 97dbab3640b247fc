// Package azurevm names Azure machines the way Kubernetes nodes do.
package azurevm

import (
	"regexp"
	"strconv"
	"strings"
)

var (
	scaleSet   = regexp.MustCompile(`(?i)/providers/microsoft\.compute/virtualmachinescalesets/([^/]+)(?:/virtualmachines/(\d+))?/?$`)
	standalone = regexp.MustCompile(`(?i)/providers/microsoft\.compute/virtualmachines/([^/]+)/?$`)
	number     = regexp.MustCompile(`^[0-9]+$`)
	base36     = regexp.MustCompile(`^(.+vmss)([0-9a-z]{6})$`)
)

// InstanceID returns the machine that a resource is: "vmss/number" of a scale set, in
// lower case, and the name of a virtual machine of its own; "" where it is neither. A
// bill names the scale set alone and says the machine in vmName, whose number is what
// stands behind the last "_" (aks-gpu_a-vmss_3), or the six digits to the base of 36 at the end of
// a node's name (aks-gpu-vmss00000b is 11).
func InstanceID(resourceID, vmName string) string {
	if m := standalone.FindStringSubmatch(resourceID); m != nil {
		return strings.ToLower(m[1])
	}
	m := scaleSet.FindStringSubmatch(resourceID)
	if m == nil {
		return ""
	}
	set := strings.ToLower(m[1])
	if m[2] != "" {
		return set + "/" + m[2]
	}
	name := strings.ToLower(vmName)
	if i := strings.LastIndexByte(name, '_'); i > 0 && number.MatchString(name[i+1:]) && name[:i] == set {
		n, err := strconv.Atoi(name[i+1:])
		if err != nil {
			return ""
		}
		return set + "/" + strconv.Itoa(n)
	}
	if m := base36.FindStringSubmatch(name); m != nil && m[1] == set {
		n, err := strconv.ParseInt(m[2], 36, 64)
		if err != nil {
			return ""
		}
		return set + "/" + strconv.FormatInt(n, 10)
	}
	return ""
}

// IsMachine reports whether a resource is a virtual machine or a scale set of them.
func IsMachine(resourceID string) bool {
	return scaleSet.MatchString(resourceID) || standalone.MatchString(resourceID)
}

var size = regexp.MustCompile(`^(?:Standard|Basic)_[A-Za-z0-9_-]+$`)

// Size returns a text that is the size of a machine (Standard_NC24ads_A100_v4), else "".
func Size(text string) string {
	if size.MatchString(text) {
		return text
	}
	return ""
}
