"""What a store must survive: callers, clocks and disks that do what they should not."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta, tzinfo
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import lapse.kv
from lapse.clock import ManualClock
from lapse.errors import (
    ClockAhead,
    ClockBehind,
    DatabaseError,
    DatabaseUnavailable,
    InvalidValue,
    LapseError,
    StoreClosed,
)
from lapse.kv import Store, Ttl
from lapse.kv.format import WRITTEN_KEY
from tests.kv.conftest import START, Opener, settle
from tests.kv.faults import full, small_disk
from tests.kv.test_lifecycle import overwrite_own_key, write_raw_row

HOUR = timedelta(hours=1)
MEGABYTE = 1 << 20


def _quietly(work: Callable[[], object]) -> None:
    with suppress(LapseError):
        work()


class TestClocks:
    def test_a_clock_behind_shows_no_expired_row_read_only(self, opener: Opener, clock: ManualClock) -> None:
        store = opener()
        store.put(b"k", b"v", ttl="1 hour")
        clock.advance(2 * HOUR)
        assert store.get(b"k") is None
        store.close()
        clock.set(START)
        reader = opener(read_only=True)
        assert (reader.get(b"k"), list(reader.scan()), reader.meta(b"k")) == (None, [], None)

    def test_one_reading_years_ahead_changes_nothing(self, store: Store, clock: ManualClock) -> None:
        store.put(b"k", b"v", ttl="1 day")
        clock.advance(timedelta(days=5000))
        for use in (lambda: store.put(b"k", b"w"), lambda: store.purge(), lambda: store.get(b"k")):
            with pytest.raises(ClockAhead, match="far ahead"):
                use()
        clock.set(START + HOUR)
        assert store.get(b"k") == b"v"
        store.put(b"k", b"w")
        assert store.get(b"k") == b"w"

    def test_a_store_that_was_idle_for_years_opens_when_told(self, opener: Opener, clock: ManualClock) -> None:
        store = opener()
        store.put(b"k", b"v", ttl=Ttl.NO_EXPIRY)
        store.close()
        clock.advance(timedelta(days=5000))
        with pytest.raises(ClockAhead):
            opener()
        store = opener(trust_clock=True)
        assert store.get(b"k") == b"v"
        store.close()
        assert opener().get(b"k") == b"v"

    def test_a_mark_in_the_future_can_be_taken_back(self, opener: Opener, clock: ManualClock) -> None:
        clock.advance(timedelta(days=5000))
        store = opener()
        store.put(b"k", b"v", ttl=Ttl.NO_EXPIRY)
        store.close()
        clock.set(START)
        with pytest.raises(ClockBehind):
            opener()
        opener(trust_clock=True).close()
        store = opener()
        assert store.get(b"k") == b"v"
        store.put(b"new", b"v", ttl="1 hour")
        meta = store.meta(b"new")
        assert meta is not None and meta.expires == START + HOUR


class TestCallers:
    def test_rows_that_are_read_from_the_store_itself(self, store: Store) -> None:
        store.put_many([(b"a%d" % i, b"v") for i in range(10)])

        def copies() -> Iterator[tuple[bytes, bytes]]:
            for key, value in store.scan(prefix=b"a"):
                thread = threading.Thread(target=store.put, args=(b"by another thread", b"v"))
                thread.start()
                thread.join(20)
                assert not thread.is_alive()
                yield b"b" + key, value + (store.get(key) or b"")

        assert store.put_many(copies()) == 10
        assert store.get(b"ba3") == b"vv"

    def test_rows_of_a_class_that_uses_the_store(self, store: Store) -> None:
        class Row(tuple[bytes, bytes]):
            def __len__(self) -> int:
                thread = threading.Thread(target=store.put, args=(b"by another thread", b"v"))
                thread.start()
                thread.join(20)
                assert not thread.is_alive()
                return 2

        assert store.put_many([Row((b"k", b"v"))]) == 1
        assert store.get(b"k") == b"v"

    def test_bytes_of_a_class_are_refused(self, store: Store) -> None:
        class Odd(bytes):
            def __radd__(self, other: bytes) -> bytes:
                raise AssertionError("called under the store's lock")

            __lt__ = __radd__  # type: ignore[assignment]

        for key, value in ((Odd(b"k"), b"v"), (b"k", Odd(b"v"))):
            for write in (store.put, lambda key, value: store.put_many([(key, value), (b"l", b"v", "1 day")])):
                with pytest.raises(InvalidValue, match="must be bytes, not Odd"):
                    write(key, value)
        assert list(store.scan()) == []

    def test_a_ttl_of_a_class_that_uses_the_store(self, store: Store) -> None:
        class Asks:
            def utcoffset(self, moment: object) -> timedelta:
                thread = threading.Thread(target=store.put, args=(b"by another thread", b"v"))
                thread.start()
                thread.join(20)
                assert not thread.is_alive()
                return timedelta(0)

            def __hash__(self) -> int:
                self.utcoffset(None)
                return 7

        class Text(Asks, str):
            pass

        class Length(Asks, timedelta):
            pass

        class Zone(Asks, tzinfo):
            def dst(self, moment: object) -> None:
                return None

            def tzname(self, moment: object) -> str:
                return "odd"

        for ttl in (Text("1 hour"), Length(hours=1), (START + HOUR).replace(tzinfo=Zone())):
            store.put(b"a", b"v", ttl)
            store.put_many([(b"b", b"v")], ttl)
            store.put_many([(b"c", b"v", ttl), (b"d", b"v")])
            with store.batch() as batch:
                batch.put(b"e", b"v", ttl)
            store.touch(b"a", ttl)
            for key in (b"a", b"b", b"c", b"e"):
                meta = store.meta(key)
                assert meta is not None and meta.expires == START + HOUR

    def test_a_ttl_counts_from_the_last_row_of_a_slow_source(self, store: Store, clock: ManualClock) -> None:
        def slow() -> Iterator[tuple[bytes, bytes]]:
            for number in range(5):
                clock.advance(HOUR)
                yield b"k%d" % number, b"v"

        store.put_many(slow(), ttl="1 hour")
        assert len(list(store.scan())) == 5

    def test_a_merge_function_may_use_the_store(self, opener: Opener) -> None:
        store: Store

        def merge(existing: bytes | None, operand: bytes) -> bytes:
            thread = threading.Thread(target=store.put, args=(b"other", operand))
            thread.start()
            thread.join(20)
            assert not thread.is_alive()
            return (existing or b"") + operand

        store = opener(merge=merge)
        assert store.merge(b"k", b"1") + store.merge(b"k", b"2") == b"112"
        assert store.get(b"other") == b"2"

    def test_a_get_inside_an_event_loop(self, store: Store, clock: ManualClock) -> None:
        """It waits in the thread of the loop, and the loop goes on. Reads alone move the store's time, too."""
        store.put(b"k", b"v")
        clock.advance(HOUR)

        async def look() -> bytes | None:
            found = [store.get(b"k"), store.get(b"none"), store.get(b"k")]
            await asyncio.sleep(0)
            assert asyncio.get_running_loop().is_running()
            return b"".join(value for value in found if value)

        assert asyncio.run(look()) == b"vv"
        assert store.stats().clock_mark == clock.now()

    def test_a_batch_that_is_refused_keeps_its_writes(self, store: Store, clock: ManualClock) -> None:
        batch = store.batch()
        batch.put(b"a", b"1", ttl=START + HOUR)
        batch.put(b"b", b"2")
        clock.advance(2 * HOUR)
        with pytest.raises(LapseError):
            batch.commit()
        assert (len(batch), store.get(b"b")) == (2, None)
        batch.put(b"a", b"1", ttl="1 hour")
        batch.commit()
        assert (store.get(b"a"), store.get(b"b"), len(batch)) == (b"1", b"2", 0)

    def test_ttls_per_row(self, store: Store, clock: ManualClock) -> None:
        rows = [(b"d", b"v"), (b"h", b"v", "1 hour"), (b"t", b"v", 2 * HOUR), (b"n", b"v", Ttl.NO_EXPIRY)]
        assert store.put_many(rows) == 4  # type: ignore[arg-type]
        with store.batch() as batch:
            for key, value, ttl in [(b"H", b"v", "1 hour"), (b"T", b"v", 2 * HOUR), (b"N", b"v", Ttl.NO_EXPIRY)]:
                batch.put(key, value, ttl)  # type: ignore[arg-type]
        for _ in range(2):
            clock.advance(HOUR)
            store.purge()
        assert [key for key, _ in store.scan(include_expired=True)] == [b"N", b"d", b"n"]

    def test_readers_and_writers_while_a_store_is_closed(self, opener: Opener) -> None:
        for _ in range(3):
            store, errors = opener(), list[BaseException]()
            store.put_many([(b"k%04d" % i, b"v") for i in range(1000)])

            def use(store: Store = store, errors: list[BaseException] = errors) -> None:
                try:
                    for number in range(100_000):
                        store.put(b"k%04d" % (number % 1000), b"v")
                        store.get(b"k0001")
                        list(store.scan(limit=5))
                except StoreClosed:
                    pass
                except BaseException as error:
                    errors.append(error)

            threads = [threading.Thread(target=use) for _ in range(4)]
            for thread in threads:
                thread.start()
            time.sleep(0.1)
            store.close()
            for thread in threads:
                thread.join(20)
            assert errors == []
            assert not any(thread.is_alive() for thread in threads)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # coroutines that never began
