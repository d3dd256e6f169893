-- lapse: {marks}
DECLARE
    deletes CONSTANT boolean := op OPERATOR(pg_catalog.=) ANY (
        ARRAY['sweep', 'blocks', 'index', 'may drop', 'drop']::pg_catalog.text[]);
    locks CONSTANT boolean := op OPERATOR(pg_catalog.=) ANY (ARRAY['sweep', 'blocks', 'index']::pg_catalog.text[]);
    target pg_catalog.text;
    leaf pg_catalog.name;
    holder pg_catalog.name;
    moment pg_catalog.timestamptz;
    bound pg_catalog.text;
    condition pg_catalog.text;
    expiry pg_catalog.text;
    key pg_catalog.text;
    field pg_catalog.name;
    kind pg_catalog.text;
    buckets pg_catalog.text := '';
    sample pg_catalog.text := '';
    template pg_catalog.text;
    free pg_catalog.text;
    after pg_catalog.text := 'TRUE';
    span pg_catalog.text;
    listed pg_catalog.text;
    farthest pg_catalog.text;
    addresses pg_catalog.text := '(SELECT addresses FROM seen)::pg_catalog.tid[]';
    gone bigint;
    result pg_catalog.jsonb;
    behind pg_catalog.jsonb;
BEGIN
    IF part OPERATOR(pg_catalog.<>) {root} AND locks THEN
        -- A statement on a partition does not keep the table above from being renamed before it commits.
        LOCK TABLE ONLY {name} IN ACCESS SHARE MODE;
    END IF;
    SELECT pg_catalog.format('%I.%I', n.nspname, c.relname), c.relname
      INTO target, leaf
      FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
     WHERE c.oid OPERATOR(pg_catalog.=) part;
    IF target IS NOT NULL AND locks THEN
        -- What is asked from here on stays true until the transaction ends.
        EXECUTE pg_catalog.format('LOCK TABLE ONLY %s IN ROW EXCLUSIVE MODE', target);
    END IF;
    IF target IS NULL OR NOT {armed} THEN
        RAISE EXCEPTION USING ERRCODE = 'LT001', MESSAGE = 'this is not the table that the policy was declared on';
    END IF;
{archived}    SELECT pg_catalog.pg_get_userbyid(c.relowner) INTO holder
      FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) part;
    IF holder OPERATOR(pg_catalog.<>) CURRENT_USER THEN
        RAISE EXCEPTION USING ERRCODE = 'LT002',
            MESSAGE = pg_catalog.format('%s belongs to %s, its batch function to %s', target, holder, CURRENT_USER);
    END IF;
    IF pg_catalog.row_security_active(part) AND EXISTS (
        SELECT 1 FROM pg_catalog.pg_policy y
         WHERE y.polrelid OPERATOR(pg_catalog.=) part AND y.polname OPERATOR(pg_catalog.<>) ALL ({ours})) THEN
        RAISE EXCEPTION USING ERRCODE = 'LT003',
            MESSAGE = pg_catalog.format('row security applies to %s, the owner of %s', CURRENT_USER, target);
    END IF;
{served}
    -- From the last cutoff to the first, whose condition is what is left.
    FOR i IN REVERSE pg_catalog.cardinality(cutoffs) .. 1 LOOP
        moment := cutoffs[i];
        bound := thresholds[i];
        IF deletes THEN
            moment := LEAST(moment, pg_catalog.now());
        END IF;
{rules}        buckets := pg_catalog.format('WHEN %s THEN %s %s', condition, i OPERATOR(pg_catalog.-) 1, buckets);
    END LOOP;

    IF op OPERATOR(pg_catalog.=) 'sweep'{unswept} THEN
        EXECUTE pg_catalog.format({sweep}, target, condition, places[1], places[2], part, ''{job}){swept};
{tallied}        SET CONSTRAINTS ALL IMMEDIATE;
        RETURN pg_catalog.jsonb_build_object('count', gone, 'deleted', gone{noted});
    END IF;

    IF op OPERATOR(pg_catalog.=) ANY (ARRAY['may drop', 'drop']::pg_catalog.text[]) THEN
        result := 'false'::pg_catalog.jsonb;
        IF op OPERATOR(pg_catalog.=) 'drop' THEN
            -- Its place and its bounds stay what they are from here on.
            EXECUTE pg_catalog.format('LOCK TABLE ONLY %s IN ACCESS SHARE MODE', target);
        END IF;
        -- What a table above is partitioned by may be the expiry, too.
        FOR bound IN
            SELECT (pg_catalog.regexp_match(pg_catalog.pg_get_expr(l.relpartbound, l.oid), 'TO [(]''?([^'')]+)''?[)]$'))[1]
              FROM pg_catalog.pg_partition_ancestors(part) above
              JOIN pg_catalog.pg_class l ON l.oid OPERATOR(pg_catalog.=) above.relid
              JOIN pg_catalog.pg_inherits i ON i.inhrelid OPERATOR(pg_catalog.=) l.oid
              JOIN pg_catalog.pg_partitioned_table t ON t.partrelid OPERATOR(pg_catalog.=) i.inhparent
              JOIN pg_catalog.pg_opclass o ON o.oid OPERATOR(pg_catalog.=) t.partclass[0]
              JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) t.partrelid
                                            AND a.attnum OPERATOR(pg_catalog.=) t.partattrs[0]
             WHERE t.partstrat OPERATOR(pg_catalog.=) 'r' AND t.partnatts OPERATOR(pg_catalog.=) 1
               AND pg_catalog.quote_ident(a.attname) OPERATOR(pg_catalog.=) pg_catalog.quote_ident(field)
               AND o.opcdefault AND o.opcnamespace OPERATOR(pg_catalog.=) 'pg_catalog'::pg_catalog.regnamespace
        LOOP
            IF {drops} AND bound OPERATOR(pg_catalog.<>) 'MAXVALUE' AND result OPERATOR(pg_catalog.=) 'false'::pg_catalog.jsonb THEN
                -- Every row of the range expires before a row at its end, which is not part of it.
                EXECUTE pg_catalog.format(
                    'SELECT pg_catalog.to_jsonb(coalesce(%s OPERATOR(pg_catalog.<=) %L::pg_catalog.timestamptz, false))'
                    ' FROM (SELECT %L::%s AS %s) lapse_row', expiry, moment, bound, kind, key) INTO STRICT result;
            END IF;
        END LOOP;
{empty}        IF op OPERATOR(pg_catalog.=) 'may drop' OR result OPERATOR(pg_catalog.=) 'false'::pg_catalog.jsonb THEN
            RETURN result;
        END IF;
        SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) INTO template
          FROM pg_catalog.pg_inherits i
          JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) i.inhparent
          JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
         WHERE i.inhrelid OPERATOR(pg_catalog.=) part;
        -- Counted before anything is locked: rows that come to an expired range now go uncounted.
        EXECUTE pg_catalog.format('SELECT pg_catalog.count(*) FROM ONLY %s', target) INTO STRICT gone;
        EXECUTE pg_catalog.format('ALTER TABLE %s DETACH PARTITION %s', template, target);
        SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) INTO listed
          FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
         WHERE c.oid OPERATOR(pg_catalog.=) part AND NOT c.relispartition;
        IF listed IS DISTINCT FROM target THEN
            RAISE EXCEPTION USING ERRCODE = 'LT001', MESSAGE = 'another partition has the name of this one';
        END IF;
{emptied}        EXECUTE pg_catalog.format('DROP TABLE %s', target);
        RETURN pg_catalog.jsonb_build_object('count', gone, 'deleted', gone);
    END IF;

    IF op OPERATOR(pg_catalog.=) ANY (ARRAY['blocks', 'index', 'pass blocks', 'pass index']::pg_catalog.text[]) THEN
        IF op OPERATOR(pg_catalog.=) ANY (ARRAY['blocks', 'pass blocks']::pg_catalog.text[]) THEN
            after := pg_catalog.format('ctid OPERATOR(pg_catalog.>=) %L::pg_catalog.tid', places[1]);
            listed := pg_catalog.format(
                'SELECT ctid AS at FROM ONLY %s AS lapse_row WHERE %s AND ctid OPERATOR(pg_catalog.<) %L::pg_catalog.tid'
                ' AND (%s) IS TRUE LIMIT %s', target, after, places[2], condition, numbers[1]);
            farthest := 'pg_catalog.max(at)::pg_catalog.text';
        ELSE
            IF places[1] IS NOT NULL THEN
                -- The first half finds the place in the index, the second tells rows with the same expiry apart.
                after := pg_catalog.format(
                    '%1$s OPERATOR(pg_catalog.>=) %2$L::%4$s'
                    ' AND (%1$s, ctid) OPERATOR(pg_catalog.>) (%2$L::%4$s, %3$L::pg_catalog.tid)',
                    key, places[1], places[2], kind);
            END IF;
            -- Rows with the same expiry are in the order of their addresses in the index; a sort would be done for each
            -- batch anew, of all of them.
            listed := pg_catalog.format(
                'SELECT ctid AS at, %2$s AS moment FROM ONLY %1$s AS lapse_row WHERE %3$s AND %4$s ORDER BY %2$s LIMIT %5$s',
                target, key, condition, after, numbers[1]);
            -- They are listed in order, so the last address belongs to the latest moment.
            farthest := 'ARRAY[pg_catalog.max(moment)::pg_catalog.text,'
                        ' (pg_catalog.array_agg(at))[pg_catalog.count(*)::pg_catalog.int4]::pg_catalog.text]';
        END IF;
        -- One row, with the addresses as an array: cheaper than as many rows, of which each would be stored twice.
        listed := pg_catalog.format(
            'SELECT pg_catalog.array_agg(at) AS addresses, pg_catalog.count(*) AS count, %s AS last FROM (%s) listed',
            farthest, listed);
        IF NOT deletes THEN
            EXECUTE pg_catalog.format(
                'SELECT pg_catalog.jsonb_build_object(''count'', count, ''last'', last, ''deleted'', 0) FROM (%s) seen',
                listed) INTO STRICT result;
            RETURN result;
        END IF;

        IF pg_catalog.cardinality(holding) OPERATOR(pg_catalog.>) 0 THEN
            -- Rows to which a foreign key of another table of the same owner refers; what others' tables refer to, the
            -- server itself refuses.
            SELECT pg_catalog.string_agg(' AND ' OPERATOR(pg_catalog.||) pg_catalog.format(
                       'NOT EXISTS (SELECT 1 FROM %I.%I AS lapse_child WHERE %s AND (lapse_child.tableoid, lapse_child.ctid)'
                       ' OPERATOR(pg_catalog.<>) (lapse_row.tableoid, lapse_row.ctid))', n.nspname, c.relname, pairs.text), '')
              INTO free
              FROM pg_catalog.pg_constraint f
              JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) f.conrelid
              JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
             CROSS JOIN LATERAL (
                   SELECT pg_catalog.string_agg(pg_catalog.format('lapse_row.%I OPERATOR(%I.%s) lapse_child.%I',
                                                                  r.attname, m.nspname, o.oprname, h.attname), ' AND ') AS text
                     FROM pg_catalog.generate_subscripts(f.conkey, 1) AS place(number)
                     JOIN pg_catalog.pg_attribute r ON r.attrelid OPERATOR(pg_catalog.=) f.confrelid
                                                   AND r.attnum OPERATOR(pg_catalog.=) f.confkey[place.number]
                     JOIN pg_catalog.pg_attribute h ON h.attrelid OPERATOR(pg_catalog.=) f.conrelid
                                                   AND h.attnum OPERATOR(pg_catalog.=) f.conkey[place.number]
                     JOIN pg_catalog.pg_operator o ON o.oid OPERATOR(pg_catalog.=) f.conpfeqop[place.number]
                     JOIN pg_catalog.pg_namespace m ON m.oid OPERATOR(pg_catalog.=) o.oprnamespace) pairs
             WHERE f.oid OPERATOR(pg_catalog.=) ANY (holding) AND f.contype OPERATOR(pg_catalog.=) 'f'
               AND pg_catalog.pg_get_userbyid(c.relowner) OPERATOR(pg_catalog.=) CURRENT_USER;
        END IF;

