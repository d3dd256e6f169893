"""PEP 249: a connection that understands TTL statements and hands every other one to the driver as it is."""

from __future__ import annotations

from lapse.app import Lapse
from lapse.clock import Clock
from lapse.dbapi.connection import Connection, Cursor
from lapse.dbapi.exceptions import translated

apilevel = "2.0"
threadsafety = 1
paramstyle = "pyformat"
"""What every connection reads; `%s` with a sequence, too. `Connection.paramstyle` is what its driver reads."""


def connect(url: str, *, autocommit: bool = False, clock: Clock | None = None) -> Connection:
    """Open a connection; with `autocommit` every statement commits by itself."""
    with translated():
        return Connection(Lapse(url, clock=clock), autocommit=autocommit)


__all__ = ["Connection", "Cursor", "apilevel", "connect", "paramstyle", "threadsafety"]
