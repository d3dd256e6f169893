-- What people call from psql and other clients. Every function runs with the rights of its caller (SECURITY INVOKER): it
-- writes a request, which the trigger lets pass only if the caller owns the table. Workers do the rest.

CREATE TABLE IF NOT EXISTS lapse_ttl.lapse_request (
    request_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    command      text NOT NULL CHECK (command IN ('set_ttl', 'reset_ttl', 'run', 'pause', 'resume', 'preview')),
    relation     oid NOT NULL,
    arguments    jsonb NOT NULL DEFAULT '{}' CHECK (pg_column_size(arguments) < 16384),
    requested_by oid NOT NULL,
    requested_at timestamptz NOT NULL,
    state        text NOT NULL DEFAULT 'waiting',
    claimed_at   timestamptz,
    finished_at  timestamptz,
    answer       text
);

CREATE OR REPLACE FUNCTION lapse_ttl.check_request() RETURNS trigger
LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tab record;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        -- Workers say what became of a request; nobody says something else in another role's name.
        IF (NEW.request_id, NEW.command, NEW.relation, NEW.arguments, NEW.requested_by, NEW.requested_at)
           IS DISTINCT FROM (OLD.request_id, OLD.command, OLD.relation, OLD.arguments, OLD.requested_by, OLD.requested_at)
           OR OLD.state NOT IN ('waiting', 'working') THEN
            RAISE EXCEPTION 'a request is never changed' USING ERRCODE = 'insufficient_privilege';
        END IF;
        RETURN NEW;
    END IF;
    SELECT c.relowner, c.relkind, n.nspname INTO tab
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = NEW.relation;
    IF NOT FOUND OR tab.relkind NOT IN ('r', 'p') OR tab.nspname IN ('pg_catalog', 'information_schema', 'lapse_ttl')
    THEN
        RAISE EXCEPTION 'there can be no TTL on %', NEW.relation::regclass USING ERRCODE = 'wrong_object_type';
    END IF;
    -- Not session_user: what runs on behalf of another role has the rights of that role alone.
    IF NOT pg_has_role(current_user, tab.relowner, 'USAGE') THEN
        RAISE EXCEPTION 'must be owner of table %', NEW.relation::regclass
            USING ERRCODE = 'insufficient_privilege', HINT = 'its owner is ' || pg_get_userbyid(tab.relowner);
    END IF;
    NEW.requested_by := to_regrole(quote_ident(current_user));
    NEW.requested_at := clock_timestamp();
    NEW.state := 'waiting';
    RETURN NEW;
END $$;

DROP TRIGGER IF EXISTS check_request ON lapse_ttl.lapse_request;
CREATE TRIGGER check_request BEFORE INSERT OR UPDATE ON lapse_ttl.lapse_request
    FOR EACH ROW EXECUTE FUNCTION lapse_ttl.check_request();
ALTER TABLE lapse_ttl.lapse_request ENABLE ALWAYS TRIGGER check_request;
GRANT INSERT (command, relation, arguments) ON lapse_ttl.lapse_request TO PUBLIC;

CREATE OR REPLACE FUNCTION lapse_ttl.set_ttl(table_name regclass, column_name text, after interval, options jsonb DEFAULT '{}')
RETURNS text LANGUAGE plpgsql SECURITY INVOKER
SET search_path = pg_catalog, pg_temp SET intervalstyle = 'iso_8601' AS $$
BEGIN
    IF column_name IS NOT NULL AND NOT EXISTS (
        SELECT FROM pg_attribute a
         WHERE a.attrelid = table_name AND a.attname = column_name AND a.attnum > 0 AND NOT a.attisdropped) THEN
        RAISE EXCEPTION 'table % has no column "%"', table_name, column_name USING ERRCODE = 'undefined_column';
    END IF;
    INSERT INTO lapse_ttl.lapse_request (command, relation, arguments) VALUES ('set_ttl', table_name,
        jsonb_strip_nulls(jsonb_build_object('column', column_name, 'after', after::text, 'options', options)));
    RETURN format('the next worker sets the TTL of %s: SELECT * FROM lapse_ttl.requests', table_name);
