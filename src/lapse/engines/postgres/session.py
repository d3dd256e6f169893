"""Connections: how they are opened, how transactions begin and end.

Everything works through a pooler that gives out the server per transaction (pgbouncer's transaction mode): there no
statement is prepared, and none of Lapse's own depends on a session setting but those that are set on connecting, time
zone and date style; pgbouncer follows these, since the server reports them.

Every transaction of Lapse's has a search path by which nothing of another role's is found, and so has every session
that no pooler shares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from enum import IntEnum
from functools import cache
from typing import Any
from zlib import crc32

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy import Engine as Database
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from lapse.engines.pooling import ask_if_doubtful
from lapse.engines.postgres.errors import sqlstate
from lapse.engines.postgres.names import SAFE_PATH, SEE_EXPIRED, USER_PATH, literal
from lapse.errors import DatabaseError, UnsupportedUrl, how_to_install

APPLICATION_NAME = "lapse"
SAFELY = f"SET LOCAL search_path = {SAFE_PATH}"
BEGIN = f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {SAFELY}"
"""Said in full, as the database or the role may have other defaults."""
BEGIN_FOR_USER = "BEGIN ISOLATION LEVEL READ COMMITTED"
"""The catalog is read as it is now; a session of the user's that may only read still may only read."""
CONNECT_SECONDS = 10

_NO_TRANSACTION = frozenset("BEGIN START COMMIT END ROLLBACK ABORT VACUUM".split()) | {""}
FOREIGN_CODE = "lapse_foreign_code"
"""In a connection's info: code of another role's has run in its session."""
DEFAULT_PATH = "lapse_default_path"
"""In a connection's info: the search path that the server gives this role."""
_OURS = "lapse_ours"
"""In a connection's info: it is Lapse's own, and of the pool."""
_BEGIN = "lapse_begin"
"""In a connection's info: a transaction is to begin with the next statement, whose message says so first."""
_NOW = "lapse_now"
"""In a connection's info: when the transaction that is open began."""
POOLED = "lapse_pooled"
"""In a connection's info: a pooler is in between, which lends one server session to several clients. What is set there
would be other clients' setting, too."""
_PREPARED = "lapse_prepared"
"""In a connection's info: the names of what its session has prepared."""
_NOT_AS_PREPARED = ("26000", "42P05")
"""No such prepared statement, or one already: somebody lends the session to others, and nothing tells."""


def open_for_users(url: URL) -> Database:
    """Connections as the server makes them."""
    return _create(url, {}, poolclass=NullPool)


def open_database(url: URL) -> Database:
    """A pool of Lapse's own connections."""
    database = _create(url, {"application_name": APPLICATION_NAME}, pool_size=20, max_overflow=60, pool_use_lifo=True)
    import psycopg

    @event.listens_for(database, "connect")
    def _configure(raw: Any, record: Any) -> None:
        asked = "SELECT pg_catalog.pg_backend_pid(), pg_catalog.current_setting('search_path')"
        found = _run_alone(raw, f"{asked}; SET TIME ZONE 'UTC'; SET DateStyle = 'ISO'")
        backend, record.info[DEFAULT_PATH] = found.fetchone()
        record.info[POOLED], record.info[_OURS] = backend != raw.info.backend_pid, True
        record.info[_PREPARED] = set()
        if not record.info[POOLED]:
            # What Lapse asks is answered sooner than it is compiled, whatever the server guesses of its own catalog.
            _run_alone(raw, f"SET quote_all_identifiers = off; SET jit = off; SET search_path = {SAFE_PATH}")

    @event.listens_for(database, "before_cursor_execute")
    def _begin_first(connection: Connection, *_: object) -> None:
        """Of statements with parameters, which cannot share a message."""
        if _BEGIN in connection.info:
            _in_one_message(connection, "", lambda cursor: None)

    @event.listens_for(database, "checkin")
    def _clean(raw: Any, record: Any) -> None:
        """Settings, temporary objects and cursors outlive a transaction."""
        if raw is not None and record.info.pop(FOREIGN_CODE, False):
            try:
                _run_alone(raw, "DISCARD ALL")
                _configure(raw, record)
            except psycopg.Error:
                record.invalidate()

    ask_if_doubtful(database, lambda raw: _run_alone(raw, ""), psycopg.Error, lambda raw: int(raw.fileno()))
    return database


