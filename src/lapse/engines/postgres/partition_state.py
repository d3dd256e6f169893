"""How far the detachment of a partition has come, and what the catalog remembers about it.

Detaching concurrently is not one transaction, so a worker can die between detaching a leaf and dropping it. A row in
`lapse_leaving` says what the table was, by the server's own ids; nothing that other users can write is believed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from lapse.engines.postgres import bounds, inspect
from lapse.engines.postgres.names import CATALOG_SCHEMA, relation
from lapse.engines.values import Stray
from lapse.errors import Drift
from lapse.model.table import TableName

_IS_SECURED = """
    SELECT c.relrowsecurity AND c.relforcerowsecurity AND NOT (o.rolsuper OR o.rolbypassrls)
      FROM pg_catalog.pg_class c JOIN pg_catalog.pg_roles o ON o.oid = c.relowner
     WHERE c.oid = pg_catalog.to_regclass(%(leaf)s)"""

_TABLE = f"{CATALOG_SCHEMA}.lapse_leaving"
_POLICY = f"{CATALOG_SCHEMA}.lapse_policy"

_STATE = """
    SELECT c.oid, c.relname, n.nspname, i.inhparent AS parent, i.inhdetachpending AS pending,
           t.partdefid <> 0 AS has_default, pg_catalog.pg_get_expr(c.relpartbound, c.oid) AS bound,
           coalesce(pg_catalog.pg_partition_root(t.partrelid)::oid, t.partrelid) AS root,
           EXISTS (SELECT 1 FROM pg_catalog.pg_constraint f WHERE f.conrelid = c.oid AND f.contype = 'f') AS refers
      FROM pg_catalog.pg_class c
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
      LEFT JOIN (pg_catalog.pg_inherits i JOIN pg_catalog.pg_partitioned_table t ON t.partrelid = i.inhparent)
        ON i.inhrelid = c.oid
     WHERE c.oid = pg_catalog.to_regclass(%(leaf)s)"""

_IS_THERE = f"SELECT pg_catalog.has_table_privilege(pg_catalog.to_regclass('{_TABLE}'), 'SELECT')"

_DETACHMENTS = f"""
    SELECT l.relation_id, l.schema_name, l.relation_name, l.parent_id, l.bound, l.policy_id,
           c.oid IS NOT NULL AS is_there, i.inhparent AS below, i.inhdetachpending AS pending,
           (SELECT coalesce(pg_catalog.pg_partition_root(p.oid)::oid, p.oid) FROM pg_catalog.pg_class p
             WHERE p.oid = l.parent_id AND p.relkind = 'p') AS root,
           EXISTS (SELECT 1 FROM {_POLICY} y WHERE y.policy_id = l.policy_id) AS has_policy
      FROM {_TABLE} l
      LEFT JOIN (pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace)
        ON c.oid = l.relation_id AND c.relkind = 'r' AND c.relname = l.relation_name AND n.nspname = l.schema_name
      LEFT JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid"""

_NAME = """
    SELECT c.relname, n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE c.oid = %(oid)s"""

_BEGIN = f"""
    INSERT INTO {_TABLE} (relation_id, schema_name, relation_name, policy_id, parent_id, bound, began_at)
    SELECT %(relation)s, %(schema)s, %(name)s,
           coalesce((SELECT policy_id FROM {_POLICY} WHERE schema_name = %(root_schema)s AND table_name = %(root)s), 0),
           %(parent)s, %(bound)s, pg_catalog.now()
        ON CONFLICT (relation_id) DO UPDATE
       SET schema_name = excluded.schema_name, relation_name = excluded.relation_name, policy_id = excluded.policy_id,
           parent_id = excluded.parent_id, bound = excluded.bound, began_at = excluded.began_at"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Detachment:
    """A row of the catalog. `parent` and `root` are oids; `root` is None where the table above is gone.

    `below` is the table that the leaf is a partition of now, which may be another session's doing.
    """

    relation: int
    name: TableName
    parent: int
    bound: str
    root: int | None
    is_there: bool
    has_policy: bool
    below: int | None
    pending: bool

    @property
    def is_detached(self) -> bool:
        """For good or nearly so; and it is still the table that a job has detached."""
        return self.is_there and (self.below is None or (self.pending and self.below == self.parent))

    @property
    def is_under_way(self) -> bool:
        """Is it still a partition, which a job is about to detach?"""
        return self.is_there and self.has_policy and self.below == self.parent

    @property
    def is_droppable(self) -> bool:
        """Is it to be dropped? What the policy of a job has begun, no other policy ends."""
        return self.is_detached and self.has_policy and self.root is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionState:
    """Where a leaf is: below the table with the oid `parent`, or on its own when that is None.

    `pending` is a detachment that has begun and not ended. `refers`: it has foreign keys. `detachment` is what the
    catalog says where a job has detached it; a partition that was detached by hand has none.
    """

    oid: int
    name: TableName
    parent: int | None
    root: int | None
    bound: str | None
    pending: bool
    has_default: bool
    refers: bool
    detachment: Detachment | None


def find(connection: Connection, leaf: TableName) -> PartitionState | None:
    """None where there is no such table."""
    for row in inspect.rows(connection, _STATE, {"leaf": relation(leaf)}):
        known = [
            each for each in _detachments(connection, "l.relation_id = %(value)s", row["oid"]) if each.is_droppable
        ]
        return PartitionState(
            oid=row["oid"],
            name=TableName(str(row["relname"]), str(row["nspname"])),
            parent=row["parent"],
            root=known[0].root if known else row["root"],
            bound=row["bound"],
            pending=bool(row["pending"]),
            has_default=bool(row["has_default"]),
            refers=bool(row["refers"]),
            detachment=known[0] if known else None,
        )
    return None


