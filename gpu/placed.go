package gpu

import (
	"regexp"
	"sort"
	"strings"
)

// placedSeries is a series with how it is read, and of which device of which node it is.
type placedSeries struct {
	Series
	how              reading
	uuid, slot, node string
}

// placeSeries finds the device and the node of each series that is read, and leaves out
// those that name no device.
func placeSeries(series []Series, table exporters, inv *Inventory) []placedSeries {
	out := make([]placedSeries, 0, len(series))
	var byIndex map[string]string
	var byMIG map[string]migInstance
	for _, raw := range series {
		how, known := table[raw.Metric]
		if !known {
			continue
		}
		s := how.canonical(raw)
		p := placedSeries{how: how, node: nodeOf(s, inv, lastTime(s))}
		p.uuid, p.slot = how.device(s)
		if index := how.indexOf(s); p.uuid == "" && index != "" && p.node != "" {
			if byIndex == nil {
				byIndex = indexes(series, table, inv)
			}
			if p.uuid = byIndex[p.node+"/"+index]; p.uuid == "" {
				p.uuid = p.node + "/gpu-" + index
			}
		}
		if _, gi, ok := instanceOfGPU(first(s.Labels, "UUID", "uuid")); ok {
			s.Labels = withInstance(s.Labels, gi, "")
		} else if strings.HasPrefix(p.uuid, "MIG-") {
			if byMIG == nil {
				byMIG = instancesByUUID(series, table)
			}
			if in, ok := byMIG[p.uuid]; ok {
				p.uuid, s.Labels = in.gpu, withInstance(s.Labels, in.id, in.profile)
			} else {
				p.node = "" // of a GPU that nothing names: said to be unplaced, never a GPU of its own
			}
		}
		if p.uuid == "" {
			continue
		}
		p.Series = s
		out = append(out, p)
	}
	return out
}

// migInstance is the instance behind a MIG device's UUID.
type migInstance struct{ gpu, id, profile string }

// migUUIDs are labels that name a MIG device beside its GPU: those of dcgm-exporter under
// DRA, and of nvidia_gpu_exporter's nvidia_smi_mig_info.
var migUUIDs = []string{"dra_mig_device_uuid", "mig_uuid"}

// instancesByUUID finds the instances that some series names by their own UUID.
func instancesByUUID(series []Series, table exporters) map[string]migInstance {
	out := map[string]migInstance{}
	for _, raw := range series {
		mig := first(raw.Labels, migUUIDs...)
		how, known := table[raw.Metric]
		if mig == "" || !known {
			continue
		}
		s := how.canonical(raw)
		uuid, _ := how.device(s)
		in := migInstance{uuid, first(s.Labels, "GPU_I_ID"), first(s.Labels, "GPU_I_PROFILE", "dra_mig_profile")}
		if in.id == "" { // as claimedInstance names it
			in.id = mig
		}
		if uuid != "" && !strings.HasPrefix(uuid, "MIG-") {
			out[mig] = in
		}
	}
	return out
}

// gpuInstance is how drivers before R470 name a MIG device: MIG-GPU-<uuid>/<GPU
// instance>/<compute instance>.
var gpuInstance = regexp.MustCompile(`^MIG-(GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/([0-9]+)/[0-9]+$`)

// instanceOfGPU reads the GPU and the GPU instance of a MIG device's name.
func instanceOfGPU(id string) (gpu, instance string, ok bool) {
	if f := gpuInstance.FindStringSubmatch(id); f != nil {
		return f[1], f[2], true
	}
	return "", "", false
}

func withInstance(l map[string]string, id, profile string) map[string]string {
	out := map[string]string{}
	for k, v := range l {
		out[k] = v
	}
	if out["GPU_I_ID"] == "" {
		out["GPU_I_ID"] = id
	}
	if out["GPU_I_PROFILE"] == "" && profile != "" {
		out["GPU_I_PROFILE"] = profile
	}
	return out
}

// named counts for how long within the hour a device was said to be of a model, in
// samples: where an exporter's labels leak from one GPU to another, the longest counts
// (of two as long the later in the alphabet, so that no order makes a difference).
func (d *device) named(model string, samples []Sample, hour interval) {
	if model == "" {
		return
	}
	before := func(at int64) int {
		return sort.Search(len(samples), func(k int) bool { return samples[k].UnixMilli*1000 >= at })
	}
	d.models[model] += before(hour.end) - before(hour.start)
}

// settleModel takes the model that held longest.
func (d *device) settleModel() {
	for model, n := range d.models {
		if most := d.models[d.rawModel]; d.rawModel == "" || n > most || n == most && model > d.rawModel {
			d.rawModel = model
		}
	}
}

// showActive lets series of activity show who is on a GPU that has no series of memory:
// their labels are the kubelet's word too. No data is not zero.
func (t *Telemetry) showActive(all []placedSeries) {
	type device struct {
		uuid string
		key  partKey
	}
	had := map[device]bool{}
	for i := range all {
		s := &all[i]
		key := device{s.uuid, partKey{}}
		if !s.how.fam.activity() || s.how.of == "device" || s.Labels["GPU_I_ID"] != "" || s.Labels["dra_mig_profile"] != "" {
			continue
		}
		if _, named := podOf(s.Series); !named {
			continue
		}
		d := t.devices[s.uuid]
		if _, seen := had[key]; !seen {
			had[key] = len(d.parts) > 0
		}
		if !had[key] {
			d.part(partKey{}).show(s.Series)
		}
	}
}

// clipped are the series with what is outside of an hour's neighbourhood left out: a
// node's clock may be ahead, and what has not happened yet says nothing.
func clipped(series []Series, hour interval) []Series {
	around := interval{hour.start - Neighbourhood.Microseconds(), hour.end + Neighbourhood.Microseconds()}
	out, own := series, false
	for i := range series {
		in := series[i].Samples
		n := len(in)
		if n == 0 || in[0].UnixMilli*1000 >= around.start && in[n-1].UnixMilli*1000 < around.end {
			continue
		}
		if !own {
			out, own = append([]Series(nil), series...), true
		}
		before := func(at int64) int {
			return sort.Search(n, func(k int) bool { return in[k].UnixMilli*1000 >= at })
		}
		out[i].Samples = in[before(around.start):before(around.end)]
	}
	return out
}
