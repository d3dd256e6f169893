"""Replication origins: deletes that subscribers can leave out (`origin = none`, `only-local`).

An origin is set for a session and survives the end of a transaction. Lapse sets it inside each transaction and takes it
away before COMMIT, or in one message with ROLLBACK, so a pooler never hands out a server that still has it. What tells
a change apart is the origin at the time of the change, not at the time of the commit.

One session at a time can have an origin. The others wait for their turn before they have locked anything.
"""

from __future__ import annotations

from sqlalchemy import Connection

from lapse.engines.postgres.inspect import rows
from lapse.engines.postgres.names import literal

FUNCTIONS = (
    "pg_replication_origin_session_setup(text)",
    "pg_replication_origin_session_reset()",
    "pg_replication_origin_session_is_setup()",
)
"""What a worker's role must be able to call; by default only a superuser can."""

_LEAVE = "SELECT pg_replication_origin_session_reset() WHERE pg_replication_origin_session_is_setup()"


def enter(name: str) -> list[str]:
    """For the start of a transaction."""
    return [
        f"SELECT pg_advisory_xact_lock(hashtextextended({literal(f'lapse origin {name}')}, 0))",
        # Left behind only by a session whose ROLLBACK was cancelled.
        _LEAVE,
        f"SELECT pg_replication_origin_session_setup({literal(name)})",
    ]


def commit(name: str | None) -> str:
    return "COMMIT" if name is None else f"{_LEAVE}; COMMIT"


def rollback(name: str | None) -> str:
    return "ROLLBACK" if name is None else f"ROLLBACK; {_LEAVE}"


def exists(connection: Connection, name: str) -> bool:
    return bool(rows(connection, "SELECT 1 FROM pg_replication_origin WHERE roname = %(name)s", {"name": name}))


def functions_lacking(connection: Connection) -> list[str]:
    """Those that the role of this connection may not call."""
    sql = "SELECT has_function_privilege(%(function)s, 'EXECUTE') AS may"
    return [function for function in FUNCTIONS if not rows(connection, sql, {"function": function})[0]["may"]]
