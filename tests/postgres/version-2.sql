SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
CREATE SCHEMA attic;
CREATE SCHEMA lapse;
CREATE FUNCTION lapse.stamp_expiration() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    stamp timestamptz;
BEGIN
    IF TG_NARGS = 1 THEN
        NEW."crdb_internal_expiration" := now() + TG_ARGV[0]::interval;
        RETURN NEW;
    END IF;
    stamp := timezone('UTC', timezone('UTC', now()) + TG_ARGV[0]::interval);
    FOR i IN 1 .. TG_NARGS - 1 BY 2 LOOP
        IF TG_ARGV[i] = TG_TABLE_NAME THEN
            stamp := timezone('UTC', timezone('UTC', now()) + TG_ARGV[i + 1]::interval);
        END IF;
    END LOOP;
    IF TG_OP = 'INSERT' OR NEW."crdb_internal_expiration" < stamp THEN
        NEW."crdb_internal_expiration" := stamp;
    END IF;
    RETURN NEW;
END
$$;
SET default_tablespace = '';
CREATE TABLE public.readings (
    id integer,
    at timestamp with time zone NOT NULL
)
PARTITION BY RANGE (at);
SET default_table_access_method = heap;
CREATE TABLE attic.readings_2027 (
    id integer,
    at timestamp with time zone NOT NULL
);
CREATE TABLE lapse.lapse_job (
    job_id bigint NOT NULL,
    table_id bigint NOT NULL,
    active_table_id bigint,
    policy_id bigint NOT NULL,
    policy_version integer NOT NULL,
    schema_name character varying(255) NOT NULL,
    table_name character varying(255) NOT NULL,
    partition_name character varying(255) NOT NULL,
    cutoff timestamp with time zone NOT NULL,
    status character varying(64) NOT NULL,
    control character varying(64),
    reason text,
    path_kind character varying(64) NOT NULL,
    path_index character varying(255),
    path_evidence text NOT NULL,
    fingerprint text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    changed_at timestamp with time zone NOT NULL,
    owner_id character varying(255),
    tasks_total integer NOT NULL,
    behind double precision NOT NULL,
    selected bigint NOT NULL,
    deleted bigint NOT NULL,
    held bigint NOT NULL,
    skipped bigint NOT NULL,
    errors bigint NOT NULL,
    batches bigint NOT NULL,
    summary text
);
CREATE SEQUENCE lapse.lapse_job_job_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE lapse.lapse_job_job_id_seq OWNED BY lapse.lapse_job.job_id;
CREATE TABLE lapse.lapse_task (
    task_id bigint NOT NULL,
    job_id bigint NOT NULL,
    ordinal integer NOT NULL,
    range_start text,
    range_end text,
    "position" text,
    sweep integer NOT NULL,
    status character varying(64) NOT NULL,
    owner_id character varying(255),
    heartbeat_at timestamp with time zone,
    fence integer NOT NULL,
    selected bigint NOT NULL,
    deleted bigint NOT NULL,
    held bigint NOT NULL,
    skipped bigint NOT NULL,
    errors bigint NOT NULL,
    batches bigint NOT NULL,
    worked_seconds double precision NOT NULL,
    locked_seconds double precision NOT NULL,
    lasted_seconds double precision NOT NULL,
    waited_seconds double precision NOT NULL,
    pause_reason text,
    waits text,
    last_error text
);
CREATE VIEW lapse.lapse_jobs AS
 SELECT j.job_id,
    'ROW LEVEL TTL'::text AS job_type,
    ('ttl for '::text || (j.table_name)::text) AS description,
    j.status,
    j.reason AS running_status,
    j.created_at AS created,
    j.started_at AS started,
    j.finished_at AS finished,
        CASE
            WHEN ((j.finished_at IS NOT NULL) OR (j.tasks_total = 0)) THEN 1.0
            ELSE (((( SELECT count(*) AS count
               FROM lapse.lapse_task k
              WHERE ((k.job_id = j.job_id) AND ((k.status)::text = 'finished'::text))))::numeric * 1.0) / (j.tasks_total)::numeric)
        END AS fraction_completed,
    j.schema_name,
    j.table_name,
    j.partition_name,
    j.cutoff,
        CASE
            WHEN (j.finished_at IS NOT NULL) THEN (j.deleted)::numeric
            ELSE ( SELECT COALESCE(sum(k.deleted), (0)::numeric) AS "coalesce"
               FROM lapse.lapse_task k
              WHERE (k.job_id = j.job_id))
        END AS deleted
   FROM lapse.lapse_job j;
