"""Partitions: the leaves of a table, and what the bounds of a leaf tell about its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from lapse.engines.postgres import bounds, inspect, partition_state
from lapse.engines.postgres.bounds import Bound, Value
from lapse.engines.postgres.condition import Condition
from lapse.engines.postgres.names import CATALOG_SCHEMA, literal, own_name, quote, relation
from lapse.engines.postgres.partition_state import PartitionState
from lapse.engines.values import LeafChanges
from lapse.errors import Unsupported
from lapse.model.table import Table, TableKind, TableName

# Every table above a leaf, from the nearest on: what it is partitioned by, in PostgreSQL's own order, and which
# part of the next one it is.
_ABOVE = """
    SELECT p.partstrat::text AS strategy, p.partnatts AS columns, a.attname AS column,
           pg_catalog.format_type(b.oid, NULL) AS type, pg_catalog.pg_get_expr(c.relpartbound, c.oid) AS bound,
           o.opcdefault AND o.opcnamespace = 'pg_catalog'::pg_catalog.regnamespace
             AND b.typnamespace = 'pg_catalog'::pg_catalog.regnamespace AS usual
      FROM pg_catalog.pg_partition_ancestors(%(parent)s::oid::pg_catalog.regclass) WITH ORDINALITY above(relid, number)
      JOIN pg_catalog.pg_class c ON c.oid = above.relid
      JOIN pg_catalog.pg_partitioned_table p ON p.partrelid = c.oid
      JOIN pg_catalog.pg_opclass o ON o.oid = p.partclass[0]
      LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = p.partattrs[0]
      LEFT JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
      LEFT JOIN pg_catalog.pg_type b ON b.oid = CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END
     ORDER BY above.number"""

# Some leaves and everything above them, with what the table right above each is partitioned by. A name is looked up
# once, whatever the server knows of how many tables it has.
_UPWARDS = """
    WITH RECURSIVE wanted AS MATERIALIZED (
         SELECT pg_catalog.to_regclass(name)::oid AS relid
           FROM pg_catalog.unnest(%(names)s::pg_catalog.text[]) AS name),
         upwards AS (
         SELECT i.inhrelid AS relid, i.inhparent AS parent
           FROM wanted JOIN pg_catalog.pg_inherits i ON i.inhrelid = wanted.relid AND NOT i.inhdetachpending
          UNION
         SELECT i.inhrelid, i.inhparent
           FROM upwards JOIN pg_catalog.pg_inherits i ON i.inhrelid = upwards.parent AND NOT i.inhdetachpending),
         above AS (
         SELECT p.partrelid, p.partstrat::text AS strategy, p.partnatts AS columns, a.attname AS column,
                pg_catalog.format_type(b.oid, NULL) AS type,
                o.opcdefault AND o.opcnamespace = 'pg_catalog'::pg_catalog.regnamespace
                  AND b.typnamespace = 'pg_catalog'::pg_catalog.regnamespace AS usual
           FROM pg_catalog.pg_partitioned_table p
           JOIN pg_catalog.pg_opclass o ON o.oid = p.partclass[0]
           LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0]
           LEFT JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
           LEFT JOIN pg_catalog.pg_type b ON b.oid = CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END
          WHERE p.partrelid IN (SELECT parent FROM upwards))
    SELECT c.oid, c.relname, n.nspname, c.relkind::text = 'r' AS is_leaf, upwards.parent, above.strategy, above.columns,
           above.column, above.type, above.usual, pg_catalog.pg_get_expr(c.relpartbound, c.oid) AS bound
      FROM upwards
     CROSS JOIN LATERAL (SELECT * FROM pg_catalog.pg_class WHERE oid = upwards.relid OFFSET 0) c
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
      JOIN above ON above.partrelid = upwards.parent"""

# A mark is made of what each table on the way down to a leaf is a part of, and which part: a partition key never
# changes, and no bound without that text. Neither is read here, which would open every leaf. Of those that are known
# to be clean, and are what they were, nothing is told but that there are some.
_CHANGES = f"""
    WITH RECURSIVE tree AS (
         SELECT %(root)s::oid AS relid, 'p'::pg_catalog."char" AS kind, %(version)s::int8 AS mark,
                NULL::name AS relname, 0::oid AS namespace
          UNION ALL
         SELECT c.oid, c.relkind,
                pg_catalog.hashtextextended((tree.relid || ' ' || c.relpartbound::text) COLLATE "C", tree.mark),
                c.relname, c.relnamespace
           FROM tree
           JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.relid AND NOT i.inhdetachpending
           JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relispartition
          WHERE tree.kind = 'p'),
         found AS MATERIALIZED (
         SELECT tree.relname, n.nspname, tree.mark::text AS mark,
                CASE WHEN n.nspname = %(schema)s THEN '' ELSE n.nspname::text END COLLATE "C" AS schema
           FROM tree JOIN pg_catalog.pg_namespace n ON n.oid = tree.namespace
          WHERE tree.kind = 'r'
            AND NOT EXISTS (SELECT 1 FROM {CATALOG_SCHEMA}.lapse_policy
                             WHERE schema_name = n.nspname::text AND table_name = tree.relname::text)),
         known AS MATERIALIZED (
         SELECT table_id, bounds,
                partition_schema::text COLLATE "C" AS schema, partition_name::text COLLATE "C" AS name,
                clean_at > %(now)s AND next_run_at > %(now)s AS is_clean
           FROM {CATALOG_SCHEMA}.lapse_table WHERE policy_id = %(policy)s)
    SELECT found.relname, found.nspname, found.mark, known.*,
           (SELECT pg_catalog.count(*) FROM known WHERE is_clean) AS clean
      FROM found FULL JOIN known ON known.name = found.relname::text COLLATE "C" AND known.schema = found.schema
     WHERE (known.is_clean AND known.bounds = found.mark) IS NOT TRUE"""

CLOCKS_GO_BACK = "4 hours"
"""Later values on a wall clock expire earlier by less than this where it is put back."""

_RANGE = """
    SELECT a.attname AS column FROM pg_catalog.pg_partitioned_table p
      JOIN pg_catalog.pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0]
     WHERE p.partrelid = pg_catalog.to_regclass(%(name)s) AND p.partstrat = 'r' AND p.partnatts = 1"""

_IS_LEAF = """
    SELECT 1 FROM pg_catalog.pg_partition_ancestors(pg_catalog.to_regclass(%(leaf)s)) above
      JOIN pg_catalog.pg_class c ON c.oid = pg_catalog.to_regclass(%(leaf)s) AND c.relkind = 'r'
     WHERE above.relid = pg_catalog.to_regclass(%(root)s)"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueSpan:
    """Which values of the expiry column a leaf can hold, by one level of partitioning: `low` to below `high`."""

    low: Value
    high: Value
    type: str


