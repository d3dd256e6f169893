"""Connections: how they are opened, how transactions begin, what the driver's errors mean.

Everything works through a pooler that gives out the server per transaction (pgbouncer's transaction mode): no
prepared statement outlives its transaction, and no statement of Lapse's own depends on a session setting but the two
that are set on connecting, time zone and date style; pgbouncer follows these, since the server reports them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import IntEnum
from functools import cache
from typing import Any

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy import Engine as Database
from sqlalchemy.exc import DBAPIError

from lapse.engines.pooling import ask_if_doubtful
from lapse.engines.postgres.names import CATALOG_SCHEMA, literal, quote
from lapse.errors import (
    DatabaseError,
    DatabaseUnavailable,
    Drift,
    Interrupted,
    LapseError,
    Retryable,
    UnsupportedUrl,
)

APPLICATION_NAME = "lapse"
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
"""Said in full, as the database or the role may have other defaults."""
CONNECT_SECONDS = 10

_RETRYABLE = frozenset({"40001", "40P01", "55P03", "55006", "57014"})
_GONE = frozenset({"42P01", "42703", "42704", "42804", "42883", "3F000"})
_UNAVAILABLE = frozenset({"57P01", "57P02", "57P03", "57P04", "57P05", "53300", "3D000", "28000", "28P01"})
_NO_TRANSACTION = frozenset("BEGIN START COMMIT END ROLLBACK ABORT VACUUM".split()) | {""}
_DENIED_SCHEMA = re.compile(r"denied for schema (.+)")
READ_ONLY = "25006"
NOT_ALLOWED = "42501"


CATALOG_GRANTS = (
    f"GRANT USAGE ON SCHEMA {CATALOG_SCHEMA} TO <role>; "
    f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {CATALOG_SCHEMA} TO <role>; "
    f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {CATALOG_SCHEMA} TO <role>;"
)
"""What a worker's role needs on Lapse's own tables."""


def open_database(url: URL) -> Database:
    try:
        import psycopg
    except ImportError:
        raise UnsupportedUrl(
            "the PostgreSQL driver psycopg is not installed", hint="pip install 'lapse-ttl[postgres]'"
        ) from None
    arguments: dict[str, Any] = {"prepare_threshold": None}
    for name, value in (("application_name", APPLICATION_NAME), ("connect_timeout", CONNECT_SECONDS)):
        if name not in url.query:
            arguments[name] = value
    database = create_engine(
        url.set(drivername="postgresql+psycopg"),
        connect_args=arguments,
        use_native_hstore=False,
        # Otherwise the driver looks for placeholders in statements that have no parameters.
        execution_options={"no_parameters": True},
        # In the pool, too: a look whether the connection is alive must not open a transaction.
        isolation_level="AUTOCOMMIT",
        pool_size=20,
        max_overflow=60,
    )

    @event.listens_for(database, "connect")
    def _configure(raw: Any, record: object) -> None:
        for kind, loader in lenient_loaders():
            raw.adapters.register_loader(kind, loader)
        _run_alone(raw, "SET TIME ZONE 'UTC'; SET DateStyle = 'ISO'")

    ask_if_doubtful(database, lambda raw: _run_alone(raw, ""), psycopg.Error, lambda raw: int(raw.fileno()))
    return database


def _run_alone(raw: Any, sql: str) -> None:
    """Outside any transaction, whatever mode the connection is in."""
    before = raw.autocommit
    raw.autocommit = True
    raw.execute(sql)
    raw.autocommit = before


@cache
def lenient_loaders() -> tuple[tuple[str, type[Any]], ...]:
    """Times that Python cannot hold (infinity, years before 1 or after 9999) come as text instead of an error."""
    from psycopg import DataError
    from psycopg.types.datetime import DateLoader, TimestampLoader, TimestamptzLoader

    def lenient(base: type[Any]) -> type[Any]:
        def load(self: Any, data: Any) -> Any:
            try:
                return base.load(self, data)
            except DataError:
                return bytes(data).decode()

        return type(base.__name__, (base,), {"load": load})

    return (
        ("timestamptz", lenient(TimestamptzLoader)),
        ("timestamp", lenient(TimestampLoader)),
        ("date", lenient(DateLoader)),
    )


def begin_implicitly(raw: Any, verb: str) -> None:
    """What PEP 249 wants and the driver, in autocommit mode, does not do."""
    if raw.info.transaction_status == TransactionStatus.IDLE and verb.upper() not in _NO_TRANSACTION:
        raw.execute("BEGIN")


def sqlstate(error: BaseException | None) -> str:
    return getattr(error, "sqlstate", None) or ""


def translate(error: DBAPIError) -> LapseError:
    code, text = sqlstate(error.orig), _first_line(error)
    if code == "57014" and "user request" in text:
        return Interrupted("the statement was interrupted")
    if code in _RETRYABLE:
        return Retryable(text)
    if code in _UNAVAILABLE or code.startswith("08"):
        return DatabaseUnavailable(text)
    if error.connection_invalidated or (not code and type(error.orig).__name__ == "OperationalError"):
        return DatabaseUnavailable(text)
    if code in _GONE:
        return Drift(text)
    if code == NOT_ALLOWED:
        return DatabaseError(text, hint=_grant(text))
    if code == READ_ONLY:
        return DatabaseError(text, hint="this looks like a standby: give the URL of the primary")
    return DatabaseError(text)


def _grant(text: str) -> str:
    schema = _DENIED_SCHEMA.search(text)
    if (schema and schema[1] == CATALOG_SCHEMA) or " lapse_" in text:
        return CATALOG_GRANTS
    if schema:
        return f"GRANT USAGE ON SCHEMA {quote(schema[1])} TO <role>;"
    return "`lapse doctor` prints the GRANT statements that are missing"


def _first_line(error: DBAPIError) -> str:
    """The message without the driver's position marks."""
    diagnostics = getattr(error.orig, "diag", None)
    primary = getattr(diagnostics, "message_primary", None)
    if not primary:
        return str(error.orig).strip() or type(error.orig).__name__
    detail = getattr(diagnostics, "message_detail", None)
    return f"{primary}: {detail}" if detail else str(primary)


