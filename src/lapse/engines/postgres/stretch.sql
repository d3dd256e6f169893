DECLARE
    -- Read before anything of the table's owner's runs.
    lapse_in CONSTANT pg_catalog.jsonb := pg_catalog.current_setting('{channel}')::pg_catalog.jsonb;
{arguments}    lapse_logged CONSTANT pg_catalog.float8 :=
        extract(epoch FROM pg_catalog.current_setting('log_min_duration_statement')::pg_catalog.interval);
    -- Not for so long that the server logs it as slow.
    lapse_until CONSTANT pg_catalog.timestamptz := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) (
        '1 second'::pg_catalog.interval OPERATOR(pg_catalog.*)
        CASE WHEN lapse_logged OPERATOR(pg_catalog.>) 0
             THEN LEAST(lapse_seconds, 0.8::pg_catalog.float8 OPERATOR(pg_catalog.*) lapse_logged) ELSE lapse_seconds END);
    lapse_next pg_catalog.int8;
    lapse_some pg_catalog.float8 := 0;
    lapse_for pg_catalog.float8 := 0;
    lapse_growth pg_catalog.float8;
    lapse_cursor pg_catalog.text;
    lapse_seen pg_catalog.jsonb;
    lapse_rows pg_catalog.int8;
    lapse_total pg_catalog.int8 := 0;
    lapse_windows pg_catalog.int8 := 0;
    lapse_at pg_catalog.tid;
    lapse_began pg_catalog.timestamptz;
    lapse_took pg_catalog.float8;
    lapse_busy pg_catalog.float8 := 0;
    lapse_owed pg_catalog.float8 := 0;
    lapse_rested pg_catalog.float8 := 0;
    lapse_holds pg_catalog.float8[] := ARRAY[]::pg_catalog.float8[];
BEGIN
    LOOP
        -- Said in full, as the database or the role may have other defaults, and before anything else looks something up.
        ROLLBACK;
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED READ WRITE;
        PERFORM {settings};
        lapse_began := pg_catalog.clock_timestamp();
        lapse_next := LEAST(lapse_end, lapse_block OPERATOR(pg_catalog.+) lapse_blocks);
        {call} INTO STRICT lapse_seen FROM {path};
        PERFORM {after};
{checks}        lapse_rows := (lapse_seen OPERATOR(pg_catalog.->>) 'deleted')::pg_catalog.int8;
        lapse_density := lapse_rows::pg_catalog.float8 OPERATOR(pg_catalog./) (lapse_next OPERATOR(pg_catalog.-) lapse_block);
        IF lapse_rows OPERATOR(pg_catalog.>) lapse_limit THEN
            lapse_blocks := {fitting};
            EXIT WHEN lapse_blocks OPERATOR(pg_catalog.<) 1;
            CONTINUE;
        END IF;
        IF lapse_rows OPERATOR(pg_catalog.>) 0 THEN
            lapse_cursor := pg_catalog.concat(lapse_next, ',0');
            -- By its address, as an index leads to every version of the row while an old snapshot is open.
            {saves} AND ctid OPERATOR(pg_catalog.=) lapse_at RETURNING ctid INTO lapse_at;
            IF NOT FOUND THEN
                {saves} RETURNING ctid INTO lapse_at;
            END IF;
            IF NOT FOUND THEN
                RAISE EXCEPTION USING MESSAGE = 'the task belongs to another worker now';
            END IF;
        END IF;
        lapse_windows := lapse_windows OPERATOR(pg_catalog.+) 1;
        lapse_block := lapse_next;
        lapse_line := 0;
        lapse_took := extract(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) lapse_began)::pg_catalog.float8;
        lapse_busy := lapse_busy OPERATOR(pg_catalog.+) lapse_took;
        IF lapse_rows OPERATOR(pg_catalog.>) 0 THEN
            lapse_total := lapse_total OPERATOR(pg_catalog.+) lapse_rows;
            lapse_holds := pg_catalog.array_append(lapse_holds, lapse_took);
            COMMIT;
        END IF;
        -- A quick one that found little was reading, not deleting.
        IF 2 OPERATOR(pg_catalog.*) lapse_rows OPERATOR(pg_catalog.>=) lapse_limit OR lapse_took OPERATOR(pg_catalog.>) lapse_target THEN
            lapse_some := ({weight} OPERATOR(pg_catalog.*) lapse_some) OPERATOR(pg_catalog.+) lapse_rows;
            lapse_for := ({weight} OPERATOR(pg_catalog.*) lapse_for) OPERATOR(pg_catalog.+) lapse_took;
            lapse_growth := CASE WHEN 5 OPERATOR(pg_catalog.*) lapse_took OPERATOR(pg_catalog.<) lapse_target THEN 4
                                 WHEN 2 OPERATOR(pg_catalog.*) lapse_took OPERATOR(pg_catalog.<) lapse_target THEN 2
                                 ELSE 1.2 END;
            lapse_limit := GREATEST(lapse_least, LEAST(lapse_ceiling,
                (lapse_target OPERATOR(pg_catalog.*) lapse_some OPERATOR(pg_catalog./) lapse_for)::pg_catalog.int8,
                (lapse_growth OPERATOR(pg_catalog.*) lapse_limit)::pg_catalog.int8));
        END IF;
        lapse_blocks := GREATEST({fitting}, 1);
        EXIT WHEN lapse_block OPERATOR(pg_catalog.>=) lapse_end OR lapse_density OPERATOR(pg_catalog.<) lapse_sparse;
        lapse_owed := lapse_owed OPERATOR(pg_catalog.+) (lapse_idle OPERATOR(pg_catalog.*) lapse_took);
        IF lapse_owed OPERATOR(pg_catalog.>=) lapse_shortest THEN
            lapse_began := pg_catalog.clock_timestamp();
            -- Nothing is locked, and no transaction has a number.
            PERFORM pg_catalog.pg_sleep(LEAST(lapse_owed, lapse_longest));
            lapse_took := extract(epoch FROM pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) lapse_began)::pg_catalog.float8;
            lapse_rested := lapse_rested OPERATOR(pg_catalog.+) lapse_took;
            lapse_owed := lapse_owed OPERATOR(pg_catalog.-) lapse_took;
        END IF;
        EXIT WHEN pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>=) lapse_until;
    END LOOP;
    ROLLBACK;
    PERFORM pg_catalog.set_config('{channel}', pg_catalog.jsonb_build_object(
        'block', lapse_block, 'line', lapse_line, 'windows', lapse_windows, 'density', lapse_density,
        'rows', lapse_total, 'busy', lapse_busy, 'rested', lapse_rested, 'holds', lapse_holds, 'size', lapse_limit,
        'row_seconds', coalesce(lapse_for OPERATOR(pg_catalog./) nullif(lapse_some, 0), 0))::pg_catalog.text, false);
END
