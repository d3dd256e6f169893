"""Sessions: one zone, one isolation level and one SQL mode, whatever the server's defaults are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import Any

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy import Engine as Database
from sqlalchemy.pool import NullPool

from lapse.engines.mysql import tls
from lapse.engines.pooling import ask_if_doubtful
from lapse.errors import UnsupportedUrl, how_to_install

DRIVER = "mysql+pymysql"
BINLOG_OPTION = "lapse_binlog"
REPLICAS_OPTION = "lapse_replicas"
REPLICA_SECONDS = 2
"""How long a replica may take to answer before it counts as late."""
POOL_SIZE = 10
MAX_OVERFLOW = 50
PATIENT_SECONDS = 5
"""How long a person's declaration waits for a lock; a queued ALTER makes other sessions wait behind it."""
BRIEF_SECONDS = 1
"""How long a worker waits for one, or anything that only looks: the shortest that both servers know."""

STRICT_MODE = "STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
RESTORING_MODE = "STRICT_ALL_TABLES,ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION"
LENIENT_MODE = "NO_ENGINE_SUBSTITUTION"
"""For deletes: a value that is no time is then NULL, which never expires, and not an error that ends the job."""

MINIMUM = {"MariaDB": (10, 6), "MySQL": (8, 0, 23), "TiDB": (7, 1)}
"""The first with what Lapse needs: SKIP LOCKED on MariaDB, columns that are INVISIBLE on MySQL, the history of TTL jobs
on TiDB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flavour:
    """Which server answers, and what of its SQL Lapse may use."""

    product: str
    version: tuple[int, ...]

    @classmethod
    def from_text(cls, text: str) -> Flavour:
        product = "MariaDB" if "mariadb" in text.lower() else "MySQL"
        # TiDB names the MySQL that it is like first: 8.0.11-TiDB-v8.5.0.
        if own := re.search(r"-TiDB-v?(.*)", text, re.IGNORECASE):
            product, text = "TiDB", own[1]
        # Replication made some MariaDB servers put 5.5.5- before their own version.
        numbers = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)\.(\d+)", text)
        version = tuple(int(number) for number in numbers.groups()) if numbers else (0,)
        return cls(product=product, version=version)

    @property
    def is_mariadb(self) -> bool:
        return self.product == "MariaDB"

    @property
    def is_tidb(self) -> bool:
        return self.product == "TiDB"

    @property
    def can_refuse_to_wait(self) -> bool:
        """Can one statement say that it will not wait for a row lock at all?"""
        return self.is_mariadb

    @property
    def picks_before_it_deletes(self) -> bool:
        """Are rows that no other session holds picked, and locked, by the statement before the DELETE?"""
        return not (self.can_refuse_to_wait or self.is_tidb)

    @property
    def reads_the_table_it_deletes_from(self) -> bool:
        """May a sub-query of a DELETE read the same table?"""
        return self.is_mariadb

    @property
    def begin_reading(self) -> str:
        """Begins a transaction that changes nothing. TiDB refuses the words, and has no functions that could write."""
        return "START TRANSACTION" if self.is_tidb else "START TRANSACTION READ ONLY"

    @property
    def binlog_privilege(self) -> str:
        """What a session needs to keep its changes out of the binary log."""
        return "BINLOG ADMIN" if self.is_mariadb else "SESSION_VARIABLES_ADMIN"

    @property
    def lag_privilege(self) -> str:
        """What it takes to see how far the server is behind its source."""
        return "REPLICA MONITOR" if self.is_mariadb else "REPLICATION CLIENT"

    def check(self) -> None:
        wanted = MINIMUM[self.product]
        if self.version < wanted:
            have, need = ".".join(map(str, self.version)), ".".join(map(str, wanted))
            raise UnsupportedUrl(f"this server is {self.product} {have}; Lapse needs {need} or newer")


@dataclass(frozen=True, kw_only=True, slots=True)
class UrlOptions:
    """What a URL says to Lapse and not to the driver."""

    url: URL
    arguments: Mapping[str, Any]
    """What the driver is told besides: how to encrypt, and in which character set to speak."""
    binlog: bool
    replicas: tuple[URL, ...] = ()


def read_url(url: URL) -> UrlOptions:
    backend, _, driver = url.drivername.partition("+")
    if driver not in ("", "pymysql"):
        raise UnsupportedUrl(
            f"Lapse speaks to {backend} through PyMySQL, not {driver}",
            hint=f"write {backend}:// or {backend}+pymysql://",
        )
    try:
        import pymysql  # noqa: F401
    except ImportError:
        raise UnsupportedUrl(f"{backend}:// URLs need the driver PyMySQL", hint=how_to_install("mysql")) from None
    if not url.database:
        raise UnsupportedUrl(f"the URL {url!r} names no database", hint=f"write {backend}://user@host/database")
    binlog = str(url.query.get(BINLOG_OPTION, "on")).lower()
    if binlog not in ("on", "off"):
        raise UnsupportedUrl(f"{BINLOG_OPTION}={binlog} in the URL: must be on or off")
    ours = [BINLOG_OPTION, REPLICAS_OPTION, *filter(tls.is_option, url.query)]
    plain = url.difference_update_query(ours).set(drivername=DRIVER)
    addresses = str(url.query.get(REPLICAS_OPTION, "")).split(",")
    replicas = tuple(_replica(plain, address.strip()) for address in addresses if address.strip())
    _refuse_unknown(plain)
    arguments = {**tls.arguments(url), **({} if "charset" in url.query else {"charset": "utf8mb4"})}
    return UrlOptions(url=plain, arguments=arguments, binlog=binlog == "on", replicas=replicas)


def _refuse_unknown(url: URL) -> None:
    from pymysql.connections import Connection as Driver

    for name in url.query:
        if name not in signature(Driver.__init__).parameters or name in ("self", "ssl"):
            raise UnsupportedUrl(f"unknown option {name} in the URL")


def _replica(primary: URL, address: str) -> URL:
    """Reached like the primary, on another host or port."""
    host, _, port = address.rpartition(":") if ":" in address else (address, "", "")
    if not host or (port and not port.isdecimal()):
        raise UnsupportedUrl(f"{REPLICAS_OPTION}={address} in the URL: must be host or host:port, separated by commas")
    return primary.set(host=host.strip("[]"), port=int(port) if port else primary.port)


def address(url: URL) -> str:
    return f"{url.host}:{url.port}" if url.port else str(url.host)


def open_replicas(options: UrlOptions) -> dict[str, Database]:
    """Pools for asking each replica how far behind it is, by `host:port`."""
    timeouts = {"connect_timeout": REPLICA_SECONDS, "read_timeout": REPLICA_SECONDS}
    return {
        address(url): _open(
            url, options, pool_size=1, pool_pre_ping=True, connect_args={**options.arguments, **timeouts}
        )
        for url in options.replicas
    }


@cache
def _driver() -> Callable[..., Any]:
    """PyMySQL, but for one thing: unless told otherwise it encrypts if the server can, checks no certificate, and yet
    reads all that this machine trusts for each connection, which takes ten times as long as to connect."""
    from pymysql.connections import Connection as Driver

    shared: list[Any] = []

    class Connecting(Driver):  # type: ignore[misc]
        def _create_ssl_ctx(self, options: Any) -> Any:
            if options:
                return super()._create_ssl_ctx(options)
            if not shared:
                shared.append(super()._create_ssl_ctx(options))
            return shared[0]

    return Connecting


def open_for_users(options: UrlOptions) -> Database:
    """Connections as the server makes them."""
    database = _open(
        options.url,
        options,
        poolclass=NullPool,
        skip_autocommit_rollback=True,
        execution_options={"no_parameters": True},
        connect_args=dict(options.arguments),
    )

    # After SQLAlchemy has had a look at the SQL mode: its own statements run in Lapse's, in which a " begins a string.
    @event.listens_for(database, "connect")
    def _quote_by_backticks(raw: Any, record: object) -> None:
        dialect: Any = database.dialect
        dialect.identifier_preparer = dialect.preparer(dialect, server_ansiquotes=False)

    @event.listens_for(database, "before_cursor_execute", retval=True)
    def _mark(
        connection: Connection, cursor: object, statement: str, parameters: Any, context: Any, many: bool
    ) -> tuple[str, Any]:
        if context.compiled is not None:
            statement = _locking(connection, statement)
        return (statement if many or context.compiled is None else marked(statement)), parameters

    return database


def _open(url: URL, options: UrlOptions, **how: Any) -> Database:
    database = create_engine(url, isolation_level="AUTOCOMMIT", **how)

    @event.listens_for(database, "do_connect")
    def _connect(dialect: object, record: object, positional: list[Any], named: dict[str, Any]) -> Any:
        try:
            raw = _driver()(*positional, **named)
        except RuntimeError as error:
            # The driver's word for a package that it lacks.
            raise UnsupportedUrl(
                f"this account cannot log in without another package: {error}",
                hint=f"{how_to_install('mysql')}; or encrypt the connection: ?ssl_mode=REQUIRED",
            ) from error
        if (not options.binlog or options.replicas) and Flavour.from_text(raw.server_version).is_tidb:
            raw.close()
            raise UnsupportedUrl(
                f"this server is TiDB, where {BINLOG_OPTION} and {REPLICAS_OPTION} mean nothing",
                hint="leave them out of the URL",
            )
        return raw

    @event.listens_for(database, "connect")
    def _remember(raw: Any, record: Any) -> None:
        record.info[_IS_TIDB] = Flavour.from_text(raw.server_version).is_tidb

    return database


_IS_TIDB = "lapse_is_tidb"
_IS_OWN = "lapse_is_own"


def is_tidb(connection: Connection) -> bool:
    return bool(connection.info.get(_IS_TIDB))


def is_own(connection: Connection) -> bool:
    """Is it one that no statement of a user's runs on?"""
    return bool(connection.info.get(_IS_OWN))


