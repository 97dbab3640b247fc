package anyfleet

import (
	"fmt"
	"maps"
	"strings"

	"gpuledger/gpu"
)

// Series returns the inventory and the device series of all nodes, with the samples of
// some hours of the fleet and of the neighbourhood that is read with them: hour 0 is
// the window's first.
func (f *Fleet) Series(fromHour, toHour int) (inventory, devices []gpu.Series) {
	w := writer{from: fromHour*Hour - neighbourhood, to: toHour*Hour + neighbourhood}
	always := func(int) (float64, bool) { return 1, true }
	// A node without GPUs shows that the inventory was there.
	w.add("kube_node_info", labels("node", "sys", "provider_id", "aws:///z/i-sys"), always)
	for _, n := range f.Nodes {
		w.node(n)
		w.claims(n)
		for _, p := range n.Pods {
			w.pod(n, p)
		}
	}
	inventory, w.out = w.out, nil
	for _, n := range f.Nodes {
		for g := range n.GPUs {
			for p := range n.GPUs[g].Parts {
				w.part(n, g, p)
			}
		}
	}
	return inventory, w.out
}

type writer struct {
	from, to int
	out      []gpu.Series
}

func labels(kv ...string) map[string]string {
	l := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		l[kv[i]] = kv[i+1]
	}
	return l
}

// add samples a value.
func (w *writer) add(metric string, l map[string]string, value func(at int) (float64, bool)) {
	s := gpu.Series{Metric: metric, Labels: maps.Clone(l)}
	if strings.HasPrefix(metric, "kube_") {
		s.Labels["job"], s.Labels["instance"] = "ksm", "ksm:8080"
	}
	for grid := w.from - w.from%Interval - Interval; grid < w.to; grid += Interval {
		at := grid + Interval/2
		if at < w.from || at >= w.to {
			continue
		}
		if v, ok := value(at); ok {
			s.Samples = append(s.Samples, gpu.Sample{UnixMilli: At(at).UnixMilli(), Value: v})
		}
	}
	if len(s.Samples) > 0 {
		w.out = append(w.out, s)
	}
}

func during(from, to int, v float64) func(int) (float64, bool) {
	return func(at int) (float64, bool) { return v, at >= from && at < to }
}

func (w *writer) node(n *Node) {
	there := func(v float64) func(int) (float64, bool) { return during(n.Up, n.Down, v) }
	w.add("kube_node_info", labels("node", n.Name, "provider_id", "aws:///z/"+n.Instance), there(1))
	w.add("kube_node_created", labels("node", n.Name), there(float64(At(n.Up).Unix())))
	l := labels("node", n.Name, "label_node_pool", n.Pool, "label_nvidia_com_gpu_count", fmt.Sprint(n.Devices()), "label_nvidia_com_gpu_product", n.GPUs[0].Model)
	capacity := map[string]float64{"cpu": float64(n.CPUMilli) / 1000, "memory": float64(n.Memory)}
	switch n.Mode {
	case gpu.ModeExclusive:
		l["label_nvidia_com_gpu_replicas"], l["label_nvidia_com_gpu_sharing_strategy"] = "1", "none"
		capacity["nvidia_com_gpu"] = float64(n.Devices())
	case gpu.ModeTimeSlicing, gpu.ModeMPS:
		l["label_nvidia_com_gpu_replicas"], l["label_nvidia_com_gpu_sharing_strategy"] = fmt.Sprint(n.Replicas), "time-slicing"
		if n.Mode == gpu.ModeMPS {
			l["label_nvidia_com_gpu_sharing_strategy"] = "mps"
		}
		capacity["nvidia_com_gpu"] = float64(n.Devices() * n.Replicas)
	case gpu.ModeFraction:
		l["label_nvidia_com_gpu_replicas"] = "1"
		capacity["nvidia_com_gpu"] = float64(n.Devices() * n.Replicas)
	case gpu.ModeMIG:
		l["label_nvidia_com_gpu_replicas"], l["label_nvidia_com_mig_strategy"] = "0", "mixed"
		if n.Replicas > 1 {
			for _, g := range n.GPUs {
				for _, p := range g.Parts {
					l["label_nvidia_com_mig_"+underscored(p.Profile)+"_replicas"] = fmt.Sprint(n.Replicas)
				}
			}
		}
	}
	w.add("kube_node_labels", l, there(1))
	for resource, v := range capacity {
		w.add("kube_node_status_capacity", labels("node", n.Name, "resource", resource, "unit", "u"), there(v))
	}
}

// claims writes what the claims of a node consume of its devices.
func (w *writer) claims(n *Node) {
	type claim struct {
		namespace, name string
		gpu             int
	}
	capacity := map[claim]int64{}
	for _, p := range n.Pods {
		for _, pl := range p.Places {
			if pl.CapacityMiB > 0 {
				capacity[claim{p.Namespace, pl.Claim, pl.GPU}] = pl.CapacityMiB
			}
		}
	}
	for c, mib := range capacity {
		w.add("kube_resourceclaim_consumed_memory_bytes", labels("namespace", c.namespace, "name", c.name, "pool", n.Name, "device", fmt.Sprint("gpu-", c.gpu)),
			during(n.Up, n.Down, float64(mib<<20)))
	}
}

