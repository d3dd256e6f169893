"""The catalog is upgraded once, however many open it at the same time; workers of an older version stop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Barrier, Thread

import pytest
from sqlalchemy import Connection, text, update

from lapse.app import Lapse
from lapse.catalog import catalog, migrations, schema
from lapse.errors import CatalogTooNew
from lapse.runner import worker as worker_module
from lapse.runner.worker import Worker
from tests.conformance.harness import Harness

OPENERS = 6


def _set_version(h: Harness, version: int) -> None:
    with h.owner.engine.connection() as connection:
        row = schema.meta.c.name == migrations.VERSION_KEY
        bound = h.owner.catalog.bind(connection)
        bound.execute(update(schema.meta).where(row).values(value=str(version)))


def test_openers_at_the_same_time_upgrade_once(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    h.events()
    ran: list[int] = []

    def step(connection: Connection) -> None:
        ran.append(1)
        connection.execute(text(f"ALTER TABLE {migrations._prefix(connection)}lapse_meta ADD COLUMN added INTEGER"))

    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
    monkeypatch.setattr(catalog, "VERSION", schema.VERSION)
    monkeypatch.setitem(migrations.STEPS, schema.VERSION - 1, step)
    uses: tuple[Callable[[Lapse], object], ...] = (
        lambda db: db.status(),
        lambda db: db.policies(),
        lambda db: db.request_run("events"),
    )
    together, errors = Barrier(OPENERS), list[Exception]()

    def use(db: Lapse, how: Callable[[Lapse], object]) -> None:
        together.wait()
        try:
            how(db)
        except Exception as error:
            errors.append(error)

    databases = [Lapse(h.url, clock=h.clock) for _ in range(OPENERS)]
    threads = [Thread(target=use, args=(db, uses[number % len(uses)])) for number, db in enumerate(databases)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for db in databases:
        db.close()
    assert errors == []
    assert len(ran) == 1
    with Lapse(h.url, clock=h.clock) as db:
        assert [stored.table.name for stored in db.policies()] == ["events"]


def test_a_worker_stops_when_the_catalog_is_newer(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    h.events()
    h.run()
    monkeypatch.setattr(worker_module, "VERSION_SECONDS", 0.0)
    logging.getLogger("lapse").setLevel(logging.CRITICAL)
    worker, raised = Worker(h.db.catalog), list[Exception]()

    def serve() -> None:
        try:
            worker.serve()
        except CatalogTooNew as error:
            raised.append(error)

    thread = Thread(target=serve)
    thread.start()
    _set_version(h, schema.VERSION + 1)
    thread.join(30)
    assert not thread.is_alive()
    assert "upgrade Lapse" in (raised[0].hint or "")  # type: ignore[attr-defined]
    _set_version(h, schema.VERSION)