_SHARED = re.compile(r" (LOCK IN SHARE MODE|FOR SHARE)\s*\Z")


def _locking(connection: Connection, statement: str) -> str:
    """A statement of Lapse's own, with a lock that the server has: TiDB refuses to share one."""
    return _SHARED.sub(" FOR UPDATE", statement) if is_tidb(connection) else statement


def open_database(
    options: UrlOptions, threads: set[int], *, deleting: bool = False, by_key_only: bool = False
) -> Database:
    """A pool of connections; those that delete give way sooner and can be kept out of the binary log.

    `threads` are the server's numbers of all that are open.
    """
    import pymysql

    database = _open(
        options.url,
        options,
        pool_size=POOL_SIZE,
        max_overflow=MAX_OVERFLOW,
        # That is `_roll_back`'s, and only where there is something to roll back.
        pool_reset_on_return=None,
        skip_autocommit_rollback=True,
        # Without it the driver would read every % of a user's statement as a place for a parameter.
        execution_options={"no_parameters": True},
        connect_args=dict(options.arguments),
    )
    statements = session_statements(deleting=deleting, by_key_only=by_key_only, binlog=options.binlog)

    # First of all: what SQLAlchemy then finds out about the session must be true of it.
    @event.listens_for(database, "connect", insert=True)
    def _configure(raw: Any, record: Any) -> None:
        record.info[_IS_OWN] = True
        with raw.cursor() as cursor:
            cursor.execute("SELECT VERSION()")
            flavour = Flavour.from_text(str(cursor.fetchone()[0]))
            flavour.check()
            for statement in (*statements, *_OF_PRODUCT[flavour.product]):
                cursor.execute(statement)
        threads.add(raw.thread_id())

    @event.listens_for(database, "reset")
    def _roll_back(raw: Any, record: object, state: object) -> None:
        if in_transaction(raw):
            raw.rollback()

    @event.listens_for(database, "close")
    def _forget(raw: Any, record: object) -> None:
        threads.discard(raw.thread_id())

    @event.listens_for(database, "before_cursor_execute", retval=True)
    def _mark(
        connection: Connection, cursor: object, statement: str, parameters: Any, context: Any, many: bool
    ) -> tuple[str, Any]:
        # A user's own statement stays as typed. The driver recognises an INSERT of many rows by its first word.
        ours = deleting or context.compiled is not None
        if context.compiled is not None:
            statement = _locking(connection, statement)
        return (statement if many or not ours else marked(statement)), parameters

    ask_if_doubtful(database, lambda raw: raw.ping(reconnect=False), pymysql.Error, _socket)
    return database