def range_column(connection: Connection, table: Table) -> str | None:
    found = inspect.rows(connection, _RANGE, {"name": relation(table.name)})
    return str(found[0]["column"]) if found else None


def leaves(connection: Connection, table: Table) -> list[Table]:
    if table.kind is not TableKind.PARTITIONED:
        return [table]
    return [inspect.describe(connection, name) for name in leaf_names(connection, table)]


def leaf_names(connection: Connection, table: Table) -> list[TableName]:
    if table.kind is not TableKind.PARTITIONED:
        return [table.name]
    attached = inspect.leaf_names(connection, table.name)
    # Those that a job has detached and not yet dropped are still the table's.
    left = [own for own in partition_state.detached_from(connection, table.name) if own not in attached]
    return [_below(table.name, own) for own in (*attached, *left)]


def _below(table: TableName, own: TableName) -> TableName:
    schema = None if own.schema == table.schema else own.schema
    return TableName(table.name, table.schema, own.name, schema)


def leaf(connection: Connection, table: Table, name: TableName) -> Table | None:
    """Looked up and described alone: a table may have thousands of them."""
    if table.kind is not TableKind.PARTITIONED:
        return table if name == table.name else None
    attached = inspect.rows(connection, _IS_LEAF, {"root": relation(table.name), "leaf": relation(own_name(name))})
    # One that a job has detached and not yet dropped is still the table's.
    if not attached and own_name(name) not in partition_state.detached_from(connection, table.name):
        return None
    return inspect.describe(connection, name)


def has_expired(connection: Connection, spans: Sequence[ValueSpan], found: Condition) -> bool:
    """Is the upper bound of a leaf, on the expiry column, not above the threshold?"""
    return any(not span.high.word and _compare(connection, span, span.high, "<=", found) for span in spans)


def begins_later(connection: Connection, spans: Sequence[ValueSpan], found: Condition) -> bool:
    """Is the lower bound of a leaf, on the expiry column, above the threshold, so that no row can have expired?"""
    return any(not span.low.word and _compare(connection, span, span.low, ">", found) for span in spans)


def changes(connection: Connection, table: Table, *, policy_id: int, version: int, now: datetime) -> LeafChanges:
    asked = {"root": table.id, "schema": table.name.schema, "policy": policy_id, "version": version, "now": now}
    # Those that a job has detached and not yet dropped are still the table's.
    detached = {_below(table.name, own) for own in partition_state.detached_from(connection, table.name)}
    rows = inspect.rows(connection, _CHANGES, asked)
    new: dict[TableName, str | None] = {}
    gone: set[int] = set()
    marks: dict[int, str] = {}
    left: set[int] = set()
    for row in rows:
        key = row["table_id"]
        if key is None:
            new[_below(table.name, TableName(str(row["relname"]), str(row["nspname"])))] = row["mark"]
            continue
        name = TableName(table.name.name, table.name.schema, str(row["name"]), str(row["schema"]) or None)
        is_detached = name in detached
        detached.discard(name)
        if row["relname"] is None:
            (left if is_detached else gone).add(key)
        elif row["bounds"] != row["mark"]:
            marks[key] = str(row["mark"])
        else:
            left.add(key)
    new |= dict.fromkeys(detached - new.keys(), None)
    hides = not rows or rows[0]["clean"] > sum(bool(row["is_clean"]) for row in rows)
    return LeafChanges(new=new, gone=frozenset(gone), marks=marks, open=frozenset(left), hides=hides)


