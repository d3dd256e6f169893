"""What an open store keeps in memory, whatever its engine."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from lapse.errors import InvalidValue, Refused, StoreClosed, Unsupported
from lapse.kv.clock import StoreClock
from lapse.kv.format import StoreFormat
from lapse.kv.metrics import StoreMetrics
from lapse.kv.options import MergeFunction, Options
from lapse.kv.row import TOMBSTONE, VALUE, Row, unpack
from lapse.kv.ttl import MAX_EXPIRY_MS, NEVER_MS, Duration, Ttl, TtlLike, expiry_ms
from lapse.kv.url import StoreUrl

_DEFAULT = Ttl.DEFAULT  # a plain name, because every look into an enum costs a call


@dataclass(kw_only=True, slots=True)
class Written:
    """The expiries of the rows written since the last purge looked: a row outside `[min_ms, max_ms]` is
    older."""

    min_ms: int = NEVER_MS
    max_ms: int = 0
    rows: int = 0

    def add(self, expires_ms: int, rows: int = 1) -> None:
        self.rows += rows
        if expires_ms < self.min_ms:
            self.min_ms = expires_ms
        if expires_ms > self.max_ms:
            self.max_ms = expires_ms

    def absorb(self, other: Written) -> None:
        self.rows += other.rows
        self.min_ms = min(self.min_ms, other.min_ms)
        self.max_ms = max(self.max_ms, other.max_ms)


class State:
    def __init__(self, *, url: StoreUrl, options: Options, format: StoreFormat, clock: StoreClock) -> None:
        self.url = url
        self.options = options
        self.format = format
        self.clock = clock
        self.default: Duration | None = None
        self.metrics = StoreMetrics(options.registry, str(url))
        self.written = Written()
        self.mark_ms = 0
        self.closed = False
        self._lock = threading.Lock()
        self._read_times: dict[int, int] = {}
        self._next_reader = 0

    def check_open(self) -> None:
        if self.closed:
            raise StoreClosed(f"{self.url} is closed")

    def check_writable(self) -> None:
        self.check_open()
        if self.options.read_only:
            raise Refused(f"{self.url} was opened read-only", hint="open it without read_only=True")

    def expiry_ms(self, ttl: TtlLike, now_ms: int) -> int:
        default = self.default
        if ttl is _DEFAULT and default is not None and default.millis is not None:
            expires_ms = now_ms + default.millis
            if expires_ms <= MAX_EXPIRY_MS:
                return expires_ms
        expires_ms = expiry_ms(ttl, now_ms=now_ms, default=default)
        if expires_ms == NEVER_MS and self.format.bucket_ms:
            self._refuse_never(ttl)
        return expires_ms

    def visible(self, key: bytes, raw: bytes | None, now_ms: int, include_expired: bool) -> Row | None:
        """The row, if it exists for a reader at `now_ms`."""
        if raw is None:
            return None
        flags, created_ms, expires_ms = unpack(key, raw)
        if flags & TOMBSTONE:
            return None
        if expires_ms <= now_ms and not include_expired:
            self.metrics.hidden.inc()
            return None
        return Row(key=key, value=raw[VALUE], created_ms=created_ms, expires_ms=expires_ms)

    def merge_function(self) -> MergeFunction:
        if self.options.merge is None:
            raise Unsupported("this store has no merge function", hint="open it with merge=function")
        return self.options.merge

    def reader_opened(self, read_ms: int) -> int:
        with self._lock:
            self._next_reader += 1
            self._read_times[self._next_reader] = read_ms
            return self._next_reader

    def reader_closed(self, reader: int) -> None:
        with self._lock:
            self._read_times.pop(reader, None)

    @property
    def open_readers(self) -> int:
        return len(self._read_times)

    def cutoff_ms(self) -> tuple[int, int]:
        """Now, and before it what a purge may remove: rows expired for the oldest open snapshot or
        transaction too."""
        now_ms = self.clock.now_ms()
        with self._lock:
            oldest_ms = min(self._read_times.values(), default=now_ms)
        return min(now_ms, oldest_ms), now_ms

    def take_written(self) -> Written:
        taken, self.written = self.written, Written()
        return taken

    def _refuse_never(self, ttl: TtlLike) -> None:
        why = "the store has no default TTL" if ttl is Ttl.DEFAULT else "it would keep its whole bucket for ever"
        raise InvalidValue("ttl", ttl, f"must end in a store with time buckets: {why}", hint="give a TTL")
