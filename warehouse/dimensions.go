package warehouse

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"sort"
	"time"

	"github.com/jackc/pgx/v5"

	"gpuledger/gpu"
)

// Keys of the dimensions that samples refer to.
type (
	nodeKey   struct{ name, instance string }
	deviceKey struct {
		node        int32
		uuid, model string
	}
	partitionKey struct {
		device                  int32
		geometry, gi, profile   string
		memory, slices, compute int
	}
	podKey struct {
		uid string
		sha [32]byte
	}
)

func keyOf(nh *gpu.NodeHour) nodeKey { return nodeKey{nh.Node, nh.InstanceID} }

func (s *sampleSave) deviceKey(node int32, d gpu.Device) deviceKey {
	return deviceKey{node, d.UUID, d.Model}
}

func (s *sampleSave) partitionKey(node int32, d gpu.Device, p gpu.Partition) partitionKey {
	return partitionKey{s.devices[s.deviceKey(node, d)], p.Geometry, p.GPUInstance, p.Profile, p.MemorySlices, p.DeviceSlices, p.ComputeSlices}
}

// podAttributes is what of a pod decides who owns it. Times are left out: they
// grow while the pod lives.
type podAttributes struct {
	Namespace, Name, WorkloadKind, WorkloadName string
	Labels, Annotations, NamespaceLabels        map[string]string
}

func attributesOf(inv *gpu.Inventory, p *gpu.Pod) podAttributes {
	return podAttributes{p.Namespace, p.Name, p.WorkloadKind, p.WorkloadName, p.Labels, p.Annotations, inv.Namespaces[p.Namespace]}
}

func (a podAttributes) hash() [32]byte {
	b, err := json.Marshal(a)
	if err != nil {
		panic(err) // strings and maps of strings always marshal
	}
	return sha256.Sum256(b)
}

func podHashes(inv *gpu.Inventory) map[string][32]byte {
	out := map[string][32]byte{}
	for _, p := range inv.AllPods() {
		out[p.UID] = attributesOf(inv, p).hash()
	}
	return out
}

// dimensions brings in every node, model, device, partition and pod of the hours
// and learns their ids. Rows are inserted in a fixed order, so that two loads can't
// wait for each other in a circle.
func (s *sampleSave) dimensions(ctx context.Context) error {
	if err := s.saveNodes(ctx); err != nil {
		return err
	}
	if err := s.saveModels(ctx); err != nil {
		return err
	}
	if err := s.saveDevices(ctx); err != nil {
		return err
	}
	if err := s.savePartitions(ctx); err != nil {
		return err
	}
	return s.savePods(ctx)
}

// keep notes the newest value that is one.
func keep(into *string, v string) {
	if v != "" {
		*into = v
	}
}

