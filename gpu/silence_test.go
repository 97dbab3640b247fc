package gpu_test

import (
	"testing"

	"gpuledger/gpu"
	"gpuledger/internal/anyfleet"
)

// Silences that random fleets do not come upon.

const ever = 1 << 29

// instances is a node whose one card is cut into so many of 1g.5gb.
func instances(many int) *anyfleet.Node {
	n := &anyfleet.Node{
		Name: "n", Instance: "i-1", Mode: gpu.ModeMIG, Exporter: anyfleet.Label, Replicas: 1, Up: -ever, Down: ever,
		GPUs: []*anyfleet.GPU{{UUID: "GPU-1", Model: "NVIDIA A100-SXM4-40GB", TotalMiB: 40_960, ReservedMiB: 512}},
	}
	for i := range many {
		n.GPUs[0].Parts = append(n.GPUs[0].Parts, &anyfleet.Part{ID: string(rune('1' + i)), Profile: "1g.5gb", Memory: 1, Compute: 1, UsableMiB: 4_864, From: -ever, To: ever})
	}
	return n
}

func fold(n *anyfleet.Node) *gpu.NodeHour {
	inventory, devices := (&anyfleet.Fleet{Nodes: []*anyfleet.Node{n}}).Series(0, 1)
	return nodeHour(gpu.FoldHour(inventory, devices, anyfleet.At(0), gpu.Settings{}), "n")
}

// P17: seven instances of 1g, of which a pod holds one. From half past on the exporter is
// silent, until after what is read with the hour. The pod holds a seventh of the card
// still: that nothing is seen of the six that nobody holds does not mean they are gone.
func TestP17FloorWhileTheExporterIsSilent(t *testing.T) {
	n := instances(7)
	n.Outage = [2]int{anyfleet.Hour / 2, 2 * anyfleet.Hour}
	n.Pods = []*anyfleet.Pod{{Namespace: "ml", Name: "a", From: -ever, To: ever, Places: []anyfleet.Place{{Slots: 1}}}}
	for _, p := range fold(n).Devices[0].Partitions {
		if p.DeviceSlices != 7 || p.PresentMicros != int64(anyfleet.Hour)*1e6 {
			t.Errorf("instance %s is 1 of %d slices for %d µs", p.GPUInstance, p.DeviceSlices, p.PresentMicros)
		}
	}
}

// P12: a sample stands for at most 2.5 scrape intervals to either side. The instance was
// scraped every two minutes, six times with the label of the pod that held it. The series
// without a label has one sample between that and a silence of 48 minutes, and two after
// it: that is not an interval of 50 minutes.
func TestP12IntervalOfShortSeries(t *testing.T) {
	n := instances(1)
	n.Up, n.Outage = 480, [2]int{1320, 4200}
	n.Pods = []*anyfleet.Pod{{Namespace: "ml", Name: "a", From: 480, To: 1200, Places: []anyfleet.Place{{Slots: 1}}}}
	p := fold(n).Devices[0].Partitions[0]
	checkRows(t, p, map[string]int64{"uid-a": 720, "unallocated": 360, "no_telemetry": 2_040})
}

func checkRows(t *testing.T, p gpu.Partition, want map[string]int64) {
	t.Helper()
	for _, r := range p.Rows {
		who := r.PodUID + string(r.Category)
		if r.Shares.Used != want[who]*1e6 {
			t.Errorf("%s has %d µs, not %d s", who, r.Shares.Used, want[who])
		}
		delete(want, who)
	}
	for who, s := range want {
		t.Errorf("%s has nothing, not %d s", who, s)
	}
}