def _create(url: URL, arguments: dict[str, Any], **pool: Any) -> Database:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise UnsupportedUrl(
            "the PostgreSQL driver psycopg is not installed", hint=how_to_install("postgres")
        ) from None
    defaults = {"connect_timeout": CONNECT_SECONDS, **arguments}
    database = create_engine(
        url.set(drivername="postgresql+psycopg"),
        connect_args={"prepare_threshold": None}
        | {name: value for name, value in defaults.items() if name not in url.query},
        use_native_hstore=False,
        # Otherwise the driver looks for placeholders in statements that have no parameters.
        execution_options={"no_parameters": True},
        # In the pool, too: a look whether the connection is alive must not open a transaction.
        isolation_level="AUTOCOMMIT",
        **pool,
    )

    # Before SQLAlchemy asks for a version that it cannot read.
    @event.listens_for(database, "do_connect")
    def _connect(dialect: Any, record: object, positional: list[Any], named: dict[str, Any]) -> Any:
        raw = dialect.connect(*positional, **named)
        if raw.info.parameter_status("crdb_version"):
            raw.close()
            raise UnsupportedUrl(
                "this server is CockroachDB, which has TTL of its own; Lapse does not drive it",
                hint="declare it with any client: ALTER TABLE t SET (ttl_expire_after = '30 days'); "
                "`lapse convert --to cockroach` writes such statements",
            )
        return raw

    @event.listens_for(database, "connect")
    def _load_leniently(raw: Any, record: object) -> None:
        for kind, loader in lenient_loaders():
            raw.adapters.register_loader(kind, loader)

    return database


def _run_alone(raw: Any, sql: str) -> Any:
    """Outside any transaction, whatever mode the connection is in."""
    before = raw.autocommit
    raw.autocommit = True
    found = raw.execute(sql)
    raw.autocommit = before
    return found


@cache
def lenient_loaders() -> tuple[tuple[str, type[Any]], ...]:
    """Times that Python cannot hold (infinity, years before 1 or after 9999) come as text instead of an error, and
    so do those that the driver cannot read in the date style of a session of the user's."""
    from psycopg import DataError
    from psycopg.types.datetime import DateLoader, TimestampLoader, TimestamptzLoader

    def lenient(base: type[Any]) -> type[Any]:
        def load(self: Any, data: Any) -> Any:
            try:
                return base.load(self, data)
            except (DataError, NotImplementedError):
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


def begin(connection: Connection, settings: Mapping[str, str] | None = None, *, how: str = BEGIN) -> None:
    """Open a transaction, with settings that end with it: on a connection of Lapse's own, when it is first used."""
    sql = "; ".join([how, *set_locally(settings or {})])
    if connection.info.get(_OURS):
        connection.info[_BEGIN] = f"{sql}; SELECT pg_catalog.now()"
    else:
        connection.exec_driver_sql(sql)


def began_at(connection: Connection) -> datetime | None:
    """When the transaction that `begin` has opened began, which is what now() tells in it."""
    if _BEGIN in connection.info:
        _in_one_message(connection, "", lambda cursor: None)
    found: datetime | None = connection.info.get(_NOW)
    return found


def _end(connection: Connection, sql: str) -> None:
    """Nothing is left to end of a transaction that was never used."""
    connection.info.pop(_NOW, None)
    if connection.info.pop(_BEGIN, None) is None:
        connection.exec_driver_sql(sql)


def send(connection: Connection, sql: str) -> Any:
    """Several statements in one message; returns the first column of the first row of the last that has rows."""
    found: Any = None

    def read(cursor: Any) -> None:
        nonlocal found
        found = cursor.fetchone()

    _in_one_message(connection, sql, read)
    return None if found is None else found[0]


def often(connection: Connection, sql: str) -> list[dict[str, Any]]:
    """The rows of a query without parameters that is asked again and again: planned once for a session.

    Not where others use the session: they may have prepared something else by that name.
    """
    prepared: set[str] | None = connection.info.get(_PREPARED)
    if prepared is not None and not connection.info.get(POOLED) and not connection.info.get(FOREIGN_CODE):
        name = f"lapse_{crc32(sql.encode()):08x}"
        prepare = "" if name in prepared else f"PREPARE {name} AS {sql}; "
        try:
            (found,) = results(connection, f"{prepare}EXECUTE {name}")
        except DBAPIError as error:
            if sqlstate(error.orig) not in _NOT_AS_PREPARED:
                raise
            connection.info[_PREPARED] = None
        else:
            prepared.add(name)
            return found
    return results(connection, sql)[0]


