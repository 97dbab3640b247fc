-- When within its hour a node was ready and a pod lived, for what depends on order:
-- last tenants, and CPU and memory shares at each instant. Hours read before have no
-- value; both then count from the start of the hour. Use of CPU and memory is there
-- where it is collected.
-- +goose Up
ALTER TABLE gpuledger.node_hour ADD COLUMN ready_start_us bigint, ADD COLUMN ready_end_us bigint;
ALTER TABLE gpuledger.pod_hour ADD COLUMN start_us bigint, ADD COLUMN cpu_used_milli bigint, ADD COLUMN memory_used_bytes bigint;

-- +goose Down
-- What an hour said goes, so it is another hour: a later read must not take it for the same.
UPDATE gpuledger.node_hour SET sha256 = sha256(sha256) WHERE ready_start_us IS NOT NULL;
ALTER TABLE gpuledger.pod_hour DROP COLUMN memory_used_bytes, DROP COLUMN cpu_used_milli, DROP COLUMN start_us;
ALTER TABLE gpuledger.node_hour DROP COLUMN ready_end_us, DROP COLUMN ready_start_us;
