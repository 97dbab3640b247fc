-- The inputs: bills and occupancy, each versioned, and the dimensions they share.
-- +goose Up
CREATE SCHEMA gpuledger;

-- Documents that hashes stand for: policies, owners, configurations.
CREATE TABLE gpuledger.document (
    sha256     bytea PRIMARY KEY CHECK (octet_length(sha256) = 32),
    kind       text NOT NULL,
    body       text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- One row a scope of work; a job holds its row's lock while it works.
CREATE TABLE gpuledger.work_lock (scope text PRIMARY KEY);

CREATE TABLE gpuledger.source (
    id   int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    kind text NOT NULL
);

CREATE TABLE gpuledger.cluster (
    id  int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key text NOT NULL UNIQUE
);

CREATE TABLE gpuledger.cluster_name (
    cluster_id int NOT NULL REFERENCES gpuledger.cluster,
    name       text NOT NULL,
    valid      tstzrange NOT NULL,
    EXCLUDE USING gist (int4range(cluster_id, cluster_id, '[]') WITH &&, valid WITH &&)
);

CREATE TABLE gpuledger.gpu_model (
    id   int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE
);

CREATE TABLE gpuledger.node (
    id            int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cluster_id    int NOT NULL REFERENCES gpuledger.cluster,
    name          text NOT NULL,
    instance_id   text NOT NULL,
    provider_id   text NOT NULL,
    instance_type text NOT NULL,
    region        text NOT NULL,
    zone          text NOT NULL,
    pool          text NOT NULL,
    first_hour    timestamptz NOT NULL,
    last_hour     timestamptz NOT NULL,
    UNIQUE (cluster_id, name, instance_id)
);
CREATE INDEX node_instance ON gpuledger.node (lower(instance_id));

CREATE TABLE gpuledger.device (
    id       int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node_id  int NOT NULL REFERENCES gpuledger.node,
    uuid     text NOT NULL,
    model_id int NOT NULL REFERENCES gpuledger.gpu_model,
    UNIQUE (node_id, uuid, model_id)
);

-- A GPU, or a MIG instance of one geometry of it.
CREATE TABLE gpuledger.gpu_partition (
    id             int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    device_id      int NOT NULL REFERENCES gpuledger.device,
    geometry       text NOT NULL,
    gpu_instance   text NOT NULL,
    profile        text NOT NULL,
    memory_slices  int NOT NULL CHECK (memory_slices > 0),
    device_slices  int NOT NULL CHECK (device_slices > 0),
    compute_slices int NOT NULL,
    UNIQUE (device_id, geometry, gpu_instance, profile, memory_slices, device_slices, compute_slices)
);

-- A pod with one set of labels: a relabelled pod has a second row, and each hour
-- refers to the labels it had then.
CREATE TABLE gpuledger.pod (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cluster_id       int NOT NULL REFERENCES gpuledger.cluster,
    uid              text NOT NULL,
    sha256           bytea NOT NULL CHECK (octet_length(sha256) = 32),
    namespace        text NOT NULL,
    name             text NOT NULL,
    workload_kind    text NOT NULL,
    workload_name    text NOT NULL,
    labels           jsonb NOT NULL,
    annotations      jsonb NOT NULL,
    namespace_labels jsonb NOT NULL,
    UNIQUE (cluster_id, uid, sha256)
);
CREATE INDEX pod_name ON gpuledger.pod (namespace, name);

-- One read of samples of a cluster, with what it was read with.
CREATE TABLE gpuledger.sample_load (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cluster_id      int NOT NULL REFERENCES gpuledger.cluster,
    span            tstzrange NOT NULL,
    driver          text NOT NULL,
    server_version  text NOT NULL,
    settings_sha256 bytea NOT NULL,
    series          bigint NOT NULL,
    samples         bigint NOT NULL,
    node_hours      bigint NOT NULL,
    changed         bigint NOT NULL,
    started_at      timestamptz NOT NULL,
    finished_at     timestamptz NOT NULL
);

-- How much of an hour the cluster's inventory was seen. Versions: the current one
-- has no superseded_by.
CREATE TABLE gpuledger.cluster_hour (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cluster_id    int NOT NULL REFERENCES gpuledger.cluster,
    hour          timestamptz NOT NULL,
    covered_us    bigint NOT NULL CHECK (covered_us BETWEEN 0 AND 3600000000),
    load_id       bigint NOT NULL,
    superseded_by bigint
);
CREATE UNIQUE INDEX cluster_hour_current ON gpuledger.cluster_hour (cluster_id, hour) WHERE superseded_by IS NULL;

CREATE TABLE gpuledger.node_hour (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node_id       int NOT NULL REFERENCES gpuledger.node,
    hour          timestamptz NOT NULL,
    ready_us      bigint NOT NULL CHECK (ready_us BETWEEN 0 AND 3600000000),
    uncovered_us  bigint NOT NULL CHECK (uncovered_us BETWEEN 0 AND 3600000000),
    measured_us   bigint NOT NULL,
    present_us    bigint NOT NULL,
    pool          text NOT NULL,
    cpu_milli     bigint NOT NULL,
    memory_bytes  bigint NOT NULL,
    sha256        bytea NOT NULL CHECK (octet_length(sha256) = 32),
    load_id       bigint NOT NULL,
    superseded_by bigint
);
CREATE UNIQUE INDEX node_hour_current ON gpuledger.node_hour (node_id, hour) WHERE superseded_by IS NULL;
CREATE INDEX node_hour_hour ON gpuledger.node_hour (hour);

CREATE TABLE gpuledger.device_hour (
    node_hour_id   bigint NOT NULL,
    device_id      int NOT NULL,
    total_bytes    bigint NOT NULL,
    reserved_bytes bigint NOT NULL,
    gpu_util       double precision,
    engine_active  double precision,
    dropped        jsonb
);
CREATE INDEX device_hour_node ON gpuledger.device_hour (node_hour_id);

CREATE TABLE gpuledger.pod_hour (
    node_hour_id bigint NOT NULL,
    pod_id       bigint NOT NULL,
    life_us      bigint NOT NULL,
    cpu_milli    bigint NOT NULL,
    memory_bytes bigint NOT NULL,
    gpus         bigint NOT NULL
);
CREATE INDEX pod_hour_node ON gpuledger.pod_hour (node_hour_id);

-- What one pod or remainder category had of one partition in one hour. The five
-- share columns are whole microseconds that each sum to present_us.
CREATE TABLE gpuledger.occupancy (
    hour               timestamptz NOT NULL,
    node_hour_id       bigint NOT NULL,
    partition_id       int NOT NULL,
    mode               text NOT NULL,
    slots              int NOT NULL,
    usable_bytes       bigint NOT NULL,
    present_us         bigint NOT NULL,
    pod_id             bigint,
    category           text,
    method             smallint NOT NULL,
    replicas           int NOT NULL,
    used_us            bigint NOT NULL,
    request_none_us    bigint NOT NULL,
    request_replica_us bigint NOT NULL,
    max_none_us        bigint NOT NULL,
    max_replica_us     bigint NOT NULL,
    spread_us          bigint NOT NULL,
    used_byte_seconds  bigint NOT NULL,
    held_byte_seconds  bigint NOT NULL,
    measured_us        bigint NOT NULL,
    gap_us             bigint NOT NULL,
    samples            bigint NOT NULL,
    first_at           timestamptz,
    last_at            timestamptz,
    peak_bytes         bigint NOT NULL,
    histogram          bigint[] NOT NULL,
    flags              int NOT NULL,
    CHECK ((pod_id IS NULL) <> (category IS NULL))
) PARTITION BY RANGE (hour);
CREATE INDEX occupancy_node_hour ON gpuledger.occupancy (node_hour_id);

-- A complete set of lines of one source and billing period, as a manifest names it.
CREATE TABLE gpuledger.bill_delivery (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source_id      int NOT NULL REFERENCES gpuledger.source,
    billing_period date NOT NULL,
    format         text NOT NULL,
    delivery_id    text NOT NULL,
    manifest       text NOT NULL,
    token          bytea NOT NULL,
    scope_sha256   bytea NOT NULL,
    content_sha256 bytea NOT NULL,
    lines          bigint NOT NULL,
    kept_lines     bigint NOT NULL,
    notes          text[] NOT NULL,
    submitted_at   timestamptz,
    loaded_at      timestamptz NOT NULL DEFAULT now(),
    superseded_by  bigint
);
CREATE UNIQUE INDEX bill_delivery_current ON gpuledger.bill_delivery (source_id, billing_period) WHERE superseded_by IS NULL;

-- What a line is about, apart from time and money.
CREATE TABLE gpuledger.bill_resource (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    sha256        bytea NOT NULL UNIQUE,
    provider      text NOT NULL,
    payer         text NOT NULL,
    account       text NOT NULL,
    resource_id   text NOT NULL,
    instance_id   text NOT NULL,
    instance_type text NOT NULL,
    region        text NOT NULL,
    zone          text NOT NULL,
    service       text NOT NULL,
    sku           text NOT NULL,
    usage_type    text NOT NULL,
    operation     text NOT NULL
);
CREATE INDEX bill_resource_instance ON gpuledger.bill_resource (lower(instance_id)) WHERE instance_id <> '';

-- In-scope lines. A line belongs to the deliveries from first_delivery up to, not
-- including, last_delivery; its key is the hash of what it says.
CREATE SEQUENCE gpuledger.bill_line_id;
CREATE TABLE gpuledger.bill_line (
    id                    bigint NOT NULL DEFAULT nextval('gpuledger.bill_line_id'),
    charge_month          date NOT NULL,
    source_id             int NOT NULL,
    billing_period        date NOT NULL,
    key                   bytea NOT NULL,
    ordinal               int NOT NULL,
    first_delivery        bigint NOT NULL,
    last_delivery         bigint,
    bill_resource_id      bigint NOT NULL,
    class                 text NOT NULL,
    component             text NOT NULL,
    charge_start          timestamptz NOT NULL,
    charge_end            timestamptz NOT NULL,
    billed_us             bigint,
    instance_hours        numeric,
    charge_category       text NOT NULL,
    charge_class          text NOT NULL,
    charge_type           text NOT NULL,
    description           text NOT NULL,
    currency              text NOT NULL,
    billed_cost           numeric NOT NULL CHECK (billed_cost NOT IN ('NaN', 'Infinity', '-Infinity')),
    effective_cost        numeric NOT NULL CHECK (effective_cost NOT IN ('NaN', 'Infinity', '-Infinity')),
    list_cost             numeric CHECK (list_cost NOT IN ('NaN', 'Infinity', '-Infinity')),
    contracted_cost       numeric CHECK (contracted_cost NOT IN ('NaN', 'Infinity', '-Infinity')),
    consumed_quantity     numeric,
    consumed_unit         text NOT NULL,
    pricing_quantity      numeric,
    pricing_unit          text NOT NULL,
    list_unit_price       numeric,
    contracted_unit_price numeric,
    pricing_currency      text NOT NULL,
    exchange_rate         numeric,
    commitment            text NOT NULL,
    reservation           text NOT NULL,
    invoice_id            text NOT NULL,
    invoice_detail_id     text NOT NULL,
    invoice_issuer        text NOT NULL,
    tags                  jsonb NOT NULL
) PARTITION BY RANGE (charge_month);
CREATE INDEX bill_line_id_index ON gpuledger.bill_line (id);
CREATE INDEX bill_line_key ON gpuledger.bill_line (source_id, billing_period, key);

-- Control totals of a delivery: every line of it, in scope or not.
CREATE TABLE gpuledger.bill_control (
    delivery_id              bigint NOT NULL REFERENCES gpuledger.bill_delivery,
    charge_month             date NOT NULL,
    payer                    text NOT NULL,
    account                  text NOT NULL,
    service                  text NOT NULL,
    class                    text NOT NULL,
    currency                 text NOT NULL,
    in_scope                 boolean NOT NULL,
    lines                    bigint NOT NULL,
    billed_cost              numeric NOT NULL,
    effective_cost           numeric NOT NULL,
    list_cost                numeric NOT NULL,
    contracted_cost          numeric NOT NULL,
    lines_without_list       bigint NOT NULL,
    lines_without_contracted bigint NOT NULL
);
CREATE INDEX bill_control_delivery ON gpuledger.bill_control (delivery_id);

-- +goose StatementBegin
-- Makes the month partition of one of the big tables. Concurrent callers queue on
-- an advisory lock of this transaction.
CREATE FUNCTION gpuledger.ensure_month(parent text, month date) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    part text := parent || '_' || to_char(month, 'YYYYMM');
BEGIN
    IF to_regclass('gpuledger.' || part) IS NOT NULL THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtext('gpuledger.' || part));
    IF to_regclass('gpuledger.' || part) IS NOT NULL THEN
        RETURN;
    END IF;
    IF parent = 'occupancy' THEN
        EXECUTE format('CREATE TABLE gpuledger.%I PARTITION OF gpuledger.%I FOR VALUES FROM (%L) TO (%L)',
            part, parent, month::timestamp AT TIME ZONE 'UTC', (month + interval '1 month')::timestamp AT TIME ZONE 'UTC');
    ELSE
        EXECUTE format('CREATE TABLE gpuledger.%I PARTITION OF gpuledger.%I FOR VALUES FROM (%L) TO (%L)',
            part, parent, month, (month + interval '1 month')::date);
    END IF;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP SCHEMA gpuledger CASCADE;
