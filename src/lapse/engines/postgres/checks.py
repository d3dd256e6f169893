"""What cannot work on PostgreSQL is refused before anything is changed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from sqlalchemy import Connection

from lapse.engines import ledger_keys, planned
from lapse.engines.base import BoundPolicy, Engine
from lapse.engines.postgres import archive, condition, inspect, origin, partitions, references, zones
from lapse.engines.postgres.ledger_keys import can_be_told
from lapse.engines.postgres.names import literal, relation
from lapse.engines.zones import refuse_guess
from lapse.errors import Drift, Unsupported
from lapse.model.policy import Policy
from lapse.model.table import Table, TableKind, TableName


def check(engine: Engine, connection: Connection, declared: BoundPolicy, previous: Policy | None) -> list[str]:
    """Raises Refused; returns notices."""
    table, policy = declared.table, declared.policy
    if table.kind not in (TableKind.TABLE, TableKind.PARTITIONED):
        raise Unsupported(f"{table.name} is a {table.kind}, and TTL works on tables")
    standing = inspect.standing(connection, table.name)
    if standing.method not in (None, "heap"):
        raise Unsupported(
            f"table {table.name} is stored by the access method {standing.method}, and TTL works on heap tables"
        )
    planned.refuse_taken_name(declared, previous)
    if planned.becomes_managed(declared, previous):
        _refuse_leaf(connection, table)
    archive.check(connection, declared, previous)
    ledger_keys.check(declared, previous, can_be_told)
    whole = planned.with_managed_column(declared, "timestamp with time zone")
    _check_condition(engine, connection, whole, is_tried=whole is declared and standing.is_own)
    if policy.hide_expired == "policy" and policy.keep_last is not None:
        raise Unsupported(
            "ttl_hide_expired = 'policy' cannot know which rows ttl_keep_last keeps: row security of a table cannot "
            "read the table itself",
            hint="use 'view' instead",
        )
    if policy.hide_expired != "off":
        condition.expired_now(whole)
    if policy.replication_origin is not None and not origin.exists(connection, policy.replication_origin):
        raise Unsupported(
            f"there is no replication origin {policy.replication_origin}",
            hint=f"SELECT pg_replication_origin_create({literal(policy.replication_origin)});",
        )
    notices = [f"{found.text}; {found.statement}" for found in references.advice(connection, table) if found.statement]
    return [*_partition_notices(connection, declared, standing.heirs), *notices]


def _refuse_leaf(connection: Connection, table: Table) -> None:
    if partitions.is_leaf(connection, table.name):
        raise Unsupported(
            f"{table.name} is a partition, and PostgreSQL adds no column to a partition alone",
            hint="set ttl_expire_after on the partitioned table, or TTL = column + INTERVAL on the partition",
        )


def _check_condition(engine: Engine, connection: Connection, declared: BoundPolicy, *, is_tried: bool) -> None:
    """The condition itself is the check: it needs its columns, and the server must be able to compute it.

    `is_tried` where the column is there and the table is this role's own: nothing that belongs to another role's table
    is planned with this one's rights."""
    now = engine.now(connection)
    for rule in (None, *declared.policy.partitions):
        policy = declared.policy if rule is None else declared.policy.for_partition(rule.partition)
        found = condition.at(replace(declared, policy=policy), now)
        if not policy.pause:
            refuse_guess(declared, zones.in_doubt(connection, replace(declared, policy=policy)))
        if not is_tried:
            continue
        try:
            with engine.atomic(connection):
                # ONLY: of thousands of partitions each would be locked.
                connection.exec_driver_sql(
                    f"SELECT ({found.sql})::pg_catalog.bool, ({found.instant})::pg_catalog.timestamptz"
                    f" FROM ONLY {relation(declared.table.name)} LIMIT 0"
                )
        except Drift as error:
            raise Unsupported(f"PostgreSQL cannot compute when rows expire: {error.message}") from error


def _partition_notices(connection: Connection, declared: BoundPolicy, heirs: Collection[TableName]) -> list[str]:
    table, policy = declared.table, declared.policy
    if table.kind is not TableKind.PARTITIONED:
        if policy.partition_drop:
            raise Unsupported(f"table {table.name} has no partitions, so ttl_partition_drop cannot work")
        if policy.partitions:
            raise Unsupported(f"table {table.name} has no partitions, so per-partition TTL cannot work")
        return [
            f"table {heir} inherits from {table.name}; its rows are its own and need a policy of their own"
            for heir in heirs
        ]
    known = {name.partition for name in partitions.leaf_names(connection, table)}
    notices = [
        f"table {table.name} has no partition {rule.partition} yet; its TTL waits for it"
        for rule in policy.partitions
        if rule.partition not in known
    ]
    if policy.partition_drop and policy.archive is not None:
        notices.append("rows are archived one by one, so partitions are emptied first, and dropped by a later run")
    if policy.partition_drop and policy.ledger_keys:
        notices.append("keys are recorded row by row, so partitions are emptied first, and dropped by a later run")
    if policy.partition_drop and table.referenced_by:
        notices.append("foreign keys point at the table, so partitions are emptied row by row and not dropped")
    return notices
