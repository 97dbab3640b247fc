package allocate

import (
	"testing"

	"gpuledger/billing"
	"gpuledger/billing/money"
	"gpuledger/gpu"
	"gpuledger/internal/anyfleet"
)

// The smallest fleets on which a property once failed, and what must come out.

const ever = 1 << 29

// smallNode is a node that is always there, with whole GPUs.
func smallNode(mode gpu.Mode, replicas int, models ...string) *anyfleet.Node {
	n := &anyfleet.Node{
		Name: "n", Pool: "a", Instance: "i-1", Mode: mode, Exporter: anyfleet.Process, Replicas: replicas, Up: -ever, Down: ever,
		CPUMilli: 4000, Memory: 16 * gib,
	}
	for i, m := range models {
		n.GPUs = append(n.GPUs, &anyfleet.GPU{
			UUID: "GPU-" + string(rune('1'+i)), Model: m, TotalMiB: 10_500, ReservedMiB: 500,
			Parts: []*anyfleet.Part{{Memory: 1, Compute: 1, UsableMiB: 10_000, From: -ever, To: ever}},
		})
	}
	return n
}

// smallPod is a pod of namespace web, whose team does not change.
func smallPod(name string, card, slots, from, to int, mib int64) *anyfleet.Pod {
	return &anyfleet.Pod{
		Namespace: "web", Name: name, From: from, To: to,
		Places: []anyfleet.Place{{GPU: card, Slots: slots, NoSlotLabel: true, Used: []anyfleet.Step{{At: from, MiB: mib}}}},
	}
}

const hour1 = anyfleet.Hour

// checkSmall splits a fleet of one node by one line and by lines of an hour each, and
// compares who pays how much of the cost with what should be, to a millionth.
func checkSmall(t *testing.T, n *anyfleet.Node, hours int, p *anyfleet.Policy, want map[string]float64) {
	t.Helper()
	r := newReal(t, &anyfleet.Fleet{Past: 1, Hours: hours, Nodes: []*anyfleet.Node{n}}, p, fleetOwners(t))
	byHour := map[string]money.Ratio{}
	for hour := range hours {
		for k, v := range bySmall(r.shares(r.window(n, hour, hour+1, 0), billing.Node)) {
			byHour[k] += v / money.Ratio(hours)
		}
	}
	for name, got := range map[string]map[string]money.Ratio{"one line": bySmall(r.split(n)), "lines of an hour": byHour} {
		for k := range want {
			got[k] += 0
		}
		for k, v := range got {
			if d := float64(v)/float64(money.One) - want[k]; d > 1e-6 || d < -1e-6 {
				t.Errorf("%s: %s pays %s, not %.6f", name, k, v, want[k])
			}
		}
	}
}

// bySmall adds up by pod, by category where it stays, and by team where it goes to one.
func bySmall(shares []Share) map[string]money.Ratio {
	out := map[string]money.Ratio{}
	for _, s := range shares {
		switch {
		case s.PodUID != "":
			out[s.PodUID[len("uid-"):]] += s.Ratio
		case s.MovedBy != "":
			out["team "+s.Owner.Team] += s.Ratio
		default:
			out[s.Category] += s.Ratio
		}
	}
	return out
}

func idle(rules map[string]anyfleet.Rule) *anyfleet.Policy {
	return &anyfleet.Policy{
		Basis: "max", Reservation: "none", Weight: "memory", Normaliser: "configured", Unattributed: "own_line", Driver: "exclude", Split: "gpu_all", Idle: rules,
	}
}

// The half of an hour for which a node is not ready belongs to that hour: a is there in
// it, b only in the next. A line of both hours says so too.
func TestP09NotReadyIsOfItsHour(t *testing.T) {
	n := smallNode(gpu.ModeExclusive, 1, "L4")
	n.Up = hour1 / 2
	n.Pods = append(n.Pods, smallPod("a", 0, 1, hour1/2, hour1, 0), smallPod("b", 0, 1, hour1, ever, 0))
	checkSmall(t, n, 2, idle(map[string]anyfleet.Rule{NotReady: {Policy: "proportional"}}), map[string]float64{"a": 0.5, "b": 0.5})
}

