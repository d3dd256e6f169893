"""What a store answers with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from lapse.errors import CorruptRow, StoreTooNew
from lapse.kv.row import Row, unpack
from lapse.kv.ttl import NEVER_MS, from_millis


@dataclass(frozen=True, kw_only=True, slots=True)
class Meta:
    """A row's times. `expires` and `remaining` are None for a row that never expires."""

    key: bytes
    created: datetime
    expires: datetime | None
    remaining: timedelta | None
    expired: bool
    """True only where expired rows were asked for."""

    @staticmethod
    def of(row: Row, now_ms: int) -> Meta:
        stays = row.expires_ms == NEVER_MS
        return Meta(
            key=row.key,
            created=from_millis(row.created_ms),
            expires=None if stays else from_millis(row.expires_ms),
            remaining=None if stays else timedelta(milliseconds=max(0, row.expires_ms - now_ms)),
            expired=row.expires_ms <= now_ms,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """What was found in the store's files after a purge.

    `payloads_searchable` of the `payloads` sampled were found, byte for byte, in the files before the purge (a
    compressed file hides them); `payloads_left` are found in the files after it, and `keys_left` of their keys.
    `files_left` are files that could hold purged rows before and still exist. `files` were searched; tables whose
    keys lie elsewhere, `files_elsewhere`, cannot hold one and were not. `unchecked` says what could not be searched,
    and why.
    """

    files: int
    payloads: int = 0
    payloads_searchable: int = 0
    payloads_left: int = 0
    keys_left: int = 0
    files_left: tuple[str, ...] = ()
    files_elsewhere: int = 0
    unchecked: str | None = None

    @property
    def clean(self) -> bool:
        """Nothing was found in what was searched."""
        return not self.payloads_left and not self.keys_left and not self.files_left


@dataclass(frozen=True, kw_only=True, slots=True)
class PurgeResult:
    """One purge. `purged` counts rows really removed; `held` are expired rows an open snapshot still reads.

    `complete` says that nothing that was expired at `cutoff` is left for the next run; `reasons` say why not.
    `left` are the expired rows that are, the oldest of them since `oldest_left`; None after a purge that was cut short.
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
    """What a purge would remove now, and what expires next. `expired_bytes` are those of keys and values as stored,
    before the engine compresses them; `expiring` are the rows that expire within an hour, a day, a week and thirty
    days from now."""

    at: datetime
    rows: int
    expired: int
    expired_bytes: int
    oldest_expired: datetime | None
    expiring: dict[str, int]
    next_expiry: datetime | None
    never: int
    unreadable: int
    paused: str | None
    last_purge: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Stats:
    """`rows` is an estimate of the engine's, None where it has none."""

    url: str
    engine: str
    format_version: int
    default_ttl: str | None
    rows: int | None
    paused: str | None
    bytes: int
    open_snapshots: int
    clock_mark: datetime
    last_purge: datetime | None


_AHEAD_MS = {"1 hour": 3_600_000, "1 day": 86_400_000, "7 days": 7 * 86_400_000, "30 days": 30 * 86_400_000}


class Census:
    """A count of rows as they are stored. One that cannot be read is counted, and stops nothing."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.rows = self.expired = self.expired_bytes = self.never = self.unreadable = 0
        self.oldest_ms = self.next_ms = NEVER_MS
        self._expiring = dict.fromkeys(_AHEAD_MS, 0)

    def add(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        for key, raw in rows:
            try:
                expires_ms = unpack(key, raw)[1]
            except (CorruptRow, StoreTooNew):
                self.unreadable += 1
                continue
            self.rows += 1
            if expires_ms <= self.now_ms:
                self.expired += 1
                self.expired_bytes += len(key) + len(raw)
                self.oldest_ms = min(self.oldest_ms, expires_ms)
            elif expires_ms == NEVER_MS:
                self.never += 1
            else:
                self.next_ms = min(self.next_ms, expires_ms)
                for name, ahead_ms in _AHEAD_MS.items():
                    self._expiring[name] += expires_ms - self.now_ms <= ahead_ms

    def preview(self, *, paused: str | None, last_purge: datetime | None) -> Preview:
        return Preview(
            at=from_millis(self.now_ms),
            rows=self.rows,
            expired=self.expired,
            expired_bytes=self.expired_bytes,
            oldest_expired=from_millis(self.oldest_ms) if self.expired else None,
            expiring=self._expiring,
            next_expiry=None if self.next_ms == NEVER_MS else from_millis(self.next_ms),
            never=self.never,
            unreadable=self.unreadable,
            paused=paused,
            last_purge=last_purge,
        )
