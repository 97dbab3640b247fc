package gpu

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// Whatever the holders, their lives and their bytes: in each of the five columns the
// shares of a partition sum to its present time, and none is negative.
func TestPropertyColumnsSumToPresentTime(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		replicas := rapid.IntRange(1, 5).Draw(rt, "replicas")
		inv := testNode(replicas)
		var dev []Series
		bare := rapid.Bool().Draw(rt, "bare")
		for i := range rapid.IntRange(0, 6).Draw(rt, "pods") {
			name := fmt.Sprintf("p%d", i)
			from := rapid.IntRange(-60, 110).Draw(rt, "from") * 30
			to := from + rapid.IntRange(1, 150).Draw(rt, "life")*30
			inv = append(inv, testPod(name, from, to, "nvidia_com_gpu", rapid.IntRange(0, 2).Draw(rt, "request"))...)
			s := sampled(step{from, to, float64(rapid.IntRange(0, 50_000).Draw(rt, "MiB"))})
			if rapid.Bool().Draw(rt, "uid") {
				dev = append(dev, perProcess(name, s))
			} else {
				dev = append(dev, dcgm("DCGM_FI_DEV_FB_USED", s, "pod", name, "namespace", "ml", "container", "c"))
			}
		}
		if bare {
			dev = append(dev, dcgm("DCGM_FI_DEV_FB_USED", sampled(step{rapid.IntRange(-900, 3600).Draw(rt, "bareFrom"), 4500, float64(rapid.IntRange(0, 45_000).Draw(rt, "bareMiB"))})))
		}
		if rapid.Bool().Draw(rt, "free") {
			dev = append(dev, dcgm("DCGM_FI_DEV_FB_FREE", always(float64(rapid.IntRange(0, 40_960).Draw(rt, "freeMiB")))))
		}
		for _, n := range FoldHour(inv, dev, hour0, Settings{}).Nodes {
			for _, d := range n.Devices {
				for _, p := range d.Partitions {
					var sums [columns]int64
					for _, r := range p.Rows {
						for c := range columns {
							v := *r.Shares.column(c)
							if v < 0 || r.MeasuredMicros < 0 || r.GapMicros < 0 || r.UsedByteSeconds < 0 {
								rt.Fatalf("%+v", r)
							}
							sums[c] += v
						}
					}
					for c, sum := range sums {
						if sum != p.PresentMicros {
							rt.Fatalf("column %d: %d of %d µs\n%+v", c, sum, p.PresentMicros, p.Rows)
						}
					}
				}
			}
		}
	})
}
