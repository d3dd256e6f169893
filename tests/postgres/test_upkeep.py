"""The space of deleted rows: reported, and settings advised that fit the rate of deleting."""

from __future__ import annotations

from time import monotonic, sleep

import psycopg
import pytest

from lapse.app import Finding
from lapse.engines.postgres import upkeep
from tests.conformance.harness import Harness


@pytest.fixture
def deleted(each: Harness) -> Harness:
    """700 of 1,000 rows were deleted today, a hundred a day; the statistics know it."""
    each.events()
    each.sql("ALTER TABLE events SET (autovacuum_enabled = true)")
    each.sql(
        f"INSERT INTO events SELECT n, TIMESTAMPTZ {each.at()[:-1]}+00' - CASE WHEN n <= 700 THEN 2 ELSE 0 END"
        " * INTERVAL '1 day' FROM generate_series(1, 1000) n"
    )
    # Inserts that are counted after ANALYZE would count twice.
    flush(each, live=1000)
    each.sql("ANALYZE events")
    assert each.run_one().counts.deleted == 700
    return each


def findings(h: Harness, words: str) -> list[Finding]:
    return [finding for finding in h.db.doctor() if words in finding.text]


def flush(h: Harness, *, live: int = 300, dead: int = 0) -> None:
    """Counts of sessions reach the statistics when these end; before PostgreSQL 15, some time after it."""
    h.db.engine.database.dispose()
    until = monotonic() + 10.0
    while h.rows("SELECT n_live_tup, n_dead_tup FROM pg_stat_user_tables WHERE relname = 'events'") != [(live, dead)]:
        assert monotonic() < until, "the rows were not counted"
        sleep(0.05)


def test_dead_rows_are_reported(deleted: Harness) -> None:
    flush(deleted, dead=700)
    (finding,) = findings(deleted, "dead rows")
    assert finding.level == "ok"
    assert "about 700 dead rows of public.events (70%)" in finding.text
    assert "comes at 250; last cleaned up: never" in finding.text
    deleted.sql("VACUUM events")
    flush(deleted)
    assert not findings(deleted, "dead rows")


def test_settings_follow_the_rate(deleted: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "FEW_DEAD_ROWS", 10)
    assert findings(deleted, "autovacuum is off")
    monkeypatch.setattr(upkeep, "_STATE", upkeep._STATE.replace("current_setting('autovacuum')::boolean", "true"))
    (finding,) = findings(deleted, "jobs delete about 100 rows a day")
    assert "autovacuum waits for 250" in finding.text
    assert finding.fix is not None
    assert finding.fix.endswith("SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100);")
    deleted.sql(finding.fix)
    assert not findings(deleted, "jobs delete about")


def test_who_keeps_dead_rows_from_being_cleaned_up(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "LONG_SECONDS", -1)
    h.events()
    with psycopg.connect(h.url) as other:
        other.execute("SELECT 1")
        pid = other.info.backend_pid
        (finding,) = findings(h, "a transaction has been open")
        assert finding.fix == f"SELECT pg_terminate_backend({pid});"
