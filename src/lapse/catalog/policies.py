"""Policies and the physical tables they cover, as stored."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache
from typing import Any

from sqlalchemy import (
    CompoundSelect,
    Connection,
    RowMapping,
    bindparam,
    delete,
    exists,
    insert,
    or_,
    select,
    union,
    update,
)
from sqlalchemy.exc import IntegrityError

from lapse.catalog.schema import Instant, policy, policy_version, rate, table
from lapse.errors import Retryable
from lapse.model.blocked import BlockCode
from lapse.model.hold import HeldTerm, read_terms, write_terms
from lapse.model.policy import Policy
from lapse.model.table import TableName

STATEMENT = "statement"
COMMENT = "comment"
FILE = "file"
SETTINGS = "settings"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredPolicy:
    """`source` says how it was declared, `source_text` with which comment, `declared_by` by which role.

    `armed` is what the policy was declared on, in the engine's own words, and `fingerprint` the shape of it. A policy
    that is `suspended` deletes nothing until a person resumes it; the code says why. `cleared_at` is when its guard let
    it pass, or a person confirmed it; `held` says why it did not. Workers start no job before `grace_until`.
    """

    id: int
    table: TableName
    version: int
    policy: Policy
    source: str
    fingerprint: str
    created_at: datetime
    changed_at: datetime
    cleared_at: datetime | None = None
    held: str | None = None
    armed: str | None = None
    suspended: BlockCode | None = None
    grace_until: datetime | None = None
    declared_by: str | None = None
    source_text: str | None = None
    holds: tuple[HeldTerm, ...] = ()
    hold_version: int = 0
    """Grows with every change of what is held."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PhysicalTable:
    """`blocked` is why no job can run, until one could; `blocked_reason` is a sentence with what to do about it.

    `failures` counts the attempts since then. At `clean_at` its bounds alone said that no row of it had expired.
    """

    id: int
    policy_id: int
    partition: str | None
    partition_schema: str | None
    next_run_at: datetime | None
    blocked_reason: str | None
    statistics: str | None
    blocked: BlockCode | None = None
    blocked_since: datetime | None = None
    failures: int = 0
    clean_at: datetime | None = None

    def name_in(self, table: TableName) -> TableName:
        """The physical table's name, as a part of the table that the policy is for."""
        return TableName(table.name, table.schema, self.partition, self.partition_schema)


# Built once, as every run asks them and building one takes as long as running it.
_POLICIES = select(policy).order_by(policy.c.schema_name, policy.c.table_name)
_TABLES = select(table).order_by(table.c.table_id)
_WANTED = table.c.table_id == bindparam("wanted_id")
_THESE = _POLICIES.where(policy.c.policy_id.in_(bindparam("wanted", expanding=True)))
_THEIRS = _TABLES.where(table.c.policy_id.in_(bindparam("wanted", expanding=True)))
_NOW = bindparam("now", type_=Instant)
_IN_GRACE = select(policy.c.policy_id).where(policy.c.grace_until > _NOW)
_HELD = select(policy.c.policy_id).where(policy.c.held.is_not(None))
_PARTITIONED = select(table.c.policy_id).where(table.c.partition_name != "").distinct()
_BARE = select(policy.c.policy_id).where(~exists().where(table.c.policy_id == policy.c.policy_id))
_NAMES = select(policy.c.schema_name, policy.c.table_name)
_NEXT_RUN = select(table.c.next_run_at).where(_WANTED)
CHUNK = 500
"""Ids in one statement."""
_OPEN_GATE = (
    update(table)
    .where(_WANTED, table.c.blocked == BlockCode.GATE)
    .values(trouble=None, blocked=None, blocked_since=None)
)
_FORGET_FAILURES = (
    update(table)
    .where(_WANTED, or_(table.c.failures > 0, table.c.blocked == BlockCode.GATE))
    .values(failures=0, trouble=None, blocked=None, blocked_since=None)
)


def find_policy(connection: Connection, name: TableName) -> StoredPolicy | None:
    row = connection.execute(select(policy).where(*_of(name))).mappings().first()
    return None if row is None else _policy(row)


def get_policy(connection: Connection, policy_id: int) -> StoredPolicy | None:
    row = connection.execute(select(policy).where(policy.c.policy_id == policy_id)).mappings().first()
    return None if row is None else _policy(row)


