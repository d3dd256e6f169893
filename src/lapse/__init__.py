"""Row-level TTL for the database you already run.

`lapse.open(url)` is the facade, `lapse.connect(url)` a PEP 249 connection that understands TTL statements.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lapse._version import __version__
from lapse.errors import (
    CatalogError,
    Drift,
    LapseError,
    NotFound,
    Refused,
    UsageError,
)

if TYPE_CHECKING:
    from lapse.app import Lapse
    from lapse.clock import Clock
    from lapse.dbapi import Connection, Cursor
    from lapse.dbapi.exceptions import (
        DatabaseError,
        DataError,
        Error,
        IntegrityError,
        InterfaceError,
        InternalError,
        NotSupportedError,
        OperationalError,
        ProgrammingError,
        Warning,
    )
    from lapse.dbapi.types import (
        BINARY,
        DATETIME,
        NUMBER,
        ROWID,
        STRING,
        Binary,
        Date,
        DateFromTicks,
        Time,
        TimeFromTicks,
        Timestamp,
        TimestampFromTicks,
    )

apilevel = "2.0"
threadsafety = 1
paramstyle = "pyformat"

_LAZY = {
    "Connection": "lapse.dbapi",
    "Cursor": "lapse.dbapi",
    "Lapse": "lapse.app",
    "DataError": "lapse.dbapi.exceptions",
    "DatabaseError": "lapse.dbapi.exceptions",
    "Error": "lapse.dbapi.exceptions",
    "IntegrityError": "lapse.dbapi.exceptions",
    "InterfaceError": "lapse.dbapi.exceptions",
    "InternalError": "lapse.dbapi.exceptions",
    "NotSupportedError": "lapse.dbapi.exceptions",
    "OperationalError": "lapse.dbapi.exceptions",
    "ProgrammingError": "lapse.dbapi.exceptions",
    "Warning": "lapse.dbapi.exceptions",
    "BINARY": "lapse.dbapi.types",
    "DATETIME": "lapse.dbapi.types",
    "NUMBER": "lapse.dbapi.types",
    "ROWID": "lapse.dbapi.types",
    "STRING": "lapse.dbapi.types",
    "Binary": "lapse.dbapi.types",
    "Date": "lapse.dbapi.types",
    "DateFromTicks": "lapse.dbapi.types",
    "Time": "lapse.dbapi.types",
    "TimeFromTicks": "lapse.dbapi.types",
    "Timestamp": "lapse.dbapi.types",
    "TimestampFromTicks": "lapse.dbapi.types",
}
"""Importing `lapse` alone loads no database library: a name that needs one brings it along."""
_SUBMODULES = frozenset({"kv"})


def open(url: str, clock: Clock | None = None, *, gate_sql: str | None = None) -> Lapse:
    """The facade over one database: `execute`, `preview`, `run`, `status`, `policies`, `worker`.

    `gate_sql` is a query of your own: while it gives more than zero, or fails, nothing is deleted.
    """
    from lapse.app import Lapse

    return Lapse(url, clock=clock, gate_sql=gate_sql)


def connect(url: str, *, autocommit: bool = False, clock: Clock | None = None) -> Connection:
    """A PEP 249 connection."""
    from lapse import dbapi

    return dbapi.connect(url, autocommit=autocommit, clock=clock)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name in _SUBMODULES:
        try:
            return import_module(f"lapse.{name}")
        except ModuleNotFoundError as error:
            raise AttributeError(f"module 'lapse' has no attribute {name!r}: {error}") from error
    raise AttributeError(f"module 'lapse' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "Binary",
    "CatalogError",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Drift",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "Lapse",
    "LapseError",
    "NotFound",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Refused",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "UsageError",
    "Warning",
    "__version__",
    "apilevel",
    "connect",
    "open",
    "paramstyle",
    "threadsafety",
]
