"""Counting a store's rows."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from lapse.errors import CorruptRow, StoreFromTheFuture
from lapse.kv.row import TOMBSTONE, unpack
from lapse.kv.ttl import NEVER_MS, from_millis
from lapse.kv.values import Preview

_AHEAD = {"1 hour": timedelta(hours=1), "1 day": timedelta(days=1), "7 days": timedelta(7), "30 days": timedelta(30)}


class Census:
    """Of rows as they are stored. One that cannot be read is counted, and stops nothing."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.rows = self.expired = self.expired_bytes = self.never = self.unreadable = 0
        self.oldest_ms = self.next_ms = NEVER_MS
        self._ahead_ms = {name: now_ms + ahead // timedelta(milliseconds=1) for name, ahead in _AHEAD.items()}
        self._expiring = dict.fromkeys(_AHEAD, 0)

    def add(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        for key, raw in rows:
            try:
                flags, _, expires_ms = unpack(key, raw)
            except (CorruptRow, StoreFromTheFuture):
                self.unreadable += 1
                continue
            if flags & TOMBSTONE:
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
                for name, until_ms in self._ahead_ms.items():
                    self._expiring[name] += expires_ms <= until_ms

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
