"""A policy on TiDB is TiDB's own TTL: declared, read back, guarded, run and stopped."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from threading import Timer
from time import monotonic, sleep

import pytest
from prometheus_client import generate_latest

from lapse.app import Lapse
from lapse.app.doctor.finding import Finding, Level
from lapse.app.records import job_record
from lapse.console import ConsoleOptions
from lapse.console.application import build
from lapse.engines.base import BoundPolicy, Target
from lapse.errors import Blocked, DatabaseError, Interrupted, LapseError, Unsupported
from lapse.model.interval import DAY, Interval
from lapse.model.job import JobStatus, KeyRange, PathKind
from lapse.model.policy import Policy
from lapse.model.table import TableName
from tests.backends.tidb import TidbServer

with warnings.catch_warnings():
    # It would rather have the successor of httpx.
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

Client = Callable[..., list[tuple[object, ...]]]
START_SECONDS = 90.0
"""TiDB starts the first job of a table within ten seconds, unless the machine is busy."""
EVENTS = "CREATE TABLE events (id BIGINT PRIMARY KEY, c TIMESTAMP NULL, note TEXT)"
TTL = "ALTER TABLE events TTL = c + INTERVAL 30 DAY"
ROWS = (
    "INSERT INTO events VALUES (1, now() - INTERVAL 31 DAY, ''), (2, now() - INTERVAL 40 DAY, ''),"
    " (3, now() - INTERVAL 29 DAY, ''), (4, NULL, '')"
)


def _created(client: Client, table: str = "events") -> str:
    return str(client(f"SHOW CREATE TABLE {table}")[0][1])


def _blocked(db: Lapse, table: str) -> str:
    """Why nothing of a table is deleted."""
    assert [job.status for job in db.run(table).jobs] == [JobStatus.FAILED]
    (status,) = (each for each in db.status() if each.table.name == table)
    assert status.state == "blocked" and status.blocked is not None
    return str(status.reason)


def test_declared_guarded_run_and_removed(db: Lapse, client: Client) -> None:
    client(EVENTS, ROWS)
    result = db.execute(TTL)
    assert any("TiDB deletes them by itself" in notice for notice in result.notices)
    # TiDB would start its first job within seconds.
    assert "TTL=`c` + INTERVAL 30 DAY" in _created(client) and "TTL_ENABLE='OFF'" in _created(client)
    assert "TTL_JOB_INTERVAL='1h'" in _created(client)
    (preview,) = db.preview("events")
    assert (preview.survey.expired, preview.path.kind) == (2, PathKind.NATIVE)

    (job,) = db.run("events").jobs
    assert (job.status, job.path.kind, job.counts.deleted) == (JobStatus.FINISHED, PathKind.NATIVE, 2)
    assert job.estimated and job_record(job)["estimated"] is True
    assert client("SELECT id FROM events ORDER BY id") == [(3,), (4,)]
    assert "TTL_ENABLE='ON'" in _created(client) and "TTL_JOB_INTERVAL='1h'" in _created(client)
    (status,) = db.status()
    assert (status.state, status.blocked) == ("idle", None)
    # TiDB's job is not listed beside the one that has followed it.
    assert [each.native_id for each in db.history()] == [None]

    shown = str(db.execute("SHOW CREATE TABLE events").rows[0][1])
    assert "T![ttl]" not in shown and "ttl_expiration_expression" in shown
    # A table that was emptied, or made again with the same TTL, is still the one that was meant.
    client("TRUNCATE TABLE events")
    assert db.preview("events", column="c", after="1 day")[0].path.kind is PathKind.NATIVE
    db.execute("ALTER TABLE events REMOVE TTL")
    assert "TTL" not in _created(client) and db.status() == []


def test_another_client_is_not_overruled(db: Lapse, client: Client) -> None:
    client(EVENTS, ROWS)
    db.execute(TTL)
    assert len(db.run("events").jobs) == 1
    client("ALTER TABLE events TTL_ENABLE = 'OFF'", ROWS.replace("(3,", "(5,").replace("(4,", "(6,"))
    assert "TTL_ENABLE of table events is 'OFF'" in _blocked(db, "events")
    assert "TTL_ENABLE='OFF'" in _created(client) and client("SELECT count(*) FROM events") == [(6,)]
    db.resume("events")

    client("ALTER TABLE events TTL = c + INTERVAL 1 DAY")
    assert "missing in the database: TTL = `c` + INTERVAL 30 DAY" in _blocked(db, "events")
    assert client("SELECT count(*) FROM events") == [(6,)]
    db.doctor(repair=True)
    # Another meaning begins as a new one does.
    assert "30 DAY" in _created(client) and "TTL_ENABLE='OFF'" in _created(client)


def test_what_others_have_declared_is_told_and_can_be_followed(
    db: Lapse, client: Client, server: TidbServer, database: str
) -> None:
    client(EVENTS, "CREATE TABLE other (id INT PRIMARY KEY, c TIMESTAMP) TTL = c + INTERVAL 3 MONTH")
    db.execute(TTL)
    until = monotonic() + START_SECONDS
    while not _findings(db, "other") and monotonic() < until:
        sleep(1)
    (finding,) = _findings(db, "other")
    assert "another client has declared" in finding.text and "`c` + INTERVAL 3 MONTH" in str(finding.fix)
    (told,) = db.comments()
    assert told.table.name == "other" and "`c` + INTERVAL 3 MONTH" in str(told.fix)
    assert _seen_by_others(db) == (1, True)
    (job,) = db.history()
    assert job.native_id is not None and (job.table.name, job.policy_id, job.estimated) == ("other", 0, True)
    assert job_record(job)["job_id"] is None and job_record(job)["native_id"] == job.native_id
    db.execute("ALTER TABLE other TTL = c + INTERVAL 3 MONTH")
    assert not db.comments()
    with Lapse(server.url(database)) as later:
        assert _seen_by_others(later) == (0, False)
    assert "TTL_ENABLE='ON'" in _created(client, "other")
    assert {status.table.name for status in db.status()} == {"events", "other"}
    (finding,) = _findings(db, "other")
    assert finding.level is Level.OK


def _seen_by_others(db: Lapse) -> tuple[int, bool]:
    """How many tables without a policy of Lapse's metrics count, and whether the console names the one there is."""
    metrics = db.metrics()
    exposed = generate_latest(metrics.registry).decode()
    counted = re.findall(r'lapse_ttl_native_tables\{state="not_followed"\} ([\d.]+)', exposed)
    options = ConsoleOptions(host="127.0.0.1", port=8321)
    with TestClient(build(db, metrics, options), base_url="http://127.0.0.1:8321") as console:
        page, answer = console.get("/").text, console.get("/api/v1/overview").json()
    assert answer["native_tables"] == sum(map(float, counted))
    return answer["native_tables"], '<bdi class="name">other</bdi>' in page and "Lapse does not follow it" in page


