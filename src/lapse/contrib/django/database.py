"""From Django's databases to Lapse's: a URL, and Django's own connection inside a migration.

A migration's transaction sees tables that no other connection sees. So policies are declared on Django's connection,
which SQLAlchemy borrows: it neither commits nor rolls back nor closes it. MariaDB and MySQL commit with every statement
that changes a table; there a connection of Lapse's own does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import URL, DateTime, create_engine
from sqlalchemy.dialects import registry, sqlite
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.pool import NullPool

from lapse.app import Lapse
from lapse.app.migration import Migration
from lapse.contrib.django.catalog import VENDORS
from lapse.engines.postgres.session import lenient_loaders
from lapse.errors import Unsupported

_DRIVER = "lapse_borrowed"
_POSTGRES_OPTIONS = (
    "isolation_level pool server_side_binding cursor_factory assume_role prepare_threshold context client_encoding"
).split()
"""Of Django or of Python objects; all others are libpq's."""
_MYSQL_OPTIONS = "read_default_file read_default_group unix_socket charset connect_timeout ssl_mode".split()
_TLS = ("ca", "capath", "cert", "key", "cipher")


def url_of(connection: Any) -> str:
    """The URL by which Lapse reaches one of Django's databases, its password included. Raises Unsupported."""
    if connection.vendor not in VENDORS:
        raise Unsupported(
            f"the database {connection.alias!r} is {connection.display_name}, for which Lapse has no engine"
        )
    values = connection.settings_dict
    name = str(values["NAME"] or "")
    if connection.vendor == "sqlite":
        if _in_memory(connection):
            raise Unsupported(
                f"the database {connection.alias!r} is in memory, where Lapse cannot reach it",
                hint="in tests, lapse.contrib.django.testing.delete_expired works on Django's own connection",
            )
        return f"sqlite:///{Path(name).resolve()}"
    is_postgres = connection.vendor == "postgresql"
    query = (_postgres_query if is_postgres else _mysql_query)(values["OPTIONS"])
    host = values["HOST"] or None
    if host is not None and host.startswith("/"):
        # The folder of a socket on PostgreSQL, the socket itself on MariaDB and MySQL.
        query["host" if is_postgres else "unix_socket"] = host
        host = None
    url = URL.create(
        connection.vendor,
        username=values["USER"] or None,
        password=values["PASSWORD"] or None,
        host=host,
        port=int(values["PORT"]) if values["PORT"] else None,
        database=name or None,
        query=query,
    )
    return url.render_as_string(hide_password=False)


def _postgres_query(given: dict[str, Any]) -> dict[str, str]:
    query = {name: str(value) for name, value in given.items() if name not in _POSTGRES_OPTIONS}
    if given.get("assume_role"):
        query["options"] = f"{query.get('options', '')} -c role={given['assume_role']}".strip()
    return query


def _mysql_query(given: dict[str, Any]) -> dict[str, str]:
    query = {name: str(given[name]) for name in _MYSQL_OPTIONS if name in given}
    tls = given.get("ssl")
    if isinstance(tls, dict):
        query |= {f"ssl_{name}": str(tls[name]) for name in _TLS if name in tls}
    return query


def _in_memory(connection: Any) -> bool:
    name = str(connection.settings_dict["NAME"])
    return name in ("", ":memory:") or "mode=memory" in name


@contextmanager
def migrating(connection: Any) -> Iterator[Migration]:
    """Raises Unsupported where Lapse cannot use the connection."""
    if connection.vendor == "postgresql" and connection.Database.__name__ != "psycopg":
        raise Unsupported("Lapse needs psycopg 3; this Django uses psycopg2", hint="pip install 'psycopg[binary]'")
    # On a borrowed connection nothing is opened behind the URL.
    is_hidden = connection.vendor == "sqlite" and _in_memory(connection)
    with Lapse("sqlite://" if is_hidden else url_of(connection)) as database:
        if connection.vendor == "mysql":
            with database.engine.connection() as own:
                yield Migration(database.catalog, own)
            return
        connection.ensure_connection()
        raw = connection.connection
        borrowed = create_engine(
            URL.create(f"{connection.vendor}+{_DRIVER}"),
            creator=lambda: raw,
            poolclass=NullPool,
            pool_reset_on_return=None,
        )
        with _plain_cursors(connection.vendor, raw), borrowed.connect() as bound:
            yield Migration(database.catalog, bound)


@contextmanager
def _plain_cursors(vendor: str, raw: Any) -> Iterator[None]:
    """Django's cursors on PostgreSQL put parameters into the text and read times in Django's zone."""
    if vendor != "postgresql":
        yield
        return
    before = raw.cursor_factory
    raw.cursor_factory = _plain_cursor()
    try:
        yield
    finally:
        raw.cursor_factory = before


def _plain_cursor() -> type[Any]:
    import psycopg

    class PlainCursor(psycopg.Cursor[Any]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            for kind, loader in lenient_loaders():
                self.adapters.register_loader(kind, loader)

    return PlainCursor


class _Borrowed:
    def on_connect(self) -> Any:
        return None

    def do_begin(self, raw: Any) -> None: ...

    def do_commit(self, raw: Any) -> None: ...

    def do_rollback(self, raw: Any) -> None: ...

    def do_close(self, raw: Any) -> None: ...

    def do_terminate(self, raw: Any) -> None: ...


class BorrowedPostgres(_Borrowed, PGDialect_psycopg):
    supports_statement_cache = True

    def __init__(self, **options: Any) -> None:
        super().__init__(use_native_hstore=False, **options)  # type: ignore[no-untyped-call]


class _Time(sqlite.DATETIME):
    """Django has the driver itself read columns that are declared as times."""

    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        parse: Any = super().result_processor(dialect, coltype)
        return lambda value: value if isinstance(value, datetime) else parse(value)


class BorrowedSqlite(_Borrowed, SQLiteDialect_pysqlite):
    supports_statement_cache = True
    colspecs = {**SQLiteDialect_pysqlite.colspecs, DateTime: _Time}


registry.register(f"postgresql.{_DRIVER}", __name__, BorrowedPostgres.__name__)
registry.register(f"sqlite.{_DRIVER}", __name__, BorrowedSqlite.__name__)