// saveNodes brings in the nodes. A node's row has what was last known of it, by the
// hours and not by the order of loading; node_state has what it was when.
func (s *sampleSave) saveNodes(ctx context.Context) error {
	type seen struct {
		providerID, instanceType, pool string
		region, zone                   string
		first, last                    time.Time
	}
	all := map[nodeKey]*seen{}
	for i := range s.hours {
		h := &s.hours[i]
		for j := range h.Nodes {
			nh := &h.Nodes[j]
			k := keyOf(nh)
			v := all[k]
			if v == nil {
				v = &seen{first: h.Hour}
				all[k] = v
			}
			v.last = h.Hour
			keep(&v.providerID, nh.ProviderID)
			keep(&v.instanceType, nh.InstanceType)
			keep(&v.pool, nh.Pool)
			if n := h.Inventory.Nodes[nh.Node]; n != nil {
				keep(&v.region, n.Region)
				keep(&v.zone, n.Zone)
			}
		}
	}
	keys := make([]nodeKey, 0, len(all))
	for k := range all {
		keys = append(keys, k)
	}
	sort.Slice(keys, func(i, j int) bool {
		return keys[i].name+"\x00"+keys[i].instance < keys[j].name+"\x00"+keys[j].instance
	})
	s.nodes = map[nodeKey]int32{}
	for _, k := range keys {
		v := all[k]
		var id int32
		err := s.tx.QueryRow(ctx, `INSERT INTO gpuledger.node AS n (cluster_id, name, instance_id, provider_id, instance_type, region, zone, pool, first_hour, last_hour)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
			ON CONFLICT (cluster_id, name, instance_id) DO UPDATE SET
				instance_type = CASE WHEN n.instance_type = '' OR excluded.instance_type <> '' AND excluded.last_hour >= n.last_hour THEN excluded.instance_type ELSE n.instance_type END,
				region = CASE WHEN n.region = '' OR excluded.region <> '' AND excluded.last_hour >= n.last_hour THEN excluded.region ELSE n.region END,
				zone = CASE WHEN n.zone = '' OR excluded.zone <> '' AND excluded.last_hour >= n.last_hour THEN excluded.zone ELSE n.zone END,
				pool = CASE WHEN n.pool = '' OR excluded.pool <> '' AND excluded.last_hour >= n.last_hour THEN excluded.pool ELSE n.pool END,
				first_hour = least(n.first_hour, excluded.first_hour), last_hour = greatest(n.last_hour, excluded.last_hour)
			RETURNING id`, s.clusterID, k.name, k.instance, v.providerID, v.instanceType, v.region, v.zone, v.pool, v.first, v.last).Scan(&id)
		if err != nil {
			return err
		}
		s.nodes[k] = id
	}
	return nil
}

func (s *sampleSave) eachDevice(fn func(node int32, d gpu.Device)) {
	for i := range s.hours {
		h := &s.hours[i]
		for j := range h.Nodes {
			for _, d := range h.Nodes[j].Devices {
				fn(s.nodes[keyOf(&h.Nodes[j])], d)
			}
		}
	}
}

func (s *sampleSave) saveModels(ctx context.Context) error {
	set := map[string]bool{}
	s.eachDevice(func(_ int32, d gpu.Device) { set[d.Model] = true })
	names := make([]string, 0, len(set))
	for n := range set {
		names = append(names, n)
	}
	var err error
	s.models, err = modelIDs(ctx, s.tx, names)
	return err
}

// modelIDs finds or makes the ids of GPU models.
func modelIDs(ctx context.Context, tx pgx.Tx, names []string) (map[string]int32, error) {
	sort.Strings(names)
	if _, err := tx.Exec(ctx, "INSERT INTO gpuledger.gpu_model (name) SELECT n FROM unnest($1::text[]) WITH ORDINALITY AS w (n, i) ORDER BY i ON CONFLICT DO NOTHING", names); err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, "SELECT name, id FROM gpuledger.gpu_model WHERE name = ANY ($1)", names)
	if err != nil {
		return nil, err
	}
	out := map[string]int32{}
	var name string
	var id int32
	_, err = pgx.ForEachRow(rows, []any{&name, &id}, func() error { out[name] = id; return nil })
	return out, err
}

func (s *sampleSave) saveDevices(ctx context.Context) error {
	s.devices = map[deviceKey]int32{}
	var nodes, models []int32
	var uuids []string
	s.eachDevice(func(node int32, d gpu.Device) {
		k := s.deviceKey(node, d)
		if _, ok := s.devices[k]; !ok {
			s.devices[k] = 0
			nodes, uuids, models = append(nodes, node), append(uuids, d.UUID), append(models, s.models[d.Model])
		}
	})
	if _, err := s.tx.Exec(ctx, `INSERT INTO gpuledger.device (node_id, uuid, model_id) SELECT * FROM unnest($1::int[], $2::text[], $3::int[]) ORDER BY 1, 2, 3 ON CONFLICT DO NOTHING`, nodes, uuids, models); err != nil {
		return err
	}
	rows, err := s.tx.Query(ctx, `SELECT d.id, d.node_id, d.uuid, m.name FROM gpuledger.device d JOIN gpuledger.gpu_model m ON m.id = d.model_id WHERE d.node_id = ANY ($1)`, nodes)
	if err != nil {
		return err
	}
	var id, node int32
	var uuid, model string
	_, err = pgx.ForEachRow(rows, []any{&id, &node, &uuid, &model}, func() error {
		s.devices[deviceKey{node, uuid, model}] = id
		return nil
	})
	return err
}

