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

    `payloads_searchable` of the `payloads` sampled were found, byte for byte, in the files before the purge
    (a compressed file hides them); `payloads_left` are found in the files after it. `files_left` are files
    that held purged rows before and still exist. `unchecked` says what could not be looked at, and why.
    """

    files: int
    payloads: int
    payloads_searchable: int
    payloads_left: int
    files_left: tuple[str, ...] = ()
    unchecked: str | None = None

    @property
    def clean(self) -> bool:
        """Nothing was found where it was looked."""
        return not self.payloads_left and not self.files_left


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
    units_dropped: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    bytes_compacted: int = 0
    elapsed_s: float = 0.0
    complete: bool = True
    reasons: tuple[str, ...] = ()
    verification: Verification | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Stats:
    """`rows`, `expired` and `oldest_expired` are exact when `counted`, else estimates of the engine or
    None."""

    url: str
    engine: str
    format_version: int
    default_ttl: str | None
    bucket: timedelta | None
    buckets: int
    rows: int | None
    expired: int | None
    oldest_expired: datetime | None
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
