"""Dropping a partition whose whole range has expired, instead of deleting its rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.base import Batch, BoundPolicy, Checkpoint, Deleter
from lapse.engines.keyset import Atomic, Connect
from lapse.engines.mysql import inspect
from lapse.engines.mysql.condition import Condition
from lapse.engines.mysql.names import qualified, quote, source
from lapse.errors import Locked, NotPermitted
from lapse.model.table import TableName

LOCK_SECONDS = 0.1
"""Others wait behind a request for the lock, so it is short. MySQL cannot count below a second, and waits one."""
CHECK_SECONDS = 1.0
"""How long each statement may take while the table is locked."""
FIRST_YEAR = 100
"""Smaller ones are taken for the short form of others."""
_IN_USE = (1205, 1969)
_TOO_LONG = (1969, 3024)
_DENIED = (1044, 1142)
_BOUNDS = {
    "{column}": "{bound}",
    "unix_timestamp({column})": "from_unixtime({bound})",
    "to_days({column})": "from_days({bound})",
    "to_seconds({column})": "(TIMESTAMP'0001-01-01 00:00:00' + INTERVAL ({bound} - 31622400) SECOND)",
    "year({column})": "makedate({bound}, 1)",
}
"""How a table is partitioned by time → SQL for the first value that is not in the partition any more."""


def whole_range_expired(
    connection: Connection, declared: BoundPolicy, found: Condition, *, seconds: float | None = None
) -> bool:
    """Can no row of this partition be alive, whatever is inserted meanwhile? `seconds` is for what it takes to see."""
    table = declared.table
    if found.column is None or found.last is None or table.name.partition is None or not found.is_time_alone:
        return False
    if why_not(connection, table.name) is not None:
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
    # MariaDB takes the hint for a comment; there the session has a limit.
    hint = f" /*+ MAX_EXECUTION_TIME({int(seconds * 1000)}) */" if seconds else ""
    alive = f"SELECT{hint} 1 FROM {source(table.name)} WHERE ({found.sql}) IS NOT TRUE LIMIT 1"
    return connection.exec_driver_sql(alive).first() is None


def is_empty(connection: Connection, name: TableName, *, seconds: float | None = None) -> bool:
    """Has the partition no row at all? With `seconds`, which bound it, rows that another session has not committed yet
    count as well."""
    hint = f" /*+ MAX_EXECUTION_TIME({int(seconds * 1000)}) */" if seconds else ""
    lock = " LOCK IN SHARE MODE" if seconds else ""
    return connection.exec_driver_sql(f"SELECT{hint} 1 FROM {source(name)} LIMIT 1{lock}").first() is None


def why_not(connection: Connection, name: TableName) -> str | None:
    """Why no partition of this table is dropped, whatever its range."""
    if inspect.has_triggers(connection, name):
        return f"table {name.whole} has DELETE triggers, which dropping a partition would not run"
    if "/" in name.name or "/" in (name.schema or inspect.current_database(connection)):
        return f"MariaDB loses a table with a slash in its name, like {name.whole}, when it drops a partition"
    return None


def unexpired(connection: Connection, name: TableName, found: Condition) -> frozenset[TableName]:
    """Leaves of a table whose rows all come after the latest value that has expired.

    A range begins where the one before it ends. NULL, and the zero date, lie in the first one, which has no beginning.
    """
    if found.column is None or found.last is None:
        return frozenset()
    rows = connection.exec_driver_sql(
        "SELECT PARTITION_METHOD AS method, PARTITION_EXPRESSION AS expression, PARTITION_DESCRIPTION AS bound,"
        " PARTITION_ORDINAL_POSITION AS position, NULL AS sub, coalesce(SUBPARTITION_NAME, PARTITION_NAME) AS leaf"
        " FROM information_schema.PARTITIONS WHERE TABLE_SCHEMA = coalesce(%s, DATABASE()) AND TABLE_NAME = %s"
        " AND PARTITION_NAME IS NOT NULL ORDER BY PARTITION_ORDINAL_POSITION",
        (name.schema, name.name),
    ).mappings()
    leaves = [dict(row) for row in rows]
    ends = {row["position"]: end for row in leaves if (end := _first_value_beyond(row, found.column.name)) is not None}
    if not ends:
        return frozenset()
    # The server lets no bound come before another, so the first that is later tells of all that follow.
    cases = " ".join(f"WHEN {end} > {found.last} THEN {position}" for position, end in sorted(ends.items()))
    first = connection.exec_driver_sql(f"SELECT CASE {cases} END").scalar()
    if first is None:
        return frozenset()
    return frozenset(TableName(name.name, name.schema, row["leaf"]) for row in leaves if row["position"] > first)


class PartitionDropper(Deleter):
    """Drops the partition in one step, or deletes its rows like those of any other table.

    Between planning and this step the partition may have been given other bounds, or the table a trigger. So the
    question is asked again with the table locked, and the drop happens under the same lock. Where the answer is no,
    `rows` makes the deleter that looks at each row. A partition is dropped `when_empty` where each row is needed when
    it goes.
    """

    def __init__(
        self,
        name: TableName,
        *,
        connect: Connect,
        atomic: Atomic,
        droppable: Callable[[Connection], bool],
        rows: Callable[[], Deleter],
        limits_statements: bool,
        when_empty: bool = False,
    ) -> None:
        """`limits_statements`: does the server know `max_statement_time`?"""
        self._name = name
        self._connect = connect
        self._atomic = atomic
        self._droppable = droppable
        self._rows = rows
        self._limits_statements = limits_statements
        self._when_empty = when_empty
        self._deleter: Deleter | None = None

    def step(self, limit: int, checkpoint: Checkpoint) -> Batch:
        if self._deleter is None:
            batch = self._drop(checkpoint)
            if batch is not None:
                return batch
            self._deleter = self._rows()
        return self._deleter.step(limit, checkpoint)

    def skip_one(self, checkpoint: Checkpoint) -> Batch:
        """A partition that cannot be dropped is not done: its rows are next."""
        if self._deleter is None:
            self._deleter = self._rows()
            return Batch()
        return self._deleter.skip_one(checkpoint)

    def restart(self) -> None:
        if self._deleter is not None:
            self._deleter.restart()

    def interrupt(self) -> None:
        if self._deleter is not None:
            self._deleter.interrupt()

    def _drop(self, checkpoint: Checkpoint) -> Batch | None:
        """None where rows have to be looked at one by one."""
        assert self._name.partition is not None
        whole = qualified(replace(self._name, partition=None))
        with self._connect() as locked, self._connect() as catalog:
            # Counted before the lock: it may take a while.
            rows = int(locked.exec_driver_sql(f"SELECT count(*) FROM {source(self._name)}").scalar_one())
            if rows and self._when_empty:
                return None
            with self._locked(locked, whole):
                if not self._may_drop(locked):
                    return None
                batch = Batch(examined=rows, selected=rows, deleted=rows, done=True)
                # The server commits the drop by itself. The lease is held until it has happened.
                with self._atomic(catalog):
                    checkpoint(catalog, batch)
                    locked.exec_driver_sql(
                        f"/* lapse ttl */ ALTER TABLE {whole} DROP PARTITION {quote(self._name.partition)}"
                    )
        return batch

    @contextmanager
    def _locked(self, connection: Connection, table: str) -> Iterator[None]:
        """The table locked, without a place in the queue for it that others would have to wait behind for long."""
        try:
            self._limit(connection, LOCK_SECONDS)
            connection.exec_driver_sql(f"/* lapse ttl */ LOCK TABLES {table} WRITE")
        except DBAPIError as error:
            number = error.orig.args[0] if error.orig is not None else None
            if number in _IN_USE:
                raise Locked(f"table {table} is in use, so partition {self._name.partition} waits") from error
            if number in _DENIED:
                raise NotPermitted(
                    f"dropping a partition of {table} needs the privilege LOCK TABLES",
                    hint="GRANT LOCK TABLES ON its database, or set ttl_partition_drop = 'off'",
                ) from error
            raise
        finally:
            self._limit(connection, 0)
        try:
            yield
        finally:
            if not connection.invalidated:
                connection.exec_driver_sql("/* lapse ttl */ UNLOCK TABLES")

    def _may_drop(self, connection: Connection) -> bool:
        """Unless it takes too long to find out, which would make other sessions wait."""
        try:
            self._limit(connection, CHECK_SECONDS)
            if not self._droppable(connection):
                return False
            return not self._when_empty or is_empty(connection, self._name, seconds=CHECK_SECONDS)
        except DBAPIError as error:
            if error.orig is None or error.orig.args[0] not in _TOO_LONG:
                raise
            return False
        finally:
            self._limit(connection, 0)

    def _limit(self, connection: Connection, seconds: float) -> None:
        if self._limits_statements and not connection.invalidated:
            connection.exec_driver_sql(f"SET SESSION max_statement_time = {seconds}")


def range_column(connection: Connection, name: TableName) -> str | None:
    """The column that a table is partitioned by ranges of, as it is or inside a function such as TO_DAYS."""
    expression = connection.exec_driver_sql(
        "SELECT PARTITION_EXPRESSION FROM information_schema.PARTITIONS WHERE TABLE_SCHEMA = coalesce(%s, DATABASE())"
        " AND TABLE_NAME = %s AND PARTITION_METHOD IN ('RANGE', 'RANGE COLUMNS') LIMIT 1",
        (name.schema, name.name),
    ).scalar()
    found = re.fullmatch(r"(?:\w+\s*\(\s*)?`([^`]+)`\s*\)?", str(expression or ""))
    return None if found is None else found[1]


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
    if expression.startswith("year(") and int(bound) < FIRST_YEAR:
        return None
    for form, value in _BOUNDS.items():
        if expression == form.format(column=column.lower()):
            return value.format(bound=bound)
    return None
