"""Opening, closing, and everything that makes opening impossible."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import lapse.kv
from lapse.clock import ManualClock
from lapse.errors import (
    ClockBehind,
    ForeignStore,
    InvalidValue,
    MissingExtra,
    NotFound,
    Refused,
    StoreClosed,
    StoreError,
    StoreLocked,
    StoreTooNew,
    UnsupportedUrl,
)
from lapse.kv import Store, Ttl
from lapse.kv.format import DEFAULT_TTL_KEY, FORMAT_KEY
from tests.kv.conftest import START, Kind, Opener

HOUR = timedelta(hours=1)


def overwrite_own_key(opener: Opener, name: bytes, value: bytes) -> None:
    """Change what the store says about itself, behind Lapse's back."""
    if opener.kind.engine == "rocksdb":
        from rocksdict import Options, Rdict

        families = {name: Options(raw_mode=True) for name in Rdict.list_cf(str(opener.path))}
        database = Rdict(str(opener.path), Options(raw_mode=True), column_families=families)
        database.get_column_family("lapse")[name] = value
        database.close()
        return
    from lapse.kv.slatedb.engine import load, meta_key, object_store
    from lapse.kv.url import parse

    async def write() -> None:
        place, path = object_store(parse(opener.url))
        builder = load().DbBuilder(path, place)
        database = await builder.build()
        await database.put(meta_key(name), value)
        await database.shutdown()

    asyncio.run(write())


def write_raw_row(opener: Opener, key: bytes, value: bytes) -> None:
    if opener.kind.engine == "rocksdb":
        from rocksdict import Options, Rdict

        families = {name: Options(raw_mode=True) for name in Rdict.list_cf(str(opener.path))}
        database = Rdict(str(opener.path), Options(raw_mode=True), column_families=families)
        database[key] = value
        database.close()
        return
    from lapse.kv.slatedb.engine import load, object_store
    from lapse.kv.url import parse

    async def write() -> None:
        place, path = object_store(parse(opener.url))
        database = await load().DbBuilder(path, place).build()
        await database.put(key, value)
        await database.shutdown()

    asyncio.run(write())


def make_foreign_store(kind: Kind, path: Path) -> None:
    """A store with three rows that Lapse did not write."""
    if kind.engine == "rocksdb":
        from rocksdict import Options, Rdict

        database = Rdict(str(path), Options(raw_mode=True))
        for key in (b"a", b"b", b"c"):
            database[key] = b"theirs"
        database.close()
        return
    from lapse.kv.slatedb.engine import load, object_store
    from lapse.kv.url import parse

    async def write() -> None:
        slatedb = load()
        place, name = object_store(parse(f"slatedb:{path}"))
        database = await slatedb.DbBuilder(name, place).build()
        for key in (b"a", b"b", b"c"):
            await database.put(key, b"theirs")
        await database.shutdown()

    asyncio.run(write())


def test_rows_survive_a_restart_with_their_times(opener: Opener, clock: ManualClock) -> None:
    store = opener()
    store.put(b"a", b"1", ttl="1 hour")
    store.put(b"b", b"2", ttl="3 hours")
    store.close()
    clock.advance(HOUR)
    store = opener()
    assert list(store.scan()) == [(b"b", b"2")]
    meta = store.meta(b"b")
    assert meta is not None
    assert (meta.created, meta.remaining) == (START, 2 * HOUR)


class TestDefaultTtl:
    def test_it_is_stored_and_old_rows_keep_theirs(self, opener: Opener, clock: ManualClock) -> None:
        store = opener()
        assert store.default_ttl == timedelta(days=1)
        store.put(b"day", b"v")
        store.set_default_ttl("1 hour")
        store.put(b"hour", b"v")
        store.close()
        store = opener()
        assert store.default_ttl == HOUR
        clock.advance(HOUR)
        assert store.get(b"hour") is None
        assert store.get(b"day") == b"v"

    def test_opening_with_another_one_changes_it(self, opener: Opener) -> None:
        opener().close()
        opener(default_ttl="2 months").close()
        assert opener().default_ttl == "2 months"

    def test_none_means_that_rows_stay(self, opener: Opener) -> None:
        store = opener()
        store.set_default_ttl(Ttl.NO_EXPIRY)
        assert store.default_ttl is None
        store.put(b"k", b"v")
        meta = store.meta(b"k")
        assert meta is not None
        assert meta.expires is None

    @pytest.mark.parametrize("bad", ["0 days", "-1 day", "5", timedelta(-1), 60, Ttl.DEFAULT, "9999 years"])
    def test_bad_ones_are_refused_and_nothing_is_made(self, opener: Opener, bad: Any) -> None:
        with pytest.raises(InvalidValue):
            opener(default_ttl=bad)
        assert not opener.path.exists()

    def test_an_unreadable_one_is_an_error(self, opener: Opener) -> None:
        opener().close()
        overwrite_own_key(opener, DEFAULT_TTL_KEY, b"soon")
        with pytest.raises(StoreError, match="default TTL"):
            opener()