def is_secured(connection: Connection, leaf: str) -> bool:
    """Does row security apply to the owner of a table, so that rows may be there that no query of theirs finds?"""
    return bool(connection.exec_driver_sql(_IS_SECURED, {"leaf": leaf}).scalar())


def begin(connection: Connection, state: PartitionState, table: TableName) -> None:
    """Remember that a leaf of `table` is to be detached and dropped."""
    values = {
        "relation": state.oid,
        "schema": state.name.schema,
        "name": state.name.name,
        "root_schema": table.schema or "",
        "root": table.name,
        "parent": state.parent,
        "bound": state.bound,
    }
    connection.exec_driver_sql(_BEGIN, values)


def forget(connection: Connection, oid: int) -> None:
    connection.exec_driver_sql(f"DELETE FROM {_TABLE} WHERE relation_id = %(oid)s", {"oid": oid})


def detached_from(connection: Connection, root: TableName) -> list[TableName]:
    """Leaves that jobs have detached, or begun to detach, from somewhere below a table."""
    found = inspect.relation_row(connection, root)
    rows = [] if found is None else _detachments(connection)
    return [each.name for each in rows if found is not None and each.root == found["oid"] and each.is_droppable]


def pending_below(connection: Connection, parent: int) -> TableName | None:
    """The partition whose detachment a job has begun and not ended; there is at most one."""
    found = _detachments(connection, "l.parent_id = %(value)s", parent)
    return next((each.name for each in found if each.is_droppable and each.pending), None)


def name_of(connection: Connection, oid: int) -> str:
    """A table as SQL. Raises Drift where it is gone."""
    for row in inspect.rows(connection, _NAME, {"oid": oid}):
        return relation(TableName(str(row["relname"]), str(row["nspname"])))
    raise Drift(f"the table with the oid {oid} does not exist any more")


def lock(connection: Connection, oid: int, mode: str) -> str:
    """Lock the table with this oid and return it as SQL; nothing of another oid has its name while the lock lasts."""
    name = name_of(connection, oid)
    connection.exec_driver_sql(f"LOCK TABLE ONLY {name} IN {mode} MODE")
    found = connection.exec_driver_sql("SELECT pg_catalog.to_regclass(%(name)s)::oid", {"name": name}).scalar()
    if found != oid:
        raise Drift(f"{name} is another table now")
    return name


def bring_back(connection: Connection, detachment: Detachment) -> None:
    """Make a detached leaf what it was, inside the caller's transaction.

    The server itself checks the bound: against the other partitions, and against every row of the leaf.
    """
    parent = lock(connection, detachment.parent, "SHARE UPDATE EXCLUSIVE")
    leaf = name_of(connection, detachment.relation)
    if detachment.pending:
        connection.exec_driver_sql(f"ALTER TABLE {parent} DETACH PARTITION {leaf} FINALIZE")
    leaf = lock(connection, detachment.relation, "ACCESS EXCLUSIVE")
    connection.exec_driver_sql(f"ALTER TABLE {parent} ATTACH PARTITION {leaf} {bounds.read(detachment.bound).written}")
    forget(connection, detachment.relation)


def all_from(connection: Connection, root: TableName) -> list[Detachment]:
    """Every row about the leaves of a table, whether or not they are detached."""
    found = inspect.relation_row(connection, root)
    return [] if found is None else [each for each in _detachments(connection) if each.root == found["oid"]]


def strays(connection: Connection) -> list[Stray]:
    """What jobs have detached and no job will drop, and the marks of earlier versions, which are not obeyed."""
    found = [
        _stray(connection, each) for each in _detachments(connection) if not each.is_droppable and not each.is_under_way
    ]
    return [*found, *inspect.old_marks(connection)]


def repair(connection: Connection, stray: Stray) -> None:
    """Attach a stray leaf again, or forget about it where it is not there, or not detached, any more."""
    for each in _detachments(connection, "l.relation_id = %(value)s", stray.id):
        give_up(connection, each)


def give_up(connection: Connection, detachment: Detachment) -> None:
    if detachment.is_detached and detachment.root is not None:
        bring_back(connection, detachment)
    else:
        forget(connection, detachment.relation)


def _stray(connection: Connection, each: Detachment) -> Stray:
    if not each.is_detached:
        text = f"a job wanted to drop {each.name}, which is gone, renamed or a partition again"
        return Stray(id=each.relation, table=each.name, text=text)
    if each.root is None:
        text = f"{each.name} was detached by a job from a table that does not exist any more; it is a table of its own"
        return Stray(id=each.relation, table=each.name, text=text)
    parent = name_of(connection, each.parent)
    text = f"{each.name} was detached from {parent} by a job, and the policy was removed before it was dropped"
    return Stray(id=each.relation, table=each.name, text=text)


def _detachments(connection: Connection, condition: str = "TRUE", value: Any = None) -> list[Detachment]:
    if not connection.exec_driver_sql(_IS_THERE).scalar():
        # Nothing was ever declared here, or this role sees nothing of the catalog.
        return []
    return [
        Detachment(
            relation=row["relation_id"],
            name=TableName(row["relation_name"], row["schema_name"]),
            parent=row["parent_id"],
            bound=row["bound"],
            root=row["root"],
            is_there=row["is_there"],
            has_policy=row["has_policy"],
            below=row["below"],
            pending=bool(row["pending"]),
        )
        for row in inspect.rows(connection, f"{_DETACHMENTS} WHERE {condition}", {"value": value})
    ]
