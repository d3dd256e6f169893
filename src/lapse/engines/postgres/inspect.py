"""Read a table's shape from PostgreSQL's catalog."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqlalchemy import Connection

from lapse.engines.postgres import session
from lapse.engines.postgres.names import CATALOG_SCHEMA, SAFE_PATH, USER_PATH, literal, own_name, quote, relation
from lapse.engines.values import Stray, TableComment
from lapse.errors import Drift, NotPermitted, TableNotFound
from lapse.model.table import Column, FkAction, Index, Reference, Table, TableKind, TableName

_KINDS = {
    "r": TableKind.TABLE,
    "p": TableKind.PARTITIONED,
    "v": TableKind.VIEW,
    "m": TableKind.VIEW,
    "f": TableKind.FOREIGN,
}
_ACTIONS = {
    "c": FkAction.CASCADE,
    "n": FkAction.SET_NULL,
    "d": FkAction.SET_DEFAULT,
    "r": FkAction.RESTRICT,
    "a": FkAction.NO_ACTION,
}
SYSTEM_SCHEMAS = ("pg_catalog", "information_schema", "pg_toast", CATALOG_SCHEMA)

_USE_USERS_PATH = f"""
    SET LOCAL search_path TO DEFAULT;
    SELECT pg_catalog.set_config('search_path', coalesce(
               nullif(pg_catalog.current_setting('{USER_PATH}', true), ''),
               pg_catalog.current_setting('search_path')), true)"""
_USE_OWN_PATH = f"SELECT pg_catalog.set_config('search_path', {literal(SAFE_PATH)}, true)"

_IN_PATH = """
    SELECT c.relname, n.nspname
      FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
     WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(%(name)s)"""

_ALL_IN_PATH = """
    SELECT wanted.name, c.relname, n.nspname
      FROM pg_catalog.unnest(%(names)s::pg_catalog.text[]) AS wanted (name)
      JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(wanted.name)
      JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
     WHERE c.relkind OPERATOR(pg_catalog.=) ANY ('{r,p}'::pg_catalog."char"[])
       AND c.relpersistence OPERATOR(pg_catalog.<>) 't'"""
"""Both under the user's path, so nothing in them is found by the path but the names that are asked for."""

_RELATION = """
    SELECT c.oid, c.relname, n.nspname, c.relkind, c.relpersistence, obj_description(c.oid, 'pg_class') AS comment
      FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE c.oid = to_regclass(%(name)s)"""

# A domain counts as the type it is made of: that is what comparisons and indexes see.
_COLUMNS = """
    SELECT a.attname, a.attnum, a.attnotnull, a.attgenerated, format_type(base.oid, base.modifier) AS type,
           (SELECT t.typnamespace <> 'pg_catalog'::regnamespace AND t.typtype <> 'e'
              FROM pg_catalog.pg_type t WHERE t.oid = base.oid) AS custom
      FROM pg_catalog.pg_attribute a
     CROSS JOIN LATERAL (
           WITH RECURSIVE chain AS (
                SELECT a.atttypid AS oid, a.atttypmod AS modifier, 0 AS depth
                 UNION ALL
                SELECT t.typbasetype, t.typtypmod, chain.depth + 1
                  FROM chain JOIN pg_catalog.pg_type t ON t.oid = chain.oid AND t.typtype = 'd')
           SELECT oid, modifier FROM chain ORDER BY depth DESC LIMIT 1) base
     WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
     ORDER BY a.attnum"""

# An index that leaves out nothing but NULLs holds every row that can expire.
_INDEXES = """
    SELECT c.relname, m.amname, i.indisunique, i.indisprimary,
           i.indpred IS NOT NULL
             AND (m.amname <> 'btree'
                  OR pg_get_expr(i.indpred, i.indrelid)
                     IS DISTINCT FROM '(' || quote_ident(first.attname) || ' IS NOT NULL)') AS partial,
           NOT EXISTS (SELECT 1
                         FROM unnest(i.indoption::smallint[], i.indclass::oid[], i.indcollation::oid[],
                                     (i.indkey::smallint[])[0:i.indnkeyatts - 1]) k(option, class, rules, number)
                         JOIN pg_catalog.pg_opclass o ON o.oid = k.class
                         LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
                        WHERE k.option <> 0 OR NOT o.opcdefault OR k.rules <> a.attcollation) AS ascends,
           ARRAY(SELECT a.attname FROM unnest(i.indkey::smallint[]) WITH ORDINALITY k(number, place)
                   LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
                  WHERE k.place <= i.indnkeyatts ORDER BY k.place)::text[] AS columns
      FROM pg_catalog.pg_index i
      JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
      JOIN pg_catalog.pg_am m ON m.oid = c.relam AND m.amname IN ('btree', 'brin')
      LEFT JOIN pg_catalog.pg_attribute first ON first.attrelid = i.indrelid AND first.attnum = i.indkey[0]
     WHERE i.indrelid = %(oid)s AND i.indisvalid AND i.indisready
     ORDER BY c.relname"""

