"""Looking: one connection per page or scrape, and an empty database is no error where that was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from sqlalchemy import Connection

from lapse.app import Lapse
from lapse.catalog.workers import WorkerRow, beat_worker
from lapse.clock import ManualClock
from lapse.console.dashboard import Dashboard
from lapse.console.options import ConsoleOptions
from lapse.console.session import Signer
from lapse.errors import CatalogMissing

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Lapse]:
    with Lapse(f"sqlite:///{tmp_path / 'app.db'}", clock=ManualClock(NOW)) as db:
        yield db


@pytest.fixture
def declared(database: Lapse) -> Lapse:
    database.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, at TEXT)")
    database.execute("ALTER TABLE events SET (ttl_expiration_expression = 'at', ttl_grace = '0 s')")
    database.run()
    return database


@contextmanager
def counted_connections(database: Lapse, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    opened: list[int] = []
    before = database.engine.connection

    @contextmanager
    def connection() -> Iterator[Connection]:
        opened.append(1)
        with before() as found:
            yield found

    with monkeypatch.context() as patch:
        patch.setattr(database.engine, "connection", connection)
        yield opened


def dashboard(database: Lapse) -> Dashboard:
    return Dashboard(database, database.metrics(), ConsoleOptions(), signer=Signer("x"))


def test_a_scrape_opens_one_connection(declared: Lapse, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = declared.metrics().registry
    with counted_connections(declared, monkeypatch) as opened:
        text = generate_latest(registry).decode()
    assert len(opened) == 1
    assert "lapse_ttl_database_up 1.0" in text
    assert 'lapse_ttl_tables{health="on_time"} 1.0' in text


def test_the_overview_opens_one_connection(declared: Lapse, monkeypatch: pytest.MonkeyPatch) -> None:
    board = dashboard(declared)
    with counted_connections(declared, monkeypatch) as opened:
        overview = board.overview()
    assert len(opened) == 1
    assert [str(view.health.stored.table) for view in overview.policies] == ["events"]
    assert overview.now == NOW


def test_what_was_read_once_is_not_read_again(declared: Lapse) -> None:
    with declared.observe() as seen:
        first = seen.policies
        declared.execute("ALTER TABLE events RESET (ttl)")
        assert seen.policies is first
    with declared.observe() as seen:
        assert seen.policies == []


def test_a_database_without_policies(database: Lapse) -> None:
    with pytest.raises(CatalogMissing), database.observe():
        pass
    with database.observe(may_be_empty=True) as seen:
        assert (seen.policies, seen.healths, seen.progress, seen.workers, seen.sizes) == ([], [], [], [], {})
        assert seen.history() == []
        assert seen.settings.mode == "gentle"
        with pytest.raises(CatalogMissing):
            seen.job(1)
    assert dashboard(database).overview().policies == ()


def test_a_worker_whose_heartbeat_is_old_is_not_alive(declared: Lapse) -> None:
    with declared.catalog.writing() as connection:
        for name, beat in (("old", NOW.replace(hour=11)), ("new", NOW)):
            row = WorkerRow(id=name, address="h", version="1", started_at=NOW, heartbeat_at=beat, state="idle")
            beat_worker(connection, row)
    with declared.observe() as seen:
        assert seen.workers_alive == {"old": False, "new": True}
