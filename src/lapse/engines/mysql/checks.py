"""What cannot work is refused before anything is changed."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection

from lapse.engines import ledger_keys, planned
from lapse.engines.base import BoundPolicy
from lapse.engines.mysql import archive, condition, inspect, keys, managed, partitions, references, zones
from lapse.engines.mysql.ledger_keys import can_be_told
from lapse.engines.mysql.names import live_view
from lapse.engines.zones import refuse_guess
from lapse.errors import Unsupported
from lapse.model.policy import PartitionRule, Policy
from lapse.model.table import Table, TableKind

_TRANSACTIONAL = ("INNODB", "ROCKSDB")


def check(connection: Connection, declared: BoundPolicy, previous: Policy | None, now: datetime) -> list[str]:
    """Raises Refused; returns notices."""
    notices = check_table(connection, declared)
    _check_condition(connection, declared, previous, now)
    return notices


def check_table(connection: Connection, declared: BoundPolicy) -> list[str]:
    """What the table must be like, whether Lapse or the engine deletes its rows."""
    table, policy = declared.table, declared.policy
    _check_table(table)
    _check_partitions(table, policy)
    _check_keep_last(table, policy)
    if policy.hide_expired == "policy":
        raise Unsupported(
            "MariaDB and MySQL have no row security, so ttl_hide_expired = 'policy' cannot work",
            hint="use 'view' instead",
        )
    if policy.replication_origin is not None:
        raise Unsupported("MariaDB and MySQL have no replication origins, so ttl_replication_origin cannot work")
    return _notices(connection, declared)


def _check_condition(connection: Connection, declared: BoundPolicy, previous: Policy | None, now: datetime) -> None:
    """The condition itself is the check: it needs its columns, and the columns need a type that holds time."""
    table, policy = declared.table, declared.policy
    planned.refuse_taken_name(declared, previous)
    archive.check(connection, declared, previous)
    ledger_keys.check(declared, previous, can_be_told)
    complete = planned.with_managed_column(declared, "datetime(6)")
    of_partitions = [policy.for_partition(rule.partition) for rule in policy.partitions]
    for rule in policy.partitions:
        _check_shorter(policy, rule)
    for each in (complete, *(replace(complete, policy=part, expression=None) for part in of_partitions)):
        condition.at(connection, each, now)
        if not policy.pause:
            refuse_guess(each, zones.in_doubt(connection, each))
    if policy.hide_expired == "view":
        managed.refuse_foreign_view(connection, live_view(table.name))
        condition.expired_now(connection, complete)


def _check_shorter(policy: Policy, rule: PartitionRule) -> None:
    """One column is stamped for the whole table, so a partition can keep its rows longer, not shorter."""
    if rule.column is not None or policy.column is not None or policy.expire_after is None:
        return
    if rule.after.months or policy.expire_after.months or rule.after.micros < policy.expire_after.micros:
        raise Unsupported(
            f"partition {rule.partition} cannot have a TTL of {rule.after}, which is not longer than the table's",
            hint=f"name a column: {rule.partition}_ttl_col=…",
        )


def _notices(connection: Connection, declared: BoundPolicy) -> list[str]:
    table, policy = declared.table, declared.policy
    notices = [advice.text for advice in references.advice(table)]
    if inspect.is_versioned(connection, table.name):
        notices.append(
            f"table {table.name} is system-versioned: rows that expire stay in its history until"
            f" DELETE HISTORY FROM {table.name} removes them"
        )
    if policy.partition_drop and policy.archive is not None:
        notices.append("rows are archived one by one, so partitions are emptied first, and dropped by a later run")
    if policy.partition_drop and policy.ledger_keys:
        notices.append("keys are recorded row by row, so partitions are emptied first, and dropped by a later run")
    if policy.partition_drop and (why_not := partitions.why_not(connection, table.name)):
        notices.append(f"{why_not}: its rows are deleted one by one")
    if policy.time_format is not None:
        notices.append("ttl_time_format has no effect here: the column's type says how it stores time")
    return notices


def _check_table(table: Table) -> None:
    if table.kind not in (TableKind.TABLE, TableKind.PARTITIONED):
        raise Unsupported(f"{table.name} is a {table.kind}, and TTL works on tables")
    if table.storage not in _TRANSACTIONAL:
        raise Unsupported(
            f"table {table.name} has the storage engine {table.storage}, which has no transactions",
            hint=f"ALTER TABLE {table.name} ENGINE = InnoDB",
        )
    if not table.key:
        raise Unsupported(
            f"table {table.name} has no key by which rows could be deleted one batch after the other: it needs a "
            "primary key, or a unique key of whole columns that are NOT NULL",
            hint=f"ALTER TABLE {table.name} ADD COLUMN id BIGINT AUTO_INCREMENT PRIMARY KEY",
        )
    for name in table.key:
        keys.check_type(name, table)


def _check_keep_last(table: Table, policy: Policy) -> None:
    if policy.keep_last is not None and table.storage != "INNODB":
        raise Unsupported(
            f"table {table.name} has the storage engine {table.storage}, and ttl_keep_last needs InnoDB's row locks",
            hint=f"ALTER TABLE {table.name} ENGINE = InnoDB",
        )


def _check_partitions(table: Table, policy: Policy) -> None:
    if table.kind is not TableKind.PARTITIONED:
        if policy.partitions:
            names = ", ".join(rule.partition for rule in policy.partitions)
            raise Unsupported(f"table {table.name} has no partitions, but the policy names {names}")
        if policy.partition_drop:
            raise Unsupported(f"table {table.name} has no partitions, so ttl_partition_drop cannot work")
        return
    unknown = [rule.partition for rule in policy.partitions if rule.partition not in table.partitions]
    if unknown:
        raise Unsupported(
            f"table {table.name} has no partition {', '.join(unknown)}",
            hint=f"its partitions are {', '.join(table.partitions)}",
        )
