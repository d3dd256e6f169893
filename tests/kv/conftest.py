"""Every test in this folder runs for every engine, unless it says which feature it needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import lapse.kv
from lapse.clock import ManualClock
from lapse.kv import Store
from lapse.kv.rocksdb.store import RocksStore
from lapse.kv.slatedb.engine import load
from tests.kv import s3_server
from tests.kv.s3_server import KEY_ID, SECRET, Bucket

pytest.importorskip("slatedb", reason="needs the extra kv")
pytest.importorskip("rocksdict", reason="needs the extra kv")

START = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """`transactions`: has them."""

    engine: str
    transactions: bool = False


KINDS = [
    Kind(engine="rocksdb"),
    Kind(engine="slatedb", transactions=True),
]


def settle(store: Store) -> None:
    """Move the rows to table files, as time would."""
    adapted: Any = store
    if isinstance(adapted._inner, RocksStore):
        adapted._inner.handle.flush()
        return
    slatedb = load()
    options = slatedb.FlushOptions(flush_type=slatedb.FlushType.MEM_TABLE)
    adapted._runner.run(adapted._inner.handle.flush_with_options(options))


class Opener:
    """Opens the test's store, again and again; the clock is the same throughout."""

    def __init__(self, kind: Kind, path: Path) -> None:
        self.kind = kind
        self.path = path
        self.clock = ManualClock(START)
        self.registry = CollectorRegistry()
        self._open: list[Store] = []

    @property
    def url(self) -> str:
        return f"{self.kind.engine}:{self.path}"

    def __call__(self, **options: Any) -> Store:
        defaults: dict[str, Any] = {"clock": self.clock, "registry": self.registry}
        if not options.get("read_only") and not self.path.exists():
            defaults |= {"default_ttl": "1 day"}
        store = lapse.kv.open(self.url, **(defaults | options))
        self._open.append(store)
        return store

    def close(self) -> None:
        for store in self._open:
            store.close()

    def metric(self, name: str) -> float:
        return self.registry.get_sample_value(name, {"store": self.url}) or 0.0


@pytest.fixture(params=KINDS, ids=lambda kind: kind.engine)
def kind(request: pytest.FixtureRequest) -> Kind:
    assert isinstance(request.param, Kind)
    return request.param


@pytest.fixture
def opener(kind: Kind, tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(kind, tmp_path / "store")
    yield opener
    opener.close()


@pytest.fixture
def clock(opener: Opener) -> ManualClock:
    return opener.clock


@pytest.fixture
def store(opener: Opener) -> Store:
    return opener()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An object store over HTTP, which the environment names."""
    with s3_server.serving() as bucket:
        for name, value in {
            "AWS_ENDPOINT": bucket.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        yield bucket
