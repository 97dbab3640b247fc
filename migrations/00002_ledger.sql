-- The ledger: immutable units of allocation, runs that are lists of units, and
-- the pointer to each month's current run.
-- +goose Up
CREATE TABLE gpuledger.owner (
    id          int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key         text NOT NULL UNIQUE,
    team        text,
    cost_center text,
    attributes  jsonb NOT NULL
);

-- A unit is what one set of inputs gives for one cluster (or, for lines on no
-- node, one source), day and bucket of nodes. It is written once and shared by
-- every run that has the same inputs.
CREATE TABLE gpuledger.unit (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope          text NOT NULL,
    charge_day     date NOT NULL,
    input_sha256   bytea NOT NULL,
    output_sha256  bytea NOT NULL,
    method_version text NOT NULL,
    lines          bigint NOT NULL,
    rows           bigint NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now(),
    UNIQUE (scope, charge_day, input_sha256)
);

-- What went into a unit and what came out, by source, payer, billing period and
-- currency; checked when the unit is written, summed when a run is published.
CREATE TABLE gpuledger.unit_total (
    unit_id        bigint NOT NULL REFERENCES gpuledger.unit,
    source_id      int NOT NULL,
    payer          text NOT NULL,
    billing_period date NOT NULL,
    currency       text NOT NULL,
    lines          bigint NOT NULL,
    billed_in      numeric NOT NULL,
    effective_in   numeric NOT NULL,
    list_in        numeric NOT NULL,
    billed_out     numeric NOT NULL,
    effective_out  numeric NOT NULL,
    list_out       numeric NOT NULL
);
CREATE INDEX unit_total_unit ON gpuledger.unit_total (unit_id);

CREATE TABLE gpuledger.unit_node_hour (
    unit_id      bigint NOT NULL REFERENCES gpuledger.unit,
    node_hour_id bigint NOT NULL
);
CREATE INDEX unit_node_hour_unit ON gpuledger.unit_node_hour (unit_id);

-- One row a line, component, target, model, mode, owner, source category and
-- policy that moved it. ratio is in units of 1e-12 of the line's cost, gpu_ratio of
-- its device hours (the two differ only where models differ); the finance views
-- multiply.
CREATE TABLE gpuledger.allocation (
    period            date NOT NULL,
    charge_day        date NOT NULL,
    unit_id           bigint NOT NULL,
    line_id           bigint NOT NULL,
    component         text NOT NULL,
    target_kind       text NOT NULL CHECK (target_kind IN ('pod', 'remainder')),
    target_id         bigint,
    category          text NOT NULL,
    moved_by          text,
    owner_id          int NOT NULL,
    model_id          int NOT NULL,
    mode              text NOT NULL,
    node_id           int,
    node_pool         text,
    currency          text NOT NULL,
    ratio             bigint NOT NULL CHECK (ratio BETWEEN 0 AND 1000000000000),
    gpu_ratio         bigint NOT NULL CHECK (gpu_ratio BETWEEN 0 AND 1000000000000),
    device_hours      numeric NOT NULL,
    used_byte_seconds bigint NOT NULL,
    held_byte_seconds bigint NOT NULL,
    measured_us       bigint NOT NULL,
    gap_us            bigint NOT NULL,
    method            smallint NOT NULL,
    method_ratio      bigint[] NOT NULL,
    allocation_id     uuid NOT NULL,
    CHECK ((target_kind = 'pod') = (target_id IS NOT NULL))
) PARTITION BY RANGE (period);
CREATE INDEX allocation_unit ON gpuledger.allocation USING brin (unit_id);
CREATE INDEX allocation_target ON gpuledger.allocation (target_id, line_id);
CREATE INDEX allocation_line ON gpuledger.allocation (line_id);

-- Rollups of the same units, tested equal to the sum of the facts.
CREATE TABLE gpuledger.pod_day (
    unit_id           bigint NOT NULL,
    period            date NOT NULL,
    charge_day        date NOT NULL,
    currency          text NOT NULL,
    charge_class      text,
    target_id         bigint,
    category          text NOT NULL,
    moved_by          text,
    owner_id          int NOT NULL,
    model_id          int NOT NULL,
    mode              text NOT NULL,
    node_id           int,
    billed_cost       numeric NOT NULL,
    effective_cost    numeric NOT NULL,
    list_cost         numeric,
    contracted_cost   numeric,
    gpu_hours         numeric NOT NULL,
    used_byte_seconds numeric NOT NULL,
    held_byte_seconds numeric NOT NULL,
    held_unused_cost  numeric NOT NULL
);
CREATE INDEX pod_day_unit ON gpuledger.pod_day (unit_id);

CREATE TABLE gpuledger.workload_day (
    unit_id           bigint NOT NULL,
    period            date NOT NULL,
    charge_day        date NOT NULL,
    currency          text NOT NULL,
    charge_class      text,
    cluster_id        int,
    namespace         text,
    workload_kind     text,
    workload_name     text,
    category          text NOT NULL,
    owner_id          int NOT NULL,
    model_id          int NOT NULL,
    node_pool         text,
    billed_cost       numeric NOT NULL,
    effective_cost    numeric NOT NULL,
    list_cost         numeric,
    contracted_cost   numeric,
    gpu_hours         numeric NOT NULL,
    used_byte_seconds numeric NOT NULL,
    held_byte_seconds numeric NOT NULL,
    held_unused_cost  numeric NOT NULL
);
CREATE INDEX workload_day_unit ON gpuledger.workload_day (unit_id);

CREATE TABLE gpuledger.run (
    id             text PRIMARY KEY,
    period         date NOT NULL,
    seq            int NOT NULL,
    input_sha256   bytea NOT NULL,
    output_sha256  bytea NOT NULL,
    policy_sha256  bytea NOT NULL REFERENCES gpuledger.document,
    owners_sha256  bytea NOT NULL REFERENCES gpuledger.document,
    method_version text NOT NULL,
    code_version   text NOT NULL,
    units          bigint NOT NULL,
    new_units      bigint NOT NULL,
    rows           bigint NOT NULL,
    created_by     text NOT NULL,
    started_at     timestamptz NOT NULL,
    published_at   timestamptz NOT NULL DEFAULT now(),
    UNIQUE (period, seq)
);

CREATE TABLE gpuledger.run_unit (
    run_id  text NOT NULL REFERENCES gpuledger.run,
    unit_id bigint NOT NULL REFERENCES gpuledger.unit,
    PRIMARY KEY (run_id, unit_id)
);

CREATE TABLE gpuledger.run_delivery (
    run_id      text NOT NULL REFERENCES gpuledger.run,
    delivery_id bigint NOT NULL REFERENCES gpuledger.bill_delivery,
    PRIMARY KEY (run_id, delivery_id)
);

CREATE TABLE gpuledger.period (
    period     date PRIMARY KEY CHECK (extract(day FROM period) = 1),
    state      text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'closed', 'reopened')),
    run_id     text REFERENCES gpuledger.run,
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- +goose Down
DROP TABLE gpuledger.period, gpuledger.run_delivery, gpuledger.run_unit, gpuledger.run, gpuledger.workload_day,
    gpuledger.pod_day, gpuledger.allocation, gpuledger.unit_node_hour, gpuledger.unit_total, gpuledger.unit, gpuledger.owner;
