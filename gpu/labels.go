package gpu

import "strings"

// workloadLabel reads a label that Prometheus may have renamed: with honorLabels
// off, the target's own label keeps the name and the exported one is prefixed.
func workloadLabel(l map[string]string, name string) string {
	if v := l["exported_"+name]; v != "" {
		return v
	}
	return l[name]
}

func prefixed(l map[string]string, prefix string) map[string]string {
	out := map[string]string{}
	for k, v := range l {
		if name, ok := strings.CutPrefix(k, prefix); ok {
			out[name] = v
		}
	}
	return out
}

func first(l map[string]string, names ...string) string {
	for _, n := range names {
		if l[n] != "" {
			return l[n]
		}
	}
	return ""
}

// mostUnits is more GPUs, slots or MIG devices than any node has.
const mostUnits = 1 << 12

// wholeNumber reads a quantity, at most more of it than any node has.
func wholeNumber(v float64) uint64 {
	const most = 1 << 50
	switch {
	case !(v > 0): // NaN too
		return 0
	case v >= most:
		return most
	}
	return uint64(v + 0.5)
}

func lastValue(s Series) float64 {
	if len(s.Samples) == 0 {
		return 0
	}
	return s.Samples[len(s.Samples)-1].Value
}

// resourceName spells a MIG profile the way kube-state-metrics spells it within a
// resource or label name: every character outside [a-zA-Z0-9_] becomes "_".
func resourceName(profile string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, profile)
}
