package fleet

import (
	"fmt"
	"strings"
	"time"

	"gpuledger/billing/period"
)

// Demo returns the demo fleet for a month: the same bytes every time. What
// happens in it, hour by hour, stands in demo_nodes.go (seven nodes),
// demo_pods.go (who uses them) and demo_bill.go (the lines of no instance).
func Demo(month period.Month) Fleet {
	b := &builder{Fleet: Fleet{
		Cluster: "demo", Month: month, Region: "us-east-1", Payer: "111122223333", Account: "222233334444",
		Interval: 5 * time.Minute, InventoryInterval: 10 * time.Minute,
		Policy: policyText, Owners: fmt.Sprintf(ownersText, day(month, 16), day(month, 16)),
		Namespaces: []Namespace{
			{"search", map[string]string{"team": "search"}},
			{"ranking", map[string]string{"team": "ranking"}},
			{"embeddings", map[string]string{"team": "search"}},
			{"research-llm", map[string]string{"team": "research"}},
			{"platform", map[string]string{"team": "platform"}},
			{"sandbox", nil},
		},
	}}
	b.addNodes()
	b.addPods()
	b.addCharges()
	return b.Fleet
}

func day(m period.Month, n int) string {
	return m.Start().AddDate(0, 0, n-1).Format("2006-01-02")
}

// builder is a fleet in the making.
type builder struct{ Fleet }

// at is an instant of the fleet's month; day 1 is its first. Days up to 28 exist
// in every month.
func (b *builder) at(day, hour, minute int) time.Time {
	return b.Month.Start().AddDate(0, 0, day-1).Add(time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute)
}

func (b *builder) span(day, hour, minute, endDay, endHour, endMinute int) period.Span {
	return period.Span{Start: b.at(day, hour, minute), End: b.at(endDay, endHour, endMinute)}
}

// always began weeks before the month and goes on after it.
func (b *builder) always() period.Span {
	m := b.Month.Span()
	return period.Span{Start: m.Start.AddDate(0, 0, -23), End: m.End.AddDate(0, 0, 7)}
}

// until and from are always, cut at an instant of the month.
func (b *builder) until(day, hour, minute int) period.Span {
	return period.Span{Start: b.always().Start, End: b.at(day, hour, minute)}
}

func (b *builder) from(day, hour, minute int) period.Span {
	return period.Span{Start: b.at(day, hour, minute), End: b.always().End}
}

// daily is the same four values every day, from 00:00, 06:00, 12:00 and 18:00.
func (b *builder) daily(life period.Span, mib ...int64) []Step {
	out := []Step{{life.Start, 0}}
	for q := b.Month.Start().AddDate(0, 0, -1); q.Before(b.Month.Span().End); q = q.Add(6 * time.Hour) {
		v := mib[q.Hour()/6]
		if q.Before(life.Start) {
			out[0].MiB = v
		} else if q.Before(life.End) {
			out = append(out, Step{q, v})
		}
	}
	return out
}

// rising loads for a quarter of an hour, then holds its memory.
func rising(life period.Span, mib int64) []Step {
	return []Step{{life.Start, mib / 8}, {life.Start.Add(15 * time.Minute), mib}}
}

func flat(life period.Span, mib int64) []Step { return []Step{{life.Start, mib}} }

// gpus, slot and instances say where a pod is.
func gpus(n ...int) []Place {
	out := make([]Place, len(n))
	for i, g := range n {
		out[i] = Place{GPU: g}
	}
	return out
}

func slot(n int) []Place { return []Place{{Slot: n}} }

func instance(gpu int, id string) []Place { return []Place{{GPU: gpu, Instance: id}} }

// deployment adds a pod of a Deployment's ReplicaSet; generation tells pods of
// one Deployment apart.
func (b *builder) deployment(namespace, name, generation string, p Pod) {
	p.OwnerKind, p.OwnerName = "ReplicaSet", name+"-"+suffix("rs/"+name+generation[:1], 9)
	p.Name = p.OwnerName + "-" + suffix("pod/"+name+generation, 5)
	b.pod(namespace, p)
}

func (b *builder) job(namespace, name string, p Pod) {
	p.OwnerKind, p.OwnerName, p.Completes = "Job", name, true
	p.Name = name + "-" + suffix("pod/"+name, 5)
	b.pod(namespace, p)
}

// cronJob names the Job by the minute it was due, as the controller does.
func (b *builder) cronJob(namespace, name string, p Pod) {
	b.job(namespace, fmt.Sprintf("%s-%d", name, p.Life.Start.Unix()/60), p)
}

func (b *builder) statefulSet(namespace, name string, p Pod) {
	p.OwnerKind, p.OwnerName, p.Name = "StatefulSet", name, name+"-0"
	b.pod(namespace, p)
}

func (b *builder) pod(namespace string, p Pod) {
	p.Namespace = namespace
	p.UID = uuidOf("pod/" + b.Cluster + "/" + namespace + "/" + p.Name)
	b.Pods = append(b.Pods, p)
}

// config is gpuledger.yaml.
func (f *Fleet) config() string {
	return strings.NewReplacer("CLUSTER", f.Cluster, "EXPORT", billsFolder+"/"+exportPrefix+"/"+exportName, "METRICS", metricsFolder).Replace(`# A synthetic fleet of one cluster. Paths are relative to this file.
warehouse: {url: "private:CLUSTER"}   # a database of the private Postgres; DATABASE_URL goes before it
clusters:
  - name: CLUSTER
    metrics: {type: openmetrics, path: "./METRICS/*.om.gz"}
bills:
  - {name: aws, type: aws, location: ./EXPORT}
policy: policy.yaml
owners: owners.yaml
`)
}

const policyText = `# How a node's bill line is split. These are the defaults, written out.
basis: max                          # what a holder takes up: max(reserved, used) | used | request
reservation: {time_slicing: none}   # a time-slicing slot reserves nothing; "replica": usable memory / slots
partition: {weight: memory, normaliser: configured}   # MIG instances weigh by memory slices
unattributed: {mode: own_line, tolerance: 2%}         # bytes that no pod answers for stay visible
headline_cost: effective            # amortised: what a Savings Plan or reservation covers costs its rate
idle:
  default: keep                     # free GPUs are rows of their own, paid by remainder_owner
  slot_held: {policy: proportional, scope: device}   # free bytes of a GPU whose slots are all held go to its holders
remainder_owner:
  - {team: platform, cost_center: "9000"}
gates: {max_no_telemetry: 2%, max_estimated: 10%, max_unowned: 0%}
`

// ownersText leaves the namespace sandbox to nobody: its cost is shown as unowned.
const ownersText = `# Whose a pod is: the first rule that matches, at the instant of the charge.
timezone: UTC
rules:
  - {match: {namespace: embeddings}, team: search, cost_center: "4711", to: %s}
  - {match: {namespace: embeddings}, team: ranking, cost_center: "4712", from: %s}   # moved in mid-month
  - {match: {namespace: search}, team: search, cost_center: "4711"}
  - {match: {label: {app.kubernetes.io/part-of: ranking}}, team: ranking, cost_center: "4712"}
  - {match: {namespace: "research-*"}, team: research, cost_center: "4720"}
  - {match: {namespace: platform}, team: platform, cost_center: "9000"}
dimensions:
  ai_model: [label:model]
`
