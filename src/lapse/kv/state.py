"""What an open store keeps in memory, whatever its engine."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

from lapse.errors import LapseError, Refused, StoreClosed, Unsupported
from lapse.kv import format as stored
from lapse.kv.clock import NANOS, StoreClock
from lapse.kv.format import FORMAT_VERSION, StoreFormat
from lapse.kv.metrics import StoreMetrics
from lapse.kv.options import MergeFunction, Options, Unset
from lapse.kv.row import TOMBSTONE, VALUE, Row, header, unpack
from lapse.kv.ttl import Duration, Ttl, TtlLike, expiry_ms, from_millis, read_duration
from lapse.kv.units import EMPTY, pack_units
from lapse.kv.url import StoreUrl
from lapse.kv.written import Group, Written, read_written

Translate = Callable[[StoreUrl, Exception], Exception]
"""From an error of the engine to the one that Lapse raises."""
_KEPT_DURATIONS = 1_000


class Stamp:
    """What all rows have in common that are written with one TTL in one millisecond, which lasts until `ends_ns`."""

    __slots__ = ("ends_ns", "expires_ms", "group", "head")

    def __init__(self, head: bytes, expires_ms: int, group: Group, ends_ns: int) -> None:
        self.ends_ns = ends_ns
        self.head = head
        self.expires_ms = expires_ms
        self.group = group


class State:
    def __init__(
        self, *, url: StoreUrl, options: Options, format: StoreFormat, clock: StoreClock, translate: Translate
    ) -> None:
        self.url = url
        self.translate = translate
        self.options = options
        self.format = format
        self.clock = clock
        self.default: Duration | None = None
        self.metrics = StoreMetrics(options.registry, str(url))
        self.written = Written()
        self.mark_ms = 0
        self.closed = False
        self.stamps: dict[TtlLike, Stamp] = {}
        """Those of the present millisecond: a TTL is read once, and its header made once a millisecond."""
        clock.on_advance = self.stamps.clear
        self._durations: dict[TtlLike, Duration] = {}
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

    @contextmanager
    def engine_errors(self) -> Iterator[None]:
        """The engine's errors become Lapse's."""
        try:
            yield
        except LapseError:
            raise
        except Exception as error:
            raise self.translate(self.url, error) from error

    # What is written into a store that is opened for writing, or closed: the caller writes it, in this order.

    def first_words(self, *, mark_ms: int, default: bytes | None, written: bytes | None) -> dict[bytes, bytes]:
        """Of a store that exists, with what it has said so far."""
        options, now_ms = self.options, self.clock.now_ms()
        self.mark_ms = now_ms if options.trust_clock else mark_ms
        self.default = stored.read_default(default)
        if options.read_only:
            return {}
        self.written = read_written(written, base_ms=now_ms)
        words = {stored.WRITTEN_KEY: b""}
        if self.format.version < FORMAT_VERSION:
            self.format = replace(self.format, version=FORMAT_VERSION)
            words[stored.FORMAT_KEY] = self.format.to_bytes()
        if options.trust_clock:
            words[stored.MARK_KEY] = stored.pack_mark(now_ms)
        return words | self._own_words(now_ms)

    def birth_words(self) -> dict[bytes, bytes]:
        """Of a new one. Last of all comes the format: a store that has it has everything else."""
        self.mark_ms = now_ms = self.clock.now_ms()
        self.written = Written(base_ms=now_ms)
        words = {stored.UNITS_KEY: pack_units([EMPTY]), stored.MARK_KEY: stored.pack_mark(now_ms)}
        return words | self._own_words(now_ms) | {stored.FORMAT_KEY: self.format.to_bytes()}

    def last_words(self, *, is_purging: bool) -> dict[bytes, bytes]:
        words = {stored.MARK_KEY: stored.pack_mark(self.clock.moment.now_ms)}
        if not is_purging:  # else the purge has what was written, and it is not known
            words[stored.WRITTEN_KEY] = self.written.to_bytes()
        return words | ({stored.OWNER_KEY: b""} if self._is_named else {})

    @property
    def _is_named(self) -> bool:
        """Whether the store notes who has it open: in an object store nothing else keeps a second writer out."""
        return self.url.remote is not None and self.options.take_over

    def _own_words(self, now_ms: int) -> dict[bytes, bytes]:
        words = {}
        if not isinstance(default := self.options.new_default(), Unset):
            self.default = default
            words[stored.DEFAULT_TTL_KEY] = stored.pack_default(default)
        if self._is_named:
            owner = f"process {os.getpid()} on {socket.gethostname()}, since {from_millis(now_ms).isoformat()}"
            words[stored.OWNER_KEY] = owner.encode()
        return words

    # TTLs. The caller holds the lock under which rows are written.

    def stamp(self, ttl: TtlLike, now_ms: int) -> Stamp:
        ends_ns = (now_ms + 1) * NANOS
        try:
            known = self.stamps.get(ttl)
        except TypeError:  # something that cannot be a TTL, and is told so
            known = None
        if known is not None and known.ends_ns == ends_ns:
            return known
        expires_ms = self.expiry_ms(ttl, now_ms)
        head = header(created_ms=now_ms, expires_ms=expires_ms)
        stamp = Stamp(head, expires_ms, self.written.group(expires_ms), ends_ns)
        self.stamps[ttl] = stamp
        if self.clock.moment.now_ms != now_ms:  # another thread's reading has ended this moment
            self.stamps.clear()
        return stamp

    def expiry_ms(self, ttl: TtlLike, now_ms: int) -> int:
        if type(ttl) is str or type(ttl) is timedelta:
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

    # Reading

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

    def default_ttl(self) -> timedelta | str | None:
        if self.default is None:
            return None
        return str(self.default) if self.default.millis is None else self.default.interval.timedelta

    # Snapshots

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
        """The caller holds the lock under which rows are written."""
        taken, self.written = self.written, Written(base_ms=self.clock.now_ms())
        self.stamps.clear()
        taken.shrink()
        return taken