def _findings(db: Lapse, table: str) -> list[Finding]:
    return [finding for finding in db.doctor() if finding.subject == table]


def test_a_run_that_was_killed_is_made_good_by_the_next(db: Lapse, client: Client) -> None:
    client(EVENTS, ROWS)
    db.execute(f"{TTL} TTL_JOB_INTERVAL = '2h'")
    client("ALTER TABLE events TTL_ENABLE = 'ON'", "ALTER TABLE events TTL_JOB_INTERVAL = '1m'")
    (job,) = db.run("events").jobs
    assert job.status is JobStatus.FINISHED
    assert "TTL_JOB_INTERVAL='2h'" in _created(client) and client("SELECT count(*) FROM events") == [(2,)]
    (status,) = db.status()
    assert status.native["tidb_ttl_jobs"] >= 1


def test_a_run_that_ends_before_tidb_has_begun(db: Lapse, client: Client) -> None:
    client(EVENTS, ROWS)
    db.execute(TTL)
    # TiDB has then just run a job, and starts no other for a minute.
    assert len(db.run("events").jobs) == 1
    target = _target(db)
    for meanwhile, error in ((None, Interrupted), ("TTL_ENABLE = 'OFF'", DatabaseError), ("REMOVE TTL", DatabaseError)):
        deleter = db.engine.deleter(target, KeyRange(), None)
        ending = deleter.interrupt if meanwhile is None else partial(client, f"ALTER TABLE events {meanwhile}")
        Timer(1, ending).start()
        with pytest.raises(error):
            deleter.step(100, lambda connection, batch: None)
        assert "TTL_JOB_INTERVAL='1m'" not in _created(client)
    # What the database cannot spare, it is not asked to delete.
    held = replace(target, condition=replace(target.condition, required=("id <> 3",)))
    with pytest.raises(Blocked, match="TiDB"):
        db.engine.deleter(held, KeyRange(), None)