def list_policies(connection: Connection) -> list[StoredPolicy]:
    return [_policy(row) for row in connection.execute(_POLICIES).mappings()]


def find_policies(connection: Connection, ids: Collection[int]) -> list[StoredPolicy]:
    """Those of these ids that there are."""
    return [_policy(row) for some in _chunks(ids) for row in connection.execute(_THESE, {"wanted": some}).mappings()]


def find_tables(connection: Connection, policy_ids: Collection[int]) -> list[PhysicalTable]:
    """The physical tables of these policies."""
    chunks = _chunks(policy_ids)
    return [_physical(row) for some in chunks for row in connection.execute(_THEIRS, {"wanted": some}).mappings()]


def waiting_policies(connection: Connection, now: datetime, *, after_grace: bool, changing: bool) -> set[int]:
    """Ids of policies with a table that is due, or with a first run that waits for a person.

    `after_grace` leaves those out whose grace period lasts. With `changing`, those as well that may get other physical
    tables by themselves: partitioned ones, and those that have none.
    """
    return set(connection.execute(_waiting(after_grace, changing), {"now": now}).scalars())


def policy_tables(connection: Connection) -> set[TableName]:
    """The tables that have a policy."""
    return {TableName(row.table_name, row.schema_name or None) for row in connection.execute(_NAMES)}


def is_untouched(connection: Connection, physical: PhysicalTable) -> bool:
    """Is a table that was due still due, or has another worker taken it?"""
    return connection.execute(_NEXT_RUN, {"wanted_id": physical.id}).scalar() == physical.next_run_at


def save_policy(
    connection: Connection,
    name: TableName,
    value: Policy,
    *,
    reloptions: Sequence[str],
    recurrence: str,
    source: str,
    fingerprint: str,
    armed: str,
    now: datetime,
    suspended: BlockCode | None = None,
    grace_until: datetime | None = None,
    declared_by: str | None = None,
    source_text: str | None = None,
    current: StoredPolicy | None = None,
    holds: Sequence[HeldTerm] = (),
) -> StoredPolicy:
    """Store a new policy, which begins with `holds`, or a new version of the `current` one, which keeps its own."""
    values: dict[str, Any] = {
        "version": current.version + 1 if current else 1,
        "options": value.to_json(),
        "reloptions": "{" + ",".join(reloptions) + "}",
        "recurrence": recurrence,
        "paused": value.pause,
        "source": source,
        "fingerprint": fingerprint,
        "armed": armed,
        "disarmed": suspended,
        "grace_until": grace_until,
        "declared_by": declared_by,
        "source_text": source_text,
        "changed_at": now,
    }
    if current is None:
        values |= {"schema_name": name.schema or "", "table_name": name.name, "created_at": now}
        values |= {"holds": write_terms(holds), "hold_version": 0}
        try:
            made = connection.execute(insert(policy).values(**values)).inserted_primary_key
        except IntegrityError as error:
            raise _overtaken(name) from error
        assert made is not None
        stored = _policy(values | {"policy_id": made[0], "cleared_at": None, "held": None})
    else:
        seen = (policy.c.policy_id == current.id, policy.c.version == current.version)
        if connection.execute(update(policy).where(*seen).values(**values)).rowcount != 1:
            raise _overtaken(name)
        stored = _changed(current, values)
    connection.execute(
        insert(policy_version).values(
            policy_id=stored.id, version=stored.version, options=values["options"], changed_at=now
        )
    )
    return stored


def _overtaken(name: TableName) -> Retryable:
    return Retryable(f"another session has just declared a policy on table {name}", hint="try again")


def rename_policy(connection: Connection, policy_id: int, name: TableName) -> None:
    connection.execute(
        update(policy)
        .where(policy.c.policy_id == policy_id)
        .values(schema_name=name.schema or "", table_name=name.name)
    )


def delete_policy(connection: Connection, policy_id: int) -> None:
    """Remove a policy with its physical tables, after its jobs have ended. The history stays."""
    connection.execute(delete(table).where(table.c.policy_id == policy_id))
    connection.execute(delete(rate).where(rate.c.name.like(f"%:{policy_id}")))
    connection.execute(delete(policy).where(policy.c.policy_id == policy_id))


def list_tables(connection: Connection, policy_id: int | None = None) -> list[PhysicalTable]:
    query = _TABLES if policy_id is None else _TABLES.where(table.c.policy_id == policy_id)
    return [_physical(row) for row in connection.execute(query).mappings()]


