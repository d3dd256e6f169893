-- What people call from the mariadb and mysql programs. Who asks is the account in whose name the statement runs: the
-- default of `requested_by`, a column that callers may not write. MariaDB evaluates defaults in the name of the login
-- where a trigger or a function of another account runs, so what is inserted is a draft until `lapse_send` has sent it,
-- which no trigger and no function can call, in the session of the draft. Workers do the rest.

CREATE TABLE IF NOT EXISTS lapse_request (
    request_id   BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    command      VARCHAR(16) NOT NULL,
    table_name   VARCHAR(64) NOT NULL,
    arguments    VARCHAR(4000) NOT NULL DEFAULT '{}' CHECK (json_valid(arguments)),
    requested_by VARCHAR(400) NOT NULL DEFAULT (CURRENT_USER()),
    requested_at DATETIME(6) NOT NULL DEFAULT (utc_timestamp(6)),
    session      VARCHAR(64) NOT NULL DEFAULT (concat(uuid_short() >> 24, ':', connection_id())),
    state        VARCHAR(16) NOT NULL DEFAULT 'draft',
    claimed_at   DATETIME(6),
    finished_at  DATETIME(6),
    answer       TEXT,
    INDEX lapse_request_by_state (state)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT = 'made by Lapse';

CREATE PROCEDURE lapse_send(IN request BIGINT)
SQL SECURITY DEFINER MODIFIES SQL DATA
COMMENT 'Sends what lapse_ask has written in this session. Made by Lapse.'
BEGIN
    -- Dynamic SQL is what keeps triggers and functions, which run in the session of another account, from calling this.
    PREPARE lapse_not_in_a_trigger FROM 'DO 0';
    DEALLOCATE PREPARE lapse_not_in_a_trigger;
    -- The first number of the session is the time at which the server was started: connections are counted anew then.
    UPDATE lapse_request r SET r.state = 'waiting'
     WHERE r.request_id = request AND r.state = 'draft'
       AND r.session = concat(uuid_short() >> 24, ':', connection_id());
    IF row_count() <> 1 THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'this session has written no such request';
    END IF;
END;

CREATE PROCEDURE lapse_ask(
    IN wanted VARCHAR(16) CHARACTER SET utf8mb4,
    IN named VARCHAR(255) CHARACTER SET utf8mb4,
    IN details VARCHAR(4000) CHARACTER SET utf8mb4)
SQL SECURITY INVOKER MODIFIES SQL DATA
COMMENT 'What the other procedures call. Made by Lapse.'
BEGIN
    DECLARE asked BIGINT;
    IF NOT EXISTS (SELECT 1 FROM information_schema.TABLES t
                    WHERE t.TABLE_SCHEMA = database() AND t.TABLE_NAME = named
                      AND t.TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')) THEN
        SIGNAL SQLSTATE '42S02' SET MESSAGE_TEXT = 'there is no such table in this database, or none that you may see';
    END IF;
    INSERT INTO lapse_request (command, table_name, arguments) VALUES (wanted, named, details);
    SET asked = last_insert_id();
    CALL lapse_send(asked);
    SELECT asked AS request, 'not done yet: the next worker does it. CALL lapse_answers() shows what became of it' AS note;
END;

CREATE PROCEDURE lapse_set_ttl(
    IN table_name VARCHAR(255) CHARACTER SET utf8mb4,
    IN column_name VARCHAR(255) CHARACTER SET utf8mb4,
    IN after VARCHAR(255) CHARACTER SET utf8mb4)
SQL SECURITY INVOKER MODIFIES SQL DATA
COMMENT 'Rows expire so long (''30 days'') after the time in this column; NULL as column: after their last insert or update. For accounts with all rights on the table; a worker does it. Made by Lapse.'
BEGIN
    IF column_name IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM information_schema.COLUMNS c
         WHERE c.TABLE_SCHEMA = database() AND c.TABLE_NAME = table_name AND c.COLUMN_NAME = column_name) THEN
        SIGNAL SQLSTATE '42S22' SET MESSAGE_TEXT = 'there is no such column in this table, or none that you may see';
    END IF;
    CALL lapse_ask('set_ttl', table_name, json_object('column', column_name, 'after', after));
END;

CREATE PROCEDURE lapse_set_options(
    IN table_name VARCHAR(255) CHARACTER SET utf8mb4,
    IN options VARCHAR(4000) CHARACTER SET utf8mb4)
SQL SECURITY INVOKER MODIFIES SQL DATA
COMMENT 'Sets storage parameters: ''{"ttl_job_cron": "@daily"}''. For accounts with all rights on the table; a worker does it. Made by Lapse.'
BEGIN
    IF NOT coalesce(json_valid(options), FALSE) THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'options are written as JSON: {"ttl_job_cron": "@daily"}';
    END IF;
    CALL lapse_ask('set_ttl', table_name, json_object('options', json_extract(options, '$')));
END;

CREATE PROCEDURE lapse_reset_ttl(IN table_name VARCHAR(255) CHARACTER SET utf8mb4)
SQL SECURITY INVOKER MODIFIES SQL DATA
COMMENT 'Removes the TTL of the table, with everything that Lapse has added to it. For accounts with all rights on the table; a worker does it. Made by Lapse.'
BEGIN
    CALL lapse_ask('reset_ttl', table_name, '{}');
END;

CREATE PROCEDURE lapse_run(IN table_name VARCHAR(255) CHARACTER SET utf8mb4)
SQL SECURITY INVOKER MODIFIES SQL DATA
COMMENT 'Makes the table due now, in spite of its schedule and its grace period. For accounts with all rights on the table; a worker does it. Made by Lapse.'
BEGIN
    CALL lapse_ask('run', table_name, '{}');
END;

CREATE PROCEDURE lapse_pause(IN table_name VARCHAR(255) CHARACTER SET utf8mb4)
SQL SECURITY INVOKER MODIFIES SQL DATA
COMMENT 'Stops deleting from the table until lapse_resume. For accounts with all rights on the table; a worker does it. Made by Lapse.'
BEGIN
    CALL lapse_ask('pause', table_name, '{}');
END;

CREATE PROCEDURE lapse_resume(IN table_name VARCHAR(255) CHARACTER SET utf8mb4)
SQL SECURITY INVOKER MODIFIES SQL DATA
COMMENT 'Goes on deleting: after a pause, after a first run that waits for confirmation, or on a table that was changed. For accounts with all rights on the table; a worker does it. Made by Lapse.'
BEGIN
    CALL lapse_ask('resume', table_name, '{}');
END;

CREATE PROCEDURE lapse_preview(IN table_name VARCHAR(255) CHARACTER SET utf8mb4)
SQL SECURITY INVOKER MODIFIES SQL DATA
COMMENT 'What a run would delete by the policy of the table. Changes nothing. For accounts with all rights on the table; a worker answers. Made by Lapse.'
BEGIN
    CALL lapse_ask('preview', table_name, '{}');
END;

CREATE PROCEDURE lapse_preview_ttl(
    IN table_name VARCHAR(255) CHARACTER SET utf8mb4,
    IN column_name VARCHAR(255) CHARACTER SET utf8mb4,
    IN after VARCHAR(255) CHARACTER SET utf8mb4)
SQL SECURITY INVOKER MODIFIES SQL DATA
COMMENT 'What a run would delete by a column and a duration, before they are declared. Changes nothing. For accounts with all rights on the table; a worker answers. Made by Lapse.'
BEGIN
    CALL lapse_ask('preview', table_name, json_object('column', column_name, 'after', after));
END;

CREATE PROCEDURE lapse_hold(
    IN table_name VARCHAR(255) CHARACTER SET utf8mb4,
    IN condition_on_rows VARCHAR(2000) CHARACTER SET utf8mb4,
    IN until_time VARCHAR(64) CHARACTER SET utf8mb4,
    IN reason VARCHAR(1000) CHARACTER SET utf8mb4)
SQL SECURITY INVOKER MODIFIES SQL DATA
COMMENT 'Asks that rows which match the condition (NULL: all) stay, until a time (''2030-01-31T12:00:00Z''; NULL: until lapse_release). They are held once lapse_answers says done; until then they may still be deleted. For accounts with all rights on the table; a worker does it. Made by Lapse.'
BEGIN
    CALL lapse_ask('hold', table_name, json_object('where', condition_on_rows, 'until', until_time, 'reason', reason));
END;

CREATE PROCEDURE lapse_release(
    IN table_name VARCHAR(255) CHARACTER SET utf8mb4,
    IN hold_id BIGINT)
SQL SECURITY INVOKER MODIFIES SQL DATA
COMMENT 'Ends a hold on the table. For accounts with all rights on the table; a worker does it. Made by Lapse.'
BEGIN
    CALL lapse_ask('release', table_name, json_object('hold', hold_id));
END;

CREATE PROCEDURE lapse_answers()
SQL SECURITY DEFINER READS SQL DATA
COMMENT 'What was asked for under the name of your login, newest first: waiting, done or refused, with the answer. Made by Lapse.'
BEGIN
    -- A result goes to the client alone: no code of another account that runs in this session can read it.
    SELECT r.request_id, r.command, r.table_name, r.requested_at, r.state, r.finished_at, r.answer
      FROM lapse_request r
     WHERE r.state <> 'draft'
       AND left(r.requested_by, char_length(r.requested_by) - locate('@', reverse(r.requested_by)))
           = CAST(left(user(), char_length(user()) - locate('@', reverse(user()))) AS CHAR CHARACTER SET utf8mb4)
     ORDER BY r.request_id DESC LIMIT 50;
END;

CREATE OR REPLACE SQL SECURITY DEFINER VIEW lapse_requests AS
    SELECT r.request_id, r.command, r.table_name, r.arguments, r.requested_by, r.requested_at, r.state, r.finished_at,
           r.answer
      FROM lapse_request r WHERE r.state <> 'draft';

CREATE OR REPLACE SQL SECURITY DEFINER VIEW lapse_status AS
    SELECT p.schema_name, p.table_name, t.partition_name, p.reloptions AS parameters, p.recurrence AS schedule, p.paused,
           t.blocked, coalesce(p.held, t.trouble) AS reason, p.grace_until, t.next_run_at,
           (SELECT max(j.finished_at) FROM lapse_job j
             WHERE j.table_id = t.table_id AND j.status = 'finished') AS last_finished_at,
           (SELECT count(*) FROM lapse_worker w
             WHERE w.heartbeat_at > utc_timestamp(6) - INTERVAL 1 MINUTE) AS workers
      FROM lapse_policy p JOIN lapse_table t ON t.policy_id = p.policy_id;

CREATE OR REPLACE SQL SECURITY DEFINER VIEW lapse_history AS
    SELECT j.job_id, j.schema_name, j.table_name, j.partition_name, j.status, j.reason, j.cutoff, j.created_at,
           j.finished_at, j.deleted, j.held
      FROM lapse_job j WHERE j.active_table_id IS NULL;

CREATE OR REPLACE SQL SECURITY DEFINER VIEW lapse_holds AS
    SELECT h.hold_id, h.schema_name, h.table_name, h.expression AS condition_on_rows, concat(date_format(h.until_at, '%Y-%m-%dT%H:%i:%s'), 'Z') AS until_time, h.reason,
           CASE WHEN h.released_at IS NOT NULL THEN 'released'
                WHEN h.until_at <= utc_timestamp(6) THEN 'ended' ELSE 'held' END AS state,
           h.placed_at AS held_since, h.placed_by AS asked_by, h.released_at
      FROM lapse_hold h
     UNION ALL
    SELECT NULL, '', r.table_name, json_value(r.arguments, '$.where'),
           json_value(r.arguments, '$.until'), json_value(r.arguments, '$.reason'),
           'requested', NULL, r.requested_by, NULL
      FROM lapse_request r WHERE r.command = 'hold' AND r.state IN ('waiting', 'working');
