"""Reading an archive table, and moving rows from there back into a table.

Pages go by the archive's own growing number. A page is put back by one statement and removed by another, in the
transaction of the caller, so that a row is in one of the two tables whatever is killed when.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from lapse.model.archive import ARCHIVED_AT, JOB, PACK, PACKED_ROWS, SEQUENCE
from lapse.model.table import Table, TableName

_THERE = "lapse_there"
_RANGES_AT_ONCE = 200
"""In one statement: SQLite reads a thousand terms at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """How an engine spells what is done with archives. `overriding` lets identity columns take the values they had;
    `is_duplicate` tells that a unique key refused a row, `lacks_partition` that no partition takes it."""

    quote: Callable[[str], str]
    relation: Callable[[TableName], str]
    instant: Callable[[datetime], str]
    is_duplicate: Callable[[DBAPIError], bool]
    lacks_partition: Callable[[DBAPIError], bool] = lambda error: False
    equal: str = "="
    overriding: str = ""
    lock: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchivedRows:
    """What one job has moved and is still there."""

    job: int
    rows: int
    first: datetime | None
    last: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Oldest:
    """The row that has waited for longest: its job, 0 where a person put it there, and whether it is a pack."""

    job: int
    is_pack: bool = False


class ArchiveTable:
    """`has_packs`: one of its rows may hold many. Only `by_job`, `waiting`, `oldest` and `packs` see those."""

    def __init__(self, dialect: Dialect, name: TableName, *, has_packs: bool = False) -> None:
        self._sql = dialect
        self._name = dialect.relation(name)
        self.has_packs = has_packs

    def by_job(self, connection: Connection) -> list[ArchivedRows]:
        rows = f"sum(COALESCE({PACKED_ROWS}, 1))" if self.has_packs else "count(*)"
        found = connection.exec_driver_sql(
            f"SELECT {JOB}, {rows}, min({ARCHIVED_AT}), max({ARCHIVED_AT}) FROM {self._name} GROUP BY {JOB}"
            f" ORDER BY {JOB}"
        )
        return [
            ArchivedRows(job=int(job or 0), rows=int(rows), first=_instant(first), last=_instant(last))
            for job, rows, first, last in found
        ]

    def chosen(
        self, *, job: int | None, since: datetime | None, until: datetime | None, where: str | None
    ) -> tuple[str, ...]:
        """Terms for the rows that are meant: `where` is SQL over their columns."""
        terms = [] if job is None else [f"{JOB} = {int(job)}"]
        terms += [] if since is None else [f"{ARCHIVED_AT} >= {self._sql.instant(since)}"]
        terms += [] if until is None else [f"{ARCHIVED_AT} < {self._sql.instant(until)}"]
        return (*terms, *([] if where is None else [f"({where})"]))

    def count(self, connection: Connection, terms: Sequence[str]) -> int:
        return int(connection.exec_driver_sql(f"SELECT count(*) FROM {self._name}{self._where(terms)}").scalar_one())

    def span(self, connection: Connection, terms: Sequence[str], column: str) -> tuple[Any, Any]:
        """The smallest and the largest value of a column."""
        column = self._sql.quote(column)
        found = connection.exec_driver_sql(
            f"SELECT min({column}), max({column}) FROM {self._name}{self._where(terms)}"
        ).one()
        return found[0], found[1]

    def span_of(self, connection: Connection, numbers: Collection[int], column: str) -> tuple[Any, Any]:
        """As `span`, of the rows with these numbers."""
        return self.span(connection, (_among(numbers),), column)

    def waiting(self, connection: Connection) -> int:
        """How many rows there can be, by their numbers: some of these may never have been used."""
        found = connection.exec_driver_sql(f"SELECT max({SEQUENCE}) - min({SEQUENCE}) + 1 FROM {self._name}").scalar()
        if not found or not self.has_packs:
            return int(found or 0)
        packed = f"SELECT sum({PACKED_ROWS} - 1) FROM {self._name} WHERE {PACKED_ROWS} IS NOT NULL"
        return int(found) + int(connection.exec_driver_sql(packed).scalar() or 0)

    def oldest(self, connection: Connection) -> Oldest | None:
        is_pack = f"{PACK} IS NOT NULL" if self.has_packs else "0"
        found = connection.exec_driver_sql(
            f"SELECT {JOB}, {is_pack} FROM {self._name} ORDER BY {SEQUENCE} LIMIT 1"
        ).first()
        return None if found is None else Oldest(job=int(found[0] or 0), is_pack=bool(found[1]))

    def packs(self, connection: Connection, terms: Sequence[str]) -> list[int]:
        """The numbers of packs."""
        if not self.has_packs:
            return []
        found = connection.exec_driver_sql(
            f"SELECT {SEQUENCE} FROM {self._name}{_where((f'{PACK} IS NOT NULL', *terms))} ORDER BY {SEQUENCE}"
        )
        return [int(number) for number in found.scalars()]

    def page(self, connection: Connection, terms: Sequence[str], after: int, limit: int) -> list[tuple[int, int]]:
        """Numbers and jobs of at most `limit` rows after that one, locked where rows are locked."""
        found = connection.exec_driver_sql(
            f"SELECT {SEQUENCE}, {JOB} FROM {self._name}{self._where((f'{SEQUENCE} > {int(after)}', *terms))}"
            f" ORDER BY {SEQUENCE} LIMIT {int(limit)}{self._sql.lock}"
        )
        return [(int(number), int(job or 0)) for number, job in found]

    def existing(self, connection: Connection, numbers: Collection[int], table: Table) -> set[int]:
        """Those of the rows whose primary key, or another unique key, a row of the table has."""
        keys = [table.primary_key, *(index.columns for index in table.indexes if index.unique and not index.partial)]
        whole = {tuple(key) for key in keys if key and None not in key}
        if not whole or not numbers:
            return set()
        there = " OR ".join(self._there(table.name, [str(column) for column in key]) for key in sorted(whole, key=str))
        found = connection.exec_driver_sql(f"SELECT {SEQUENCE} FROM {self._name} WHERE {_among(numbers)} AND ({there})")
        return {int(row[0]) for row in found}

    def _there(self, table: TableName, key: Sequence[str]) -> str:
        quote, equal = self._sql.quote, self._sql.equal
        same = " AND ".join(f"{_THERE}.{quote(column)} {equal} {self._name}.{quote(column)}" for column in key)
        return f"EXISTS (SELECT 1 FROM {self._sql.relation(table)} AS {_THERE} WHERE {same})"

    def put_back(
        self, connection: Connection, numbers: Collection[int], table: TableName, columns: Sequence[str]
    ) -> int:
        """Into `table`, by the names of `columns`; returns how many rows were inserted."""
        named = ", ".join(self._sql.quote(column) for column in columns)
        return connection.exec_driver_sql(
            f"INSERT INTO {self._sql.relation(table)} ({named}){self._sql.overriding}"
            f" SELECT {named} FROM {self._name} WHERE {_among(numbers)} ORDER BY {SEQUENCE}"
        ).rowcount

    def without(
        self, connection: Connection, numbers: Collection[int], columns: Sequence[str]
    ) -> dict[tuple[str, ...], list[int]]:
        """The rows by those of the columns in which they have no value."""
        tests = ", ".join(f"CASE WHEN {self._sql.quote(column)} IS NULL THEN 1 ELSE 0 END" for column in columns)
        found: dict[tuple[str, ...], list[int]] = {}
        for number, *lacks in connection.exec_driver_sql(
            f"SELECT {SEQUENCE}, {tests} FROM {self._name} WHERE {_among(numbers)} ORDER BY {SEQUENCE}"
        ):
            missing = tuple(column for column, lack in zip(columns, lacks, strict=True) if lack)
            found.setdefault(missing, []).append(int(number))
        return found

    def remove(self, connection: Connection, numbers: Collection[int]) -> int:
        return connection.exec_driver_sql(f"DELETE FROM {self._name} WHERE {_among(numbers)}").rowcount

    def remove_ranges(self, connection: Connection, ranges: Sequence[tuple[int, int]]) -> int:
        """The rows whose numbers are in ranges, first and last included; returns how many there were."""
        removed = 0
        for start in range(0, len(ranges), _RANGES_AT_ONCE):
            terms = (
                f"{SEQUENCE} BETWEEN {int(first)} AND {int(last)}"
                for first, last in ranges[start : start + _RANGES_AT_ONCE]
            )
            removed += connection.exec_driver_sql(f"DELETE FROM {self._name} WHERE {' OR '.join(terms)}").rowcount
        return removed

    def _where(self, terms: Sequence[str]) -> str:
        """Of rows that stand for themselves."""
        return _where((*terms, f"{PACK} IS NULL") if self.has_packs else terms)


def _among(numbers: Collection[int]) -> str:
    return f"{SEQUENCE} IN ({', '.join(str(int(number)) for number in sorted(numbers))})"


def _where(terms: Sequence[str]) -> str:
    return f" WHERE {' AND '.join(terms)}" if terms else ""


def _instant(value: Any) -> datetime | None:
    """Text on SQLite; without a zone on MariaDB and MySQL, where it is UTC."""
    if value is None:
        return None
    found = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
