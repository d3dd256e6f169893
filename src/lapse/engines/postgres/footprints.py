"""How large tables are, many in one statement: measured, or from the last ANALYZE where one is locked.

The functions that measure a table wait for the sessions that have locked it, or that ask for such a lock.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from lapse.engines.postgres import inspect
from lapse.engines.values import Footprint
from lapse.model.table import TableName

_FOOTPRINTS = f"""
    WITH RECURSIVE tree AS (
         SELECT wanted.number, c.oid AS relid
           FROM ROWS FROM (unnest(%(schemas)s::text[]), unnest(%(tables)s::text[])) WITH ORDINALITY
                AS wanted (nspname, relname, number)
           JOIN pg_catalog.pg_namespace n ON n.nspname = wanted.nspname
           JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.relname
          UNION ALL
         SELECT tree.number, i.inhrelid
           FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.relid AND c.relkind = 'p'
           JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.relid),
    locked AS MATERIALIZED (
         SELECT coalesce(i.indrelid, l.relation) AS relid
           FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_index i ON i.indexrelid = l.relation
          WHERE l.mode = 'AccessExclusiveLock' AND l.locktype = 'relation' AND l.pid <> pg_catalog.pg_backend_pid()
            AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d
                               WHERE d.datname = pg_catalog.current_database())),
    sized AS (
         SELECT tree.number, c.oid, c.reltuples, c.relkind = 'r' AS stores, {inspect.DENSITY} AS density,
                pg_catalog.current_setting('block_size')::bigint AS block,
                %(measured)s AND NOT EXISTS (SELECT 1 FROM locked l WHERE l.relid IN (c.oid, c.reltoastrelid))
                  AS measured,
                (SELECT sum(x.relpages) FROM pg_catalog.pg_class x
                  WHERE x.oid IN (c.oid, c.reltoastrelid)
                     OR x.oid IN (SELECT i.indexrelid FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid)) AS pages
           FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.relid)
    SELECT number,
           coalesce(sum(CASE WHEN measured THEN density * (pg_catalog.pg_relation_size(oid) / block)
                             ELSE greatest(reltuples, 0) END) FILTER (WHERE stores), 0)::bigint AS rows,
           coalesce(sum(CASE WHEN measured THEN pg_catalog.pg_total_relation_size(oid) ELSE pages * block END)
                    FILTER (WHERE stores), 0)::bigint AS bytes,
           coalesce(sum(pg_catalog.pg_stat_get_tuples_inserted(oid)), 0)::bigint AS inserted
      FROM sized GROUP BY number"""


def read(connection: Connection, names: Sequence[TableName], *, measured: bool = True) -> dict[TableName, Footprint]:
    values = {
        "schemas": [name.schema for name in names],
        "tables": [name.name for name in names],
        "measured": measured,
    }
    return {
        names[row["number"] - 1]: Footprint(rows=row["rows"], bytes=row["bytes"], inserted=row["inserted"])
        for row in inspect.rows(connection, _FOOTPRINTS, values)
    }