CREATE TABLE lapse.lapse_meta (
    name character varying(64) NOT NULL,
    value text NOT NULL
);
CREATE TABLE lapse.lapse_policy (
    policy_id bigint NOT NULL,
    schema_name character varying(255) NOT NULL,
    table_name character varying(255) NOT NULL,
    version integer NOT NULL,
    options text NOT NULL,
    reloptions text NOT NULL,
    recurrence character varying(255) NOT NULL,
    paused boolean NOT NULL,
    source character varying(64) NOT NULL,
    fingerprint text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    changed_at timestamp with time zone NOT NULL,
    cleared_at timestamp with time zone,
    held text
);
CREATE SEQUENCE lapse.lapse_policy_policy_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE lapse.lapse_policy_policy_id_seq OWNED BY lapse.lapse_policy.policy_id;
CREATE TABLE lapse.lapse_policy_version (
    policy_id bigint NOT NULL,
    version integer NOT NULL,
    options text NOT NULL,
    changed_at timestamp with time zone NOT NULL
);
CREATE TABLE lapse.lapse_rate (
    name character varying(255) NOT NULL,
    free_at_us bigint NOT NULL
);
CREATE VIEW lapse.lapse_reloptions AS
 SELECT p.table_name AS relname,
    p.reloptions
   FROM lapse.lapse_policy p;
CREATE TABLE lapse.lapse_table (
    table_id bigint NOT NULL,
    policy_id bigint NOT NULL,
    partition_name character varying(255) NOT NULL,
    next_run_at timestamp with time zone,
    statistics text,
    trouble text
);
CREATE VIEW lapse.lapse_schedules AS
 SELECT t.table_id AS id,
    ('row-level-ttl-'::text || (p.table_name)::text) AS label,
        CASE
            WHEN p.paused THEN 'PAUSED'::text
            ELSE 'ACTIVE'::text
        END AS schedule_status,
    t.next_run_at AS next_run,
    t.trouble AS state,
    p.recurrence,
    ( SELECT count(*) AS count
           FROM lapse.lapse_job j
          WHERE (j.active_table_id = t.table_id)) AS jobsrunning,
    p.created_at AS created,
    p.schema_name,
    p.table_name,
    t.partition_name
   FROM (lapse.lapse_table t
     JOIN lapse.lapse_policy p ON ((p.policy_id = t.policy_id)));
CREATE TABLE lapse.lapse_setting (
    name character varying(64) NOT NULL,
    value text NOT NULL,
    changed_at timestamp with time zone NOT NULL
);
CREATE TABLE lapse.lapse_worker (
    worker_id character varying(255) NOT NULL,
    address character varying(255) NOT NULL,
    version character varying(64) NOT NULL,
    started_at timestamp with time zone NOT NULL,
    heartbeat_at timestamp with time zone NOT NULL,
    state text NOT NULL
);
CREATE VIEW lapse.lapse_table_status AS
 SELECT t.table_id,
        CASE
            WHEN ((t.partition_name)::text = ''::text) THEN t.table_id
            ELSE t.policy_id
        END AS parent_table_id,
    t.statistics AS table_statistics,
    l.job_id AS last_job_id,
    l.created_at AS last_job_start_time,
    l.finished_at AS last_job_finish_time,
    l.cutoff AS last_job_ttl_expire,
    l.summary AS last_job_summary,
    c.job_id AS current_job_id,
    c.owner_id AS current_job_owner_id,
    w.address AS current_job_owner_addr,
    w.heartbeat_at AS current_job_owner_hb_time,
    c.created_at AS current_job_start_time,
    c.cutoff AS current_job_ttl_expire,
    c.reason AS current_job_state,
    c.status AS current_job_status,
    c.changed_at AS current_job_status_update_time
   FROM (((lapse.lapse_table t
     LEFT JOIN lapse.lapse_job l ON ((l.job_id = ( SELECT max(f.job_id) AS max
           FROM lapse.lapse_job f
          WHERE ((f.table_id = t.table_id) AND ((f.status)::text = 'finished'::text))))))
     LEFT JOIN lapse.lapse_job c ON ((c.job_id = ( SELECT max(g.job_id) AS max
           FROM lapse.lapse_job g
          WHERE ((g.table_id = t.table_id) AND ((g.status)::text <> 'finished'::text) AND (g.job_id > COALESCE(l.job_id, (0)::bigint)))))))
     LEFT JOIN lapse.lapse_worker w ON (((w.worker_id)::text = (c.owner_id)::text)));
