"""Whatever happens to workers and servers: no live row is lost, no expired row stays, the counts are true."""

from __future__ import annotations

import os

import pytest

from tests.backends import BACKENDS
from tests.chaos.driver import Books, Chaos, Plan
from tests.conftest import Servers

SHORT = Plan(seconds=10, tables=5, workers=2)
LONG = Plan(seconds=float(os.environ.get("LAPSE_CHAOS_SECONDS", "240")), tables=50, workers=4, clients=6)


def _check(books: Books) -> None:
    assert books.stuck == []
    assert books.too_early == 0
    assert books.expired_left == 0
    assert books.left == books.inserted - books.by_clients - books.by_ttl
    assert books.counted == books.by_ttl
    assert books.by_ttl > 100
    assert books.by_clients > 0


@pytest.mark.parametrize("name", list(BACKENDS))
def test_a_short_storm(servers: Servers, name: str) -> None:
    backend = servers.get(name)
    url = backend.create()
    try:
        _check(Chaos(backend, url, SHORT).run())
    finally:
        backend.drop(url)


@pytest.mark.slow
@pytest.mark.timeout(LONG.seconds + 600)
@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "sqlite"])
def test_a_long_storm(servers: Servers, name: str) -> None:
    backend = servers.get(name)
    url = backend.create()
    chaos = Chaos(backend, url, LONG)
    try:
        books = chaos.run()
        print(name, chaos.actions, books)
        _check(books)
    finally:
        backend.drop(url)