# A foreign key to a partitioned table holds the rows of every leaf. Its copies for the leaves are left out. No index of
# the server's leads to what refers to a table: all keys there are would be read, were it not for the triggers that each
# one has put on it. Up to PostgreSQL 14 those of a partitioned table are on its leaves alone.
_REFERENCES = """
    SELECT n.nspname, c.relname, f.confdeltype,
           ARRAY(SELECT a.attname FROM unnest(f.conkey) WITH ORDINALITY k(number, place)
                   JOIN pg_catalog.pg_attribute a ON a.attrelid = f.conrelid AND a.attnum = k.number
                  ORDER BY k.place)::text[] AS columns,
           ARRAY(SELECT a.attname FROM unnest(f.confkey) WITH ORDINALITY k(number, place)
                   JOIN pg_catalog.pg_attribute a ON a.attrelid = f.confrelid AND a.attnum = k.number
                  ORDER BY k.place)::text[] AS referred,
           EXISTS (SELECT 1 FROM pg_catalog.pg_index i
                    WHERE i.indrelid = f.conrelid AND i.indisvalid AND i.indpred IS NULL
                      AND (i.indkey::smallint[])[0:cardinality(f.conkey) - 1] @> f.conkey) AS indexed
      FROM pg_catalog.pg_constraint f
      JOIN pg_catalog.pg_class c ON c.oid = f.conrelid
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE f.contype = 'f' AND f.conparentid = 0
       AND EXISTS (SELECT 1 FROM pg_catalog.pg_class w
                    WHERE w.oid = %(oid)s AND (w.relhastriggers OR w.relkind = 'p'))
       AND (f.confrelid = %(oid)s
            OR f.confrelid IN (SELECT relid FROM pg_partition_ancestors(%(oid)s::oid::regclass)))
     ORDER BY n.nspname, c.relname, f.conname"""

# As pg_partition_tree does it, which would wait for a lock on every one of them.
_LEAVES = """
    WITH RECURSIVE tree AS (
         SELECT %(oid)s::oid AS relid
          UNION ALL
         SELECT i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.relid
          WHERE NOT i.inhdetachpending)
    SELECT l.relname, n.nspname
      FROM tree
      JOIN pg_catalog.pg_class l ON l.oid = tree.relid AND l.relkind = 'r' AND l.relispartition
      JOIN pg_catalog.pg_namespace n ON n.oid = l.relnamespace
     ORDER BY n.nspname, l.relname"""

_HEIRS = """
    SELECT c.relname, n.nspname
      FROM pg_catalog.pg_inherits i
      JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND NOT c.relispartition
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE i.inhparent = to_regclass(%(name)s)
     ORDER BY n.nspname, c.relname"""

_METHOD = """
    SELECT m.amname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_am m ON m.oid = c.relam
     WHERE c.oid = to_regclass(%(name)s)"""

_TABLES = """
    SELECT c.relname, n.nspname
      FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
       AND n.nspname <> ALL(%(system)s) AND n.nspname NOT LIKE 'pg\\_%%'
     ORDER BY n.nspname, c.relname"""

_OLD_MARK = "Lapse detaches this partition to drop it: "
"""Earlier versions wrote this into comments of partitions that they detached. It proves nothing and is only shown."""

_MARKED = """
    SELECT c.oid, c.relname, n.nspname, c.relispartition
      FROM pg_catalog.pg_description d
      JOIN pg_catalog.pg_class c ON c.oid = d.objoid AND d.classoid = 'pg_catalog.pg_class'::pg_catalog.regclass
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE d.objsubid = 0 AND c.relkind = 'r' AND position(%(mark)s IN d.description) > 0
     ORDER BY n.nspname, c.relname"""

_COMMENTS = """
    SELECT c.relname, n.nspname, d.description, pg_get_userbyid(c.relowner) AS owner,
           pg_get_userbyid(c.relowner) = current_user AS is_own
      FROM pg_catalog.pg_description d
      JOIN pg_catalog.pg_class c ON c.oid = d.objoid AND d.classoid = 'pg_catalog.pg_class'::regclass
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE d.objsubid = 0 AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
       AND n.nspname <> ALL(%(system)s) AND d.description ~* 'ttl|expire|retention'
       AND position(%(mark)s IN d.description) = 0
     ORDER BY n.nspname, c.relname"""


