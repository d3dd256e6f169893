"""Partitions: the leaves of a table, and what the bounds of a leaf tell about its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from lapse.engines.postgres import bounds, inspect, partition_state
from lapse.engines.postgres.bounds import Bound, Value
from lapse.engines.postgres.condition import Condition
from lapse.engines.postgres.names import literal, own_name, relation
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

# Everything below a table, what is nearest to it first, with what the table right above is partitioned by.
_BELOW = """
    WITH RECURSIVE tree AS (
         SELECT i.inhrelid AS relid, i.inhparent AS parent, 1 AS depth
           FROM pg_catalog.pg_inherits i WHERE i.inhparent = %(root)s::oid AND NOT i.inhdetachpending
          UNION ALL
         SELECT i.inhrelid, i.inhparent, tree.depth + 1
           FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.relid AND NOT i.inhdetachpending),
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
          WHERE p.partrelid IN (SELECT parent FROM tree))
    SELECT c.oid, c.relname, n.nspname, c.relkind::text = 'r' AS is_leaf, tree.parent, above.strategy, above.columns,
           above.column, above.type, above.usual, pg_catalog.pg_get_expr(c.relpartbound, c.oid) AS bound
      FROM tree
      JOIN pg_catalog.pg_class c ON c.oid = tree.relid
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
      JOIN above ON above.partrelid = tree.parent
     ORDER BY tree.depth"""

_RANGE = """
    SELECT a.attname AS column FROM pg_catalog.pg_partitioned_table p
      JOIN pg_catalog.pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0]
     WHERE p.partrelid = pg_catalog.to_regclass(%(name)s) AND p.partstrat = 'r' AND p.partnatts = 1"""

_IS_LEAF = """
    SELECT 1 FROM pg_catalog.pg_partition_ancestors(pg_catalog.to_regclass(%(leaf)s)) above
      JOIN pg_catalog.pg_class c ON c.oid = pg_catalog.to_regclass(%(leaf)s) AND c.relkind = 'r'
     WHERE above.relid = pg_catalog.to_regclass(%(root)s)"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
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


def has_expired(connection: Connection, leaf: TableName, found: Condition) -> bool:
    """Is the upper bound of the leaf, on the expiry column, not above the threshold?"""
    return any(
        not span.high.word and _compare(connection, span, span.high, "<=", found)
        for span in _spans(connection, leaf, found)
    )


def begins_later(connection: Connection, leaf: TableName, found: Condition) -> bool:
    """Is the lower bound of the leaf, on the expiry column, above the threshold, so that no row can have expired?"""
    return any(
        not span.low.word and _compare(connection, span, span.low, ">", found)
        for span in _spans(connection, leaf, found)
    )


def unexpired(connection: Connection, table: Table, found: Condition) -> frozenset[TableName]:
    """Leaves whose lower bound on the expiry column, at any level above them, is above the threshold."""
    own = inspect.relation_row(connection, table.name)
    if own is None or found.column is None or found.threshold is None:
        return frozenset()
    below = inspect.rows(connection, _BELOW, {"root": own["oid"]})
    lows = {row["oid"]: low for row in below if (low := _low(row, found)) is not None}
    later: set[tuple[str, str]] = set()
    for kind in {kind for kind, _ in lows.values()}:
        asked = (
            "SELECT low FROM pg_catalog.unnest(%(lows)s::pg_catalog.text[]) AS low"
            f" WHERE low::{kind} OPERATOR(pg_catalog.>) {found.threshold.replace('%', '%%')}"
        )
        texts = {text for each, text in lows.values() if each == kind}
        later |= {(kind, str(row["low"])) for row in inspect.rows(connection, asked, {"lows": sorted(texts)})}
    unexpired_below: set[int] = set()
    for row in below:
        if row["parent"] in unexpired_below or lows.get(row["oid"]) in later:
            unexpired_below.add(row["oid"])
    return frozenset(
        _below(table.name, TableName(str(row["relname"]), str(row["nspname"])))
        for row in below
        if row["is_leaf"] and row["oid"] in unexpired_below
    )


def _low(row: Mapping[str, Any], found: Condition) -> tuple[str, str] | None:
    """The type and the text of a lower bound on the expiry column, where that says what the rows can hold."""
    bound = _read(row["bound"])
    if (row["strategy"], row["columns"], row["column"]) != ("r", 1, found.column) or not row["usual"]:
        return None
    return (str(row["type"]), bound.low[0].text) if bound is not None and not bound.low[0].word else None


def _compare(connection: Connection, span: Span, value: Value, operator: str, found: Condition) -> bool:
    compared = f"SELECT {literal(value.text)}::{span.type} OPERATOR(pg_catalog.{operator}) {found.threshold}"
    return bool(connection.exec_driver_sql(compared).scalar_one())


def _spans(connection: Connection, leaf: TableName, found: Condition) -> list[Span]:
    """Of a detached leaf, what the catalog remembers; the tables above it are where they are."""
    state = partition_state.find(connection, leaf)
    if found.column is None or found.threshold is None or state is None:
        return []
    parent = state.detachment.parent if state.detachment is not None else state.parent
    bound = state.detachment.bound if state.detachment is not None else state.bound
    if parent is None:
        return []
    spans = []
    for step in inspect.rows(connection, _ABOVE, {"parent": parent}):
        read = _read(bound)
        if (step["strategy"], step["columns"], step["column"]) == ("r", 1, found.column) and step["usual"] and read:
            spans.append(Span(low=read.low[0], high=read.high[0], type=step["type"]))
        bound = step["bound"]
    return spans


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
