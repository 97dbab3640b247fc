package gpu

import "testing"

// A holder of the whole of a GPU or of an instance pays for all of it, whatever its
// processes show beside the device's own figure.
func TestWholeHolderPaysForAll(t *testing.T) {
	columns := map[string]func(Shares) int64{"used": used, "request": requestReplica, "max": maxReplica, "max without replicas": maxNone}
	pod := testPod("a", -2000, 9000, "nvidia_com_gpu", 1)
	claimant := testPod("a", -2000, 9000, "", 0)
	device := dcgm("DCGM_FI_DEV_FB_USED", always(16*gib))
	free := dcgm("DCGM_FI_DEV_FB_FREE", always(24*gib))
	claim := []string{"dra_claim_name", "c1", "dra_claim_namespace", "ml"}
	for name, c := range map[string]struct{ inv, dev []Series }{
		"exclusive, process below the device":  {join(testNode(1), pod), []Series{device, free, perProcess("a", always(12*gib))}},
		"exclusive, a process of next to none": {join(testNode(1), pod), []Series{device, free, perProcess("a", always(1))}},
		"a claim of one pod, equal to the device": {
			join(testNode(1), claimant), []Series{device, free, perProcess("a", always(16*gib), claim...)},
		},
		"a claim of one pod, below the device": {
			join(testNode(1), claimant), []Series{device, free, perProcess("a", always(6*gib), claim...)},
		},
	} {
		for column, of := range columns {
			t.Run(name+"/"+column, func(t *testing.T) {
				check(t, FoldHour(c.inv, c.dev, hour0, Settings{}), of, want{"a", ProcessUID, fullHour})
			})
		}
	}
}

// Two pods in turn in one claim: each has the whole device in its time.
func TestClaimHandedOver(t *testing.T) {
	inv := join(testNode(1), testPod("a", -2000, 900, "", 0), testPod("b", 900, 9000, "", 0))
	claim := []string{"dra_claim_name", "c1", "dra_claim_namespace", "ml"}
	dev := []Series{
		dcgm("DCGM_FI_DEV_FB_USED", always(12*gib)), dcgm("DCGM_FI_DEV_FB_FREE", always(28*gib)),
		perProcess("a", sampled(step{-900, 900, 12 * gib}), claim...), perProcess("b", sampled(step{900, 4500, 12 * gib}), claim...),
	}
	check(t, FoldHour(inv, dev, hour0, Settings{}), used, want{"a", ProcessUID, fullHour / 4}, want{"b", ProcessUID, fullHour * 3 / 4})
}

// Where neither a series nor a label tells the GPU's size, a request is still a share
// of it, and no figure in bytes is kept.
func TestRequestOfAGPUOfUnknownSize(t *testing.T) {
	inv := join(testNode(4), testPod("a", -2000, 9000, "nvidia_com_gpu", 1))
	got := FoldHour(inv, nil, hour0, Settings{})
	for name, of := range map[string]func(Shares) int64{"used": used, "request": requestReplica, "max": maxReplica} {
		t.Run(name, func(t *testing.T) {
			check(t, got, of, want{"a", ReplicaRequest, fullHour / 4}, want{"unallocated", NoMethod, fullHour * 3 / 4})
		})
	}
	for _, r := range got.Nodes[0].Devices[0].Partitions[0].Rows {
		if r.UsedByteSeconds != 0 || r.HeldByteSeconds != 0 {
			t.Errorf("%s: %d used and %d held byte-seconds of a GPU of unknown size", r.PodUID, r.UsedByteSeconds, r.HeldByteSeconds)
		}
	}
}
