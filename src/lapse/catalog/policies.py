"""Policies and the physical tables they cover, as stored."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache, lru_cache
from typing import Any

from sqlalchemy import (
    CompoundSelect,
    Connection,
    RowMapping,
    Update,
    bindparam,
    case,
    delete,
    exists,
    insert,
    or_,
    select,
    tuple_,
    union,
    update,
)
from sqlalchemy.exc import IntegrityError

from lapse.catalog import ledger
from lapse.catalog.schema import Instant, job, policy, policy_version, rate, table
from lapse.engines.values import LeafChanges
from lapse.errors import Retryable
from lapse.model.archive import file_url
from lapse.model.blocked import BlockCode
from lapse.model.hold import HeldTerm, read_terms, write_terms
from lapse.model.ledger import EntryKind
from lapse.model.policy import Policy
from lapse.model.table import TableName

STATEMENT = "statement"
COMMENT = "comment"
FILE = "file"
ARCHIVE = "archive"
"""The policy of an archive table, by the `ttl_archive_keep` of the table whose rows it holds."""
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

    `failures` counts the attempts since then. Up to `clean_at`, which may be to come, its bounds alone say that no row
    of it has expired; `bounds` is the engine's mark of these, where it has one.
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
    bounds: str | None = None

    def name_in(self, table: TableName) -> TableName:
        """The physical table's name, as a part of the table that the policy is for."""
        return TableName(table.name, table.schema, self.partition, self.partition_schema)


# Built once, as every run asks them and building one takes as long as running it.
_POLICIES = select(policy).order_by(policy.c.schema_name, policy.c.table_name)
_TABLES = select(table).order_by(table.c.table_id)
_WANTED = table.c.table_id == bindparam("wanted_id")
_THESE = _POLICIES.where(policy.c.policy_id.in_(bindparam("wanted", expanding=True)))
_NOW = bindparam("now", type_=Instant)
# Those that are due are never left out.
_IS_OPEN = or_(
    table.c.clean_at.is_(None),
    table.c.clean_at <= _NOW,
    table.c.next_run_at.is_(None),
    table.c.next_run_at <= _NOW,
)
_THEIRS = _TABLES.where(table.c.policy_id.in_(bindparam("wanted", expanding=True)), _IS_OPEN)
_ANY_OF_THEM = _TABLES.where(table.c.policy_id == bindparam("wanted_policy")).limit(1)
_FROM_COMMENTS = _POLICIES.where(policy.c.source == COMMENT)
_NAMED = _POLICIES.where(policy.c.table_name.in_(bindparam("wanted", expanding=True)))
_IN_GRACE = select(policy.c.policy_id).where(policy.c.grace_until > _NOW)
_HELD = select(policy.c.policy_id).where(policy.c.held.is_not(None))
_PARTITIONED = select(table.c.policy_id).where(table.c.partition_name != "").distinct()
_BARE = select(policy.c.policy_id).where(~exists().where(table.c.policy_id == policy.c.policy_id))
_NAMES = select(policy.c.schema_name, policy.c.table_name)
_NEXT_RUNS = select(table.c.table_id, table.c.next_run_at).where(
    table.c.table_id.in_(bindparam("wanted", expanding=True))
)
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


def policies_with_files(connection: Connection) -> list[StoredPolicy]:
    """Those whose rows are archived in files."""
    found = connection.execute(select(policy).where(policy.c.options.like('%"archive":%://%'))).mappings()
    return [stored for stored in map(_policy, found) if stored.policy.archive and file_url(stored.policy.archive)]


def policies_from_comments(connection: Connection) -> list[StoredPolicy]:
    return [_policy(row) for row in connection.execute(_FROM_COMMENTS).mappings()]


def policies_named(connection: Connection, tables: Collection[TableName]) -> list[StoredPolicy]:
    """At least those of these tables; of others that share a name in another schema as well."""
    names = {name.name for name in tables}
    if len(names) > CHUNK:
        return list_policies(connection)
    return [_policy(row) for row in connection.execute(_NAMED, {"wanted": list(names)}).mappings()]


def find_tables(connection: Connection, policy_ids: Collection[int], now: datetime) -> list[PhysicalTable]:
    """The physical tables of these policies, but for those that are known to hold no expired row for a while."""
    return [
        _physical(row)
        for some in _chunks(policy_ids)
        for row in connection.execute(_THEIRS, {"wanted": some, "now": now}).mappings()
    ]


