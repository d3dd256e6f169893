"""A partition on its way out: how far it has come, and the mark in its comment by which it is found again.

Detaching concurrently is not one transaction, so a worker can die between detaching a leaf and dropping it. The comment
says, to people and to the next job, what the table was and that it is to be dropped.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from sqlalchemy import Connection

from lapse.engines.postgres import inspect
from lapse.engines.postgres.names import LEAVING_MARK, literal, relation
from lapse.model.table import TableName

_PLACE = """
    SELECT n.nspname, p.relname, i.inhdetachpending AS pending, t.partdefid <> 0 AS has_default,
           pg_get_expr(c.relpartbound, c.oid) AS bound, obj_description(c.oid, 'pg_class') AS comment,
           EXISTS (SELECT 1 FROM pg_catalog.pg_constraint f WHERE f.conrelid = c.oid AND f.contype = 'f') AS refers
      FROM pg_catalog.pg_class c
      LEFT JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid
      LEFT JOIN pg_catalog.pg_partitioned_table t ON t.partrelid = i.inhparent
      LEFT JOIN pg_catalog.pg_class p ON p.oid = t.partrelid
      LEFT JOIN pg_catalog.pg_namespace n ON n.oid = p.relnamespace
     WHERE c.oid = to_regclass(%(leaf)s)"""

_MARKED = """
    SELECT c.relname, n.nspname, d.description
      FROM pg_catalog.pg_description d
      JOIN pg_catalog.pg_class c ON c.oid = d.objoid AND d.classoid = 'pg_catalog.pg_class'::regclass
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE d.objsubid = 0 AND c.relkind = 'r' AND position(%(mark)s IN d.description) > 0"""

_PENDING = """
    SELECT c.relname, n.nspname, obj_description(c.oid, 'pg_class') AS comment
      FROM pg_catalog.pg_inherits i
      JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE i.inhparent = to_regclass(%(parent)s) AND i.inhdetachpending"""

_IS_ABOVE = "SELECT to_regclass(%(parent)s) IN (SELECT relid FROM pg_partition_tree(to_regclass(%(root)s))) AS above"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """What a leaf was: a partition of `parent`, which is SQL, for the values of `bound`."""

    parent: str
    bound: str

    def written_after(self, comment: str | None) -> str:
        line = LEAVING_MARK + json.dumps({"parent": self.parent, "bound": self.bound})
        return f"{comment}\n{line}" if comment else line


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a leaf is: below `parent`, or on its own when that is None.

    `pending` is a detachment that has begun and not ended. `refers`: it has foreign keys. `comment` is without `mark`.
    """

    parent: str | None
    bound: str | None = None
    pending: bool = False
    has_default: bool = False
    refers: bool = False
    comment: str | None = None
    mark: Mark | None = None

    @property
    def has_left(self) -> bool:
        """Detached for good or nearly so, and by a job: whoever detaches a partition by hand leaves no mark."""
        return self.mark is not None and (self.parent is None or self.pending)


NOWHERE = Place(parent=None)


def place(connection: Connection, leaf: TableName) -> Place:
    for row in inspect.rows(connection, _PLACE, {"leaf": relation(leaf)}):
        comment, mark = read(row["comment"])
        return Place(
            parent=None if row["relname"] is None else relation(TableName(row["relname"], row["nspname"])),
            bound=row["bound"],
            pending=bool(row["pending"]),
            has_default=bool(row["has_default"]),
            refers=bool(row["refers"]),
            comment=comment,
            mark=mark,
        )
    return NOWHERE


def read(comment: str | None) -> tuple[str | None, Mark | None]:
    """The comment as it was, and the mark below it."""
    before, found, written = (comment or "").rpartition(LEAVING_MARK)
    if not found:
        return comment, None
    return before.rstrip("\n") or None, Mark(**json.loads(written))


def write(connection: Connection, leaf: TableName, comment: str | None) -> None:
    text = "NULL" if comment is None else literal(comment)
    connection.exec_driver_sql(f"COMMENT ON TABLE {relation(leaf)} IS {text}")


def pending_below(connection: Connection, parent: str) -> TableName | None:
    """The partition whose detachment a job has begun and not ended; there is at most one."""
    for row in inspect.rows(connection, _PENDING, {"parent": parent}):
        if read(row["comment"])[1] is not None:
            return TableName(str(row["relname"]), str(row["nspname"]))
    return None


def detached_from(connection: Connection, root: TableName) -> list[TableName]:
    """Leaves that a job has begun to detach from somewhere below a table."""
    found = []
    for row in inspect.rows(connection, _MARKED, {"mark": LEAVING_MARK}):
        _, mark = read(row["description"])
        leaf = TableName(str(row["relname"]), str(row["nspname"]))
        known = {"parent": mark.parent if mark else "", "root": relation(root)}
        if inspect.rows(connection, _IS_ABOVE, known)[0]["above"] and place(connection, leaf).has_left:
            found.append(leaf)
    return found