END $$;
COMMENT ON FUNCTION lapse_ttl.set_ttl(regclass, text, interval, jsonb) IS
    'Rows expire so long after the time in this column. Options are storage parameters: ''{"ttl_job_cron": "@daily"}''. For the owner of the table; a worker does it.';

CREATE OR REPLACE FUNCTION lapse_ttl.set_ttl(table_name regclass, after interval)
RETURNS text LANGUAGE sql SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
    SELECT lapse_ttl.set_ttl(table_name, NULL::text, after)
$$;
COMMENT ON FUNCTION lapse_ttl.set_ttl(regclass, interval) IS
    'Rows expire so long after their last insert or update, by a column that Lapse adds. For the owner of the table; a worker does it.';

CREATE OR REPLACE FUNCTION lapse_ttl.reset_ttl(table_name regclass)
RETURNS text LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO lapse_ttl.lapse_request (command, relation) VALUES ('reset_ttl', table_name);
    RETURN format('the next worker removes the TTL of %s: SELECT * FROM lapse_ttl.requests', table_name);
END $$;
COMMENT ON FUNCTION lapse_ttl.reset_ttl(regclass) IS
    'Removes the TTL of the table, with everything that Lapse has added to it. For the owner of the table; a worker does it.';

CREATE OR REPLACE FUNCTION lapse_ttl.run(table_name regclass)
RETURNS text LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO lapse_ttl.lapse_request (command, relation) VALUES ('run', table_name);
    RETURN format('the next worker deletes expired rows of %s: SELECT * FROM lapse_ttl.jobs', table_name);
END $$;
COMMENT ON FUNCTION lapse_ttl.run(regclass) IS
    'Makes the table due now, in spite of its schedule and its grace period. For the owner of the table; a worker does it.';

CREATE OR REPLACE FUNCTION lapse_ttl.pause(table_name regclass)
RETURNS text LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO lapse_ttl.lapse_request (command, relation) VALUES ('pause', table_name);
    RETURN format('the next worker pauses the TTL of %s: SELECT * FROM lapse_ttl.requests', table_name);
END $$;
COMMENT ON FUNCTION lapse_ttl.pause(regclass) IS
    'Stops deleting from the table until resume. For the owner of the table; a worker does it.';

CREATE OR REPLACE FUNCTION lapse_ttl.resume(table_name regclass)
RETURNS text LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO lapse_ttl.lapse_request (command, relation) VALUES ('resume', table_name);
    RETURN format('the next worker resumes the TTL of %s: SELECT * FROM lapse_ttl.requests', table_name);
END $$;
COMMENT ON FUNCTION lapse_ttl.resume(regclass) IS
    'Goes on deleting: after a pause, after a first run that waits for confirmation, or on a table that was changed. For the owner of the table; a worker does it.';

CREATE OR REPLACE FUNCTION lapse_ttl.preview(table_name regclass, column_name text DEFAULT NULL, after interval DEFAULT NULL)
RETURNS text LANGUAGE plpgsql SECURITY INVOKER
SET search_path = pg_catalog, pg_temp SET intervalstyle = 'iso_8601' AS $$
BEGIN
    INSERT INTO lapse_ttl.lapse_request (command, relation, arguments) VALUES ('preview', table_name,
        jsonb_strip_nulls(jsonb_build_object('column', column_name, 'after', after::text)));
    RETURN 'the next worker looks: SELECT answer FROM lapse_ttl.requests';
END $$;
COMMENT ON FUNCTION lapse_ttl.preview(regclass, text, interval) IS
    'What a run would delete by the policy of the table, or by a column and a duration before they are declared. Changes nothing. For the owner of the table; a worker answers.';

