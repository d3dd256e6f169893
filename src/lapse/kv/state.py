"""What an open store keeps in memory, whatever its engine."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from lapse.errors import DatabaseUnavailable, Refused, StoreClosed, Unsupported
from lapse.kv.clock import StoreClock, end_of
from lapse.kv.format import StoreFormat
from lapse.kv.metrics import StoreMetrics
from lapse.kv.options import MergeFunction, Options
from lapse.kv.row import TOMBSTONE, VALUE, Row, header, unpack
from lapse.kv.ttl import DAY_S, Duration, Ttl, TtlLike, expiry_ms, instant_ms, read_duration
from lapse.kv.units import Group, Written
from lapse.kv.url import StoreUrl

_KEPT_DURATIONS = 10_000
_USUAL_MS = 100 * 365 * DAY_S * 1000
"""A TTL below this ends before the year 10000."""


@dataclass(slots=True, eq=False)
class Stamp:
    """What all rows have in common that are written with one TTL in one millisecond, which lasts until `ends_s`."""

    head: bytes
    expires_ms: int
    group: Group
    ends_s: float


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
        self.overdue: Collection[object] = ()
        """Calls into the engine that have had no answer in time, and have none yet."""
        self.stamps: dict[TtlLike, Stamp] = {}
        """Those of the present millisecond: a TTL is read once, and its header made once a millisecond."""
        clock.on_advance = self.stamps.clear
        self._durations: dict[TtlLike, Duration] = {}
        self._read_times: dict[object, int] = {}

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
        """Every row may have another TTL: the usual ones take no more than some arithmetic."""
        if type(ttl) is timedelta:
            millis = (ttl.days * DAY_S + ttl.seconds) * 1000 - (-ttl.microseconds // 1000)
            if 0 < millis < _USUAL_MS:
                return now_ms + millis
        elif type(ttl) is datetime:
            return instant_ms(ttl, now_ms)
        if type(ttl) is str:
            known = self._durations.get(ttl)
            if known is None:
                known = read_duration(ttl)
                if len(self._durations) < _KEPT_DURATIONS:
                    self._durations[ttl] = known
            return known.expiry_ms(now_ms)
        return expiry_ms(ttl, now_ms=now_ms, default=self.default)

    def check_ttl(self, ttl: TtlLike) -> None:
        """A TTL that cannot be is refused at its own line, although it counts from a later time."""
        if not (isinstance(ttl, Ttl) or (isinstance(ttl, str | timedelta) and ttl in self._durations)):
            self.expiry_ms(ttl, self.clock.now_ms())

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
        flags, created_ms, expires_ms = unpack(key, raw)
        if flags & TOMBSTONE:
            return None
        if expires_ms <= now_ms and not include_expired:
            self.metrics.hidden()
            return None
        return Row(key=key, value=raw[VALUE], created_ms=created_ms, expires_ms=expires_ms)

    def merge_function(self) -> MergeFunction:
        if self.options.merge is None:
            raise Unsupported("this store has no merge function", hint="open it with merge=function")
        return self.options.merge

    # Snapshots

    def reader_opened(self, read_ms: int) -> Callable[[], object]:
        """Returns what is to be called when it is closed. A garbage collection may do so at any moment, in any thread:
        it takes no lock, which the same thread could hold."""
        reader = object()
        self._read_times[reader] = read_ms
        return partial(self._read_times.pop, reader, None)

    @property
    def open_readers(self) -> int:
        return len(self._read_times)

    def cutoff_ms(self) -> tuple[int, int]:
        """What a purge may remove, rows that are expired for the oldest open snapshot or transaction too; and now."""
        now_ms = self.clock.now_ms()
        return min([now_ms, *self._read_times.copy().values()]), now_ms