def _target(db: Lapse) -> Target:
    now = datetime.now(UTC)
    with db.engine.connection() as connection:
        table = db.engine.describe(connection, TableName("events"))
        declared = BoundPolicy(table=table, policy=Policy(column="c", interval=Interval(micros=30 * DAY)))
        condition = db.engine.condition(connection, declared, now)
        path = db.engine.choose_path(connection, declared, now, condition)
    return Target(declared=declared, cutoff=now, condition=condition, path=path)


def test_a_pause_switches_it_off(db: Lapse, client: Client) -> None:
    client(EVENTS)
    db.execute(f"{TTL} TTL_JOB_INTERVAL = '1d2h'")
    db.execute("ALTER TABLE events TTL_ENABLE = 'OFF'")
    assert "TTL_ENABLE='OFF'" in _created(client) and "TTL_JOB_INTERVAL='1d2h'" in _created(client)
    (status,) = db.status()
    assert status.state == "paused"
    client("ALTER TABLE events TTL_ENABLE = 'ON'")
    assert any("TTL_ENABLE" in finding.text for finding in db.doctor())


@pytest.mark.parametrize(
    ("summary", "status", "known"),
    [
        ('{"total_rows":9,"success_rows":9,"error_rows":0}', JobStatus.FINISHED, True),
        ('{"total_rows":0,"scan_task_err":"tidb_ttl_job_enable turned off"}', JobStatus.CANCELLED, False),
        ('{"total_rows":0,"scan_task_err":"Lost connection"}', JobStatus.FAILED, False),
    ],
)
def test_counts_of_its_jobs_are_estimates_or_unknown(
    db: Lapse, client: Client, database: str, summary: str, status: JobStatus, known: bool
) -> None:
    client(EVENTS)
    db.execute(TTL)
    client(
        "INSERT INTO mysql.tidb_ttl_job_history (job_id, table_id, parent_table_id, table_schema, table_name,"
        " create_time, finish_time, ttl_expire, summary_text, expired_rows, deleted_rows, error_delete_rows, status)"
        f" VALUES (uuid(), 1, 1, '{database}', 'events', '2026-01-02 03:04:05', '2026-01-02 03:04:15', '2026-01-01',"
        f" '{summary}', 9, 9, 0, 'finished')"
    )
    (job,) = db.history("events")
    assert (job.status, job.is_count_known) == (status, known)
    assert (job.created_at, job.cutoff) == (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC))
    assert job_record(job)["deleted"] == (9 if known else None) and db.jobs() == []
    assert (job.reason is None) is known


def test_a_dump_of_a_schema_keeps_its_meaning(db: Lapse, client: Client) -> None:
    db.execute(f"{EVENTS} /*T![ttl] TTL=`c` + INTERVAL 3 MONTH */ /*T![ttl] TTL_ENABLE='ON' */")
    assert "TTL=`c` + INTERVAL 3 MONTH" in _created(client) and "TTL_ENABLE='OFF'" in _created(client)