def get_table(connection: Connection, table_id: int) -> PhysicalTable | None:
    row = connection.execute(select(table).where(table.c.table_id == table_id)).mappings().first()
    return None if row is None else _physical(row)


def sync_tables(connection: Connection, policy_id: int, leaves: Sequence[TableName]) -> list[PhysicalTable]:
    """Make the physical tables of a policy those that exist now."""
    wanted = {(leaf.partition_schema or "", leaf.partition or "") for leaf in leaves}
    known = {
        (physical.partition_schema or "", physical.partition or ""): physical
        for physical in list_tables(connection, policy_id)
    }
    _insert_tables(connection, policy_id, wanted - known.keys())
    for gone in _chunks({known[name].id for name in known.keys() - wanted}):
        connection.execute(delete(table).where(table.c.table_id.in_(gone)))
    return list_tables(connection, policy_id)


def add_tables(connection: Connection, policy_id: int, leaves: Collection[TableName]) -> None:
    """The physical tables of a policy that has none yet."""
    _insert_tables(connection, policy_id, {(leaf.partition_schema or "", leaf.partition or "") for leaf in leaves})


def _insert_tables(connection: Connection, policy_id: int, names: Collection[tuple[str, str]]) -> None:
    """`names` are the schema and the name of each partition."""
    if names:
        keys = ("policy_id", "partition_schema", "partition_name")
        connection.execute(insert(table), [dict(zip(keys, (policy_id, *each), strict=True)) for each in sorted(names)])


def set_guard(connection: Connection, policy_id: int, *, cleared_at: datetime | None, held: str | None = None) -> None:
    connection.execute(update(policy).where(policy.c.policy_id == policy_id).values(cleared_at=cleared_at, held=held))


def set_next_run(connection: Connection, table_id: int, at: datetime | None) -> None:
    connection.execute(update(table).where(table.c.table_id == table_id).values(next_run_at=at))


def take_table(connection: Connection, physical: PhysicalTable, next_run_at: datetime) -> bool:
    """Give a due table its job, in the caller's transaction: of all that saw it due, one gets True."""
    # Compared with None, SQLAlchemy writes IS NULL.
    seen = table.c.next_run_at == physical.next_run_at
    taken = connection.execute(
        update(table)
        .where(table.c.table_id == physical.id, seen)
        .values(next_run_at=next_run_at, trouble=None, blocked=None, blocked_since=None)
    )
    return taken.rowcount == 1


def pass_over(
    connection: Connection, due: Sequence[PhysicalTable], *, clean_at: datetime, next_run_at: datetime
) -> None:
    """Tables that were due and have nothing to delete, by what is known without a look at their rows."""
    values = {"clean_at": clean_at, "next_run_at": next_run_at} | dict.fromkeys(("blocked", "blocked_since", "trouble"))
    for ids in _chunks({physical.id for physical in due}):
        is_due = or_(table.c.next_run_at.is_(None), table.c.next_run_at <= clean_at)
        connection.execute(update(table).where(table.c.table_id.in_(ids), is_due).values(failures=0, **values))


def block_table(
    connection: Connection, physical: PhysicalTable, code: BlockCode, reason: str, *, retry_at: datetime, now: datetime
) -> None:
    """Say why a table gets no job, and when it is looked at again."""
    since = physical.blocked_since if physical.blocked is code and physical.blocked_since else now
    connection.execute(
        update(table)
        .where(table.c.table_id == physical.id)
        .values(next_run_at=retry_at, trouble=reason, blocked=code, blocked_since=since, failures=physical.failures + 1)
    )


def hasten_table(connection: Connection, physical: PhysicalTable, *, retry_at: datetime) -> None:
    """Run a table again before its time: its last job could not do everything."""
    next_run_at = min(retry_at, physical.next_run_at or retry_at)
    connection.execute(
        update(table)
        .where(table.c.table_id == physical.id)
        .values(next_run_at=next_run_at, failures=physical.failures + 1)
    )


def shut_gate(connection: Connection, table_id: int, reason: str, now: datetime) -> None:
    """The table has a job, which waits at a gate. When it runs next is not touched."""
    connection.execute(
        update(table)
        .where(table.c.table_id == table_id)
        .values(trouble=reason, blocked=BlockCode.GATE, blocked_since=now)
    )


