"""The table that contenders work on, the same rows on every engine: created, looked at, dropped.

Values come from multiplying the row's number by a large odd one, which every engine can do: they are spread evenly,
in no order, and the same each time.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from sqlalchemy import URL

from lapse.bench.shape import Shape
from lapse.errors import Unsupported

MULTIPLIERS = (2654435761, 2246822519, 3266489917, 668265263, 374761393, 2654435769)
"""The first decides who has expired; the others fill the columns that have an index."""
MASK = 0xFFFFFFFF
BODY = "x" * 190
CUTOFF = "2026-01-01 00:00:00"
PAST, FUTURE = "2020-01-01 00:00:00", "2037-01-01 00:00:00"
SMALL_ROWS = 500
Key = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """Rows and a checksum of those that have not expired."""

    rows: int
    expired: int
    checksum: int

    def without_expired(self) -> Contents:
        return Contents(rows=self.rows - self.expired, expired=0, checksum=self.checksum)


class BenchTable(ABC):
    """One table under test, reached by a plain driver connection of its own."""

    expired: ClassVar[str] = f"expire_at <= '{CUTOFF}'"
    types: ClassVar[dict[str, str]] = {"bigint": "BIGINT", "uuid": "UUID", "time": "TIMESTAMP", "body": "TEXT"}
    uuid: ClassVar[str]
    """SQL for a key in no order, made from n."""
    settling: ClassVar[tuple[str, ...]] = ()
    """What makes the server forget that the table was filled a moment ago."""
    has_brin: ClassVar[bool] = False

    def __init__(self, url: URL, name: str) -> None:
        self.url = url
        self.name = name
        self.shape = Shape(rows=1)

    @abstractmethod
    def connect(self) -> Any:
        """A driver connection that commits each statement."""

    @property
    def lapse_url(self) -> str:
        return self.url.render_as_string(hide_password=False)

    @property
    def key(self) -> tuple[str, ...]:
        return ("tenant", "id") if self.shape.key == "composite" else ("id",)

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        with closing(self.connect()) as connection, closing(connection.cursor()) as cursor:
            yield cursor

    def create(self, shape: Shape) -> None:
        self.shape = shape
        self.drop()
        with self.cursor() as cursor:
            for statement in [*self.filling(), *(each.format(table=self.name) for each in self.settling)]:
                cursor.execute(statement)
            self.settle(cursor)

    def settle(self, cursor: Any) -> None:  # noqa: B027 - only where there are such roles
        """The rest of it, where not every role may do it."""

    def filling(self) -> list[str]:
        columns = ", ".join(self.column_names())
        return [
            f"CREATE TABLE {self.name} ({self.columns()}, PRIMARY KEY ({', '.join(self.key)}))",
            f"INSERT INTO {self.name} ({columns}) SELECT {', '.join(self.values())} FROM {self.numbered()}",
            *self.indexes(),
        ]

    @abstractmethod
    def numbered(self) -> str:
        """What comes after FROM to get n from 1 to the number of rows, in order."""

    def column_names(self) -> list[str]:
        return [*self.key, *(f"r{k}" for k in range(len(MULTIPLIERS))), "expire_at", "body"]

    def columns(self) -> str:
        number = self.types["bigint"]
        id_type = self.types["uuid"] if self.shape.key == "uuid" else number
        keys = [f"{name} {id_type if name == 'id' else number} NOT NULL" for name in self.key]
        randoms = [f"r{k} {number} NOT NULL" for k in range(len(MULTIPLIERS))]
        return ", ".join([*keys, *randoms, f"expire_at {self.types['time']}", f"body {self.types['body']}"])

    def values(self) -> list[str]:
        mixed = [f"((n * {by}) & {MASK})" for by in MULTIPLIERS]
        share = self.shape.expired_percent / 100
        is_expired = f"{mixed[0]} < {int(share * (MASK + 1))}"
        if not self.shape.scattered:
            is_expired = f"n <= {int(share * self.shape.rows)}"
        keys = {"bigint": ["n"], "uuid": [self.uuid], "composite": ["n % 100", "n"]}[self.shape.key]
        return [*keys, *mixed, self.instant(is_expired), f"'{BODY}'"]

    def instant(self, is_expired: str) -> str:
        return f"CASE WHEN {is_expired} THEN '{PAST}' ELSE '{FUTURE}' END"

    def indexes(self) -> list[str]:
        if self.shape.brin and not self.has_brin:
            raise Unsupported("only PostgreSQL has BRIN indexes")
        names = [f"r{k}" for k in range(1, self.shape.indexes + 1)]
        names += ["expire_at"] if self.shape.expiry_index else []
        brin = [f"CREATE INDEX {self.name}_brin ON {self.name} USING brin (expire_at)"] if self.shape.brin else []
        return [*(f"CREATE INDEX {self.name}_{name} ON {self.name} ({name})" for name in names), *brin]

    def contents(self) -> Contents:
        with self.cursor() as cursor:
            cursor.execute(
                f"SELECT count(*), coalesce(sum(CASE WHEN {self.expired} THEN 1 ELSE 0 END), 0),"
                f" coalesce(sum(CASE WHEN {self.expired} THEN 0 ELSE r0 END), 0) FROM {self.name}"
            )
            rows, expired, checksum = cursor.fetchone()
        return Contents(rows=int(rows), expired=int(expired), checksum=int(checksum))

    def create_small(self, name: str) -> None:
        """A table that takes no time, with expired rows."""
        with self.cursor() as cursor:
            cursor.execute(
                f"CREATE TABLE {name} (id {self.types['bigint']} PRIMARY KEY, expire_at {self.types['time']})"
            )
            cursor.execute(
                f"INSERT INTO {name} SELECT r0, expire_at FROM {self.name} WHERE r0 > 0 ORDER BY r0 LIMIT {SMALL_ROWS}"
            )

    def drop(self) -> None:
        with self.cursor() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {self.name}")

    # What differs in the statements of contenders

    def after(self, key: Key) -> str:
        """Rows after this key."""
        literals = ", ".join(self.literal(part) for part in key)
        return f"{self._key_row()} > {literals if len(key) == 1 else f'({literals})'}"

    def among(self, keys: Sequence[Key]) -> str:
        rows = (", ".join(self.literal(part) for part in key) for key in keys)
        return f"{self._key_row()} IN ({', '.join(row if len(self.key) == 1 else f'({row})' for row in rows)})"

    def _key_row(self) -> str:
        return self.key[0] if len(self.key) == 1 else f"({', '.join(self.key)})"

    @staticmethod
    def literal(part: Any) -> str:
        return str(part) if isinstance(part, int) else f"'{part}'"

    @abstractmethod
    def delete_some(self, count: int) -> str:
        """The statement of the usual recipe: this many expired rows, whichever come first."""


class PostgresTable(BenchTable):
    expired = f"expire_at <= TIMESTAMPTZ '{CUTOFF}+00'"
    types = BenchTable.types | {"time": "TIMESTAMPTZ"}
    uuid = "md5(n::text)::uuid"
    settling = ("VACUUM (ANALYZE) {table}",)
    has_brin = True

    def connect(self) -> Any:
        import psycopg

        url = self.url.set(drivername="postgresql")
        return psycopg.connect(url.render_as_string(hide_password=False), autocommit=True)

    def settle(self, cursor: Any) -> None:
        import psycopg

        with suppress(psycopg.errors.InsufficientPrivilege):
            cursor.execute("CHECKPOINT")

    def numbered(self) -> str:
        return f"generate_series(1::bigint, {self.shape.rows}) n"

    def instant(self, is_expired: str) -> str:
        return f"CASE WHEN {is_expired} THEN TIMESTAMPTZ '{PAST}+00' ELSE TIMESTAMPTZ '{FUTURE}+00' END"

    def delete_some(self, count: int) -> str:
        return (
            f"DELETE FROM {self.name} WHERE ctid IN (SELECT ctid FROM {self.name} WHERE {self.expired} LIMIT {count})"
        )


class MysqlTable(BenchTable):
    types = BenchTable.types | {"uuid": "CHAR(36) CHARACTER SET ascii", "time": "DATETIME NULL", "body": "VARCHAR(250)"}
    uuid = "insert(insert(insert(insert(md5(n), 9, 0, '-'), 14, 0, '-'), 19, 0, '-'), 24, 0, '-')"
    settling = ("ANALYZE TABLE {table}",)

    def connect(self) -> Any:
        import pymysql

        connection = pymysql.connect(
            host=self.url.host or "localhost",
            port=self.url.port or 3306,
            user=self.url.username,
            password=self.url.password or "",
            database=self.url.database,
            autocommit=True,
        )
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION time_zone = '+00:00'")
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        return connection

    def numbered(self) -> str:
        """Digits multiplied out: the one way to count that MySQL and MariaDB share."""
        written = str(self.shape.rows)
        places = range(len(written))
        most = [9] * (len(written) - 1) + [int(written[0])]
        number = " + ".join(f"{10**place} * d{place}.d" for place in places)
        crossed = ", ".join(f"{self._digits(most[place])} d{place}" for place in places)
        return f"(SELECT {number} AS n FROM {crossed}) c WHERE n BETWEEN 1 AND {self.shape.rows} ORDER BY n"

    @staticmethod
    def _digits(most: int) -> str:
        return "(SELECT 0 AS d" + "".join(f" UNION ALL SELECT {digit}" for digit in range(1, most + 1)) + ")"

    def delete_some(self, count: int) -> str:
        return f"DELETE FROM {self.name} WHERE {self.expired} LIMIT {count}"


class TidbTable(MysqlTable):
    """A transaction holds so many rows at most, so the table is filled in pieces: the first, and copies of it."""

    PIECE = 20_000

    def filling(self) -> list[str]:
        if self.shape.key != "bigint":
            raise Unsupported("on TiDB a table is filled along a key that is a number")
        wanted, names = self.shape, ", ".join(self.column_names())
        self.shape = replace(wanted, rows=min(wanted.rows, self.PIECE))
        create, first, *indexes = super().filling()
        self.shape = wanted
        values = ", ".join(self.values())
        copies = [
            f"INSERT INTO {self.name} ({names}) SELECT {values} FROM"
            f" (SELECT id + {start} AS n FROM {self.name} WHERE id <= {min(self.PIECE, wanted.rows - start)}) c"
            for start in range(self.PIECE, wanted.rows, self.PIECE)
        ]
        return [create, *indexes, first, *copies]


class SqliteTable(BenchTable):
    types = BenchTable.types | {"bigint": "INTEGER", "uuid": "TEXT", "time": "TEXT"}
    uuid = f"printf('%08x-%012x', (n * {MULTIPLIERS[1]}) & {MASK}, n)"
    settling = ("ANALYZE {table}", "PRAGMA wal_checkpoint(TRUNCATE)")

    def connect(self) -> Any:
        connection = sqlite3.connect(str(self.url.database), isolation_level=None)
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    def numbered(self) -> str:
        more = f"SELECT n + 1 FROM c WHERE n < {self.shape.rows}"
        return f"(WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL {more}) SELECT n FROM c)"

    def filling(self) -> list[str]:
        return ["PRAGMA journal_mode = WAL", *super().filling()]

    def delete_some(self, count: int) -> str:
        rows = f"SELECT rowid FROM {self.name} WHERE {self.expired} LIMIT {count}"
        return f"DELETE FROM {self.name} WHERE rowid IN ({rows})"


_TABLES: dict[str, type[BenchTable]] = {"postgresql": PostgresTable, "mysql": MysqlTable, "sqlite": SqliteTable}


def table_for(url: URL, name: str, *, tidb: bool = False) -> BenchTable:
    """`tidb`: the server behind a URL of MySQL's is TiDB."""
    kind = TidbTable if tidb else _TABLES.get(url.get_backend_name())
    if kind is None:
        raise Unsupported(f"there is no benchmark for {url.get_backend_name()}")
    return kind(url, name)
