"""Guard rails: a first run that looks like a mistake waits for a word."""

from __future__ import annotations

import pytest

from lapse.model.job import JobStatus
from lapse.runner import guard
from lapse.runner.events import Held, NullListener
from lapse.runner.jobs import JobKeeper
from lapse.runner.scheduler import Scheduler
from tests.conformance.harness import Harness

ROWS = 1_000


@pytest.fixture(autouse=True)
def _small_tables_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "SMALL_TABLE_ROWS", ROWS)


def _fill(h: Harness, expired: int, oldest: str | None = None, rows: int = ROWS) -> None:
    old, new = h.at(days=-2), h.at()
    moments = [old if number < expired else new for number in range(rows)]
    if oldest is not None:
        moments[0] = oldest
    for start in range(0, rows, 2000):
        h.insert(*((start + i, moment) for i, moment in enumerate(moments[start : start + 2000])))


def _assert_held(h: Harness, words: str) -> None:
    result = h.db.run()
    (skip,) = result.skipped
    assert skip.held
    assert skip.reason.startswith("waiting for confirmation: ")
    assert words in skip.reason
    assert (result.jobs, result.complete, result.failed) == ((), False, False)
    (status,) = h.db.status()
    assert (status.state, status.reason) == ("blocked", skip.reason)


def test_a_first_run_that_would_delete_most_of_a_table_is_held(h: Harness) -> None:
    h.events()
    _fill(h, ROWS // 2 + 1)
    _assert_held(h, "501 of 1,000 rows (50%)")
    _assert_held(h, "501 of 1,000 rows (50%)")
    assert len(h.ids()) == ROWS
    result = h.db.run(confirm=True)
    assert result.deleted == ROWS // 2 + 1
    assert result.complete
    (status,) = h.db.status()
    assert (status.state, status.reason) == ("idle", None)


def test_only_the_first_run_is_guarded(h: Harness) -> None:
    h.events()
    _fill(h, ROWS // 2)
    assert h.run_one().counts.deleted == ROWS // 2
    _more = [(ROWS + i, h.at(days=-2)) for i in range(ROWS)]
    for start in range(0, ROWS, 2000):
        h.insert(*_more[start : start + 2000])
    assert h.run_one().counts.deleted == ROWS


def test_a_changed_expiry_is_a_first_run_again_and_a_changed_parameter_is_not(h: Harness) -> None:
    h.events(ttl="TTL = ts + INTERVAL 10 DAY")
    _fill(h, ROWS)
    assert h.run_one().counts.deleted == 0
    h.sql("ALTER TABLE events SET (ttl_delete_batch_size = 500)")
    assert h.run_one().status is JobStatus.FINISHED
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    _assert_held(h, "rows (100%)")
    h.db.resume("events")
    assert h.run_one().counts.deleted == ROWS


def test_implausible_times_are_held(h: Harness) -> None:
    h.events()
    _fill(h, 10, oldest="'1970-01-02 00:00:00'")
    _assert_held(h, "the oldest row is from 1970-01-0")
    h.sql("DELETE FROM events WHERE id = 0")
    h.insert((0, h.at()))
    assert h.db.run("events").deleted == 9


def test_the_guard_can_be_switched_off(h: Harness) -> None:
    h.events()
    _fill(h, ROWS)
    _assert_held(h, "(100%)")
    h.sql("ALTER TABLE events SET (ttl_guard = 'off')")
    assert h.db.status()[0].state != "held"
    assert h.run_one().counts.deleted == ROWS


def test_a_small_table_is_not_worth_a_question(h: Harness) -> None:
    h.events()
    _fill(h, ROWS - 1, oldest="'1970-01-02 00:00:00'", rows=ROWS - 1)
    assert h.run_one().counts.deleted == ROWS - 1


# What a worker's log is told


class Told(NullListener):
    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    def held(self, event: Held) -> None:
        self.events.append(("held", event.kind, f"{event.table.name}: {event.reason}; {event.fix}"))

    def released(self, event: Held) -> None:
        self.events.append(("released", event.kind, f"{event.table.name}: {event.reason}"))


def _scheduler(h: Harness, told: Told) -> Scheduler:
    return Scheduler(h.db.catalog, JobKeeper(h.db.catalog, "test", told))


def test_a_held_first_run_is_told_once(h: Harness) -> None:
    h.events()
    _fill(h, ROWS)
    told = Told()
    scheduler = _scheduler(h, told)
    for _ in range(4):
        scheduler.run_once()
        h.advance(hours=1)
    ((kind, trouble, text),) = told.events
    assert (kind, trouble) == ("held", "first_run")
    assert text.startswith("events: waiting for confirmation: the first run would delete 1,000 of 1,000 rows (100%); ")
    assert "lapse resume URL" in text
    # A worker that is started later tells it, too.
    again = Told()
    _scheduler(h, again).run_once()
    assert again.events == told.events
    h.db.resume("events")
    scheduler.run_once()
    scheduler.run_once()
    assert [event[:2] for event in told.events] == [("held", "first_run"), ("released", "first_run")]


def test_rows_that_cannot_be_deleted_are_told_once(h: Harness) -> None:
    h.events()
    h.insert((1, h.at(days=-2)), (2, h.at(days=-2)))
    big = h.backend.bigint
    h.sql(f"CREATE TABLE invoices (id {big} PRIMARY KEY, event {big}, FOREIGN KEY (event) REFERENCES events (id))")
    h.sql("INSERT INTO invoices (id, event) VALUES (1, 1)")
    told = Told()
    for _ in range(3):
        h.db.run("events", listener=told)
        h.advance(hours=1)
    ((kind, trouble, text),) = told.events
    assert (kind, trouble) == ("held", "rows")
    assert text.startswith("events: 1 expired row could not be deleted: rows of ")
    assert "invoices refer to" in text
    assert "lapse preview URL" in text
    h.sql("DELETE FROM invoices")
    for _ in range(2):
        h.db.run("events", listener=told)
        h.advance(hours=1)
    assert told.events[1:] == [("released", "rows", "events: no expired row is held any more")]
