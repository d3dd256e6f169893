"""The service that purges a list of stores."""

from __future__ import annotations

import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import lapse.kv
from lapse.clock import ManualClock
from lapse.errors import InvalidValue, MissingExtra, NotFound, StoreLocked, UnsupportedUrl
from lapse.kv import Purger, PurgerConfig

pytest.importorskip("slatedb", reason="needs the extra kv")
pytest.importorskip("rocksdict", reason="needs the extra kv")

HOUR = timedelta(hours=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2030, 1, 1, tzinfo=UTC))


@pytest.fixture
def urls(tmp_path: Path, clock: ManualClock) -> tuple[str, ...]:
    urls = (f"rocksdb:{tmp_path / 'r'}", f"slatedb:{tmp_path / 's'}")
    for url in urls:
        with lapse.kv.open(url, clock=clock, default_ttl="1 hour") as store:
            store.put_many([(b"k%d" % i, b"v") for i in range(10)])
    return urls


def test_due_stores_are_purged_and_others_wait(
    urls: tuple[str, ...], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = CollectorRegistry()
    monkeypatch.setattr("random.random", lambda: 0.5)
    purger = Purger(PurgerConfig(stores=urls, every="1 hour"), clock=clock, registry=registry)
    assert [result.purged for result in purger.run_once().purged.values()] == [0, 0]
    clock.advance(HOUR / 2)
    run = purger.run_once()
    assert (run.purged, run.not_due) == ({}, urls)
    assert run.next_due == clock.now() + HOUR * 0.45
    clock.advance(HOUR / 2)
    assert [result.purged for result in purger.run_once().purged.values()] == [10, 10]
    assert registry.get_sample_value("lapse_kv_purged_rows_total", {"store": urls[0]}) == 10


def test_a_store_that_fails_does_not_stop_the_others(urls: tuple[str, ...], clock: ManualClock) -> None:
    clock.advance(HOUR)
    missing = "rocksdb:/nonexistent/store"
    with lapse.kv.open(urls[0], clock=clock):
        run = Purger(PurgerConfig(stores=(missing, *urls)), clock=clock).run_once()
    assert isinstance(run.failed[missing], NotFound)
    assert isinstance(run.failed[urls[0]], StoreLocked)
    assert run.purged[urls[1]].purged == 10


def test_stores_that_the_caller_holds_open(urls: tuple[str, ...], clock: ManualClock) -> None:
    clock.advance(HOUR)
    with lapse.kv.open(urls[0], clock=clock) as store:
        purger = Purger(
            PurgerConfig(stores=urls[:1], within="10 seconds"),
            clock=clock,
            open_store=lambda url: store,
            close_after=False,
        )
        result = purger.run_once().purged[urls[0]]
        assert (result.purged, result.complete) == (10, True)
        assert store.get(b"k1") is None


def test_it_stops_when_told(urls: tuple[str, ...], clock: ManualClock) -> None:
    stop, opened = threading.Event(), list[str]()

    def open_and_stop(url: str) -> lapse.kv.Store:
        opened.append(url)
        if url == urls[-1]:
            stop.set()
        return lapse.kv.open(url, clock=clock)

    Purger(PurgerConfig(stores=urls), clock=clock, open_store=open_and_stop).run_forever(stop)
    assert opened == list(urls)


def test_it_stops_between_two_stores(urls: tuple[str, ...], clock: ManualClock) -> None:
    stop = threading.Event()

    def open_and_stop(url: str) -> lapse.kv.Store:
        stop.set()
        return lapse.kv.open(url, clock=clock)

    run = Purger(PurgerConfig(stores=urls), clock=clock, open_store=open_and_stop).run_once(stop=stop)
    assert (list(run.purged), run.failed) == ([urls[0]], {})


def test_an_error_that_nobody_foresaw_is_reported_with_its_trace(
    urls: tuple[str, ...], clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()

    def broken(url: str) -> lapse.kv.Store:
        if url == urls[0]:
            raise RuntimeError("unforeseen")
        return lapse.kv.open(url, clock=clock)

    purger = Purger(PurgerConfig(stores=urls), clock=clock, registry=registry, open_store=broken)
    with caplog.at_level("INFO", logger="lapse.kv.purger"):
        run = purger.run_once()
    assert (list(run.failed), list(run.purged)) == ([urls[0]], [urls[1]])
    assert registry.get_sample_value("lapse_kv_purge_errors_total", {"store": urls[0]}) == 1
    assert "tried again next time: unforeseen" in caplog.text and "Traceback" in caplog.text


def test_without_the_engine_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(MissingExtra, match=r"\.\[kv\]"):
        Purger(PurgerConfig(stores=("rocksdb:/x",)))


@pytest.mark.parametrize("bad", [{"every": "0 s"}, {"every": "5"}, {"every": "9000 years"}])
def test_bad_configurations(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidValue):
        PurgerConfig(stores=(), **bad)  # type: ignore[arg-type]


def test_bad_store_lists() -> None:
    with pytest.raises(InvalidValue, match="memory"):
        PurgerConfig(stores=("slatedb:memory:",))
    with pytest.raises(InvalidValue, match="twice"):
        PurgerConfig(stores=("rocksdb:/x", "rocksdb:/x"))
    with pytest.raises(UnsupportedUrl):
        PurgerConfig(stores=("postgresql://x",))
