package main

import (
	"maps"
	"slices"
	"strings"

	"gpuledger/gpu"
)

// What brings better bytes, by what is wrong.
const (
	perProcess  = "dcgm-exporter 4.5.3-4.8.2 or newer with --kubernetes-virtual-gpus (KUBERNETES_VIRTUAL_GPUS=true) and hostPID: true"
	mapPIDs     = "hostPID: true for dcgm-exporter, and let its service account get, list and watch pods"
	enableUID   = "dcgm-exporter with --kubernetes-enable-pod-uid (from 4.4.0-4.5.0 on)"
	namePods    = "dcgm-exporter with --kubernetes (DCGM_EXPORTER_KUBERNETES=true) and /var/lib/kubelet/pod-resources mounted; and let no rule drop its labels pod, namespace and container"
	scrapeHAMi  = "scrape HAMi's vGPUmonitor (port metrics of hami-device-plugin, 9394; NodePort 31992): it has each pod's bytes and limit"
	scrapeRunai = "scrape Run:ai's or KAI's own metrics, if there are: runai_gpu_memory_used_mebibytes_per_pod_per_gpu has each pod's bytes"
	scrapeFB    = "let the exporter have DCGM_FI_DEV_FB_USED and DCGM_FI_DEV_FB_FREE among its counters"
)

// worth is the part of the time of a node's pods, one in so many, below which a rung is of
// no interest: pods that start or end have some seconds of estimates.
const worth = 20

// bytesOf is how the bytes of a node's pods are known, in µs of their time.
type bytesOf struct {
	total                                       int64
	by                                          map[gpu.Method]int64
	copied, failed, inferred, shared, estimated int64
	mps, fraction, claimed                      int64
	rogue, unlisted                             int64
}

func (b *bytesOf) is(us int64) bool { return us > 0 && us*worth >= b.total }

// rung says how the bytes of the node's pods are known, and what would make them better.
func (f *nodesFound) rung(seen *observed, inv *gpu.Inventory, nh gpu.NodeHour, signs []gpu.Signs) {
	b := bytesOf{by: map[gpu.Method]int64{}}
	limited := false
	eachPodRow(nh, func(p gpu.Partition, r gpu.Row) {
		us := r.MeasuredMicros + r.GapMicros
		b.total += us
		b.by[r.Method] += us
		for _, c := range []struct {
			is  bool
			sum *int64
		}{
			{r.Flags&gpu.FlagCopied != 0, &b.copied},
			{r.Flags&gpu.FlagMappingFailed != 0, &b.failed},
			{r.Flags&gpu.FlagPlacementInferred != 0, &b.inferred},
			{r.Flags&gpu.FlagRogue != 0, &b.rogue},
			{r.Flags&gpu.FlagHolderUnlisted != 0, &b.unlisted},
			{p.Mode != gpu.ModeExclusive && p.Mode != gpu.ModeMIG && p.Mode != gpu.ModePartition, &b.shared},
			{r.Method == gpu.ReplicaRequest || r.Method == gpu.Even, &b.estimated},
			{p.Mode == gpu.ModeMPS, &b.mps},
			{p.Mode == gpu.ModeFraction, &b.fraction},
			{p.Mode == gpu.ModeDRA, &b.claimed},
		} {
			if c.is {
				*c.sum += us
			}
		}
		limited = limited || seen.isLimited(r.PodUID)
	})
	if b.is(b.unlisted) {
		f.say(nh.Node, missing, "node", "pods that hold its GPUs are not in kube-state-metrics, so their owners and requests are not known", "let kube-state-metrics see all namespaces (--namespaces), and scrape all of its shards")
	}
	if b.is(b.rogue) {
		f.say(nh.Node, note, "node", "pods use its GPUs without having requested one", "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED=false and DEVICE_LIST_STRATEGY=volume-mounts keep them out")
	}
	var rungs []string
	for _, m := range slices.Sorted(maps.Keys(b.by)) {
		if b.is(b.by[m]) {
			rungs = append(rungs, m.String())
		}
	}
	if len(rungs) == 0 {
		f.say(nh.Node, fine, "bytes", "no pod holds a GPU", "")
		return
	}
	result, why, fix := b.judge(limited, signs)
	f.say(nh.Node, result, "bytes", strings.Join(rungs, " and ")+why, fix)
}

func (o *observed) isLimited(uid string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.limited[uid]
}

// judge says how good the rungs are, and what would bring a better one.
func (b *bytesOf) judge(limited bool, signs []gpu.Signs) (result, why, fix string) {
	has := func(what func(gpu.Signs) bool) bool { return slices.ContainsFunc(signs, what) }
	named := has(func(s gpu.Signs) bool { return s.Pods })
	hami := has(func(s gpu.Signs) bool { return strings.HasPrefix(s.Preset, "hami") })
	runai := has(func(s gpu.Signs) bool { return s.Preset == "runai" })
	switch {
	case b.is(b.failed):
		return missing, ": every pod shows 0 bytes while the GPU is in use, so they are charged by requests", mapPIDs
	case limited && !hami:
		return missing, ": HAMi gives pods parts of GPUs, and its figures are not there", scrapeHAMi
	case b.is(b.estimated) && b.is(b.inferred) && !named && !b.is(b.claimed):
		return missing, ": the exporter names no pod, so requests are all there is", namePods
	case b.is(b.estimated) && b.is(b.copied):
		return missing, ": the exporter copies the device's figure to each pod", perProcess
	case b.is(b.estimated) && b.is(b.fraction) && !runai:
		return missing, ": pods share a reserved GPU, and none has bytes of its own", scrapeRunai
	case b.is(b.estimated) && b.is(b.shared):
		return missing, ": the exporter names one pod of those that share a GPU, or none", perProcess
	case b.is(b.estimated):
		return missing, ": the memory that they use is not measured", scrapeFB
	case b.is(b.by[gpu.ProcessName]):
		return note, ": a pod is known by its name, which another may have next", enableUID
	case b.is(b.by[gpu.Limit]) && b.is(b.mps):
		return note, ": MPS clients are charged the cap that the daemon sets them, not what they use", perProcess + "; NVML shows the bytes of MPS clients on recent drivers only"
	case b.is(b.by[gpu.Limit]) && b.is(b.fraction) && !hami && !runai:
		return note, ": pods are charged the part that they were given, not what they use", scrapeRunai
	}
	return fine, "", ""
}
