package anyfleet

import (
	"fmt"
	"slices"

	"pgregory.net/rapid"

	"gpuledger/gpu"
)

// Options narrow what is drawn.
type Options struct {
	Nodes, Hours, Past int        // at most; 0 is 1, and no Past
	Modes              []gpu.Mode // nil: any
	Measured           bool       // every pod's bytes are known by its own figure, and there is no outage
	NoStray            bool       // nothing on a device that no pod answers for
	NoRogue            bool       // everybody requests what it uses
	NoOutage           bool
}

var anyMode = []gpu.Mode{gpu.ModeTimeSlicing, gpu.ModeExclusive, gpu.ModeMIG, gpu.ModeMPS, gpu.ModeFraction, gpu.ModeDRA}

// models are cards, of which the first two can be cut.
var models = []GPU{
	{Model: "NVIDIA A100-SXM4-40GB", TotalMiB: 40960, ReservedMiB: 512},
	{Model: "NVIDIA A30", TotalMiB: 24576, ReservedMiB: 512},
	{Model: "NVIDIA L4", TotalMiB: 23034, ReservedMiB: 542},
	{Model: "NVIDIA H100 80GB HBM3", TotalMiB: 81559, ReservedMiB: 479},
}

// Models are the models that a fleet may have.
func Models() []string {
	var out []string
	for _, m := range models {
		out = append(out, m.Model)
	}
	return out
}

type drawer struct {
	*rapid.T
	Options
	fleet *Fleet
	stays bool // no node goes early

	// Of the node that is drawn:
	gpus    int
	empties bool // no pod stays
}

// Draw draws a fleet.
func Draw(t *rapid.T, o Options) *Fleet {
	d := drawer{T: t, Options: o, fleet: &Fleet{Hours: rapid.IntRange(1, max(1, o.Hours)).Draw(t, "hours")}}
	if o.Past > 0 {
		d.fleet.Past = rapid.IntRange(0, o.Past).Draw(t, "past")
	}
	if d.one(3, "quiet") { // nothing but pods comes and goes
		d.NoStray, d.NoOutage, d.stays = true, true, true
	}
	for i := range d.between(1, max(1, o.Nodes), "nodes") {
		d.fleet.Nodes = append(d.fleet.Nodes, d.node(i))
	}
	return d.fleet
}

func (d *drawer) between(low, high int, what string) int {
	return rapid.IntRange(low, max(low, high)).Draw(d.T, what)
}

func (d *drawer) one(in int, what string) bool { return d.between(1, in, what) == in }

// grid draws a time on the grid.
func (d *drawer) grid(from, to int, what string) int {
	return from + Interval*d.between(0, (to-from)/Interval, what)
}

// soon is for how long after a change an exporter surely answers.
const soon = 5 * Interval

func mod(a, b int) int { return (a%b + b) % b }

func (d *drawer) first() int { return -d.fleet.Past * Hour }
func (d *drawer) last() int  { return d.fleet.Hours * Hour }

func (d *drawer) node(i int) *Node {
	modes := d.Modes
	if modes == nil {
		modes = anyMode
	}
	n := &Node{
		Name: fmt.Sprint("n", i), Instance: fmt.Sprint("i-", i), Pool: rapid.SampledFrom([]string{"a", "b"}).Draw(d.T, "pool"),
		Mode: rapid.SampledFrom(modes).Draw(d.T, "mode"), Replicas: 1, Up: d.first() - 2*Hour, Down: d.last() + 2*Hour,
		CPUMilli: int64(1000 * d.between(2, 64, "vcpu")), Memory: int64(d.between(4, 512, "GiB")) << 30,
	}
	if d.one(3, "comes late") {
		n.Up = d.grid(d.first(), d.last()-4*Interval, "up")
	}
	if !d.stays && d.one(4, "goes early") {
		n.Down = d.grid(max(n.Up, 0)+4*Interval, d.last(), "down")
	}
	if !d.Measured && !d.NoOutage && d.one(3, "outage") {
		n.Outage[0] = d.grid(d.first(), d.last(), "silent from")
		n.Outage[1] = n.Outage[0] + d.grid(Interval, Hour, "silent for")
		if n.Mode == gpu.ModeMIG { // that an instance was there is known by its samples
			n.Outage[1] = min(n.Outage[1], n.Outage[0]-mod(n.Outage[0], Hour)+Hour+soon)
		}
		if n.Outage[0] < n.Up+soon || n.Outage[1] > n.Down-soon { // nothing would say which GPUs it has
			n.Outage = [2]int{}
		}
	}
	gpus := d.between(1, 3, "gpus")
	exporters := []Exporter{Process}
	switch n.Mode {
	case gpu.ModeExclusive:
		exporters = append(exporters, Label)
	case gpu.ModeTimeSlicing, gpu.ModeMPS:
		n.Replicas = d.between(2, 4, "replicas")
		if d.Measured {
			break
		}
		if n.Mode == gpu.ModeTimeSlicing {
			exporters = append(exporters, Copies)
		}
		if d.one(3, "bare") {
			exporters, gpus = []Exporter{Bare}, 1 // of several, nothing says which a pod is on
		}
	case gpu.ModeMIG:
		if d.one(2, "whole instances") {
			exporters = []Exporter{Label}
		} else {
			n.Replicas = 2
		}
	case gpu.ModeFraction:
		n.Replicas, exporters = 10, []Exporter{HAMi}
	case gpu.ModeDRA:
		n.Replicas = 1
	}
	n.Exporter = rapid.SampledFrom(exporters).Draw(d.T, "exporter")
	if n.Exporter != Bare && d.one(4, "unseen") {
		n.Unseen = 1
	}
	d.gpus = gpus
	d.empties = d.stays && d.one(2, "empties")
	// A node of several models is there all the time: what its devices weigh while they
	// are not is another question.
	same := d.one(2, "one model") || n.Up > d.first() || n.Down < d.last()
	kinds := len(models)
	if n.Mode == gpu.ModeMIG {
		kinds = 2
	}
	for g := range gpus {
		k := d.between(0, kinds-1, "model")
		card := models[k]
		if same && g > 0 {
			card = *n.GPUs[0]
		}
		card.UUID, card.Parts = fmt.Sprintf("GPU-%d-%d", i, g), nil
		n.GPUs = append(n.GPUs, &card)
		d.cut(n, &card)
		for p := range card.Parts {
			d.stray(n, card.Parts[p])
			d.pods(n, g, p)
		}
	}
	return n
}