CREATE OR REPLACE VIEW lapse_ttl.requests WITH (security_barrier) AS
    SELECT r.request_id, r.command, r.relation::regclass AS table_name, r.arguments,
           pg_get_userbyid(r.requested_by) AS requested_by, r.requested_at, r.state, r.finished_at, r.answer
      FROM lapse_ttl.lapse_request r
     WHERE pg_has_role(current_user, r.requested_by, 'USAGE')
        OR has_table_privilege(current_user, 'lapse_ttl.lapse_policy', 'SELECT')
     ORDER BY r.request_id DESC;
COMMENT ON VIEW lapse_ttl.requests IS
    'What you have asked for by lapse_ttl.set_ttl and the other functions, newest first: waiting, done or refused, with the answer.';

CREATE OR REPLACE VIEW lapse_ttl.status WITH (security_barrier) AS
    SELECT CASE WHEN t.partition_name = '' THEN format('%I.%I', p.schema_name, p.table_name)
                ELSE format('%I.%I[%s]', p.schema_name, p.table_name, t.partition_name) END AS table_name,
           p.reloptions AS parameters, p.recurrence AS schedule, p.paused, t.blocked,
           coalesce(p.held, t.trouble) AS reason, p.grace_until, t.next_run_at,
           (SELECT max(j.finished_at) FROM lapse_ttl.lapse_job j
             WHERE j.table_id = t.table_id AND j.status = 'finished') AS last_finished_at,
           (SELECT count(*) FROM lapse_ttl.lapse_worker w
             WHERE w.heartbeat_at > clock_timestamp() - interval '1 minute') AS workers
      FROM lapse_ttl.lapse_policy p JOIN lapse_ttl.lapse_table t ON t.policy_id = p.policy_id
     WHERE EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                    WHERE n.nspname = p.schema_name AND c.relname = p.table_name
                      AND pg_has_role(current_user, c.relowner, 'USAGE'))
        OR has_table_privilege(current_user, 'lapse_ttl.lapse_policy', 'SELECT')
     ORDER BY 1;
COMMENT ON VIEW lapse_ttl.status IS
    'The TTL of your tables as stored: parameters, schedule, what blocks it, when it is due. `lapse status` also judges whether each keeps its promise.';

CREATE OR REPLACE VIEW lapse_ttl.jobs WITH (security_barrier) AS
    SELECT j.job_id, format('%I.%I', j.schema_name, j.table_name) AS table_name, j.partition_name, j.status, j.reason,
           j.cutoff, j.created_at, j.started_at,
           (SELECT coalesce(sum(k.deleted), 0) FROM lapse_ttl.lapse_task k WHERE k.job_id = j.job_id) AS deleted
      FROM lapse_ttl.lapse_job j
     WHERE j.active_table_id IS NOT NULL
       AND (EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                     WHERE n.nspname = j.schema_name AND c.relname = j.table_name
                       AND pg_has_role(current_user, c.relowner, 'USAGE'))
            OR has_table_privilege(current_user, 'lapse_ttl.lapse_job', 'SELECT'))
     ORDER BY j.job_id;
COMMENT ON VIEW lapse_ttl.jobs IS 'The jobs that delete from your tables now.';

CREATE OR REPLACE VIEW lapse_ttl.history WITH (security_barrier) AS
    SELECT j.job_id, format('%I.%I', j.schema_name, j.table_name) AS table_name, j.partition_name, j.status, j.reason,
           j.cutoff, j.created_at, j.finished_at, j.deleted, j.held
      FROM lapse_ttl.lapse_job j
     WHERE j.active_table_id IS NULL
       AND (EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                     WHERE n.nspname = j.schema_name AND c.relname = j.table_name
                       AND pg_has_role(current_user, c.relowner, 'USAGE'))
            OR has_table_privilege(current_user, 'lapse_ttl.lapse_job', 'SELECT'))
     ORDER BY j.job_id DESC;
COMMENT ON VIEW lapse_ttl.history IS 'The jobs that have deleted from your tables, newest first.';

GRANT SELECT ON lapse_ttl.requests, lapse_ttl.status, lapse_ttl.jobs, lapse_ttl.history TO PUBLIC;
