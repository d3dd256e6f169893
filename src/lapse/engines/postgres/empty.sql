        IF result OPERATOR(pg_catalog.=) 'true'::pg_catalog.jsonb THEN
            -- Rows of this policy go one by one. What is dropped has none: no part of its own, none that is hidden, and
            -- none that a snapshot from before would not see.
            IF NOT EXISTS (
                SELECT 1 FROM pg_catalog.pg_class c
                 WHERE c.oid OPERATOR(pg_catalog.=) part AND c.relkind OPERATOR(pg_catalog.=) 'r') THEN
                RAISE EXCEPTION USING ERRCODE = '2BP01',
                    MESSAGE = pg_catalog.format('%s is no table that holds rows itself', target);
            END IF;
            IF pg_catalog.row_security_active(part) THEN
                RAISE EXCEPTION USING ERRCODE = '2BP01', MESSAGE = pg_catalog.format(
                    'row security applies to %s, the owner of %s: it may hide rows', CURRENT_USER, target);
            END IF;
            IF pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.<>) 'read committed' THEN
                RAISE EXCEPTION USING ERRCODE = '2BP01',
                    MESSAGE = 'rows are counted before a drop, which takes the isolation level READ COMMITTED';
            END IF;
            EXECUTE pg_catalog.format(
                'SELECT pg_catalog.to_jsonb(NOT EXISTS (SELECT 1 FROM ONLY %s))', target) INTO STRICT result;
            IF result OPERATOR(pg_catalog.=) 'false'::pg_catalog.jsonb THEN
                RAISE EXCEPTION USING ERRCODE = '2BP01',
                    MESSAGE = pg_catalog.format('%s has rows, which are to go one by one', target);
            END IF;
        END IF;