def open_gate(connection: Connection, table_id: int) -> None:
    connection.execute(_OPEN_GATE, {"wanted_id": table_id})


def unblock_tables(connection: Connection, policy_id: int) -> None:
    """Look at the tables of a policy again, at once, where something kept them from running."""
    connection.execute(
        update(table)
        .where(table.c.policy_id == policy_id, table.c.blocked.is_not(None))
        .values(next_run_at=None, trouble=None, blocked=None, blocked_since=None, failures=0)
    )


def forget_failures(connection: Connection, table_id: int) -> None:
    """Of a table whose job, which nothing but a gate can have kept waiting, has gone through it."""
    connection.execute(_FORGET_FAILURES, {"wanted_id": table_id})


def set_armed(connection: Connection, policy_id: int, armed: str, fingerprint: str) -> None:
    """From now on the policy is for this table, as it is."""
    connection.execute(
        update(policy)
        .where(policy.c.policy_id == policy_id)
        .values(armed=armed, fingerprint=fingerprint, disarmed=None)
    )


def suspend_policies(connection: Connection, code: BlockCode) -> None:
    """Every policy deletes nothing until a person resumes it."""
    connection.execute(update(policy).values(disarmed=code))


def end_grace(connection: Connection, policy_id: int) -> None:
    connection.execute(update(policy).where(policy.c.policy_id == policy_id).values(grace_until=None))


def set_statistics(connection: Connection, table_id: int, statistics: str) -> None:
    connection.execute(update(table).where(table.c.table_id == table_id).values(statistics=statistics))


@cache
def _waiting(after_grace: bool, changing: bool) -> CompoundSelect[Any]:
    past, never = (
        select(table.c.policy_id).where(due) for due in (table.c.next_run_at <= _NOW, table.c.next_run_at.is_(None))
    )
    due = [each.where(table.c.policy_id.not_in(_IN_GRACE)) if after_grace else each for each in (past, never)]
    return union(*due, _HELD, *((_PARTITIONED, _BARE) if changing else ()))


def _chunks(ids: Collection[int]) -> Iterator[list[int]]:
    found = sorted(ids)
    return (found[start : start + CHUNK] for start in range(0, len(found), CHUNK))


def _of(name: TableName) -> tuple[Any, Any]:
    return policy.c.schema_name == (name.schema or ""), policy.c.table_name == name.name


@lru_cache(maxsize=4096)
def _parsed(options: str) -> Policy:
    """Many tables have the same policy, and to read it takes longer than to fetch it."""
    return Policy.from_json(options)


def _changed(before: StoredPolicy, values: Mapping[str, Any]) -> StoredPolicy:
    """As it is stored after an update with these values."""
    return _policy(
        {
            **values,
            "policy_id": before.id,
            "schema_name": before.table.schema,
            "table_name": before.table.name,
            "created_at": before.created_at,
            "cleared_at": before.cleared_at,
            "held": before.held,
            "holds": write_terms(before.holds),
            "hold_version": before.hold_version,
        }
    )


def _policy(row: Mapping[str, Any] | RowMapping) -> StoredPolicy:
    return StoredPolicy(
        id=row["policy_id"],
        table=TableName(row["table_name"], row["schema_name"] or None),
        version=row["version"],
        policy=_parsed(row["options"]),
        source=row["source"],
        fingerprint=row["fingerprint"],
        created_at=row["created_at"],
        changed_at=row["changed_at"],
        cleared_at=row["cleared_at"],
        held=row["held"],
        armed=row["armed"],
        suspended=_code(row["disarmed"]),
        grace_until=row["grace_until"],
        declared_by=row["declared_by"],
        source_text=row["source_text"],
        holds=read_terms(row["holds"]),
        hold_version=row["hold_version"],
    )


def _physical(row: RowMapping) -> PhysicalTable:
    return PhysicalTable(
        id=row["table_id"],
        policy_id=row["policy_id"],
        partition=row["partition_name"] or None,
        partition_schema=row["partition_schema"] or None,
        next_run_at=row["next_run_at"],
        blocked_reason=row["trouble"],
        statistics=row["statistics"],
        blocked=_code(row["blocked"]),
        blocked_since=row["blocked_since"],
        failures=row["failures"],
        clean_at=row["clean_at"],
    )


def _code(text: str | None) -> BlockCode | None:
    return None if text is None else BlockCode(text)
