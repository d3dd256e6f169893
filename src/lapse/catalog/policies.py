"""Policies and the physical tables they cover, as stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, delete, insert, select, update

from lapse.catalog.schema import policy, policy_version, rate, table
from lapse.model.policy import Policy
from lapse.model.table import TableName

STATEMENT = "statement"
COMMENT = "comment"
FILE = "file"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredPolicy:
    """`fingerprint` is what the table looked like when the policy was declared; `source` who declared it.

    `cleared_at` is when its guard let it pass, or somebody confirmed it; `held` says why it did not.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class PhysicalTable:
    """`trouble` says why no job can run, until one could."""

    id: int
    policy_id: int
    partition: str | None
    next_run_at: datetime | None
    trouble: str | None
    statistics: str | None


# Built once, as every run asks them and building one takes as long as running it.
_POLICIES = select(policy).order_by(policy.c.schema_name, policy.c.table_name)
_TABLES = select(table).order_by(table.c.table_id)


def find_policy(connection: Connection, name: TableName) -> StoredPolicy | None:
    row = connection.execute(select(policy).where(*_of(name))).mappings().first()
    return None if row is None else _policy(row)


def get_policy(connection: Connection, policy_id: int) -> StoredPolicy | None:
    row = connection.execute(select(policy).where(policy.c.policy_id == policy_id)).mappings().first()
    return None if row is None else _policy(row)


def list_policies(connection: Connection) -> list[StoredPolicy]:
    return [_policy(row) for row in connection.execute(_POLICIES).mappings()]


def save_policy(
    connection: Connection,
    name: TableName,
    value: Policy,
    *,
    reloptions: Sequence[str],
    recurrence: str,
    source: str,
    fingerprint: str,
    now: datetime,
) -> StoredPolicy:
    """Store a new policy, or a new version of the one there is."""
    current = find_policy(connection, name)
    values: dict[str, Any] = {
        "version": current.version + 1 if current else 1,
        "options": value.to_json(),
        "reloptions": "{" + ",".join(reloptions) + "}",
        "recurrence": recurrence,
        "paused": value.pause,
        "source": source,
        "fingerprint": fingerprint,
        "changed_at": now,
    }
    if current is None:
        names = {"schema_name": name.schema or "", "table_name": name.name, "created_at": now}
        connection.execute(insert(policy).values(**names, **values))
    else:
        connection.execute(update(policy).where(policy.c.policy_id == current.id).values(**values))
    stored = find_policy(connection, name)
    assert stored is not None
    connection.execute(
        insert(policy_version).values(
            policy_id=stored.id, version=stored.version, options=values["options"], changed_at=now
        )
    )
    return stored


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


def sync_tables(connection: Connection, policy_id: int, partitions: Sequence[str | None]) -> list[PhysicalTable]:
    """Make the physical tables of a policy those that exist now."""
    wanted = {partition or "" for partition in partitions}
    known = {physical.partition or "": physical for physical in list_tables(connection, policy_id)}
    for name in sorted(wanted - known.keys()):
        connection.execute(insert(table).values(policy_id=policy_id, partition_name=name))
    gone = [known[name].id for name in known.keys() - wanted]
    if gone:
        connection.execute(delete(table).where(table.c.table_id.in_(gone)))
    return list_tables(connection, policy_id)


def set_fingerprint(connection: Connection, policy_id: int, fingerprint: str) -> None:
    connection.execute(update(policy).where(policy.c.policy_id == policy_id).values(fingerprint=fingerprint))


def set_guard(connection: Connection, policy_id: int, *, cleared_at: datetime | None, held: str | None = None) -> None:
    connection.execute(update(policy).where(policy.c.policy_id == policy_id).values(cleared_at=cleared_at, held=held))


def set_next_run(connection: Connection, table_id: int, at: datetime | None) -> None:
    connection.execute(update(table).where(table.c.table_id == table_id).values(next_run_at=at))


def schedule_table(connection: Connection, table_id: int, at: datetime, *, trouble: str | None = None) -> None:
    """When a table's next job is due, now that it has got one; `trouble` says why that one could not be planned."""
    connection.execute(update(table).where(table.c.table_id == table_id).values(next_run_at=at, trouble=trouble))


def set_trouble(connection: Connection, table_id: int, trouble: str | None) -> None:
    connection.execute(update(table).where(table.c.table_id == table_id).values(trouble=trouble))


def set_statistics(connection: Connection, table_id: int, statistics: str) -> None:
    connection.execute(update(table).where(table.c.table_id == table_id).values(statistics=statistics))


def _of(name: TableName) -> tuple[Any, Any]:
    return policy.c.schema_name == (name.schema or ""), policy.c.table_name == name.name


def _policy(row: RowMapping) -> StoredPolicy:
    return StoredPolicy(
        id=row["policy_id"],
        table=TableName(row["table_name"], row["schema_name"] or None),
        version=row["version"],
        policy=Policy.from_json(row["options"]),
        source=row["source"],
        fingerprint=row["fingerprint"],
        created_at=row["created_at"],
        changed_at=row["changed_at"],
        cleared_at=row["cleared_at"],
        held=row["held"],
    )


def _physical(row: RowMapping) -> PhysicalTable:
    return PhysicalTable(
        id=row["table_id"],
        policy_id=row["policy_id"],
        partition=row["partition_name"] or None,
        next_run_at=row["next_run_at"],
        trouble=row["trouble"],
        statistics=row["statistics"],
    )
