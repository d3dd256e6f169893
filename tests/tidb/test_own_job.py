"""What TiDB's own TTL cannot say, Lapse's own jobs do there, and never both on one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pymysql
import pytest

from lapse.app import Lapse
from lapse.errors import Unsupported
from lapse.model.job import Counts, Job, JobStatus, PathKind
from lapse.runner.events import BatchDone, NullListener
from tests.backends.tidb import TidbServer

Client = Callable[..., list[tuple[object, ...]]]
EVENTS = "CREATE TABLE events (id BIGINT PRIMARY KEY, c TIMESTAMP NULL, d TIMESTAMP NULL)"
OWN = "ALTER TABLE events SET (ttl_expiration_expression = 'c + INTERVAL ''1 day''', ttl_delete_batch_size = 10)"
"""TiDB has no size of batches for one table."""


def _fill(client: Client, rows: int = 50) -> None:
    values = ", ".join(f"({number}, now() - INTERVAL 2 DAY, now())" for number in range(1, rows + 1))
    client(f"INSERT INTO events VALUES {values}")


def _run(db: Lapse, **how: Any) -> Job:
    (job,) = db.run("events", **how).jobs
    return job


def _created(client: Client) -> str:
    return str(client("SHOW CREATE TABLE events")[0][1])


def _reason(db: Lapse) -> str:
    (status,) = db.status()
    assert status.state == "blocked"
    return str(status.reason)


@contextmanager
def _session(server: TidbServer, database: str) -> Iterator[pymysql.cursors.Cursor]:
    where = {"host": "127.0.0.1", "port": server.port, "user": "root", "database": database}
    with pymysql.connect(**where, ssl_disabled=True) as connection, connection.cursor() as cursor:
        yield cursor


MOMENTS = "(1, now() - INTERVAL 2 DAY), (2, now()), (3, NULL)"


@pytest.mark.parametrize(
    ("tables", "rows", "more"),
    [
        (("events (id BIGINT PRIMARY KEY, c TIMESTAMP NULL)", "child (e BIGINT REFERENCES events (id))"), MOMENTS, ""),
        (("events (id INT, c BIGINT)",), "(1, unix_timestamp() - 100000), (2, unix_timestamp()), (3, NULL)", ""),
        (
            ("events (id VARCHAR(9) PRIMARY KEY NONCLUSTERED, c TIMESTAMP NULL, KEY (c))",),
            MOMENTS,
            ", ttl_job_cron = '0 3 * * *'",
        ),
        (("events (id INT, c DATETIME) PARTITION BY HASH (id) PARTITIONS 3",), MOMENTS, ""),
        (("events (id INT, c DATETIME, primary key (id))",), MOMENTS, ", ttl_time_zone = 'Europe/Lisbon'"),
    ],
    ids=["referred to", "whole numbers and no key", "key that is not clustered", "partitions", "another zone"],
)
def test_what_tidb_cannot_say(db: Lapse, client: Client, tables: tuple[str, ...], rows: str, more: str) -> None:
    client(*(f"CREATE TABLE {table}" for table in tables), f"INSERT INTO events VALUES {rows}")
    if len(tables) > 1:
        client("ALTER TABLE child ADD FOREIGN KEY (e) REFERENCES events (id)", "INSERT INTO child VALUES (2)")
    result = db.execute(f"ALTER TABLE events SET (ttl_expiration_expression = 'c + INTERVAL ''1 day'''{more})")
    assert any("Lapse's job deletes the rows" in notice for notice in result.notices)
    jobs = db.run("events").jobs
    assert {job.status for job in jobs} == {JobStatus.FINISHED}
    assert sum(job.counts.deleted for job in jobs) == 1 and not any(job.estimated for job in jobs)
    assert [str(row[0]) for row in client("SELECT id FROM events ORDER BY id")] == ["2", "3"]
    assert "TTL" not in _created(client)


def test_rows_that_another_session_holds_are_passed_by(
    db: Lapse, client: Client, server: TidbServer, database: str
) -> None:
    client(EVENTS)
    _fill(client)
    db.execute(OWN)
    with _session(server, database) as other:
        other.execute("SELECT id FROM events WHERE id IN (7, 33) FOR UPDATE")
        job = _run(db)
        assert (job.status, job.counts.deleted, job.counts.skipped) == (JobStatus.INCOMPLETE, 48, 2)
        assert client("SELECT id FROM events") == [(7,), (33,)]
    assert _run(db).counts.deleted == 2


class _Meddler(NullListener):
    """Does something after the first batch."""

    def __init__(self, meddle: Callable[[], object]) -> None:
        self._meddle: Callable[[], object] | None = meddle

    def batch_done(self, event: BatchDone) -> None:
        meddle, self._meddle = self._meddle, None
        if meddle is not None:
            meddle()


def test_rows_that_are_renewed_meanwhile_stay_and_are_not_counted(db: Lapse, client: Client) -> None:
    client(EVENTS)
    _fill(client)
    db.execute(OWN)
    meddler = _Meddler(lambda: client("UPDATE events SET c = now() WHERE id > 40"))
    counts = _run(db, listener=meddler).counts
    assert (counts.deleted, counts.held) == (40, 0)
    assert client("SELECT min(id), count(*) FROM events") == [(41, 10)]


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (("ALTER TABLE events TTL = d + INTERVAL 7 DAY",), "another client has declared a TTL of TiDB's own"),
        (("DROP TABLE events", EVENTS), "another one has taken its name"),
        (("RENAME TABLE events TO gone", EVENTS), "another one has taken its name"),
        (("TRUNCATE TABLE events",), "it was truncated"),
        (("ALTER TABLE events MODIFY c DATETIME NULL",), "c datetime at position 2"),
        (
            ("ALTER TABLE events RENAME COLUMN c TO x", "ALTER TABLE events RENAME COLUMN d TO c"),
            "c timestamp at position 3",
        ),
    ],
)
def test_a_table_that_is_changed_in_the_middle_of_a_job_loses_no_row(
    db: Lapse, client: Client, statements: tuple[str, ...], words: str
) -> None:
    client(EVENTS)
    _fill(client)
    db.execute(OWN)

    def meddle() -> None:
        client(*statements)
        # As old as those of the table that was meant.
        client("REPLACE INTO events VALUES (45, now() - INTERVAL 2 DAY, now() - INTERVAL 2 DAY)")

    job = _run(db, listener=_Meddler(meddle))
    assert job.status is JobStatus.FAILED and job.counts.deleted == 10
    assert words in _reason(db)
    # Nor by the next one, until a person has looked at it.
    assert _run(db).counts == Counts() and words in _reason(db)
    assert client("SELECT count(*) FROM events WHERE id = 45") == [(1,)]


def test_a_column_that_is_added_before_is_no_other(db: Lapse, client: Client) -> None:
    client(EVENTS)
    _fill(client)
    db.execute(OWN)
    job = _run(db, listener=_Meddler(lambda: client("ALTER TABLE events ADD COLUMN first INT FIRST")))
    assert (job.status, job.counts.deleted) == (JobStatus.FINISHED, 50)


def test_a_ttl_of_tidbs_own_ends_where_lapses_job_begins(db: Lapse, client: Client) -> None:
    client(f"{EVENTS} TTL = d + INTERVAL 7 DAY TTL_ENABLE = 'OFF'")
    assert any("TiDB's own TTL is removed" in notice for notice in db.execute(OWN).notices)
    assert "TTL" not in _created(client)
    client("ALTER TABLE events TTL = d + INTERVAL 7 DAY")
    assert any("TTL_ENABLE = 'OFF'" in finding.text for finding in db.doctor())
    db.doctor(repair=True)
    assert "TTL" not in _created(client)
    # What TiDB can say, it does from then on.
    db.execute("ALTER TABLE events RESET (ttl_delete_batch_size)")
    assert "TTL=`c` + INTERVAL 1 DAY" in _created(client) and "TTL_ENABLE='OFF'" in _created(client)
    assert db.preview("events")[0].path.kind is PathKind.NATIVE
    db.execute("ALTER TABLE events SET (ttl_delete_batch_size = 10)")
    assert "TTL" not in _created(client)


def test_holds_filters_and_views(db: Lapse, client: Client) -> None:
    client(EVENTS)
    _fill(client)
    db.hold("events", where="id <= 5")
    db.execute("ALTER TABLE events TTL = c + INTERVAL 1 DAY")
    assert "TTL" not in _created(client)
    db.execute("ALTER TABLE events SET (ttl_filter = 'id > 3 AND id < 40', ttl_hide_expired = 'view')")
    assert client("SELECT count(*) FROM events_live") == [(14,)]
    assert _run(db).counts.deleted == 34
    assert client("SELECT max(id), count(*) FROM events WHERE id < 40") == [(5, 5)]
    db.execute("ALTER TABLE events RESET (ttl)")
    with pytest.raises(pymysql.err.ProgrammingError):
        client("SELECT count(*) FROM events_live")


def test_an_older_tidb_has_its_own_ttl_only(db: Lapse, client: Client) -> None:
    client(EVENTS)
    db.engine._flavour = replace(db.engine.flavour, version=(7, 5, 0))  # type: ignore[attr-defined]
    with pytest.raises(Unsupported) as caught:
        db.execute(OWN)
    assert "TiDB 8.5 or newer" in str(caught.value.hint)


def test_switched_off_for_the_cluster_is_switched_off_for_lapse(db: Lapse, client: Client) -> None:
    client(EVENTS)
    _fill(client)
    db.execute(OWN)
    try:
        job = _run(db, listener=_Meddler(lambda: client("SET GLOBAL tidb_ttl_job_enable = OFF")))
        assert job.counts.deleted == 10 and "tidb_ttl_job_enable is OFF" in str(job.reason)
        assert _run(db).counts == Counts()
    finally:
        client("SET GLOBAL tidb_ttl_job_enable = ON")
    db.resume("events")
    assert _run(db).counts.deleted == 40


def test_a_gate_of_the_operators_own(db: Lapse) -> None:
    with db.engine.connection() as connection:
        assert db.engine.scalar(connection, "SELECT 7") == 7.0


def test_a_gauge_that_can_be_read_asks_for_no_privilege(db: Lapse) -> None:
    (waits,) = [reading for reading in db.gauges() if reading.name == "lock waits"]
    assert (waits.value, waits.note) == (0.0, None)