CREATE SEQUENCE lapse.lapse_table_table_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE lapse.lapse_table_table_id_seq OWNED BY lapse.lapse_table.table_id;
CREATE SEQUENCE lapse.lapse_task_task_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE lapse.lapse_task_task_id_seq OWNED BY lapse.lapse_task.task_id;
CREATE TABLE public.events (
    id integer NOT NULL,
    at timestamp with time zone
);
CREATE TABLE public.invites (
    id integer NOT NULL,
    at timestamp with time zone
);
CREATE TABLE public.mails (
    id integer NOT NULL,
    sent boolean,
    at timestamp without time zone
);
CREATE TABLE public.notes (
    id integer NOT NULL,
    at timestamp with time zone
);
COMMENT ON TABLE public.notes IS 'ttl_duration=86400;ttl_col=at;';
CREATE TABLE public.readings_2021 (
    id integer,
    at timestamp with time zone NOT NULL
);
CREATE TABLE public.readings_2026 (
    id integer,
    at timestamp with time zone NOT NULL
);
CREATE TABLE public.sessions (
    id integer NOT NULL,
    who text,
    crdb_internal_expiration timestamp with time zone DEFAULT (now() + '01:00:00'::interval)
);
CREATE TABLE public.tokens (
    id integer NOT NULL,
    at timestamp with time zone
);
CREATE VIEW public.tokens_live WITH (security_invoker='true') AS
 SELECT tokens.id,
    tokens.at
   FROM public.tokens
  WHERE ((tokens.at <= now()) IS NOT TRUE);