class TestClock:
    def test_a_clock_behind_the_mark_is_an_error(self, opener: Opener, clock: ManualClock) -> None:
        store = opener()
        store.put(b"k", b"v")
        clock.advance(HOUR)
        store.get(b"k")
        store.close()
        clock.set(START)
        with pytest.raises(ClockBehind, match="2030-01-01T01:00:00"):
            opener()
        clock.set(START + HOUR)
        assert opener().get(b"k") == b"v"

    def test_a_clock_a_little_behind_is_waited_for(self, opener: Opener, clock: ManualClock) -> None:
        opener().close()
        clock.set(START - timedelta(milliseconds=20))
        with pytest.raises(ClockBehind):  # a manual clock does not come nearer by waiting
            opener()

    def test_the_clock_never_runs_backwards_while_open(self, store: Store, clock: ManualClock) -> None:
        store.put(b"k", b"v", ttl="1 hour")
        clock.advance(HOUR)
        assert store.get(b"k") is None
        clock.set(START)
        assert store.get(b"k") is None
        store.put(b"new", b"v", ttl="1 hour")
        meta = store.meta(b"new")
        assert meta is not None
        assert meta.created == START + HOUR

    def test_reading_in_the_past_is_possible_read_only(self, opener: Opener, clock: ManualClock) -> None:
        opener().close()
        clock.set(START - HOUR)
        assert list(opener(read_only=True).scan()) == []