def clean(
    connection: Connection,
    table: Table,
    names: Sequence[TableName],
    found: Condition,
    cutoff: datetime,
    *,
    until: datetime,
) -> dict[TableName, datetime]:
    """Leaves whose lower bound on the expiry column, at any level above them, is above the threshold."""
    if found.column is None or found.threshold is None:
        return {}
    rows = inspect.rows(connection, _UPWARDS, {"names": [relation(own_name(name)) for name in names]})
    lows = {row["oid"]: low for row in rows if (low := _low(row, found)) is not None}
    ends: dict[tuple[str, str], datetime] = {}
    for kind in {kind for kind, _ in lows.values()}:
        texts = sorted({text for each, text in lows.values() if each == kind})
        asked = {"lows": texts, "cutoff": cutoff, "until": until}
        ends |= {(kind, row["low"]): row["ends"] for row in inspect.rows(connection, _later(kind, found), asked)}
    above = {row["oid"]: row["parent"] for row in rows}
    cleared: dict[TableName, datetime] = {}
    for row in rows:
        way = _way(row["oid"], above)
        later = [ends[lows[step]] for step in way if step in lows and lows[step] in ends]
        if row["is_leaf"] and later and str(above[way[-1]]) == table.id:
            cleared[_below(table.name, TableName(str(row["relname"]), str(row["nspname"])))] = max(later)
    return cleared


def _way(oid: int, above: Mapping[int, int]) -> list[int]:
    """From a leaf to the part right below the table at the top."""
    way = [oid]
    while (parent := above[way[-1]]) in above:
        way.append(parent)
    return way


def _later(kind: str, found: Condition) -> str:
    """SQL: those of the values `lows` that have not expired, and when each does: no row of a leaf does before."""
    assert found.column is not None and found.threshold is not None
    text = "lapse_low" if found.column != "lapse_low" else "lapse_text"
    threshold, instant = (sql.replace("%", "%%") for sql in (found.threshold, found.instant))
    column = quote(found.column).replace("%", "%%")
    earliest = f"coalesce(({instant}) - interval '{CLOCKS_GO_BACK}', %(cutoff)s)"
    return f"""
        SELECT {text} AS low,
               GREATEST(%(cutoff)s, LEAST(%(until)s, {earliest})) AS ends
          FROM (SELECT given.low AS {text}, given.low::{kind} AS {column}
                  FROM pg_catalog.unnest(%(lows)s::pg_catalog.text[]) AS given (low)) AS lapse_row
         WHERE {column} OPERATOR(pg_catalog.>) {threshold}"""


def _low(row: Mapping[str, Any], found: Condition) -> tuple[str, str] | None:
    """The type and the text of a lower bound on the expiry column, where that says what the rows can hold."""
    bound = _read(row["bound"])
    if (row["strategy"], row["columns"], row["column"]) != ("r", 1, found.column) or not row["usual"]:
        return None
    return (str(row["type"]), bound.low[0].text) if bound is not None and not bound.low[0].word else None


def _compare(connection: Connection, span: ValueSpan, value: Value, operator: str, found: Condition) -> bool:
    compared = f"SELECT {literal(value.text)}::{span.type} OPERATOR(pg_catalog.{operator}) {found.threshold}"
    return bool(connection.exec_driver_sql(compared).scalar_one())


def spans(connection: Connection, state: PartitionState | None, found: Condition) -> list[ValueSpan]:
    """Of a detached leaf, what the catalog remembers; the tables above it are where they are."""
    if found.column is None or found.threshold is None or state is None:
        return []
    parent = state.detachment.parent if state.detachment is not None else state.parent
    bound = state.detachment.bound if state.detachment is not None else state.bound
    if parent is None:
        return []
    known = []
    for step in inspect.rows(connection, _ABOVE, {"parent": parent}):
        read = _read(bound)
        if (step["strategy"], step["columns"], step["column"]) == ("r", 1, found.column) and step["usual"] and read:
            known.append(ValueSpan(low=read.low[0], high=read.high[0], type=step["type"]))
        bound = step["bound"]
    return known


def _read(bound: str | None) -> Bound | None:
    """None for a bound that is no range."""
    try:
        read = bounds.read(bound or "")
    except Unsupported:
        return None
    return read if read.low and read.high else None


def is_leaf(connection: Connection, name: TableName) -> bool:
    found = partition_state.find(connection, own_name(name))
    return found is not None and found.parent is not None


_KIN = """
    SELECT c.relname, n.nspname
      FROM (SELECT relid FROM pg_catalog.pg_partition_ancestors(pg_catalog.to_regclass(%(name)s))
             UNION SELECT relid FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass(%(name)s))) kin
      JOIN pg_catalog.pg_class c ON c.oid = kin.relid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE kin.relid <> pg_catalog.to_regclass(%(name)s)"""


def kin(connection: Connection, name: TableName) -> frozenset[TableName]:
    """The tables that this one is a partition of, and its own partitions, at any level."""
    found = inspect.rows(connection, _KIN, {"name": relation(name)})
    return frozenset(TableName(str(row["relname"]), str(row["nspname"])) for row in found)