@pytest.mark.parametrize(
    ("ttl", "words"),
    [
        ("SET (ttl_expire_after = '1 day')", "ADD COLUMN renewed_at"),
        ("TTL = note + INTERVAL 1 DAY", "note of events is text"),
        ("TTL = nope + INTERVAL 1 DAY", "nope"),
        ("SET (ttl_expiration_expression = 'c', ttl_hide_expired = 'policy')", "row security"),
        ("SET (ttl_expiration_expression = 'c', ttl_partition_drop = 'on')", "cannot lock a table"),
        ("SET (ttl_expiration_expression = 'CAST(json_extract(note, ''$.at'') AS TIMESTAMP)')", "cannot compute"),
    ],
)
def test_what_cannot_be_had_is_refused_and_nothing_is_changed(db: Lapse, client: Client, ttl: str, words: str) -> None:
    client(EVENTS)
    before = _created(client)
    with pytest.raises(LapseError) as caught:
        db.execute(f"ALTER TABLE events {ttl}")
    assert words in f"{caught.value.message} {caught.value.hint}"
    assert _created(client) == before and db.status() == []


def test_the_zone_is_the_servers(db: Lapse, client: Client, server: TidbServer) -> None:
    client("CREATE TABLE wall (id INT PRIMARY KEY, c DATETIME)", EVENTS)
    db.execute("ALTER TABLE wall TTL = c + INTERVAL 1 DAY")
    server.execute("SET GLOBAL time_zone = 'Asia/Tokyo'")
    try:
        client("ALTER TABLE wall TTL_ENABLE = 'ON'")
        until = monotonic() + START_SECONDS
        while not db.comments() and monotonic() < until:
            sleep(1)
        # Whenever the status is read, not only when a job is due.
        (told,) = db.comments()
        assert "in the zone Asia/Tokyo, and the policy in UTC: TiDB deletes other rows" in told.reason
        client("ALTER TABLE wall TTL_ENABLE = 'OFF'")
        assert "in the zone Asia/Tokyo, and the policy in UTC" in _blocked(db, "wall")
        assert "TTL_ENABLE='OFF'" in _created(client, "wall")
        with pytest.raises(LapseError, match="Asia/Tokyo"):
            db.execute("ALTER TABLE wall TTL = c + INTERVAL 2 DAY")
        # An instant is the same everywhere.
        db.execute(TTL)
    finally:
        server.execute("SET GLOBAL time_zone = '+00:00'")


def test_its_variables_are_its_own(db: Lapse, client: Client) -> None:
    db.execute("SET GLOBAL tidb_ttl_delete_batch_size = 200")
    assert client("SELECT @@global.tidb_ttl_delete_batch_size") == [("200",)]
    assert db.execute("SELECT @@global.tidb_ttl_delete_batch_size").rows == (("200",),)
    with pytest.raises(LapseError, match="TiDB"):
        db.set_setting("tidb_ttl_delete_batch_size", "300")
    client("SET GLOBAL tidb_ttl_delete_batch_size = 100")


def test_who_cannot_see_its_jobs_is_told_what_is_missing(server: TidbServer, database: str, client: Client) -> None:
    user = f"{database}_u"
    client(EVENTS, f"CREATE USER {user}", f"GRANT ALL ON {database}.* TO {user}")
    try:
        with Lapse(server.url(database, user)) as db, pytest.raises(LapseError) as caught:
            db.execute(TTL)
        assert "GRANT SELECT ON mysql.tidb_ttl" in str(caught.value.hint)
        assert "TTL" not in _created(client)
        for table in ("tidb_ttl_table_status", "tidb_ttl_job_history"):
            server.execute(f"GRANT SELECT ON mysql.{table} TO {user}")
        server.execute(f"GRANT PROCESS ON *.* TO {user}")
        with Lapse(server.url(database, user)) as db:
            db.execute(TTL)
            assert [finding.text for finding in db.doctor() if finding.level is not Level.OK] == []
    finally:
        server.execute(f"DROP USER {user}")


@pytest.mark.parametrize("option", ["lapse_binlog=off", "lapse_replicas=other:4000"])
def test_options_that_mean_nothing_there(server: TidbServer, database: str, option: str) -> None:
    with Lapse(f"{server.url(database)}?{option}") as db, pytest.raises(LapseError, match="TiDB"):
        db.status()


def test_holds_are_refused_where_tidb_deletes(db: Lapse, client: Client) -> None:
    client(EVENTS)
    db.execute(TTL)
    with pytest.raises(Unsupported, match="TiDB"):
        db.hold("events")
    assert db.holds(ended=True) == []
