"""The ledger, as stored: an entry is written in the transaction of what it records, and sealed into the chain later.

Sealing gives entries their numbers and hashes, in a short transaction of its own. Writing the chain's next link in the
transaction of the change would make every job that ends wait for a migration that declares a policy and stays open.
The number is unique, so of sealers at the same time one gets it: the chain cannot fork.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any

from sqlalchemy import Connection, Row, RowMapping, bindparam, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from lapse._version import __version__
from lapse.catalog import ledger_keys
from lapse.catalog.schema import NAME_LENGTH, hold, ledger, policy, setting
from lapse.errors import Retryable
from lapse.model.actor import current_actor
from lapse.model.ledger import FIRST, Chain, ChainVerdict, EntryKind, Head, LedgerEntry, canonical, written_at
from lapse.model.table import TableName

SEALED_AT_ONCE = 500
READ_AT_ONCE = 2_000
PRUNED_AT_ONCE = 1_000

_ADD = insert(ledger).inline()
_ADD_WITH_ROLE = _ADD.values(role_name=func.current_user())
_NEWEST = select(ledger).where(ledger.c.sequence.is_not(None)).order_by(ledger.c.sequence.desc()).limit(1)
_HEAD = _NEWEST.with_only_columns(ledger.c.sequence, ledger.c.hash)
_WAITING = select(ledger).where(ledger.c.sequence.is_(None)).order_by(ledger.c.entry_id).limit(SEALED_AT_ONCE)
_TAKEN = _WAITING.with_for_update()
_TAKEN_WITHOUT_WAITING = _WAITING.add_columns(
    _HEAD.with_only_columns(ledger.c.sequence).scalar_subquery().label("head"),
    _HEAD.with_only_columns(ledger.c.hash).scalar_subquery().label("head_hash"),
).with_for_update(skip_locked=True)
_SEAL = (
    update(ledger)
    .where(ledger.c.entry_id == bindparam("waiting_id"), ledger.c.sequence.is_(None))
    .values(sequence=bindparam("number"), previous=bindparam("before_it"), hash=bindparam("its_hash"))
)


def record(
    connection: Connection,
    kind: EntryKind,
    *,
    now: datetime,
    table: TableName | None = None,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Add an entry, in the transaction of what it records. One statement: `before` and `after` are what the caller
    knows, `now` is the database's clock, and who does it is known to the process and to the server."""
    actor = current_actor()
    connection.execute(
        _ADD if connection.dialect.name == "sqlite" else _ADD_WITH_ROLE,
        {
            "recorded_at": written_at(now),
            "kind": str(kind),
            "schema_name": None if table is None else table.schema or "",
            "table_name": None if table is None else table.name,
            "user_name": actor.user[:NAME_LENGTH],
            "host": actor.host[:NAME_LENGTH],
            "program": actor.program[:NAME_LENGTH],
            "before_json": canonical(before),
            "after_json": canonical(after),
        },
    )


def begin(connection: Connection, now: datetime) -> None:
    """The first entries, in the transaction that makes the ledger: what was there before it had one."""
    record(connection, EntryKind.BEGAN, now=now, after={"lapse": __version__})
    for row in connection.execute(select(policy).order_by(policy.c.policy_id)).mappings():
        table = TableName(row["table_name"], row["schema_name"] or None)
        found = {"version": row["version"], "policy": json.loads(row["options"]), "source": row["source"]}
        record(connection, EntryKind.FOUND, now=now, table=table, after=found | {"declared_at": row["changed_at"]})
    for row in connection.execute(select(hold).where(hold.c.released_at.is_(None))).mappings():
        table = TableName(row["table_name"], row["schema_name"] or None)
        found = {"hold": row["hold_id"], "where": row["expression"], "until": row["until_at"], "reason": row["reason"]}
        record(connection, EntryKind.FOUND, now=now, table=table, after=found | {"placed_at": row["placed_at"]})
    for row in connection.execute(select(setting)).mappings():
        record(connection, EntryKind.FOUND, now=now, after={"setting": row["name"], "value": row["value"]})


def seal(connection: Connection, *, skips_locked: bool) -> bool:
    """Chain the entries that wait, at most so many, in the caller's transaction; True if there may be more.

    Those of transactions that are open are passed by: on MariaDB and MySQL a locking read waits for them unless it is
    told not to. TiDB always waits, and then what it reads beside the locked rows is of different moments: there the
    head is asked for by itself. Raises Retryable where another session has sealed at this very moment.
    """
    waiting = connection.execute(_TAKEN_WITHOUT_WAITING if skips_locked else _TAKEN).mappings().all()
    if not waiting:
        return False
    if skips_locked:
        number, previous = waiting[0]["head"] or 0, waiting[0]["head_hash"] or FIRST
    else:
        found = head(connection)
        number, previous = (0, FIRST) if found is None else (found.sequence, found.hash)
    links = []
    for entry in map(_entry, waiting):
        number, before_it = number + 1, previous
        previous = entry.sealed_as(number, before_it)
        links.append({"waiting_id": entry.id, "number": number, "before_it": before_it, "its_hash": previous})
    try:
        connection.execute(_SEAL, links)
    except IntegrityError as error:
        raise Retryable("another session has just sealed entries of the ledger") from error
    return len(links) == SEALED_AT_ONCE


def head(connection: Connection) -> Head | None:
    row = connection.execute(_HEAD).first()
    return None if row is None else Head(sequence=row.sequence, hash=row.hash)