{judged}        IF numbers[2] OPERATOR(pg_catalog.=) 1{unjudged} THEN
            addresses := pg_catalog.format(
                'ARRAY(SELECT ctid FROM ONLY %s AS lapse_row WHERE ctid OPERATOR(pg_catalog.=) ANY (%s) AND (%s) IS TRUE'
                ' FOR UPDATE SKIP LOCKED)', target, addresses, condition);
        END IF;
        EXECUTE pg_catalog.format(
            'WITH seen AS MATERIALIZED (%s), gone AS (%s){kept}{beside}'
            ' SELECT pg_catalog.jsonb_build_object(''count'', count, ''last'', last,'
            ' ''deleted'', (SELECT pg_catalog.count(*) FROM {counted}){keyed}) FROM seen',
            listed, pg_catalog.format({delete}, target, condition, addresses, NULL, part, free){insert}) INTO STRICT result;
        SET CONSTRAINTS ALL IMMEDIATE;
        IF (result OPERATOR(pg_catalog.->) 'deleted') OPERATOR(pg_catalog.<>) (result OPERATOR(pg_catalog.->) 'count') THEN
            -- Of the rows still there, those that can be locked are not locked by others.
            IF op OPERATOR(pg_catalog.=) 'blocks' THEN
                span := pg_catalog.format('%s AND ctid OPERATOR(pg_catalog.<=) %L::pg_catalog.tid', after,
                                          result OPERATOR(pg_catalog.->>) 'last');
            ELSE
                span := pg_catalog.format('%1$s OPERATOR(pg_catalog.<=) %2$L::%5$s AND %3$s'
                                          ' AND (%1$s, ctid) OPERATOR(pg_catalog.<=) (%2$L::%5$s, %4$L::pg_catalog.tid)',
                                          key, result OPERATOR(pg_catalog.#>>) ARRAY['last', '0']::pg_catalog.text[], after,
                                          result OPERATOR(pg_catalog.#>>) ARRAY['last', '1']::pg_catalog.text[], kind);
            END IF;
            span := pg_catalog.format('SELECT 1 FROM ONLY %s AS lapse_row WHERE %s AND (%s) IS TRUE', target, span, condition);
            EXECUTE pg_catalog.format(
                'SELECT pg_catalog.jsonb_build_array((SELECT pg_catalog.count(*) FROM (%1$s) total),'
                ' (SELECT pg_catalog.count(*) FROM (%1$s FOR UPDATE SKIP LOCKED) free))', span) INTO STRICT behind;
            result := result OPERATOR(pg_catalog.||) pg_catalog.jsonb_build_object('left', behind);
        END IF;
        RETURN result;
    END IF;

{reads}    ELSE
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = pg_catalog.format('unknown operation %L', op);
    END IF;
    IF places[1] IS NOT NULL THEN
        sample := pg_catalog.format({sample}, places[1]::pg_catalog.float8);
    END IF;
    buckets := pg_catalog.format('CASE %s ELSE %s END', buckets, pg_catalog.cardinality(cutoffs));
    EXECUTE pg_catalog.format(template, target, condition, expiry, key, buckets, numbers[1], sample) INTO result;
    RETURN result;
END
