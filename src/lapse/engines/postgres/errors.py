"""What PostgreSQL's error codes mean to Lapse."""

from __future__ import annotations

import re

from sqlalchemy.exc import DBAPIError

from lapse.engines.postgres.names import CATALOG_SCHEMA, quote
from lapse.errors import (
    BadData,
    Blocked,
    DatabaseError,
    DatabaseUnavailable,
    Drift,
    Interrupted,
    LapseError,
    Locked,
    NotPermitted,
    Retryable,
    TooSlow,
    Unsupported,
)
from lapse.model.blocked import BlockCode

LOCK_NOT_AVAILABLE = "55P03"
_RETRYABLE = frozenset({"40001", "40P01", "55006"})
QUERY_CANCELED = "57014"
_NOT_CONNECTED = "connection failed"
"""How the driver says that it never was."""
_GONE = frozenset({"42P01", "42703", "42704", "42804", "42883", "3F000"})
_UNAVAILABLE = frozenset({"57P01", "57P02", "57P03", "57P04", "57P05", "53300", "3D000", "28000", "28P01"})
_DENIED_SCHEMA = re.compile(r"denied for schema (.+)")
NOT_ARMED, NOT_THE_OWNERS, HIDDEN, NO_ARCHIVE, NOT_SERVED = "LT001", "LT002", "LT003", "LT004", "LT005"
NO_KEYS = "LT006"
"""Raised by batch functions."""
READ_ONLY = "25006"
NOT_ALLOWED = "42501"
DATA_EXCEPTION = "22"

ROLE = "<role>"
"""Stands for the role's name where that is not known."""
CATALOG_GRANTS = (
    f"GRANT USAGE ON SCHEMA {CATALOG_SCHEMA} TO {ROLE}; "
    f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {CATALOG_SCHEMA} TO {ROLE}; "
    f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {CATALOG_SCHEMA} TO {ROLE};"
)
"""What a role needs on Lapse's own tables, a worker's as well as a declarer's."""


def sqlstate(error: BaseException | None) -> str:
    return getattr(error, "sqlstate", None) or ""


def translate(error: DBAPIError, role: str | None = None) -> LapseError:
    """`role` is the one that was connected as, where the URL names it."""
    code, text = sqlstate(error.orig), _first_line(error)
    if code == QUERY_CANCELED:
        return Interrupted("the statement was interrupted") if "user request" in text else TooSlow(text)
    if code == LOCK_NOT_AVAILABLE:
        return Locked(text)
    if code in _RETRYABLE:
        return Retryable(text)
    if code in _UNAVAILABLE or code.startswith("08"):
        return DatabaseUnavailable(text)
    if error.connection_invalidated or (not code and type(error.orig).__name__ == "OperationalError"):
        hint = "check host, port, user, password and database in the URL" if text.startswith(_NOT_CONNECTED) else None
        return DatabaseUnavailable(text, hint=hint)
    if code in _GONE or code == NOT_ARMED:
        return Drift(text)
    if code == NOT_THE_OWNERS:
        return Blocked(BlockCode.PRIVILEGE, text, hint="ALTER TABLE … OWNER TO …, so that both have the same owner")
    if code == NO_ARCHIVE:
        return Blocked(BlockCode.PARTS_MISSING, text, hint="lapse doctor URL --repair, as the owner of the table")
    if code == NO_KEYS:
        return Blocked(BlockCode.PARTS_MISSING, text, hint="lapse resume URL TABLE, as the owner of the table")
    if code == HIDDEN:
        return Blocked(
            BlockCode.ROW_SECURITY,
            f"{text}: rows that its policies hide would never be deleted",
            hint="ALTER TABLE … NO FORCE ROW LEVEL SECURITY, or ALTER ROLE … BYPASSRLS",
        )
    if code == NOT_SERVED:
        return Unsupported(text, hint="`lapse doctor` prints the CREATE INDEX")
    if code == NOT_ALLOWED:
        return NotPermitted(text, hint=_grant(text, ROLE if role is None else quote(role)))
    if code.startswith(DATA_EXCEPTION):
        return BadData(text)
    if code == READ_ONLY:
        return DatabaseError(text, hint="this looks like a standby: give the URL of the primary")
    return DatabaseError(text)


def _grant(text: str, role: str) -> str:
    schema = _DENIED_SCHEMA.search(text)
    if (schema and schema[1] == CATALOG_SCHEMA) or " lapse_" in text:
        return CATALOG_GRANTS.replace(ROLE, role)
    if schema:
        return f"GRANT USAGE ON SCHEMA {quote(schema[1])} TO {role};"
    return "`lapse doctor` prints the GRANT statements that are missing"


def _first_line(error: DBAPIError) -> str:
    """The message without the driver's position marks."""
    diagnostics = getattr(error.orig, "diag", None)
    primary = getattr(diagnostics, "message_primary", None)
    if not primary:
        return str(error.orig).strip() or type(error.orig).__name__
    detail = getattr(diagnostics, "message_detail", None)
    return f"{primary}: {detail}" if detail else str(primary)
