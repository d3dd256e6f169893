"""Databases on the private MariaDB and MySQL, and a MyRocks whose clock the tests move."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lapse.app import Lapse
from tests.backends import BACKENDS
from tests.backends.mariadb import MariadbBackend, MariadbServer, has_rocksdb, why_no_server
from tests.conformance.harness import Harness
from tests.conftest import Servers

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")


@pytest.fixture(scope="session", params=[name for name in ("mariadb", "mysql") if name in BACKENDS])
def backend(request: pytest.FixtureRequest, servers: Servers) -> MariadbBackend:
    found = servers.get(request.param)
    assert isinstance(found, MariadbBackend)
    return found


@pytest.fixture
def h(backend: MariadbBackend) -> Iterator[Harness]:
    with Harness.fresh(backend) as harness:
        yield harness


@pytest.fixture
def server(backend: MariadbBackend) -> MariadbServer:
    return backend.server


class MovableServer(MariadbServer):
    """A MariaDB with MyRocks that reads its clock from a file."""

    def __init__(self, folder: Path) -> None:
        self._clock = folder / "faketime"
        self.move("+0")
        super().__init__(
            rocksdb=True,
            environment={
                "LD_PRELOAD": str(FAKETIME),
                "FAKETIME_TIMESTAMP_FILE": str(self._clock),
                "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            },
        )

    def move(self, offset: str) -> None:
        """`+25h` ahead of the real time, all at once."""
        fresh = self._clock.with_suffix(".new")
        fresh.write_text(offset)
        fresh.rename(self._clock)


@pytest.fixture(scope="session")
def rocks_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MovableServer]:
    reason = why_no_server()
    if reason is None and not has_rocksdb():
        reason = "the plugin ha_rocksdb is not installed"
    if reason is None and not FAKETIME.exists():
        reason = "faketime is not installed"
    if reason is not None:
        pytest.skip(reason)
    started = MovableServer(tmp_path_factory.mktemp("clock"))
    yield started
    started.close()


@pytest.fixture
def rocks(rocks_server: MovableServer) -> Iterator[Callable[[], Lapse]]:
    """Opens a fresh database of that server; its clock is the server's own."""
    rocks_server.move("+0")
    name = f"rocks_{uuid.uuid4().hex[:10]}"
    rocks_server.execute(f"CREATE DATABASE {name}")
    opened: list[Lapse] = []

    def open_database() -> Lapse:
        opened.append(Lapse(f"{rocks_server.url}/{name}"))
        return opened[-1]

    yield open_database
    for each in opened:
        each.close()
    rocks_server.execute(f"DROP DATABASE {name}")
