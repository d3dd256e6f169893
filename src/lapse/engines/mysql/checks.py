"""What cannot work is refused before anything is changed."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection

from lapse.engines.base import Declared
from lapse.engines.mysql import condition, inspect, keys, managed, references
from lapse.engines.mysql.names import live_view
from lapse.errors import PolicyConflict, Unsupported
from lapse.model.policy import Policy
from lapse.model.table import MANAGED_COLUMN, Column, Table, TableKind

_TRANSACTIONAL = ("INNODB", "ROCKSDB")


def check(connection: Connection, declared: Declared, previous: Policy | None, now: datetime) -> list[str]:
    """Raises Refused; returns notices."""
    table, policy = declared.table, declared.policy
    _check_table(connection, table)
    _check_partitions(table, policy)
    if policy.hide_expired == "policy":
        raise Unsupported(
            "MariaDB and MySQL have no row security, so ttl_hide_expired = 'policy' cannot work",
            hint="use 'view' instead",
        )
    managed_before = previous is not None and previous.expire_after is not None
    if policy.expire_after is not None and not managed_before and table.column(MANAGED_COLUMN):
        raise PolicyConflict(
            f"table {table.name} already has a column {MANAGED_COLUMN}",
            hint=f"declare ttl_expiration_expression = '{MANAGED_COLUMN}' to use it as it is",
        )
    # The condition itself is the check: it needs its columns, and the columns need a type that holds time.
    complete = _with_managed(declared)
    condition.at(connection, complete, now)
    for rule in policy.partitions:
        condition.at(connection, replace(complete, policy=policy.for_partition(rule.partition)), now)
    if policy.hide_expired == "view":
        managed.refuse_foreign_view(connection, live_view(table.name))
        condition.expired_now(connection, complete)
    notices = [advice.text for advice in references.advice(table)]
    if policy.select_as_of_system_time is not None:
        notices.append("ttl_select_as_of_system_time has no effect here: plain reads of InnoDB lock nothing")
    if policy.time_format is not None:
        notices.append("ttl_time_format has no effect here: the column's type says how it stores time")
    return notices


def _check_table(connection: Connection, table: Table) -> None:
    if table.kind not in (TableKind.TABLE, TableKind.PARTITIONED):
        raise Unsupported(f"{table.name} is a {table.kind}, and TTL works on tables")
    engine = inspect.storage_engine(connection, table.name)
    if engine not in _TRANSACTIONAL:
        raise Unsupported(
            f"table {table.name} has the storage engine {engine}, which has no transactions",
            hint=f"ALTER TABLE {table.name} ENGINE = InnoDB",
        )
    if not table.key:
        raise Unsupported(
            f"table {table.name} has no key by which rows could be deleted one batch after the other: it needs a "
            "primary key, or a unique key of whole columns that are NOT NULL",
            hint=f"ALTER TABLE {table.name} ADD COLUMN id BIGINT AUTO_INCREMENT PRIMARY KEY",
        )
    keys.load(connection, table.name, inspect.key_index(table))


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


def _with_managed(declared: Declared) -> Declared:
    """The table as it will be once the managed column is there, so that a policy can be checked beforehand."""
    table = declared.table
    if declared.policy.expire_after is None or table.column(MANAGED_COLUMN):
        return declared
    column = Column(name=MANAGED_COLUMN, type="datetime(6)")
    return replace(declared, table=replace(table, columns=(*table.columns, column)))
