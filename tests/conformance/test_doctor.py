"""The doctor: every finding says what fixes it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lapse.app import Finding
from lapse.catalog import workers
from lapse.catalog.workers import WorkerRow
from lapse.runner import guard
from tests.conformance.harness import Harness


def _texts(h: Harness, level: str) -> list[str]:
    return [finding.text for finding in h.db.doctor() if finding.level == level]


def _finding(h: Harness, words: str) -> Finding:
    (found,) = [finding for finding in h.db.doctor() if words in finding.text]
    assert found.fix
    return found


def test_a_table_in_order(h: Harness) -> None:
    h.events()
    h.sql("CREATE INDEX events_ts ON events (ts)")
    h.insert((1, h.at()))
    h.run()
    assert _texts(h, "problem") == []


def test_times_that_are_no_times(h: Harness) -> None:
    h.events()
    h.insert((1, "'1970-01-02 00:00:00'"), (2, h.at()))
    assert "ttl_time_format" in str(_finding(h, "the oldest time is 1970-").fix)
    h.sql("UPDATE events SET ts = NULL")
    assert _finding(h, "no row will ever expire").subject.endswith("events")


def test_foreign_keys_without_an_index(h: Harness) -> None:
    h.events()
    big = h.backend.bigint
    h.sql(f"CREATE TABLE child (id {big} PRIMARY KEY, event {big} REFERENCES events (id))")
    found = [finding for finding in h.db.doctor() if "has no index" in finding.text]
    if not found:
        pytest.skip("this engine gives every foreign key an index")
    assert "CREATE INDEX" in str(found[0].fix)


def test_a_late_table(h: Harness) -> None:
    h.events()
    h.run()
    h.advance(days=3)
    assert _finding(h, "late: ").fix == "lapse worker URL"
    h.run()
    assert not [text for text in _texts(h, "problem") if "late" in text]


def test_a_held_table(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "SMALL_TABLE_ROWS", 2)
    h.events()
    h.insert((1, h.at(days=-2)), (2, h.at(days=-2)))
    h.run()
    assert "lapse resume URL" in str(_finding(h, "waiting for confirmation: ").fix)


def test_clocks_that_differ(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    h.events()
    moment = datetime.now(UTC) + timedelta(minutes=2)
    monkeypatch.setattr(type(h.db.engine), "stopwatch", lambda self, connection: moment)
    assert "ahead of this machine's" in _finding(h, "the database's clock is").text


def test_workers_of_another_version(h: Harness) -> None:
    h.events()
    old = WorkerRow(id="w", address="a", version="0.0.1", started_at=h.now, heartbeat_at=h.now, state="{}")
    with h.db.catalog.writing() as connection:
        workers.beat_worker(connection, old)
    assert "workers of version 0.0.1" in _finding(h, "workers of version").text


@pytest.mark.parametrize("comment", ["ttl: 3600", "TTL = 30 days", "rows expire after a week"])
def test_a_comment_that_declares_nothing(h: Harness, comment: str) -> None:
    if not h.features.table_comments:
        pytest.skip("this engine has no table comments")
    h.events()
    h.sql(f"CREATE TABLE notes (id {h.backend.bigint} PRIMARY KEY)")
    with h.client() as connection:
        in_words = f"COMMENT ON TABLE notes IS '{comment}'"
        as_option = f"ALTER TABLE notes COMMENT = '{comment}'"
        connection.exec_driver_sql(in_words if h.features.transactional_ddl else as_option)
    found = [finding for finding in h.db.doctor() if finding.subject.endswith("notes")]
    assert found
    assert "comment" in found[0].text
