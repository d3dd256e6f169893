"""What an open store keeps in memory, whatever its engine."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lapse.errors import DatabaseUnavailable, Refused, StoreClosed
from lapse.kv.clock import StoreClock, end_of
from lapse.kv.format import StoreFormat
from lapse.kv.metrics import StoreMetrics
from lapse.kv.options import Options
from lapse.kv.row import VALUE, Row, header, unpack
from lapse.kv.ttl import TtlLike, expiry_ms
from lapse.kv.units import Group, Written
from lapse.kv.url import StoreUrl
from lapse.model.interval import Interval


@dataclass(slots=True, eq=False)
class Stamp:
    """What all rows have in common that are written with one TTL in one millisecond, which lasts until `ends_s`."""

    head: bytes
    expires_ms: int
    group: Group
    ends_s: float


class State:
    format: StoreFormat
    """Known once it was read, or the store is new."""

    def __init__(self, url: StoreUrl, options: Options) -> None:
        self.url = url
        self.options = options
        self.clock = StoreClock(options.clock, max_jump_ms=None if options.read_only else options.max_clock_jump_ms)
        self.default: Interval | None = None
        self.metrics = StoreMetrics(options.registry, str(url))
        self.written = Written()
        self.mark_ms = 0
        self.closed = False
        self.overdue: Collection[object] = ()
        """Calls into the engine that have had no answer in time, and have none yet."""
        self.stamps: dict[TtlLike, Stamp] = {}
        """Those of the present millisecond: a TTL is read once, and its header made once a millisecond."""
        self.clock.on_advance = self.stamps.clear

    def resume(self, format: StoreFormat, mark_ms: int) -> None:
        """Go on where the last process that had the store open was, unless this one may not."""
        self.format, self.mark_ms = format, mark_ms
        if not self.options.read_only:
            if not self.options.trust_clock:
                self.clock.resume(mark_ms)
            return
        if format.bucket_ms:
            raise Refused(f"{self.url} has time buckets", hint="open it for writing once: that converts it")
        self.clock.start_at(mark_ms)

    def check_open(self) -> None:
        if self.closed:
            raise StoreClosed(f"{self.url} is closed")
        if self.overdue:
            raise DatabaseUnavailable(
                f"{self.url}: an earlier call into the engine still has no answer", hint="does the disk answer?"
            )

    def check_writable(self) -> None:
        self.check_open()
        if self.options.read_only:
            raise Refused(f"{self.url} was opened read-only", hint="open it without read_only=True")

    # TTLs. The caller holds the lock under which rows are written.

    def stamp(self, ttl: TtlLike, now_ms: int) -> Stamp:
        ends_s = end_of(now_ms)
        known = self.stamps.get(ttl)
        if known is not None and known.ends_s == ends_s:
            return known
        expires_ms = self.expiry_ms(ttl, now_ms)
        head = header(created_ms=now_ms, expires_ms=expires_ms)
        stamp = self.stamps[ttl] = Stamp(head, expires_ms, self.written.group(expires_ms), ends_s)
        if self.clock.moment.now_ms != now_ms:  # another thread's reading has ended this moment
            self.stamps.clear()
        return stamp

    def expiry_ms(self, ttl: TtlLike, now_ms: int) -> int:
        return expiry_ms(ttl, now_ms=now_ms, default=self.default)

    def take_written(self) -> Written:
        taken, self.written = self.written, Written(base_ms=self.clock.now_ms())
        self.stamps.clear()
        taken.shrink()
        return taken

    # Reading

    def visible(self, key: bytes, raw: bytes | None, now_ms: int, include_expired: bool) -> Row | None:
        """The row, if it exists for a reader at `now_ms`."""
        if raw is None:
            return None
        created_ms, expires_ms = unpack(key, raw)
        if expires_ms <= now_ms and not include_expired:
            self.metrics.hidden()
            return None
        return Row(key=key, value=raw[VALUE], created_ms=created_ms, expires_ms=expires_ms)