class TestWhoMayOpen:
    def test_two_writers_are_one_too_many(self, opener: Opener, store: Store) -> None:
        store.put(b"k", b"v")
        with pytest.raises(StoreLocked):
            opener()
        store.put(b"k", b"w")
        assert store.get(b"k") == b"w"

    def test_readers_beside_a_writer(self, opener: Opener, store: Store) -> None:
        store.put(b"k", b"v")
        store.flush()
        reader = opener(read_only=True)
        assert reader.get(b"k") == b"v"
        assert list(reader.scan()) == [(b"k", b"v")]
        for write in (
            lambda: reader.put(b"k", b"w"),
            lambda: reader.delete(b"k"),
            lambda: reader.touch(b"k"),
            lambda: reader.put_many([(b"k", b"w")]),
            lambda: reader.purge(),
            lambda: reader.set_default_ttl("1 day"),
            lambda: reader.batch(),
        ):
            with pytest.raises(Refused, match="read-only"):
                write()
        assert reader.preview().rows == 1

    def test_a_store_that_is_not_there(self, opener: Opener) -> None:
        for options in ({"read_only": True}, {"create": False}):
            with pytest.raises(NotFound):
                opener(**options)
        assert not opener.path.exists()

    def test_folders_on_the_way_are_made_only_for_a_new_store(self, opener: Opener, tmp_path: Path) -> None:
        opener.path = tmp_path / "a" / "b" / "store"
        with pytest.raises(NotFound):
            opener(read_only=True)
        assert list(tmp_path.iterdir()) == []
        opener().put(b"k", b"v")
        assert opener.path.is_dir()

    def test_a_directory_with_other_things_in_it(self, opener: Opener) -> None:
        opener.path.mkdir()
        (opener.path / "thesis.txt").write_text("mine")
        with pytest.raises(ForeignStore, match="not empty"):
            opener(default_ttl="1 day")
        assert [file.name for file in opener.path.iterdir()] == ["thesis.txt"]

    def test_a_store_written_without_lapse(self, opener: Opener, kind: Kind) -> None:
        make_foreign_store(kind, opener.path)
        with pytest.raises(ForeignStore, match="not written by Lapse"):
            opener()
        with pytest.raises(ForeignStore, match="not written by Lapse"):
            opener(read_only=True)

    def test_a_format_from_the_future(self, opener: Opener) -> None:
        opener().close()
        overwrite_own_key(opener, FORMAT_KEY, b'{"version": 99, "engine": "x"}')
        for read_only in (False, True):
            with pytest.raises(StoreTooNew, match="99"):
                opener(read_only=read_only)

    def test_a_format_that_was_never_released(self, opener: Opener) -> None:
        opener().close()
        overwrite_own_key(opener, FORMAT_KEY, b'{"version": 1, "engine": "x", "created_ms": 1}')
        with pytest.raises(StoreError, match="never released"):
            opener()

    def test_a_description_that_is_no_description(self, opener: Opener) -> None:
        opener().close()
        overwrite_own_key(opener, FORMAT_KEY, b"\x00\x01")
        with pytest.raises(StoreError):
            opener()

    def test_after_a_failed_open_the_store_is_not_locked(self, opener: Opener, clock: ManualClock) -> None:
        opener().close()
        clock.set(START - HOUR)
        with pytest.raises(ClockBehind):
            opener()
        clock.set(START)
        opener().close()

    def test_after_a_failed_open_the_engine_is_shut_down(self, opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
        """Late, after the engine has a writer, which works in threads of its own."""
        opener().close()
        overwrite_own_key(opener, DEFAULT_TTL_KEY, b"soon")
        closing = count_closing(opener.kind, monkeypatch)
        with pytest.raises(StoreError, match="default TTL"):
            opener()
        assert closing["opened"] == closing["closed"] > 0
        overwrite_own_key(opener, DEFAULT_TTL_KEY, b"1 hour")
        assert opener().default_ttl == HOUR


def count_closing(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the engine is opened for writing, and closed, from now on."""
    counted = Counter[str]()
    if kind.engine == "rocksdb":
        from lapse.kv.rocksdb.engine import Handle
        from lapse.kv.rocksdb.opening import open_database as make

        close = Handle.close
        monkeypatch.setattr(Handle, "close", lambda self: counted.update(["closed"]) or close(self))
        # The database and Lapse's family in it, both of which are closed.
        place = "lapse.kv.rocksdb.opening.open_database"
        monkeypatch.setattr(place, lambda *args: counted.update(opened=2) or make(*args))
        return counted
    from slatedb import uniffi as slatedb

    build, shutdown = slatedb.DbBuilder.build, slatedb.Db.shutdown
    monkeypatch.setattr(slatedb.DbBuilder, "build", lambda self: counted.update(["opened"]) or build(self))
    monkeypatch.setattr(slatedb.Db, "shutdown", lambda self: counted.update(["closed"]) or shutdown(self))
    return counted


def test_a_row_that_is_no_row_is_an_error_and_not_purged(opener: Opener) -> None:
    store = opener()
    store.put(b"good", b"v")
    store.put_many([(b"many-%d" % i, b"v") for i in range(2000)])  # a purge reads what it does not know by its key
    store.close()
    write_raw_row(opener, b"short", b"\x02\x00\x7fabc")  # a live row as far as it goes
    write_raw_row(opener, b"future", b"\x07" + b"\0" * 30)
    store = opener()
    with pytest.raises(StoreError, match="too few for a header"):
        store.get(b"short")
    with pytest.raises(StoreTooNew):
        store.get(b"future")
    with pytest.raises(StoreError):
        list(store.scan())
    opener.clock.advance(timedelta(days=2))
    store.delete(b"future")
    result = store.purge()
    assert result.purged == 2001
    assert result.reasons == ("1 rows cannot be read and were left alone",)
    store.delete(b"short")
    assert list(store.scan(include_expired=True)) == []


def test_a_closed_store_says_so(store: Store) -> None:
    get = store.get
    store.close()
    store.close()
    for call in (
        lambda: get(b"k"),
        lambda: store.get(b"k"),
        lambda: store.put(b"k", b"v"),
        lambda: store.scan(),
        lambda: store.purge(),
        lambda: store.snapshot(),
    ):
        with pytest.raises(StoreClosed):
            call()


@pytest.mark.parametrize("module", ["rocksdict", "slatedb.uniffi"])
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    engine = "rocksdb" if module == "rocksdict" else "slatedb"
    with pytest.raises(MissingExtra, match=r"pip install '\.\[kv\]'"):
        lapse.kv.open(f"{engine}:{tmp_path / 'store'}")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "redis:/x",
        "rocksdb:",
        "rocksdb:memory:",
        "slatedb:ftp://x/y",
        "slatedb:s3://b",
        "rocksdb:s3://b/c",
    ],
)
def test_urls_that_no_engine_serves(url: str) -> None:
    with pytest.raises(UnsupportedUrl):
        lapse.kv.open(url)


def test_in_memory() -> None:
    clock = ManualClock(datetime(2020, 1, 1, tzinfo=UTC))  # long before the engine's own clock
    with lapse.kv.open("slatedb:memory:", default_ttl="1 hour", clock=clock) as store:
        store.put(b"k", b"v")
        store.flush()
        assert store.get(b"k") == b"v"
        assert store.purge(within="10 seconds").purged == 0
        assert store.get(b"k") == b"v"
        clock.advance(HOUR)
        result = store.purge(within="10 seconds")
        assert (result.purged, result.complete) == (1, True)
        assert store.get(b"k", include_expired=True) is None