def _in_one_message(connection: Connection, sql: str, read: Callable[[Any], None]) -> None:
    """`read` is given a cursor for each statement that has rows."""
    import psycopg

    raw: Any = connection.connection.driver_connection
    begin = connection.info.pop(_BEGIN, None)
    if begin is not None:
        sql = f"{begin}; {sql}" if sql else begin
    try:
        with raw.cursor() as cursor:
            # Who watches statements, as tests and tracing do, sees this one as well.
            connection.dispatch.before_cursor_execute(connection, cursor, sql, None, None, False)
            cursor.execute(sql)
            while True:
                if begin is not None and cursor.description is not None:
                    connection.info[_NOW], begin = cursor.fetchone()[0], None
                elif cursor.description is not None:
                    read(cursor)
                if not cursor.nextset():
                    break
    except psycopg.Error as error:
        if raw.closed:
            connection.invalidate(error)
        raise DBAPIError(sql, None, error, connection_invalidated=bool(raw.closed)) from error


def results(connection: Connection, sql: str) -> list[list[dict[str, Any]]]:
    """The rows of each of several queries in one message."""
    found: list[list[dict[str, Any]]] = []

    def read(cursor: Any) -> None:
        names = [column.name for column in cursor.description]
        found.append([dict(zip(names, row, strict=True)) for row in cursor.fetchall()])

    _in_one_message(connection, sql, read)
    return found


def set_locally(settings: Mapping[str, str]) -> list[str]:
    return [f"SET LOCAL {name} = {literal(value)}" for name, value in settings.items()]


def status(connection: Connection) -> TransactionStatus:
    if _BEGIN in connection.info:
        return TransactionStatus.IN_TRANSACTION
    return TransactionStatus(connection.connection.driver_connection.info.transaction_status)  # type: ignore[union-attr]


class TransactionStatus(IntEnum):
    """libpq's PGTransactionStatusType."""

    IDLE = 0
    ACTIVE = 1
    IN_TRANSACTION = 2
    IN_ERROR = 3
    UNKNOWN = 4


@contextmanager
def transaction(
    connection: Connection, settings: Mapping[str, str] | None = None, *, how: str = BEGIN
) -> Iterator[None]:
    """Commits at the end, rolls back on an error."""
    begin(connection, settings, how=how)
    try:
        yield
        if status(connection) is TransactionStatus.IN_ERROR:
            # COMMIT would roll back and call that a success.
            raise DatabaseError("the transaction was aborted by an earlier error")
        _end(connection, "COMMIT")
    except BaseException:
        roll_back(connection, "ROLLBACK")
        raise


BOOKKEEPING = {
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "standard_conforming_strings": "on",
    "quote_all_identifiers": "off",
}
_PATH = "search_path"
_ALSO_SET = ("lock_timeout", "statement_timeout", "row_security", SEE_EXPIRED, USER_PATH, _PATH)
"""What Lapse's statements may set on their way."""


@contextmanager
def bookkeeping(connection: Connection) -> Iterator[None]:
    """Lapse's settings inside a transaction. A savepoint that is released would keep them until its end."""
    names = (*BOOKKEEPING, *_ALSO_SET)
    values = connection.exec_driver_sql(
        f"SELECT {', '.join(f'pg_catalog.current_setting({literal(name)}, true)' for name in names)}"
    ).one()
    before = {name: value or "" for name, value in zip(names, values, strict=True)}
    # Inside another one, the path is Lapse's already.
    path = before[USER_PATH] or before[_PATH]
    connection.exec_driver_sql("; ".join([SAFELY, *set_locally(BOOKKEEPING | {USER_PATH: path})]))
    yield
    calls = (f"pg_catalog.set_config({literal(name)}, {literal(value)}, true)" for name, value in before.items())
    connection.exec_driver_sql(f"SELECT {', '.join(calls)}")


@contextmanager
def savepoint(connection: Connection, before: Sequence[str] = (), after: Sequence[str] = ()) -> Iterator[None]:
    """`before` and `after` are said inside it, in the messages that open and close it."""
    connection.exec_driver_sql("; ".join(["SAVEPOINT lapse", *before]))
    try:
        yield
        connection.exec_driver_sql("; ".join([*after, "RELEASE SAVEPOINT lapse"]))
    except BaseException:
        roll_back(connection, "ROLLBACK TO SAVEPOINT lapse; RELEASE SAVEPOINT lapse")
        raise


def roll_back(connection: Connection, sql: str) -> None:
    """Where the connection is lost, the server has done it already."""
    if connection.invalidated or connection.closed:
        return
    connection.info.pop(_NOW, None)
    if connection.info.pop(_BEGIN, None) is not None:
        return
    if status(connection) in (TransactionStatus.IN_TRANSACTION, TransactionStatus.IN_ERROR):
        with suppress(DBAPIError):
            connection.exec_driver_sql(sql)
