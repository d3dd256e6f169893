"""Holds: a row each, kept when they are released, and what the policy of the table knows of those that are not."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, insert, select, update

from lapse.catalog import ledger
from lapse.catalog.policies import StoredPolicy
from lapse.catalog.schema import LARGEST_ID, hold, meta, policy, policy_version
from lapse.errors import NotFound, Retryable
from lapse.model.hold import HeldTerm, Hold, write_terms
from lapse.model.ledger import EntryKind
from lapse.model.table import TableName


def place_hold(
    connection: Connection,
    table: TableName,
    *,
    where: str | None,
    until: datetime | None,
    reason: str | None,
    now: datetime,
    by: str | None,
    version: int | None = None,
) -> Hold:
    """`version` is that of the policy from then on, where the table has one."""
    values = {
        "schema_name": table.schema or "",
        "table_name": table.name,
        "expression": where,
        "until_at": until,
        "reason": reason,
        "placed_at": now,
        "placed_by": by,
    }
    result = connection.execute(insert(hold), values)
    placed = get_hold(connection, int(result.inserted_primary_key[0]))  # type: ignore[index]
    ledger.record(connection, EntryKind.HELD, now=now, table=table, after=_recorded(placed, version))
    return placed


def get_hold(connection: Connection, hold_id: int) -> Hold:
    known = 0 <= hold_id <= LARGEST_ID
    row = connection.execute(select(hold).where(hold.c.hold_id == hold_id)).mappings().first() if known else None
    if row is None:
        raise NotFound(f"there is no hold {hold_id}", hint="`lapse holds URL` lists them")
    return _hold(row)


def end_hold(connection: Connection, held: Hold, *, now: datetime, by: str | None, version: int | None = None) -> bool:
    """False if it was released before."""
    ended = connection.execute(
        update(hold)
        .where(hold.c.hold_id == held.id, hold.c.released_at.is_(None))
        .values(released_at=now, released_by=by)
    )
    if ended.rowcount != 1:
        return False
    ledger.record(connection, EntryKind.RELEASED, now=now, table=held.table, before=_recorded(held, version))
    return True


def _recorded(held: Hold, version: int | None) -> dict[str, Any]:
    """What the ledger says of a hold."""
    said = {"hold": held.id, "where": held.where, "until": held.until, "reason": held.reason, "by": held.placed_by}
    return said if version is None else said | {"policy_version": version}


def list_holds(connection: Connection) -> list[Hold]:
    """All there ever were, in the order in which they were placed."""
    return [_hold(row) for row in connection.execute(select(hold).order_by(hold.c.hold_id)).mappings()]


def holds_on(connection: Connection, now: datetime) -> list[Hold]:
    """Those of any table that keep rows now."""
    return [each for each in _unreleased(connection) if each.until is None or each.until > now]


def unreleased(connection: Connection) -> list[Hold]:
    """Those whose time may be over included; also what was committed after this transaction began."""
    return _unreleased(connection, locked=True)


def _unreleased(connection: Connection, *, locked: bool = False) -> list[Hold]:
    query = select(hold).where(hold.c.released_at.is_(None)).order_by(hold.c.hold_id)
    return [_hold(row) for row in connection.execute(query.with_for_update() if locked else query).mappings()]


def lock(connection: Connection) -> None:
    """Of sessions that place a hold, and those that declare a policy on a table that had none, one at a time goes on:
    each knows what the other has done."""
    connection.execute(select(meta.c.value).with_for_update()).all()


def tell_policy(connection: Connection, stored: StoredPolicy, terms: Sequence[HeldTerm], now: datetime) -> None:
    """Jobs that were planned before this get no task any more, and a declaration that is under way is overtaken."""
    version = stored.version + 1
    values = {"holds": write_terms(terms), "hold_version": policy.c.hold_version + 1, "version": version}
    told = connection.execute(
        update(policy).where(policy.c.policy_id == stored.id, policy.c.version == stored.version).values(**values)
    )
    if told.rowcount != 1:
        raise Retryable(f"another session has just declared a policy on table {stored.table}", hint="try again")
    options = stored.policy.to_json()
    connection.execute(
        insert(policy_version).values(policy_id=stored.id, version=version, options=options, changed_at=now)
    )


def rename_holds(connection: Connection, ids: Sequence[int], table: TableName) -> None:
    """They follow the policy of their table."""
    if ids:
        names = {"schema_name": table.schema or "", "table_name": table.name}
        connection.execute(update(hold).where(hold.c.hold_id.in_(ids)).values(**names))


def _hold(row: RowMapping) -> Hold:
    return Hold(
        id=row["hold_id"],
        table=TableName(row["table_name"], row["schema_name"] or None),
        where=row["expression"],
        until=row["until_at"],
        reason=row["reason"],
        placed_at=row["placed_at"],
        placed_by=row["placed_by"],
        released_at=row["released_at"],
        released_by=row["released_by"],
    )
