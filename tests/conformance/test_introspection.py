"""What a user can look at."""

from __future__ import annotations

from lapse.model.job import JobStatus
from tests.conformance.harness import Harness


def test_show_create_table_carries_the_policy(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, body VARCHAR(9)) WITH (ttl_expire_after = '3 minutes')")
    ((name, text),) = h.rows("SHOW CREATE TABLE events")
    assert name == "events"
    assert text.endswith("WITH (ttl_expire_after = '3 minutes')")


def test_show_schedules_and_the_bracket_form(h: Harness) -> None:
    h.events()
    h.run()
    labels = [row[1] for row in h.rows("SHOW SCHEDULES")]
    assert labels == ["row-level-ttl-events"]
    rows = h.rows("SELECT label, schedule_status, recurrence FROM [SHOW SCHEDULES] WHERE label LIKE 'row-level-ttl-%'")
    assert rows == [("row-level-ttl-events", "ACTIVE", "@hourly")]


def test_reloptions(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, body VARCHAR(9)) WITH (ttl_expire_after = '3 minutes')")
    ((name, options),) = h.rows("SELECT relname, reloptions FROM pg_class WHERE relname = 'events'")
    assert name == "events"
    assert "ttl_expire_after" in str(options)


def test_show_jobs(h: Harness) -> None:
    h.events()
    h.insert((1, h.at(days=-2)))
    job = h.run_one()
    (row,) = h.sql("SELECT job_id, job_type, status, fraction_completed, deleted FROM [SHOW JOBS]").rows
    assert (int(row[0]), row[1], row[2], float(row[3]), int(row[4])) == (job.id, "ROW LEVEL TTL", "finished", 1.0, 1)


def test_the_status_table_has_tidbs_columns(h: Harness) -> None:
    h.events()
    h.insert((1, h.at(days=-2)))
    job = h.run_one()
    schema = h.db.engine.catalog_schema
    result = h.sql(f"SELECT * FROM {schema + '.' if schema else ''}lapse_table_status")
    row = dict(zip(result.columns, result.rows[0], strict=True))
    assert row["last_job_id"] == job.id
    assert row["current_job_id"] is None
    assert row["table_id"] == row["parent_table_id"]


def test_status_and_history(h: Harness) -> None:
    h.events()
    (status,) = h.db.status()
    assert status.state == "grace"
    h.insert((1, h.at(days=-2)))
    h.run()
    (status,) = h.db.status()
    assert (status.state, status.last.counts.deleted if status.last else None) == ("idle", 1)
    (job,) = h.db.history("events")
    assert job.status is JobStatus.FINISHED


def test_preview_changes_nothing_and_agrees_with_the_run(h: Harness) -> None:
    h.events()
    h.insert((1, h.at(days=-2)), (2, h.at(days=-3)), (3, h.at()), (4, "NULL"))
    (preview,) = h.db.preview("events")
    assert (preview.survey.rows, preview.survey.expired) == (4, 2)
    assert preview.survey.oldest is not None and preview.survey.newest is not None
    assert (preview.survey.newest - preview.survey.oldest).days == 1
    # Only who owns the table is shown rows of it.
    assert {row["id"] for row in preview.sample} == ({1, 2} if h.db is h.owner else set())
    assert h.ids() == [1, 2, 3, 4]
    assert h.run_one().counts.deleted == preview.survey.expired


def test_doctor_finds_and_repairs(h: Harness) -> None:
    h.sql("CREATE TABLE events (id INTEGER PRIMARY KEY, body VARCHAR(9)) WITH (ttl_expire_after = '1 day')")
    assert not [f for f in h.db.doctor() if f.level == "problem"]
    with h.client() as connection:
        connection.exec_driver_sql("DROP TABLE events")
    (finding,) = [f for f in h.db.doctor() if f.level == "problem"]
    assert "does not exist" in finding.text
    assert h.run_one().status is JobStatus.FAILED
    assert h.db.status()[0].state == "blocked"
    (finding,) = [f for f in h.db.doctor(repair=True) if f.level == "problem"]
    assert finding.fixed
    assert h.db.policies() == []


def test_row_statistics_are_polled(h: Harness) -> None:
    h.events()
    h.sql("ALTER TABLE events SET (ttl_row_stats_poll_interval = '1s', ttl_delete_rate_limit = 400)")
    moment = h.at(days=-2)
    h.insert(*((i, moment) for i in range(1000)))
    h.run()
    statistics = h.db.status()[0].statistics
    assert statistics is not None
    assert '"total_rows"' in statistics
