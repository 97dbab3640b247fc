-- Closing: what was closed can't be written, who did what is logged for ever, and three
-- roles may do no more than their work needs.
-- +goose Up
-- What happened, in order. Each entry hashes the one before it.
CREATE TABLE gpuledger.audit_log (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL,
    actor   text NOT NULL,
    db_user text NOT NULL,
    action  text NOT NULL,
    period  date,
    run_id  text,
    detail  jsonb NOT NULL,
    prev    bytea NOT NULL,
    sha256  bytea NOT NULL UNIQUE
);

-- Every closing and reopening of a month, with what stood against it.
CREATE TABLE gpuledger.period_event (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    period       date NOT NULL REFERENCES gpuledger.period,
    action       text NOT NULL CHECK (action IN ('closed', 'reopened')),
    run_id       text NOT NULL REFERENCES gpuledger.run,
    facts_sha256 bytea NOT NULL,
    gates        jsonb NOT NULL,
    forced       boolean NOT NULL,
    by_name      text NOT NULL CHECK (by_name <> ''),
    second_name  text NOT NULL,
    reason       text NOT NULL,
    at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (NOT forced OR reason <> '' AND second_name <> '' AND second_name <> by_name),
    CHECK (action <> 'reopened' OR reason <> '' AND second_name <> '' AND second_name <> by_name)
);

-- +goose StatementBegin
CREATE FUNCTION gpuledger.log(actor text, action text, month date, run text, detail jsonb) RETURNS bytea
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    before bytea;
    now_at timestamptz := clock_timestamp();
    sum bytea;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('gpuledger log'));
    SELECT l.sha256 INTO before FROM gpuledger.audit_log l ORDER BY l.id DESC LIMIT 1;
    before := coalesce(before, '\x');
    sum := sha256(convert_to(concat_ws(E'\x1f', encode(before, 'hex'), to_char(now_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), actor, session_user, action,
        coalesce(month::text, ''), coalesce(run, ''), detail::text), 'UTF8'));
    INSERT INTO gpuledger.audit_log (at, actor, db_user, action, period, run_id, detail, prev, sha256)
        VALUES (now_at, actor, session_user, action, month, run, detail, before, sum);
    RETURN sum;
END
$$;

CREATE FUNCTION gpuledger.refuse() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of gpuledger.% is refused: it is kept for ever', TG_OP, TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END
$$;

CREATE FUNCTION gpuledger.refuse_closed() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is closed: % of gpuledger.% is refused; gpuledger adjust posts what changes, gpuledger reopen opens the month', TG_ARGV[0], TG_OP, TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END
$$;

-- A closed month shows the run that was closed, until it is reopened.
CREATE FUNCTION gpuledger.guard_period() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state = 'closed' AND (TG_OP = 'DELETE' OR NEW.period <> OLD.period OR NEW.run_id IS DISTINCT FROM OLD.run_id) THEN
        RAISE EXCEPTION '% is closed: % of its run is refused; gpuledger adjust posts what changes, gpuledger reopen opens the month', to_char(OLD.period, 'YYYY-MM'), TG_OP USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END
$$;

