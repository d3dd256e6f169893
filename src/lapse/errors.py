"""Every error that Lapse raises, under one root.

    LapseError
    ├── UsageError                 the caller asked for something that cannot be meant
    │   ├── TtlSyntaxError          TTL text that does not parse; carries line and column
    │   ├── FileProblem            a mistake in a file of policies; carries path, line and column
    │   ├── InvalidValue           a parameter or setting with a value it cannot have
    │   └── UnsupportedUrl         a URL no engine serves
    ├── Refused                    understood, but not done: nothing was changed
    │   ├── TableNotFound
    │   ├── PolicyConflict         would break, or contradict, an existing policy
    │   ├── JobExists              the table already has an active job
    │   └── Unsupported            this engine or this table cannot do it
    │       └── ZoneMissing        times without a zone, which could be meant in the server's
    ├── NotFound                   no such policy, job, setting
    ├── CatalogError
    │   ├── CatalogTooNew   written by a newer Lapse than this one
    │   └── CatalogMissing         nothing was ever declared in this database
    ├── DatabaseError              the database said no; the driver's error is the cause
    │   ├── DatabaseUnavailable    cannot connect, or the connection was lost
    │   ├── NotPermitted           the role lacks a privilege
    │   ├── BadData                a value in a row cannot be computed with
    │   └── Retryable              busy, deadlock, timeout: the same call may succeed later
    │       ├── Locked             another session holds a lock
    │       └── TooSlow            a statement was given up because of its time limit: fewer rows may do
    ├── RowUndeletable             this batch holds a row that the database will not let go
    ├── Drift                      the table is no longer what the policy was declared on
    ├── Blocked                    one table may not, or cannot, be worked on now; carries a code
    ├── Fenced                     another worker owns this task, or another writer this store, now
    ├── MissingExtra               an optional part of Lapse is not installed
    ├── StoreError                 a key-value store that cannot be used as asked
    │   ├── StoreLocked            open for writing somewhere else
    │   ├── StoreClosed
    │   ├── ForeignStore           not written by Lapse
    │   ├── StoreTooNew            written by a newer Lapse than this one
    │   ├── CorruptRow             a row whose header cannot be read
    │   ├── ClockBehind            the clock is behind the latest time the store has seen
    │   ├── ClockAhead             the clock is so far ahead of it that it cannot be right
    │   ├── SnapshotTooOld         read for longer than the store keeps expired rows for
    │   └── TransactionConflict    another writer wrote what this transaction read or wrote
    ├── ArchiveError               an archive in files that cannot be used as asked
    │   ├── ArchiveUnavailable     its destination is away, full, or refuses
    │   ├── ArchiveConflict        another database's, or a file that is not the expected one
    │   └── ArchiveDamaged         a file that is not what was written; carries its path
    └── Interrupted                a job was asked to stop in the middle of a statement

Edges map `UsageError` to exit code 2 and every other to 1.
"""

from __future__ import annotations


class LapseError(Exception):
    """Root of all errors; `hint` says what to do next."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class UsageError(LapseError):
    pass


class TtlSyntaxError(UsageError):
    """`line` and `column` count from 1 in the text that was given."""

    def __init__(self, message: str, *, line: int, column: int, hint: str | None = None) -> None:
        super().__init__(f"line {line}, column {column}: {message}", hint=hint)
        self.line = line
        self.column = column


class FileProblem(UsageError):
    """`line` and `column` count from 1 in the file at `path`."""

    def __init__(self, message: str, *, path: str, line: int, column: int, hint: str | None = None) -> None:
        super().__init__(f"{path}:{line}:{column}: {message}", hint=hint)
        self.path = path
        self.line = line
        self.column = column


class InvalidValue(UsageError):
    """`name` is the parameter, `value` what was given, `allowed` what may be given."""

    def __init__(self, name: str, value: object, allowed: str, *, hint: str | None = None) -> None:
        super().__init__(f"{name} = {value!r}: {allowed}", hint=hint)
        self.name = name
        self.value = value
        self.allowed = allowed


class UnsupportedUrl(UsageError):
    pass


class Refused(LapseError):
    pass


class TableNotFound(Refused):
    pass


class PolicyConflict(Refused):
    pass


class JobExists(Refused):
    pass


class Unsupported(Refused):
    pass


class ZoneMissing(Unsupported):
    """`zone` is the server's, as a value of `ttl_time_zone`; None where it has no such name."""

    def __init__(self, message: str, *, zone: str | None, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.zone = zone


class NotFound(LapseError):
    pass


class CatalogError(LapseError):
    pass


class CatalogTooNew(CatalogError):
    pass


class CatalogMissing(CatalogError):
    pass


class DatabaseError(LapseError):
    pass


class DatabaseUnavailable(DatabaseError):
    pass


class NotPermitted(DatabaseError):
    pass


class BadData(DatabaseError):
    pass


class Retryable(DatabaseError):
    pass


class Locked(Retryable):
    """`everything`: the whole database is locked, so that not even Lapse's own tables can be written."""

    def __init__(self, message: str, *, hint: str | None = None, everything: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.everything = everything


class TooSlow(Retryable):
    pass


class RowUndeletable(LapseError):
    pass


class Drift(LapseError):
    pass


class Blocked(LapseError):
    """`code` is a `model.blocked.BlockCode`; `hint` is the command that resolves it. Other tables go on."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class Fenced(LapseError):
    pass


class Interrupted(LapseError):
    pass


def how_to_install(extra: str) -> str:
    """The command for an optional part; Lapse is installed from a checkout or a wheel of it."""
    return f"in the checkout that Lapse was installed from: pip install '.[{extra}]' (docs/installation.md)"


class MissingExtra(LapseError):
    """`extra` names an optional part of the distribution."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} is not installed", hint=how_to_install(extra))
        self.extra = extra


class StoreError(LapseError):
    pass


class StoreLocked(StoreError):
    pass


class StoreClosed(StoreError):
    pass


class ForeignStore(StoreError):
    pass


class StoreTooNew(StoreError):
    pass


class CorruptRow(StoreError):
    """`key` is the row's key, `reason` what is wrong with its header."""

    def __init__(self, key: bytes, reason: str) -> None:
        super().__init__(f"row {key!r} cannot be read: {reason}", hint="restore the row, or delete it by its key")
        self.key = key
        self.reason = reason


class ClockBehind(StoreError):
    pass


class ClockAhead(StoreError):
    pass


class SnapshotTooOld(StoreError):
    pass


class TransactionConflict(StoreError):
    pass


class ArchiveError(LapseError):
    pass


class ArchiveUnavailable(ArchiveError):
    pass


class ArchiveConflict(ArchiveError):
    pass


class ArchiveDamaged(ArchiveError):
    """`path` is the file's, inside the archive."""

    def __init__(self, message: str, *, hint: str, path: str) -> None:
        super().__init__(message, hint=hint)
        self.path = path