// stray draws what a device shows beyond its pods' bytes.
func (d *drawer) stray(n *Node, p *Part) {
	if d.NoStray || !d.one(2, "stray") {
		return
	}
	for _, at := range d.changes(max(n.Up, p.From), min(n.Down, p.To), "stray") {
		limit := int(p.UsableMiB) / 50 // what is spread
		if d.one(2, "much") {
			limit = int(p.UsableMiB) / 10
		}
		p.Stray = append(p.Stray, Step{at, int64(d.between(-limit, limit, "MiB"))})
	}
}

// changes draws one to three times at which something changes, the first of them from.
func (d *drawer) changes(from, to int, what string) []int {
	out := []int{from}
	for range d.between(0, 2, what+" changes") {
		out = append(out, d.grid(from, to, what+" at"))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// life draws from when to when a pod lives on a part, or nothing. It neither begins nor
// ends while the exporter is silent, nor soon before or after.
func (d *drawer) life(n *Node, p *Part, from int) (int, int, bool) {
	low, high := max(n.Up, p.From, from), min(n.Down, p.To)
	if high-low < 2*Interval {
		return 0, 0, false
	}
	start, end := low, high
	if d.one(2, "starts later") {
		start = d.grid(max(low, d.first()-Interval), min(high-Interval, d.last()), "start")
	}
	if d.empties || d.one(2, "ends earlier") {
		end = d.grid(max(start+Interval, d.first()), min(high, d.last()), "end")
	}
	if a, b := n.Outage[0], n.Outage[1]; a < b && (start > a-soon && start < b+soon || end > a-soon && end < b+soon) {
		return 0, 0, false
	}
	return start, end, start < end
}

// pods draws who is on a part.
func (d *drawer) pods(n *Node, g, p int) {
	part := n.GPUs[g].Parts[p]
	after := -1 << 30
	for k := range d.between(0, 4, "pods") {
		from, to, ok := d.life(n, part, after)
		if !ok {
			continue
		}
		pl := Place{GPU: g, Part: p, Slots: 1}
		switch {
		case n.whole():
		case n.Mode == gpu.ModeTimeSlicing || n.Mode == gpu.ModeMPS:
			pl.Slots = d.between(1, 2, "slots")
			pl.NoSlotLabel = d.one(3, "no slot label")
			pl.Unseen = n.Exporter == Bare || n.Mode == gpu.ModeTimeSlicing && n.Exporter == Process && !d.Measured && d.gpus == 1 && n.Unseen == 0 && d.one(6, "unseen pod")
		case n.Mode == gpu.ModeFraction:
			pl.LimitMiB = int64(d.between(1, int(part.UsableMiB)/2, "limit"))
		case n.Mode == gpu.ModeDRA && g%2 == 0: // one claim of several pods
			pl.Claim = fmt.Sprintf("c%d", g)
		case n.Mode == gpu.ModeDRA:
			pl.Claim = fmt.Sprintf("c%d-%d", g, k/2)
			pl.CapacityMiB = part.UsableMiB / int64(3+k/2)
		}
		if n.Exporter == Process && n.Mode != gpu.ModeDRA && !d.NoRogue && !pl.Unseen && d.one(6, "rogue") {
			pl.Slots, pl.NoSlotLabel = 0, true
		} else if n.whole() {
			after = to // one holder at a time
		}
		most := int(part.UsableMiB) / 3 // above 1.5 × the card a figure is no figure
		if n.Mode == gpu.ModeFraction {
			most = min(most, int(pl.LimitMiB))
		}
		if !d.one(5, "uses nothing") {
			for _, at := range d.changes(from, to, "use") {
				pl.Used = append(pl.Used, Step{at, int64(d.between(0, most, "MiB"))})
			}
		}
		namespace := "ml"
		if pl.Claim == "" && d.one(2, "namespace") { // pods of two namespaces share no claim
			namespace = "web"
		}
		n.Pods = append(n.Pods, &Pod{
			Namespace: namespace, Name: fmt.Sprintf("%s-g%d-%d-%d", n.Name, g, p, k),
			From: from, To: to, Places: []Place{pl},
			CPUMilli: int64(100 * d.between(0, 80, "cpu")), Memory: int64(d.between(0, 64, "memory")) << 30,
		})
	}
}
