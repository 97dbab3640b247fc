-- When a source of bills was last looked at whole, and lines that stand for the part of
-- account-wide lines which what is in scope answers for.
-- +goose Up
ALTER TABLE gpuledger.source ADD COLUMN looked_at timestamptz;
ALTER TABLE gpuledger.bill_line ADD COLUMN by_base boolean NOT NULL DEFAULT false;

-- +goose Down
ALTER TABLE gpuledger.bill_line DROP COLUMN by_base;
ALTER TABLE gpuledger.source DROP COLUMN looked_at;
