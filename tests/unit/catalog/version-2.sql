BEGIN TRANSACTION;
CREATE TABLE events (id INTEGER PRIMARY KEY, at TEXT);
INSERT INTO "events" VALUES(2,'2999-01-01 00:00:00');
INSERT INTO "events" VALUES(3,'2020-01-02 00:00:00');
CREATE TABLE lapse_job (
	job_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	table_id INTEGER NOT NULL,
	active_table_id INTEGER,
	policy_id INTEGER NOT NULL,
	policy_version INTEGER NOT NULL,
	schema_name VARCHAR(255) NOT NULL,
	table_name VARCHAR(255) NOT NULL,
	partition_name VARCHAR(255) NOT NULL,
	cutoff DATETIME NOT NULL,
	status VARCHAR(64) NOT NULL,
	control VARCHAR(64),
	reason TEXT,
	path_kind VARCHAR(64) NOT NULL,
	path_index VARCHAR(255),
	path_evidence TEXT NOT NULL,
	fingerprint TEXT NOT NULL,
	created_at DATETIME NOT NULL,
	started_at DATETIME,
	finished_at DATETIME,
	changed_at DATETIME NOT NULL,
	owner_id VARCHAR(255),
	tasks_total INTEGER NOT NULL,
	behind FLOAT NOT NULL,
	selected BIGINT NOT NULL,
	deleted BIGINT NOT NULL,
	held BIGINT NOT NULL,
	skipped BIGINT NOT NULL,
	errors BIGINT NOT NULL,
	batches BIGINT NOT NULL,
	summary TEXT,
	UNIQUE (active_table_id)
);
INSERT INTO "lapse_job" VALUES(1,2,NULL,2,1,'','events','','2026-11-16 20:00:44.423000','finished',NULL,NULL,'physical',NULL,'row id order: no index on the expiry column','5a47d53f5e551b2d','2026-11-16 20:00:44.423000','2026-11-16 20:00:44.478000','2026-11-16 20:00:44.600000','2026-11-16 20:00:44.600000','worker-1',1,6.73611111111111117953e-06,1,1,0,0,0,1,'{"total_rows": 1, "success_rows": 1, "error_rows": 0, "held_rows": 0, "skipped_rows": 0, "batches": 1, "total_scan_task": 1, "finished_scan_task": 1, "wall_seconds": 0.122, "task_seconds": 0.027, "select_seconds": 0.001, "delete_seconds": 0.023, "waited_seconds": 0.0, "other_seconds": 0.003, "waits": {}, "scan_task_err": ""}');
CREATE TABLE lapse_meta (
	name VARCHAR(64) NOT NULL,
	value TEXT NOT NULL,
	PRIMARY KEY (name)
);
INSERT INTO "lapse_meta" VALUES('catalog_version','2');
CREATE TABLE lapse_policy (
	policy_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	schema_name VARCHAR(255) NOT NULL,
	table_name VARCHAR(255) NOT NULL,
	version INTEGER NOT NULL,
	options TEXT NOT NULL,
	reloptions TEXT NOT NULL,
	recurrence VARCHAR(255) NOT NULL,
	paused BOOLEAN NOT NULL,
	source VARCHAR(64) NOT NULL,
	fingerprint TEXT NOT NULL,
	created_at DATETIME NOT NULL,
	changed_at DATETIME NOT NULL,
	cleared_at DATETIME,
	held TEXT,
	CONSTRAINT lapse_policy_of_table UNIQUE (schema_name, table_name)
);
INSERT INTO "lapse_policy" VALUES(1,'','sessions',1,'{"expire_after": "30 days"}','{ttl=''on'',ttl_expire_after=''30 days''}','@hourly',0,'statement','131169133c7cae6e','2026-11-16 20:00:43.760000','2026-11-16 20:00:43.760000',NULL,NULL);
INSERT INTO "lapse_policy" VALUES(2,'','events',1,'{"column": "at", "interval": "1 day"}','{ttl=''on'',ttl_expiration_expression=''"at" + INTERVAL ''''1 day''''''}','@hourly',0,'statement','5a47d53f5e551b2d','2026-11-16 20:00:43.841000','2026-11-16 20:00:43.841000','2026-11-16 20:00:44.394000',NULL);
INSERT INTO "lapse_policy" VALUES(3,'','mails',1,'{"expression": "CASE WHEN keep = 1 THEN NULL ELSE at END", "pause": "on"}','{ttl=''on'',ttl_expiration_expression=''CASE WHEN keep = 1 THEN NULL ELSE at END'',ttl_pause=''on''}','@hourly',1,'statement','addbd22eae4f37c3','2026-11-16 20:00:44.255000','2026-11-16 20:00:44.255000',NULL,NULL);
CREATE TABLE lapse_policy_version (
	policy_id INTEGER NOT NULL,
	version INTEGER NOT NULL,
	options TEXT NOT NULL,
	changed_at DATETIME NOT NULL,
	PRIMARY KEY (policy_id, version)
);
INSERT INTO "lapse_policy_version" VALUES(1,1,'{"expire_after": "30 days"}','2026-11-16 20:00:43.760000');
INSERT INTO "lapse_policy_version" VALUES(2,1,'{"column": "at", "interval": "1 day"}','2026-11-16 20:00:43.841000');
INSERT INTO "lapse_policy_version" VALUES(3,1,'{"expression": "CASE WHEN keep = 1 THEN NULL ELSE at END", "pause": "on"}','2026-11-16 20:00:44.255000');
CREATE TABLE lapse_rate (
	name VARCHAR(255) NOT NULL,
	free_at_us BIGINT NOT NULL,
	PRIMARY KEY (name)
);
CREATE TABLE lapse_setting (
	name VARCHAR(64) NOT NULL,
	value TEXT NOT NULL,
	changed_at DATETIME NOT NULL,
	PRIMARY KEY (name)
);
INSERT INTO "lapse_setting" VALUES('lapse_mode','fast','2026-11-16 20:00:44.837000');
CREATE TABLE lapse_table (
	table_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	policy_id INTEGER NOT NULL,
	partition_name VARCHAR(255) NOT NULL,
	next_run_at DATETIME,
	statistics TEXT,
	trouble TEXT,
	CONSTRAINT lapse_table_of_policy UNIQUE (policy_id, partition_name)
);
INSERT INTO "lapse_table" VALUES(1,1,'',NULL,NULL,NULL);
INSERT INTO "lapse_table" VALUES(2,2,'','2026-11-16 21:00:00.000000',NULL,NULL);
INSERT INTO "lapse_table" VALUES(3,3,'',NULL,NULL,NULL);
CREATE TABLE lapse_task (
	task_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	job_id INTEGER NOT NULL,
	ordinal INTEGER NOT NULL,
	range_start TEXT,
	range_end TEXT,
	position TEXT,
	sweep INTEGER NOT NULL,
	status VARCHAR(64) NOT NULL,
	owner_id VARCHAR(255),
	heartbeat_at DATETIME,
	fence INTEGER NOT NULL,
	selected BIGINT NOT NULL,
	deleted BIGINT NOT NULL,
	held BIGINT NOT NULL,
	skipped BIGINT NOT NULL,
	errors BIGINT NOT NULL,
	batches BIGINT NOT NULL,
	worked_seconds FLOAT NOT NULL,
	locked_seconds FLOAT NOT NULL,
	lasted_seconds FLOAT NOT NULL,
	waited_seconds FLOAT NOT NULL,
	pause_reason TEXT,
	waits TEXT,
	last_error TEXT,
	CONSTRAINT lapse_task_of_job UNIQUE (job_id, ordinal)
);
CREATE TABLE lapse_worker (
	worker_id VARCHAR(255) NOT NULL,
	address VARCHAR(255) NOT NULL,
	version VARCHAR(64) NOT NULL,
	started_at DATETIME NOT NULL,
	heartbeat_at DATETIME NOT NULL,
	state TEXT NOT NULL,
	PRIMARY KEY (worker_id)
);
CREATE TABLE mails (id INTEGER PRIMARY KEY, at TEXT, keep INTEGER);
INSERT INTO "mails" VALUES(1,'2020-01-01 00:00:00',1);
INSERT INTO "mails" VALUES(2,'2020-01-01 00:00:00',0);
CREATE TABLE sessions (id INTEGER PRIMARY KEY, body TEXT, "crdb_internal_expiration" TEXT DEFAULT '2026-12-16 20:00:43.758Z');
INSERT INTO "sessions" VALUES(1,'x','2026-12-16 20:00:44.289');
CREATE INDEX lapse_job_by_table ON lapse_job (table_id, job_id);
CREATE VIEW lapse_schedules AS
        SELECT t.table_id AS id,
               'row-level-ttl-' || p.table_name AS label,
               CASE WHEN p.paused THEN 'PAUSED' ELSE 'ACTIVE' END AS schedule_status,
               t.next_run_at AS next_run,
               t.trouble AS state,
               p.recurrence AS recurrence,
               (SELECT count(*) FROM lapse_job j WHERE j.active_table_id = t.table_id) AS jobsrunning,
               p.created_at AS created,
               p.schema_name AS schema_name,
               p.table_name AS table_name,
               t.partition_name AS partition_name
          FROM lapse_table t JOIN lapse_policy p ON p.policy_id = t.policy_id;
CREATE VIEW lapse_jobs AS
        SELECT j.job_id AS job_id,
               'ROW LEVEL TTL' AS job_type,
               'ttl for ' || j.table_name AS description,
               j.status AS status,
               j.reason AS running_status,
               j.created_at AS created,
               j.started_at AS started,
               j.finished_at AS finished,
               CASE WHEN j.finished_at IS NOT NULL OR j.tasks_total = 0 THEN 1.0
                    ELSE (SELECT count(*) FROM lapse_task k WHERE k.job_id = j.job_id AND k.status = 'finished') * 1.0
                         / j.tasks_total END AS fraction_completed,
               j.schema_name AS schema_name,
               j.table_name AS table_name,
               j.partition_name AS partition_name,
               j.cutoff AS cutoff,
               CASE WHEN j.finished_at IS NOT NULL THEN j.deleted
                    ELSE (SELECT coalesce(sum(k.deleted), 0) FROM lapse_task k WHERE k.job_id = j.job_id) END AS deleted
          FROM lapse_job j;
CREATE VIEW lapse_table_status AS
        SELECT t.table_id AS table_id,
               CASE WHEN t.partition_name = '' THEN t.table_id ELSE t.policy_id END AS parent_table_id,
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
          FROM lapse_table t
          LEFT JOIN lapse_job l ON l.job_id = (SELECT max(f.job_id) FROM lapse_job f
                                            WHERE f.table_id = t.table_id AND f.status = 'finished')
          LEFT JOIN lapse_job c ON c.job_id = (SELECT max(g.job_id) FROM lapse_job g
                                            WHERE g.table_id = t.table_id AND g.status <> 'finished'
                                              AND g.job_id > coalesce(l.job_id, 0))
          LEFT JOIN lapse_worker w ON w.worker_id = c.owner_id;
CREATE VIEW lapse_reloptions AS SELECT p.table_name AS relname, p.reloptions AS reloptions FROM lapse_policy p;
CREATE TRIGGER "lapse_sessions_insert" AFTER INSERT ON "sessions" WHEN NEW."crdb_internal_expiration" GLOB '????-??-?? ??:??:??.???Z' BEGIN UPDATE "sessions" SET "crdb_internal_expiration" = strftime('%Y-%m-%d %H:%M:%f', 'now', '+2592000.000 seconds') WHERE rowid = NEW.rowid; END;
CREATE TRIGGER "lapse_sessions_update" AFTER UPDATE ON "sessions" WHEN NEW."crdb_internal_expiration" IS OLD."crdb_internal_expiration" AND julianday(strftime('%Y-%m-%d %H:%M:%f', 'now', '+2592000.000 seconds')) > julianday(OLD."crdb_internal_expiration") BEGIN UPDATE "sessions" SET "crdb_internal_expiration" = strftime('%Y-%m-%d %H:%M:%f', 'now', '+2592000.000 seconds') WHERE rowid = NEW.rowid; END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('lapse_policy',3);
INSERT INTO "sqlite_sequence" VALUES('lapse_table',3);
INSERT INTO "sqlite_sequence" VALUES('lapse_job',1);
INSERT INTO "sqlite_sequence" VALUES('lapse_task',1);
COMMIT;
