"""Archives in SQLite files: values keep their storage class, whatever the declared types are."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from time import monotonic, sleep

import pytest

from lapse.app import Lapse
from lapse.errors import PolicyConflict, Unsupported
from lapse.model.blocked import BlockCode
from lapse.runner.events import BatchDone, NullListener
from lapse.runner.restoring import Restored
from tests.conformance.harness import Harness

VALUES = (
    "NULL",
    "1",
    "-9223372036854775808",
    "1.0",
    "1e300",
    "'7'",
    "'x'",
    "x'00ff'",
    "'ä %s {x}'",
    "9007199254740993",
)


def _storage(h: Harness, table: str) -> list[tuple[object, ...]]:
    columns = ("plain", '"odd ""%s"""', "number", "txt", "raw", "twice")
    exact = ", ".join(f"typeof({column}), quote({column})" for column in columns)
    return h.rows(f"SELECT id, ts, {exact} FROM {table} ORDER BY id")


@pytest.mark.parametrize("suffix", ["", " STRICT", " WITHOUT ROWID"])
def test_every_value_goes_and_comes_back_as_it_was(h: Harness, suffix: str) -> None:
    kinds = (
        ("ANY", "ANY", "INTEGER", "TEXT", "BLOB") if "STRICT" in suffix else ("", "DECIMAL(9)", "NUMERIC", "TEXT", "")
    )
    h.sql(
        f'CREATE TABLE events (id INTEGER PRIMARY KEY, ts TEXT NOT NULL, plain {kinds[0]}, "odd ""%s""" {kinds[1]},'
        f" number {kinds[2]}, txt {kinds[3]} DEFAULT 'd', raw {kinds[4]}, twice INTEGER AS (id * 2) STORED){suffix}"
    )
    for number, value in enumerate(VALUES):
        h.sql(
            f'INSERT INTO events (id, ts, plain, "odd ""%s""", number, txt, raw)'
            f" VALUES ({number}, '2020-01-01', {value}, {value}, {number}, 'text', x'00')"
        )
    h.sql("ALTER TABLE events TTL = ts + INTERVAL 1 DAY")
    h.sql("ALTER TABLE events SET (ttl_archive = 'table:', ttl_guard = 'off')")
    before = _storage(h, "events")
    assert h.run_one().counts.deleted == len(VALUES)
    assert _storage(h, "events_archive") == before
    assert h.owner.restore("events").restored == len(VALUES)
    assert _storage(h, "events") == before


@pytest.mark.parametrize(
    "attack",
    [
        "CREATE TRIGGER t BEFORE INSERT ON events_archive BEGIN SELECT RAISE(IGNORE); END",
        "DROP TABLE events_archive; CREATE VIEW events_archive AS SELECT * FROM events",
        "CREATE TABLE child (event INTEGER REFERENCES events ON DELETE CASCADE)",
    ],
)
def test_what_could_lose_a_row_blocks(h: Harness, attack: str) -> None:
    h.events()
    h.sql("ALTER TABLE events SET (ttl_archive = 'table:')")
    h.insert((1, h.at(days=-2)), (2, h.at()), (3, h.at()))
    with h.client() as client:
        for statement in attack.split("; ", 1) if "VIEW" in attack else (attack,):
            client.exec_driver_sql(statement)
    (skip,) = h.db.run("events").skipped
    assert skip.blocked is BlockCode.PARTS_MISSING
    assert h.ids() == [1, 2, 3]


def test_a_schema_is_refused_and_a_name_that_is_a_view(h: Harness) -> None:
    h.events()
    with pytest.raises(Unsupported, match="no schemas"):
        h.sql("ALTER TABLE events SET (ttl_archive = 'table:other.events')")
    h.sql("CREATE VIEW seen AS SELECT 1 AS lapse_seq, 2 AS lapse_job, 3 AS archived_at")
    with pytest.raises(PolicyConflict, match="not an archive"):
        h.sql("ALTER TABLE events SET (ttl_archive = 'table:seen')")


def test_a_restore_waits_at_the_gate_that_jobs_wait_at(h: Harness) -> None:
    h.events()
    h.sql("ALTER TABLE events SET (ttl_archive = 'table:', ttl_guard = 'off')")
    h.insert(*((number, h.at(days=-2)) for number in range(1, 602)))
    h.db.run("events")
    h.sql("CREATE TABLE closed (n INTEGER)")
    h.sql("INSERT INTO closed VALUES (1)")
    told: list[str | None] = []

    def progress(done: Restored) -> None:
        told.append(done.waiting)
        if done.waiting is not None:
            assert h.ids() == []
            h.sql("DELETE FROM closed")

    with Lapse(h.url, clock=h.clock, gate_sql="SELECT count(*) FROM closed") as db:
        assert db.restore("events", progress=progress).restored == 601
    assert "gate_sql" in str(told[0]) and told[-1] is None


def test_a_job_goes_at_the_pace_of_its_export(h: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAPSE_ARCHIVES", f"file://{tmp_path}")
    h.events()
    h.sql(
        f"ALTER TABLE events SET (ttl_archive = 'file://{tmp_path}', ttl_guard = 'off', ttl_delete_batch_size = 5,"
        " ttl_adaptive = 'off')"
    )
    h.sql("SET GLOBAL lapse_archive_backlog = 10")
    h.insert(*((number, h.at(days=-2)) for number in range(1, 41)))
    most = 0

    class Measuring(NullListener):
        def batch_done(self, event: BatchDone) -> None:
            nonlocal most
            most = max(most, len(h.ids("events_outbox")))
            worker._exports.run_once()

    worker = h.db.worker(Measuring())
    result = worker.run(h.owner.policy("events"))
    assert result.complete and result.exports[0].rows == 40 and result.exports[0].files > 1
    assert most <= 15 and h.ids("events_outbox") == []


def test_a_worker_that_serves_exports_what_others_have_left(
    h: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAPSE_ARCHIVES", f"file://{tmp_path}")
    h.events()
    h.sql(f"ALTER TABLE events SET (ttl_archive = 'file://{tmp_path}', ttl_guard = 'off')")
    h.sql("INSERT INTO events_outbox (id) VALUES (7)")
    worker = h.db.worker()
    serving = Thread(target=worker.serve)
    serving.start()
    try:
        until = monotonic() + 30
        while not list(tmp_path.rglob("*.parquet")):
            assert monotonic() < until
            sleep(0.02)
    finally:
        worker.stop()
        serving.join()
    assert h.ids("events_outbox") == []
