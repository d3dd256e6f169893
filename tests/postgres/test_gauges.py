"""What Lapse sees of the other sessions of a server, of its log and of what vacuum has yet to do."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from time import monotonic, sleep

import psycopg
import pytest

from lapse.engines.postgres import gauges, session
from lapse.model.job import Job
from lapse.model.settings import Settings
from lapse.model.table import TableName
from lapse.runner import controller as controller_module
from lapse.runner import task
from lapse.runner.controller import Controller
from lapse.runner.events import Cause, NullListener
from tests.conformance.harness import Harness

EVENTS = TableName("events", "public")


def foreground(h: Harness) -> float | None:
    with h.db.engine.connection() as connection:
        return next(
            gauge.value for gauge in gauges.read(connection, Settings.from_texts({})) if gauge.name == "foreground"
        )


def test_a_session_between_two_short_statements_is_at_work(
    h: Harness, client: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    h.events()
    client.execute("SELECT 1")
    monkeypatch.setattr(gauges, "_SERVER", gauges._SERVER.replace(gauges.RECENT, "interval '1 hour'"))
    until = monotonic() + 10.0
    while foreground(h) != 1.0:
        assert monotonic() < until, "the session that made the table has not ended"
        sleep(0.05)
    assert foreground(h) == 1.0  # sessions of Lapse's own, which have been at work as well, are left out
    monkeypatch.setattr(gauges, "_SERVER", gauges._SERVER.replace("interval '1 hour'", "interval '0'"))
    assert foreground(h) == 0.0


def test_the_gauges_are_planned_once_for_a_session(h: Harness) -> None:
    h.events()
    prepared = "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'lapse_%'"
    with h.db.engine.connection() as connection:
        for _ in range(3):
            gauges.read(connection, Settings.from_texts({}))
            assert connection.exec_driver_sql(prepared).scalar() == 1
        # Somebody else has used the session.
        connection.exec_driver_sql("DEALLOCATE ALL")
        for _ in range(3):
            assert {each.name for each in gauges.read(connection, Settings.from_texts({}))} >= {"foreground"}
            assert connection.exec_driver_sql(prepared).scalar() == 0


def test_a_session_in_which_foreign_code_has_run_asks_nothing_that_was_prepared(h: Harness) -> None:
    """A trigger of the table's owner could have prepared something else by that name."""
    h.events()
    with h.db.engine.connection() as connection:
        gauges.read(connection, Settings.from_texts({}))
        (name,) = connection.exec_driver_sql("SELECT name FROM pg_prepared_statements").scalars()
        connection.exec_driver_sql(f"DEALLOCATE {name}")
        connection.exec_driver_sql(f"PREPARE {name} AS SELECT 1 / 0")
        connection.info[session.FOREIGN_CODE] = True
        gauges.read(connection, Settings.from_texts({}))
    with h.db.engine.connection() as connection:
        gauges.read(connection, Settings.from_texts({}))


def _make_dead_rows(h: Harness, rows: int) -> None:
    with psycopg.connect(h.url, autocommit=True) as client:
        client.execute(f"INSERT INTO events (id) SELECT -n FROM generate_series(1, {rows}) n")
        client.execute("DELETE FROM events WHERE id < 0")
    # The session has told its numbers when it ended.
    until = monotonic() + 10.0
    while h.rows("SELECT n_dead_tup >= 10000 FROM pg_stat_user_tables WHERE relname = 'events'") != [(True,)]:
        assert monotonic() < until, "the dead rows were not counted"
        sleep(0.05)


def test_a_table_with_too_many_dead_rows_waits_for_vacuum(
    h: Harness, client: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job goes on by itself when vacuum has been there, and no other table waits meanwhile."""
    monkeypatch.setattr(controller_module, "STALE_SECONDS", -1.0)
    monkeypatch.setattr(task, "GATE_SECONDS", 0.05)
    h.events()
    h.sql("CREATE TABLE other (id BIGINT PRIMARY KEY, ts TIMESTAMPTZ) TTL = ts + INTERVAL 1 DAY")
    h.insert((1, h.at()), (2, h.at(days=-2)))
    h.insert((1, h.at(days=-2)), table="other")
    _make_dead_rows(h, 12_000)
    assert h.run_one("other").counts.deleted == 1
    waits: list[tuple[str, Cause]] = []

    class Listen(NullListener):
        def waiting(self, job: Job, seconds: float, reason: str, cause: Cause) -> None:
            waits.append((reason, cause))
            client.execute("VACUUM events")

    h.owner.set_setting("lapse_vacuum_debt_limit", "1")
    (job,) = h.db.run("events", listener=Listen()).jobs
    assert job.counts.deleted == 1
    assert waits[0] == ("gate: vacuum debt of public.events 1.2 of 1", Cause.GATE)
    assert h.ids() == [1]


def test_no_limit_of_dead_rows_is_no_gate(h: Harness) -> None:
    h.events()
    _make_dead_rows(h, 12_000)
    with h.db.engine.connection() as connection:

        def read(limit: str) -> list[tuple[float, float, str | None]]:
            settings = Settings.from_texts({"lapse_vacuum_debt_limit": limit})
            found = h.db.engine.table_gauges(connection, settings, [EVENTS, TableName("gone", "public")])
            return [(round(gauge.value or 0.0, 1), gauge.stop, gauge.note) for gauge in found]

        assert read("7") == [(1.2, 7.0, "autovacuum is off")]
        assert read("0") == []


def test_dead_rows_are_measured_by_what_the_table_says_of_autovacuum(h: Harness, client: psycopg.Connection) -> None:
    h.events()
    client.execute("ALTER TABLE events SET (autovacuum_vacuum_threshold = 24000, autovacuum_vacuum_scale_factor = 0)")
    _make_dead_rows(h, 12_000)
    with h.db.engine.connection() as connection:
        (gauge,) = h.db.engine.table_gauges(connection, Settings.from_texts({}), [EVENTS])
    assert gauge.value == pytest.approx(0.5)


def test_log_that_would_force_checkpoints_makes_lapse_yield_beside_an_application(
    h: Harness, client: psycopg.Connection
) -> None:
    h.events()
    h.owner.set_setting("lapse_checkpoint_interval", "30 days")
    controller = Controller(h.db.catalog)

    def look() -> tuple[bool, bool]:
        """Is it above its limit, and does it count?"""
        with psycopg.connect(h.url, autocommit=True) as writer:
            writer.execute("INSERT INTO events (id) SELECT n FROM generate_series(1, 2000) n")
            writer.execute("DELETE FROM events")
            backend = Path(f"/proc/{writer.info.backend_pid}")
        # On a busy machine it takes a moment to end, and until then it is an application that was at work just now.
        while backend.exists():
            sleep(0.01)
        controller.run_once()
        (reading,) = [each for each in controller.readings if each.name == "checkpoints"]
        return reading.pressure > 1, reading.counts

    controller.run_once()
    assert look() == (True, False)
    assert "checkpoints" not in str(controller.pause_after(0.1, 0.1)[1])
    asleep = Thread(target=client.execute, args=("SELECT pg_sleep(0.5)",))
    asleep.start()
    while look() != (True, True):
        assert asleep.is_alive(), "the application was not seen"
    assert "checkpoints" in str(controller.pause_after(0.1, 0.1)[1])
    asleep.join()
