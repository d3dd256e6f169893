"""One package per database; `base` is what they have in common."""

from __future__ import annotations

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from lapse.clock import Clock
from lapse.engines.base import Engine
from lapse.errors import UnsupportedUrl
from lapse.model.secret import mask

KEY_VALUE = ("slatedb", "rocksdb")
SCHEMES = "sqlite:///file.db, postgresql://…, mysql://… or mariadb://…"


def open_engine(url: str, clock: Clock | None = None) -> Engine:
    """The engine for a SQLAlchemy URL."""
    if url.partition(":")[0].lower() in KEY_VALUE:
        raise UnsupportedUrl(
            f"{mask(url)} is a key-value store, which knows no SQL",
            hint=f"use `lapse kv`, which has pause but no holds, or `lapse status|worker --kv {mask(url)}`",
        )
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise UnsupportedUrl(f"{mask(url)!r} is not a database URL", hint=f"use {SCHEMES}") from None
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        from lapse.engines.sqlite.engine import SqliteEngine

        return SqliteEngine(parsed, clock)
    if backend in ("mysql", "mariadb"):
        from lapse.engines.mysql.native import NativeMysqlEngine

        return NativeMysqlEngine(parsed, clock)
    if backend in ("postgresql", "postgres"):
        from lapse.engines.postgres.engine import PostgresEngine

        return PostgresEngine(parsed, clock)
    raise UnsupportedUrl(f"no engine serves URLs that begin with {parsed.drivername}:", hint=f"use {SCHEMES}")


__all__ = ["Engine", "open_engine"]