@pytest.mark.parametrize("use", [lambda store: store.put(b"k", b"v"), lambda store: store.touch(b"k")])
def test_an_interrupt_that_is_survived_leaves_no_lock(use: Callable[[Store], object], tmp_path: Path) -> None:
    """On RocksDB, whose calls hold a lock of the process."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before, main, left = signal.signal(signal.SIGUSR1, interrupt), threading.get_ident(), 0
    try:
        with lapse.kv.open(f"rocksdb:{tmp_path / 'store'}") as store:
            for number in range(100):
                killer = threading.Timer(number * 1e-6, signal.pthread_kill, (main, signal.SIGUSR1))
                with suppress(KeyboardInterrupt):
                    killer.start()
                    while True:
                        use(store)
                killer.join()
                other = threading.Thread(target=store.put, args=(b"other", b"v"), daemon=True)
                other.start()
                other.join(5)
                left += other.is_alive()
                if left:
                    break
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not left


class TestPurging:
    def test_one_short_lived_row_is_found_by_its_key(self, store: Store, clock: ManualClock) -> None:
        store.put_many([(b"k%06d" % i, b"v") for i in range(5000)], ttl="30 days")
        store.purge()
        store.put(b"k002500", b"v", ttl="1 hour")
        clock.advance(HOUR)
        result = store.purge()
        assert (result.purged, result.units_read, result.keys_read, result.complete) == (1, 0, 1, True)
        assert store.purge().keys_read == 0

    def test_it_is_found_after_a_restart(self, opener: Opener, clock: ManualClock) -> None:
        store = opener()
        store.put_many([(b"k%06d" % i, b"v") for i in range(5000)], ttl="30 days")
        store.put(b"k002500", b"v", ttl="1 hour")
        store.close()
        clock.advance(HOUR)
        result = opener().purge()
        assert (result.purged, result.units_read, result.keys_read) == (1, 0, 1)

    def test_what_is_not_known_stays_so_until_a_purge(self, opener: Opener, clock: ManualClock) -> None:
        """A store that was not closed, then opened and closed, and only then purged."""
        store = opener()
        store.put(b"k", b"v", ttl="1 hour")
        settle(store)
        store.close()
        overwrite_own_key(opener, WRITTEN_KEY, b"")  # as if the process had been killed
        opener().close()
        clock.advance(HOUR)
        assert opener().purge().purged == 1

    def test_a_store_closed_under_a_purge_is_purged_the_next_time(self, opener: Opener, clock: ManualClock) -> None:
        store = opener()
        store.put_many([(b"k%05d" % i, b"v") for i in range(3000)], ttl="1 hour")
        store.put(b"early", b"v", ttl="50 minutes")
        clock.advance(HOUR)
        purge = threading.Thread(target=lambda: _quietly(lambda: store.purge(rows_per_second=100)))
        purge.start()
        while len(list(store.scan(limit=3001, include_expired=True))) == 3001:
            time.sleep(0.01)
        store.close()
        purge.join(20)
        assert not purge.is_alive()
        store = opener()
        assert store.purge().complete
        assert list(store.scan(include_expired=True)) == []

    def test_a_row_written_again_is_not_purged_by_its_old_time(self, store: Store, clock: ManualClock) -> None:
        store.put(b"k", b"v", ttl="1 hour")
        store.put(b"k", b"v", ttl="3 hours")
        store.put(b"t", b"v", ttl="1 hour")
        store.touch(b"t", "3 hours")
        clock.advance(HOUR)
        assert (store.purge().purged, store.get(b"k"), store.get(b"t")) == (0, b"v", b"v")
        clock.advance(2 * HOUR)
        assert store.purge().purged == 2

    def test_a_row_that_cannot_be_read_stops_no_count(self, opener: Opener, clock: ManualClock) -> None:
        store = opener()
        store.put_many([(b"k%04d" % i, b"v") for i in range(1500)], ttl="1 hour")
        store.close()
        write_raw_row(opener, b"k0007x", b"\x02\x00\x7fabc")
        store = opener()
        clock.advance(HOUR)
        preview = store.preview()
        assert (preview.rows, preview.expired, preview.unreadable) == (1500, 1500, 1)
        result = store.purge()
        assert (result.purged, result.left, result.complete) == (1500, 0, False)
        assert store.preview().unreadable == 1

    def test_no_file_has_a_key_of_a_purged_row(self, opener: Opener, clock: ManualClock) -> None:
        """Keys are data, too: sessions, addresses."""
        store = opener()
        store.put_many([(b"address-%06d@example.org" % i, b"v" * 30) for i in range(50_000)], ttl="30 days")
        store.purge()  # cuts the keys into units
        store.put_many([(b"address-%06d@example.org" % i, b"v" * 30) for i in range(0, 50_000, 2)], ttl="1 hour")
        store.put(b"address-000002@example.org", b"v", ttl="1 hour")
        settle(store)
        clock.advance(HOUR)
        store.purge()  # cuts them anew, before the rows' bytes are gone
        clock.advance(timedelta(days=30))
        store.put(b"zzzzz", b"v", ttl="1 day")
        result = store.purge(within="60 seconds")
        assert result.complete, result
        # Once more: an engine that could forget its manifests only once would still have the bounds of these.
        store.put_many([(b"address-%06d@example.org" % i, b"w" * 30) for i in range(1000)], ttl="1 hour")
        settle(store)
        clock.advance(HOUR)
        result = store.purge(within="60 seconds")
        assert (result.complete, result.purged) == (True, 1000), result
        store.close()
        words = [b"address-0", base64.b64encode(b"address-0")[:11], b"address-0".hex().upper().encode()]
        left = set()
        for file in opener.path.rglob("*"):
            if file.is_file():
                data = file.read_bytes()
                left |= {file.name for word in words if word in data}
        assert left == set()

    def test_rows_that_never_reached_a_table(self, store: Store, clock: ManualClock) -> None:
        store.put_many([(b"address-%06d@example.org" % i, b"v" * 30) for i in range(5000)], ttl="1 hour")
        clock.advance(HOUR)
        result = store.purge(within="60 seconds")
        assert (result.purged, result.complete, result.reasons) == (5000, True, ())
        assert result.elapsed_s < 30

    def test_a_verified_purge_that_was_stopped_is_made_good(self, opener: Opener, clock: ManualClock) -> None:
        """Its rows are gone, their bytes not yet; the next one knows."""
        store = opener()
        store.put_many([(b"k%05d" % i, b"v") for i in range(2000)], ttl="90 days")
        store.put(b"k00007", b"a secret that is known by its key", ttl="1 hour")
        settle(store)
        clock.advance(HOUR)
        with store.snapshot():
            assert not store.purge(within="1 second").complete
        assert store.purge().complete  # the row is removed, and nothing more
        assert store.purge(within="60 seconds").complete
        store.close()
        files = [file for file in opener.path.rglob("*") if file.is_file()]
        assert not [file for file in files if b"a secret that is known" in file.read_bytes()]

    def test_a_forgotten_scan_does_not_use_up_the_time(self, store: Store, clock: ManualClock) -> None:
        store.put_many([(b"k%05d" % i, b"v") for i in range(5000)], ttl="1 hour")
        scan = store.scan()
        next(scan)
        clock.advance(HOUR)
        result = store.purge(within="60 seconds")
        assert result.elapsed_s < 30
        assert result.complete or "scan" in result.reasons[-1]
        del scan
        assert store.purge(within="60 seconds").complete

    def test_only_affected_files_are_rewritten(self, opener: Opener, clock: ManualClock) -> None:
        store = opener()
        for part in range(4):
            rows = [(b"%d-%06d" % (part, i), os.urandom(1000)) for i in range(5000)]
            store.put_many(rows, ttl=Ttl.NO_EXPIRY)
            settle(store)
        store.purge(within="60 seconds")
        store.put(b"0-000007", b"secret " * 9, ttl="1 hour")
        settle(store)
        clock.advance(HOUR)
        result = store.purge(within="60 seconds")
        assert (result.purged, result.complete) == (1, True)
        if opener.kind.engine == "rocksdb":
            assert (result.units_read, result.keys_read) == (0, 1)
            assert 0 < result.bytes_compacted < result.bytes_before / 2
        result = store.purge(within="60 seconds")
        assert (result.bytes_compacted, result.complete) == (0, True)

    def test_pause_and_history(self, opener: Opener, clock: ManualClock) -> None:
        store = opener()
        store.put(b"k", b"v", ttl="1 hour")
        clock.advance(HOUR)
        store.pause("legal hold 17")
        store.close()
        store = opener()
        result = store.purge()
        assert (result.purged, result.complete) == (0, False)
        assert "legal hold 17" in result.reasons[0]
        preview = store.preview()
        assert (preview.expired, preview.paused, preview.rows) == (1, "legal hold 17", 1)
        assert preview.expired_bytes > 0 and preview.oldest_expired == clock.now()
        store.resume()
        assert store.purge().purged == 1
        store.purge(within="20 seconds")
        last, first = store.history()
        assert (first.purged, first.complete, last.purged, last.verified) == (1, True, 0, True)
        assert first.at == clock.now()


class TestDisks:
    def test_a_full_disk_is_an_error_and_loses_nothing(
        self, opener: Opener, tmp_path: Path, clock: ManualClock
    ) -> None:
        with small_disk(tmp_path / "disk", megabytes=40) as disk:
            opener.path = disk / "store"
            store = opener(default_ttl="1 hour", timeout="2 seconds")
            rows = {b"k%03d" % i: os.urandom(1000) for i in range(300)}
            store.put_many(list(rows.items()), ttl=Ttl.NO_EXPIRY)
            store.put_many([(b"short" + key, value) for key, value in rows.items()], ttl="1 hour")
            store.flush()
            clock.advance(HOUR)
            with full(disk):
                for use in (
                    lambda: store.put_many([(b"x%05d" % i, os.urandom(900)) for i in range(9000)]),
                    store.flush,
                ):
                    with suppress(LapseError):
                        use()
                with pytest.raises(LapseError):
                    for _ in range(3):
                        store.put(b"x", os.urandom(MEGABYTE))
                        store.flush()
                try:
                    result = store.purge(within="5 seconds")
                except DatabaseError:
                    pass
                else:
                    assert not result.complete
                with suppress(LapseError):
                    store.close()
            store = opener()
            assert {key: store.get(key) for key in rows} == rows
            result = store.purge(within="90 seconds")
            assert result.complete, result
            assert {key: store.get(key) for key in rows} == rows
            assert store.get(b"shortk007", include_expired=True) is None
            store.close()

    def test_the_engine_is_not_waited_for_for_ever(self, tmp_path: Path) -> None:
        with small_disk(tmp_path / "disk", megabytes=16) as disk:
            url = f"slatedb:{disk / 'store'}"
            store = lapse.kv.open(url, timeout="1 second", registry=CollectorRegistry())
            store.put(b"k", b"v")
            store.flush()
            with full(disk):
                store.put(b"x", b"v")
                began_s = time.monotonic()
                with pytest.raises(DatabaseUnavailable, match="no answer for 1 s"):
                    store.flush()
                assert time.monotonic() - began_s < 5
                with pytest.raises(LapseError):
                    store.close()
            store = lapse.kv.open(url, registry=CollectorRegistry())
            assert store.get(b"k") == b"v"
            store.close()

    def test_a_close_that_fails_leaves_no_lock(self, opener: Opener, tmp_path: Path) -> None:
        with small_disk(tmp_path / "disk", megabytes=24) as disk:
            opener.path = disk / "store"
            store = opener(timeout="1 second")
            store.put(b"k", b"v")
            store.flush()
            with full(disk):
                with suppress(LapseError):
                    store.put(b"x", os.urandom(MEGABYTE))
                with pytest.raises(LapseError):
                    store.close()
                store.close()
            again = opener()
            assert again.get(b"k") == b"v"
            again.close()

    def test_the_log_does_not_grow_for_ever(self, tmp_path: Path) -> None:
        with lapse.kv.open(f"rocksdb:{tmp_path / 'store'}", registry=CollectorRegistry()) as store:
            value = os.urandom(10_000)
            for part in range(30):
                store.put_many([(b"%d-%d" % (part, i), value) for i in range(1000)])
            logs = sum(file.stat().st_size for file in (tmp_path / "store").glob("*.log"))
            assert logs < 150 * MEGABYTE


ROCKSDB_LEFTOVERS = ["LOCK", "LOG", "IDENTITY", "MANIFEST-000001", "000001.dbtmp"]
SLATEDB_LEFTOVERS = ["lapse.lock"]


def test_a_store_whose_creation_was_killed_is_no_foreign_store(opener: Opener) -> None:
    """Before there is a database: only files that the engine makes first."""
    opener.path.mkdir()
    for name in ROCKSDB_LEFTOVERS if opener.kind.engine == "rocksdb" else SLATEDB_LEFTOVERS:
        (opener.path / name).write_bytes(b"")
    store = opener(default_ttl="1 day")
    store.put(b"k", b"v")
    assert store.get(b"k") == b"v"


def test_a_store_whose_creation_was_killed_later_is_finished(opener: Opener) -> None:
    """After there is a database, without a row and without Lapse's description."""
    make_empty_database(opener)
    store = opener(default_ttl="1 day")
    store.put(b"k", b"v")
    store.close()
    assert opener().get(b"k") == b"v"


def make_empty_database(opener: Opener) -> None:
    if opener.kind.engine == "rocksdb":
        from rocksdict import Options, Rdict

        Rdict(str(opener.path), Options(raw_mode=True)).close()
        return
    from lapse.kv.slatedb.engine import load, object_store
    from lapse.kv.url import parse

    async def make() -> None:
        place, name = object_store(parse(opener.url))
        await (await load().DbBuilder(name, place).build()).shutdown()

    asyncio.run(make())
