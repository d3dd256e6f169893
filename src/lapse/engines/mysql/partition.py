"""Dropping a partition whose whole range has expired, instead of deleting its rows."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from lapse.engines.base import Batch, Checkpoint, Declared, Deleter
from lapse.engines.keyset import Atomic, Connect
from lapse.engines.mysql.condition import Condition
from lapse.engines.mysql.names import qualified, quote, source
from lapse.model.table import TableName

_BOUNDS = {
    "{column}": "{bound}",
    "unix_timestamp({column})": "from_unixtime({bound})",
    "to_days({column})": "from_days({bound})",
    "to_seconds({column})": "(TIMESTAMP'0001-01-01 00:00:00' + INTERVAL ({bound} - 31622400) SECOND)",
    "year({column})": "makedate({bound}, 1)",
}
"""How a table is partitioned by time → SQL for the first value that is not in the partition any more."""


def whole_range_expired(connection: Connection, declared: Declared, found: Condition) -> bool:
    """Can no row of this partition be alive, whatever is inserted meanwhile?"""
    table = declared.table
    if found.column is None or found.last is None or table.name.partition is None:
        return False
    row = _partition(connection, table.name)
    if row is None or row["parts"] < 2:
        return False
    bound = _first_value_beyond(row, found.column.name)
    if bound is None or not connection.exec_driver_sql(f"SELECT {bound} <= {found.last}").scalar():
        return False
    if row["position"] > 1:
        return True
    # NULL, and the zero date, lie in the first partition and never expire.
    if found.column.nullable:
        return False
    alive = connection.exec_driver_sql(f"SELECT 1 FROM {source(table.name)} WHERE ({found.sql}) IS NOT TRUE LIMIT 1")
    return alive.first() is None


class PartitionDropper(Deleter):
    """The whole job is one step. The server commits the drop by itself, so the lease is checked right before it."""

    def __init__(self, name: TableName, *, connect: Connect, atomic: Atomic) -> None:
        self._name = name
        self._connect = connect
        self._atomic = atomic

    def step(self, limit: int, checkpoint: Checkpoint) -> Batch:
        assert self._name.partition is not None
        with self._connect() as connection:
            rows = int(connection.exec_driver_sql(f"SELECT count(*) FROM {source(self._name)}").scalar_one())
            batch = Batch(examined=rows, done=True)
            with self._atomic(connection):
                checkpoint(connection, batch)
            connection.exec_driver_sql(
                f"/* lapse ttl */ ALTER TABLE {qualified(replace(self._name, partition=None))}"
                f" DROP PARTITION {quote(self._name.partition)}"
            )
            batch = replace(batch, selected=rows, deleted=rows)
            with self._atomic(connection):
                checkpoint(connection, batch)
        return batch

    def skip_one(self, checkpoint: Checkpoint) -> Batch:
        return Batch(done=True)

    def restart(self) -> None:
        """There is nothing left to go back to."""


def _partition(connection: Connection, name: TableName) -> dict[str, Any] | None:
    row = (
        connection.exec_driver_sql(
            "SELECT p.PARTITION_METHOD AS method, p.PARTITION_EXPRESSION AS expression,"
            " p.PARTITION_DESCRIPTION AS bound, p.PARTITION_ORDINAL_POSITION AS position,"
            " p.SUBPARTITION_NAME AS sub, (SELECT count(*) FROM information_schema.PARTITIONS o"
            " WHERE o.TABLE_SCHEMA = coalesce(%s, DATABASE()) AND o.TABLE_NAME = %s) AS parts"
            " FROM information_schema.PARTITIONS p WHERE p.TABLE_SCHEMA = coalesce(%s, DATABASE())"
            " AND p.TABLE_NAME = %s AND p.PARTITION_NAME = %s LIMIT 1",
            (name.schema, name.name, name.schema, name.name, name.partition),
        )
        .mappings()
        .first()
    )
    return None if row is None else dict(row)


def _first_value_beyond(row: dict[str, Any], column: str) -> str | None:
    if row["method"] not in ("RANGE", "RANGE COLUMNS") or row["sub"] is not None:
        return None
    bound = str(row["bound"])
    if not re.fullmatch(r"-?\d+|'[-0-9:. ]+'", bound):
        return None
    expression = str(row["expression"]).replace("`", "").replace(" ", "").lower()
    for form, value in _BOUNDS.items():
        if expression == form.format(column=column.lower()):
            return value.format(bound=bound)
    return None
