        -- One statement locks the rows, the next judges them: it sees them and their group at one moment, and locks
        -- those of the group that stay.
        IF pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.<>) 'read committed' THEN
            RAISE EXCEPTION USING ERRCODE = '25001', MESSAGE = 'a batch with ttl_keep_last is READ COMMITTED';
        END IF;
        EXECUTE pg_catalog.format(
            'WITH seen AS MATERIALIZED (%s) SELECT pg_catalog.jsonb_build_object(''count'', count, ''last'', last),'
            ' ARRAY(SELECT ctid FROM ONLY %s AS lapse_row WHERE ctid OPERATOR(pg_catalog.=) ANY (%s)'
            ' FOR UPDATE SKIP LOCKED)::pg_catalog.text FROM seen',
            listed, target, addresses) INTO STRICT result, listed;
        addresses := pg_catalog.format('%L::pg_catalog.tid[]', listed);
        listed := pg_catalog.format(
            'SELECT found OPERATOR(pg_catalog.->) ''count'' AS count, found OPERATOR(pg_catalog.->) ''last'' AS last'
            ' FROM (SELECT %L::pg_catalog.jsonb AS found) told', result);
        free := pg_catalog.concat(free, {surplus});
