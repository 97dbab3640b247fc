-- The inventory with validity: what was where, and when it was seen. Ranges are unions
-- of what the loaded hours say, so that the order of loading does not show in them.
-- Hours loaded before this version give what they kept: no labels, and whole hours.
-- +goose Up
-- What a node was, as the inventory said. A node has one set of attributes at a time.
CREATE TABLE gpuledger.node_state (
    node_id       int NOT NULL REFERENCES gpuledger.node,
    valid         tstzrange NOT NULL CHECK (NOT isempty(valid)),
    provider_id   text NOT NULL,
    instance_type text NOT NULL,
    region        text NOT NULL,
    zone          text NOT NULL,
    pool          text NOT NULL,
    labels        jsonb NOT NULL,
    gpu_capacity  jsonb NOT NULL,
    cpu_milli     bigint NOT NULL,
    memory_bytes  bigint NOT NULL,
    EXCLUDE USING gist (int4range(node_id, node_id, '[]') WITH &&, valid WITH &&)
);
CREATE INDEX node_state_node ON gpuledger.node_state (node_id);

-- The hours in which a device was a part of its node.
CREATE TABLE gpuledger.device_seen (
    device_id int NOT NULL REFERENCES gpuledger.device,
    valid     tstzrange NOT NULL CHECK (NOT isempty(valid)),
    EXCLUDE USING gist (int4range(device_id, device_id, '[]') WITH &&, valid WITH &&)
);
CREATE INDEX device_seen_device ON gpuledger.device_seen (device_id);

-- The hours in which a GPU or a part of one was there, and how it was shared: the mode
-- that held longest within the hour.
CREATE TABLE gpuledger.partition_mode (
    partition_id int NOT NULL REFERENCES gpuledger.gpu_partition,
    valid        tstzrange NOT NULL CHECK (NOT isempty(valid)),
    mode         text NOT NULL,
    slots        int NOT NULL,
    EXCLUDE USING gist (int4range(partition_id, partition_id, '[]') WITH &&, valid WITH &&)
);
CREATE INDEX partition_mode_partition ON gpuledger.partition_mode (partition_id);

-- When a pod, with these labels, lived on a node. A pod is on one node.
CREATE TABLE gpuledger.pod_seen (
    pod_id  bigint NOT NULL REFERENCES gpuledger.pod,
    valid   tstzrange NOT NULL CHECK (NOT isempty(valid)),
    node_id int NOT NULL REFERENCES gpuledger.node,
    EXCLUDE USING gist (int8range(pod_id, pod_id, '[]') WITH &&, valid WITH &&)
);
CREATE INDEX pod_seen_pod ON gpuledger.pod_seen (pod_id);
CREATE INDEX pod_seen_node ON gpuledger.pod_seen (node_id);

-- What Kubernetes says of a pod's life; the loaded hours may hold only a part of it.
ALTER TABLE gpuledger.pod ADD COLUMN started_at timestamptz, ADD COLUMN completed_at timestamptz;

-- Two more kinds of activity: of the multiprocessors, and of the memory's bandwidth.
ALTER TABLE gpuledger.device_hour ADD COLUMN sm_active double precision, ADD COLUMN dram_active double precision;

-- The name that a cluster's hours were read under. cluster_name is made of it.
CREATE TABLE gpuledger.cluster_named (
    cluster_id int NOT NULL REFERENCES gpuledger.cluster,
    valid      tstzrange NOT NULL CHECK (NOT isempty(valid)),
    name       text NOT NULL,
    EXCLUDE USING gist (int4range(cluster_id, cluster_id, '[]') WITH &&, valid WITH &&)
);

-- What each source of a cluster held when it was last asked: 0 is the cluster's
-- metrics, then its fallbacks. oldest is NULL where a source does not forget.
CREATE TABLE gpuledger.source_probe (
    cluster_id int NOT NULL REFERENCES gpuledger.cluster,
    ordinal    int NOT NULL,
    driver     text NOT NULL,
    source     text NOT NULL,
    oldest     timestamptz,
    newest     timestamptz,
    probed_at  timestamptz NOT NULL,
    PRIMARY KEY (cluster_id, ordinal)
);

-- Hours that no source held any more when they were to be read for the first time.
CREATE TABLE gpuledger.lost_hour (
    cluster_id int NOT NULL REFERENCES gpuledger.cluster,
    hour       timestamptz NOT NULL,
    found_at   timestamptz NOT NULL,
    PRIMARY KEY (cluster_id, hour)
);

-- When a job last ended well.
CREATE TABLE gpuledger.job_success (
    job text PRIMARY KEY,
    at  timestamptz NOT NULL
);

