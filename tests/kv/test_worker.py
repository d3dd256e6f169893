"""`lapse worker` on key-value stores: a process of its own, real stores, signals, metrics over HTTP."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import lapse
import lapse.kv
from lapse.cli import main
from tests.serving import TOKEN, WAIT_S, Process, get, serving

pytest.importorskip("slatedb", reason="needs the extra kv")
pytest.importorskip("rocksdict", reason="needs the extra kv")

STOP_S = 5.0
"""Within which a worker stops, with room for a busy machine."""
ROWS = [(b"k%03d" % i, b"value %03d" % i) for i in range(100)]


def working(*arguments: str, **environment: str) -> AbstractContextManager[Process]:
    return serving("worker", *arguments, "--log-format", "json", **environment)


def metric(address: str, name: str, store: str) -> float:
    for family in text_string_to_metric_families(get(f"{address}metrics")[1]):
        for sample in family.samples:
            if sample.name == name and sample.labels == {"store": store}:
                return sample.value
    raise AssertionError(f"{name} of {store} is not exposed")


@pytest.fixture
def urls(tmp_path: Path) -> list[str]:
    """One store of each engine, with a hundred rows that have expired and one that has not."""
    urls = [f"rocksdb:{tmp_path / 'r'}", f"slatedb:{tmp_path / 's'}"]
    for url in urls:
        with lapse.kv.open(url, snapshot_lifetime="1 ms") as store:
            store.put_many(ROWS, ttl="1 second")
            store.put(b"stays", b"v", ttl="1 day")
    time.sleep(1.1)  # SlateDB's compaction knows no clock but the system's
    return urls


def options(urls: list[str]) -> list[str]:
    return [word for url in urls for word in ("--kv", url)]


def test_stores_are_purged_without_a_database(urls: list[str]) -> None:
    with working(*options(urls), "--listen", "127.0.0.1:0") as worker:
        address = worker.address()
        for url in urls:
            worker.wait_for(f"store {url}: ")
        assert get(f"{address}healthz") == (200, "ok\n")
        assert get(f"{address}readyz") == (200, "ready\n")
        assert metric(address, "lapse_kv_purged_rows_total", urls[0]) == len(ROWS)
        for url in urls:
            assert metric(address, "lapse_kv_backlog_rows", url) == 0
            assert metric(address, "lapse_kv_oldest_expired_timestamp_seconds", url) == 0
            assert metric(address, "lapse_kv_purge_errors_total", url) == 0
            assert time.time() - metric(address, "lapse_kv_last_purge_timestamp_seconds", url) < WAIT_S
    worker.wait_for("has stopped")
    for url in urls:
        with lapse.kv.open(url, read_only=True) as store:
            assert [key for key, _ in store.scan(include_expired=True)] == [b"stays"]


def test_tables_and_stores_share_one_worker_and_its_registry(urls: list[str], tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'app.db'}"
    with lapse.open(database) as db:
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, at TEXT)")
        db.execute("INSERT INTO t VALUES (1, '2020-01-01 00:00:00'), (2, '2999-01-01 00:00:00')")
        # Without the grace period, which a worker would let pass.
        rest = "ttl_guard = 'off', ttl_grace = '0 seconds'"
        db.execute(f"ALTER TABLE t SET (ttl_expiration_expression = 'at + INTERVAL ''1 day''', {rest})")
    with working(database, *options(urls), "--listen", "127.0.0.1:0") as worker:
        address = worker.address()
        worker.wait_for("1 rows deleted")
        until_s = time.monotonic() + WAIT_S
        while any(word in get(f"{address}api/v1/stores")[1] for word in ("waiting", "purging")):
            assert time.monotonic() < until_s
            time.sleep(0.1)
        assert "lapse_ttl_rows_deleted_total" in get(f"{address}metrics")[1]
        assert get(address)[0] == 200, "the console is there, too"
        shown = get(f"{address}stores")[1]
        assert all(url in shown for url in urls)
        assert 'href="/stores"' in get(address)[1]
        reports = {each["store"]: each for each in json.loads(get(f"{address}api/v1/stores")[1])}
        assert "T" in reports[urls[0]]["at"]
        assert reports[urls[0]]["state"] == "purged" and reports[urls[0]]["purged"] == len(ROWS)
    worker.wait_for("has stopped")


def test_a_store_open_elsewhere_is_reported_and_tried_again(urls: list[str]) -> None:
    with working(*options(urls), "--kv-every", "200 ms", "--listen", "127.0.0.1:0") as worker:
        address = worker.address()
        for url in urls:
            worker.wait_for(f"store {url}: ")
        for url in urls:
            with _open_between_purges(url):
                said = worker.wait_for(f"store {url} was not purged and is tried again")
                assert f"already open for writing (process {os.getpid()})" in said
                assert metric(address, "lapse_kv_purge_errors_total", url) >= 1
            worker.wait_for(f"store {url}: ")


@contextmanager
def _open_between_purges(url: str) -> Iterator[lapse.kv.Store]:
    until_s = time.monotonic() + WAIT_S
    while True:
        try:
            store = lapse.kv.open(url)
            break
        except lapse.LapseError:  # the worker has it
            assert time.monotonic() < until_s
            time.sleep(0.01)
    with store:
        yield store


def test_a_store_that_is_not_there_does_not_stop_the_others(urls: list[str], tmp_path: Path) -> None:
    missing = f"rocksdb:{tmp_path / 'missing'}"
    with working("--kv", missing, *options(urls[:1]), "--listen", "127.0.0.1:0") as worker:
        address = worker.address()
        assert "there is no store" in worker.wait_for(f"store {missing} was not purged")
        assert math.isnan(metric(address, "lapse_kv_backlog_rows", missing)), "it was not looked at"
        worker.wait_for(f"store {urls[0]}: {len(ROWS)} rows purged")
    assert not (tmp_path / "missing").exists()


def test_a_purge_at_hand_is_stopped_and_the_rest_left_for_the_next(tmp_path: Path) -> None:
    """At this rate it would take days. On SlateDB with the system's clock rows do not go one by one."""
    url = f"rocksdb:{tmp_path / 'store'}"
    with lapse.kv.open(url) as store:
        store.put_many([(b"k%05d" % i, b"value") for i in range(5000)], ttl="1 ms")
        store.put(b"stays", b"v", ttl="9 days")
    with working("--kv", url, "--kv-rows-per-second", "0.01") as worker:
        _wait_for_fewer_rows(url, 5001)
        began_s = time.monotonic()
        assert worker.stop() == 0
        assert time.monotonic() - began_s < STOP_S
    assert "the purge was asked to stop" in worker.wait_for(f"store {url}: ")
    worker.wait_for("has stopped")
    with lapse.kv.open(url) as store:
        assert list(store.scan()) == [(b"stays", b"v")]
        left = store.preview().expired
        assert left is not None and 0 < left < 5000
        assert store.purge().complete
        assert [key for key, _ in store.scan(include_expired=True)] == [b"stays"]


