"""What a store answers with."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from lapse.kv.row import Row
from lapse.kv.ttl import from_millis


@dataclass(frozen=True, kw_only=True, slots=True)
class Meta:
    """A row's times. `expires` and `remaining` are None for a row that never expires."""

    key: bytes
    created: datetime
    expires: datetime | None
    remaining: timedelta | None
    expired: bool
    """True only where expired rows were asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """What was found in the store's files after a purge.

    `payloads_searchable` of the `payloads` sampled were found, byte for byte, in the files before the purge (a
    compressed file hides them); `payloads_left` are found in the files after it, and `keys_left` of their keys.
    `files_left` are files that could hold purged rows before and still exist. `files` were searched; tables whose
    keys lie elsewhere, `files_elsewhere`, cannot hold one and were not. `unchecked` says what could not be looked at,
    and why.
    """

    files: int
    payloads: int
    payloads_searchable: int
    payloads_left: int
    keys_left: int = 0
    files_left: tuple[str, ...] = ()
    files_elsewhere: int = 0
    unchecked: str | None = None

    @property
    def clean(self) -> bool:
        """Nothing was found where it was looked."""
        return not self.payloads_left and not self.keys_left and not self.files_left


@dataclass(frozen=True, kw_only=True, slots=True)
class PurgeResult:
    """One purge. `purged` counts rows really removed; `held` are expired rows an open snapshot still reads.

    `complete` says that nothing that was expired at `cutoff` is left for the next run; `reasons` say why not.
    `left` are the expired rows that are, the oldest of them since `oldest_left`; None if they were not counted.
    """

    cutoff: datetime
    purged: int
    held: int = 0
    left: int | None = 0
    oldest_left: datetime | None = None
    units_skipped: int = 0
    units_read: int = 0
    keys_read: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    bytes_compacted: int = 0
    elapsed_s: float = 0.0
    complete: bool = True
    reasons: tuple[str, ...] = ()
    verification: Verification | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PurgeRecord:
    """One purge of the past."""

    at: datetime
    cutoff: datetime
    purged: int
    held: int
    left: int | None
    bytes_before: int
    bytes_after: int
    elapsed_s: float
    verified: bool
    complete: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """What a purge would remove now, and what expires next. `bytes` are those of keys and values as stored, before the
    engine compresses them."""

    at: datetime
    rows: int
    expired: int
    expired_bytes: int
    oldest_expired: datetime | None
    expiring: dict[str, int]
    """Rows that expire within an hour, a day, a week and thirty days from now."""
    next_expiry: datetime | None
    never: int
    unreadable: int
    paused: str | None
    last_purge: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Stats:
    """`rows`, `expired` and `oldest_expired` are exact when `counted`, else estimates of the engine or
    None."""

    url: str
    engine: str
    format_version: int
    default_ttl: str | None
    rows: int | None
    expired: int | None
    oldest_expired: datetime | None
    unreadable: int | None
    paused: str | None
    counted: bool
    bytes: int
    open_snapshots: int
    clock_mark: datetime
    last_purge: datetime | None


def meta_of(row: Row, now_ms: int) -> Meta:
    expires = None if row.never_expires else from_millis(row.expires_ms)
    left_ms = max(0, row.expires_ms - now_ms)
    return Meta(
        key=row.key,
        created=from_millis(row.created_ms),
        expires=expires,
        remaining=None if expires is None else timedelta(milliseconds=left_ms),
        expired=row.expires_ms <= now_ms,
    )