func underscored(profile string) string {
	return strings.NewReplacer(".", "_", "+", "_").Replace(profile)
}

func (w *writer) pod(n *Node, p *Pod) {
	l := func(kv ...string) map[string]string {
		return labels(append([]string{"namespace", p.Namespace, "pod", p.Name, "uid", p.UID()}, kv...)...)
	}
	alive := func(v float64) func(int) (float64, bool) { return during(p.From, p.To, v) }
	w.add("kube_pod_info", l("node", n.Name), alive(1))
	w.add("kube_pod_start_time", l(), alive(float64(At(p.From).Unix())))
	requests := map[string]float64{"cpu": float64(p.CPUMilli) / 1000, "memory": float64(p.Memory)}
	for _, pl := range p.Places {
		resource := "nvidia_com_gpu"
		if profile := n.GPUs[pl.GPU].Parts[pl.Part].Profile; profile != "" {
			resource = "nvidia_com_mig_" + underscored(profile)
			if n.Replicas > 1 {
				resource += "_shared"
			}
		}
		if n.Mode != gpu.ModeDRA { // a claim is no request
			requests[resource] += float64(pl.Slots)
		}
	}
	for resource, v := range requests {
		if v > 0 {
			w.add("kube_pod_container_resource_requests", l("container", "c", "node", n.Name, "resource", resource, "unit", "u"), alive(v))
		}
	}
}

// part writes a GPU or instance as its exporter shows it.
func (w *writer) part(n *Node, g, p int) {
	card, part := n.GPUs[g], n.GPUs[g].Parts[p]
	there := func(at int) bool { return n.sampled(at) && at >= part.From && at < part.To }
	of := func(h *holder, kv ...string) map[string]string {
		l := labels(append([]string{"UUID", card.UUID, "modelName", card.Model, "Hostname", n.Name, "gpu", fmt.Sprint(g)}, kv...)...)
		if part.ID != "" {
			l["GPU_I_ID"], l["GPU_I_PROFILE"] = part.ID, part.Profile
		}
		if h != nil {
			l["namespace"], l["pod"], l["container"] = h.pod.Namespace, h.pod.Name, "c"
		}
		return l
	}
	total := part.UsableMiB
	if part.ID == "" {
		total = card.TotalMiB
		w.add("DCGM_FI_DEV_FB_RESERVED", of(nil), func(at int) (float64, bool) { return float64(card.ReservedMiB), there(at) })
	}
	w.add("DCGM_FI_DEV_FB_TOTAL", of(nil), func(at int) (float64, bool) { return float64(total), there(at) })
	device := func(at int) float64 { return float64(n.deviceMiB(g, p, at)) }
	holders := n.holders(g, p)
	alone := func(at int) bool { // nobody's label is on the device's series
		for _, h := range holders {
			if h.pod.From <= at && at < h.pod.To {
				return n.Exporter != Label && n.Exporter != Copies
			}
		}
		return true
	}
	w.add("DCGM_FI_DEV_FB_USED", of(nil), func(at int) (float64, bool) { return device(at), there(at) && alone(at) })
	for i := range holders {
		h := &holders[i]
		alive := func(at int) bool { return there(at) && h.pod.From <= at && at < h.pod.To }
		own := func(at int) (float64, bool) { return float64(valueAt(h.Used, at)), alive(at) }
		switch {
		case h.Unseen:
		case n.Exporter == Label:
			w.add("DCGM_FI_DEV_FB_USED", of(h), func(at int) (float64, bool) { return device(at), alive(at) })
		case n.Exporter == Copies:
			for slot := range h.Slots {
				w.add("DCGM_FI_DEV_FB_USED", of(h, "vgpu", fmt.Sprint(h.pod.Name, slot)), func(at int) (float64, bool) { return device(at), alive(at) })
			}
		case n.Exporter == Process && n.Mode == gpu.ModeDRA:
			w.add("DCGM_FI_DEV_FB_USED", of(h, "pod_uid", h.pod.UID(), "dra_claim_namespace", h.pod.Namespace, "dra_claim_name", h.Claim, "dra_pool_name", n.Name, "dra_device_name", fmt.Sprint("gpu-", g)), own)
		case n.Exporter == Process && (h.NoSlotLabel || h.Slots == 0):
			w.add("DCGM_FI_DEV_FB_USED", of(h, "pod_uid", h.pod.UID()), own)
		case n.Exporter == Process:
			for slot := range h.Slots {
				w.add("DCGM_FI_DEV_FB_USED", of(h, "pod_uid", h.pod.UID(), "vgpu", fmt.Sprint(h.pod.Name, slot)), own)
			}
		case n.Exporter == HAMi:
			l := labels("device_uuid", card.UUID, "namespace", h.pod.Namespace, "pod", h.pod.Name, "container", "c", "vdevice_index", "0", "node", n.Name)
			w.add("hami_vgpu_memory_used_bytes", l, func(at int) (float64, bool) { v, ok := own(at); return v * (1 << 20), ok })
			w.add("hami_vgpu_memory_limit_bytes", l, func(at int) (float64, bool) { return float64(h.LimitMiB << 20), alive(at) })
		}
	}
}