_RELATIONS = """
    SELECT wanted.name, c.oid, c.relname, n.nspname, c.relkind, c.relpersistence,
           obj_description(c.oid, 'pg_class') AS comment
      FROM pg_catalog.unnest(%(names)s::pg_catalog.text[]) AS wanted (name)
      JOIN pg_catalog.pg_class c ON c.oid = to_regclass(wanted.name)
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"""


def _of_each(sql: str) -> str:
    """The query for one table by its oid as one for many, which says whose each row is."""
    return (
        "SELECT wanted.oid AS wanted_oid, found.* FROM pg_catalog.unnest(%(oids)s::pg_catalog.oid[]) AS wanted (oid)"
        f" CROSS JOIN LATERAL ({sql.replace('%(oid)s', 'wanted.oid')}) found"
    )


def describe(connection: Connection, name: TableName) -> Table:
    own = _own_name(connection, name)
    if own is not None:
        # All of them in one message; the number of the table is asked for in each.
        parts = (
            sql.replace("%(oid)s", "pg_catalog.to_regclass(%(name)s)") for sql in (_COLUMNS, _INDEXES, _REFERENCES)
        )
        found, *rest = together(connection, *((sql, {"name": relation(own)}) for sql in (_RELATION, *parts)))
        if found:
            return _table(name, found[0], *rest)
    raise TableNotFound(f"there is no table {name} in this database")


def describe_all(connection: Connection, names: Collection[TableName]) -> dict[TableName, Table]:
    """As `describe` does one, inside a transaction."""
    wanted = {relation(full): name for name, full in full_names(connection, names).items()}
    found = rows(connection, _RELATIONS, {"names": list(wanted)})
    oids = {"oids": [row["oid"] for row in found]}
    parts = [_by_table(rows(connection, _of_each(sql), oids)) for sql in (_COLUMNS, _INDEXES, _REFERENCES)]
    return {
        wanted[row["name"]]: _table(wanted[row["name"]], row, *(part.get(row["oid"], []) for part in parts))
        for row in found
    }


