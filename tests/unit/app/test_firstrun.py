"""The first run of a policy: what is said when it is declared, and what the guard holds until it is confirmed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lapse.app import Lapse
from lapse.app import firstrun as module
from lapse.clock import ManualClock
from lapse.engines.base import Engine, Expiring
from lapse.model.blocked import BlockCode
from lapse.runner import guard
from tests.unit.runner.build import NOW

DECLARE = "ALTER TABLE events SET (ttl_expiration_expression = 'at', ttl_grace = '0 s'{})"


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lapse]:
    monkeypatch.setattr(guard, "SMALL_TABLE_ROWS", 4)
    with Lapse(f"sqlite:///{tmp_path / 'app.db'}", clock=ManualClock(NOW)) as found:
        found.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, at TEXT)")
        yield found


def fill(database: Lapse, expired: int, live: int) -> None:
    for at, count in (("2020-01-01", expired), ("2030-01-01", live)):
        for _ in range(count):
            database.execute(f"INSERT INTO events (at) VALUES ('{at} 00:00:00')")


def said(database: Lapse, options: str = "") -> str:
    return " | ".join(database.execute(DECLARE.format(f", {options}" if options else "")).notices)


def test_a_declaration_says_what_its_first_run_would_delete(database: Lapse) -> None:
    fill(database, 1, 3)
    assert "events: would delete 1 of 4 rows (25%) at the first run" in said(database)


def test_an_empty_table_is_not_worth_a_word(database: Lapse) -> None:
    assert "would delete" not in said(database)


def test_the_same_expiry_is_not_told_again(database: Lapse) -> None:
    fill(database, 1, 3)
    said(database)
    assert "would delete" not in said(database, "ttl_delete_batch_size = 7")
    changed = database.execute("ALTER TABLE events SET (ttl_expiration_expression = 'at + INTERVAL ''20 years''')")
    assert "would delete 0 of 4 rows" in " ".join(changed.notices)


def test_what_keeps_the_first_run_waiting_is_said(database: Lapse) -> None:
    fill(database, 3, 1)
    assert "would delete 3 of 4 rows (75%) at the first run; that run waits for confirmation" in said(database)
    database.execute("ALTER TABLE events RESET (ttl)")
    assert "waits for confirmation" not in said(database, "ttl_guard = 'off'")
    database.execute("ALTER TABLE events RESET (ttl)")
    assert "ttl_pause is on" in said(database, "ttl_pause = true")
    database.execute("ALTER TABLE events RESET (ttl)")
    assert "workers wait until 12:10 UTC (ttl_grace)" in " ".join(
        database.execute("ALTER TABLE events SET (ttl_expiration_expression = 'at', ttl_grace = '10 minutes')").notices
    )


def test_a_look_that_fails_or_takes_too_long_does_not_fail_the_declaration(
    database: Lapse, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(database, 1, 3)
    with monkeypatch.context() as patch:
        patch.setattr(module, "MOST_SECONDS", 0.0)
        assert "would delete" not in said(database)
    database.execute("ALTER TABLE events RESET (ttl)")
    with monkeypatch.context() as patch:
        patch.setattr(type(database.engine), "expiring", lambda *_, **__: 1 / 0)
        assert "would delete" not in said(database)
    assert len(database.policies()) == 1


# The guard


def test_a_run_that_looks_like_a_mistake_is_held_and_deletes_nothing(database: Lapse) -> None:
    fill(database, 3, 1)
    said(database)
    result = database.run()
    (skip,) = result.skipped
    assert (result.deleted, skip.held, skip.blocked) == (0, True, BlockCode.GUARD)
    assert "would delete 3 of 4 rows (75%)" in skip.reason
    assert database.execute("SELECT count(*) FROM events").rows == ((4,),)
    assert database.policy("events").held is not None


def test_a_person_confirms_it_once(database: Lapse) -> None:
    fill(database, 3, 1)
    said(database)
    database.run()
    database.resume("events")
    assert database.run().deleted == 3
    stored = database.policy("events")
    assert (stored.held, stored.cleared_at) == (None, NOW)


def test_one_that_was_let_pass_is_not_asked_about_again(database: Lapse) -> None:
    fill(database, 1, 3)
    said(database)
    assert database.run().deleted == 1
    fill(database, 9, 0)
    database.request_run("events")
    assert database.run().deleted == 9


def test_another_expiry_is_another_question(database: Lapse) -> None:
    fill(database, 1, 3)
    said(database)
    database.run()
    fill(database, 9, 0)
    database.execute("ALTER TABLE events SET (ttl_expiration_expression = 'at + INTERVAL ''1 day''')")
    database.request_run("events")
    result = database.run()
    assert (result.deleted, [skip.held for skip in result.skipped]) == (0, [True])


def test_a_policy_without_a_guard_is_not_looked_at(database: Lapse, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(database, 3, 1)
    said(database, "ttl_guard = 'off'")
    looked: list[Engine] = []
    before = type(database.engine).expiring

    def expiring(engine: Engine, *given: object, **named: object) -> Expiring:
        looked.append(engine)
        return before(engine, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(type(database.engine), "expiring", expiring)
    assert (database.run().deleted, looked) == (3, [])
