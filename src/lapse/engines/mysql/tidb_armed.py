"""Is this still the table that a policy was declared on, where Lapse's own jobs delete its rows? TiDB's answer.

TiDB numbers its tables, and a number is never used twice: another one has the name after DROP, CREATE and RENAME, and
after TRUNCATE as well. A transaction that has touched a table sees its definition as its statements do, and a statement
that alters the table is not over before the transaction is. So what is asked in a batch after its first statement is
true of that statement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.engines.base import BoundPolicy
from lapse.engines.mysql import armed, tidb_jobs, zones
from lapse.engines.mysql.armed import Armed, Changed
from lapse.engines.mysql.names import qualified, source
from lapse.engines.zones import block_guess
from lapse.errors import Blocked, Unsupported
from lapse.model.blocked import BlockCode
from lapse.model.table import Table, TableName

Columns = Sequence[Sequence[object]]
_NUMBER = "table"
"""In the text that the catalog keeps, beside what `Armed` has: TiDB's number of the table."""
_COUNTERS = re.compile(r" AUTO_INCREMENT=\d+| /\*T!\[auto_rand_base\] AUTO_RANDOM_BASE=\d+ \*/")
"""Change with every insert."""


def arm(connection: Connection, declared: BoundPolicy) -> str:
    table = declared.table
    rules = [rule.column for rule in declared.policy.partitions if rule.column is not None]
    number = tidb_jobs.table_id(connection, table.name)
    found = armed.columns(connection, table.name, [*declared.columns_read, *rules])
    return _text(table, found, _witnesses(connection, table, found), number)


def is_own(text: str) -> bool:
    """Was a policy armed for Lapse's own jobs? If not, TiDB deletes the rows."""
    return Armed.read(text) is not None


def check(connection: Connection, table: Table, text: str, *, renews: bool = True) -> str:
    """The text to keep; raises Blocked. It `renews` the rows that the table is known by."""
    then, name = Armed.read(text), table.name.whole
    assert then is not None
    number, enabled, _ = _asked(connection, name)
    if number != json.loads(text)[_NUMBER]:
        raise Blocked(
            BlockCode.TABLE_REPLACED,
            f"table {name} is not the one that the policy was declared on: it was truncated, or another one has taken"
            " its name",
            hint=f"check that the policy is meant for it, then: lapse resume URL {name}",
        )
    if not enabled:
        raise _switched_off()
    found = armed.columns(connection, name, then.names)
    armed.refuse_other_columns(connection, table, then, found)
    refuse_ttl(connection, name)
    return _text(table, found, _witnesses(connection, table, found) if renews else then.rows, number)


def _switched_off() -> Blocked:
    """Who switches TTL off for the cluster means all of it."""
    return Blocked(BlockCode.PARTS_MISSING, "tidb_ttl_job_enable is OFF", hint="SET GLOBAL tidb_ttl_job_enable = ON")


def _text(table: Table, columns: Columns, rows: Mapping[str, str], number: int | None) -> str:
    known = Armed(columns=columns, key=table.key, rows=rows, looks={})
    return json.dumps({**asdict(known), _NUMBER: number})


def _witnesses(connection: Connection, table: Table, columns: Columns) -> Mapping[str, str]:
    return armed.witnesses(connection, table, columns, armed.key_walk(connection, table))


def _asked(connection: Connection, name: TableName, more: str = "NULL") -> Sequence[Any]:
    """The table's number, whether TTL is switched on for the cluster, and `more`, in one statement."""
    return connection.exec_driver_sql(
        "SELECT (SELECT TIDB_TABLE_ID FROM information_schema.TABLES WHERE TABLE_SCHEMA = coalesce(%s, DATABASE())"
        f" AND TABLE_NAME = %s), @@global.tidb_ttl_job_enable, {more}",
        (name.schema, name.name),
    ).one()


def refuse_ttl(connection: Connection, name: TableName) -> None:
    """One table, one meaning: what Lapse deletes, TiDB does not delete as well."""
    found = tidb_jobs.read(connection, name)
    if found is not None and found.enabled:
        raise Blocked(
            BlockCode.PARTS_MISSING,
            f"another client has declared a TTL of TiDB's own on table {name}, and TiDB deletes rows by it:"
            f" {found.column} + {found.interval or '…'}",
            hint=f"keep one of the two: ALTER TABLE {name} REMOVE TTL, or lapse doctor URL --repair, which removes it",
        )


def refuse_incomputable(connection: Connection, name: TableName, condition: str) -> None:
    """TiDB lacks functions that MySQL has, such as json_value. Nothing is read."""
    try:
        connection.exec_driver_sql(f"EXPLAIN SELECT 1 FROM {source(name)} WHERE {condition}")
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        raise Unsupported(f"TiDB cannot compute when rows of {name} expire: {error.orig}") from error


class Watch:
    """Asks in the transaction of each batch, after its first statement."""

    def __init__(self, connection: Connection, declared: BoundPolicy, text: str) -> None:
        self._declared = declared
        self._name = declared.table.name.whole
        self._text = text
        self._number = json.loads(text)[_NUMBER] if text else None
        self.look_again(connection, declared.table)

    def confirm(self, connection: Connection) -> None:
        """Raises Changed, or Blocked."""
        number, enabled, *zone = _asked(connection, self._name, zones.COLUMNS)
        if not enabled:
            raise _switched_off()
        block_guess(self._declared, zones.told(self._declared, zone))
        if self._text and (number != self._number or _shape(connection, self._name) != self._shape):
            raise Changed(f"table {self._name} was altered in the middle of a batch, which is done again")

    def renew(self, connection: Connection) -> str:
        """A table is known by its number alone."""
        return self._text

    def look_again(self, connection: Connection, table: Table) -> None:
        """Outside of a batch. What is altered between its two looks does not fit together: the next batch notices."""
        self._shape = _shape(connection, self._name)
        if self._text:
            self._text = check(connection, table, self._text, renews=False)


def _shape(connection: Connection, name: TableName) -> str:
    """The table's definition, its TTL included."""
    row = connection.exec_driver_sql(f"SHOW CREATE TABLE {qualified(name)}").one()
    return _COUNTERS.sub("", str(row[1]))
