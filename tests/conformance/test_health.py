"""Status tells the truth, and every surface tells the same: one verdict with one word, and what is left behind."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from lapse.app import Health, Lapse
from lapse.app.doctor.finding import Level
from lapse.app.records import status_record
from lapse.catalog import policies
from lapse.cli import status as status_command
from lapse.console import ConsoleOptions
from lapse.console.application import build
from lapse.model.blocked import BlockCode
from lapse.model.job import Job, JobStatus
from lapse.runner import guard
from lapse.runner.events import Cause, NullListener
from lapse.runner.worker import Worker
from tests.conformance.harness import Harness

with warnings.catch_warnings():
    # It would rather have the successor of httpx.
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    health: Health
    code: BlockCode | None
    words: str = ""
    """Of the reason, which every surface that has room for it gives."""


def _declared(h: Harness) -> None:
    h.events()
    h.insert((1, h.at(days=-2)), (2, h.at()))


def _on_time(h: Harness) -> Verdict:
    _declared(h)
    h.run()
    return Verdict(health=Health.ON_TIME, code=None)


def _late(h: Harness) -> Verdict:
    _on_time(h)
    h.advance(days=2)
    return Verdict(health=Health.LATE, code=None, words="no worker is running")


def _held_rows(h: Harness) -> Verdict:
    _declared(h)
    big = h.backend.bigint
    h.sql(f"CREATE TABLE child (id {big} PRIMARY KEY, event {big}, FOREIGN KEY (event) REFERENCES events (id))")
    h.sql("INSERT INTO child VALUES (1, 1)")
    assert h.run_one().counts.held == 1
    return Verdict(health=Health.BLOCKED, code=BlockCode.ROWS_HELD, words="1 expired rows cannot be deleted")


def _guarded(h: Harness) -> Verdict:
    h.events()
    h.insert(*((number, h.at(days=-2)) for number in range(10)))
    h.run()
    return Verdict(health=Health.BLOCKED, code=BlockCode.GUARD, words="waiting for confirmation")


def _column_dropped(h: Harness) -> Verdict:
    """By a rebuild of the table, which no engine refuses."""
    _declared(h)
    with h.client() as connection:
        connection.exec_driver_sql("DROP TABLE events")
        connection.exec_driver_sql("CREATE TABLE events (id INTEGER PRIMARY KEY)")
    h.run()
    return Verdict(health=Health.BLOCKED, code=BlockCode.COLUMN_CHANGED)


def _never_run(h: Harness) -> Verdict:
    _declared(h)
    h.advance(minutes=11)
    return Verdict(health=Health.BLOCKED, code=BlockCode.NO_WORKER, words="no worker is running")


def _paused(h: Harness) -> Verdict:
    _on_time(h)
    h.sql("ALTER TABLE events SET (ttl_pause = 'on')")
    h.advance(days=9)
    return Verdict(health=Health.PAUSED, code=None, words="ttl_pause is on")


def _switched_off(h: Harness) -> Verdict:
    _on_time(h)
    h.sql("SET GLOBAL tidb_ttl_job_enable = 'OFF'")
    return Verdict(health=Health.PAUSED, code=None, words="tidb_ttl_job_enable is OFF")


def _grace(h: Harness) -> Verdict:
    _declared(h)
    return Verdict(health=Health.ON_TIME, code=BlockCode.GRACE, words="deletes nothing for another 10 min")


def _copied(h: Harness) -> Verdict:
    _on_time(h)
    with h.db.catalog.writing() as connection:
        policies.suspend_policies(connection, BlockCode.DATABASE_COPIED, h.now)
    return Verdict(health=Health.BLOCKED, code=BlockCode.DATABASE_COPIED, words="this database is a copy")


def _clock(h: Harness) -> Verdict:
    _on_time(h)
    worker = Worker(h.db.catalog)
    worker._scheduler.run_once()
    h.advance(hours=5)
    worker._scheduler.run_once()
    return Verdict(health=Health.BLOCKED, code=BlockCode.CLOCK, words="clock jumped ahead")


def _gate_closed(h: Harness) -> Verdict:
    _declared(h)
    h.sql("SET GLOBAL lapse_gate_patience = '1 milliseconds'")
    _run_until(h, lambda: h.db.status()[0].state == "blocked")
    assert h.ids() == [1, 2]
    return Verdict(health=Health.BLOCKED, code=BlockCode.GATE, words="gate_sql stays closed")


def _timed_out(h: Harness) -> Verdict:
    _declared(h)
    h.sql("ALTER TABLE events SET (ttl_job_cron = '@daily')")
    h.sql("SET GLOBAL lapse_job_timeout = '1 hours'")
    _run_until(h, lambda: bool(h.db.jobs()))
    h.advance(hours=2)
    Worker(h.db.catalog)._scheduler.run_once()
    return Verdict(health=Health.BLOCKED, code=BlockCode.TIMED_OUT, words="gate: gate_sql")


def _run_until(h: Harness, seen: Callable[[], bool]) -> None:
    """A worker at a closed gate, stopped once something was seen."""
    worker: list[Worker] = []

    class Stop(NullListener):
        def waiting(self, job: Job, seconds: float, reason: str, cause: Cause) -> None:
            if seen():
                worker[0].stop()

    worker.append(Worker(h.db.catalog, Stop(), gate_sql="SELECT 1"))
    worker[0].run()


SITUATIONS = (
    _on_time,
    _late,
    _held_rows,
    _guarded,
    _column_dropped,
    _never_run,
    _paused,
    _switched_off,
    _grace,
    _copied,
    _clock,
    _gate_closed,
    _timed_out,
)


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda each: each.__name__.strip("_"))
def test_every_surface_gives_the_same_verdict(
    h: Harness, monkeypatch: pytest.MonkeyPatch, situation: Callable[[Harness], Verdict]
) -> None:
    if situation is _guarded:
        monkeypatch.setattr(guard, "SMALL_TABLE_ROWS", 5)
    logging.getLogger("lapse").setLevel(logging.CRITICAL)
    expected = situation(h)
    assert _from_python(h.db) == expected.health
    assert h.db.health()[0].blocked == expected.code
    assert _from_json(h.db, expected) == (str(expected.health), expected.code)
    assert _from_the_command_line(h.db).startswith(expected.health.words)
    assert _from_the_console(h.db, expected) == (str(expected.health), expected.code)
    assert _from_metrics(h.db) == (str(expected.health), expected.code if expected.health is Health.BLOCKED else None)
    assert _from_doctor(h.db, expected)


def _from_python(db: Lapse) -> Health:
    (health,) = db.health()
    (status,) = db.status()
    assert (health.health, health.why) == (status.promise.health, status.promise.reason)
    return health.health


def _from_json(db: Lapse, expected: Verdict) -> tuple[str, str | None]:
    record = json.loads(json.dumps(status_record(db.status()[0])))
    assert expected.words in (record["why"] or "")
    return record["health"], record["blocked"]


def _from_the_command_line(db: Lapse) -> str:
    return status_command.health_words(db.health()[0])


def _from_the_console(db: Lapse, expected: Verdict) -> tuple[str, str | None]:
    app = build(db, db.metrics(), ConsoleOptions(host="127.0.0.1", port=8321, token=None, allow_actions=False))
    with TestClient(app, base_url="http://127.0.0.1:8321") as client:
        (record,) = client.get("/api/v1/tables").json()
        overview = client.get("/api/v1/overview").json()
        page = client.get("/").text
    assert expected.words in (record["why"] or "")
    assert overview[record["health"]] == 1
    assert expected.health.words.capitalize() in page
    return record["health"], record["blocked"]


def _from_metrics(db: Lapse) -> tuple[str, str | None]:
    families = text_string_to_metric_families(generate_latest(db.metrics().registry).decode())
    samples = [sample for family in families for sample in family.samples if sample.value]
    (health,) = [sample.labels["health"] for sample in samples if sample.name == "lapse_ttl_tables"]
    codes = [sample.labels["code"] for sample in samples if sample.name == "lapse_ttl_blocked_tables"]
    return health, codes[0] if codes else None


def _from_doctor(db: Lapse, expected: Verdict) -> bool:
    found = [finding for finding in db.doctor() if finding.subject.endswith("events")]
    problems = [finding for finding in found if finding.level is Level.PROBLEM]
    if expected.health in (Health.LATE, Health.BLOCKED):
        return any(expected.words in finding.text for finding in problems)
    said = [finding.text for finding in found if finding.level is Level.OK]
    return not problems and (expected.health is Health.ON_TIME or any(expected.words in text for text in said))


def test_rows_that_stay_locked_leave_a_job_incomplete(h: Harness) -> None:
    if not h.features.row_locks:
        pytest.skip("rows cannot be locked one by one")
    h.events()
    h.sql("ALTER TABLE events SET (ttl_delete_within = '2 hours')")
    h.run()
    before = h.db.status()[0].promise.watermark
    h.insert((1, h.at(days=-2)), (2, h.at(days=-2)), (3, h.at()))
    h.advance(minutes=30)
    with _locked(h, 2):
        job = h.run_one()
        assert (job.status, job.counts.deleted, job.counts.skipped) == (JobStatus.INCOMPLETE, 1, 1)
        assert not h.run().complete
        (status,) = h.db.status()
        assert (status.promise.health, status.promise.watermark, status.locked) == (Health.ON_TIME, before, 1)
        assert status.next_run_at is not None
        assert timedelta(0) < status.next_run_at - h.now < timedelta(minutes=5)
        h.advance(hours=2)
        h.run()
        (status,) = h.db.status()
        assert (status.promise.health, status.promise.reason) == (
            Health.LATE,
            "1 expired rows were locked by other sessions",
        )
    assert h.run_one().status is JobStatus.FINISHED
    (status,) = h.db.status()
    assert (status.promise.health, status.promise.watermark, status.locked) == (Health.ON_TIME, h.now, 0)
    assert h.ids() == [3]


@pytest.mark.parametrize("referring", ["child", "events"], ids=["by another table", "by itself"])
def test_locked_and_held_rows_are_told_apart(h: Harness, referring: str) -> None:
    if not h.features.row_locks:
        pytest.skip("rows cannot be locked one by one")
    h.events(extra=f", parent {h.backend.bigint}, FOREIGN KEY (parent) REFERENCES events (id)")
    h.insert(*((number, h.at(days=-2)) for number in range(1, 11)), (11, h.at()))
    big = h.backend.bigint
    if referring == "child":
        h.sql(f"CREATE TABLE child (id {big} PRIMARY KEY, event {big}, FOREIGN KEY (event) REFERENCES events (id))")
        h.sql("INSERT INTO child VALUES (1, 4)")
    else:
        h.sql("UPDATE events SET parent = 4 WHERE id = 11")
    with _locked(h, 2):
        job = h.run_one()
    assert (job.status, job.counts.held, job.counts.skipped) == (JobStatus.INCOMPLETE, 1, 1)
    assert h.ids() == [2, 4, 11]
    assert h.db.status()[0].blocked is BlockCode.ROWS_HELD


def test_rows_that_a_trigger_keeps_are_held(h: Harness) -> None:
    h.events()
    h.insert(*((number, h.at(days=-2)) for number in range(1, 21)), (21, h.at()))
    for statement in h.backend.veto("events", "OLD.id IN (3, 7)"):
        with h.client() as connection:
            connection.exec_driver_sql(statement)
    job = h.run_one()
    assert (job.status, job.counts.deleted, job.counts.held, job.counts.skipped) == (JobStatus.FINISHED, 18, 2, 0)
    (status,) = h.db.status()
    assert (status.promise.health, status.blocked, status.held) == (Health.BLOCKED, BlockCode.ROWS_HELD, 2)
    assert h.ids() == [3, 7, 21]


def test_a_gate_that_opens_is_shown_no_more(h: Harness) -> None:
    _gate_closed(h)
    assert h.db.jobs()[0].status is JobStatus.RUNNING
    Worker(h.db.catalog, gate_sql="SELECT 0").run()
    assert h.ids() == [2]
    (status,) = h.db.status()
    assert (status.state, status.promise.health) == ("idle", Health.ON_TIME)


@contextmanager
def _locked(h: Harness, number: int):  # type: ignore[no-untyped-def]
    connection = h.owner.engine.user_connection()
    try:
        connection.exec_driver_sql("BEGIN")
        connection.exec_driver_sql(f"SELECT * FROM events WHERE id = {number} FOR UPDATE").all()
        yield
    finally:
        connection.exec_driver_sql("ROLLBACK")
        connection.close()