def begin(connection: Connection, settings: Mapping[str, str] | None = None) -> None:
    """Open a transaction, with settings that end with it, in one round trip."""
    connection.exec_driver_sql("; ".join([BEGIN, *set_locally(settings or {})]))


def set_locally(settings: Mapping[str, str]) -> list[str]:
    return [f"SET LOCAL {name} = {literal(value)}" for name, value in settings.items()]


def status(connection: Connection) -> TransactionStatus:
    return TransactionStatus(connection.connection.driver_connection.info.transaction_status)  # type: ignore[union-attr]


class TransactionStatus(IntEnum):
    """libpq's PGTransactionStatusType."""

    IDLE = 0
    ACTIVE = 1
    IN_TRANSACTION = 2
    IN_ERROR = 3
    UNKNOWN = 4


@contextmanager
def transaction(connection: Connection, settings: Mapping[str, str] | None = None) -> Iterator[None]:
    """Commits at the end, rolls back on an error."""
    begin(connection, settings)
    try:
        yield
        if status(connection) is TransactionStatus.IN_ERROR:
            # COMMIT would roll back and call that a success.
            raise DatabaseError("the transaction was aborted by an earlier error")
        connection.exec_driver_sql("COMMIT")
    except BaseException:
        roll_back(connection, "ROLLBACK")
        raise


@contextmanager
def savepoint(connection: Connection) -> Iterator[None]:
    connection.exec_driver_sql("SAVEPOINT lapse")
    try:
        yield
        connection.exec_driver_sql("RELEASE SAVEPOINT lapse")
    except BaseException:
        roll_back(connection, "ROLLBACK TO SAVEPOINT lapse; RELEASE SAVEPOINT lapse")
        raise


def roll_back(connection: Connection, sql: str) -> None:
    """Where the connection is lost, the server has done it already."""
    if connection.invalidated or connection.closed:
        return
    if status(connection) in (TransactionStatus.IN_TRANSACTION, TransactionStatus.IN_ERROR):
        with suppress(DBAPIError):
            connection.exec_driver_sql(sql)