def _wait_for_fewer_rows(url: str, rows: int) -> None:
    until_s = time.monotonic() + WAIT_S
    while True:
        with lapse.kv.open(url, read_only=True) as store:
            if len(list(store.scan(include_expired=True))) < rows:
                return
        assert time.monotonic() < until_s
        time.sleep(0.1)


def test_off_loopback_the_metrics_need_the_token(urls: list[str]) -> None:
    with working(*options(urls[:1]), "--listen", "0.0.0.0:0", LAPSE_CONSOLE_TOKEN=TOKEN) as worker:
        address = worker.address().replace("0.0.0.0", "127.0.0.1")
        assert get(f"{address}metrics")[0] == 401
        assert get(f"{address}metrics", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert get(f"{address}healthz")[0] == 200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kv", "slatedb:memory:"], "must not be a store in memory"),
        (["--kv", "postgresql://x"], "not a key-value store"),
        (["--kv", ""], "not a key-value store"),
        (["--kv", "rocksdb:/x", "--kv", "rocksdb:/x/"], "must not name a store twice"),
        (["--kv", "rocksdb:/x", "--kv-every", "5"], "has no unit"),
        (["--kv", "rocksdb:/x", "--kv-every", "0 s"], "longer than zero"),
        (["--kv", "rocksdb:/x", "--kv-every", "9000 years"], "must be at most"),
        (["--kv", "rocksdb:/x", "--listen", "0.0.0.0:0"], "a token is required"),
        (["--kv", "rocksdb:/x", "--allow-actions"], "needs a database"),
        (["rocksdb:/x"], "--kv rocksdb:/x"),
        (["sqlite://", "--kv-every", "1 hour"], "name them with --kv"),
        (["sqlite://", "--kv-rows-per-second", "5"], "name them with --kv"),
        (["--kv", "rocksdb:/x", "--kv-rows-per-second", "0"], "must be more than 0"),
        ([], "which database?"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAPSE_URL", raising=False)
    assert main(["worker", *arguments]) == 2
    assert words in capsys.readouterr().err