def _socket(raw: Any) -> int | None:
    """None where the driver has closed it."""
    return None if raw._sock is None else int(raw._sock.fileno())


MARK = "/* lapse"
"""How Lapse's statements begin: others, and Lapse's own gauges, tell them from the application's by it."""


def marked(statement: str) -> str:
    return statement if statement.startswith(MARK) else f"{MARK} */ {statement}"


BEGIN = marked("START TRANSACTION")
COMMIT = marked("COMMIT AND NO CHAIN NO RELEASE")
ROLLBACK = marked("ROLLBACK AND NO CHAIN NO RELEASE")
"""Said in full, as a session of the user's may have another completion_type."""


_OF_PRODUCT = {
    # A long IN list stays one, and is read by ranges of the key, instead of becoming a sub-query.
    "MariaDB": ("SET SESSION in_predicate_conversion_threshold = 0",),
    # How many rows a table has is asked of the storage engine, and not of what was true a day ago.
    "MySQL": ("SET SESSION information_schema_stats_expiry = 0",),
    # In the other mode nothing is locked before the commit, and a statement does not see what others have committed.
    "TiDB": ("SET SESSION tidb_txn_mode = 'pessimistic'",),
}


def session_statements(*, deleting: bool, by_key_only: bool, binlog: bool) -> tuple[str, ...]:
    """`by_key_only`: a DELETE finds its rows by the key, even in a table of one page, or is refused."""
    settings = BOOKKEEPING | {
        "sql_mode": f"'{LENIENT_MODE if deleting else STRICT_MODE}'",
        "innodb_lock_wait_timeout": str(BRIEF_SECONDS if deleting else PATIENT_SECONDS),
        "lock_wait_timeout": str(BRIEF_SECONDS),
        "sql_safe_updates": str(int(by_key_only)),
        "foreign_key_checks": "1",
        "unique_checks": "1",
        "completion_type": "0",
    }
    statements = (
        set_session(settings),
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
    )
    return (*statements, "SET SESSION sql_log_bin = 0") if deleting and not binlog else statements