def any_table(connection: Connection, policy_id: int) -> list[PhysicalTable]:
    """One of a policy's physical tables, whatever is known of it."""
    return [_physical(row) for row in connection.execute(_ANY_OF_THEM, {"wanted_policy": policy_id}).mappings()]


def waiting_policies(connection: Connection, now: datetime, *, after_grace: bool, changing: bool) -> set[int]:
    """Ids of policies with a table that is due, or with a first run that waits for a person.

    `after_grace` leaves those out whose grace period lasts. With `changing`, those as well that may get other physical
    tables by themselves: partitioned ones, and those that have none.
    """
    return set(connection.execute(_waiting(after_grace, changing), {"now": now}).scalars())


def policy_tables(connection: Connection) -> set[TableName]:
    """The tables that have a policy."""
    return {TableName(row.table_name, row.schema_name or None) for row in connection.execute(_NAMES)}


def untouched(connection: Connection, due: Sequence[PhysicalTable]) -> set[int]:
    """Ids of those of these tables that are still due: another worker has taken the others."""
    found = connection.execute(_NEXT_RUNS, {"wanted": [physical.id for physical in due]})
    seen = {row.table_id: row.next_run_at for row in found}
    return {each.id for each in due if each.id in seen and seen[each.id] == each.next_run_at}


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
    before = None if current is None else _recorded(current)
    ledger.record(
        connection, _kind_of_change(current, value), now=now, table=name, before=before, after=_recorded(stored)
    )
    return stored


def _recorded(stored: StoredPolicy) -> dict[str, Any]:
    """What the ledger says of a policy."""
    found = {"version": stored.version, "policy": json.loads(stored.policy.to_json()), "source": stored.source}
    return found | ({"grace_until": stored.grace_until} if stored.grace_until else {})


def _kind_of_change(current: StoredPolicy | None, value: Policy) -> EntryKind:
    if current is None:
        return EntryKind.DECLARED
    if current.policy != value and replace(current.policy, pause=value.pause) == value:
        return EntryKind.PAUSED if value.pause else EntryKind.RESUMED
    return EntryKind.CHANGED


def _overtaken(name: TableName) -> Retryable:
    return Retryable(f"another session has just declared a policy on table {name}", hint="try again")


def rename_policy(connection: Connection, policy_id: int, name: TableName) -> None:
    connection.execute(
        update(policy)
        .where(policy.c.policy_id == policy_id)
        .values(schema_name=name.schema or "", table_name=name.name)
    )


def delete_policy(connection: Connection, stored: StoredPolicy, *, reason: str, now: datetime) -> None:
    """Remove a policy with its physical tables, after its jobs have ended. The history stays."""
    policy_id = stored.id
    connection.execute(delete(table).where(table.c.policy_id == policy_id))
    connection.execute(delete(rate).where(rate.c.name.like(f"%:{policy_id}")))
    connection.execute(delete(policy).where(policy.c.policy_id == policy_id))
    before = _recorded(stored)
    ledger.record(connection, EntryKind.REMOVED, now=now, table=stored.table, before=before, after={"reason": reason})


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


def write_changes(connection: Connection, policy_id: int, changes: LeafChanges, now: datetime) -> None:
    """Make the physical tables of a policy those that exist now, where the engine has compared them.

    A leaf that was known to be clean for longer, with other bounds, is looked at now, as a new one is.
    """
    if changes.new:
        keys = ("policy_id", "partition_schema", "partition_name", "bounds")
        made = sorted((leaf.partition_schema or "", leaf.partition or "", mark) for leaf, mark in changes.new.items())
        connection.execute(insert(table), [dict(zip(keys, (policy_id, *each), strict=True)) for each in made])
    if changes.marks:
        marks = [{"wanted_id": key, "mark": mark, "now": now} for key, mark in sorted(changes.marks.items())]
        connection.execute(_MARK, marks)
    for gone in _chunks(changes.gone):
        connection.execute(delete(table).where(table.c.table_id.in_(gone)))


_MARK = (
    update(table)
    .where(_WANTED)
    .values(
        bounds=bindparam("mark"),
        clean_at=case((table.c.clean_at > _NOW, _NOW), else_=table.c.clean_at),
        next_run_at=case((table.c.clean_at > _NOW, _NOW), else_=table.c.next_run_at),
    )
)


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


