"""The parts that need no engine: keys, URLs, units, buckets, budgets, the clock, the search in files."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.clock import ManualClock
from lapse.errors import ClockBehind, InvalidValue, StoreError, UnsupportedUrl
from lapse.kv.buckets import BucketMap, read_buckets
from lapse.kv.budget import Budget, Spending
from lapse.kv.clock import StoreClock
from lapse.kv.keys import KeyRange, read_range
from lapse.kv.slatedb.keyspace import prefix_length, without_reserved
from lapse.kv.state import Written
from lapse.kv.ttl import NEVER_MS, to_millis
from lapse.kv.units import EMPTY, UNIT_ROWS, UNKNOWN, Unit, UnitBuilder, coalesce, pack_units, read_units
from lapse.kv.url import parse
from lapse.kv.verify import LocalFile, Sample, check, search, take_sample

START = datetime(2030, 1, 1, tzinfo=UTC)


class TestKeys:
    @given(st.binary(min_size=1, max_size=4), st.binary(min_size=1, max_size=4))
    def test_a_prefix_range_holds_exactly_the_keys_with_the_prefix(self, prefix: bytes, key: bytes) -> None:
        keys = read_range(None, None, prefix)
        inside = (keys.start or b"") <= key and (keys.end is None or key < keys.end)
        assert inside == key.startswith(prefix)

    @given(st.binary(max_size=9), st.none() | st.binary(max_size=9), st.binary(min_size=1, max_size=9))
    def test_ranges_around_reserved_keys(self, start: bytes, end: bytes | None, key: bytes) -> None:
        keys = KeyRange(start=start, end=end)
        inside = start <= key and (end is None or key < end)
        parts = without_reserved(keys)
        found = any((p.start or b"") <= key and (p.end is None or key < p.end) for p in parts)
        assert found == (inside and not key.startswith(b"\x00lapse/"))

    @given(st.binary(max_size=12), st.binary(max_size=12))
    def test_no_segment_begins_with_another(self, one: bytes, other: bytes) -> None:
        first, second = prefix_length(one), prefix_length(other)
        if first is not None and second is not None and one[:first] != other[:second]:
            assert not one[:first].startswith(other[:second])


class TestUrls:
    def test_forms(self) -> None:
        assert parse("rocksdb:/a/b").path == Path("/a/b")
        assert parse("rocksdb:///a/b").path == Path("/a/b")
        assert parse("slatedb:file:///a/b").path == Path("/a/b")
        assert parse("slatedb:relative").path == Path.cwd() / "relative"
        assert parse("slatedb:memory:").in_memory
        assert parse("slatedb:s3://bucket/some/prefix").remote == "s3://bucket/some/prefix"

    def test_a_password_is_not_shown(self) -> None:
        assert str(parse("slatedb:s3://me:secret@bucket/prefix")) == "slatedb:s3://bucket/prefix"

    @pytest.mark.parametrize("name", ["da~ta", "donn\u00e9es", "a%20b", "a#b", "a?b", "a\tb"])
    def test_names_that_slatedb_writes_in_two_ways_are_refused(self, name: str) -> None:
        for url in (f"slatedb:/data/{name}", f"slatedb:s3://bucket/some/{name}"):
            with pytest.raises(UnsupportedUrl, match="in its name"):
                parse(url)
        assert parse(f"rocksdb:/data/{name}").path == Path("/data") / name
        assert parse(f"slatedb:/{name}/store").path == Path("/") / name / "store"


class TestUnits:
    def test_cut_and_pack(self) -> None:
        builder = UnitBuilder(b"", None)
        for number in range(UNIT_ROWS + 5):
            builder.add(b"%08d" % number, 1000 + number)
        first, second = builder.finish()
        assert (first.start, first.end, second.start, second.end) == (
            b"",
            b"%08d" % UNIT_ROWS,
            first.end,
            None,
        )
        assert (first.min_ms, first.max_ms, first.rows) == (1000, 999 + UNIT_ROWS, UNIT_ROWS)
        assert second.rows == 5
        assert read_units(pack_units([first, second])) == [first, second]

    def test_writes_widen_every_unit(self) -> None:
        unit = Unit(start=b"a", end=b"b", min_ms=50, max_ms=60, rows=1)
        written = Written()
        assert unit.widened(written) == unit
        written.add(10)
        written.add(99)
        assert (unit.widened(written).min_ms, unit.widened(written).max_ms) == (10, 99)

    def test_stopping_keeps_what_was_known_of_the_rest(self) -> None:
        builder = UnitBuilder(b"", None)
        builder.add(b"a", 70)
        done, rest = builder.stop_at(b"m", UNKNOWN)
        assert (done.end, done.min_ms, rest.start, rest.min_ms) == (b"m", 70, b"m", 0)

    def test_small_neighbours_join(self) -> None:
        small = [Unit(start=b"%d" % n, end=b"%d" % (n + 1), min_ms=n, max_ms=n, rows=1) for n in range(3)]
        assert coalesce(small) == [Unit(start=b"0", end=b"3", min_ms=0, max_ms=2, rows=3)]

    def test_nothing_known_and_nothing_there(self) -> None:
        assert read_units(None) == [UNKNOWN]
        assert EMPTY.min_ms == NEVER_MS
        with pytest.raises(StoreError):
            read_units(b"[[1]]")


class TestBuckets:
    def test_bounds_are_rounded_up_and_saved_only_when_they_grow(self) -> None:
        buckets = BucketMap(width_ms=100)
        buckets.add(5)
        assert buckets.note(5, min_ms=610, max_ms=610, rows=1)
        assert buckets[5].max_ms == 700
        assert not buckets.note(5, min_ms=600, max_ms=699, rows=1)
        assert (buckets[5].min_ms, buckets[5].rows) == (600, 2)

    def test_oldest_first_and_never_around_one_that_stays(self) -> None:
        buckets = BucketMap(width_ms=100)
        for id, high in ((1, 300), (2, 200), (3, 900), (4, 400), (5, 500)):
            buckets.add(id)
            buckets.note(id, min_ms=0, max_ms=high, rows=1)
        assert buckets.droppable(450, now_ms=600) == [1, 2]
        assert buckets.droppable(950, now_ms=550) == [1, 2, 3, 4]

    def test_a_clock_that_lags_does_not_write_into_an_older_bucket(self) -> None:
        buckets = BucketMap(width_ms=100)
        buckets.add(7)
        assert buckets.id_for(650) == 7
        assert buckets.id_for(850) == 8

    def test_saved_and_read(self) -> None:
        buckets = BucketMap(width_ms=100)
        buckets.add(1)
        buckets.note(1, min_ms=150, max_ms=250, rows=3)
        again = read_buckets(buckets.to_bytes(), width_ms=100)
        assert (again[1].min_ms, again[1].max_ms, again[1].rows) == (0, 300, 3)
        with pytest.raises(StoreError):
            read_buckets(b"[]", width_ms=100)


class TestBudget:
    def test_rows(self) -> None:
        spending = Spending(Budget(max_rows=150))
        assert spending.next_batch(100) == 100
        spending.spend(100)
        assert spending.next_batch(100) == 50
        spending.spend(50)
        assert spending.exhausted

    def test_time_and_rate(self) -> None:
        assert Spending(Budget(within_s=0.0)).exhausted
        spending = Spending(Budget(rows_per_second=10))
        spending.spend(5)
        assert spending.pause_s == pytest.approx(0.5, abs=0.05)
        assert Spending(Budget()).pause_s == 0

    def test_a_stopped_purge_neither_works_nor_rests(self) -> None:
        stop = threading.Event()
        spending = Spending(Budget(rows_per_second=0.001), stop)
        assert not spending.exhausted
        stop.set()
        spending.spend(5)
        spending.rest()
        assert spending.exhausted and spending.why_over == "the purge was asked to stop"

    def test_within_promises_everything(self) -> None:
        with pytest.raises(InvalidValue):
            Budget.read(within="1 minute", max_rows=1, rows_per_second=None)


class TestClock:
    def test_it_never_runs_backwards(self) -> None:
        manual = ManualClock(START)
        clock = StoreClock(manual)
        first = clock.now_ms()
        manual.set(START - timedelta(days=1))
        assert clock.now_ms() == first == to_millis(START)

    def test_a_short_wait_helps_a_clock_that_moves(self) -> None:
        manual = ManualClock(START)
        clock, slept = StoreClock(manual), list[float]()

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            manual.advance(timedelta(seconds=seconds))

        clock.resume(to_millis(START) + 1500, wait_s=2, sleep=sleep)
        assert slept == [1.5]

    def test_far_behind_is_an_error_at_once(self) -> None:
        slept: list[float] = []
        with pytest.raises(ClockBehind):
            StoreClock(ManualClock(START)).resume(to_millis(START) + 60_000, wait_s=2, sleep=slept.append)
        assert slept == []

    def test_the_mark_itself_is_not_behind(self) -> None:
        clock = StoreClock(ManualClock(START))
        clock.resume(to_millis(START))
        assert clock.now_ms() == to_millis(START)


def never() -> bool:
    return False


class TestVerify:
    def test_a_payload_across_two_blocks_is_found(self, tmp_path: Path) -> None:
        needle = b"needle-in-the-hay"
        file = tmp_path / "f"
        file.write_bytes(b"x" * ((1 << 20) - 7) + needle + b"x" * 100)
        found = search([LocalFile(file)], [needle, b"not there at all"], is_over=never)
        assert (found.found, found.unread) == (frozenset({needle}), 0)

    def test_what_is_left_is_reported(self, tmp_path: Path) -> None:
        old, new = tmp_path / "old", tmp_path / "new"
        old.write_bytes(b"payload-one payload-two")
        sample = Sample()
        for payload in (b"payload-one", b"payload-two"):
            sample.add(payload)
        take_sample(sample, [LocalFile(old)], is_over=never)
        new.write_bytes(b"payload-two")
        found = check(sample, [LocalFile(new)], is_over=never)
        assert (found.payloads, found.payloads_searchable, found.payloads_left) == (2, 2, 1)
        assert not found.clean
        assert check(sample, [LocalFile(old)], is_over=never).files_left == ("old",)

    def test_what_was_not_read_is_not_called_clean_without_saying_so(self, tmp_path: Path) -> None:
        sample = Sample()
        sample.add(b"payload-one")
        file = tmp_path / "f"
        file.write_bytes(b"payload-one")
        found = check(sample, [LocalFile(file)], is_over=lambda: True)
        assert (found.payloads_left, found.unchecked) == (0, "the bytes of 1 files: there was no time")

    def test_a_file_removed_meanwhile_holds_nothing(self, tmp_path: Path) -> None:
        assert search([LocalFile(tmp_path / "gone")], [b"payload"], is_over=never).found == frozenset()