_NO_LIMIT = str(2**64 - 1)
BOOKKEEPING = {
    "sql_mode": f"'{STRICT_MODE}'",
    "time_zone": "'+00:00'",
    "innodb_lock_wait_timeout": str(PATIENT_SECONDS),
    "lock_wait_timeout": str(PATIENT_SECONDS),
    "sql_safe_updates": "0",
    "sql_select_limit": _NO_LIMIT,
    # With it max_join_size does not matter.
    "sql_big_selects": "1",
    "sql_auto_is_null": "0",
}
"""What Lapse's statements need, as SQL, in whichever session they run; DEFAULT would be the server's global value."""
_ALSO_CHANGED = ("last_insert_id",)


def set_session(settings: Mapping[str, str]) -> str:
    return "SET " + ", ".join(f"SESSION {name} = {value}" for name, value in settings.items())


@contextmanager
def bookkeeping(connection: Connection) -> Iterator[None]:
    """Lapse's settings on a connection of the user's, which gets its own back."""
    names = (*BOOKKEEPING, *_ALSO_CHANGED)
    values = connection.exec_driver_sql(f"SELECT {', '.join(f'@@SESSION.{name}' for name in names)}").one()
    connection.exec_driver_sql(set_session(BOOKKEEPING))
    try:
        yield
    finally:
        if not connection.invalidated and not connection.closed:
            before = {name: _written(value) for name, value in zip(names, values, strict=True)}
            connection.exec_driver_sql(set_session(before))


@contextmanager
def keeping_values(connection: Connection) -> Iterator[None]:
    """Rows are inserted as they were: a number 0 stays 0, and a date may be zero."""
    before = connection.exec_driver_sql("SELECT @@SESSION.sql_mode").scalar_one()
    connection.exec_driver_sql(set_session({"sql_mode": f"'{RESTORING_MODE}'"}))
    try:
        yield
    finally:
        if not connection.invalidated:
            connection.exec_driver_sql(set_session({"sql_mode": _written(before)}))


def _written(value: object) -> str:
    """A variable's value as SQL. The server's names of modes and zones have no quotes and no backslashes."""
    return str(value) if isinstance(value, int) else f"'{value}'"


_IN_TRANSACTION = 1
"""The bit of the protocol's status flags."""


def in_transaction(raw: Any) -> bool:
    return bool(raw.server_status & _IN_TRANSACTION)


def commits_by_itself(raw: Any) -> bool:
    """Is a statement on this connection a transaction of its own, or part of one that the user will end?"""
    return bool(raw.get_autocommit()) and not in_transaction(raw)
