package warehouse

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"gpuledger/billing/period"
	"gpuledger/gpu"
)

// saveInventory keeps what was where in the hours. What an hour said before is
// replaced by what it says now, and nothing else is touched: the ranges are the same in
// whatever order hours come, and however often.
func (s *sampleSave) saveInventory(ctx context.Context) error {
	var nodes []int32
	for _, id := range s.nodes {
		nodes = append(nodes, id)
	}
	for _, g := range s.gone {
		nodes = append(nodes, g.node)
	}
	if len(nodes) == 0 {
		return nil
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	start, end := s.bounds()
	var pods []int64
	for _, id := range s.pods {
		pods = append(pods, id)
	}
	slices.Sort(pods)
	said := s.said()
	for _, t := range []struct {
		track
		said []seen
		ids  []int64
	}{{nodeStates, said.nodes, nil}, {devicesSeen, said.devices, nil}, {partitionModes, said.partitions, nil}, {podsSeen, said.pods, pods}} {
		old, on, err := t.read(ctx, s.tx, nodes, t.ids, start, end)
		if err != nil {
			return fmt.Errorf("inventory: %w", err)
		}
		now := old.clone()
		for id, at := range on {
			for _, h := range s.hours {
				for j := range h.Nodes {
					if slices.Contains(at, s.nodes[keyOf(&h.Nodes[j])]) {
						now.cut(id, h.Hour, h.Hour.Add(time.Hour))
					}
				}
			}
		}
		for id, at := range on {
			for _, g := range s.gone {
				if slices.Contains(at, g.node) {
					now.cut(id, g.hour, g.hour.Add(time.Hour))
				}
			}
		}
		for _, x := range t.said {
			now.put(x.id, x.spell)
		}
		if t.table == nodeStates.table {
			if err := s.oneCluster(ctx, start, end); err != nil {
				return err
			}
		}
		if err := t.write(ctx, s.tx, old, now); err != nil {
			return fmt.Errorf("inventory: %s: %w", t.table, err)
		}
	}
	return s.savePodLives(ctx)
}

// bounds are the start of the first hour and the end of the last.
func (s *sampleSave) bounds() (start, end time.Time) {
	start, end = s.hours[0].Hour, s.hours[0].Hour
	for _, h := range s.hours {
		if h.Hour.Before(start) {
			start = h.Hour
		}
		if e := h.Hour.Add(time.Hour); e.After(end) {
			end = e
		}
	}
	return start, end
}

// seen is one thing in one hour.
type seen = idSpell

// sayings are what hours say of things, in the order of the hours.
type sayings struct{ nodes, devices, partitions, pods []seen }

func (s *sampleSave) said() sayings {
	var out sayings
	for i := range s.hours {
		h := &s.hours[i]
		hashes := podHashes(h.Inventory)
		alive := map[string]period.Span{}
		for _, p := range h.Inventory.AllPods() {
			alive[p.UID] = p.Lifetime()
		}
		span := period.Hour(h.Hour)
		for j := range h.Nodes {
			nh := &h.Nodes[j]
			node := s.nodes[keyOf(nh)]
			if n := h.Inventory.Nodes[nh.Node]; n != nil {
				st := stateOf(n, nh)
				for _, p := range n.Seen(nh.InstanceID, span) {
					out.nodes = append(out.nodes, seen{int64(node), spell{p.Start, p.End, st}})
				}
			}
			s.saidDevices(&out, node, nh, span)
			for _, uid := range podsOf(*nh) {
				life := alive[uid].Intersect(span)
				if life.Empty() {
					life = span
				}
				out.pods = append(out.pods, seen{s.pods[podKey{uid, hashes[uid]}], spell{life.Start, life.End, state(map[string]any{"node_id": node})}})
			}
		}
	}
	return out
}

func (s *sampleSave) saidDevices(out *sayings, node int32, nh *gpu.NodeHour, span period.Span) {
	type modeOf struct {
		mode  gpu.Mode
		slots int
		us    int64
	}
	for _, d := range nh.Devices {
		out.devices = append(out.devices, seen{int64(s.devices[s.deviceKey(node, d)]), spell{span.Start, span.End, "{}"}})
		best := map[int32]modeOf{}
		var order []int32
		for _, p := range d.Partitions {
			id := s.partitions[s.partitionKey(node, d, p)]
			b, have := best[id]
			if !have {
				order = append(order, id)
			}
			if !have || p.PresentMicros >= b.us { // of two as long the later
				best[id] = modeOf{p.Mode, p.Replicas, p.PresentMicros}
			}
		}
		for _, id := range order {
			out.partitions = append(out.partitions, seen{int64(id), spell{span.Start, span.End, state(map[string]any{"mode": string(best[id].mode), "slots": best[id].slots})}})
		}
	}
}

// noisyLabels change without the node changing.
var noisyLabels = map[string]bool{"nvidia_com_gfd_timestamp": true}

func stateOf(n *gpu.Node, nh *gpu.NodeHour) string {
	labels := map[string]string{}
	for k, v := range n.Labels {
		if !noisyLabels[k] {
			labels[storable(k)] = storable(v)
		}
	}
	capacity := map[string]int64{}
	for k, v := range n.GPUCapacity {
		capacity[k] = v
	}
	return state(map[string]any{
		"provider_id": storable(nh.ProviderID), "instance_type": storable(n.InstanceType), "region": storable(n.Region), "zone": storable(n.Zone), "pool": storable(n.Pool),
		"labels": labels, "gpu_capacity": capacity, "cpu_milli": n.CPUMilli, "memory_bytes": n.MemoryBytes,
	})
}

// savePodLives keeps when Kubernetes started and ended the pods: facts that any hour
// may bring and none takes back.
func (s *sampleSave) savePodLives(ctx context.Context) error {
	var ids []int64
	var started, completed []*time.Time
	done := map[podKey]bool{}
	for i := range s.hours {
		inv := s.hours[i].Inventory
		hashes := podHashes(inv)
		for _, p := range inv.AllPods() {
			k := podKey{p.UID, hashes[p.UID]}
			from, to := p.Started(), p.Completed()
			id, used := s.pods[k]
			if !used || from.IsZero() && to.IsZero() || done[k] && to.IsZero() {
				continue
			}
			done[k] = true
			ids, started, completed = append(ids, id), append(started, instant(from)), append(completed, instant(to))
		}
	}
	if len(ids) == 0 {
		return nil
	}
	_, err := s.tx.Exec(ctx, `UPDATE gpuledger.pod p SET started_at = coalesce(p.started_at, w.started), completed_at = coalesce(p.completed_at, w.completed)
		FROM (SELECT id, max(started) AS started, max(completed) AS completed FROM unnest($1::bigint[], $2::timestamptz[], $3::timestamptz[]) AS u (id, started, completed) GROUP BY id) w
		WHERE p.id = w.id AND (p.started_at IS NULL AND w.started IS NOT NULL OR p.completed_at IS NULL AND w.completed IS NOT NULL)`, ids, started, completed)
	return err
}

func instant(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// TwoClustersError refuses a machine that two clusters show at the same time.
type TwoClustersError struct {
	Instance string // the provider's name of the machine
	Clusters [2]string
	At       time.Time
}

func (e *TwoClustersError) Error() string {
	return fmt.Sprintf("machine %s is a node of cluster %q and of cluster %q at %s; a machine belongs to one cluster at a time, so nothing was loaded: check metrics.match of both in gpuledger.yaml, or give them one id if they are one",
		e.Instance, e.Clusters[0], e.Clusters[1], e.At.Format(time.RFC3339))
}

// nameOnly are the schemes of provider ids that are no more than the node's name, which
// another cluster may have too.
var nameOnly = []string{"k3s://", "rke2://", "kind://", "kubemark://"}

// oneCluster refuses machines that another cluster had at the same time. A machine may
// change clusters within an hour.
func (s *sampleSave) oneCluster(ctx context.Context, start, end time.Time) error {
	mine := map[string][]period.Span{}
	var names []string
	for i := range s.hours {
		h := &s.hours[i]
		for j := range h.Nodes {
			nh := &h.Nodes[j]
			n := h.Inventory.Nodes[nh.Node]
			named := func(scheme string) bool { return strings.HasPrefix(nh.ProviderID, scheme) }
			if n == nil || nh.InstanceID == "" || slices.ContainsFunc(nameOnly, named) {
				continue
			}
			k := strings.ToLower(nh.InstanceID)
			if mine[k] == nil {
				names = append(names, k)
			}
			mine[k] = append(mine[k], n.Seen(nh.InstanceID, period.Hour(h.Hour))...)
		}
	}
	rows, err := s.tx.Query(ctx, `SELECT lower(n.instance_id), n.provider_id, coalesce((SELECT name FROM gpuledger.cluster_name x WHERE x.cluster_id = n.cluster_id AND x.valid @> lower(t.valid)), c.key), lower(t.valid), upper(t.valid)
		FROM gpuledger.node n JOIN gpuledger.cluster c ON c.id = n.cluster_id JOIN gpuledger.node_state t ON t.node_id = n.id
		WHERE lower(n.instance_id) = ANY ($1) AND n.cluster_id <> $2 AND t.valid && tstzrange($3, $4) ORDER BY 4, 1`, names, s.clusterID, start, end)
	if err != nil {
		return err
	}
	var instance, provider, other string
	var theirs period.Span
	_, err = pgx.ForEachRow(rows, []any{&instance, &provider, &other, &theirs.Start, &theirs.End}, func() error {
		for _, m := range mine[instance] {
			if both := m.Intersect(theirs); both.Duration() > gpu.Handover {
				return &TwoClustersError{instance, [2]string{other, s.load.ClusterName}, both.Start.UTC()}
			}
		}
		return nil
	})
	return err
}
