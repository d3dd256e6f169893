-- What people call from psql and other clients. Every function runs with the rights of its caller (SECURITY INVOKER): it
-- writes a request, which the trigger lets pass only if the caller owns the table. Workers do the rest.

CREATE TABLE IF NOT EXISTS lapse_ttl.lapse_request (
    request_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    command      text NOT NULL,
    relation     oid NOT NULL,
    arguments    jsonb NOT NULL DEFAULT '{}' CHECK (pg_column_size(arguments) < 16384),
    requested_by oid NOT NULL,
    requested_at timestamptz NOT NULL,
    state        text NOT NULL DEFAULT 'waiting',
    claimed_at   timestamptz,
    finished_at  timestamptz,
    answer       text
);

ALTER TABLE lapse_ttl.lapse_request DROP CONSTRAINT IF EXISTS lapse_request_command_check;
ALTER TABLE lapse_ttl.lapse_request ADD CONSTRAINT lapse_request_command_check CHECK (command IN
    ('set_ttl', 'reset_ttl', 'run', 'pause', 'resume', 'preview', 'hold', 'release'));

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

-- Entries of the ledger are added under the name of the session that adds them, sealed once and never changed; the
-- catalog's owner alone can remove old ones. The triggers are not ALWAYS: a logical replica gets entries as they are, and
-- only a superuser can make a session pass for one.
CREATE OR REPLACE FUNCTION lapse_ttl.keep_ledger() RETURNS trigger
LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        NEW.role_name := left(CASE WHEN session_user = current_user THEN current_user::text
                                   ELSE format('%s as %s', session_user, current_user) END, 255);
        NEW.sequence := NULL;
        NEW.previous := NULL;
        NEW.hash := NULL;
        RETURN NEW;
    END IF;
    IF TG_OP = 'UPDATE' THEN
        IF OLD.sequence IS NULL AND NEW.sequence IS NOT NULL
           AND (NEW.entry_id, NEW.recorded_at, NEW.kind, NEW.schema_name, NEW.table_name, NEW.role_name, NEW.user_name,
                NEW.host, NEW.program, NEW.before_json, NEW.after_json)
               IS NOT DISTINCT FROM
               (OLD.entry_id, OLD.recorded_at, OLD.kind, OLD.schema_name, OLD.table_name, OLD.role_name, OLD.user_name,
                OLD.host, OLD.program, OLD.before_json, OLD.after_json) THEN
            RETURN NEW;
        END IF;
        RAISE EXCEPTION 'permission denied: an entry of lapse_ledger is never changed'
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF pg_has_role(current_user, (SELECT c.relowner FROM pg_class c WHERE c.oid = TG_RELID), 'USAGE') THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'permission denied: the owner of lapse_ledger alone removes old entries'
        USING ERRCODE = 'insufficient_privilege';
END $$;

DROP TRIGGER IF EXISTS keep_ledger ON lapse_ttl.lapse_ledger;
CREATE TRIGGER keep_ledger BEFORE INSERT OR UPDATE OR DELETE ON lapse_ttl.lapse_ledger
    FOR EACH ROW EXECUTE FUNCTION lapse_ttl.keep_ledger();
DROP TRIGGER IF EXISTS keep_whole_ledger ON lapse_ttl.lapse_ledger;
CREATE TRIGGER keep_whole_ledger BEFORE TRUNCATE ON lapse_ttl.lapse_ledger
    FOR EACH STATEMENT EXECUTE FUNCTION lapse_ttl.keep_ledger();

-- The same for the keys of deleted rows, which entries of the ledger are about.
CREATE OR REPLACE FUNCTION lapse_ttl.keep_keys() RETURNS trigger
LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'DELETE' AND pg_has_role(current_user, (SELECT c.relowner FROM pg_class c WHERE c.oid = TG_RELID), 'USAGE')
    THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'permission denied: keys in lapse_ledger_key are never changed, and its owner alone removes old ones'
        USING ERRCODE = 'insufficient_privilege';
END $$;

