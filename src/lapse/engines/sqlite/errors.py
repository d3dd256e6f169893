"""What SQLite's error codes mean to Lapse."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.exc import DBAPIError

from lapse.errors import (
    DatabaseError,
    DatabaseUnavailable,
    Drift,
    Interrupted,
    LapseError,
    Locked,
    Retryable,
    RowUndeletable,
)

_LOCKED = ("SQLITE_BUSY", "SQLITE_LOCKED")
_RETRYABLE = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")


def translate(error: DBAPIError, path: Path) -> LapseError:
    code = getattr(error.orig, "sqlite_errorname", "") or ""
    text = str(error.orig)
    if code in _LOCKED:
        hint = "another process is writing to the file, or has begun to and not ended: try again when it has"
        return Locked(f"the database is busy: {text}", hint=hint, everything=True)
    if code.startswith(_RETRYABLE):
        return Retryable(f"the database is busy: {text}")
    if code == "SQLITE_INTERRUPT":
        return Interrupted("the statement was interrupted")
    if code.startswith("SQLITE_CONSTRAINT"):
        return RowUndeletable(text)
    if code == "SQLITE_NOTADB":
        return DatabaseUnavailable(f"{path} is not a SQLite database")
    if code.startswith("SQLITE_READONLY"):
        return DatabaseError(f"{path} cannot be written: {text}", hint="check the file's permissions")
    if code.startswith("SQLITE_CANTOPEN"):
        return DatabaseUnavailable(f"cannot open {path}: {text}", hint="check that the directory exists")
    if text.startswith(("no such column", "no such table", "no such index")):
        return Drift(text)
    return DatabaseError(text)