ALTER TABLE gpuledger.sample_load ADD COLUMN source text NOT NULL DEFAULT '', ADD COLUMN warnings text[] NOT NULL DEFAULT '{}';

INSERT INTO gpuledger.node_state (node_id, valid, provider_id, instance_type, region, zone, pool, labels, gpu_capacity, cpu_milli, memory_bytes)
SELECT n.id, r, n.provider_id, n.instance_type, n.region, n.zone, h.pool, '{}', '{}', h.cpu_milli, h.memory_bytes
FROM (SELECT node_id, pool, cpu_milli, memory_bytes, range_agg(tstzrange(hour, hour + interval '1 hour')) AS hours
    FROM gpuledger.node_hour WHERE superseded_by IS NULL GROUP BY node_id, pool, cpu_milli, memory_bytes) h
JOIN gpuledger.node n ON n.id = h.node_id, unnest(h.hours) AS r;

INSERT INTO gpuledger.device_seen (device_id, valid)
SELECT device_id, r FROM (SELECT d.device_id, range_agg(tstzrange(h.hour, h.hour + interval '1 hour')) AS hours
    FROM gpuledger.device_hour d JOIN gpuledger.node_hour h ON h.id = d.node_hour_id WHERE h.superseded_by IS NULL GROUP BY d.device_id) x, unnest(x.hours) AS r;

INSERT INTO gpuledger.partition_mode (partition_id, valid, mode, slots)
SELECT partition_id, r, mode, slots FROM (SELECT partition_id, mode, slots, range_agg(tstzrange(hour, hour + interval '1 hour')) AS hours
    FROM (SELECT DISTINCT ON (o.partition_id, o.hour) o.partition_id, o.hour, o.mode, o.slots
        FROM gpuledger.occupancy o JOIN gpuledger.node_hour h ON h.id = o.node_hour_id WHERE h.superseded_by IS NULL ORDER BY o.partition_id, o.hour, o.present_us DESC, o.mode) l
    GROUP BY partition_id, mode, slots) x, unnest(x.hours) AS r;

INSERT INTO gpuledger.pod_seen (pod_id, valid, node_id)
SELECT pod_id, r, node_id FROM (SELECT u.pod_id, (array_agg(u.node_id ORDER BY u.hour DESC, u.node_id))[1] AS node_id,
        range_agg(CASE WHEN u.start_us IS NULL OR u.life_us = 0 THEN tstzrange(u.hour, u.hour + interval '1 hour')
            ELSE tstzrange(u.hour + u.start_us * interval '1 microsecond', u.hour + (u.start_us + u.life_us) * interval '1 microsecond') END) AS lives
    FROM (SELECT p.pod_id, h.node_id, h.hour, p.start_us, p.life_us FROM gpuledger.pod_hour p JOIN gpuledger.node_hour h ON h.id = p.node_hour_id WHERE h.superseded_by IS NULL
        UNION ALL SELECT o.pod_id, h.node_id, h.hour, NULL, 0 FROM gpuledger.occupancy o JOIN gpuledger.node_hour h ON h.id = o.node_hour_id
            WHERE h.superseded_by IS NULL AND o.pod_id IS NOT NULL AND NOT EXISTS (SELECT FROM gpuledger.pod_hour p WHERE p.node_hour_id = o.node_hour_id AND p.pod_id = o.pod_id)) u
    GROUP BY u.pod_id) x, unnest(x.lives) AS r;

INSERT INTO gpuledger.cluster_named (cluster_id, valid, name)
SELECT cluster_id, r, name FROM (SELECT h.cluster_id, n.name, range_agg(tstzrange(h.hour, h.hour + interval '1 hour')) AS hours
    FROM gpuledger.cluster_hour h JOIN gpuledger.cluster_name n ON n.cluster_id = h.cluster_id AND n.valid @> h.hour
    WHERE h.superseded_by IS NULL GROUP BY h.cluster_id, n.name) x, unnest(x.hours) AS r;

-- +goose Down
ALTER TABLE gpuledger.device_hour DROP COLUMN sm_active, DROP COLUMN dram_active;
ALTER TABLE gpuledger.sample_load DROP COLUMN warnings, DROP COLUMN source;
DROP TABLE gpuledger.job_success, gpuledger.lost_hour, gpuledger.source_probe, gpuledger.cluster_named;
ALTER TABLE gpuledger.pod DROP COLUMN completed_at, DROP COLUMN started_at;
DROP TABLE gpuledger.pod_seen, gpuledger.partition_mode, gpuledger.device_seen, gpuledger.node_state;