CREATE FUNCTION gpuledger.close_period(month date, run text, facts bytea, gates jsonb, forced boolean, by_name text, second_name text, reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    p gpuledger.period;
    part text := 'allocation_' || to_char(month, 'YYYYMM');
BEGIN
    SELECT * INTO p FROM gpuledger.period x WHERE x.period = month FOR UPDATE;
    IF p.state IS NULL OR p.state = 'closed' OR p.run_id IS DISTINCT FROM run THEN
        RAISE EXCEPTION '% is % with run %, not open with run %', to_char(month, 'YYYY-MM'), coalesce(p.state, 'unknown'), coalesce(p.run_id, '-'), run USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    INSERT INTO gpuledger.period_event (period, action, run_id, facts_sha256, gates, forced, by_name, second_name, reason)
        VALUES (month, 'closed', run, facts, gates, forced, by_name, second_name, reason);
    UPDATE gpuledger.period SET state = 'closed', updated_at = now() WHERE period = month;
    EXECUTE format('CREATE TRIGGER closed_row BEFORE INSERT OR UPDATE OR DELETE ON gpuledger.%I FOR EACH ROW EXECUTE FUNCTION gpuledger.refuse_closed(%L)', part, to_char(month, 'YYYY-MM'));
    EXECUTE format('CREATE TRIGGER closed_truncate BEFORE TRUNCATE ON gpuledger.%I FOR EACH STATEMENT EXECUTE FUNCTION gpuledger.refuse_closed(%L)', part, to_char(month, 'YYYY-MM'));
    PERFORM gpuledger.log(by_name, CASE WHEN forced THEN 'forced closing' ELSE 'closed' END, month, run,
        jsonb_build_object('gates', gates, 'second', second_name, 'reason', reason, 'facts_sha256', encode(facts, 'hex')));
END
$$;

CREATE FUNCTION gpuledger.reopen_period(month date, by_name text, second_name text, reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    p gpuledger.period;
    part text := 'allocation_' || to_char(month, 'YYYYMM');
BEGIN
    SELECT * INTO p FROM gpuledger.period x WHERE x.period = month FOR UPDATE;
    IF p.state IS DISTINCT FROM 'closed' THEN
        RAISE EXCEPTION '% is not closed', to_char(month, 'YYYY-MM') USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    INSERT INTO gpuledger.period_event (period, action, run_id, facts_sha256, gates, forced, by_name, second_name, reason)
        SELECT month, 'reopened', p.run_id, e.facts_sha256, '[]', false, reopen_period.by_name, reopen_period.second_name, reopen_period.reason
        FROM gpuledger.period_event e WHERE e.period = month AND e.action = 'closed' ORDER BY e.id DESC LIMIT 1;
    UPDATE gpuledger.period SET state = 'reopened', updated_at = now() WHERE period = month;
    EXECUTE format('DROP TRIGGER IF EXISTS closed_row ON gpuledger.%I', part);
    EXECUTE format('DROP TRIGGER IF EXISTS closed_truncate ON gpuledger.%I', part);
    PERFORM gpuledger.log(by_name, 'reopened', month, p.run_id, jsonb_build_object('second', second_name, 'reason', reason));
END
$$;

-- The roles' rights. Where roles can't be made, as on some managed servers, they are left
-- out, and so are their rights; who owns the database makes them and runs migrate up again.
CREATE FUNCTION gpuledger.grant_roles() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    r text;
    t text;
    kept text[] := ARRAY['run', 'run_unit', 'run_delivery', 'document', 'owner', 'allocation', 'pod_day', 'workload_day', 'unit_total', 'unit_node_hour'];
BEGIN
    FOREACH r IN ARRAY ARRAY['gpuledger_reader', 'gpuledger_writer', 'gpuledger_closer'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = r) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', r);
            EXCEPTION WHEN insufficient_privilege OR duplicate_object OR unique_violation THEN
                RAISE NOTICE 'role % is not made: %', r, SQLERRM;
            END;
        END IF;
        CONTINUE WHEN NOT EXISTS (SELECT FROM pg_roles WHERE rolname = r);
        BEGIN
            EXECUTE format('GRANT USAGE ON SCHEMA finance TO %I', r);
            EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA finance TO %I', r);
            CONTINUE WHEN r = 'gpuledger_reader';
            EXECUTE format('GRANT USAGE ON SCHEMA gpuledger TO %I', r);
            IF to_regclass('public.gpuledger_migration') IS NOT NULL THEN
                EXECUTE format('GRANT SELECT ON public.gpuledger_migration TO %I', r);
            END IF;
            FOR t IN SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'gpuledger'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition LOOP
                EXECUTE format('GRANT SELECT ON gpuledger.%I TO %I', t, r);
                CONTINUE WHEN r <> 'gpuledger_writer' OR t IN ('audit_log', 'period_event');
                EXECUTE format(CASE
                    WHEN t = 'period' THEN 'GRANT INSERT, UPDATE (run_id, updated_at) ON gpuledger.%I TO %I'
                    WHEN t = ANY (kept) THEN 'GRANT INSERT ON gpuledger.%I TO %I'
                    ELSE 'GRANT INSERT, UPDATE, DELETE ON gpuledger.%I TO %I' END, t, r);
            END LOOP;
            EXECUTE format('GRANT EXECUTE ON FUNCTION gpuledger.log(text, text, date, text, jsonb) TO %I', r);
            IF r = 'gpuledger_writer' THEN
                EXECUTE 'GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA gpuledger TO gpuledger_writer';
                EXECUTE 'GRANT EXECUTE ON FUNCTION gpuledger.ensure_month(text, date) TO gpuledger_writer';
            ELSE
                EXECUTE 'GRANT INSERT, UPDATE, DELETE ON gpuledger.work_lock TO gpuledger_closer';
                EXECUTE 'GRANT EXECUTE ON FUNCTION gpuledger.close_period(date, text, bytea, jsonb, boolean, text, text, text) TO gpuledger_closer';
                EXECUTE 'GRANT EXECUTE ON FUNCTION gpuledger.reopen_period(date, text, text, text) TO gpuledger_closer';
            END IF;
        EXCEPTION WHEN insufficient_privilege THEN
            RAISE NOTICE 'rights of % are not granted: %', r, SQLERRM;
        END;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- Partitions are made by their owner, whoever asks.
ALTER FUNCTION gpuledger.ensure_month(text, date) SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
REVOKE ALL ON FUNCTION gpuledger.ensure_month(text, date) FROM PUBLIC;
REVOKE ALL ON FUNCTION gpuledger.log(text, text, date, text, jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION gpuledger.close_period(date, text, bytea, jsonb, boolean, text, text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION gpuledger.reopen_period(date, text, text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION gpuledger.grant_roles() FROM PUBLIC;

CREATE TRIGGER guard BEFORE UPDATE OR DELETE ON gpuledger.period FOR EACH ROW EXECUTE FUNCTION gpuledger.guard_period();
CREATE TRIGGER kept BEFORE UPDATE OR DELETE OR TRUNCATE ON gpuledger.audit_log FOR EACH STATEMENT EXECUTE FUNCTION gpuledger.refuse();
CREATE TRIGGER kept BEFORE UPDATE OR DELETE OR TRUNCATE ON gpuledger.period_event FOR EACH STATEMENT EXECUTE FUNCTION gpuledger.refuse();
CREATE TRIGGER kept BEFORE UPDATE OR DELETE OR TRUNCATE ON gpuledger.run FOR EACH STATEMENT EXECUTE FUNCTION gpuledger.refuse();
CREATE TRIGGER kept BEFORE UPDATE OR DELETE OR TRUNCATE ON gpuledger.run_unit FOR EACH STATEMENT EXECUTE FUNCTION gpuledger.refuse();
CREATE TRIGGER kept BEFORE UPDATE OR DELETE OR TRUNCATE ON gpuledger.run_delivery FOR EACH STATEMENT EXECUTE FUNCTION gpuledger.refuse();
CREATE TRIGGER kept BEFORE UPDATE OR DELETE OR TRUNCATE ON gpuledger.document FOR EACH STATEMENT EXECUTE FUNCTION gpuledger.refuse();

-- +goose Down
DROP TRIGGER kept ON gpuledger.document;
DROP TRIGGER kept ON gpuledger.run_delivery;
DROP TRIGGER kept ON gpuledger.run_unit;
DROP TRIGGER kept ON gpuledger.run;
DROP TRIGGER guard ON gpuledger.period;
ALTER FUNCTION gpuledger.ensure_month(text, date) SECURITY INVOKER RESET search_path;
GRANT EXECUTE ON FUNCTION gpuledger.ensure_month(text, date) TO PUBLIC;
-- +goose StatementBegin
DO $$
DECLARE
    t text;
    r text;
BEGIN
    FOR t IN SELECT c.relname FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid WHERE g.tgname = 'closed_row' AND c.relnamespace = 'gpuledger'::regnamespace LOOP
        EXECUTE format('DROP TRIGGER closed_row ON gpuledger.%I', t);
        EXECUTE format('DROP TRIGGER IF EXISTS closed_truncate ON gpuledger.%I', t);
    END LOOP;
    -- The roles stay: other databases of the server may use them.
    FOREACH r IN ARRAY ARRAY['gpuledger_reader', 'gpuledger_writer', 'gpuledger_closer'] LOOP
        IF EXISTS (SELECT FROM pg_roles WHERE rolname = r) THEN
            EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA gpuledger FROM %I', r);
            EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA gpuledger FROM %I', r);
            EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA gpuledger FROM %I', r);
            EXECUTE format('REVOKE ALL ON SCHEMA gpuledger FROM %I', r);
        END IF;
    END LOOP;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE NOTICE 'rights are not taken back: %', SQLERRM;
END
$$;
-- +goose StatementEnd
DROP FUNCTION gpuledger.grant_roles(), gpuledger.reopen_period(date, text, text, text),
    gpuledger.close_period(date, text, bytea, jsonb, boolean, text, text, text), gpuledger.log(text, text, date, text, jsonb), gpuledger.guard_period();
DROP TABLE gpuledger.period_event, gpuledger.audit_log;
DROP FUNCTION gpuledger.refuse_closed(), gpuledger.refuse();
