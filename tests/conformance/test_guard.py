"""Guard rails: a first run that looks like a mistake waits for a word."""

from __future__ import annotations

import pytest

from lapse.model.job import JobStatus
from lapse.runner import guard
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
    assert skip.reason.startswith("held for confirmation: ")
    assert words in skip.reason
    assert (result.jobs, result.complete, result.failed) == ((), False, False)
    (status,) = h.db.status()
    assert (status.state, status.reason) == ("held", skip.reason)


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


def test_a_changed_expiry_is_a_first_run_again_and_a_changed_knob_is_not(h: Harness) -> None:
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
