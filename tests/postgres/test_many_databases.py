"""One worker for many databases: one that is down, hangs or comes back delays no other."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from select import select
from threading import Event, Thread

import psycopg
import pytest

from lapse.app import Lapse
from lapse.app.databases import Databases, Fleet
from lapse.runner.events import NullListener
from lapse.runner.multi import LOOKERS, TELLERS, MultiWorker
from tests.backends import BACKENDS
from tests.backends.postgres import Cluster, PostgresBackend
from tests.conformance.harness import Harness
from tests.postgres.conftest import VERSIONS
from tests.serving import Process
from tests.serving import get as fetch

DELAY_SECONDS = 5.0
"""How late every answer of the lagging server is. A look takes several, so one that waited for it would be later."""
LATE_SECONDS = 15.0
"""What a look at the other server may take on a machine under load."""


@pytest.fixture
def other() -> Iterator[Cluster]:
    """A second server, to be stopped."""
    backend = BACKENDS[VERSIONS[0]]
    if backend.why_not() is not None:
        pytest.skip(backend.why_not() or "")
    assert issubclass(backend, PostgresBackend)
    binaries = backend.binaries()
    assert binaries is not None
    cluster = Cluster(binaries)
    yield cluster
    cluster.close()


class Line:
    """A connection to a server on which every answer can be delayed."""

    def __init__(self, port: int) -> None:
        self.delay_s = 0.0
        self._target = port
        self._closing = Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._threads = [Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            near, _ = self._server.accept()
            if self._closing.is_set():
                near.close()
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            self._threads.append(Thread(target=self._pass_on, args=(near, far)))
            self._threads[-1].start()

    def _pass_on(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError), near, far:
            while not self._closing.is_set():
                ready, _, _ = select([near, far], [], [], 0.1)
                for end in ready:
                    data = end.recv(65536)
                    if not data:
                        return
                    if end is far and self.delay_s:
                        self._closing.wait(self.delay_s)
                    (far if end is near else near).sendall(data)

    def close(self) -> None:
        self._closing.set()
        socket.create_connection(("127.0.0.1", self.port)).close()
        for thread in self._threads:
            thread.join()
        self._server.close()


def _declare(url: str) -> None:
    with Lapse(url) as database:
        database.execute(
            "CREATE TABLE events (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, ts TIMESTAMPTZ)"
            " WITH (ttl_expiration_expression = 'ts', ttl_grace = '0 seconds')"
        )


def _expire(url: str, meanwhile: Callable[[], object] = lambda: None) -> float:
    """One more row expires, the table is made due; returns the seconds until the row is gone."""
    with Lapse(url) as database:
        database.execute("INSERT INTO events (ts) VALUES (now() - interval '1 hour')")
        database.request_run("events")
    started = time.monotonic()
    _until(lambda: (meanwhile(), _count(url) == 0)[1])
    return time.monotonic() - started


def _count(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM events").fetchone()
    return int(row[0]) if row else -1


def _until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError("did not happen")


@contextmanager
def _serving(tmp_path: Path, text: str, **bounds: int) -> Iterator[Fleet]:
    path = tmp_path / "lapse.toml"
    path.write_text(text, encoding="utf-8")
    with closing(Fleet(Databases.read(path), lambda metrics: NullListener())) as fleet:
        worker = MultiWorker(fleet.sources, **bounds, on_gone=fleet.forget)
        serving = Thread(target=worker.serve)
        serving.start()
        try:
            yield fleet
        finally:
            worker.stop()
            serving.join()


def test_a_server_that_stops_restarts_and_lags_delays_no_other(h: Harness, other: Cluster, tmp_path: Path) -> None:
    _declare(h.url)
    _declare(other.url())
    with closing(Line(other.port)) as line:
        lagging = f"postgresql://postgres@127.0.0.1:{line.port}/postgres"
        text = f"[databases.good]\nurl = '{h.url}'\n[databases.bad]\nurl = '{lagging}'\n"
        with _serving(tmp_path, text) as fleet:
            _until(lambda: {each.name for each in fleet.served} == {"good", "bad"})
            assert _expire(h.url) < LATE_SECONDS
            _expire(other.url())
            other.stop(signal.SIGQUIT)
            bad = fleet.find("bad")
            assert bad is not None
            _until(lambda: bad.member.worker.is_unreachable)
            assert _expire(h.url) < LATE_SECONDS
            line.delay_s = DELAY_SECONDS
            other.start()
            for _ in range(3):
                assert _expire(h.url) < LATE_SECONDS
            line.delay_s = 0.0
            _expire(other.url())


def test_a_query_lists_databases_that_come_and_go(h: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lapse.runner.multi.LIST_SECONDS", 0.2)
    others = [h.backend.create() for _ in range(3)]
    names = [url.rpartition("/")[2] for url in others]
    h.sql("CREATE TABLE shards (name TEXT)")
    h.sql(f"INSERT INTO shards VALUES ('{names[0]}'), ('{names[1]}')")
    for url in others:
        _declare(url)
    try:
        text = f"[databases.shard]\nurl = '{h.url}'\nquery = 'SELECT name FROM shards'\n"
        with _serving(tmp_path, text, threads=2, connections=12) as fleet:
            _until(lambda: len(fleet.served) == 2)
            for url in others[:2]:
                _expire(url)
            h.sql(f"UPDATE shards SET name = '{names[2]}' WHERE name = '{names[0]}'")
            _until(lambda: [each.name for each in fleet.served] == sorted(f"shard/{name}" for name in names[1:]))
            _expire(others[2])
            h.sql("DROP TABLE shards")
            _until(lambda: "shard" in fleet.problems)
            _expire(others[1])
            assert len(fleet.served) == 2
    finally:
        for url in others:
            h.backend.drop(url)


def test_threads_and_connections_are_bounded(h: Harness, tmp_path: Path) -> None:
    others = [h.backend.create() for _ in range(6)]
    text = "".join(f"[databases.d{number}]\nurl = '{url}'\n" for number, url in enumerate(others))
    for url in others:
        _declare(url)
    before = threading.active_count()
    try:
        with _serving(tmp_path, text, threads=2, connections=14) as fleet, psycopg.connect(h.url) as watcher:
            watcher.autocommit = True
            watched: list[int] = []

            def watch() -> None:
                row = watcher.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'lapse' AND datname = ANY (%s)",
                    ([url.rpartition("/")[2] for url in others],),
                ).fetchone()
                assert row is not None
                watched.append(row[0])

            _until(lambda: len(fleet.served) == 6)
            for url in others:
                _expire(url, meanwhile=watch)
            for _ in range(20):
                watch()
                time.sleep(0.1)
            assert 1 <= max(watched) <= 14, watched
            # The one that serves, the one that lists, those that look and work, and services of what is at work.
            assert threading.active_count() - before <= 2 + LOOKERS + TELLERS + 2 * (1 + 3) + 1
    finally:
        for url in others:
            h.backend.drop(url)


def test_console_and_metrics_show_every_database(h: Harness, tmp_path: Path) -> None:
    _declare(h.url)
    path = tmp_path / "lapse.toml"
    path.write_text(
        f"[databases.good]\nurl = '{h.url}'\n[databases.bad]\nurl = 'postgresql://x:$SECRET@127.0.0.1:1/x'\n",
        encoding="utf-8",
    )
    process = Process("worker", "--config", str(path), "--listen", "127.0.0.1:0", SECRET="hunter2hunter2")
    try:
        address = process.address()
        said = process.wait_for("the database is unreachable")
        assert "bad: the database is unreachable" in said
        on_time = 'lapse_ttl_tables{database="good",health="on_time"} 1.0'
        _until(lambda: on_time in fetch(f"{address}metrics")[1])
        text = fetch(f"{address}metrics")[1]
        assert 'lapse_ttl_database_up{database="bad"} 0.0' in text
        assert 'lapse_ttl_database_up{database="good"} 1.0' in text
        assert fetch(f"{address}readyz")[0] == 200
        listed = fetch(address)[1]
        assert all(word in listed for word in ("good", "bad", "unreachable", "on time", 'href="/databases/good/"'))
        page = fetch(f"{address}databases/good/")[1]
        assert "events" in page
        assert 'href="/databases/good/tables/' in page
        assert fetch(f"{address}databases/good/api/v1/tables")[0] == 200
        assert fetch(f"{address}databases/nothing/")[0] == 404
        assert fetch(f"{address}databases/bad/")[0] == 503
        assert "hunter2" not in text + listed + page + "".join(process.lines)
    finally:
        assert process.stop() == 0