def _by_table(found: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    by_oid: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in found:
        by_oid[row["wanted_oid"]].append(row)
    return by_oid


def _table(
    name: TableName,
    found: Mapping[str, Any],
    columns: list[dict[str, Any]],
    indexes: list[dict[str, Any]],
    references: list[dict[str, Any]],
) -> Table:
    schema = str(found["nspname"])
    kind = _KINDS.get(found["relkind"], TableKind.SYSTEM)
    if schema in SYSTEM_SCHEMAS:
        kind = TableKind.SYSTEM
    elif found["relpersistence"] == "t":
        kind = TableKind.TEMPORARY
    primary = next((tuple(row["columns"]) for row in indexes if row["indisprimary"]), ())
    full = TableName(str(found["relname"]), schema)
    return Table(
        name=full if name.partition is None else replace(name, schema=name.schema or schema),
        kind=kind,
        columns=tuple(_column(row) for row in columns),
        primary_key=primary,
        indexes=tuple(_index(row) for row in indexes if row["amname"] == "btree"),
        summaries=tuple(_index(row) for row in indexes if row["amname"] == "brin"),
        referenced_by=tuple(_reference(row) for row in references),
        comment=found["comment"],
        id=str(found["oid"]),
    )


def relation_row(connection: Connection, name: TableName) -> dict[str, Any] | None:
    own = _own_name(connection, name)
    if own is None:
        return None
    (found,) = together(connection, (_RELATION, {"name": relation(own)}))
    return next(iter(found), None)


def _own_name(connection: Connection, name: TableName) -> TableName | None:
    """With its schema; None where the user's search path finds no such table."""
    own = own_name(name)
    if own.schema is not None:
        return own
    found = _in_path(connection, own.name)
    return None if found is None else TableName(own.name, str(found["nspname"]))


def _in_path(connection: Connection, table: str) -> dict[str, Any] | None:
    """Where the user's search path finds a table, inside a transaction, whose own path is Lapse's."""
    _, found, _ = together(connection, (_USE_USERS_PATH, {}), (_IN_PATH, {"name": quote(table)}), (_USE_OWN_PATH, {}))
    return next(iter(found), None)


def full_name(connection: Connection, name: TableName) -> TableName:
    """With the schema in which the search path finds it."""
    own = own_name(name)
    found = _in_path(connection, own.name) if own.schema is None else relation_row(connection, own)
    if found is None:
        raise TableNotFound(f"there is no table {name} in this database")
    full = TableName(str(found["relname"]), str(found["nspname"]))
    return full if name.partition is None else replace(name, schema=name.schema or full.schema)


def full_names(connection: Connection, names: Collection[TableName]) -> dict[TableName, TableName]:
    """Those of tables, inside a transaction, whose own path is Lapse's."""
    wanted = {relation(name) if name.schema else quote(name.name): name for name in names if name.partition is None}
    session.send(connection, _USE_USERS_PATH)
    found = rows(connection, _ALL_IN_PATH, {"names": list(wanted)})
    session.send(connection, _USE_OWN_PATH)
    return {wanted[row["name"]]: TableName(str(row["relname"]), str(row["nspname"])) for row in found}


def leaf_names(connection: Connection, name: TableName) -> list[TableName]:
    """The leaves of a partitioned table, to any depth, as the tables they are; foreign tables are left out."""
    found = relation_row(connection, name)
    if found is None:
        raise TableNotFound(f"there is no table {name} in this database")
    return [TableName(str(r["relname"]), str(r["nspname"])) for r in rows(connection, _LEAVES, {"oid": found["oid"]})]


def table_names(connection: Connection) -> list[TableName]:
    found = rows(connection, _TABLES, {"system": list(SYSTEM_SCHEMAS)})
    return [TableName(str(row["relname"]), str(row["nspname"])) for row in found]


@dataclass(frozen=True, kw_only=True, slots=True)
class Heap:
    """What matters for deleting. `has_row_triggers`: a BEFORE DELETE trigger for each row (bits 1, 2 and 8), or a rule,
    could keep rows. `is_decoded`: the table's changes may be read by others. `holding`: foreign keys of the owner's own
    tables that keep rows, by oid."""

    rows_per_block: float
    blocks: int
    has_row_triggers: bool
    is_decoded: bool
    holding: list[int]

    @property
    def rows(self) -> int:
        """As the planner guesses it: density times the size now."""
        return int(self.rows_per_block * self.blocks)


DENSITY = """
    CASE WHEN c.relpages > 0 AND c.reltuples > 0 THEN c.reltuples / c.relpages
         ELSE (current_setting('block_size')::float8 - 24)
              / (28 + (SELECT sum(CASE WHEN a.attlen > 0 THEN a.attlen ELSE 32 END) FROM pg_catalog.pg_attribute a
                        WHERE a.attrelid = c.oid AND a.attnum > 0)) END"""
"""SQL: rows per block of the table c. Before the first ANALYZE it is guessed from the columns, as the planner does."""

HEAP = f"""
    SELECT {DENSITY} AS rows_per_block,
           pg_relation_size(c.oid) / current_setting('block_size')::bigint AS blocks,
           c.relhasrules OR EXISTS (SELECT 1 FROM pg_catalog.pg_trigger
                                     WHERE tgrelid = c.oid AND tgtype & 11 = 11) AS has_row_triggers,
           current_setting('wal_level') = 'logical' AS is_decoded,
           CASE WHEN c.relhastriggers THEN
           ARRAY(SELECT f.oid FROM pg_catalog.pg_constraint f JOIN pg_catalog.pg_class h ON h.oid = f.conrelid
                  WHERE f.contype = 'f' AND f.conparentid = 0 AND f.confdeltype IN ('a', 'r')
                    AND h.relowner = c.relowner
                    AND (f.confrelid = c.oid
                         OR f.confrelid IN (SELECT relid FROM pg_partition_ancestors(c.oid::regclass))))
           ELSE '{{}}'::oid[] END AS holding
      FROM pg_catalog.pg_class c WHERE c.oid = to_regclass(%(name)s)"""


def heap_query(name: TableName) -> Asked:
    return HEAP, {"name": relation(name)}


def heap_of(name: TableName, found: Sequence[Mapping[str, Any]]) -> Heap:
    """What `heap_query` has found."""
    if not found:
        what = f"partition {name.partition} of table {TableName(name.name, name.schema)}" if name.partition else name
        raise Drift(f"{what} does not exist any more")
    return Heap(**found[0])


def comments(connection: Connection) -> list[TableComment]:
    """A superuser owns what is its own, not everything."""
    found = rows(connection, _COMMENTS, {"system": list(SYSTEM_SCHEMAS), "mark": _OLD_MARK})
    return [
        TableComment(
            table=TableName(str(row["relname"]), str(row["nspname"])),
            text=str(row["description"]),
            owner=str(row["owner"]),
            is_own=bool(row["is_own"]),
        )
        for row in found
    ]


_DECLARER = """
    SELECT current_user::text AS role, pg_get_userbyid(c.relowner) AS owner,
           pg_has_role(current_user, c.relowner, 'USAGE') AS acts_for_it
      FROM pg_catalog.pg_class c WHERE c.oid = to_regclass(%(name)s)"""


def check_declarer(connection: Connection, name: TableName) -> None:
    for row in rows(connection, _DECLARER, {"name": relation(name)}):
        if not row["acts_for_it"]:
            raise NotPermitted(
                f"table {name} belongs to {row['owner']}, for whom {row['role']} may not act",
                hint=f"do this as {row['owner']}, or as a role that is a member of it",
            )


def is_own(connection: Connection, name: TableName) -> bool:
    """Does the table belong to the role of this connection?"""
    return _is_own(rows(connection, _DECLARER, {"name": relation(name)}))


def _is_own(found: Sequence[Mapping[str, Any]]) -> bool:
    return any(row["role"] == row["owner"] for row in found)


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """What a declaration asks of its table besides its shape. `method` is what stores its rows; `heirs` are tables made
    with INHERITS, which unlike partitions are not part of the table."""

    method: str | None
    is_own: bool
    heirs: tuple[TableName, ...]


def standing(connection: Connection, name: TableName) -> Standing:
    asked = {"name": relation(name)}
    methods, owners, heirs = together(connection, (_METHOD, asked), (_DECLARER, asked), (_HEIRS, asked))
    return Standing(
        method=next((str(row["amname"]) for row in methods), None),
        is_own=_is_own(owners),
        heirs=tuple(TableName(str(row["relname"]), str(row["nspname"])) for row in heirs),
    )


def old_marks(connection: Connection) -> list[Stray]:
    """Leaves in whose comments an earlier version of Lapse, or another role, says that they are to be dropped."""
    return [_marked(row) for row in rows(connection, _MARKED, {"mark": _OLD_MARK})]


def _marked(row: dict[str, Any]) -> Stray:
    name = TableName(str(row["relname"]), str(row["nspname"]))
    fix = f"COMMENT ON TABLE {relation(name)} IS NULL;"
    if row["relispartition"]:
        text = f"the comment of {name} says that an earlier version of Lapse was about to drop it; it is a partition"
        return Stray(id=row["oid"], table=name, text=text, fix=fix)
    text = (
        f"the comment of {name} says that an earlier version of Lapse has detached it to drop it; comments are not "
        "obeyed any more: drop the table or attach it again"
    )
    return Stray(id=row["oid"], table=name, text=text, fix=f"DROP TABLE {relation(name)}; or {fix}")


def rows(connection: Connection, sql: str, parameters: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    found = connection.exec_driver_sql(sql, parameters)
    names = tuple(found.keys())
    # Of thousands of leaves: SQLAlchemy's own mappings take several times as long.
    return [dict(zip(names, row, strict=True)) for row in found.all()]


Asked = tuple[str, Mapping[str, object]]
_PLACE = re.compile(r"%(?:%|\((\w+)\)s)")


def together(connection: Connection, *asked: Asked) -> list[list[dict[str, Any]]]:
    """What several queries find, each as `rows` does, in one message."""
    return session.results(connection, "; ".join(filled(*each) for each in asked))


def filled(sql: str, values: Mapping[str, object]) -> str:
    return _PLACE.sub(partial(_filled, values), sql)


def _filled(values: Mapping[str, object], place: re.Match[str]) -> str:
    if place[1] is None:
        return "%"
    value = values[place[1]]
    return literal(_array(value) if isinstance(value, list) else str(value))


def _array(texts: list[object]) -> str:
    """As PostgreSQL reads an array."""
    quoted = (str(text).replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return "{" + ",".join(f'"{text}"' for text in quoted) + "}"


def _column(row: dict[str, Any]) -> Column:
    return Column(
        name=str(row["attname"]),
        type=str(row["type"]),
        nullable=not row["attnotnull"],
        generated=row["attgenerated"] not in ("", b""),
        custom=bool(row["custom"]),
        number=int(row["attnum"]),
    )


def _index(row: dict[str, Any]) -> Index:
    return Index(
        name=str(row["relname"]),
        columns=tuple(row["columns"]),
        unique=bool(row["indisunique"]),
        partial=bool(row["partial"]),
        ascends=bool(row["ascends"]),
    )


def _reference(row: dict[str, Any]) -> Reference:
    return Reference(
        table=TableName(str(row["relname"]), str(row["nspname"])),
        columns=tuple(row["columns"]),
        referred=tuple(row["referred"]),
        action=_ACTIONS[row["confdeltype"]],
        indexed=bool(row["indexed"]),
    )