def take_table(
    connection: Connection, physical: PhysicalTable, next_run_at: datetime, *, is_clean: bool = False
) -> bool:
    """Give a due table its job, in the caller's transaction: of all that saw it due, one gets True.

    None does while it has an active one. One that `is_clean` has nothing to delete, and its failures are forgotten.
    """
    values: dict[str, Any] = {"next_run_at": next_run_at} | dict.fromkeys(("trouble", "blocked", "blocked_since"))
    if is_clean:
        values["failures"] = 0
    seen = {} if physical.next_run_at is None else {"seen_at": physical.next_run_at}
    taken = connection.execute(_take(physical.next_run_at is None), values | seen | {"wanted_id": physical.id})
    return taken.rowcount == 1


_VERSIONS = select(policy.c.version, policy.c.hold_version).where(
    policy.c.policy_id == bindparam("wanted_policy"), policy.c.disarmed.is_(None)
)
_LOCKED_VERSIONS = {
    (waits, changes): _VERSIONS.with_for_update(read=not changes, nowait=not waits)
    for waits in (False, True)
    for changes in (False, True)
}


@cache
def _take(never: bool) -> Update:
    """Built once: every job begins with it."""
    seen = table.c.next_run_at.is_(None) if never else table.c.next_run_at == bindparam("seen_at", type_=Instant)
    busy = exists().where(job.c.active_table_id == bindparam("wanted_id"))
    return update(table).where(_WANTED, seen, ~busy)


def is_current(connection: Connection, stored: StoredPolicy, *, waits: bool = True, changes: bool = False) -> bool:
    """Does the policy say what it did when it was read, are the same rows held, and is it not suspended?

    Read with a lock, so that it is the newest: what changes later waits for the transaction that creates the job, and
    ends the job. Who has locked rows of the table already never `waits`: a declaration may hold the policy and wait for
    the table. Who `changes` the policy's row afterwards locks it for that at once: two who share it would wait for each
    other.
    """
    now = connection.execute(_LOCKED_VERSIONS[waits, changes], {"wanted_policy": stored.id}).one_or_none()
    return now is not None and tuple(now) == (stored.version, stored.hold_version)


def pass_over(
    connection: Connection, due: Sequence[PhysicalTable], *, clean_at: datetime, next_run_at: datetime
) -> None:
    """Tables that fall due and have nothing to delete until `clean_at`, by what is known without a look at their rows.

    Those that another worker has found with other bounds meanwhile stay as they are.
    """
    values = {"clean_at": clean_at, "next_run_at": next_run_at} | dict.fromkeys(("blocked", "blocked_since", "trouble"))
    known = {physical.id: physical.bounds for physical in due}
    for ids in _chunks(known):
        marked = [(each, mark) for each in ids if (mark := known[each]) is not None]
        same = tuple_(table.c.table_id, table.c.bounds).in_(marked) if marked else table.c.bounds.is_(None)
        falls_due = or_(table.c.next_run_at.is_(None), table.c.next_run_at <= clean_at)
        changed = update(table).where(table.c.table_id.in_(ids), same, falls_due)
        connection.execute(changed.values(failures=0, **values))


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


def unblock_tables(connection: Connection, policy_id: int, code: BlockCode | None = None) -> None:
    """Look at the tables of a policy again, at once, where something, or what `code` says, kept them from running."""
    is_blocked = table.c.blocked.is_not(None) if code is None else table.c.blocked == code
    connection.execute(
        update(table)
        .where(table.c.policy_id == policy_id, is_blocked)
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


def renew_armed(connection: Connection, policy_id: int, armed: str, *, known: Iterable[str | None]) -> None:
    """The same table is known by something else from now on, unless the policy was armed with another one meanwhile.

    None is what versions of Lapse knew that remembered nothing.
    """
    same = [policy.c.armed.is_(None) if each is None else policy.c.armed == each for each in known]
    connection.execute(update(policy).where(policy.c.policy_id == policy_id, or_(*same)).values(armed=armed))


def plan_anew(connection: Connection, policy_id: int) -> None:
    """Jobs that were planned before this get no task any more."""
    connection.execute(
        update(policy).where(policy.c.policy_id == policy_id).values(hold_version=policy.c.hold_version + 1)
    )


def suspend_policies(connection: Connection, code: BlockCode, now: datetime) -> None:
    """Every policy deletes nothing until a person resumes it."""
    connection.execute(update(policy).values(disarmed=code))
    ledger.record(connection, EntryKind.SUSPENDED, now=now, after={"reason": str(code)})


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
        bounds=row["bounds"],
    )


def _code(text: str | None) -> BlockCode | None:
    return None if text is None else BlockCode(text)
