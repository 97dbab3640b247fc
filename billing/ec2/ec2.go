// Package ec2 reads what EC2's own names say: usage types, resource ids and
// instance types. They stand in Cost and Usage Reports and in AWS's FOCUS
// exports alike.
package ec2

import (
	"regexp"
	"strings"
)

var instancePattern = regexp.MustCompile(`^arn:aws[a-z-]*:ec2:[^:]*:[^:]*:instance/(i-[0-9a-z]+)$`)

// InstanceID returns the i-… of a resource id or an instance's ARN, "" for any
// other resource.
func InstanceID(resource string) string {
	if !strings.HasPrefix(resource, "i-") && !strings.Contains(resource, ":instance/i-") {
		return ""
	}
	if rest, ok := strings.CutPrefix(resource, "i-"); ok {
		if rest == "" || strings.Trim(rest, "0123456789abcdefghijklmnopqrstuvwxyz") != "" {
			return ""
		}
		return resource
	}
	if m := instancePattern.FindStringSubmatch(resource); m != nil {
		return m[1]
	}
	return ""
}

// A usage type is [region-]Kind[:suffix]: BoxUsage:p5.48xlarge,
// EUW1-SpotUsage:g5.xlarge, USE1-EC2SP:p5.1yrNoUpfront.
func split(usageType string) (kind, suffix string) {
	kind, suffix, _ = strings.Cut(usageType[regionPrefix(usageType):], ":")
	return kind, suffix
}

// regionPrefix returns the length of two to four capitals, up to two digits and
// a hyphen: USE1-, EU-, UGW1-.
func regionPrefix(s string) int {
	i := 0
	for i < len(s) && s[i] >= 'A' && s[i] <= 'Z' {
		i++
	}
	letters := i
	for i < len(s) && s[i] >= '0' && s[i] <= '9' {
		i++
	}
	if letters < 2 || letters > 4 || i-letters > 2 || i == len(s) || s[i] != '-' {
		return 0
	}
	return i + 1
}

// Kind returns a usage type without its region and suffix: BoxUsage, SpotUsage.
func Kind(usageType string) string {
	kind, _ := split(usageType)
	return kind
}

// IsInstanceHours reports whether a usage type is an instance's own hours, as
// against volumes, traffic or optimisation fees, which carry its id too.
func IsInstanceHours(usageType string) bool {
	switch Kind(usageType) {
	case "BoxUsage", "SpotUsage", "DedicatedUsage", "HostBoxUsage", "SchedUsage", "HeavyUsage":
		return true
	}
	return false
}

// IsUnusedCapacity reports whether a usage type is reserved capacity that no
// instance used.
func IsUnusedCapacity(usageType string) bool {
	kind := Kind(usageType)
	return kind == "UnusedBox" || kind == "UnusedDed"
}

// TypeOf returns the instance type that a usage type names, or "".
func TypeOf(usageType string) string {
	kind, suffix := split(usageType)
	if kind == "EC2SP" {
		return "" // an EC2 Instance Savings Plan names a family and its terms
	}
	return Type(suffix)
}

// FamilyOf returns the family that a usage type names where it names no type: an
// EC2 Instance Savings Plan (p5 for EC2SP:p5.1yrNoUpfront) or a dedicated host
// (p4d for HostUsage:p4d). Else "".
func FamilyOf(usageType string) string {
	kind, suffix := split(usageType)
	if kind == "HostUsage" || kind == "ReservedHostUsage" {
		if strings.Contains(suffix, ".") {
			return ""
		}
		return suffix
	}
	family, _, ok := strings.Cut(suffix, ".")
	if kind != "EC2SP" || !ok {
		return ""
	}
	return family
}

// A type is a family of letters with a generation, a point and a size. Managed
// services put a word before it (ml.p4d.24xlarge), which stays.
var (
	typePattern = regexp.MustCompile(`^(?:[a-z]+\.)?[a-z]+[0-9]*[a-z0-9-]*\.(?:nano|micro|small|medium|large|[0-9]*xlarge|metal(?:-[0-9]+xl)?)$`)
	typeInText  = regexp.MustCompile(`(?:^|[\s(])([a-z][a-z0-9-]*\.(?:nano|micro|small|medium|large|[0-9]*xlarge|metal(?:-[0-9]+xl)?))(?:[\s,.)]|$)`)
)

// Type returns the word if it is an instance type, else "".
func Type(word string) string {
	if !strings.Contains(word, ".") || !typePattern.MatchString(word) {
		return ""
	}
	return word
}

// TypeIn returns the first instance type in a text such as "$1.624 per On Demand
// Linux g5.4xlarge Instance Hour", or "".
func TypeIn(text string) string {
	if !strings.Contains(text, ".") {
		return ""
	}
	if m := typeInText.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return ""
}

// TaxedUsage returns the usage type in a tax line's description, "Tax for product
// code AmazonEC2 usage type USE1-BoxUsage:p4d.24xlarge operation RunInstances",
// or "".
func TaxedUsage(description string) string {
	_, rest, ok := strings.Cut(description, " usage type ")
	if !ok {
		return ""
	}
	word, _, _ := strings.Cut(rest, " ")
	return word
}
