"""The parts that need no engine: keys, URLs, units, budgets, the clock, the search in files."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.clock import ManualClock
from lapse.errors import ClockBehind, StoreError, UnsupportedUrl
from lapse.kv.clock import StoreClock
from lapse.kv.keys import KeyRange, read_range
from lapse.kv.options import Budget
from lapse.kv.slatedb.engine import prefix_length
from lapse.kv.slatedb.store import without_reserved
from lapse.kv.ttl import NEVER_MS, to_millis
from lapse.kv.units import (
    EMPTY,
    KEPT_KEYS,
    UNIT_ROWS,
    UNKNOWN,
    Unit,
    Units,
    Written,
    join,
    pack_units,
    read_units,
    read_written,
)
from lapse.kv.url import parse
from lapse.kv.verify import Sample, check, search, take_sample

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


class TestWritten:
    def test_few_keys_are_kept_and_many_become_a_range(self) -> None:
        written = Written(base_ms=0)
        written.note(b"m", 5_000)
        (group,) = written
        assert (group.keys, group.min_ms) == ([b"m"], 5_000)
        keys = [b"%05d" % n for n in range(KEPT_KEYS)]
        written.group(6_000).note_many(keys)
        (group,) = written
        assert (group.keys, group.first, group.last, group.min_ms) == (None, b"00000", b"m", 5_000)
        written.note(b"z", 4_000)
        assert (group.last, group.min_ms) == (b"z", 4_000)

    def test_the_same_key_again_and_again_is_one_key(self) -> None:
        written = Written(base_ms=0)
        for _ in range(3 * KEPT_KEYS):
            written.note(b"k", 5_000)
        (group,) = written
        assert group.keys is not None and set(group.keys) == {b"k"} and len(group.keys) <= KEPT_KEYS + 1

    @given(
        rows=st.lists(st.tuples(st.binary(min_size=1, max_size=5), st.integers(0, 2**40) | st.just(NEVER_MS))),
        most=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    )
    def test_every_row_is_in_a_group_that_is_due_before_it(
        self, rows: list[tuple[bytes, int]], most: tuple[int, int]
    ) -> None:
        written = Written(base_ms=1_000)
        for key, expires_ms in rows[::2]:
            written.note(key, expires_ms)
        other = Written(base_ms=77)
        for key, expires_ms in rows[1::2]:
            other.note(key, expires_ms)
        for kept, keys in zip((written, other), most, strict=True):
            for group in kept:
                group.shrink(keys)  # those with more are ranges
        written.absorb(other)
        again = read_written(written.to_bytes(), base_ms=5)
        assert not again.is_unknown
        for key, expires_ms in rows:
            for kept in (written, again):
                assert any(
                    group.min_ms <= expires_ms
                    and (key in group.keys if group.keys is not None else group.first <= key <= group.last)
                    for group in kept
                )

    def test_what_no_process_has_saved_is_not_known(self) -> None:
        for raw in (None, b"", b"[0, 5, 1]"):
            assert read_written(raw, base_ms=0).is_unknown


class TestUnits:
    def test_cut_and_pack(self) -> None:
        rows = [Unit(start=b"%08d" % n, min_ms=1000 + n, owed_ms=NEVER_MS, rows=1) for n in range(UNIT_ROWS + 5)]
        first, second = join(rows)
        assert (first.start, second.start) == (b"", b"%08d" % UNIT_ROWS)
        assert (first.min_ms, first.rows, second.min_ms, second.rows) == (1000, UNIT_ROWS, 1000 + UNIT_ROWS, 5)
        assert read_units(pack_units([first, second])).all == [first, second]

    def test_writes_widen_the_units_they_lie_in(self) -> None:
        units = Units([Unit(start=start, min_ms=500, owed_ms=400) for start in (b"", b"f", b"m", b"t")])
        written = Written(base_ms=0)
        written.note(b"g", 10)
        units.fold(written)
        assert [unit.min_ms for unit in units.all] == [500] * 4
        units.fold(written, keys_after_ms=9)
        assert [unit.min_ms for unit in units.all] == [500, 10, 500, 500]
        assert [unit.owed_ms for unit in units.all] == [400, 10, 400, 400]
        assert not written.groups
        written.group(7).note_many([b"m", b"x"])
        written.group(7).shrink(most=0)
        units.fold(written)
        assert [unit.min_ms for unit in units.all] == [500, 10, 7, 7]
        written.is_unknown = True
        units.fold(written)
        assert {(unit.min_ms, unit.owed_ms) for unit in units.all} == {(0, 0)}

    def test_small_neighbours_join(self) -> None:
        small = [Unit(start=b"%d" % n, min_ms=n, owed_ms=n, rows=1) for n in range(3)]
        assert join(small) == [Unit(start=b"", min_ms=0, owed_ms=0, rows=3)]
        big = [Unit(start=b"%d" % n, min_ms=n, owed_ms=n, rows=UNIT_ROWS) for n in range(3)]
        gone = Unit(start=b"", min_ms=NEVER_MS, owed_ms=1, rows=0)
        assert [unit.start for unit in join([big[0], gone, big[2]])] == [b"", b"2"]

    def test_nothing_known_and_nothing_there(self) -> None:
        first_version = b'[["", "bQ==", 50, 60, 7], ["bQ==", null, 80, 90, 9]]'
        assert read_units(None).all == read_units(first_version).all == [UNKNOWN]
        assert EMPTY.min_ms == NEVER_MS
        with pytest.raises(StoreError):
            read_units(b"\2\0\1k")


class TestBudget:
    def test_time_and_rate(self) -> None:
        budget = Budget(within="1 microsecond")
        time.sleep(0.001)
        assert budget.is_over() and budget.why_over == "the time was up"
        budget = Budget(rows_per_second=10)
        budget.rows += 5
        assert budget.pause_s == pytest.approx(0.5, abs=0.05)
        assert Budget().pause_s == 0

    def test_a_stopped_purge_neither_works_nor_rests(self) -> None:
        stop = threading.Event()
        budget = Budget(rows_per_second=0.001, stop=stop)
        assert not budget.is_over()
        stop.set()
        budget.rows += 5
        assert budget.pause_s == 0
        assert budget.is_over() and budget.why_over == "the purge was asked to stop"


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

        clock.resume(to_millis(START) + 1500, sleep=sleep)
        assert slept == [1.5]

    def test_far_behind_is_an_error_at_once(self) -> None:
        slept: list[float] = []
        with pytest.raises(ClockBehind):
            StoreClock(ManualClock(START)).resume(to_millis(START) + 60_000, sleep=slept.append)
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
        found = search([file], [needle, b"not there at all"], is_over=never)
        assert found == ({needle}, 0)

    def test_what_is_left_is_reported(self, tmp_path: Path) -> None:
        old, new = tmp_path / "old", tmp_path / "new"
        old.write_bytes(b"payload-one payload-two")
        sample = Sample()
        for payload in (b"payload-one", b"payload-two"):
            sample.add(b"k", payload)
        take_sample(sample, [old], is_over=never)
        new.write_bytes(b"payload-two")
        found = check(sample, [new], is_over=never)
        assert (found.payloads, found.payloads_searchable, found.payloads_left) == (2, 2, 1)
        assert not found.clean
        assert check(sample, [old], is_over=never).files_left == ("old",)

    def test_what_was_not_read_is_not_called_clean_without_saying_so(self, tmp_path: Path) -> None:
        sample = Sample()
        sample.add(b"k", b"payload-one")
        file = tmp_path / "f"
        file.write_bytes(b"payload-one")
        found = check(sample, [file], is_over=lambda: True)
        assert (found.payloads_left, found.unchecked) == (0, "the bytes of 1 files: there was no time")

    def test_a_key_is_told_from_one_that_begins_with_it(self, tmp_path: Path) -> None:
        sample, manifest = Sample(), tmp_path / "MANIFEST-1"
        sample.add(b"session:7", b"payload")
        manifest.write_bytes(b"..." + bytes([len(b"session:77") + 8]) + b"session:77" + b"12345678")
        assert check(sample, [], manifests=[manifest], is_over=never).clean
        manifest.write_bytes(b"..." + bytes([len(b"session:7") + 8]) + b"session:7" + b"12345678")
        assert check(sample, [], manifests=[manifest], is_over=never).keys_left == 1

    def test_a_file_removed_meanwhile_holds_nothing(self, tmp_path: Path) -> None:
        assert search([tmp_path / "gone"], [b"payload"], is_over=never) == (set(), 0)