def entries(
    connection: Connection,
    *,
    table: TableName | None = None,
    limit: int | None = None,
    before: int | None = None,
    until: datetime | None = None,
    runs_since: datetime | None = None,
) -> list[LedgerEntry]:
    """In the order in which they were recorded, newest first. `before` is the id of an entry; jobs that ended before
    `runs_since` are left out."""
    query = select(ledger).order_by(ledger.c.entry_id.desc()).limit(limit)
    if table is not None:
        query = query.where(*_about(table))
    if before is not None:
        query = query.where(ledger.c.entry_id < before)
    if runs_since is not None:
        query = query.where(or_(ledger.c.kind != str(EntryKind.RUN), ledger.c.recorded_at >= written_at(runs_since)))
    if until is not None:
        query = query.where(ledger.c.recorded_at <= written_at(until))
    return [_entry(row) for row in connection.execute(query).mappings()]


def oldest(connection: Connection, table: TableName | None = None) -> LedgerEntry | None:
    """The first entry that is still there: of all, or about one table."""
    query = select(ledger).order_by(ledger.c.entry_id).limit(1)
    if table is not None:
        query = query.where(*_about(table))
    row = connection.execute(query).mappings().first()
    return None if row is None else _entry(row)


def _about(table: TableName) -> tuple[Any, Any]:
    return ledger.c.schema_name == (table.schema or ""), ledger.c.table_name == table.name


def run_of(connection: Connection, table: TableName, job: int) -> LedgerEntry | None:
    """The entry of a job; None while it runs, and where the entry was pruned."""
    query = select(ledger).where(*_about(table), ledger.c.kind == str(EntryKind.RUN))
    # As `canonical` writes it, behind the last of the names that come before it.
    named = query.where(ledger.c.after_json.like(f'%"job":{int(job)},%')).order_by(ledger.c.entry_id)
    found = map(_entry, connection.execute(named).mappings())
    return next((each for each in found if each.became.get("job") == job), None)


def tables(connection: Connection, name: str) -> set[TableName]:
    """Those of that name that entries are about, in whichever schema."""
    schemas = select(ledger.c.schema_name).where(ledger.c.table_name == name).distinct()
    return {TableName(name, schema or None) for schema in connection.execute(schemas).scalars()}


def verify(connection: Connection, anchors: Mapping[int, str]) -> ChainVerdict:
    """Read the chain from its beginning to the first entry that is wrong, or to its head."""
    chain = Chain(anchors=anchors)
    for some in _sealed(connection):
        if not chain.follow(some) or not all(_has_its_keys(connection, each, chain) for each in some):
            break
    waiting = select(func.count()).select_from(ledger).where(ledger.c.sequence.is_(None))
    return chain.verdict(waiting=int(connection.execute(waiting).scalar_one()))


def _has_its_keys(connection: Connection, entry: LedgerEntry, chain: Chain) -> bool:
    """Of a job whose keys are on record. They go with their entry, so they are there as long as it is."""
    said = entry.became.get("keys") if entry.kind == EntryKind.RUN else None
    if said is None or ledger_keys.fits(connection, entry.became["job"], said):
        return True
    return chain.fail(int(entry.sequence or 0), f"is not about the keys that are stored for job {entry.became['job']}")


def _sealed(connection: Connection) -> Iterator[Sequence[LedgerEntry]]:
    after, query = 0, select(ledger).order_by(ledger.c.sequence).limit(READ_AT_ONCE)
    while True:
        rows = connection.execute(query.where(ledger.c.sequence > after)).mappings().all()
        if not rows:
            return
        after = rows[-1]["sequence"]
        yield [_entry(row) for row in rows]


def prune(connection: Connection, *, before: datetime, now: datetime) -> int:
    """Remove old entries from the beginning of the chain, so many at a time; an entry records what the last one was."""
    rows = _beginning(connection, PRUNED_AT_ONCE, written_at(before))
    if not rows:
        return 0
    last = rows[-1]
    gone = {"first": rows[0].sequence, "last": last.sequence, "hash": last.hash, "until": last.recorded_at}
    record(connection, EntryKind.PRUNED, now=now, before=gone)
    runs = select(ledger.c.after_json).where(ledger.c.sequence <= last.sequence, ledger.c.kind == str(EntryKind.RUN))
    told = [json.loads(text) for text in connection.execute(runs).scalars()]
    ledger_keys.prune(connection, [each["job"] for each in told if "keys" in each])
    return connection.execute(delete(ledger).where(ledger.c.sequence <= last.sequence)).rowcount


def has_older(connection: Connection, before: datetime) -> bool:
    """Is there an entry to prune?"""
    return bool(_beginning(connection, 1, written_at(before)))


def _beginning(connection: Connection, limit: int, before: str) -> Sequence[Row[Any]]:
    """Of the chain, up to the first entry that is young enough. The head stays, as what comes next is chained to it."""
    columns = select(ledger.c.sequence, ledger.c.hash, ledger.c.recorded_at)
    newest = select(func.max(ledger.c.sequence)).scalar_subquery()
    oldest = columns.where(ledger.c.sequence < newest).order_by(ledger.c.sequence).limit(limit)
    return list(takewhile(lambda row: row.recorded_at <= before, connection.execute(oldest)))


def _entry(row: RowMapping) -> LedgerEntry:
    name = row["table_name"]
    return LedgerEntry(
        id=row["entry_id"],
        at=str(row["recorded_at"]),
        kind=str(row["kind"]),
        table=None if name is None else TableName(str(name), _text(row["schema_name"]) or None),
        role=_text(row["role_name"]),
        user=str(row["user_name"]),
        host=str(row["host"]),
        program=str(row["program"]),
        before=_text(row["before_json"]),
        after=_text(row["after_json"]),
        sequence=row["sequence"],
        previous=_text(row["previous"]),
        hash=_text(row["hash"]),
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)
