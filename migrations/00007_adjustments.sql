-- What changes in a closed month is posted in an open one, as new − old for each target.
-- +goose Up
ALTER TABLE gpuledger.run ADD COLUMN kind text NOT NULL DEFAULT 'allocation' CHECK (kind IN ('allocation', 'adjustment'));

-- One posting. Its run is the recomputation, with the deliveries that it read.
CREATE TABLE gpuledger.adjustment_batch (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    charge_period  date NOT NULL,
    posting_period date NOT NULL REFERENCES gpuledger.period,
    closed_run_id  text NOT NULL REFERENCES gpuledger.run,
    run_id         text NOT NULL REFERENCES gpuledger.run,
    style          text NOT NULL CHECK (style IN ('delta', 'ledger')),
    materiality    numeric NOT NULL,
    by_name        text NOT NULL CHECK (by_name <> ''),
    second_name    text NOT NULL,
    reason         text NOT NULL CHECK (reason <> ''),
    posted_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (posting_period > charge_period)
);

-- What is below the materiality is carried forward: kept with its batch, posted by a later
-- one.
CREATE TABLE gpuledger.adjustment (
    batch_id          bigint NOT NULL REFERENCES gpuledger.adjustment_batch,
    posted            boolean NOT NULL,
    entry             text NOT NULL CHECK (entry IN ('delta', 'reversal', 'new')),
    charge_day        date NOT NULL,
    currency          text NOT NULL,
    source_id         int NOT NULL REFERENCES gpuledger.source,
    payer             text NOT NULL,
    account           text NOT NULL,
    provider          text NOT NULL,
    billing_period    date NOT NULL,
    category          text NOT NULL,
    moved_by          text,
    target_id         bigint,
    owner_id          int NOT NULL,
    model_id          int NOT NULL,
    mode              text NOT NULL,
    node_id           int,
    node_pool         text,
    billed_cost       numeric NOT NULL,
    effective_cost    numeric NOT NULL,
    list_cost         numeric NOT NULL,
    contracted_cost   numeric NOT NULL,
    gpu_hours         numeric NOT NULL,
    used_byte_seconds numeric NOT NULL,
    held_byte_seconds numeric NOT NULL
);
CREATE INDEX adjustment_batch_index ON gpuledger.adjustment (batch_id);

-- Nothing is posted in a month that is closed, and no month is opened again of which a
-- closed one holds adjustments: they would be charged twice or vanish from it.
-- +goose StatementBegin
CREATE FUNCTION gpuledger.guard_posting() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM gpuledger.period p JOIN gpuledger.adjustment_batch b ON b.posting_period = p.period JOIN added n ON n.batch_id = b.id WHERE p.state = 'closed';
    IF FOUND THEN
        RAISE EXCEPTION 'the month that an adjustment is posted in is closed' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION gpuledger.guard_reopening() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    other date;
BEGIN
    SELECT p.period INTO other FROM gpuledger.adjustment_batch b JOIN gpuledger.period p ON p.period = b.posting_period
        WHERE b.charge_period = OLD.period AND b.closed_run_id = OLD.run_id AND p.state = 'closed' ORDER BY 1 DESC LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% is adjusted in %, which is closed; reopen % first', to_char(OLD.period, 'YYYY-MM'), to_char(other, 'YYYY-MM'), to_char(other, 'YYYY-MM') USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER posting AFTER INSERT ON gpuledger.adjustment REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION gpuledger.guard_posting();
CREATE TRIGGER reopening BEFORE UPDATE OF state ON gpuledger.period FOR EACH ROW WHEN (OLD.state = 'closed' AND NEW.state <> 'closed') EXECUTE FUNCTION gpuledger.guard_reopening();
CREATE TRIGGER kept BEFORE UPDATE OR DELETE OR TRUNCATE ON gpuledger.adjustment_batch FOR EACH STATEMENT EXECUTE FUNCTION gpuledger.refuse();
CREATE TRIGGER kept BEFORE UPDATE OR DELETE OR TRUNCATE ON gpuledger.adjustment FOR EACH STATEMENT EXECUTE FUNCTION gpuledger.refuse();

-- +goose Down
DROP TRIGGER reopening ON gpuledger.period;
DROP TABLE gpuledger.adjustment, gpuledger.adjustment_batch;
DROP FUNCTION gpuledger.guard_posting(), gpuledger.guard_reopening();
ALTER TABLE gpuledger.run DROP COLUMN kind;
