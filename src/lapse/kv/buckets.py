"""Time buckets: rows written in the same stretch of time live together and leave together.

A row goes into the bucket of the time it is *written*. The clock never runs backwards, so the newest version
of a key is always in the newest bucket that has the key, and reads stop at the first bucket that knows it.
Buckets are dropped oldest first, never around an older one that still has live rows: dropping can remove
older versions only, so it cannot uncover one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from lapse.errors import StoreError
from lapse.kv.ttl import NEVER_MS


@dataclass(kw_only=True, slots=True)
class Bucket:
    """`min_ms` and `max_ms` bound the expiries inside; `max_ms` is rounded up to the bucket width, so that it
    need not be saved for every row. `rows` counts writes and is only an estimate of the rows inside."""

    id: int
    min_ms: int = NEVER_MS
    max_ms: int = 0
    rows: int = 0


class BucketMap:
    def __init__(self, *, width_ms: int, buckets: list[Bucket] | None = None) -> None:
        self.width_ms = width_ms
        self._buckets = {bucket.id: bucket for bucket in buckets or []}

    def ids(self) -> list[int]:
        """Oldest first."""
        return sorted(self._buckets)

    def __len__(self) -> int:
        return len(self._buckets)

    def __getitem__(self, id: int) -> Bucket:
        return self._buckets[id]

    def __contains__(self, id: object) -> bool:
        return id in self._buckets

    def id_for(self, now_ms: int) -> int:
        """Never older than the newest bucket, whatever the clock says."""
        return max(now_ms // self.width_ms, max(self._buckets, default=0))

    def add(self, id: int) -> Bucket:
        return self._buckets.setdefault(id, Bucket(id=id))

    def forget(self, id: int) -> None:
        del self._buckets[id]

    def note(self, id: int, *, min_ms: int, max_ms: int, rows: int) -> bool:
        """Take in rows written; True if the bounds grew, so that they must be saved with the rows."""
        bucket = self._buckets[id]
        bucket.rows += rows
        bucket.min_ms = min(bucket.min_ms, min_ms)
        if max_ms <= bucket.max_ms:
            return False
        bucket.max_ms = -(-max_ms // self.width_ms) * self.width_ms
        return True

    def droppable(self, cutoff_ms: int, now_ms: int) -> list[int]:
        """Oldest first, up to the first bucket with a row that may be live; never the one being written."""
        found = []
        for id in self.ids():
            if self._buckets[id].max_ms > cutoff_ms or id >= self.id_for(now_ms):
                break
            found.append(id)
        return found

    def to_bytes(self) -> bytes:
        return json.dumps({b.id: [b.min_ms, b.max_ms, b.rows] for b in self._buckets.values()}).encode()


def read_buckets(raw: bytes | None, *, width_ms: int) -> BucketMap:
    try:
        buckets = [
            # Rows written after the bounds were last saved may expire earlier than the saved minimum says.
            Bucket(id=int(id), min_ms=0, max_ms=max_ms, rows=rows)
            for id, (_, max_ms, rows) in json.loads(raw or b"{}").items()
        ]
    except (ValueError, TypeError, AttributeError) as error:
        raise StoreError(f"the store's buckets cannot be read: {raw!r}") from error
    return BucketMap(width_ms=width_ms, buckets=buckets)