// Headroom is of the node: 30 % of three GPUs is 0.9 of the free one. In a line of
// several hours too, with the GPU that nobody sees.
func TestP09HeadroomIsOfTheNode(t *testing.T) {
	n := smallNode(gpu.ModeExclusive, 1, "L4", "L4")
	n.Unseen = 1
	n.Pods = append(n.Pods, smallPod("a", 0, 1, -ever, ever, 0))
	checkSmall(t, n, 2, idle(map[string]anyfleet.Rule{"unallocated": {Policy: "headroom", Headroom: 30}}),
		map[string]float64{"a": 1.1 / 3, "team platform": 0.9 / 3, "no_telemetry": 1.0 / 3})
}

// An A100 and an H100 of four times its price, both held for the half of the hour in which
// the node is ready: the other half is the other half of the line.
func TestP01NotReadyOfSeveralModels(t *testing.T) {
	models := anyfleet.Models()
	n := smallNode(gpu.ModeExclusive, 1, models[0], models[3])
	n.Up = hour1 / 2
	n.Pods = append(n.Pods, smallPod("a", 0, 1, hour1/2, ever, 0), smallPod("b", 1, 1, hour1/2, ever, 0))
	checkSmall(t, n, 1, idle(nil), map[string]float64{"a": 0.1, "b": 0.4, "not_ready": 0.5})
}

// Half of the GPU is in use by nobody known since the last pod left. Of the free half its
// last tenant pays half an hour. When in the emptiness the bytes of nobody's were is not
// kept: they are taken as spread over it.
func TestP01LastTenantOfWhatWasFree(t *testing.T) {
	n := smallNode(gpu.ModeTimeSlicing, 2, "L4")
	n.Pods = append(n.Pods, smallPod("a", 0, 1, -hour1, 0, 5_000))
	n.GPUs[0].Parts[0].Stray = []anyfleet.Step{{At: 0, MiB: 5_000}}
	checkSmall(t, n, 1, idle(map[string]anyfleet.Rule{"unallocated": {Policy: "last_tenant", Lookback: hour1 / 2}}),
		map[string]float64{"a": 0.25, "unattributed": 0.5, "unallocated": 0.25})
}

// A pod that requests nothing and is shown with 0 bytes pays nothing: not for the time in
// which the exporter is silent, not for bytes of nobody's, not an even part of what is
// free.
func TestP03NullPlayerThatIsShown(t *testing.T) {
	null := smallPod("null", 0, 0, -ever, ever, 0)
	t.Run("silence", func(t *testing.T) {
		n := smallNode(gpu.ModeExclusive, 1, "L4")
		n.Outage = [2]int{hour1 / 3, 2 * hour1 / 3} // of which 240 s at each end are known
		n.Pods = append(n.Pods, null)
		checkSmall(t, n, 1, idle(nil), map[string]float64{"unallocated": 0.8, "no_telemetry": 0.2})
	})
	t.Run("bytes of nobody's", func(t *testing.T) {
		n := smallNode(gpu.ModeTimeSlicing, 2, "L4")
		n.GPUs[0].Parts[0].Stray = []anyfleet.Step{{At: -ever, MiB: 4_000}}
		n.Pods = append(n.Pods, null)
		checkSmall(t, n, 1, idle(nil), map[string]float64{"unallocated": 0.6, "unattributed": 0.4})
	})
	t.Run("even", func(t *testing.T) {
		n := smallNode(gpu.ModeTimeSlicing, 2, "L4")
		n.Pods = append(n.Pods, null, smallPod("a", 0, 1, -ever, ever, 5_000))
		checkSmall(t, n, 1, idle(map[string]anyfleet.Rule{"unallocated": {Policy: "even", Scope: "device"}}), map[string]float64{"a": 1})
	})
}

// Two pods with 1 MiB each hold both slots of an H100, so the free memory is theirs by
// use. Each used 44,400.59 µs; the rounding gives one of them 44,401, and by that it gets
// 40,540 µs more of what is free: 11 millionths of the line, and not a microsecond.
func TestP04SymmetryOfSmallUse(t *testing.T) {
	n := smallNode(gpu.ModeTimeSlicing, 2, "NVIDIA H100 80GB HBM3")
	n.GPUs[0].TotalMiB, n.GPUs[0].ReservedMiB, n.GPUs[0].Parts[0].UsableMiB = 81_559, 479, 81_080
	n.Pods = append(n.Pods, smallPod("a", 0, 1, -ever, ever, 1), smallPod("b", 0, 1, -ever, ever, 1))
	checkSmall(t, n, 1, idle(nil), map[string]float64{"a": 0.5, "b": 0.5})
}
