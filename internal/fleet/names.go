package fleet

import (
	"fmt"
	"strings"
)

// number hashes a name to 64 bits: FNV-1a, then the finaliser of SplitMix64. It
// is all the chance there is in a fleet.
func number(name string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	return mix(h)
}

func mix(h uint64) uint64 {
	h ^= h >> 30
	h *= 0xbf58476d1ce4e5b9
	h ^= h >> 27
	h *= 0x94d049bb133111eb
	return h ^ h>>31
}

// between returns a number of [low, high] that depends on the name alone.
func between(name string, low, high int64) int64 {
	return low + int64(number(name)%uint64(high-low+1))
}

func uuidOf(name string) string {
	a, b := number(name+"/1"), number(name+"/2")
	a = a&^0xf000 | 0x4000 // version 4
	b = b&^(3<<62) | 2<<62 // variant 1
	return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", a>>32, a>>16&0xffff, a&0xffff, b>>48, b&0xffffffffffff)
}

// suffix is the kind of random ending that Kubernetes gives to names.
func suffix(name string, n int) string {
	const letters = "bcdfghjklmnpqrstvwxz2456789"
	h := number("suffix/" + name)
	var b strings.Builder
	for range n {
		b.WriteByte(letters[h%uint64(len(letters))])
		h = mix(h + 0x9e3779b97f4a7c15)
	}
	return b.String()
}

func instanceID(name string) string {
	return fmt.Sprintf("i-0%016x", number("instance/"+name))
}

// gpuUUID is the UUID of a node's GPU as NVML gives it.
func (n *Node) gpuUUID(gpu int) string {
	return "GPU-" + uuidOf(fmt.Sprintf("%s/gpu/%d", n.InstanceID, gpu))
}

// ip is the node's address, which EKS also puts into its name.
func (n *Node) ip() string {
	host, _, _ := strings.Cut(n.Name, ".")
	return strings.ReplaceAll(strings.TrimPrefix(host, "ip-"), "-", ".")
}

// sanitised spells a label or resource as kube-state-metrics does.
func sanitised(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '_'
	}, name)
}