DROP TRIGGER IF EXISTS keep_keys ON lapse_ttl.lapse_ledger_key;
CREATE TRIGGER keep_keys BEFORE UPDATE OR DELETE OR TRUNCATE ON lapse_ttl.lapse_ledger_key
    FOR EACH STATEMENT EXECUTE FUNCTION lapse_ttl.keep_keys();

CREATE OR REPLACE FUNCTION lapse_ttl.hold(table_name regclass, condition text DEFAULT NULL, until timestamptz DEFAULT NULL, reason text DEFAULT NULL)
RETURNS text LANGUAGE plpgsql SECURITY INVOKER
SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $$
BEGIN
    INSERT INTO lapse_ttl.lapse_request (command, relation, arguments) VALUES ('hold', table_name,
        jsonb_strip_nulls(jsonb_build_object('where', condition, 'until', until, 'reason', reason)));
    RETURN format('not held yet: the next worker holds rows of %s, and SELECT * FROM lapse_ttl.holds shows since when', table_name);
END $$;
COMMENT ON FUNCTION lapse_ttl.hold(regclass, text, timestamptz, text) IS
    'Asks that rows which match the condition (NULL: all) stay, until a time or until release. They are held once lapse_ttl.holds says so; until then they may still be deleted. For the owner of the table; a worker does it.';

CREATE OR REPLACE FUNCTION lapse_ttl.release(hold_id bigint)
RETURNS text LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held regclass;
BEGIN
    SELECT to_regclass(h.table_name) INTO held FROM lapse_ttl.holds h WHERE h.hold_id = release.hold_id AND h.state = 'held';
    IF held IS NULL THEN
        RAISE EXCEPTION 'there is no hold % on a table of yours', hold_id USING ERRCODE = 'undefined_object';
    END IF;
    INSERT INTO lapse_ttl.lapse_request (command, relation, arguments) VALUES ('release', held, jsonb_build_object('hold', hold_id));
    RETURN format('the next worker ends hold %s on %s: SELECT * FROM lapse_ttl.holds', hold_id, held);
END $$;
COMMENT ON FUNCTION lapse_ttl.release(bigint) IS
    'Ends a hold: rows that have expired go with the next job. For the owner of the table; a worker does it.';

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

CREATE OR REPLACE VIEW lapse_ttl.holds WITH (security_barrier) AS
    SELECT h.hold_id, format('%I.%I', h.schema_name, h.table_name) AS table_name, h.expression AS condition,
           to_char(h.until_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS until, h.reason,
           CASE WHEN h.released_at IS NOT NULL THEN 'released'
                WHEN h.until_at <= clock_timestamp() THEN 'ended' ELSE 'held' END AS state,
           h.placed_at AS held_since, h.placed_by AS asked_by, h.released_at
      FROM lapse_ttl.lapse_hold h
     WHERE EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                    WHERE n.nspname = h.schema_name AND c.relname = h.table_name
                      AND pg_has_role(current_user, c.relowner, 'USAGE'))
        OR has_table_privilege(current_user, 'lapse_ttl.lapse_hold', 'SELECT')
     UNION ALL
    SELECT NULL, coalesce((SELECT format('%I.%I', n.nspname, c.relname)
                             FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = r.relation),
                          r.relation::text),
           r.arguments ->> 'where', r.arguments ->> 'until', r.arguments ->> 'reason', 'requested', NULL,
           pg_get_userbyid(r.requested_by)::varchar, NULL
      FROM lapse_ttl.lapse_request r
     WHERE r.command = 'hold' AND r.state IN ('waiting', 'working')
       AND (pg_has_role(current_user, r.requested_by, 'USAGE')
            OR has_table_privilege(current_user, 'lapse_ttl.lapse_hold', 'SELECT'))
     ORDER BY 7 DESC NULLS FIRST;
COMMENT ON VIEW lapse_ttl.holds IS
    'Rows of your tables that stay whatever expires: requested (not held yet), held (since when), ended or released.';

GRANT SELECT ON lapse_ttl.requests, lapse_ttl.status, lapse_ttl.jobs, lapse_ttl.history, lapse_ttl.holds TO PUBLIC;
