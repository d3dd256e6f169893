"""Strict reads through any handle of SlateDB: database, snapshot, transaction or read-only reader."""

from __future__ import annotations

from typing import Any, Protocol
from weakref import WeakSet

from lapse.errors import LapseError
from lapse.kv.aio.abc import AsyncReader
from lapse.kv.buckets import BucketMap
from lapse.kv.clock import StoppedClock, StoreClock
from lapse.kv.keys import KeyRange, check_limit, read_range
from lapse.kv.row import Row
from lapse.kv.slatedb.engine import translate
from lapse.kv.slatedb.keyspace import BUCKET_PREFIX_BYTES, bucket_prefix, check_user_key, in_bucket
from lapse.kv.slatedb.scans import Chunks, Merged, Scan, Source
from lapse.kv.state import State
from lapse.kv.values import Meta, meta_of


class Shared(Protocol):
    """What a store shares with its snapshots and transactions."""

    state: State
    buckets: BucketMap | None
    scans: WeakSet[Scan]


class SlateReader(AsyncReader):
    shared: Shared
    handle: Any
    clock: StoreClock | StoppedClock
    """By which the rows of scans are judged."""

    def read_ms(self) -> int:
        """The time at which rows are judged; raises if this reader must not read any more."""
        raise NotImplementedError

    async def get(self, key: bytes, *, include_expired: bool = False) -> bytes | None:
        found = await self.row(key, self.read_ms(), include_expired)
        return None if found is None else found.value

    async def meta(self, key: bytes, *, include_expired: bool = False) -> Meta | None:
        now_ms = self.read_ms()
        found = await self.row(key, now_ms, include_expired)
        return None if found is None else meta_of(found, now_ms)

    def scan(
        self,
        start: bytes | None = None,
        end: bytes | None = None,
        *,
        prefix: bytes | None = None,
        limit: int | None = None,
        include_expired: bool = False,
    ) -> Scan:
        keys, limit = read_range(start, end, prefix), check_limit(limit)
        self.read_ms()
        chunks = None if keys.is_empty else self.chunks(keys)
        # Closing a store closes its scans; only where time stands still can a reader end before its scan.
        check = self.read_ms if isinstance(self.clock, StoppedClock) else None
        state = self.shared.state
        scan = Scan(state, chunks, clock=self.clock, check=check, limit=limit, include_expired=include_expired)
        self.shared.scans.add(scan)
        return scan

    async def row(self, key: bytes, now_ms: int, include_expired: bool = False) -> Row | None:
        raw = await self.fetch(check_user_key(key))
        return None if raw is None else self.shared.state.visible(key, raw, now_ms, include_expired)

    async def fetch(self, key: bytes) -> bytes | None:
        """The newest stored bytes, expired or not."""
        try:
            raw: bytes | None
            if self.shared.buckets is None:
                raw = await self.handle.get(key)
                return raw
            for id in reversed(self.shared.buckets.ids()):
                raw = await self.handle.get(bucket_prefix(id) + key)
                if raw is not None:
                    return raw
            return None
        except LapseError:
            raise
        except Exception as error:
            raise translate(self.shared.state.url, error) from error

    def chunks(self, keys: KeyRange) -> Chunks:
        buckets = self.shared.buckets
        if buckets is None:
            return Source(self.handle, keys)
        sources = [self.bucket_source(id, keys) for id in reversed(buckets.ids())]
        return Merged(sources, getattr(self.handle, "snapshot", None))

    def bucket_source(self, id: int, keys: KeyRange) -> Source:
        return Source(self.handle, in_bucket(id, keys), BUCKET_PREFIX_BYTES)