COMMENT ON VIEW public.tokens_live IS 'made by Lapse';
CREATE TABLE public.visits (
    id integer,
    day date NOT NULL,
    seen timestamp with time zone
)
PARTITION BY RANGE (day);
COMMENT ON TABLE public.visits IS 'visits_a_ttl_duration=86400;visits_a_ttl_col=seen;';
CREATE TABLE public.visits_a (
    id integer,
    day date NOT NULL,
    seen timestamp with time zone
);
CREATE TABLE public.visits_b (
    id integer,
    day date NOT NULL,
    seen timestamp with time zone
);
ALTER TABLE ONLY public.readings ATTACH PARTITION attic.readings_2027 FOR VALUES FROM ('2027-01-01 00:00:00+00') TO ('2028-01-01 00:00:00+00');
ALTER TABLE ONLY public.readings ATTACH PARTITION public.readings_2021 FOR VALUES FROM ('2021-01-01 00:00:00+00') TO ('2022-01-01 00:00:00+00');
ALTER TABLE ONLY public.readings ATTACH PARTITION public.readings_2026 FOR VALUES FROM ('2026-01-01 00:00:00+00') TO ('2027-01-01 00:00:00+00');
ALTER TABLE ONLY public.visits ATTACH PARTITION public.visits_a FOR VALUES FROM ('2020-01-01') TO ('2021-01-01');
ALTER TABLE ONLY public.visits ATTACH PARTITION public.visits_b FOR VALUES FROM ('2021-01-01') TO ('2030-01-01');
ALTER TABLE ONLY lapse.lapse_job ALTER COLUMN job_id SET DEFAULT nextval('lapse.lapse_job_job_id_seq'::regclass);
ALTER TABLE ONLY lapse.lapse_policy ALTER COLUMN policy_id SET DEFAULT nextval('lapse.lapse_policy_policy_id_seq'::regclass);
ALTER TABLE ONLY lapse.lapse_table ALTER COLUMN table_id SET DEFAULT nextval('lapse.lapse_table_table_id_seq'::regclass);
ALTER TABLE ONLY lapse.lapse_task ALTER COLUMN task_id SET DEFAULT nextval('lapse.lapse_task_task_id_seq'::regclass);
INSERT INTO lapse.lapse_job VALUES (4, 9, NULL, 4, 1, 'public', 'readings', '"attic"."readings_2027"', '2026-03-15 12:00:00+00', 'finished', NULL, NULL, 'physical', NULL, 'heap blocks in order: no index on the expiry column', '29303f061af4b0c7', '2026-03-15 12:00:00+00', NULL, '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', 'worker-1', 0, 0, 0, 0, 0, 0, 0, 0, '{"total_rows": 0, "success_rows": 0, "error_rows": 0, "held_rows": 0, "skipped_rows": 0, "batches": 0, "total_scan_task": 0, "finished_scan_task": 0, "wall_seconds": 0.0, "task_seconds": 0.0, "select_seconds": 0.0, "delete_seconds": 0.0, "waited_seconds": 0.0, "other_seconds": 0.0, "waits": {}, "scan_task_err": ""}');
INSERT INTO lapse.lapse_job VALUES (10, 8, NULL, 8, 1, 'public', 'visits', 'visits_b', '2026-03-15 12:00:00+00', 'finished', NULL, NULL, 'physical', NULL, 'heap blocks in order: expiry is an expression', 'a683096011db3975', '2026-03-15 12:00:00+00', NULL, '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', 'worker-1', 0, 0, 0, 0, 0, 0, 0, 0, '{"total_rows": 0, "success_rows": 0, "error_rows": 0, "held_rows": 0, "skipped_rows": 0, "batches": 0, "total_scan_task": 0, "finished_scan_task": 0, "wall_seconds": 0.0, "task_seconds": 0.0, "select_seconds": 0.0, "delete_seconds": 0.0, "waited_seconds": 0.0, "other_seconds": 0.0, "waits": {}, "scan_task_err": ""}');
INSERT INTO lapse.lapse_job VALUES (8, 4, NULL, 5, 1, 'public', 'tokens', '', '2026-03-15 12:00:00+00', 'finished', NULL, NULL, 'physical', NULL, 'heap blocks in order: no index on the expiry column', 'a3975407d60f5649', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', 'worker-1', 1, 0, 1, 1, 0, 0, 0, 1, '{"total_rows": 1, "success_rows": 1, "error_rows": 0, "held_rows": 0, "skipped_rows": 0, "batches": 1, "total_scan_task": 1, "finished_scan_task": 1, "wall_seconds": 0.0, "task_seconds": 0.005, "select_seconds": 0.0, "delete_seconds": 0.002, "waited_seconds": 0.0, "other_seconds": 0.003, "waits": {}, "scan_task_err": ""}');
INSERT INTO lapse.lapse_job VALUES (2, 5, NULL, 6, 1, 'public', 'invites', '', '2026-03-15 12:00:00+00', 'finished', NULL, NULL, 'physical', NULL, 'heap blocks in order: no index on the expiry column', 'a3975407d60f5649', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', 'worker-1', 1, 0, 1, 1, 0, 0, 0, 1, '{"total_rows": 1, "success_rows": 1, "error_rows": 0, "held_rows": 0, "skipped_rows": 0, "batches": 1, "total_scan_task": 1, "finished_scan_task": 1, "wall_seconds": 0.0, "task_seconds": 0.006, "select_seconds": 0.0, "delete_seconds": 0.002, "waited_seconds": 0.0, "other_seconds": 0.004, "waits": {}, "scan_task_err": ""}');
INSERT INTO lapse.lapse_job VALUES (1, 2, NULL, 2, 1, 'public', 'events', '', '2026-03-15 12:00:00+00', 'finished', NULL, NULL, 'physical', NULL, 'heap blocks in order: no index on the expiry column', 'a3975407d60f5649', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', 'worker-1', 1, 0, 1, 1, 0, 0, 0, 1, '{"total_rows": 1, "success_rows": 1, "error_rows": 0, "held_rows": 0, "skipped_rows": 0, "batches": 1, "total_scan_task": 1, "finished_scan_task": 1, "wall_seconds": 0.0, "task_seconds": 0.008, "select_seconds": 0.0, "delete_seconds": 0.004, "waited_seconds": 0.0, "other_seconds": 0.004, "waits": {}, "scan_task_err": ""}');
INSERT INTO lapse.lapse_job VALUES (3, 6, NULL, 7, 1, 'public', 'notes', '', '2026-03-15 12:00:00+00', 'finished', NULL, NULL, 'physical', NULL, 'heap blocks in order: no index on the expiry column', 'a3975407d60f5649', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', 'worker-1', 1, 0, 1, 1, 0, 0, 0, 1, '{"total_rows": 1, "success_rows": 1, "error_rows": 0, "held_rows": 0, "skipped_rows": 0, "batches": 1, "total_scan_task": 1, "finished_scan_task": 1, "wall_seconds": 0.0, "task_seconds": 0.018, "select_seconds": 0.0, "delete_seconds": 0.002, "waited_seconds": 0.0, "other_seconds": 0.016, "waits": {}, "scan_task_err": ""}');
INSERT INTO lapse.lapse_job VALUES (5, 10, NULL, 4, 1, 'public', 'readings', 'readings_2020', '2026-03-15 12:00:00+00', 'finished', NULL, NULL, 'partition', NULL, 'every row of readings_2020 is older than TIMESTAMPTZ ''2026-03-01 12:00:00.000000+00''', '29303f061af4b0c7', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', 'worker-1', 1, 0, 1, 1, 0, 0, 0, 1, '{"total_rows": 1, "success_rows": 1, "error_rows": 0, "held_rows": 0, "skipped_rows": 0, "batches": 1, "total_scan_task": 1, "finished_scan_task": 1, "wall_seconds": 0.0, "task_seconds": 0.032, "select_seconds": 0.027, "delete_seconds": 0.0, "waited_seconds": 0.0, "other_seconds": 0.005, "waits": {}, "scan_task_err": ""}');
INSERT INTO lapse.lapse_job VALUES (6, 11, NULL, 4, 1, 'public', 'readings', 'readings_2026', '2026-03-15 12:00:00+00', 'finished', NULL, NULL, 'physical', NULL, 'heap blocks in order: no index on the expiry column', '29303f061af4b0c7', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', 'worker-1', 1, 0, 1, 1, 0, 0, 0, 1, '{"total_rows": 1, "success_rows": 1, "error_rows": 0, "held_rows": 0, "skipped_rows": 0, "batches": 1, "total_scan_task": 1, "finished_scan_task": 1, "wall_seconds": 0.0, "task_seconds": 0.012, "select_seconds": 0.0, "delete_seconds": 0.003, "waited_seconds": 0.0, "other_seconds": 0.009, "waits": {}, "scan_task_err": ""}');
INSERT INTO lapse.lapse_job VALUES (7, 1, NULL, 1, 1, 'public', 'sessions', '', '2026-03-15 12:00:00+00', 'finished', NULL, NULL, 'physical', NULL, 'heap blocks in order: no index on the expiry column', 'b50add437ad4005c', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', 'worker-1', 1, 0, 1, 1, 0, 0, 0, 1, '{"total_rows": 1, "success_rows": 1, "error_rows": 0, "held_rows": 0, "skipped_rows": 0, "batches": 1, "total_scan_task": 1, "finished_scan_task": 1, "wall_seconds": 0.0, "task_seconds": 0.013, "select_seconds": 0.0, "delete_seconds": 0.003, "waited_seconds": 0.0, "other_seconds": 0.009, "waits": {}, "scan_task_err": ""}');
INSERT INTO lapse.lapse_job VALUES (9, 7, NULL, 8, 1, 'public', 'visits', 'visits_a', '2026-03-15 12:00:00+00', 'finished', NULL, NULL, 'physical', NULL, 'heap blocks in order: no index on the expiry column', 'a2b5d9c6601ccb17', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', 'worker-1', 1, 0, 1, 1, 0, 0, 0, 1, '{"total_rows": 1, "success_rows": 1, "error_rows": 0, "held_rows": 0, "skipped_rows": 0, "batches": 1, "total_scan_task": 1, "finished_scan_task": 1, "wall_seconds": 0.0, "task_seconds": 0.004, "select_seconds": 0.0, "delete_seconds": 0.002, "waited_seconds": 0.0, "other_seconds": 0.002, "waits": {}, "scan_task_err": ""}');
INSERT INTO lapse.lapse_meta VALUES ('catalog_version', '2');
INSERT INTO lapse.lapse_meta VALUES ('database_identity', '7708999825954907353/16384');
INSERT INTO lapse.lapse_policy VALUES (3, 'public', 'mails', 1, '{"delete_batch_size": "50", "expression": "CASE WHEN sent THEN at + INTERVAL ''7 days'' END", "pause": "on"}', '{ttl=''on'',ttl_expiration_expression=''CASE WHEN sent THEN at + INTERVAL ''''7 days'''' END'',ttl_delete_batch_size=''50'',ttl_pause=''on''}', '@hourly', true, 'statement', '428b450fddd2fe74', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', NULL, NULL);
INSERT INTO lapse.lapse_policy VALUES (2, 'public', 'events', 1, '{"column": "at", "interval": "1 day", "job_interval": "2 hours"}', '{ttl=''on'',ttl_expiration_expression=''"at" + INTERVAL ''''1 day'''''',ttl_job_interval=''2 hours''}', 'every 2 hours', false, 'statement', 'a3975407d60f5649', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', NULL);
INSERT INTO lapse.lapse_policy VALUES (6, 'public', 'invites', 1, '{"column": "at", "hide_expired": "policy", "interval": "0 seconds"}', '{ttl=''on'',ttl_expiration_expression=''"at"'',ttl_hide_expired=''policy''}', '@hourly', false, 'statement', 'a3975407d60f5649', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', NULL);
INSERT INTO lapse.lapse_policy VALUES (7, 'public', 'notes', 1, '{"column": "at", "interval": "1 day"}', '{ttl=''on'',ttl_expiration_expression=''"at" + INTERVAL ''''1 day''''''}', '@hourly', false, 'comment', 'a3975407d60f5649', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', NULL);
INSERT INTO lapse.lapse_policy VALUES (4, 'public', 'readings', 1, '{"column": "at", "interval": "14 days", "partition_drop": "on"}', '{ttl=''on'',ttl_expiration_expression=''"at" + INTERVAL ''''14 days'''''',ttl_partition_drop=''on''}', '@hourly', false, 'statement', '29303f061af4b0c7', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', NULL);
INSERT INTO lapse.lapse_policy VALUES (1, 'public', 'sessions', 1, '{"expire_after": "1 hour"}', '{ttl=''on'',ttl_expire_after=''1 hour''}', '@hourly', false, 'statement', 'b50add437ad4005c', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', NULL);
INSERT INTO lapse.lapse_policy VALUES (5, 'public', 'tokens', 1, '{"column": "at", "hide_expired": "view", "interval": "0 seconds"}', '{ttl=''on'',ttl_expiration_expression=''"at"'',ttl_hide_expired=''view''}', '@hourly', false, 'statement', 'a3975407d60f5649', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', NULL);
INSERT INTO lapse.lapse_policy VALUES (8, 'public', 'visits', 1, '{"expression": "NULL", "partitions": [["visits_a", "1 day", "seen"]]}', '{ttl=''on'',ttl_expiration_expression=''NULL'',visits_a_ttl_duration=''1 day'',visits_a_ttl_col=''seen''}', '@hourly', false, 'comment', 'a683096011db3975', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', '2026-03-15 12:00:00+00', NULL);
INSERT INTO lapse.lapse_policy_version VALUES (1, 1, '{"expire_after": "1 hour"}', '2026-03-15 12:00:00+00');
INSERT INTO lapse.lapse_policy_version VALUES (2, 1, '{"column": "at", "interval": "1 day", "job_interval": "2 hours"}', '2026-03-15 12:00:00+00');
INSERT INTO lapse.lapse_policy_version VALUES (3, 1, '{"delete_batch_size": "50", "expression": "CASE WHEN sent THEN at + INTERVAL ''7 days'' END", "pause": "on"}', '2026-03-15 12:00:00+00');
INSERT INTO lapse.lapse_policy_version VALUES (4, 1, '{"column": "at", "interval": "14 days", "partition_drop": "on"}', '2026-03-15 12:00:00+00');
INSERT INTO lapse.lapse_policy_version VALUES (5, 1, '{"column": "at", "hide_expired": "view", "interval": "0 seconds"}', '2026-03-15 12:00:00+00');
INSERT INTO lapse.lapse_policy_version VALUES (6, 1, '{"column": "at", "hide_expired": "policy", "interval": "0 seconds"}', '2026-03-15 12:00:00+00');
INSERT INTO lapse.lapse_policy_version VALUES (7, 1, '{"column": "at", "interval": "1 day"}', '2026-03-15 12:00:00+00');
INSERT INTO lapse.lapse_policy_version VALUES (8, 1, '{"expression": "NULL", "partitions": [["visits_a", "1 day", "seen"]]}', '2026-03-15 12:00:00+00');
INSERT INTO lapse.lapse_setting VALUES ('lapse_mode', 'fast', '2026-03-15 12:00:00+00');
INSERT INTO lapse.lapse_table VALUES (3, 3, '', NULL, NULL, NULL);
INSERT INTO lapse.lapse_table VALUES (2, 2, '', '2026-03-15 14:00:00+00', NULL, NULL);
INSERT INTO lapse.lapse_table VALUES (5, 6, '', '2026-03-15 13:00:00+00', NULL, NULL);
INSERT INTO lapse.lapse_table VALUES (6, 7, '', '2026-03-15 13:00:00+00', NULL, NULL);
INSERT INTO lapse.lapse_table VALUES (9, 4, '"attic"."readings_2027"', '2026-03-15 13:00:00+00', NULL, NULL);
INSERT INTO lapse.lapse_table VALUES (10, 4, 'readings_2020', '2026-03-15 13:00:00+00', NULL, NULL);
INSERT INTO lapse.lapse_table VALUES (11, 4, 'readings_2026', '2026-03-15 13:00:00+00', NULL, NULL);
INSERT INTO lapse.lapse_table VALUES (1, 1, '', '2026-03-15 13:00:00+00', NULL, NULL);
INSERT INTO lapse.lapse_table VALUES (4, 5, '', '2026-03-15 13:00:00+00', NULL, NULL);
INSERT INTO lapse.lapse_table VALUES (7, 8, 'visits_a', '2026-03-15 13:00:00+00', NULL, NULL);
INSERT INTO lapse.lapse_table VALUES (8, 8, 'visits_b', '2026-03-15 13:00:00+00', NULL, NULL);
INSERT INTO public.events VALUES (2, '2999-01-01 00:00:00+00');
INSERT INTO public.events VALUES (3, '2020-01-02 00:00:00+00');
INSERT INTO public.invites VALUES (2, '2999-01-01 00:00:00+00');
INSERT INTO public.invites VALUES (3, '2020-01-02 00:00:00+00');
INSERT INTO public.mails VALUES (1, false, '2020-01-01 00:00:00');
INSERT INTO public.mails VALUES (2, true, '2020-01-01 00:00:00');
INSERT INTO public.mails VALUES (3, true, '2999-01-01 00:00:00');
INSERT INTO public.notes VALUES (2, '2999-01-01 00:00:00+00');
INSERT INTO public.notes VALUES (3, '2020-01-02 00:00:00+00');
INSERT INTO public.readings_2021 VALUES (4, '2021-05-05 00:00:00+00');
INSERT INTO public.readings_2026 VALUES (3, '2026-12-31 00:00:00+00');
INSERT INTO public.readings_2026 VALUES (5, '2026-01-06 00:00:00+00');
INSERT INTO public.sessions VALUES (2, 'never', NULL);
INSERT INTO public.sessions VALUES (3, 'later', '2999-01-01 00:00:00+00');
INSERT INTO public.sessions VALUES (4, 'gone', '2020-01-01 00:00:00+00');
INSERT INTO public.tokens VALUES (2, '2999-01-01 00:00:00+00');
INSERT INTO public.tokens VALUES (3, '2020-01-02 00:00:00+00');
INSERT INTO public.visits_a VALUES (2, '2020-02-03', '2999-02-02 00:00:00+00');
INSERT INTO public.visits_a VALUES (4, '2020-02-02', '2020-02-02 00:00:00+00');
INSERT INTO public.visits_b VALUES (3, '2022-02-03', '2022-02-02 00:00:00+00');
SELECT pg_catalog.setval('lapse.lapse_job_job_id_seq', 10, true);
SELECT pg_catalog.setval('lapse.lapse_policy_policy_id_seq', 8, true);
SELECT pg_catalog.setval('lapse.lapse_table_table_id_seq', 11, true);
SELECT pg_catalog.setval('lapse.lapse_task_task_id_seq', 8, true);
ALTER TABLE ONLY lapse.lapse_job
    ADD CONSTRAINT lapse_job_active_table_id_key UNIQUE (active_table_id);
ALTER TABLE ONLY lapse.lapse_job
    ADD CONSTRAINT lapse_job_pkey PRIMARY KEY (job_id);
ALTER TABLE ONLY lapse.lapse_meta
    ADD CONSTRAINT lapse_meta_pkey PRIMARY KEY (name);
ALTER TABLE ONLY lapse.lapse_policy
    ADD CONSTRAINT lapse_policy_of_table UNIQUE (schema_name, table_name);
ALTER TABLE ONLY lapse.lapse_policy
    ADD CONSTRAINT lapse_policy_pkey PRIMARY KEY (policy_id);
ALTER TABLE ONLY lapse.lapse_policy_version
    ADD CONSTRAINT lapse_policy_version_pkey PRIMARY KEY (policy_id, version);
ALTER TABLE ONLY lapse.lapse_rate
    ADD CONSTRAINT lapse_rate_pkey PRIMARY KEY (name);
ALTER TABLE ONLY lapse.lapse_setting
    ADD CONSTRAINT lapse_setting_pkey PRIMARY KEY (name);
ALTER TABLE ONLY lapse.lapse_table
    ADD CONSTRAINT lapse_table_of_policy UNIQUE (policy_id, partition_name);
ALTER TABLE ONLY lapse.lapse_table
    ADD CONSTRAINT lapse_table_pkey PRIMARY KEY (table_id);
ALTER TABLE ONLY lapse.lapse_task
    ADD CONSTRAINT lapse_task_of_job UNIQUE (job_id, ordinal);
ALTER TABLE ONLY lapse.lapse_task
    ADD CONSTRAINT lapse_task_pkey PRIMARY KEY (task_id);
ALTER TABLE ONLY lapse.lapse_worker
    ADD CONSTRAINT lapse_worker_pkey PRIMARY KEY (worker_id);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.invites
    ADD CONSTRAINT invites_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.mails
    ADD CONSTRAINT mails_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.notes
    ADD CONSTRAINT notes_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.sessions
    ADD CONSTRAINT sessions_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT tokens_pkey PRIMARY KEY (id);
CREATE INDEX lapse_job_by_table ON lapse.lapse_job USING btree (table_id, job_id);
CREATE TRIGGER lapse_ttl_update BEFORE UPDATE ON public.sessions FOR EACH ROW WHEN (((new.crdb_internal_expiration = old.crdb_internal_expiration) AND (new.crdb_internal_expiration < (now() + '01:00:00'::interval)))) EXECUTE FUNCTION lapse.stamp_expiration('3600 seconds');
ALTER TABLE public.invites ENABLE ROW LEVEL SECURITY;
CREATE POLICY lapse_allow_all ON public.invites USING (true) WITH CHECK (true);
CREATE POLICY lapse_hide_expired ON public.invites AS RESTRICTIVE FOR SELECT USING ((((at <= now()) IS NOT TRUE) OR (current_setting('lapse.see_expired'::text, true) = 'on'::text)));