func (s *sampleSave) savePartitions(ctx context.Context) error {
	s.partitions = map[partitionKey]int32{}
	var device, memory, slices, compute []int32
	var geometry, gi, profile []string
	s.eachDevice(func(node int32, d gpu.Device) {
		for _, p := range d.Partitions {
			k := s.partitionKey(node, d, p)
			if _, ok := s.partitions[k]; ok {
				continue
			}
			s.partitions[k] = 0
			device, geometry, gi, profile = append(device, k.device), append(geometry, k.geometry), append(gi, k.gi), append(profile, k.profile)
			memory, slices, compute = append(memory, int32(k.memory)), append(slices, int32(k.slices)), append(compute, int32(k.compute))
		}
	})
	if _, err := s.tx.Exec(ctx, `INSERT INTO gpuledger.gpu_partition (device_id, geometry, gpu_instance, profile, memory_slices, device_slices, compute_slices)
		SELECT * FROM unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::int[], $6::int[], $7::int[]) ORDER BY 1, 2, 3, 4 ON CONFLICT DO NOTHING`,
		device, geometry, gi, profile, memory, slices, compute); err != nil {
		return err
	}
	rows, err := s.tx.Query(ctx, "SELECT id, device_id, geometry, gpu_instance, profile, memory_slices, device_slices, compute_slices FROM gpuledger.gpu_partition WHERE device_id = ANY ($1)", device)
	if err != nil {
		return err
	}
	var id int32
	var k partitionKey
	_, err = pgx.ForEachRow(rows, []any{&id, &k.device, &k.geometry, &k.gi, &k.profile, &k.memory, &k.slices, &k.compute}, func() error {
		s.partitions[k] = id
		return nil
	})
	return err
}

func (s *sampleSave) savePods(ctx context.Context) error {
	s.pods = map[podKey]int64{}
	type pod struct {
		key podKey
		at  podAttributes
	}
	var all []pod
	for i := range s.hours {
		inv := s.hours[i].Inventory
		used := map[string]bool{}
		for _, nh := range s.hours[i].Nodes {
			for _, uid := range podsOf(nh) {
				used[uid] = true
			}
		}
		for _, p := range inv.AllPods() {
			if !used[p.UID] {
				continue
			}
			at := attributesOf(inv, p)
			k := podKey{p.UID, at.hash()}
			if _, ok := s.pods[k]; !ok {
				s.pods[k] = 0
				all = append(all, pod{k, at})
			}
		}
	}
	sort.Slice(all, func(i, j int) bool {
		return all[i].key.uid+string(all[i].key.sha[:]) < all[j].key.uid+string(all[j].key.sha[:])
	})
	var uids []string
	batch := &pgx.Batch{}
	for _, p := range all {
		uids = append(uids, p.key.uid)
		batch.Queue(`INSERT INTO gpuledger.pod (cluster_id, uid, sha256, namespace, name, workload_kind, workload_name, labels, annotations, namespace_labels)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT DO NOTHING`,
			s.clusterID, p.key.uid, p.key.sha[:], p.at.Namespace, p.at.Name, p.at.WorkloadKind, p.at.WorkloadName, jsonMap(p.at.Labels), jsonMap(p.at.Annotations), jsonMap(p.at.NamespaceLabels))
	}
	if err := s.tx.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	rows, err := s.tx.Query(ctx, "SELECT id, uid, sha256 FROM gpuledger.pod WHERE cluster_id = $1 AND uid = ANY ($2)", s.clusterID, uids)
	if err != nil {
		return err
	}
	var id int64
	var uid string
	var sha []byte
	_, err = pgx.ForEachRow(rows, []any{&id, &uid, &sha}, func() error {
		s.pods[podKey{uid, [32]byte(sha)}] = id
		return nil
	})
	return err
}

// jsonMap writes an absent map as an empty one.
func jsonMap(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}
